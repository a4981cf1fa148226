//! Source ports: what the monitor has lent to this process, and what connections to a destination use of it.
//!
//! Connections to different destinations may have the same port, as in Linux.

use alloc::vec::Vec;
/// Ports of the largest lease.
const LEASE_LEN: usize = u64::BITS as usize;

/// Ports that follow each other.
#[derive(Clone, Copy)]
struct Lease {
    first: u16,
    count: u16,
    /// No connection gets one any more.
    is_over: bool,
}

/// See the module.
pub(super) struct Leases {
    all: Vec<Lease>,
    /// Where the search for the next port begins, for whatever destination: behind the last one that was given out. So
    /// a port that was just used, and may be in TIME-WAIT, is given out again as late as can be.
    next: usize,
}

impl Leases {
    pub(crate) const fn new() -> Leases {
        Leases { all: Vec::new(), next: 0 }
    }

    /// The monitor has lent more.
    pub(crate) fn add(&mut self, first: u16, count: u16) {
        if (1..=LEASE_LEN).contains(&usize::from(count)) {
            self.all.push(Lease { first, count, is_over: false });
        }
    }

    /// There are none for new connections.
    pub(super) fn are_over(&self) -> bool {
        self.all.iter().all(|lease| lease.is_over)
    }

    /// The monitor that has lent them is gone. Its successor knows of the ports that are in use, and lends others.
    pub(super) fn end(&mut self) {
        self.all.iter_mut().for_each(|lease| lease.is_over = true);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Number of the lease that has a port, and the port's bit.
    fn place(&self, port: u16) -> Option<(usize, u64)> {
        let has = |lease: &Lease| port.wrapping_sub(lease.first) < lease.count;
        let at = self.all.iter().position(has)?;
        Some((at, 1 << port.wrapping_sub(self.all.get(at)?.first)))
    }
}

/// What connections to one destination use.
pub(super) struct Used {
    /// Bit per port, a word per lease.
    words: Vec<u64>,
}

impl Used {
    pub(crate) const fn new() -> Used {
        Used { words: Vec::new() }
    }

    pub(super) fn is_any(&self) -> bool {
        self.words.iter().any(|ports| *ports != 0)
    }

    /// A port that is not in use: one that was not for long, if possible.
    pub(crate) fn take(&mut self, leases: &mut Leases) -> Option<u16> {
        let count = leases.all.len();
        self.words.resize(count, 0);
        for step in 0..=count {
            let at = (leases.next / LEASE_LEN + step) % count.max(1);
            let lease = leases.all.get(at).filter(|lease| !lease.is_over);
            let (Some(lease), Some(word)) = (lease, self.words.get_mut(at)) else { continue };
            let passed = if step == 0 { !0u64 << (leases.next % LEASE_LEN) } else { !0 };
            let bit = (!*word & passed).trailing_zeros();
            if bit < u32::from(lease.count) {
                *word |= 1 << bit;
                let port = lease.first.wrapping_add(bit as u16);
                leases.next = (at * LEASE_LEN + bit as usize + 1) % (count * LEASE_LEN);
                return Some(port);
            }
        }
        None
    }

    /// The port of an earlier connection, for another; false when it is in use.
    pub(super) fn take_again(&mut self, leases: &Leases, port: u16) -> bool {
        self.words.resize(leases.all.len(), 0);
        let Some((at, bit)) = leases.place(port) else { return false };
        let Some(word) = self.words.get_mut(at) else { return false };
        let is_free = *word & bit == 0;
        *word |= bit;
        is_free
    }

    /// The connection that used it is over.
    pub(crate) fn free(&mut self, leases: &Leases, port: u16) {
        if let Some((at, bit)) = leases.place(port)
            && let Some(word) = self.words.get_mut(at)
        {
            *word &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_go_round_each_destination_by_itself() {
        let mut leases = Leases::new();
        assert!(leases.are_over());
        leases.add(100, 4);
        leases.add(7, 0);
        leases.add(7, 65);
        leases.add(300, 2);
        assert!(!leases.are_over());
        let (mut here, mut there) = (Used::new(), Used::new());
        assert_eq!(here.take(&mut leases), Some(100));
        assert_eq!(there.take(&mut leases), Some(101), "another destination");
        let rest: Vec<_> = (0..6).map(|_| here.take(&mut leases)).collect();
        assert_eq!(rest, [Some(102), Some(103), Some(300), Some(301), Some(101), None]);
        here.free(&leases, 101);
        here.free(&leases, 300);
        here.free(&leases, 9);
        assert_eq!(
            [here.take(&mut leases), here.take(&mut leases), here.take(&mut leases)],
            [Some(300), Some(101), None]
        );
        there.free(&leases, 101);
        assert!(here.is_any() && !there.is_any());
        assert_eq!(there.take(&mut leases), Some(102), "not the one that was just used");
    }

    #[test]
    fn a_port_is_taken_again_if_it_is_free() {
        let mut leases = Leases::new();
        leases.add(100, 64);
        let mut used = Used::new();
        assert!(used.take_again(&leases, 163) && !used.take_again(&leases, 163));
        assert!(!used.take_again(&leases, 164) && !used.take_again(&leases, 99));
        let others: Vec<_> = core::iter::from_fn(|| used.take(&mut leases)).collect();
        assert_eq!(others, (100..163).collect::<Vec<u16>>());
    }

    #[test]
    fn a_new_monitor_lends_anew() {
        let mut leases = Leases::new();
        leases.add(100, 16);
        let mut used = Used::new();
        used.take(&mut leases);
        leases.end();
        assert!(leases.are_over() && used.is_any());
        assert_eq!(used.take(&mut leases), None);
        leases.add(500, 16);
        assert_eq!(used.take(&mut leases), Some(500));
        used.free(&leases, 100);
        used.free(&leases, 500);
        assert!(!used.is_any());
    }
}
