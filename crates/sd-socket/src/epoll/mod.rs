//! epoll over our sockets and the kernel's descriptors in one instance.
//!
//! The program's descriptor is a kernel epoll instance; kernel descriptors are registered there and
//! cost what they always did. Sockets of ours are in the interest list here, and in the ready list
//! when something happened, so a wait costs the number of ready sockets. The kernel instance also
//! watches our eventfd (edge-triggered): it is what a wait sleeps on.
//!
//! ```text
//!  peer --event bit, eventfd--> drain() --> ready list --> epoll_wait --> program
//!                                                ^--------- level-triggered: stays until not ready
//! ```
//! A level-triggered socket that has just been read empty is kept on the list for some rounds
//! ("hot") and looked at directly: asking its peer for an event costs both sides more.

use crate::endpoint::EndpointExt;
use crate::process::PROCESS;
use crate::ready;
use crate::table::{self, Entry};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use sd_shm::slab::{Endpoint, State};
use std::collections::VecDeque;

mod collect;
mod waiting;
mod watch;

pub(crate) use collect::{arm_all, is_ready};
pub(crate) use waiting::wait;
pub(crate) use watch::{became_listener, endpoint_event, forget_endpoint, to_kernel};
use watch::{link_watcher, unlink_watcher, wake_sleepers};

/// What an item watches.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Socket(&'static Endpoint),
    /// A nested instance of ours.
    Nested(*mut Epoll),
}

/// One registration.
pub(crate) struct Item {
    epoll: *mut Epoll,
    fd: i32,
    source: Source,
    events: u32,
    data: u64,
    queued: bool,
    /// EPOLLONESHOT has fired.
    disabled: bool,
    /// Looks without result since the last event.
    cold: u32,
    /// Next registration of the same endpoint.
    next_watcher: *mut Item,
}

/// One instance. Everything but the atomics is guarded by `PROCESS.readiness`.
pub(crate) struct Epoll {
    fd: i32,
    /// Numbers of this process that lead here.
    fds: u32,
    items: Vec<*mut Item>,
    ready: VecDeque<*mut Item>,
    /// Nested instances and sockets whose events another process gets: looked at in every wait.
    scanned: Vec<*mut Item>,
    /// Kernel descriptors registered (a closed one is still counted).
    kernel_count: AtomicU32,
    /// What a wait sleeps on, once a socket of ours is registered: an instance that watches the
    /// program's, our eventfds and the control socket. So the program's stays what it would be
    /// without us, for nesting and poll.
    sleep_fd: AtomicI32,
    wakers: usize,
    /// Registration with the monitor whose control socket is watched.
    registration: u32,
    pub(crate) sleepers: AtomicU32,
    spin: AtomicU32,
    /// Time-stamp when the kernel part was last asked.
    kernel_asked: AtomicU64,
    /// Housekeeping due: events were delivered since.
    dirty: AtomicBool,
    /// Threads inside a wait; the record is freed by the last one after close.
    users: AtomicU32,
    closed: bool,
}

/// Marks the program's instance in the one that is slept on.
const KERNEL_PART: u64 = 1;

/// A kernel epoll instance was made: remember it.
pub(crate) fn created(fd: i32) {
    if PROCESS.own_slab.load(Ordering::Relaxed) == 0 && crate::control::connected().is_none() {
        return;
    }
    crate::connect::dropped_behind_our_back(fd);
    let epoll = Box::into_raw(Box::new(Epoll {
        fd,
        fds: 1,
        items: Vec::new(),
        ready: VecDeque::new(),
        scanned: Vec::new(),
        kernel_count: AtomicU32::new(0),
        sleep_fd: AtomicI32::new(-1),
        wakers: 0,
        registration: 0,
        sleepers: AtomicU32::new(0),
        spin: AtomicU32::new(0),
        kernel_asked: AtomicU64::new(0),
        dirty: AtomicBool::new(false),
        users: AtomicU32::new(0),
        closed: false,
    }));
    if !table::set_epoll(fd, epoll) {
        // SAFETY: just made, known to nobody.
        drop(unsafe { Box::from_raw(epoll) });
    }
}

/// The instance's descriptor is closed (the last one of this process).
fn closed(epoll: *mut Epoll) {
    let _lock = PROCESS.readiness.lock();
    // SAFETY: live until freed below; guarded by the lock.
    let this = unsafe { &mut *epoll };
    for item in core::mem::take(&mut this.items) {
        if !item.is_null() {
            unlink_watcher(item);
            // SAFETY: made by Box::into_raw in `add`, referenced nowhere else now.
            drop(unsafe { Box::from_raw(item) });
        }
    }
    this.ready.clear();
    this.scanned.clear();
    crate::process::close_hidden(this.sleep_fd.swap(-1, Ordering::AcqRel));
    this.closed = true;
    if this.users.load(Ordering::Acquire) == 0 {
        // SAFETY: no thread is inside, and the table no longer leads here.
        drop(unsafe { Box::from_raw(epoll) });
    }
}

impl Epoll {
    fn item(&self, fd: i32) -> *mut Item {
        self.items.get(fd as usize).copied().unwrap_or(core::ptr::null_mut())
    }

    fn enqueue(&mut self, item: *mut Item) {
        // SAFETY: items live until `remove`, under the lock.
        let this = unsafe { &mut *item };
        this.cold = 0;
        if !this.queued && !this.disabled {
            this.queued = true;
            self.ready.push_back(item);
        }
    }
}

/// epoll_ctl on a descriptor of ours. `Err` is errno.
pub(crate) fn control(epoll: *mut Epoll, op: i32, fd: i32, event: Option<(u32, u64)>) -> Result<(), i32> {
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
    {
        let _lock = PROCESS.readiness.lock();
        // SAFETY: guarded by the lock; the caller found the instance in the table.
        let this = unsafe { &mut *epoll };
        let known = this.item(fd);
        match (op, event) {
            (libc::EPOLL_CTL_ADD, Some(_)) if !known.is_null() => return Err(libc::EEXIST),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, _) if known.is_null() => return Err(libc::ENOENT),
            (libc::EPOLL_CTL_ADD, Some((events, data))) => add(epoll, fd, source, events, data)?,
            (libc::EPOLL_CTL_MOD, Some((events, data))) => modify(this, known, events, data)?,
            (libc::EPOLL_CTL_DEL, _) => remove(this, known, true),
            _ => return Err(libc::EINVAL),
        }
    }
    wake_sleepers(epoll);
    Ok(())
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

/// Whether the kernel instance watches the number as well: listeners and nested instances.
fn in_kernel(source: Source) -> bool {
    match source {
        Source::Socket(endpoint) => endpoint.state_now() == State::Listen,
        Source::Nested(_) => true,
    }
}

fn add(epoll: *mut Epoll, fd: i32, source: Source, events: u32, data: u64) -> Result<(), i32> {
    // SAFETY: under the lock.
    let this = unsafe { &mut *epoll };
    if let Source::Nested(nested) = source
        && core::ptr::eq(nested, epoll)
    {
        return Err(libc::EINVAL);
    }
    if !watch_own(this) {
        return Err(libc::ENOSPC);
    }
    if in_kernel(source) {
        sd_sys::fd::epoll_ctl(this.fd, libc::EPOLL_CTL_ADD, fd, events, data).map_err(|e| e.0)?;
        this.kernel_count.fetch_add(1, Ordering::Relaxed);
    }
    let item = Box::into_raw(Box::new(Item {
        epoll,
        fd,
        source,
        events,
        data,
        queued: false,
        disabled: false,
        cold: 0,
        next_watcher: core::ptr::null_mut(),
    }));
    if this.items.len() <= fd as usize {
        this.items.resize(fd as usize + 1, core::ptr::null_mut());
    }
    if let Some(cell) = this.items.get_mut(fd as usize) {
        *cell = item;
    }
    link_watcher(item);
    place(this, item);
    Ok(())
}

/// A sleep shall end when a peer or the monitor has something for us. False when out of descriptors.
fn watch_own(this: &mut Epoll) -> bool {
    if this.sleep_fd.load(Ordering::Relaxed) < 0 {
        let Ok(fd) = sd_sys::fd::epoll_create() else { return false };
        let fd = crate::process::hide_fd(fd);
        let watched =
            sd_sys::fd::epoll_ctl(fd, libc::EPOLL_CTL_ADD, this.fd, libc::EPOLLIN as u32, KERNEL_PART);
        if watched.is_err() {
            crate::process::close_hidden(fd);
            return false;
        }
        this.sleep_fd.store(fd, Ordering::Release);
        kick(this);
    }
    let sleep_fd = this.sleep_fd.load(Ordering::Relaxed);
    if this.wakers < PROCESS.waker_count.load(Ordering::Acquire) {
        this.wakers = crate::wait::add_wakers(sleep_fd, this.wakers);
    }
    let registration = crate::control::REGISTRATIONS.load(Ordering::Acquire);
    if this.registration != registration {
        this.registration = registration;
        crate::wait::add_control(sleep_fd);
    }
    true
}

/// Threads that sleep on the program's instance because it held nothing of ours must come back.
fn kick(this: &Epoll) {
    if this.users.load(Ordering::SeqCst) == 0 {
        return;
    }
    let event_fd = crate::control::own_event_fd();
    let events = (libc::EPOLLIN | libc::EPOLLET | libc::EPOLLONESHOT) as u32;
    let _ = sd_sys::fd::epoll_ctl(this.fd, libc::EPOLL_CTL_ADD, event_fd, events, crate::wait::OWN_EVENT);
    sd_sys::fd::eventfd_signal(event_fd);
}

/// Puts a new or changed item where it will be looked at.
fn place(this: &mut Epoll, item: *mut Item) {
    // SAFETY: under the lock.
    let polled = match unsafe { (*item).source } {
        Source::Nested(_) => true,
        Source::Socket(endpoint) => ready::is_polled(endpoint),
    };
    if polled && !this.scanned.contains(&item) {
        this.scanned.push(item);
    }
    this.enqueue(item);
}

fn modify(this: &mut Epoll, item: *mut Item, events: u32, data: u64) -> Result<(), i32> {
    // SAFETY: under the lock.
    let it = unsafe { &mut *item };
    if it.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
        return Err(libc::EINVAL);
    }
    if in_kernel(it.source) {
        sd_sys::fd::epoll_ctl(this.fd, libc::EPOLL_CTL_MOD, it.fd, events, data).map_err(|e| e.0)?;
    }
    it.events = events;
    it.data = data;
    it.disabled = false;
    this.enqueue(item);
    Ok(())
}

/// Forgets an item; `from_kernel` also in the kernel instance.
fn remove(this: &mut Epoll, item: *mut Item, from_kernel: bool) {
    // SAFETY: under the lock.
    let (fd, source) = unsafe { ((*item).fd, (*item).source) };
    if in_kernel(source) && from_kernel {
        let _ = sd_sys::fd::epoll_ctl(this.fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        // Only under the lock, so it cannot pass zero.
        let count = this.kernel_count.load(Ordering::Relaxed);
        this.kernel_count.store(count.saturating_sub(1), Ordering::Relaxed);
    }
    if let Some(cell) = this.items.get_mut(fd as usize) {
        *cell = core::ptr::null_mut();
    }
    // SAFETY: under the lock.
    if unsafe { (*item).queued } {
        this.ready.retain(|&other| other != item);
    }
    this.scanned.retain(|&other| other != item);
    unlink_watcher(item);
    // SAFETY: made by Box::into_raw in `add`; all references were just removed.
    drop(unsafe { Box::from_raw(item) });
}

/// A kernel descriptor was registered by a call that passed through.
pub(crate) fn kernel_registered(epoll: *mut Epoll) {
    let _lock = PROCESS.readiness.lock();
    // SAFETY: under the lock; found in the table.
    unsafe { (*epoll).kernel_count.fetch_add(1, Ordering::Relaxed) };
}

/// Whether any socket of ours is, or was, registered.
#[inline]
pub(crate) fn has_ours(epoll: *mut Epoll) -> bool {
    // SAFETY: found in the table, or a user is counted; the field is atomic.
    unsafe { (*epoll).sleep_fd.load(Ordering::Acquire) >= 0 }
}

/// In the child of a fork: nobody waits.
pub(crate) fn forked() {
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Epoll(epoll) = entry {
            // SAFETY: live, and only this thread exists.
            let this = unsafe { &mut *epoll };
            this.sleepers.store(0, Ordering::Relaxed);
            this.users.store(0, Ordering::Relaxed);
            // The parent's; ours will watch our own eventfd.
            crate::process::close_hidden(this.sleep_fd.swap(-1, Ordering::Relaxed));
            this.wakers = 0;
            this.registration = 0;
        }
    });
}

/// Then, when memory can be allocated again: its own descriptors are watched, and what has to be scanned now is listed.
pub(crate) fn forked_late() {
    let _lock = PROCESS.readiness.lock();
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Epoll(epoll) = entry {
            // SAFETY: live, and under the lock.
            let this = unsafe { &mut *epoll };
            if this.items.iter().any(|i| !i.is_null()) {
                watch_own(this);
            }
            for item in this.items.iter().copied().filter(|i| !i.is_null()).collect::<Vec<_>>() {
                place(this, item);
            }
        }
    });
}

/// One more number leads to the instance.
pub(crate) fn add_fd(epoll: *mut Epoll, fd: i32) {
    let _lock = PROCESS.readiness.lock();
    if table::set_epoll(fd, epoll) {
        // SAFETY: under the lock; found in the table.
        unsafe { (*epoll).fds += 1 };
    }
}

/// One number fewer leads to the instance.
pub(crate) fn drop_fd(epoll: *mut Epoll) {
    let last = {
        let _lock = PROCESS.readiness.lock();
        // SAFETY: under the lock; was in the table until now.
        let this = unsafe { &mut *epoll };
        this.fds -= 1;
        this.fds == 0
    };
    if last {
        closed(epoll);
    }
}
