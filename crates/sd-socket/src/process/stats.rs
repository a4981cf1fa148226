//! Counters in the slab's first page; a plain store each, shown by `sd ss`.

use crate::process::PROCESS;
use core::sync::atomic::Ordering;
pub use sd_shm::slab::Counter;

/// Adds one. Lost updates between threads are accepted.
#[inline]
pub(crate) fn count(counter: Counter) {
    if let Some(cell) = PROCESS.header().counters.get(counter as usize) {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}
