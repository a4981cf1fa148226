//! Addresses that are not this host's, for a moment, and whether the next connection will lead to one.
//!
//! The kernel's routes would have to be asked for each connect, and for each socket a placeholder would be made that the kernel's own
//! replaces at once. Who makes a connection for each request would pay more for that than the kernel takes. What is kept here may be
//! wrong: then a connection is the kernel's that need not have been, or one of ours has a kernel socket of its own that it does not need.

use core::sync::atomic::{AtomicU32, Ordering};
use sd_proto::Ip;
use sd_sys::time::Interval;

/// An answer of the kernel's holds for so long.
static HOLDS: Interval = Interval::of_ns(20_000_000);
const KEPT: usize = 4;

/// After so many connects that lead elsewhere the next one is expected to.
const IN_A_ROW: u32 = 4;
/// So many have, less those that were expected to and did not.
static LATEST: AtomicU32 = AtomicU32::new(0);

/// Addresses, and when the kernel said that they are not this host's.
pub(super) struct Elsewhere {
    known: [(Ip, u64); KEPT],
    next: usize,
}

impl Elsewhere {
    pub(super) const fn new() -> Elsewhere {
        Elsewhere { known: [(Ip([0; 16]), 0); KEPT], next: 0 }
    }

    /// It was not this host's a moment ago.
    pub(super) fn is_known(&self, ip: Ip) -> bool {
        let now = sd_sys::time::ticks();
        self.known.iter().any(|(other, since)| *other == ip && !HOLDS.is_over(now.wrapping_sub(*since)))
    }

    pub(super) fn note(&mut self, ip: Ip) {
        let at = self.known.iter().position(|(other, _)| *other == ip).unwrap_or(self.next);
        if let Some(place) = self.known.get_mut(at) {
            *place = (ip, sd_sys::time::ticks());
        }
        self.next = (at + 1) % KEPT;
    }
}

/// Whether the next socket will probably be the kernel's.
#[inline]
pub(crate) fn is_likely() -> bool {
    LATEST.load(Ordering::Relaxed) >= IN_A_ROW
}

/// A connect leads elsewhere. Of two threads' one may be forgotten.
pub(crate) fn leads_there() {
    let latest = LATEST.load(Ordering::Relaxed);
    LATEST.store((latest + 1).min(IN_A_ROW), Ordering::Relaxed);
}

/// A socket was made for one that leads there; if it does not, the next one is not.
pub(crate) fn expect() {
    let latest = LATEST.load(Ordering::Relaxed);
    LATEST.store(latest.saturating_sub(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_addresses_are_known() {
        let mut all = Elsewhere::new();
        let ip = |last| Ip::v4([203, 0, 113, last]);
        assert!(!all.is_known(ip(0)));
        for last in 0..6 {
            all.note(ip(last));
            all.note(ip(last));
        }
        let known: Vec<u8> = (0..6).filter(|last| all.is_known(ip(*last))).collect();
        assert!(known.iter().all(|last| *last >= 2), "{known:?}");
    }

    #[test]
    fn what_is_expected_in_vain_is_not_expected_again() {
        let made = |leads: &bool| {
            let likely = is_likely();
            if likely {
                expect();
            }
            if *leads {
                leads_there();
            }
            likely
        };
        let all: Vec<bool> =
            [true, true, true, true, true, false, false, true, true].iter().map(made).collect();
        assert_eq!(all, [false, false, false, false, true, true, false, false, true]);
    }
}
