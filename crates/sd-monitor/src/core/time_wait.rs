//! Ports of processes that are gone, which nobody shall bind for a while, and ports that somebody has ever listened on.

use sd_shm::time_wait::{Now, TimeWait, fold};
use std::collections::{BTreeSet, HashMap};

/// Who wants to bind what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Cookie of the network namespace.
    pub(crate) netns: u64,
    /// `None`: any address.
    pub(crate) address: Option<[u64; 2]>,
    pub(crate) port: u16,
    pub(crate) reuse: bool,
    /// Whose socket it is.
    pub(crate) user: u32,
}

impl Wanted {
    /// Whether a connection's end is in the way (`inet_bind_conflict`).
    pub(crate) fn meets(&self, port: u16, address: u16, reuse: bool) -> bool {
        let same_address = self.address.is_none_or(|wanted| fold(wanted) == address);
        self.port == port && same_address && !(self.reuse && reuse)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct TimeWaits {
    of_the_dead: HashMap<(u64, u16), Vec<Left>>,
    listened: BTreeSet<(u64, u16, u32)>,
    /// How many of the dead's a user has left, as of the last look for old ones.
    of_user: HashMap<u32, usize>,
}

/// What a process that is gone has left.
struct Left {
    what: TimeWait,
    user: u32,
    believed: Believed,
}

/// Whom a process can keep from binding a port by what it says of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Believed {
    /// Anybody: the port was its own.
    ByAll,
    /// Those of its own user, whom it can do worse to.
    ByUser(u32),
}

impl Believed {
    /// Whether this user does.
    pub(crate) fn by(self, user: u32) -> bool {
        self == Believed::ByAll || self == Believed::ByUser(user)
    }
}

/// So many are kept of a user's before old ones are looked for, and of those that still hold no more.
const MANY: usize = 4096;
/// So many users have their share; what others leave is not kept.
const USERS: usize = 64;

impl TimeWaits {
    /// A port of a process that is gone, and was this user's.
    pub(crate) fn add(&mut self, netns: u64, new: TimeWait, (believed, user): (Believed, u32), now: Now) {
        if new.is_over(now) {
            return;
        }
        if !self.has_room(user) {
            self.forget_old(now);
        }
        if !self.has_room(user) {
            return;
        }
        let known = self.of_the_dead.entry((netns, new.port)).or_default();
        let before = known.len();
        let is_another = |one: &Left| {
            (one.what.address, one.what.reuse, one.believed, one.user)
                != (new.address, new.reuse, believed, user)
        };
        known.retain(is_another);
        let count = self.of_user.entry(user).or_default();
        *count = (*count + 1).saturating_sub(before - known.len());
        known.push(Left { what: new, user, believed });
    }

    fn has_room(&self, user: u32) -> bool {
        let has = self.of_user.get(&user).copied();
        has.is_some_and(|count| count < MANY) || has.is_none() && self.of_user.len() < USERS
    }

    fn forget_old(&mut self, now: Now) {
        self.of_user.clear();
        for known in self.of_the_dead.values_mut() {
            known.retain(|one| !one.what.is_over(now));
            known.iter().for_each(|one| *self.of_user.entry(one.user).or_default() += 1);
        }
        self.of_the_dead.retain(|_, known| !known.is_empty());
    }

    /// Whether one of those is in the way.
    pub(crate) fn block(&self, wanted: &Wanted, now: Now) -> bool {
        let known = self.of_the_dead.get(&(wanted.netns, wanted.port)).into_iter().flatten();
        let believed = known.filter(|one| !one.what.is_over(now) && one.believed.by(wanted.user));
        believed.map(|one| one.what).any(|one| wanted.meets(one.port, one.address, one.reuse))
    }

    /// A process of a user listens on a port.
    pub(crate) fn listening(&mut self, netns: u64, port: u16, user: u32) {
        self.listened.insert((netns, port, user));
    }

    /// Whether somebody ever did, so that connections may have it.
    pub(crate) fn was_listened_on(&self, netns: u64, port: u16) -> bool {
        self.listened.range((netns, port, 0)..=(netns, port, u32::MAX)).next().is_some()
    }

    /// Keeps who has listened in namespaces that are needed. What the dead have left is over soon.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(u64) -> bool) {
        self.listened.retain(|(netns, ..)| is_needed(*netns));
    }

    /// Who believes what a process of this user says of a port. `is_lent`: to that process.
    pub(crate) fn believed(&self, netns: u64, port: u16, user: u32, is_lent: bool) -> Believed {
        let is_own = is_lent || user == 0 || self.listened.contains(&(netns, port, user));
        if is_own { Believed::ByAll } else { Believed::ByUser(user) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sd_shm::time_wait::SECONDS;

    const HERE: [u64; 2] = [0, 1];
    const ELSEWHERE: [u64; 2] = [0, 2];

    fn at(step: u64) -> Now {
        Now::new(step << 28, |_| 100_000_000)
    }

    fn wanted(address: Option<[u64; 2]>, reuse: bool) -> Wanted {
        Wanted { netns: 7, address, port: 80, reuse, user: 5 }
    }

    #[test]
    fn reuse_needs_both() {
        for (theirs, ours) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut all = TimeWaits::default();
            all.add(
                7,
                TimeWait { port: 80, reuse: theirs, address: fold(HERE), at: 100, seconds: SECONDS },
                (Believed::ByAll, 5),
                at(100),
            );
            assert_eq!(all.block(&wanted(Some(HERE), ours), at(100)), !(theirs && ours));
            assert!(!all.block(&wanted(Some(HERE), ours), at(100_000)), "a minute has passed");
        }
    }

    #[test]
    fn a_port_of_ones_own_is_believed() {
        let mut all = TimeWaits::default();
        assert_eq!(all.believed(7, 80, 6, false), Believed::ByUser(6));
        assert_eq!(all.believed(7, 80, 6, true), Believed::ByAll);
        assert_eq!(all.believed(7, 80, 0, false), Believed::ByAll);
        all.listening(7, 80, 6);
        assert_eq!(all.believed(7, 80, 6, false), Believed::ByAll);
        assert_eq!(all.believed(8, 80, 6, false), Believed::ByUser(6));
        assert!(all.was_listened_on(7, 80) && !all.was_listened_on(7, 81) && !all.was_listened_on(8, 80));
        let mut all = TimeWaits::default();
        let one = TimeWait { port: 80, reuse: false, address: fold(HERE), at: 0, seconds: SECONDS };
        all.add(7, one, (Believed::ByUser(6), 6), at(0));
        assert!(!all.block(&wanted(None, false), at(0)));
        assert!(all.block(&Wanted { user: 6, ..wanted(None, false) }, at(0)));
        all.add(7, one, (Believed::ByUser(5), 5), at(0));
        assert!(all.block(&wanted(None, false), at(0)));
    }

    #[test]
    fn addresses_and_namespaces_are_apart() {
        let mut all = TimeWaits::default();
        all.add(
            7,
            TimeWait { port: 80, reuse: false, address: fold(HERE), at: 0, seconds: SECONDS },
            (Believed::ByAll, 5),
            at(0),
        );
        assert!(all.block(&wanted(None, false), at(0)));
        assert!(!all.block(&wanted(Some(ELSEWHERE), false), at(0)));
        assert!(!all.block(&Wanted { netns: 8, ..wanted(None, false) }, at(0)));
        assert!(!all.block(&Wanted { port: 81, ..wanted(None, false) }, at(0)));
    }

    #[test]
    fn the_old_make_room() {
        let mut all = TimeWaits::default();
        let one = |port, at| TimeWait { port, reuse: false, address: 0, at, seconds: SECONDS };
        (1..=MANY as u16).for_each(|port| all.add(7, one(port, 0), (Believed::ByAll, 5), at(0)));
        all.add(7, one(9000, 5000), (Believed::ByAll, 5), at(5000));
        assert_eq!(all.of_the_dead.len(), 1);
    }

    #[test]
    fn a_user_takes_room_from_nobody_else() {
        let mut all = TimeWaits::default();
        let one = |port| TimeWait { port, reuse: false, address: 0, at: 0, seconds: SECONDS };
        (1..=2 * MANY as u16).for_each(|port| all.add(7, one(port), (Believed::ByUser(5), 5), at(0)));
        assert_eq!((all.of_the_dead.len(), all.of_user[&5]), (MANY, MANY));
        for _ in 0..3 {
            all.add(7, one(80), (Believed::ByUser(6), 6), at(0));
        }
        assert_eq!(all.of_user[&6], 1, "the same is kept once");
        assert!(all.block(&Wanted { user: 6, ..wanted(None, false) }, at(0)));
        (100..100 + 2 * USERS as u32)
            .for_each(|user| all.add(7, one(81), (Believed::ByUser(user), user), at(0)));
        assert_eq!(all.of_user.len(), USERS);
    }
}
