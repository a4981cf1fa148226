//! Threads of a process that sleep on many things and stand in no list, so whoever takes an event in must wake them.
//!
//! ```text
//!  sleeper                               another thread of the process
//!  enter: counts itself; full fence      takes an event in, changes what the sleeper looks at
//!  looks; nothing? sleeps                any: full fence; the count is not zero? writes the process's eventfd
//! ```

use crate::facade::{AtomicU32, Ordering, fence_after_change};

/// How many there are.
pub struct Loose(AtomicU32);

impl Loose {
    #[cfg(not(loom))]
    #[expect(clippy::new_without_default, reason = "a static")]
    pub const fn new() -> Loose {
        Loose(AtomicU32::new(0))
    }

    #[cfg(loom)]
    #[expect(clippy::new_without_default, reason = "as for a static")]
    pub fn new() -> Loose {
        Loose(AtomicU32::new(0))
    }

    /// A thread is about to sleep. Afterwards it looks once more.
    pub fn enter(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        fence_after_change();
    }

    /// It sleeps no more.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Some thread is to be woken, for a caller that has changed an atomic after what the thread shall see, or as that.
    #[inline]
    pub fn any(&self) -> bool {
        fence_after_change();
        self.0.load(Ordering::SeqCst) != 0
    }

    /// In the child of a fork: only this thread exists.
    pub fn forked(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
