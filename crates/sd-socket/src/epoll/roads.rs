//! Registrations of connections that the kernel has made, and whose bytes go through it, or through a slot's rings: each is one of the kernel's
//! instance too, for the directions that are the kernel's (`wait::by_kernel`).

use super::*;
use crate::wait::by_kernel;
use watch::{Removed, with_list};

/// Registrations of kernel sockets in an instance that are looked through for one.
const LISTED_MAX: u32 = 4096;

/// Directions of a connection that the kernel has made go through the ring from now on: what they do is not the kernel's instances'
/// to tell any more, and may have happened already.
pub(crate) fn moved(endpoint: &'static Endpoint) {
    let directions = by_kernel::directions(endpoint);
    each_item(endpoint, |item| {
        let epoll = item.epoll();
        if directions != 0 {
            return tell_kernel(item, directions);
        }
        if sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_DEL, item.fd(), 0, 0).is_ok() {
            let one_less = |count: u32| count.checked_sub(1);
            let _ = epoll.kernel_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
    });
    crate::socket::bell::wake_sleepers(endpoint);
    endpoint_event(endpoint);
}

fn each_item(endpoint: &'static Endpoint, mut each: impl FnMut(&Item)) {
    with_list(Source::Socket(endpoint), |head| {
        let mut at = head.load(Ordering::Relaxed);
        // SAFETY: the list's items are live under its lock.
        while let Some(item) = unsafe { at.as_ref() } {
            each(item);
            at = item.next_watcher.load(Ordering::Relaxed);
        }
    });
}

/// Registers an item in the kernel's instance too, for what that tells of.
pub(super) fn tell_kernel(item: &Item, directions: u32) {
    let epoll = item.epoll();
    let events = by_kernel::of_kernel(directions, item.events() & !ALWAYS);
    let data = item.data.load(Ordering::Relaxed);
    let control = |op| sd_sys::fd::epoll_ctl(epoll.fd(), op, item.fd(), events, data);
    let is_unknown = control(libc::EPOLL_CTL_MOD) == Err(sd_sys::Errno::ENOENT);
    // One that has fired is asked for again by the program.
    if is_unknown && !item.is_disabled() && control(libc::EPOLL_CTL_ADD).is_ok() {
        epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        epoll.has_both.store(true, Ordering::Relaxed);
    }
}

/// Directions of such a connection go through the kernel again. What came there is told of by its instances, from here on.
pub(super) fn came_back(endpoint: &'static Endpoint) {
    let directions = by_kernel::directions(endpoint);
    each_item(endpoint, |item| tell_kernel(item, directions));
    crate::socket::bell::wake_sleepers(endpoint);
    crate::socket::thread_waker::wake(endpoint);
    watch::wake_loose();
}

/// The registrations of a socket of the kernel's under this number; `None`: some are of a kind that cannot be shared with it, or of
/// an instance that is not known.
pub(crate) fn registrations(fd: i32) -> Option<Vec<Removed>> {
    let (mut found, mut is_odd): (Vec<Removed>, bool) = (Vec::new(), false);
    table::for_each(0, u32::MAX, |number, entry| {
        let Entry::Epoll(epoll) = entry else { return };
        let epoll = epoll.epoll();
        if found.iter().any(|other| other.is_in(epoll)) {
            return;
        }
        // The kernel lists them all for one.
        if epoll.kernel_count.load(Ordering::Relaxed) > LISTED_MAX {
            is_odd = true;
            return;
        }
        match Removed::of_kernel(epoll, number, fd) {
            Ok(Some(known)) => {
                const ODD: u32 = (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;
                is_odd |= known.events & ODD != 0 || known.events & !PRIVATE == 0;
                found.push(known);
            }
            Ok(None) => {}
            Err(_) => is_odd = true,
        }
    });
    (!is_odd).then_some(found)
}
