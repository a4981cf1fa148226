//! Threads of a process that sleep until one of its eventfds is written, counted in pages that peers read.
//!
//! ```text
//!  sleeper                             peer
//!  enter: counts itself; full fence    publishes; must_wake: full fence
//!  looks; nothing? sleeps              the count is not zero? writes the eventfd
//! ```

use crate::facade::{AtomicU32, Ordering, fence_full};

/// A thread is about to sleep: counts it in each page. Afterwards it looks once more.
#[inline]
pub fn enter<'a>(counts: impl Iterator<Item = &'a AtomicU32>) {
    counts.for_each(|count| _ = count.fetch_add(1, Ordering::SeqCst));
    fence_full();
}

/// It sleeps no more.
#[inline]
pub fn leave<'a>(counts: impl Iterator<Item = &'a AtomicU32>) {
    counts.for_each(|count| _ = count.fetch_sub(1, Ordering::SeqCst));
}

/// Whether somebody must be woken, for a caller that has published what he shall see.
#[inline]
pub fn must_wake(count: &AtomicU32) -> bool {
    fence_full();
    count.load(Ordering::Relaxed) != 0
}
