//! Records that were taken out of a table, and are freed when no thread can hold a reference from before.
//!
//! ```text
//!  user                                   who takes a record out
//!  enter: counts itself; full fence       takes it out of the table
//!  finds records in the table             due: says that there is one; full fence
//!  leave: the last one, and one is due?   nobody is counted? frees
//!         frees
//! ```

use crate::facade::{AtomicU32, Ordering, fence_after_change};

/// Threads that may hold references, and records that wait for them to leave.
pub struct Users {
    users: AtomicU32,
    due: AtomicU32,
}

impl Users {
    #[cfg(not(loom))]
    #[expect(clippy::new_without_default, reason = "a static")]
    pub const fn new() -> Users {
        Users { users: AtomicU32::new(0), due: AtomicU32::new(0) }
    }

    #[cfg(loom)]
    #[expect(clippy::new_without_default, reason = "as for a static")]
    pub fn new() -> Users {
        Users { users: AtomicU32::new(0), due: AtomicU32::new(0) }
    }

    /// A thread begins to use records that it finds in the table.
    #[inline]
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::SeqCst);
        fence_after_change();
    }

    /// It is done. True: nobody is counted any more, and something is due; the caller tries to free it.
    #[inline]
    pub fn leave(&self) -> bool {
        self.users.fetch_sub(1, Ordering::SeqCst) == 1 && {
            fence_after_change();
            self.is_due()
        }
    }

    /// So many records are out of the table. Who says so is counted, or tries to free them afterwards.
    pub fn due(&self, count: u32) {
        self.due.fetch_max(count, Ordering::SeqCst);
        fence_after_change();
    }

    /// They are about to be freed.
    pub fn none_due(&self) {
        self.due.store(0, Ordering::SeqCst);
    }

    /// There are some.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::SeqCst) != 0
    }

    /// Nobody holds a reference to what was taken out before. The caller keeps others from taking out more, or from freeing.
    pub fn is_unused(&self) -> bool {
        self.users.load(Ordering::SeqCst) == 0
    }

    /// In the child of a fork: only this thread exists.
    pub fn forked(&self) {
        self.users.store(0, Ordering::Relaxed);
    }
}
