//! Ports of processes that are gone, which nobody shall bind for a while, and ports that somebody has ever listened on.

use sd_shm::time_wait::{TimeWait, fold};
use std::collections::{HashMap, HashSet};

/// Who wants to bind what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Cookie of the network namespace.
    pub(crate) netns: u64,
    /// `None`: any address.
    pub(crate) address: Option<[u64; 2]>,
    pub(crate) port: u16,
    pub(crate) reuse: bool,
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
    of_the_dead: HashMap<(u64, u16), Vec<TimeWait>>,
    listened: HashSet<(u64, u16)>,
}

/// So many are kept before old ones are looked for.
const MANY: usize = 4096;

impl TimeWaits {
    /// A port of a process that is gone.
    pub(crate) fn add(&mut self, netns: u64, new: TimeWait, now: u32) {
        if self.of_the_dead.len() >= MANY {
            self.of_the_dead.values_mut().for_each(|known| known.retain(|one| !one.is_over(now)));
            self.of_the_dead.retain(|_, known| !known.is_empty());
        }
        if !new.is_over(now) && self.of_the_dead.len() < MANY {
            let known = self.of_the_dead.entry((netns, new.port)).or_default();
            known.retain(|one| !one.is_over(now) && (one.address, one.reuse) != (new.address, new.reuse));
            known.push(new);
        }
    }

    /// Whether one of those is in the way.
    pub(crate) fn block(&self, wanted: &Wanted, now: u32) -> bool {
        let known = self.of_the_dead.get(&(wanted.netns, wanted.port)).into_iter().flatten();
        known.filter(|one| !one.is_over(now)).any(|one| wanted.meets(one.port, one.address, one.reuse))
    }

    /// Somebody listens on a port.
    pub(crate) fn listening(&mut self, netns: u64, port: u16) {
        self.listened.insert((netns, port));
    }

    /// Whether somebody ever did, so that connections may have it.
    pub(crate) fn was_listened_on(&self, netns: u64, port: u16) -> bool {
        self.listened.contains(&(netns, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: [u64; 2] = [0, 1];
    const ELSEWHERE: [u64; 2] = [0, 2];

    fn wanted(address: Option<[u64; 2]>, reuse: bool) -> Wanted {
        Wanted { netns: 7, address, port: 80, reuse }
    }

    #[test]
    fn reuse_needs_both() {
        for (theirs, ours) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut all = TimeWaits::default();
            all.add(7, TimeWait { port: 80, reuse: theirs, address: fold(HERE), at: 100 }, 100);
            assert_eq!(all.block(&wanted(Some(HERE), ours), 100), !(theirs && ours));
            assert!(!all.block(&wanted(Some(HERE), ours), 100_000), "a minute has passed");
        }
    }

    #[test]
    fn addresses_and_namespaces_are_apart() {
        let mut all = TimeWaits::default();
        all.add(7, TimeWait { port: 80, reuse: false, address: fold(HERE), at: 0 }, 0);
        assert!(all.block(&wanted(None, false), 0));
        assert!(!all.block(&wanted(Some(ELSEWHERE), false), 0));
        assert!(!all.block(&Wanted { netns: 8, ..wanted(None, false) }, 0));
        assert!(!all.block(&Wanted { port: 81, ..wanted(None, false) }, 0));
    }

    #[test]
    fn the_old_make_room() {
        let mut all = TimeWaits::default();
        let one = |port, at| TimeWait { port, reuse: false, address: 0, at };
        (1..=MANY as u16).for_each(|port| all.add(7, one(port, 0), 0));
        all.add(7, one(9000, 5000), 5000);
        assert_eq!(all.of_the_dead.len(), 1);
    }
}
