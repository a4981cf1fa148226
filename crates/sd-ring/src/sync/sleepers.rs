//! Threads of a process that sleep until one of its eventfds is written, counted in pages that peers read.
//!
//! ```text
//!  sleeper                             peer
//!  enter: counts itself; full fence    publishes; whom_to_wake: full fence
//!  looks; nothing? sleeps              somebody sleeps? writes the eventfd, and notes the word
//!  leave: counts itself out; fence     publishes; the word is the noted one? nobody has woken up since: he will look
//! ```
//! The word changes whenever a thread enters or leaves, and never becomes what it was. So as long as it is the one of before a peer's last write, all who slept then were woken by
//! that, and none of them has looked yet: what the peer publishes now they will see too, and it need not write again. A peer that writes a thousand
//! announcements while the other process waits for its processor makes one system call.
//!
//! That holds where whoever takes what the eventfd tells enters or leaves afterwards, or says that he has taken it ([`taken`]).

use crate::facade::{AtomicU32, AtomicU64, Ordering, fence_full};

/// Threads that sleep.
const COUNT: u64 = (1 << 24) - 1;
/// Reasons for which nobody can say whether one sleeps: he is taken for asleep at any time, and not told to have left.
const UNKNOWN: u64 = 1 << 24;
const ANY: u64 = (1 << 32) - 1;
/// Threads that have entered: so no value comes again.
const CHANGE: u64 = 1 << 32;

/// A thread is about to sleep: counts it in each page. Afterwards it looks once more.
#[inline]
pub fn enter<'a>(words: impl Iterator<Item = &'a AtomicU64>) {
    words.for_each(|word| _ = word.fetch_add(CHANGE + 1, Ordering::SeqCst));
    fence_full();
}

/// It sleeps no more. Afterwards it looks once more (SYNC POINT: rung, with `whom_to_wake` in crates/sd-ring/src/sync/sleepers.rs).
#[inline]
pub fn leave<'a>(words: impl Iterator<Item = &'a AtomicU64>) {
    words.for_each(|word| _ = word.fetch_sub(1, Ordering::SeqCst));
    fence_full();
}

/// Somebody has taken what the eventfd told, and a thread that is counted may sleep all the same. Afterwards it looks once more (SYNC POINT: rung, with
/// `whom_to_wake` in crates/sd-ring/src/sync/sleepers.rs).
#[inline]
pub fn taken<'a>(words: impl Iterator<Item = &'a AtomicU64>) {
    words.for_each(|word| _ = word.fetch_add(CHANGE, Ordering::SeqCst));
    fence_full();
}

/// A thread that has stayed counted since its last sleep sleeps again. Afterwards it looks once more. `runs`: not zero while it does not sleep, for who
/// looks for somebody that has time (SYNC POINT: starving, with `starve` in crates/sd-monitor/src/shell/starving.rs).
#[inline]
pub fn sleep_again(runs: &AtomicU32) {
    runs.store(0, Ordering::Relaxed);
    fence_full();
}

/// Whether somebody sleeps who has time, for who has no need to know it surely: by the number of sleepers, and whether the one that stays counted runs.
pub fn have_time(sleepers: u32, runs: u32) -> bool {
    sleepers != 0 && runs == 0
}

/// From now on somebody may sleep who is not counted.
pub fn become_unknown<'a>(words: impl Iterator<Item = &'a AtomicU64>) {
    words.for_each(|word| _ = word.fetch_add(CHANGE + UNKNOWN, Ordering::SeqCst));
    fence_full();
}

/// The opposite of [`become_unknown`].
pub fn become_known<'a>(words: impl Iterator<Item = &'a AtomicU64>) {
    words.for_each(|word| _ = word.fetch_sub(UNKNOWN, Ordering::SeqCst));
}

/// Whether somebody sleeps, for who has no need to know it surely.
pub fn are_there(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) & ANY != 0
}

/// Whether the eventfd must be written, for a caller that has published what shall be seen.
#[inline]
pub fn must_wake(word: &AtomicU64) -> bool {
    fence_full();
    are_there(word)
}

/// Whether the eventfd must be written, for a caller that has published what shall be seen: the word, to be noted in `rung` behind the write
/// (SYNC POINT: rung, with `leave` in crates/sd-ring/src/sync/sleepers.rs).
#[inline]
pub fn whom_to_wake(word: &AtomicU64, rung: &AtomicU64) -> Option<u64> {
    fence_full();
    let now = word.load(Ordering::Relaxed);
    if now & ANY == 0 {
        return None;
    }
    let is_rung = now & ANY & !COUNT == 0 && now == rung.load(Ordering::Relaxed);
    (!is_rung).then_some(now)
}
