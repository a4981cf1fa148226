//! What a folder has done by folders above it.
//!
//! A file calls only what stands below it. Where a low folder must have something done higher up, it declares a table of functions
//! as an [`Above`]; the folder above has the table, and `calls::start` fills it in before the library does anything. Which
//! files may declare one stands in `xtask/src/tidy/rooms.rs`.

use core::sync::atomic::{AtomicPtr, Ordering};

/// A place for a table.
pub(crate) struct Above<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Above<T> {
    pub(crate) const fn empty() -> Above<T> {
        Above(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// At start-up.
    pub(crate) fn fill(&self, table: &'static T) {
        self.0.store(core::ptr::from_ref(table).cast_mut(), Ordering::Release);
    }

    /// `None` before the library is started.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or from a shared reference that is valid for ever; nothing writes through it.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}
