//! Which of its eventfds a process watches: all, or its own only, when peers know it as the wake target of what it has inherited.
//!
//! ```text
//!  settles:  writes the wake targets; watch_from(own)          sleeper: enter; counts itself where it watches; full fence; first? looks; sleeps
//!  leaves:   watch_from(0); clears them; any_sleeper? wakes    peer:    publishes; full fence; wake target? wakes it, or all
//! ```
//! A thread that watches its own only was told so after the wake targets were written, so whoever rings after its last look knows
//! them. A thread that begins to sleep while they are cleared sees that all are watched again, or is seen and begins anew.

use crate::facade::{AtomicU32, AtomicUsize, Ordering, fence_full};

/// See the module.
pub struct Watch {
    /// The first that is watched.
    first: AtomicUsize,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
}

impl Watch {
    #[cfg(not(loom))]
    #[expect(clippy::new_without_default, reason = "a static")]
    pub const fn new() -> Watch {
        Watch { first: AtomicUsize::new(0), sleepers: AtomicU32::new(0) }
    }

    #[cfg(loom)]
    #[expect(clippy::new_without_default, reason = "as for a static")]
    pub fn new() -> Watch {
        Watch { first: AtomicUsize::new(0), sleepers: AtomicU32::new(0) }
    }

    /// A thread is about to sleep; afterwards it asks for [`Watch::first`], says so where that watches (`sleepers::enter`), and asks
    /// once more.
    #[inline]
    pub fn enter(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// It sleeps no more.
    #[inline]
    pub fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The first that is watched now.
    #[inline]
    pub fn first(&self) -> usize {
        self.first.load(Ordering::SeqCst)
    }

    /// From now on those before `first` are not watched. When others are, wake targets were written before.
    pub fn watch_from(&self, first: usize) {
        self.first.store(first, Ordering::SeqCst);
    }

    /// Some thread sleeps, and watches what there was to be watched when it began.
    pub fn any_sleeper(&self) -> bool {
        fence_full();
        self.sleepers.load(Ordering::SeqCst) != 0
    }

    /// In the child of a fork: only this thread exists.
    pub fn forked(&self) {
        self.sleepers.store(0, Ordering::Relaxed);
    }
}
