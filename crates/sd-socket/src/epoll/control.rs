//! epoll_ctl: the interest list.

use super::*;
use crate::waker::View;

/// epoll_ctl on a socket or an instance of ours. `Err` is errno.
pub(crate) fn control(epoll: &'static Epoll, op: i32, fd: i32, event: Option<(u32, u64)>) -> Result<(), i32> {
    let source = match table::get(fd) {
        Entry::Socket(endpoint) => Source::Socket(endpoint),
        Entry::Epoll(nested) => Source::Nested(nested),
        _ => return Err(libc::EBADF),
    };
    if let Source::Socket(endpoint) = source
        && endpoint.state_now() == State::Listen
        && op != libc::EPOLL_CTL_DEL
    {
        crate::listen::interested(endpoint, fd);
    }
    if let Some((events, _)) = event {
        check_exclusive(op, events, source)?;
    }
    // What arrived before goes before what is ready now.
    crate::channel::drain();
    let mut interest = epoll.interest.lock();
    ledger::synchronize(epoll, &mut interest);
    let known = interest.items.get(fd as usize).copied().unwrap_or(core::ptr::null_mut());
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(_)) if !known.is_null() => Err(libc::EEXIST),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, _) if known.is_null() => Err(libc::ENOENT),
        (libc::EPOLL_CTL_ADD, Some(event)) => add(epoll, &mut interest, fd, source, event),
        // SAFETY: in the interest list, which is locked.
        (libc::EPOLL_CTL_MOD, Some(event)) => modify(epoll, unsafe { &*known }, event),
        (libc::EPOLL_CTL_DEL, _) => {
            remove(epoll, &mut interest, known, true);
            Ok(())
        }
        _ => Err(libc::EINVAL),
    }
}

/// EPOLLEXCLUSIVE goes with ADD only, with few other flags, and not with nested instances
/// (epoll_ctl(2)).
fn check_exclusive(op: i32, events: u32, source: Source) -> Result<(), i32> {
    const ALLOWED: i32 = libc::EPOLLIN
        | libc::EPOLLOUT
        | libc::EPOLLRDNORM
        | libc::EPOLLWRNORM
        | libc::EPOLLERR
        | libc::EPOLLHUP
        | libc::EPOLLWAKEUP
        | libc::EPOLLET
        | libc::EPOLLEXCLUSIVE;
    let wrong =
        op == libc::EPOLL_CTL_MOD || matches!(source, Source::Nested(_)) || events & !(ALLOWED as u32) != 0;
    if events & libc::EPOLLEXCLUSIVE as u32 != 0 && wrong { Err(libc::EINVAL) } else { Ok(()) }
}

fn add(
    epoll: &'static Epoll,
    interest: &mut Interest,
    fd: i32,
    source: Source,
    (events, data): (u32, u64),
) -> Result<(), i32> {
    if matches!(source, Source::Nested(_)) {
        rest::flatten(epoll);
    }
    if source.in_kernel() {
        // The kernel knows all instances, so it is the judge of loops and depth.
        sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_ADD, fd, events, data).map_err(|e| e.0)?;
        epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        epoll.has_both.store(true, Ordering::Relaxed);
    }
    if !rest::prepare(epoll, interest, View::now()) {
        return Err(libc::ENOSPC);
    }
    let item = insert(epoll, interest, fd, source, (events | ALWAYS, data), 0);
    ledger::added(epoll, item);
    Ok(())
}

/// Makes an item, and looks whether it is ready.
pub(super) fn insert<'a>(
    epoll: &'static Epoll,
    interest: &'a mut Interest,
    fd: i32,
    source: Source,
    (events, data): (u32, u64),
    entry: u32,
) -> &'a Item {
    let item = Box::into_raw(Box::new(Item {
        epoll,
        fd,
        source,
        events: AtomicU32::new(events),
        data: AtomicU64::new(data),
        place: AtomicU8::new(IDLE),
        told: AtomicU8::new(0),
        entry: AtomicU32::new(entry),
        stamp: AtomicU64::new(0),
        arrived: AtomicU64::new(0),
        next_watcher: AtomicPtr::new(core::ptr::null_mut()),
    }));
    if interest.items.len() <= fd as usize {
        interest.items.resize(fd as usize + 1, core::ptr::null_mut());
    }
    if let Some(cell) = interest.items.get_mut(fd as usize) {
        *cell = item;
    }
    epoll.members.fetch_add(1, Ordering::Relaxed);
    // It may have been used before.
    epoll.dirty.store(true, Ordering::Relaxed);
    watch::link(item);
    // SAFETY: in the interest list, which is locked by the caller.
    let item = unsafe { &*item };
    match source {
        Source::Nested(_) => _ = epoll.nested.fetch_add(1, Ordering::AcqRel),
        Source::Socket(endpoint) if ready::is_polled(endpoint) => {
            let mut line = epoll.line.lock();
            line.scanned.push(item);
            epoll.load.store(line.len(), Ordering::Release);
            collect::has_edge(item);
        }
        Source::Socket(_) => {}
    }
    watch::look_now(item);
    item
}

fn modify(epoll: &'static Epoll, item: &Item, (events, data): (u32, u64)) -> Result<(), i32> {
    if item.events() & libc::EPOLLEXCLUSIVE as u32 != 0 {
        return Err(libc::EINVAL);
    }
    if item.source.in_kernel() {
        sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_MOD, item.fd, events, data).map_err(|e| e.0)?;
    }
    change(item, events | ALWAYS, data);
    ledger::modified(item);
    Ok(())
}

/// Changes an item, and looks whether it is ready.
pub(super) fn change(item: &Item, events: u32, data: u64) {
    {
        let _line = item.epoll.line.lock();
        item.events.store(events, Ordering::Relaxed);
        item.data.store(data, Ordering::Relaxed);
    }
    watch::look_now(item);
}

/// Forgets an item; `from_kernel` also in the kernel instance.
pub(super) fn remove(epoll: &'static Epoll, interest: &mut Interest, item: *mut Item, from_kernel: bool) {
    // SAFETY: in the interest list, which is locked by the caller.
    let (fd, source) = unsafe { ((*item).fd, (*item).source) };
    if source.in_kernel() && from_kernel {
        let _ = sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        let one_less = |count: u32| count.checked_sub(1);
        let _ = epoll.kernel_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }
    // SAFETY: as above.
    ledger::removed(unsafe { &*item }, !from_kernel);
    forget(epoll, interest, item);
}

/// Takes an item out of the interest list of this process.
pub(super) fn forget(epoll: &'static Epoll, interest: &mut Interest, item: *mut Item) {
    // SAFETY: in the interest list, which is locked by the caller.
    let fd = unsafe { (*item).fd };
    if let Some(cell) = interest.items.get_mut(fd as usize) {
        *cell = core::ptr::null_mut();
    }
    discard(epoll, item);
}

/// Frees an item that the interest list does not hold any more.
pub(super) fn discard(epoll: &'static Epoll, item: *mut Item) {
    // Nobody finds it from its source from here on; then nobody finds it on the line.
    watch::unlink(item);
    epoll.members.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: made by Box::into_raw in `add`; the last reference is that of the line.
    let item = unsafe { Box::from_raw(item) };
    {
        let mut line = epoll.line.lock();
        line.remove(&item);
        epoll.load.store(line.len(), Ordering::Release);
    }
    if matches!(item.source, Source::Nested(_)) {
        epoll.nested.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A kernel descriptor was registered by a call that passed through.
pub(crate) fn kernel_registered(epoll: &'static Epoll) {
    ledger::catch_up(epoll);
    epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
}
