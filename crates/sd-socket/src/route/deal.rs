//! Whose turn is it? Connections to one place are dealt evenly over the sockets that listen there, as Linux spreads them over
//! those that share an address by SO_REUSEPORT. A socket whose backlog is full is passed over, and owed what it missed. Of the
//! processes that share one socket by fork, who has nothing to do gets the connection.

use alloc::vec::Vec;
/// A listener of a process, over a channel to it.
pub(super) trait Taker {
    /// It waits for connections, and none waits for it.
    fn is_idle(&self) -> bool;
    /// No connection fits into its backlog.
    fn is_full(&self) -> bool;
    /// It gets a connection: notes whether nobody who shares its socket was idle.
    fn is_chosen(&self, nobody_idle: bool);
}

/// Connections that a socket is owed at most.
const OWED: u64 = 1024;

/// Who listens at one place.
pub(super) struct Deal<T> {
    sockets: Vec<Socket<T>>,
    /// How many takers they have together.
    count: usize,
    /// Whose turn is first.
    first: usize,
}

struct Socket<T> {
    /// The kernel's name for it.
    cookie: u64,
    /// Connections that it got.
    given: u64,
    /// All who share it, and whose turn is next.
    takers: Vec<T>,
    turn: usize,
}

impl<T: Taker> Deal<T> {
    /// Nobody; the first one's turn comes from `seed`, so that clients begin apart.
    pub(crate) fn new(seed: u64) -> Deal<T> {
        Deal {
            sockets: Vec::new(),
            count: 0,
            first: (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn clear(&mut self) {
        self.sockets.clear();
        self.count = 0;
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.sockets.iter_mut().flat_map(|socket| &mut socket.takers)
    }

    pub(super) fn insert(&mut self, cookie: u64, taker: T) {
        self.count += 1;
        match self.sockets.iter_mut().find(|socket| socket.cookie == cookie) {
            Some(socket) => socket.takers.push(taker),
            None => {
                let (given, turn) = (self.most(), self.first);
                self.sockets.push(Socket { cookie, given, takers: vec![taker], turn });
            }
        }
    }

    pub(crate) fn remove(&mut self, is_it: impl Fn(&T) -> bool) {
        self.sockets.iter_mut().for_each(|socket| socket.takers.retain(|taker| !is_it(taker)));
        self.sockets.retain(|socket| !socket.takers.is_empty());
        self.count = self.sockets.iter().map(|socket| socket.takers.len()).sum();
    }

    /// Who gets the next connection. `None` if nobody listens.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<&T> {
        match &self.sockets[..] {
            [Socket { takers, .. }] if takers.len() == 1 => self.sockets.first()?.takers.first(),
            _ => self.next_of_many(),
        }
    }

    fn most(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.given).max().unwrap_or(0)
    }

    fn next_of_many(&mut self) -> Option<&T> {
        let (count, least) = (self.sockets.len(), self.most().saturating_sub(OWED));
        let order = (0..count).map(|step| self.first.wrapping_add(step) % count);
        let given = |at: &usize| self.sockets.get(*at).map(|socket| socket.given.max(least));
        let has_room = |at: &usize| self.sockets.get(*at).is_some_and(|socket| socket.with_room().is_some());
        let at = order.clone().min_by_key(given)?;
        // All are full: the connection waits at whose turn it is.
        let at = if has_room(&at) { at } else { order.filter(has_room).min_by_key(given).unwrap_or(at) };
        let socket = self.sockets.get_mut(at)?;
        socket.given = socket.given.max(least) + 1;
        let (step, is_idle) = socket.with_room().unwrap_or((0, false));
        let chosen = socket.turn.wrapping_add(step);
        socket.turn = chosen.wrapping_add(1);
        let taker = socket.nth(chosen)?;
        taker.is_chosen(!is_idle && socket.takers.len() > 1);
        Some(taker)
    }

    /// Those who share the socket of one.
    pub(super) fn sharers(&self, is_it: impl Fn(&T) -> bool) -> &[T] {
        self.sockets
            .iter()
            .map(|socket| &socket.takers[..])
            .find(|takers| takers.iter().any(&is_it))
            .unwrap_or(&[])
    }
}

impl<T: Taker> Socket<T> {
    fn nth(&self, turn: usize) -> Option<&T> {
        self.takers.get(turn.checked_rem(self.takers.len())?)
    }

    /// How many have to be passed over for one that has nothing to do, or else room; whether it has nothing to do.
    fn with_room(&self) -> Option<(usize, bool)> {
        let count = self.takers.len();
        let first = |fits: fn(&T) -> bool| {
            (0..count).find(|step| self.nth(self.turn.wrapping_add(*step)).is_some_and(fits))
        };
        let idle = if count > 1 { first(T::is_idle) } else { None };
        let idle = idle.map(|step| (step, true));
        idle.or_else(|| first(|taker| !taker.is_full()).map(|step| (step, false)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    struct Fake {
        name: u32,
        idle: bool,
        full: bool,
        nobody_idle: Cell<bool>,
    }

    impl Taker for Fake {
        fn is_idle(&self) -> bool {
            self.idle
        }

        fn is_full(&self) -> bool {
            self.full
        }

        fn is_chosen(&self, nobody_idle: bool) {
            self.nobody_idle.set(nobody_idle);
        }
    }

    /// Listeners named from zero on, at these sockets.
    fn deal(sockets: &[u64]) -> Deal<Fake> {
        let mut deal = Deal::new(7);
        for (name, socket) in sockets.iter().enumerate() {
            deal.insert(
                *socket,
                Fake { name: name as u32, idle: false, full: false, nobody_idle: Cell::new(false) },
            );
        }
        deal
    }

    /// How many of so many connections each gets.
    fn spread<const N: usize>(deal: &mut Deal<Fake>, connections: u32) -> [u32; N] {
        let mut got = [0; N];
        for _ in 0..connections {
            let name = deal.next().map_or(N, |fake| fake.name as usize);
            got.get_mut(name).into_iter().for_each(|got| *got += 1);
        }
        got
    }

    fn set(deal: &mut Deal<Fake>, name: u32, set: fn(&mut Fake)) {
        deal.iter_mut().filter(|fake| fake.name == name).for_each(set);
    }

    #[test]
    fn sockets_get_the_same_number() {
        assert_eq!(spread(&mut deal(&[5]), 3), [3]);
        assert_eq!(spread(&mut deal(&[5, 9, 3]), 300), [100; 3]);
        let mut one_is_idle = deal(&[5, 9, 3]);
        set(&mut one_is_idle, 1, |fake| fake.idle = true);
        assert_eq!(spread(&mut one_is_idle, 300), [100; 3], "who is idle does not matter");
        assert_eq!(spread(&mut deal(&[5, 3, 5]), 400), [100, 200, 100], "two processes share one");
        assert!(deal(&[]).next().is_none());
    }

    #[test]
    fn the_chosen_one_knows_whether_a_sharer_was_idle() {
        let mut shared = deal(&[5, 5, 9]);
        let nobody = |deal: &mut Deal<Fake>| {
            [(); 4].map(|()| deal.next().map(|fake| (fake.name, fake.nobody_idle.get())))
        };
        let told = nobody(&mut shared);
        assert!(
            told.contains(&Some((0, true))) && told.contains(&Some((2, false))),
            "one that shares with nobody: {told:?}"
        );
        set(&mut shared, 1, |fake| fake.idle = true);
        assert!(nobody(&mut shared).iter().flatten().all(|(name, nobody_idle)| *name != 0 && !nobody_idle));
        let names = |deal: &Deal<Fake>, of| {
            deal.sharers(|fake| fake.name == of).iter().map(|fake| fake.name).collect::<Vec<_>>()
        };
        assert_eq!((names(&shared, 0), names(&shared, 2), names(&shared, 3)), (vec![0, 1], vec![2], vec![]));
    }

    #[test]
    fn of_those_that_share_a_socket_the_idle_get_it() {
        let mut shared = deal(&[5, 5, 5]);
        assert_eq!(spread(&mut shared, 300), [100; 3]);
        set(&mut shared, 1, |fake| fake.idle = true);
        assert_eq!(spread(&mut shared, 300), [0, 300, 0]);
        set(&mut shared, 2, |fake| fake.idle = true);
        assert_eq!(spread(&mut shared, 300), [0, 150, 150]);
    }

    #[test]
    fn the_full_are_passed_over() {
        let mut shared = deal(&[5, 5, 5]);
        set(&mut shared, 0, |fake| fake.full = true);
        assert_eq!(spread(&mut shared, 300), [0, 150, 150]);
        let mut apart = deal(&[3, 4, 5]);
        (0..3).for_each(|name| set(&mut apart, name, |fake| fake.full = true));
        assert_eq!(spread(&mut apart, 300), [100; 3], "all of them");
    }

    #[test]
    fn who_was_passed_over_is_owed_it() {
        let mut apart = deal(&[3, 4, 5]);
        set(&mut apart, 1, |fake| fake.full = true);
        assert_eq!(spread(&mut apart, 200), [100, 0, 100]);
        set(&mut apart, 1, |fake| fake.full = false);
        assert_eq!(spread(&mut apart, 100), [0, 100, 0]);
        assert_eq!(spread(&mut apart, 300), [100; 3]);
        set(&mut apart, 1, |fake| fake.full = true);
        assert_eq!(spread(&mut apart, 200_000), [100_000, 0, 100_000]);
        set(&mut apart, 1, |fake| fake.full = false);
        assert_eq!(spread(&mut apart, OWED as u32), [0, OWED as u32, 0], "but not for ever");
        assert_eq!(spread(&mut apart, 300), [100; 3]);
    }
}
