//! Channels whose other side is gone: routes that lead there are forgotten before the records are freed.

use crate::link::reclaim;

/// Frees what nobody can be using; to be called by a thread that is not itself a [`reclaim::User`].
#[inline]
pub(crate) fn sweep() {
    if reclaim::is_leaving() {
        leave();
    }
    reclaim::sweep();
}

/// Whether [`sweep`] may have something to do.
#[inline]
pub(crate) fn is_due() -> bool {
    reclaim::is_leaving() || reclaim::is_due()
}

#[cold]
fn leave() {
    reclaim::leave();
    super::forget_all();
    reclaim::channels();
}
