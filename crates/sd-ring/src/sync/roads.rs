//! What two ends of a connection say of the roads that its bytes take ([`crate::road`]): bits of one word each, never cleared.
//!
//! Who says something has written before what belongs to it: how many bytes have gone the old way, the marker in the ring. Who looks
//! reads that afterwards.

use crate::facade::{AtomicU32, Ordering};

/// Says something more.
#[inline]
pub fn say(word: &AtomicU32, more: u32) {
    word.fetch_or(more, Ordering::AcqRel);
}

/// What was said so far.
#[inline]
pub fn look(word: &AtomicU32) -> u32 {
    word.load(Ordering::Acquire)
}

/// Says what `next` makes of what was said so far, or nothing: then false. Of several that would exclude each other one is said.
pub fn decide(word: &AtomicU32, next: impl FnMut(u32) -> Option<u32>) -> bool {
    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
}
