//! What a thread that waits does for its process: the engine. The duties themselves stand in one table, `calls/duties.rs`.
//!
//! There is no thread of the library's, so whoever waits looks after the process. All waits do so in the same way:
//!
//! ```text
//!  a call that looks at several things ── in_call(): what has a cause; one load where nothing has
//!  nothing is there  ── Waiting::begin(): what is periodic; one load and a compare
//!  spins
//!  nothing came      ── before_sleep(): all that is due; says how long the sleep may last
//!  arms what it waits for, or says that it sleeps (`Sleeper`), and looks again
//!                    ── announced(): what has to be looked at after that
//!  sleeps            ── after_sleep()
//! ```
//! A duty is done with no lock and no token held, and by a thread that is no `reclaim::User`. It may make calls of the
//! kernel and ask the monitor. The table is filled in at start-up, since most duties are those of folders above this one.

use crate::memory::rounds::{Caretaker, OwnRounds};
use crate::process::above::Above;
use crate::wait::earlier;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_shm::slab::Endpoint;
use sd_sys::time::{Interval, ticks};

/// When a duty is done.
pub(crate) enum When {
    /// In the beginning of a wait, but so long after the last time.
    Begins(Interval),
    /// While its cause is noted: before each sleep; and in a call, but so long after the last time.
    Caused(u32, Interval),
    /// Before each sleep.
    Sleeps,
    /// Before each sleep that an eventfd of the process ends.
    SleepsOnEvents,
    /// Before each sleep that an eventfd of the process ends, after the thread has said that it sleeps and has looked again.
    Announced,
    /// After each sleep.
    Slept,
}

/// Causes: connects wait for room in a backlog.
pub(crate) const CONNECTS: u32 = 1;
/// Connections that this process has made wait for accept.
pub(crate) const REQUESTS: u32 = 2;
/// Something is to be sent again through the kernel, or the other end is waited for before that.
pub(crate) const RESENDS: u32 = 4;

/// What a duty is. Where it returns a time, it is due again after so many nanoseconds, and a sleep lasts no longer.
pub(crate) enum Act {
    Plain(fn()),
    Timed(fn() -> Option<u64>),
    OfWait(fn(&mut Waiting) -> Option<u64>),
}

/// One line of the table.
pub(crate) struct Duty {
    pub(crate) when: When,
    pub(crate) act: Act,
}

impl Duty {
    fn fulfil(&self, waiting: &mut Waiting) -> Option<u64> {
        match self.act {
            Act::Plain(act) => {
                act();
                None
            }
            Act::Timed(act) => act(),
            Act::OfWait(act) => act(waiting),
        }
    }
}

/// Lines of the table.
pub(crate) const DUTIES: usize = 20;
const _: () = assert!(DUTIES < 31);

pub(crate) static TABLE: Above<[Duty; DUTIES]> = Above::empty();

/// Whether none of those that are done before a sleep has anything to do, before the time that the last sleep was told.
pub(crate) static IS_IDLE: Above<fn() -> bool> = Above::empty();

/// See [`IS_IDLE`].
#[inline]
pub(crate) fn are_idle() -> bool {
    !are_caused() && IS_IDLE.get().is_some_and(|is_idle| is_idle())
}

/// Ticks when the duty of a line was done last: for those that have a period.
static DONE_AT: [AtomicU64; DUTIES] = [const { AtomicU64::new(0) }; DUTIES];

/// The shortest period of what is done in the beginning of waits, and when one was over last.
static SHORTEST: Interval = Interval::of_ns(SHORTEST_NS);
pub(crate) const SHORTEST_NS: u64 = 200_000;
static BEGUN_AT: AtomicU64 = AtomicU64::new(0);

static CAUSES: AtomicU32 = AtomicU32::new(0);

fn table() -> impl Iterator<Item = (&'static Duty, &'static AtomicU64)> {
    TABLE.get().into_iter().flatten().zip(&DONE_AT)
}

/// There is a cause from now on.
#[inline]
pub(crate) fn note(cause: u32) {
    if CAUSES.load(Ordering::Relaxed) & cause == 0 {
        CAUSES.fetch_or(cause, Ordering::SeqCst);
    }
}

/// The cause is over. The caller looks once more whether it is, and notes it again if not.
pub(crate) fn clear(cause: u32) {
    CAUSES.fetch_and(!cause, Ordering::SeqCst);
}

/// Some duty has a cause.
#[inline]
pub(crate) fn are_caused() -> bool {
    CAUSES.load(Ordering::Relaxed) != 0
}

/// In a call that looks at several things, whether or not it will wait.
#[inline]
pub(crate) fn in_call() {
    if are_caused() {
        do_caused();
    }
}

#[cold]
fn do_caused() {
    let causes = CAUSES.load(Ordering::Relaxed);
    do_periodic(ticks(), |when| match when {
        When::Caused(cause, period) if causes & cause != 0 => Some(period),
        _ => None,
    });
}

/// For a thread that always finds something, and so never waits.
#[inline]
pub(crate) fn now_and_then(now: u64) {
    if SHORTEST.is_over(now.wrapping_sub(BEGUN_AT.load(Ordering::Relaxed))) {
        BEGUN_AT.store(now, Ordering::Relaxed);
        do_begun(now);
    }
}

#[cold]
fn do_begun(now: u64) {
    do_periodic(now, |when| if let When::Begins(period) = when { Some(period) } else { None });
}

/// Does those duties that have a period here, and for which it is over; each in one thread.
fn do_periodic(now: u64, period: impl Fn(&When) -> Option<&Interval>) {
    for (duty, done_at) in table() {
        let Some(period) = period(&duty.when) else { continue };
        let last = done_at.load(Ordering::Relaxed);
        if period.is_over(now.wrapping_sub(last))
            && done_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            duty.fulfil(&mut Waiting::new(None, false));
        }
    }
}

/// What ends a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    /// A futex, of a connection or of the library's own.
    Word,
    /// The process's eventfds.
    Events,
}

/// One wait of a thread, over all its sleeps.
pub(crate) struct Waiting {
    pub(crate) own: Option<OwnRounds>,
    pub(crate) caretaker: Caretaker,
}

impl Waiting {
    fn new(own: Option<&'static Endpoint>, is_use: bool) -> Waiting {
        Waiting { own: own.map(OwnRounds::new), caretaker: Caretaker::new(is_use) }
    }

    /// A wait for what happens on one connection, or on a few sockets: the program uses them.
    #[inline]
    pub(crate) fn begin(own: Option<&'static Endpoint>, now: u64) -> Waiting {
        now_and_then(now);
        Waiting::new(own, true)
    }

    /// A wait for what happens on many sockets, of which none may be in use. Many programs wait so every second or so; it
    /// says by itself when there was something ([`crate::memory::rounds::used`]).
    #[inline]
    pub(crate) fn begin_for_many(now: u64) -> Waiting {
        now_and_then(now);
        Waiting::new(None, false)
    }

    /// Before a sleep is prepared: how long it may last.
    pub(crate) fn before_sleep(&mut self, on: On) -> Option<u64> {
        let causes = CAUSES.load(Ordering::Relaxed);
        let caused = if causes == 0 { 0 } else { caused_lines(causes) };
        let sleep = if on == On::Events { &BEFORE_EVENTS } else { &BEFORE_WORD };
        self.fulfil(caused | sleep.get())
    }

    /// After the thread has said that it sleeps, and has found nothing: how long the sleep may last.
    pub(crate) fn announced(&mut self) -> Option<u64> {
        self.fulfil(ANNOUNCED.get())
    }

    /// However the sleep has ended.
    pub(crate) fn after_sleep(&mut self) {
        self.fulfil(SLEPT.get());
    }

    fn fulfil(&mut self, lines: u32) -> Option<u64> {
        let table = TABLE.get()?;
        let (mut left, mut pause) = (lines & !IS_KNOWN, None);
        while let Some(duty) = table.get(left.trailing_zeros() as usize) {
            left &= left - 1;
            pause = earlier(pause, duty.fulfil(self));
        }
        pause
    }
}

/// Lines of the table that are done at a moment of each sleep, a bit each: found when they are asked for first.
struct Lines {
    known: AtomicU32,
    is_done: fn(&When) -> bool,
}

/// With it, what is known is not zero.
const IS_KNOWN: u32 = 1 << 31;

static BEFORE_WORD: Lines = Lines::of(|when| matches!(when, When::Sleeps));
static BEFORE_EVENTS: Lines = Lines::of(|when| matches!(when, When::Sleeps | When::SleepsOnEvents));
static ANNOUNCED: Lines = Lines::of(|when| matches!(when, When::Announced));
static SLEPT: Lines = Lines::of(|when| matches!(when, When::Slept));

impl Lines {
    const fn of(is_done: fn(&When) -> bool) -> Lines {
        Lines { known: AtomicU32::new(0), is_done }
    }

    #[inline]
    fn get(&self) -> u32 {
        match self.known.load(Ordering::Relaxed) {
            0 => self.find(),
            known => known,
        }
    }

    #[cold]
    fn find(&self) -> u32 {
        let found = lines(self.is_done);
        if TABLE.get().is_some() {
            self.known.store(found | IS_KNOWN, Ordering::Relaxed);
        }
        found
    }
}

/// Lines that are done while one of these causes is noted.
#[cold]
fn caused_lines(causes: u32) -> u32 {
    lines(|when| matches!(when, When::Caused(cause, _) if causes & cause != 0))
}

fn lines(is_done: impl Fn(&When) -> bool) -> u32 {
    let done = table().enumerate().filter(|(_, (duty, _))| is_done(&duty.when));
    done.fold(0, |lines, (at, _)| lines | 1 << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    static CALLS: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];

    fn call(number: usize) {
        CALLS.get(number).inspect(|count| _ = count.fetch_add(1, Ordering::Relaxed));
    }

    const NOTHING: Duty = Duty { when: When::Slept, act: Act::Plain(|| ()) };

    static ROWS: [Duty; DUTIES] = {
        let mut rows = [const { NOTHING }; DUTIES];
        rows[0] = Duty { when: When::Begins(Interval::of_ns(10_000_000)), act: Act::Plain(|| call(0)) };
        rows[1] = Duty { when: When::Caused(CONNECTS, Interval::of_ns(0)), act: Act::Timed(soon) };
        rows[2] = Duty { when: When::SleepsOnEvents, act: Act::Plain(|| call(2)) };
        rows[3] = Duty { when: When::Sleeps, act: Act::Timed(later) };
        rows
    };

    fn soon() -> Option<u64> {
        call(1);
        Some(5)
    }

    fn later() -> Option<u64> {
        call(3);
        Some(70)
    }

    fn calls() -> [u32; 4] {
        CALLS.each_ref().map(|count| count.swap(0, Ordering::Relaxed))
    }

    #[test]
    fn each_at_its_time() {
        sd_sys::time::calibrate();
        TABLE.fill(&ROWS);
        let mut waiting = Waiting::begin(None, ticks());
        assert_eq!(calls(), [1, 0, 0, 0]);
        now_and_then(ticks());
        assert_eq!(calls(), [0; 4], "not so soon again");
        assert_eq!(waiting.before_sleep(On::Word), Some(70));
        assert_eq!(calls(), [0, 0, 0, 1], "no cause, no events");
        in_call();
        assert_eq!(calls(), [0; 4]);
        note(CONNECTS);
        assert_eq!(waiting.before_sleep(On::Events), Some(5), "the shortest");
        assert_eq!(calls(), [0, 1, 1, 1]);
        in_call();
        assert_eq!(calls(), [0, 1, 0, 0]);
        clear(CONNECTS);
        assert_eq!(waiting.before_sleep(On::Word), Some(70));
        assert_eq!(waiting.announced(), None);
    }
}
