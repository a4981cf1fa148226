//! A process that must not call futex says so on its connections, and peers nap (`family::confine`).

use crate::socket::endpoint::EndpointExt;
use core::sync::atomic::Ordering;
use sd_shm::channel::FLAG_CANNOT_WAKE;
use sd_shm::slab::Endpoint;
use sd_sys::confine::{self, NAP_NS};

/// A connection is there, and its peer may come to sleep.
#[inline]
pub(super) fn attached(endpoint: &Endpoint) {
    if !confine::allows(libc::SYS_futex) {
        cannot_wake(endpoint);
    }
}

#[cold]
pub(crate) fn cannot_wake(endpoint: &Endpoint) {
    endpoint.own_words().flags.fetch_or(FLAG_CANNOT_WAKE, Ordering::AcqRel);
}

/// How long to sleep for what the peer does, if it cannot wake.
pub(crate) fn limit(endpoint: &Endpoint) -> Option<u64> {
    let cannot_wake = endpoint.peer_words().flags.load(Ordering::Acquire) & FLAG_CANNOT_WAKE != 0;
    cannot_wake.then_some(NAP_NS)
}
