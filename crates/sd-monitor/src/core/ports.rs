//! Source ports: blocks of the ephemeral range, each lent to one family at a time.

use super::ClientId;
use std::collections::HashMap;

/// Ports in a block.
pub(crate) const BLOCK: u16 = 64;

/// Who has which block, by network namespace.
pub(crate) struct Leases {
    first: u16,
    blocks: u16,
    taken: HashMap<(u64, u16), ClientId>,
}

impl Leases {
    /// All blocks of `first..=last` are free. What remains at the end is not used.
    pub(crate) fn new(first: u16, last: u16) -> Leases {
        let ports = (u32::from(last) + 1).saturating_sub(u32::from(first.max(1)));
        Leases { first: first.max(1), blocks: (ports / u32::from(BLOCK)) as u16, taken: HashMap::new() }
    }

    /// Lends a free block in which nobody listens; its first port. The search starts at a block that
    /// `random` picks.
    pub(crate) fn take(
        &mut self,
        netns: u64,
        client: ClientId,
        random: u32,
        is_listening: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let start = random.checked_rem(u32::from(self.blocks))?;
        let free = (0..u32::from(self.blocks)).map(|n| ((start + n) % u32::from(self.blocks)) as u16).find(
            |block| {
                let first = self.first_port(*block);
                !self.taken.contains_key(&(netns, *block))
                    && !(first..=first + (BLOCK - 1)).any(&is_listening)
            },
        )?;
        self.taken.insert((netns, free), client);
        Some(self.first_port(free))
    }

    /// Notes that a client uses a port of an earlier lease, if the block is free.
    pub(crate) fn reclaim(&mut self, netns: u64, client: ClientId, port: u16) {
        let Some(block) = port.checked_sub(self.first).map(|offset| offset / BLOCK) else { return };
        if block < self.blocks {
            self.taken.entry((netns, block)).or_insert(client);
        }
    }

    /// Who has a port.
    pub(crate) fn owner(&self, netns: u64, port: u16) -> Option<ClientId> {
        let block = port.checked_sub(self.first)? / BLOCK;
        self.taken.get(&(netns, block)).copied()
    }

    /// Takes back all blocks of a client.
    pub(crate) fn release(&mut self, client: ClientId) {
        self.taken.retain(|_, owner| *owner != client);
    }

    /// Blocks lent.
    pub(crate) fn count(&self) -> usize {
        self.taken.len()
    }

    fn first_port(&self, block: u16) -> u16 {
        self.first + block * BLOCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    #[test]
    fn blocks_are_exclusive_in_a_namespace() {
        let mut leases = Leases::new(1000, 1000 + 3 * 64 + 10);
        let mut ports: Vec<_> = (0..3).map(|_| leases.take(7, A, 1, |_| false).unwrap()).collect();
        assert_eq!(ports, [1064, 1128, 1000], "starts where the random number says");
        assert_eq!(leases.take(7, B, 0, |_| false), None);
        assert_eq!(leases.take(8, B, 0, |_| false), Some(1000));
        leases.release(A);
        ports = vec![leases.take(7, B, 2, |_| false).unwrap()];
        assert_eq!(ports, [1128]);
        assert_eq!(leases.count(), 2);
        assert_eq!(leases.owner(7, 1128 + 63), Some(B));
        assert_eq!([leases.owner(7, 1000), leases.owner(8, 1128), leases.owner(7, 80)], [None; 3]);
    }

    #[test]
    fn blocks_with_a_listener_are_skipped() {
        let mut leases = Leases::new(1000, 1127);
        assert_eq!(leases.take(7, A, 0, |port| port == 1063), Some(1064));
        assert_eq!(leases.take(7, A, 0, |port| port == 1063), None);
    }

    #[test]
    fn odd_ranges() {
        assert_eq!(Leases::new(1000, 1010).take(7, A, 5, |_| false), None);
        assert_eq!(Leases::new(9, 3).take(7, A, 5, |_| false), None);
        let mut top = Leases::new(65472, 65535);
        assert_eq!(top.take(7, A, u32::MAX, |_| false), Some(65472));
        let mut all = Leases::new(0, 65535);
        assert_eq!(all.take(7, A, 0, |_| false), Some(1));
        assert!((0..1022).all(|_| all.take(7, A, 3, |_| false).is_some()));
        assert_eq!(all.take(7, A, 0, |_| false), None);
    }

    #[test]
    fn ports_in_use_are_reclaimed() {
        let mut leases = Leases::new(1000, 1127);
        leases.reclaim(7, A, 1070);
        leases.reclaim(7, B, 1071);
        leases.reclaim(7, B, 80);
        leases.reclaim(7, B, 60000);
        assert_eq!(leases.take(7, B, 1, |_| false), Some(1000));
        leases.release(A);
        assert_eq!(leases.take(7, B, 1, |_| false), Some(1064));
    }
}
