//! epoll_ctl: the interest list.

use super::*;
use crate::process::waker::View;
use crate::socket::kernel_socket::{MOVED, is_moved};
use crate::wait::by_kernel;
use sd_sys::Errno;

/// epoll_ctl on a socket or an instance of ours. `Err` is errno.
pub(crate) fn control(
    epoll: &'static Epoll,
    op: i32,
    fd: i32,
    event: Option<(u32, u64)>,
) -> Result<(), Errno> {
    let source = match table::get(fd) {
        Entry::Socket(endpoint) => Source::Socket(endpoint),
        Entry::Epoll(nested) => Source::Nested(nested.epoll()),
        // It was one of these when the call began.
        _ => return Err(MOVED),
    };
    if let Some((events, _)) = event {
        check_exclusive(op, events, source)?;
    }
    if let Source::Nested(inner) = source {
        inside::others_look(inner);
    }
    // What arrived before goes before what is ready now.
    super::dispatch::drain();
    let mut interest = epoll.interest.lock();
    ledger::synchronize(epoll, &mut interest);
    if matches!(source, Source::Socket(endpoint) if is_moved(endpoint)) {
        return Err(MOVED);
    }
    let done = match (op, event, watch::find(epoll, fd, source)) {
        (libc::EPOLL_CTL_ADD, Some(_), Some(_)) => Err(Errno::EEXIST),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, _, None) => Err(Errno::ENOENT),
        (libc::EPOLL_CTL_ADD, Some(event), None) => add(epoll, &mut interest, fd, source, event),
        (libc::EPOLL_CTL_MOD, Some(event), Some(known)) => modify(epoll, known, event),
        (libc::EPOLL_CTL_DEL, _, Some(known)) => {
            remove(epoll, &mut interest, known, true);
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    };
    drop(interest);
    if let Source::Socket(endpoint) = source
        && is_moved(endpoint)
    {
        // Another thread has just given its slot back.
        super::watch::to_kernel(endpoint);
    }
    done
}

/// EPOLLEXCLUSIVE goes with ADD only, with few other flags, and not with nested instances
/// (epoll_ctl(2)).
fn check_exclusive(op: i32, events: u32, source: Source) -> Result<(), Errno> {
    const ALLOWED: i32 = libc::EPOLLIN
        | libc::EPOLLOUT
        | libc::EPOLLERR
        | libc::EPOLLHUP
        | libc::EPOLLWAKEUP
        | libc::EPOLLET
        | libc::EPOLLEXCLUSIVE;
    let wrong =
        op == libc::EPOLL_CTL_MOD || matches!(source, Source::Nested(_)) || events & !(ALLOWED as u32) != 0;
    if events & libc::EPOLLEXCLUSIVE as u32 != 0 && wrong { Err(Errno::EINVAL) } else { Ok(()) }
}

fn add(
    epoll: &'static Epoll,
    interest: &mut Interest,
    fd: i32,
    source: Source,
    (events, data): (u32, u64),
) -> Result<(), Errno> {
    if !interest.items.reserve(epoll) {
        return Err(Errno::ENOMEM);
    }
    if matches!(source, Source::Nested(_)) {
        sleep_fd::flatten(epoll, interest);
    }
    if source.in_kernel() {
        // The kernel knows all instances, so it is the judge of loops and depth.
        sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_ADD, fd, events, data)?;
        epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        epoll.has_both.store(true, Ordering::Relaxed);
    }
    let directions = source.directions();
    let is_once = events & libc::EPOLLONESHOT as u32 != 0;
    if directions != 0 && !is_once {
        let part = by_kernel::of_kernel(directions, events);
        sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_ADD, fd, part, data)?;
        epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        epoll.has_both.store(true, Ordering::Relaxed);
    }
    if !sleep_fd::prepare(epoll, interest, View::now()) {
        return Err(Errno::ENOSPC);
    }
    let item = insert(epoll, interest, fd, source, (events | ALWAYS, data), 0).ok_or(Errno::ENOMEM)?;
    match (source, is_once) {
        // Which of the two tells of it first is to be found out.
        (Source::Socket(_), true) => roads::tell_kernel(item),
        // Another thread may have moved a direction since, and did not find the item.
        (Source::Socket(_), false) => roads::told(item, directions),
        (Source::Nested(_), _) => {}
    }
    ledger::added(epoll, item);
    Ok(())
}

/// Makes an item, and looks whether it is ready. `None` without memory.
pub(super) fn insert(
    epoll: &'static Epoll,
    interest: &mut Interest,
    fd: i32,
    source: Source,
    wish: (u32, u64),
    entry: u32,
) -> Option<&'static Item> {
    let item = interest.items.take(epoll, fd, source, wish, entry)?;
    let is_first = epoll.members.fetch_add(1, Ordering::SeqCst) == 0;
    // It may have been used before.
    crate::memory::rounds::used();
    watch::link(item);
    match source {
        Source::Nested(_) => _ = epoll.nested.fetch_add(1, Ordering::AcqRel),
        Source::Socket(endpoint) if ready::is_polled(endpoint) => {
            let mut ready_list = epoll.ready_list.lock();
            let mut arrived = 0;
            collect::has_edge(item, &mut arrived);
            ready_list.scanned.push(Scanned { item, arrived });
            epoll.load.store(ready_list.len(), Ordering::Release);
        }
        Source::Socket(_) => {}
    }
    watch::look_now(item);
    if is_first {
        sleep_fd::kick(epoll, interest);
    }
    Some(item)
}

fn modify(epoll: &'static Epoll, item: &Item, (events, data): (u32, u64)) -> Result<(), Errno> {
    if item.events() & libc::EPOLLEXCLUSIVE as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    if item.source().in_kernel() {
        sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_MOD, item.fd(), events, data)?;
    }
    roads::change(item, (events | ALWAYS, data));
    ledger::modified(item);
    Ok(())
}

/// Forgets an item; `from_kernel` also in the kernel instance.
pub(super) fn remove(epoll: &'static Epoll, interest: &mut Interest, item: &'static Item, from_kernel: bool) {
    let is_in_both = item.source().is_in_both() || item.told_roads() != 0;
    if is_in_both && from_kernel {
        let done = sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_DEL, item.fd(), 0, 0);
        let one_less = |count: u32| count.checked_sub(1);
        // One that has fired once may be there no more (`roads::fired`).
        if done.is_ok() {
            let _ = epoll.kernel_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        }
    }
    ledger::removed(item, !from_kernel);
    forget(epoll, interest, item);
}

/// Takes an item out of the interest list of this process.
pub(super) fn forget(epoll: &'static Epoll, interest: &mut Interest, item: &'static Item) {
    // Nobody finds it from its source from here on; then nobody finds it on the ready list.
    watch::unlink(item);
    epoll.members.fetch_sub(1, Ordering::Relaxed);
    {
        let mut ready_list = epoll.ready_list.lock();
        ready_list.remove(item);
        epoll.load.store(ready_list.len(), Ordering::Release);
    }
    if matches!(item.source(), Source::Nested(_)) {
        epoll.nested.fetch_sub(1, Ordering::AcqRel);
    }
    interest.items.give(item);
}

/// A kernel descriptor was registered by a call that passed through.
pub(crate) fn kernel_registered(epoll: &'static Epoll) {
    ledger::catch_up(epoll);
    epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
}

/// epoll_ctl on a connection of the kernel's that may be moved to shared memory; `event` is nothing for EPOLL_CTL_DEL.
///
/// Event loops take one out and put it in again all the time, and the count is to tell how many there are. It never falls to zero by this: there may
/// be some that were never counted.
pub(crate) fn kernel_asked(
    (epoll, epfd): (&'static Epoll, i32),
    op: i32,
    (fd, endpoint): (i32, Option<&'static Endpoint>),
    event: Option<(u32, u64)>,
) -> Result<(), Errno> {
    let (events, data) = event.unwrap_or_default();
    listed::changed(fd);
    let call = endpoint.map(|endpoint| (told::Call::begin(fd), endpoint));
    let done = sd_sys::fd::epoll_ctl(epfd, op, fd, events, data);
    if let Some((call, endpoint)) = call {
        call.end(endpoint, done.is_ok().then_some(epoll), event);
    }
    listed::changed(fd);
    done?;
    if op == libc::EPOLL_CTL_DEL {
        let one_less = |count: u32| count.checked_sub(1).filter(|left| *left != 0);
        let _ = epoll.kernel_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }
    Ok(())
}
