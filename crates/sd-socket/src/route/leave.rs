//! Channels whose other side is gone: routes that lead there are forgotten before the records are freed.

use crate::link::channel::Channel;
use crate::link::reclaim;

/// Frees what nobody can be using; to be called by a thread that is not itself a [`reclaim::User`]. `take_in` is the way in of what a
/// channel's events announce.
#[inline]
pub(crate) fn sweep(take_in: fn(&'static Channel)) {
    if reclaim::is_leaving() {
        leave(take_in);
    }
    reclaim::sweep();
}

/// Whether [`sweep`] may have something to do.
#[inline]
pub(crate) fn is_due() -> bool {
    reclaim::is_leaving() || reclaim::is_due()
}

#[cold]
fn leave(take_in: fn(&'static Channel)) {
    reclaim::leave(take_in);
    super::forget_all();
    reclaim::channels();
}
