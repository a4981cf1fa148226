//! The state of one side of a connection: the last thing that is written of what belongs to it, and the first that is read.

use crate::facade::{AtomicU32, Ordering};

/// Declares a state. What belongs to it (flags, names, an empty ring) was written before, whoever waits is woken after.
#[inline]
pub fn declare(word: &AtomicU32, state: u32) {
    word.store(state, Ordering::Release);
}

/// The state; what belongs to it may be read from now on.
#[inline]
pub fn read(word: &AtomicU32) -> u32 {
    word.load(Ordering::Acquire)
}

/// Declares a state, if the word still is what the caller has read: of two that answer a request one does.
pub fn answer(word: &AtomicU32, before: u32, state: u32) -> bool {
    word.compare_exchange(before, state, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
