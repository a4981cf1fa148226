//! close(2) in a signal handler that has interrupted this library where its thread holds a lock.
//!
//! close is async-signal-safe, and servers that end gracefully do close their listeners in a handler. What the program
//! sees happens at once: the number is free. The rest needs locks, and is done by the next call that looks at
//! events, or closes something.

use crate::epoll::Epoll;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use sd_shm::slab::Endpoint;

/// What handlers may leave behind at a time.
const PLACES: usize = 64;

static ENDPOINTS: [AtomicPtr<Endpoint>; PLACES] = [const { AtomicPtr::new(null_mut()) }; PLACES];
static EPOLLS: [AtomicPtr<Epoll>; PLACES] = [const { AtomicPtr::new(null_mut()) }; PLACES];
static ANY: AtomicBool = AtomicBool::new(false);

/// Keeps what is to be ended for later. False when it can be ended now, or there is no place.
fn keep<T>(places: &[AtomicPtr<T>], what: &'static T) -> bool {
    if !sd_sys::lock::is_held() {
        return false;
    }
    let what = core::ptr::from_ref(what).cast_mut();
    let take = |place: &&AtomicPtr<T>| {
        place.compare_exchange(null_mut(), what, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let kept = places.iter().find(take).is_some();
    ANY.store(true, Ordering::Release);
    kept
}

/// See [`keep`]: an endpoint whose last number in this process is closed.
pub(crate) fn end_endpoint(endpoint: &'static Endpoint) -> bool {
    keep(&ENDPOINTS, endpoint)
}

/// See [`keep`]: an epoll instance that nothing refers to.
pub(crate) fn end_epoll(epoll: &'static Epoll) -> bool {
    keep(&EPOLLS, epoll)
}

/// Ends what was kept.
#[inline]
pub(crate) fn now() {
    if ANY.load(Ordering::Relaxed) {
        end_all();
    }
}

#[cold]
fn end_all() {
    if sd_sys::lock::is_held() {
        return;
    }
    ANY.store(false, Ordering::Release);
    for place in &ENDPOINTS {
        // SAFETY: null, or kept by `end_endpoint`.
        if let Some(endpoint) = unsafe { place.swap(null_mut(), Ordering::AcqRel).as_ref() } {
            crate::endpoint::end(endpoint);
        }
    }
    for place in &EPOLLS {
        // SAFETY: null, or kept by `end_epoll`.
        if let Some(epoll) = unsafe { place.swap(null_mut(), Ordering::AcqRel).as_ref() } {
            crate::epoll::end(epoll);
        }
    }
}
