//! The other side of a channel is gone, while connections over it are still bound to their slots.
//!
//! ```text
//!  who hears of it                        who accepts
//!  notes it; changes `uses`               binds its slot; counts itself in `uses`
//!  marks all that are bound               is it gone? marks its own
//! ```
//! Both change the same word, so one is first: what it did before, the other sees.

use crate::facade::{AtomicU32, Ordering};

/// Notes it. Afterwards the caller marks what is bound.
pub fn tell(gone: &AtomicU32, uses: &AtomicU32) {
    gone.store(1, Ordering::Release);
    uses.fetch_add(0, Ordering::AcqRel);
}

/// One use more. Before it the caller has bound its slot; afterwards it asks whether the other side is gone.
#[inline]
pub fn enter(uses: &AtomicU32) {
    uses.fetch_add(1, Ordering::AcqRel);
}

/// Whether it was noted.
#[inline]
pub fn is_told(gone: &AtomicU32) -> bool {
    gone.load(Ordering::Acquire) != 0
}
