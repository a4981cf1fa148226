//! The rounds that sleepers make for the memory of the process's connections (`idle` says what is done in each).
//!
//! When a process falls quiet, one of its sleepers is its *caretaker*: it sleeps until the next round is due, makes it for all
//! connections of the process, and sleeps on without a timer when all rounds are made or nothing is left to give back. It does
//! not matter what the caretaker waits for. The first round comes a tenth of a second after the last use, so a process that
//! is used more often than that has none; there the clock hand of `sweep` goes round.
//!
//! A caretaker that is woken is one no more, and whoever sleeps next takes its place. For the case that nobody does, a thread
//! that sleeps on a single connection makes the rounds for that one itself ([`OwnRounds`]).

use crate::memory::idle::{self, ROUNDS, Round};
use crate::memory::park;
use crate::process::{PROCESS, SlabRec};
use crate::socket::endpoint::EndpointExt;
use crate::socket::parked;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sd_ring::RxCursor;
use sd_ring::sync::caretaker::Care;
use sd_shm::slab::{Endpoint, RX_PARKED};
use sd_sys::time::now_ns;

/// Whether connections may have been used since a caretaker looked at the clock, and when it will be back (SYNC POINT: caretaker, with
/// `used` and `before_sleep` in crates/sd-socket/src/memory/rounds.rs).
static CARE: Care = Care::new();
/// When they were not used any more, and the rounds made since.
static QUIET_SINCE: AtomicU64 = AtomicU64::new(0);
static MADE: AtomicUsize = AtomicUsize::new(ROUNDS.len());
/// Of a process that never had more sockets it is looked whether a round has anything to do, before a sleep ends for it.
const FEW: usize = 16;

/// Connections are, or were just, in use (SYNC POINT: caretaker, with `before_sleep` in crates/sd-socket/src/memory/rounds.rs).
#[inline]
pub(crate) fn used() {
    CARE.used();
}

/// In the child of a fork: the caretaker is the parent's.
pub(crate) fn forked() {
    CARE.forked();
}

/// Connections were used since the last caretaker looked.
#[inline]
pub(crate) fn are_new() -> bool {
    CARE.is_used()
}

/// A thread that waits, and is the caretaker while it sleeps, unless another one is.
pub(crate) struct Caretaker {
    /// Its wait is a use, and was not noted yet.
    is_use: bool,
    /// When it said it would be back; zero: it is not the caretaker.
    back_at: u64,
}

impl Caretaker {
    pub(crate) fn new(is_use: bool) -> Caretaker {
        Caretaker { is_use, back_at: 0 }
    }

    /// Before a sleep: makes the rounds that are due, and says in how many nanoseconds there will be more.
    pub(crate) fn before_sleep(&mut self) -> Option<u64> {
        if core::mem::take(&mut self.is_use) {
            used();
        }
        let has_work = CARE.is_used() || MADE.load(Ordering::Relaxed) < ROUNDS.len();
        if !has_work && self.back_at == 0 {
            return None;
        }
        let now = now_ns();
        let begin = || {
            QUIET_SINCE.store(now, Ordering::Relaxed);
            MADE.store(0, Ordering::Relaxed);
        };
        let work = || rounds(now.saturating_sub(QUIET_SINCE.load(Ordering::Relaxed)));
        CARE.before_sleep(&mut self.back_at, now, begin, work)
    }
}

impl Drop for Caretaker {
    #[inline]
    fn drop(&mut self) {
        if self.back_at != 0 {
            CARE.leave(&mut self.back_at);
        }
    }
}

/// Makes the rounds that are due after so many nanoseconds of quiet; when the next one is.
fn rounds(quiet: u64) -> Option<u64> {
    rounds_with(quiet, &MADE, Round::pause, make, seems_needed)
}

/// See [`rounds`]. `made`: how many there were since. `make` makes one, and says whether memory is left for a later one.
fn rounds_with(
    quiet: u64,
    made: &AtomicUsize,
    pause: impl Fn(Round) -> u64,
    mut make: impl FnMut(Round) -> bool,
    seems_needed: impl Fn(Round) -> bool,
) -> Option<u64> {
    let mut due = 0;
    for (number, round) in ROUNDS.into_iter().enumerate() {
        due += pause(round);
        if number < made.load(Ordering::Relaxed) {
            continue;
        }
        if due <= quiet {
            let more = make(round);
            made.store(if more { number + 1 } else { ROUNDS.len() }, Ordering::Relaxed);
        } else if seems_needed(round) {
            return Some(due - quiet);
        }
    }
    None
}

/// A round for all connections of the process: whether memory is left for a later one.
fn make(round: Round) -> bool {
    let mut more = false;
    for (_, endpoint) in PROCESS.connections().filter(|(rec, endpoint)| is_held(rec, endpoint)) {
        if needs(endpoint, round) {
            idle::tidy(endpoint, round);
        }
        more |= !parked::are_both_parked(endpoint) && idle::is_due(endpoint, Round::Third);
    }
    if round != Round::First {
        park::park_idle();
    }
    more
}

/// Whether a round would find something to do; in a process with many sockets it may.
fn seems_needed(round: Round) -> bool {
    let slabs = (0..).map_while(|at| PROCESS.slab_at(at));
    let sockets: usize = slabs.map(|(_, slab)| slab.header().high.load(Ordering::Acquire) as usize).sum();
    sockets > FEW || PROCESS.connections().any(|(_, endpoint)| needs(endpoint, round))
}

/// This process has it.
fn is_held(rec: &SlabRec, endpoint: &Endpoint) -> bool {
    endpoint.holders.load(Ordering::Acquire) & rec.bit.load(Ordering::Relaxed) != 0
}

/// A look without the tokens, which other threads may have: is there memory or credit to give back?
pub(super) fn needs(endpoint: &'static Endpoint, round: Round) -> bool {
    let owes = |rx: RxCursor| rx.owes_credit() || round == Round::Second && rx.is_large();
    !parked::are_both_parked(endpoint)
        && (idle::is_due(endpoint, round)
            || !endpoint.flag(RX_PARKED) && parked::receiver(endpoint).is_some_and(owes))
}

/// The rounds of a thread that sleeps on one connection, for that one.
pub(crate) struct OwnRounds {
    endpoint: &'static Endpoint,
    steps: Steps,
}

impl OwnRounds {
    pub(crate) fn new(endpoint: &'static Endpoint) -> OwnRounds {
        OwnRounds { endpoint, steps: Steps { made: 0, due_at: 0 } }
    }

    /// Before a sleep: makes the round that is due, and says in how many nanoseconds there will be another.
    pub(crate) fn before_sleep(&mut self) -> Option<u64> {
        let endpoint = self.endpoint;
        self.steps.before_sleep(
            now_ns,
            Round::pause,
            |round| idle::is_due(endpoint, round),
            |round| _ = idle::tidy(endpoint, round),
        )
    }
}

/// Rounds one after the other.
struct Steps {
    /// How many were made, or passed over.
    made: usize,
    /// When the next is due; zero: not known yet.
    due_at: u64,
}

impl Steps {
    fn before_sleep(
        &mut self,
        now: impl Fn() -> u64,
        pause: impl Fn(Round) -> u64,
        has_work: impl Fn(Round) -> bool,
        mut make: impl FnMut(Round),
    ) -> Option<u64> {
        loop {
            let &round = ROUNDS.get(self.made)?;
            if has_work(round) {
                let now = now();
                if self.due_at == 0 {
                    self.due_at = now + pause(round);
                }
                if now < self.due_at {
                    return Some(self.due_at - now);
                }
                make(round);
            }
            self.made += 1;
            self.due_at = 0;
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use core::cell::{Cell, RefCell};

    /// As the rounds are, in other units.
    fn pause(round: Round) -> u64 {
        [10, 100, 20][round as usize]
    }

    #[test]
    fn each_round_is_made_once_when_its_time_has_come() {
        let (made, log) = (AtomicUsize::new(0), RefCell::new(Vec::new()));
        let at = |quiet| {
            let make = |round: Round| {
                log.borrow_mut().push(round as usize);
                true
            };
            rounds_with(quiet, &made, pause, make, |_| true)
        };
        assert_eq!([at(0), at(9)], [Some(10), Some(1)]);
        assert_eq!([at(10), at(60), at(109)], [Some(100), Some(50), Some(1)]);
        assert_eq!(*log.borrow(), [0]);
        assert_eq!(at(500), None, "a sleeper that was late makes all");
        assert_eq!(*log.borrow(), [0, 1, 2]);
        assert_eq!(at(600), None);
        assert_eq!(log.borrow().len(), 3);
    }

    #[test]
    fn rounds_that_nobody_needs_end_no_sleep() {
        let made = AtomicUsize::new(0);
        assert_eq!(rounds_with(5, &made, pause, |_| true, |_| false), None);
        assert_eq!(rounds_with(5, &made, pause, |_| true, |round| round == Round::Third), Some(125));
        // One after which nothing is left was the last.
        assert_eq!(rounds_with(10, &made, pause, |_| false, |_| true), None);
        assert_eq!(made.load(Ordering::Relaxed), ROUNDS.len());
    }

    #[test]
    fn a_thread_makes_its_own_rounds_each_after_the_one_before() {
        let (now, log) = (Cell::new(1000), RefCell::new(Vec::new()));
        let mut steps = Steps { made: 0, due_at: 0 };
        let mut sleep = |at, has_work: fn(Round) -> bool| {
            now.set(at);
            steps.before_sleep(|| now.get(), pause, has_work, |round| log.borrow_mut().push(round as usize))
        };
        assert_eq!(sleep(1000, |_| true), Some(10));
        assert_eq!(sleep(1004, |_| true), Some(6), "woken early");
        assert_eq!(sleep(1010, |_| true), Some(100), "from now on");
        assert_eq!(*log.borrow(), [0]);
        assert_eq!(
            sleep(1050, |round| round == Round::Third),
            Some(20),
            "the second has nothing to do any more"
        );
        assert_eq!(sleep(1100, |_| true), None);
        assert_eq!(*log.borrow(), [0, 2]);
        assert_eq!(sleep(2000, |_| true), None, "it has made all");
    }
}
