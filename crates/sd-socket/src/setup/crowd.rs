//! Which connections of the kernel's are busy enough to be offered: by themselves, or, between two hosts, together (ADR 105).
//!
//! An engine puts what many connections send into one packet, so it pays by what all of them carry. Each is looked at after so many messages
//! ([`super::watched::MESSAGES`]). Here those looks are counted that find connections to other hosts slow, so a call in between costs nothing more,
//! and a few sparse ones beside busy ones are no crowd.

use crate::socket::cold;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_shm::slab::{End, Endpoint};

/// A connection is busy by itself if no more time lies between two looks.
pub(super) const BUSY_MS: u32 = 80;
/// And in a crowd, if no more than that: 32 messages a second. An engine gives back what has 20 (`sd_engine::policy`).
const TOGETHER_MS: u32 = 500;

/// So many looks in so much time, at those that are not busy by themselves, are a crowd: 16,000 messages a second, of 80 connections at the least.
const LOOKS: u32 = 1_000;
const WINDOW_MS: u32 = 1_000;
/// It is one for so much longer: what has gone to an engine is not counted here any more, and the last ones are to follow.
const LASTS_MS: u32 = 10_000;
/// So many of a crowd are offered in a millisecond.
const AT_ONCE: u32 = 4;

/// What is known of the process' connections to other hosts that are not busy by themselves.
pub(super) struct Crowd {
    looks: AtomicU32,
    /// When they began to be counted.
    since_ms: AtomicU32,
    /// When it was a crowd last; 0: never.
    busy_ms: AtomicU32,
    /// When one was to be offered as one of it, and how many were in that millisecond.
    offered_ms: AtomicU32,
    offered: AtomicU32,
}

pub(super) static CROWD: Crowd = Crowd::new();

impl Crowd {
    const fn new() -> Crowd {
        Crowd {
            looks: AtomicU32::new(0),
            since_ms: AtomicU32::new(0),
            busy_ms: AtomicU32::new(0),
            offered_ms: AtomicU32::new(0),
            offered: AtomicU32::new(0),
        }
    }

    /// Whether a connection is to be offered that is looked at now, for the first time in so long. Of those that are busy only together few are in
    /// each millisecond, as thousands may be due at once, and each is a question to the monitor; the others are looked at again.
    pub(super) fn is_due(&self, now_ms: u32, since: u32, is_far: impl Fn() -> bool) -> bool {
        if since <= BUSY_MS || since > TOGETHER_MS || !is_far() {
            return since <= BUSY_MS;
        }
        self.is_one(now_ms) && self.has_room(now_ms)
    }

    /// One more is to be offered. Whether that is not too many in this millisecond.
    fn has_room(&self, now_ms: u32) -> bool {
        if self.offered_ms.swap(now_ms, Ordering::Relaxed) != now_ms {
            self.offered.store(0, Ordering::Relaxed);
        }
        self.offered.fetch_add(1, Ordering::Relaxed) < AT_ONCE
    }

    /// One more look. Whether they are a crowd. Of two threads' looks one may be forgotten.
    fn is_one(&self, now_ms: u32) -> bool {
        if self.looks.fetch_add(1, Ordering::Relaxed) + 1 >= LOOKS {
            self.looks.store(0, Ordering::Relaxed);
            let since = now_ms.wrapping_sub(self.since_ms.swap(now_ms, Ordering::Relaxed));
            if since <= WINDOW_MS {
                self.busy_ms.store(now_ms.max(1), Ordering::Relaxed);
            }
        }
        let busy_ms = self.busy_ms.load(Ordering::Relaxed);
        busy_ms != 0 && now_ms.wrapping_sub(busy_ms) <= LASTS_MS
    }
}

/// The other end is not at an address of this end's host, as far as names say that.
pub(super) fn is_far(endpoint: &Endpoint) -> bool {
    let [local, remote] = [End::Local, End::Remote].map(|end| cold::ip(endpoint, end));
    !remote.is_unspecified() && !remote.is_loopback() && local != remote
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// Connections that are looked at each so often, in turn, from this time on: who is offered when, as he is not looked at again then.
    fn offered(
        crowd: &Crowd,
        (count, every_ms): (u32, u32),
        is_far: bool,
        (from, until): (u32, u32),
    ) -> Vec<u32> {
        let mut left = vec![0; every_ms as usize];
        (0..count).for_each(|at| left[(at % every_ms) as usize] += 1);
        let mut offered = vec![];
        for now in from..until {
            let left = &mut left[(now % every_ms) as usize];
            let due = (0..*left).filter(|_| crowd.is_due(now, every_ms, || is_far)).count();
            *left -= due;
            offered.extend(std::iter::repeat_n(now, due));
        }
        offered
    }

    #[test]
    fn who_is_busy_alone_needs_no_crowd() {
        assert_eq!(offered(&Crowd::new(), (1, BUSY_MS), true, (1_000, 1_200)).len(), 1);
        assert_eq!(offered(&Crowd::new(), (40, BUSY_MS), false, (1_000, 1_200)).len(), 40);
        assert_eq!(offered(&Crowd::new(), (1, BUSY_MS + 1), true, (1_000, 9_000)), []);
    }

    #[test]
    fn a_crowd_comes_in_turn_and_all_of_it() {
        let crowd = Crowd::new();
        let at = offered(&crowd, (3_000, 178), true, (1_000, 11_000));
        assert_eq!(at.len(), 3_000);
        assert!(at.is_sorted() && at.windows(5).all(|five| five[0] < five[4]), "a few at a time");
        // A straggler comes too, and later nobody does.
        assert_eq!(offered(&crowd, (1, 178), true, (11_000, 12_000)).len(), 1);
        assert_eq!(offered(&crowd, (9, 178), true, (40_000, 60_000)), []);
    }

    #[test]
    fn few_are_none_nor_are_the_hosts_own_nor_who_is_sparse() {
        // What 32 at the least are together which are busy by themselves is not enough.
        assert_eq!(offered(&Crowd::new(), (71, 178), true, (1_000, 60_000)), []);
        let crowd = Crowd::new();
        assert_eq!(offered(&crowd, (3_000, 178), false, (1_000, 11_000)), []);
        assert_eq!(offered(&crowd, (9_000, TOGETHER_MS + 1), true, (11_000, 20_000)), []);
        // Nor do those who are busy by themselves make one, beside a few that are sparse.
        assert_eq!(offered(&crowd, (3_000, BUSY_MS), true, (20_000, 30_000)).len(), 3_000);
        assert_eq!(offered(&crowd, (39, 800), true, (20_000, 30_000)), []);
    }

    #[test]
    fn a_crowd_is_one_after_days_too() {
        for days in [1u32, 30, 49] {
            let from = days * 86_400_000;
            assert_eq!(offered(&Crowd::new(), (500, 178), true, (from, from + 9_000)).len(), 500);
        }
    }
}
