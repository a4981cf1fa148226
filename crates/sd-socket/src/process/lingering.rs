//! A thread that stays counted among those that sleep while its program runs, since it will sleep again in the same way.
//!
//! ```text
//!  a sleep that the kernel's part has ended ──begin──> counted as asleep; the program runs ──a wait──> the kernel's call, after one look at a few words
//!                                                        └ something of ours happens, or a sleep of another kind ──end──> as ever
//! ```
//! For a program with one thread, whose sockets of ours are quiet while it serves connections of the kernel's: each of its waits would say to all
//! peers that it sleeps, look at everything, and then say that it does not. To peers it is a process of which one thread sleeps and another uses its
//! sockets: they write its eventfd, which ends the next wait at once. So nothing is looked at in between; what its own calls bring about is (`wait::duties::IS_IDLE`).
//!
//! Who looks for somebody that has time is told the truth by `Public::runs`.

use crate::process::PROCESS;
use crate::process::waker::{Sleeper, View};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sd_ring::sync::sleepers;
use sd_sys::time::{ticks, ticks_of_ns};

/// What the thread waits for: whoever begins says it. Null: there is none.
static FOR: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The [`View`] in whose pages it is counted.
static FIRST: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// When it lingers no more, in ticks, and the nanoseconds until then when it began; the most: for ever.
static UNTIL: AtomicU64 = AtomicU64::new(0);
static PAUSE_NS: AtomicU64 = AtomicU64::new(0);

/// It is about to sleep, or sleeps: a handler of a signal, which may sleep too, is not to take it out of the count then.
static IS_ASLEEP: AtomicBool = AtomicBool::new(false);

/// See [`IS_ASLEEP`].
pub(crate) fn is_asleep() -> bool {
    IS_ASLEEP.load(Ordering::Relaxed)
}

fn runs() -> Option<&'static AtomicU32> {
    PROCESS.public().map(|public| &public.runs)
}

fn say_runs() {
    runs().inspect(|runs| runs.store(1, Ordering::Relaxed));
}

/// The sleep is over, and the thread stays counted, for so many nanoseconds at most.
pub(crate) fn begin<T>(sleeper: Sleeper, waits_for: &'static T, pause_ns: Option<u64>) {
    if !FOR.load(Ordering::Relaxed).is_null() {
        // It is counted already; so it is where a handler has left a sleep by longjmp.
        return;
    }
    let until = pause_ns.map(|pause| ticks().saturating_add(ticks_of_ns(pause)));
    UNTIL.store(until.unwrap_or(u64::MAX), Ordering::Relaxed);
    PAUSE_NS.store(pause_ns.unwrap_or(u64::MAX), Ordering::Relaxed);
    let [first, end] = sleeper.linger().ends();
    FIRST.store(first, Ordering::Relaxed);
    END.store(end, Ordering::Relaxed);
    say_runs();
    FOR.store(core::ptr::from_ref(waits_for).cast_mut().cast(), Ordering::Relaxed);
}

/// Whether the thread lingers for that.
#[inline(always)]
pub(crate) fn is_for<T>(waits_for: &T) -> bool {
    FOR.load(Ordering::Relaxed).cast_const() == core::ptr::from_ref(waits_for).cast()
}

fn view() -> View {
    View::of([FIRST.load(Ordering::Relaxed), END.load(Ordering::Relaxed)])
}

/// Others are to be watched by now.
#[inline]
pub(crate) fn is_stale() -> bool {
    view() != View::now()
}

/// How long the next sleep may last. `Some(0)`: its time is over.
#[inline]
pub(crate) fn pause() -> Option<u64> {
    let until = UNTIL.load(Ordering::Relaxed);
    match until == u64::MAX {
        true => None,
        false if ticks() >= until => Some(0),
        // Up to twice as long in all, which saves a division.
        false => Some(PAUSE_NS.load(Ordering::Relaxed)),
    }
}

/// The thread that lingers is about to sleep; afterwards it looks whether it may (SYNC POINT: starving, with `starve` in
/// crates/sd-monitor/src/shell/starving.rs). Whether it does so already, and this is a handler of a signal; for [`wakes`].
#[inline]
pub(crate) fn sleeps() -> bool {
    let is_within = is_asleep();
    IS_ASLEEP.store(true, Ordering::Relaxed);
    runs().inspect(|runs| sleepers::sleep_again(runs));
    is_within
}

/// The opposite of [`sleeps`].
#[inline]
pub(crate) fn wakes(is_within: bool) {
    IS_ASLEEP.store(is_within, Ordering::Relaxed);
    // A handler may have left the family.
    if !is_within && !FOR.load(Ordering::Relaxed).is_null() {
        say_runs();
    }
}

/// The thread is not counted any more, if it was and is not asleep.
#[inline]
pub(crate) fn end() {
    if !FOR.load(Ordering::Relaxed).is_null() && !is_asleep() {
        end_now();
    }
}

#[cold]
fn end_now() {
    // Of this thread and a handler, or another thread by now, one ends it.
    if !FOR.swap(core::ptr::null_mut(), Ordering::Relaxed).is_null() {
        runs().inspect(|runs| sleepers::sleep_again(runs));
        drop(Sleeper::lingered(view()));
    }
}

/// The process leaves its family: the pages that count the thread go, and others will stand in their places.
pub(super) fn separated() {
    end_now();
}

/// In the child of a fork: it is counted nowhere.
pub(crate) fn forked() {
    FOR.store(core::ptr::null_mut(), Ordering::Relaxed);
    IS_ASLEEP.store(false, Ordering::Relaxed);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fd::hidden::Hidden;
    use crate::process::waker;

    static INSTANCE: u32 = 0;

    /// Once: sleepers of the process's page, and whether the one that lingers runs.
    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn it_is_counted_until_it_ends() {
        let (_fd, page) = sd_shm::public::create(std::process::id()).unwrap();
        assert!(waker::add_own(page, Hidden::of(sd_sys::fd::eventfd(0).unwrap())));
        PROCESS.public.store(core::ptr::from_ref(page).cast_mut(), Ordering::Release);
        let said = || (page.sleepers.load(Ordering::Relaxed) as u32, page.runs.load(Ordering::Relaxed));
        let linger = || begin(Sleeper::enter(), &INSTANCE, None);

        linger();
        assert!(is_for(&INSTANCE) && !is_stale() && pause().is_none());
        assert_eq!(said(), (1, 1));
        let is_within = sleeps();
        end();
        assert_eq!(said(), (1, 0), "who is asleep stays counted");
        wakes(is_within);
        assert_eq!(said(), (1, 1));
        drop(Sleeper::enter());
        assert_eq!((said(), is_for(&INSTANCE)), ((0, 0), false), "another sleep");

        linger();
        assert!(!waker::any_sleeper(), "it runs");
        assert_eq!(said(), (0, 0));

        linger();
        let is_within = sleeps();
        separated();
        wakes(is_within);
        assert_eq!((said(), is_for(&INSTANCE)), ((0, 0), false), "even in a handler of a signal");
        PROCESS.public.store(core::ptr::null_mut(), Ordering::Release);
    }
}
