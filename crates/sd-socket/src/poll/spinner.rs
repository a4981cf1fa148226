//! How many threads spin for lists at a time.

use core::sync::atomic::{AtomicU32, Ordering};

/// Threads that spin for a list.
static SPINNERS: AtomicU32 = AtomicU32::new(0);

/// A thread that spins for a list.
pub(super) struct Spinner;

impl Spinner {
    /// `None` when so many spin already that those they wait for would have no processor.
    pub(super) fn enter() -> Option<Spinner> {
        let spinner = Spinner;
        let others = SPINNERS.fetch_add(1, Ordering::Relaxed);
        (others == 0 || others + 1 < sd_sys::fd::processors()).then_some(spinner)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        SPINNERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// In the child of a fork: only this thread exists.
pub(crate) fn forked() {
    SPINNERS.store(0, Ordering::Relaxed);
}
