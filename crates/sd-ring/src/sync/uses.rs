//! A record that is used for one number of a table after the other. Its word counts who is in a call on that number, and of which use that is.
//!
//! ```text
//!  who begins a use, or ends it                   who is in a call
//!  claim, close: nobody else changes the word     the word; the number still leads here?
//!  the number leads here; or elsewhere            so much is counted, if the word is still that one
//!  next: the word is of another use
//! ```
//! Without a use in the word one that is back at nothing could be taken for the one before.

use crate::facade::{AtomicU32, Ordering};

/// Threads in a call.
pub const INSIDE: u32 = 0xffff;
const USE: u32 = 1 << 16;
const USES: u32 = 0x3ff << 16;
/// Nothing is counted for a moment.
const CLOSED: u32 = 1 << 26;
/// For who uses the record: it stands until the next use.
pub const MARK: u32 = 1 << 27;

/// What came of a wish to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    Done,
    /// Not for a moment: another thread begins a use, or ends one.
    Closed,
    /// The number does not lead to the record any more.
    Elsewhere,
}

/// Takes a record that nobody uses: `is_free` says whether a number leads to it. Then the caller lets a number lead to it, and [`next`] follows
/// (SYNC POINT: uses, with `next` in crates/sd-ring/src/sync/uses.rs).
pub fn claim(word: &AtomicU32, is_free: impl FnOnce() -> bool) -> bool {
    let now = word.load(Ordering::Acquire);
    now & (INSIDE | CLOSED) == 0
        && is_free()
        && word.compare_exchange(now, now | CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Another use than before, with nobody in a call: the number that leads to the record was set, or leads elsewhere, who is in a call having been counted there
/// (SYNC POINT: uses, with `claim` and `count` in crates/sd-ring/src/sync/uses.rs).
pub fn next(word: &AtomicU32) {
    let next = |now: u32| Some((now & USES).wrapping_add(USE) & USES);
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
}

/// Nothing is counted from here on, until [`next`] or [`open`]; the caller gives it this mark, or none. What the word was, if another thread has not closed it.
pub fn close(word: &AtomicU32, mark: u32) -> Option<u32> {
    let before = word.fetch_or(CLOSED | mark, Ordering::AcqRel);
    (before & CLOSED == 0).then_some(before | mark)
}

/// The use goes on.
pub fn open(word: &AtomicU32) {
    word.fetch_and(!CLOSED, Ordering::AcqRel);
}

/// Counts one more who is in a call, and marks the word perhaps.
pub fn enter(word: &AtomicU32, mark: u32, leads_here: impl Fn() -> bool) -> Counted {
    count(word, leads_here, |now| (now + 1) | mark)
}

/// Counts one less.
pub fn leave(word: &AtomicU32, leads_here: impl Fn() -> bool) -> Counted {
    count(word, leads_here, |now| now - u32::from(now & INSIDE != 0))
}

/// (SYNC POINT: uses, with `next` in crates/sd-ring/src/sync/uses.rs.)
fn count(word: &AtomicU32, leads_here: impl Fn() -> bool, then: impl Fn(u32) -> u32) -> Counted {
    loop {
        // Before the number: one that leads here after this belongs to this use, or to a later one, whose word is another.
        let now = word.load(Ordering::Acquire);
        if !leads_here() {
            return Counted::Elsewhere;
        }
        if now & CLOSED != 0 {
            return Counted::Closed;
        }
        if word.compare_exchange(now, then(now), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Counted::Done;
        }
    }
}

/// Somebody is in a call, or it is closed: it cannot be claimed now.
pub fn is_busy(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) & (INSIDE | CLOSED) != 0
}

/// The mark stands.
pub fn is_marked(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) & MARK != 0
}

/// In a process with one thread, after a fork of one with several: nobody is in a call, and nobody has closed it.
pub fn reset(word: &AtomicU32) {
    word.store(0, Ordering::Relaxed);
}
