//! Connections wait though all who could accept them are busy: a word for each of those.
//!
//! ```text
//!  monitor                          worker
//!  tell; full fence                 says that it sleeps; full fence (sleepers)
//!  somebody idle? offers            has_heard? asks
//! ```

use crate::facade::{AtomicU32, Ordering, fence_full};

/// Tells all. Afterwards the caller looks once more who is idle.
pub fn tell<'a>(words: impl Iterator<Item = &'a AtomicU32>) {
    words.for_each(|word| word.store(1, Ordering::Release));
    fence_full();
}

/// Whether there is something to ask for, for a worker that has said that it is idle, and fenced since.
#[inline]
pub fn has_heard(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) != 0
}

/// One thread asks for it.
pub fn take(word: &AtomicU32) -> bool {
    word.swap(0, Ordering::AcqRel) != 0
}
