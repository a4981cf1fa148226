//! Registrations of connections that the kernel has made, and whose bytes go through it, or through a slot's rings: each is one of the kernel's
//! instance too, for the directions that are the kernel's (`wait::by_kernel`).

use super::told::Known;
use super::*;
use crate::wait::by_kernel;
use alloc::vec::Vec;
use watch::{Removed, with_list};

/// Registrations of kernel sockets in an instance that are looked through for one.
const LISTED_MAX: u32 = 4096;

/// Directions of a connection that the kernel has made go through the ring from now on: what they do is not the kernel's instances'
/// to tell any more, and may have happened already.
pub(crate) fn moved(endpoint: &'static Endpoint) {
    follow_all(endpoint);
    crate::socket::bell::wake_sleepers(endpoint);
    endpoint_event(endpoint);
}

/// The kernel's instances are asked for what they tell of from now on, for all registrations of this process. True: for some they were not
/// asked yet.
pub(super) fn follow_all(endpoint: &'static Endpoint) -> bool {
    let mut has_changed = false;
    each_item(endpoint, |item| has_changed |= follow(&mut item.epoll().ready_list.lock(), item));
    has_changed
}

/// [`follow_all`] for one registration. A relative that shares the connection may have moved a direction, which nobody has told this process
/// of: so who looks at the registration looks at this too.
#[inline]
pub(super) fn follow(ready_list: &mut ReadyList, item: &Item) -> bool {
    let directions = item.source().directions();
    // One that has fired once is told of to the kernel's instance when the program asks for it again.
    if directions == item.told_roads() || item.is_disabled() {
        return false;
    }
    match directions {
        0 => untell_kernel(ready_list, item),
        _ => tell_kernel_within(ready_list, item, directions),
    }
    true
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

/// The kernel's instance tells no more of an item.
fn untell_kernel(ready_list: &mut ReadyList, item: &Item) {
    let epoll = item.epoll();
    ready_list.once.retain(|at| !core::ptr::eq(*at, item));
    item.set_told_roads(0);
    if sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_DEL, item.fd(), 0, 0).is_ok() {
        let one_less = |count: u32| count.checked_sub(1);
        let _ = epoll.kernel_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }
}

/// A relative of a fork has removed the registration, from the kernel's instance too. This process may have told that of it since, which had not heard.
pub(super) fn removed(item: &Item) {
    let mut ready_list = item.epoll().ready_list.lock();
    if item.told_roads() != 0 {
        untell_kernel(&mut ready_list, item);
    }
}

/// What the program wants to know of an item that the kernel's connection says now.
#[cold]
pub(super) fn kernel_mask(item: &Item) -> u32 {
    match item.source() {
        Source::Socket(endpoint) => by_kernel::kernel_part(endpoint) & item.events() & !PRIVATE,
        Source::Nested(_) => 0,
    }
}

/// EPOLLONESHOT has fired for what the ring told: the kernel's instance is to tell nothing more until the program asks anew. Under the
/// lock of the ready list, as [`may_fire`] is, so the two come one after the other.
#[cold]
#[inline(never)]
pub(super) fn fired(ready_list: &mut ReadyList, item: &Item) {
    if ready_list.once.iter().any(|at| core::ptr::eq(*at, item)) {
        untell_kernel(ready_list, item);
    }
}

/// The kernel's instance has told something with this word of the program's. If that was a registration with EPOLLONESHOT, which shows in the
/// kernel's list, it has fired. False: it had fired before, for the ring.
#[inline]
pub(super) fn may_fire(ready_list: &mut ReadyList, data: u64) -> bool {
    ready_list.once.is_empty() || may_fire_once(ready_list, data)
}

#[cold]
fn may_fire_once(ready_list: &mut ReadyList, data: u64) -> bool {
    // SAFETY: items are taken off the list before they are given back, under its lock.
    let items = ready_list.once.iter().map(|at| unsafe { &**at });
    let has_fired = |item: &&Item| {
        let known = sd_sys::fdinfo::registration(item.epoll().fd(), item.fd());
        matches!(known, Ok(Some(known)) if known.events & !PRIVATE == 0)
    };
    let fired = { items }.filter(|item| item.data.load(Ordering::Relaxed) == data).find(has_fired);
    let Some(item) = fired else { return true };
    ready_list.once.retain(|at| !core::ptr::eq(*at, item));
    ledger::fire(item)
}

/// Changes an item, which the kernel's instance may have too, and looks whether it is ready. For which directions that is to be asked is looked up
/// under the lock: whoever moves one follows under it ([`follow`]), before this or after it.
pub(super) fn change(item: &Item, (events, data): (u32, u64)) {
    {
        let mut ready_list = item.epoll().ready_list.lock();
        item.events.store(events, Ordering::Relaxed);
        item.data.store(data, Ordering::Relaxed);
        match item.source().directions() {
            0 if item.told_roads() == 0 => {}
            0 => untell_kernel(&mut ready_list, item),
            directions => tell_kernel_within(&mut ready_list, item, directions),
        }
    }
    watch::look_now(item);
}

/// Registers an item in the kernel's instance too, for what that tells of by now.
pub(super) fn tell_kernel(item: &Item) {
    let mut ready_list = item.epoll().ready_list.lock();
    let directions = item.source().directions();
    if directions != 0 {
        tell_kernel_within(&mut ready_list, item, directions);
    }
}

/// A fresh registration is one of the kernel's instance's, which was asked for these directions. Others may have moved since.
pub(super) fn told(item: &Item, directions: u32) {
    let mut ready_list = item.epoll().ready_list.lock();
    item.set_told_roads(directions);
    follow(&mut ready_list, item);
}

fn tell_kernel_within(ready_list: &mut ReadyList, item: &Item, directions: u32) {
    let epoll = item.epoll();
    if item.is_disabled() {
        // The program asks for it again, and then the kernel's instance is told.
        return;
    }
    let events = by_kernel::of_kernel(directions, item.events() & !ALWAYS);
    let data = item.data.load(Ordering::Relaxed);
    let control = |op| sd_sys::fd::epoll_ctl(epoll.fd(), op, item.fd(), events, data);
    let is_unknown = control(libc::EPOLL_CTL_MOD) == Err(sd_sys::Errno::ENOENT);
    if is_unknown && control(libc::EPOLL_CTL_ADD).is_ok() {
        epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
    }
    // A relative may have made it, in an instance that both have.
    epoll.has_both.store(true, Ordering::Relaxed);
    item.set_told_roads(directions);
    ready_list.once.retain(|at| !core::ptr::eq(*at, item));
    if item.events() & libc::EPOLLONESHOT as u32 != 0 {
        ready_list.once.push(item);
    }
}

/// Directions of such a connection go through the kernel again. What came there is told of by its instances, from here on.
pub(super) fn came_back(endpoint: &'static Endpoint) {
    follow_all(endpoint);
    tell_waiting(endpoint);
}

/// Threads of this process that wait for the connection look again.
pub(super) fn tell_waiting(endpoint: &'static Endpoint) {
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
        let is_many = || epoll.kernel_count.load(Ordering::Relaxed) > LISTED_MAX;
        if is_many() && told::about(epoll, fd) == Known::Unknown {
            is_odd = true;
            return;
        }
        match Removed::of_kernel(epoll, number, fd) {
            Ok(Some(known)) => {
                // One that fires once may do so at this moment, unless it has already: then only the program makes it fire again, by
                // a call that has to wait.
                let is_exclusive = known.events & libc::EPOLLEXCLUSIVE as u32 != 0;
                let is_once = known.events & libc::EPOLLONESHOT as u32 != 0;
                is_odd |= is_exclusive || is_once != (known.events & !PRIVATE == 0);
                found.push(known);
            }
            Ok(None) => {}
            Err(_) => is_odd = true,
        }
    });
    (!is_odd).then_some(found)
}
