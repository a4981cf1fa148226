//! From an endpoint to the instances that watch it.

use super::{Epoll, Item, Source, remove};
use crate::endpoint::{EndpointExt, WATCHED};
use crate::process::{PROCESS, Priv};
use core::sync::atomic::Ordering;
use sd_shm::slab::Endpoint;

fn watchers(item: *mut Item) -> Option<&'static Priv> {
    // SAFETY: under the lock.
    match unsafe { (*item).source } {
        Source::Socket(endpoint) => PROCESS.private(endpoint),
        Source::Nested(_) => None,
    }
}

pub(super) fn link_watcher(item: *mut Item) {
    let Some(private) = watchers(item) else { return };
    // SAFETY: under the lock.
    unsafe {
        (*item).next_watcher = private.watchers.load(Ordering::Relaxed);
        if let Source::Socket(endpoint) = (*item).source {
            endpoint.set_flag(WATCHED);
        }
    }
    private.watchers.store(item, Ordering::Relaxed);
}

pub(super) fn unlink_watcher(item: *mut Item) {
    let Some(private) = watchers(item) else { return };
    let mut at = private.watchers.load(Ordering::Relaxed);
    // SAFETY: under the lock; the list's items are live.
    unsafe {
        if at == item {
            private.watchers.store((*item).next_watcher, Ordering::Relaxed);
            return;
        }
        while !at.is_null() {
            if (*at).next_watcher == item {
                (*at).next_watcher = (*item).next_watcher;
                return;
            }
            at = (*at).next_watcher;
        }
    }
}

/// Something happened at an endpoint: whoever watches it shall look. The thread that took the
/// event in need not be the one that waits for it.
pub(crate) fn endpoint_event(endpoint: &'static Endpoint) {
    if queue_watchers(endpoint) || crate::wait::has_loose_sleepers() {
        sd_sys::fd::eventfd_signal(crate::control::own_event_fd());
    }
}

/// Puts the endpoint's registrations on their ready lists; whether somebody sleeps on one.
fn queue_watchers(endpoint: &'static Endpoint) -> bool {
    let Some(private) = PROCESS.private(endpoint) else { return false };
    if private.watchers.load(Ordering::Relaxed).is_null() {
        return false;
    }
    let mut sleeps = false;
    let _lock = PROCESS.readiness.lock();
    let mut item = private.watchers.load(Ordering::Relaxed);
    while !item.is_null() {
        // SAFETY: under the lock.
        unsafe {
            let epoll = &mut *(*item).epoll;
            epoll.enqueue(item);
            sleeps |= epoll.sleepers.load(Ordering::SeqCst) != 0;
            item = (*item).next_watcher;
        }
    }
    sleeps
}

pub(super) fn wake_sleepers(epoll: *mut Epoll) {
    // SAFETY: the caller found the instance in the table; the field is atomic.
    if unsafe { (*epoll).sleepers.load(Ordering::SeqCst) } != 0 {
        sd_sys::fd::eventfd_signal(crate::control::own_event_fd());
    }
}

/// Calls `each` with every instance and item that watch the endpoint; items may be removed.
fn each_watcher(endpoint: &'static Endpoint, mut each: impl FnMut(&mut Epoll, *mut Item)) {
    let Some(private) = PROCESS.private(endpoint) else { return };
    if private.watchers.load(Ordering::Relaxed).is_null() {
        return;
    }
    let _lock = PROCESS.readiness.lock();
    let mut item = private.watchers.load(Ordering::Relaxed);
    while !item.is_null() {
        // SAFETY: under the lock; `next` is read before the item may be freed.
        unsafe {
            let next = (*item).next_watcher;
            each(&mut *(*item).epoll, item);
            item = next;
        }
    }
}

/// The last descriptor of this process is closed.
pub(crate) fn forget_endpoint(endpoint: &'static Endpoint) {
    // The kernel forgets a closed number by itself, when no other process has it.
    each_watcher(endpoint, |epoll, item| remove(epoll, item, false));
    endpoint.clear_flag(WATCHED);
}

/// The endpoint became a listener: the kernel instance watches its number from now on.
pub(crate) fn became_listener(endpoint: &'static Endpoint) {
    each_watcher(endpoint, |epoll, item| {
        // SAFETY: under the lock.
        let it = unsafe { &*item };
        if sd_sys::fd::epoll_ctl(epoll.fd, libc::EPOLL_CTL_ADD, it.fd, it.events, it.data).is_ok() {
            epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// The endpoint is a kernel socket from now on: so are its registrations.
pub(crate) fn to_kernel(endpoint: &'static Endpoint) {
    each_watcher(endpoint, |epoll, item| {
        // SAFETY: under the lock.
        let (fd, events, data) = unsafe { ((*item).fd, (*item).events, (*item).data) };
        remove(epoll, item, true);
        if sd_sys::fd::epoll_ctl(epoll.fd, libc::EPOLL_CTL_ADD, fd, events, data).is_ok() {
            epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        }
    });
}
