//! Source ports: pieces of the ephemeral range, each lent to one family at a time.
//!
//! Pieces are large at first, since a process needs a port for each of its connections to one destination, and become
//! smaller as the range is used up, so that thousands of processes have some. The last part is for those that have none.

use super::ClientId;
use std::collections::HashMap;

/// Ports of the largest piece. Blocks of so many are divided into 16 units, which is also how many bits a mask has.
const BLOCK: u16 = 64;
const UNITS: u16 = 16;
const UNIT: u16 = BLOCK / UNITS;
/// This part of a range is for those who have no bound, however many others there are.
const RESERVE: u32 = 16;

/// Ports that were lent together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) first: u16,
    pub(crate) count: u16,
}

/// Units of a block.
#[derive(Clone, Copy)]
struct Piece {
    netns: u64,
    block: u16,
    units: u16,
    /// Who is charged for it; none where there is no bound.
    user: Option<u32>,
}

/// One network namespace's.
struct Range {
    /// Bit per unit that is lent, by block.
    taken: Vec<u16>,
    lent: u32,
}

/// Who has which ports.
pub(crate) struct Leases {
    first: u16,
    blocks: u16,
    ranges: HashMap<u64, Range>,
    owners: HashMap<(u64, u16), [Option<ClientId>; UNITS as usize]>,
    pieces: HashMap<ClientId, Vec<Piece>>,
    /// Units that users have of a namespace's range.
    of_users: HashMap<(u64, u32), u32>,
}

impl Leases {
    /// All of `first..=last` is free. What remains at the end is not used.
    pub(crate) fn new(first: u16, last: u16) -> Leases {
        let ports = (u32::from(last) + 1).saturating_sub(u32::from(first.max(1)));
        Leases {
            first: first.max(1),
            blocks: (ports / u32::from(BLOCK)) as u16,
            ranges: HashMap::new(),
            owners: HashMap::new(),
            pieces: HashMap::new(),
            of_users: HashMap::new(),
        }
    }

    /// Lends free ports on none of which anybody listens. The search starts at a block that `random` picks. A user that
    /// is named gets a quarter of the range, all of its processes together, and nothing of the reserve.
    pub(crate) fn take(
        &mut self,
        netns: u64,
        (client, user): (ClientId, Option<u32>),
        random: u32,
        is_listening: impl Fn(u16) -> bool,
    ) -> Option<Lease> {
        let start = random.checked_rem(u32::from(self.blocks))?;
        let lent = self.ranges.get(&netns).map_or(0, |range| range.lent);
        for size in self.sizes(lent, !self.pieces.contains_key(&client)) {
            let mut blocks =
                (0..u32::from(self.blocks)).map(|n| ((start + n) % u32::from(self.blocks)) as u16);
            let free = |block| self.free_piece(Piece { netns, block, units: 0, user }, *size, &is_listening);
            if !self.may_have(netns, user, *size) {
                continue;
            }
            if let Some(piece) = blocks.find_map(free) {
                self.lend(piece, client);
                return Some(self.lease(piece));
            }
        }
        None
    }

    fn may_have(&self, netns: u64, user: Option<u32>, units: u16) -> bool {
        let Some(user) = user else { return true };
        let has = self.of_users.get(&(netns, user)).copied().unwrap_or_default();
        let lent = self.ranges.get(&netns).map_or(0, |range| range.lent);
        let (all, more) = (u32::from(self.blocks) * u32::from(UNITS), u32::from(units));
        (has + more) * 4 <= all && lent + more <= all - all / RESERVE
    }

    /// Units that are to be lent at a time, in the order of preference.
    fn sizes(&self, lent: u32, is_first: bool) -> &'static [u16] {
        let eighths = lent * 8 / (u32::from(self.blocks) * u32::from(UNITS)).max(1);
        match eighths {
            0..4 => &[UNITS, UNITS / 4, 1],
            4..6 => &[UNITS / 4, 1],
            6 => &[1],
            _ if is_first => &[1],
            _ => &[],
        }
    }

    fn free_piece(&self, of: Piece, size: u16, is_listening: &impl Fn(u16) -> bool) -> Option<Piece> {
        let taken = self.ranges.get(&of.netns).map_or(0, |range| range.taken[usize::from(of.block)]);
        let all = u16::MAX >> (UNITS - size);
        (0..UNITS / size).map(|nth| Piece { units: all << (nth * size), ..of }).find(|piece| {
            let Lease { first, count } = self.lease(*piece);
            taken & piece.units == 0 && !(first..=first + (count - 1)).any(is_listening)
        })
    }

    /// The ports of a piece that is one run of units.
    fn lease(&self, piece: Piece) -> Lease {
        let first = self.first + piece.block * BLOCK + piece.units.trailing_zeros() as u16 * UNIT;
        Lease { first, count: piece.units.count_ones() as u16 * UNIT }
    }

    fn lend(&mut self, piece: Piece, client: ClientId) {
        let none = || Range { taken: vec![0; usize::from(self.blocks)], lent: 0 };
        let range = self.ranges.entry(piece.netns).or_insert_with(none);
        range.taken[usize::from(piece.block)] |= piece.units;
        range.lent += piece.units.count_ones();
        if let Some(user) = piece.user {
            *self.of_users.entry((piece.netns, user)).or_default() += piece.units.count_ones();
        }
        let owners = self.owners.entry((piece.netns, piece.block)).or_default();
        units_of(piece).for_each(|unit| owners[unit] = Some(client));
        self.pieces.entry(client).or_default().push(piece);
    }

    /// Notes that a client uses a port of an earlier lease, if it is free.
    pub(crate) fn reclaim(&mut self, netns: u64, (client, user): (ClientId, Option<u32>), port: u16) {
        let Some(piece) = self.unit(netns, port) else { return };
        if self.owner(netns, port).is_none() && self.may_have(netns, user, 1) {
            self.lend(Piece { user, ..piece }, client);
        }
    }

    /// Where a port is, if it is one of those that are lent.
    fn unit(&self, netns: u64, port: u16) -> Option<Piece> {
        let offset = port.checked_sub(self.first)?;
        let piece = Piece { netns, block: offset / BLOCK, units: 1 << (offset % BLOCK / UNIT), user: None };
        (piece.block < self.blocks).then_some(piece)
    }

    /// Who has a port.
    pub(crate) fn owner(&self, netns: u64, port: u16) -> Option<ClientId> {
        let piece = self.unit(netns, port)?;
        self.owners.get(&(netns, piece.block))?[units_of(piece).next()?]
    }

    /// Takes back whatever a client has.
    pub(crate) fn release(&mut self, client: ClientId) {
        for piece in self.pieces.remove(&client).unwrap_or_default() {
            self.give_back(piece);
            let Some(range) = self.ranges.get_mut(&piece.netns) else { continue };
            range.taken[usize::from(piece.block)] &= !piece.units;
            range.lent -= piece.units.count_ones();
            if range.taken[usize::from(piece.block)] == 0 {
                self.owners.remove(&(piece.netns, piece.block));
            } else if let Some(owners) = self.owners.get_mut(&(piece.netns, piece.block)) {
                units_of(piece).for_each(|unit| owners[unit] = None);
            }
            if range.lent == 0 {
                self.ranges.remove(&piece.netns);
            }
        }
    }

    /// The user is charged for it no longer.
    fn give_back(&mut self, Piece { netns, units, user, .. }: Piece) {
        let Some(user) = user else { return };
        if let Some(has) = self.of_users.get_mut(&(netns, user)) {
            *has -= units.count_ones();
            if *has == 0 {
                self.of_users.remove(&(netns, user));
            }
        }
    }

    /// Leases that are out.
    pub(crate) fn count(&self) -> usize {
        self.pieces.values().map(Vec::len).sum()
    }
}

fn units_of(piece: Piece) -> impl Iterator<Item = usize> {
    (0..usize::from(UNITS)).filter(move |unit| piece.units >> unit & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    fn nobody(_: u16) -> bool {
        false
    }

    fn lease(first: u16, count: u16) -> Option<Lease> {
        Some(Lease { first, count })
    }

    #[test]
    fn ports_are_exclusive_in_a_namespace() {
        let mut leases = Leases::new(1000, 1000 + 4 * 64 + 10);
        assert_eq!(
            leases.take(7, (A, None), 1, nobody),
            lease(1064, 64),
            "starts where the random number says"
        );
        assert_eq!(leases.take(7, (A, None), 1, nobody), lease(1128, 64));
        assert_eq!(leases.take(7, (B, None), 1, nobody), lease(1192, 16), "half of it is lent");
        assert_eq!(leases.take(8, (B, None), 0, nobody), lease(1000, 64));
        assert_eq!(leases.count(), 4);
        assert_eq!(
            [1063, 1064, 1191, 1192, 1208].map(|port| leases.owner(7, port)),
            [None, Some(A), Some(A), Some(B), None]
        );
        leases.release(A);
        assert_eq!(
            [leases.owner(7, 1064), leases.owner(7, 1192), leases.owner(8, 1000)],
            [None, Some(B), Some(B)]
        );
        assert_eq!(leases.take(7, (A, None), 3, nobody), lease(1000, 64));
        leases.release(B);
        assert_eq!(leases.owner(7, 1192), None);
        assert_eq!(leases.count(), 1);
    }

    #[test]
    fn pieces_become_smaller_and_the_last_ones_are_for_those_without() {
        let mut leases = Leases::new(32768, 60999);
        let mut sizes = Vec::new();
        while let Some(Lease { count, .. }) = leases.take(7, (A, None), sizes.len() as u32 * 977, nobody) {
            sizes.push(count);
        }
        assert!(sizes.is_sorted_by(|a, b| a >= b));
        let of = |size| sizes.iter().filter(|count| **count == size).count();
        assert_eq!([of(64), of(16), of(4)], [221, 439, 882]);
        let mut newcomers = 0;
        while let Some(got) = leases.take(7, (ClientId(100 + newcomers), None), 5, nobody) {
            assert_eq!(got.count, 4);
            newcomers += 1;
        }
        assert_eq!(newcomers, 882);
        (0..newcomers).for_each(|client| leases.release(ClientId(100 + client)));
        leases.release(A);
        assert_eq!((leases.count(), leases.ranges.len(), leases.owners.len()), (0, 0, 0));
        assert_eq!(leases.take(7, (B, None), 0, nobody), lease(32768, 64));
    }

    #[test]
    fn thousands_of_processes_have_some() {
        let mut leases = Leases::new(32768, 60999);
        let client = |number: u64| ClientId(1 + number);
        assert!(
            (0..2400).all(|number| leases.take(7, (client(number), None), number as u32, nobody).is_some())
        );
        let owners: std::collections::HashSet<_> =
            (32768..=60999u16).filter_map(|port| leases.owner(7, port)).collect();
        assert_eq!(owners.len(), 2400);
    }

    #[test]
    fn pieces_with_a_listener_are_skipped() {
        let mut leases = Leases::new(1000, 1127);
        assert_eq!(leases.take(7, (A, None), 0, |port| port == 1063), lease(1064, 64));
        assert_eq!(leases.take(7, (A, None), 0, |port| port == 1003), lease(1016, 16));
        let mut other = Leases::new(1000, 1063);
        assert_eq!(other.take(7, (A, None), 0, |port| port == 1063), lease(1000, 16), "a part of a block");
    }

    #[test]
    fn odd_ranges() {
        assert_eq!(Leases::new(1000, 1010).take(7, (A, None), 5, nobody), None);
        assert_eq!(Leases::new(9, 3).take(7, (A, None), 5, nobody), None);
        let mut top = Leases::new(65472, 65535);
        assert_eq!(top.take(7, (A, None), u32::MAX, nobody), lease(65472, 64));
        let mut all = Leases::new(0, 65535);
        assert_eq!(all.take(7, (A, None), 0, nobody), lease(1, 64));
        while all.take(7, (A, None), 3, nobody).is_some() {}
        assert!(all.take(7, (B, None), 3, nobody).is_some());
        assert_eq!(all.owner(7, 65473), None, "what remains");
    }

    #[test]
    fn a_user_gets_a_quarter() {
        let mut leases = Leases::new(1000, 1000 + 16 * 64 - 1);
        let of = |leases: &Leases, user| leases.of_users.get(&(7, user)).copied().unwrap_or_default();
        for number in 0..200 {
            let _ = leases.take(7, (ClientId(number), Some(5)), number as u32, nobody);
        }
        (1000..2024).for_each(|port| leases.reclaim(7, (A, Some(5)), port));
        assert_eq!(of(&leases, 5), 4 * u32::from(UNITS));
        assert_eq!(leases.take(7, (B, Some(5)), 0, nobody), None);
        assert!(leases.take(7, (B, Some(6)), 0, nobody).is_some());
        assert!(leases.take(8, (A, Some(5)), 0, nobody).is_some(), "another namespace");
        (0..200).for_each(|number| leases.release(ClientId(number)));
        assert_eq!((of(&leases, 5), leases.of_users.len(), leases.count()), (0, 0, 0));
    }

    #[test]
    fn a_reserve_is_left() {
        let mut leases = Leases::new(1000, 1000 + 32 * 64 - 1);
        let lent = |leases: &Leases| leases.ranges[&7].lent;
        for number in 0..2000 {
            let _ = leases.take(7, (ClientId(number), Some(number as u32 % 8)), number as u32, nobody);
        }
        (1000..3048).for_each(|port| leases.reclaim(7, (A, Some(9)), port));
        let all = 32 * u32::from(UNITS);
        assert_eq!(lent(&leases), all - all / RESERVE);
        assert_eq!(leases.take(7, (B, Some(10)), 0, nobody), None);
        assert_eq!(leases.take(7, (ClientId(5000), None), 0, nobody).map(|lease| lease.count), Some(UNIT));
    }

    #[test]
    fn ports_in_use_are_reclaimed() {
        let mut leases = Leases::new(1000, 1127);
        leases.reclaim(7, (A, None), 1070);
        leases.reclaim(7, (B, None), 1071);
        leases.reclaim(7, (B, None), 1072);
        leases.reclaim(7, (B, None), 80);
        leases.reclaim(7, (B, None), 60000);
        assert_eq!(
            [1068, 1071, 1072, 1076].map(|port| leases.owner(7, port)),
            [Some(A), Some(A), Some(B), None]
        );
        assert_eq!(leases.take(7, (B, None), 1, nobody), lease(1000, 64));
        leases.release(A);
        assert_eq!(leases.owner(7, 1070), None);
        assert_eq!(leases.owner(7, 1072), Some(B));
    }
}
