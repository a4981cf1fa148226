//! listen(2) and accept(2).
//!
//! A listener of ours is a kernel listener too (regular peers are served, and the kernel owns the
//! port), plus a backlog of connections that arrived over channels. Each process that shares the
//! listener after fork has its own backlog; the monitor deals connections to those processes that
//! have shown that they accept. B's half of §4.5.2, Fig. 6:
//!
//! | B's word of the slot | event | next |
//! |---|---|---|
//! | of an older generation | SYN seen, listener known | queued in the backlog (no word yet) |
//! | of an older generation | SYN seen, listener gone | Refused, A is woken |
//! | of an older generation | accept | Open (by compare-and-swap: one process wins) |
//! | Open | close | Closed |

use crate::Outcome;
use crate::addr;
use crate::channel::{self, Channel};
use crate::connect::materialize;
use crate::endpoint::{ALL_BITS, EndpointExt, HAS_NAME, NONBLOCK, OWN_SOCKET};
use crate::process::{PROCESS, Priv};
use crate::table;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::c_int;
use sd_proto::Request;
use sd_ring::doorbell;
use sd_shm::channel::{FLAG_RESET, SlotState};
use sd_shm::public::LISTENERS;
use sd_shm::slab::{Endpoint, State};
use sd_sys::lock::Lock;
use std::collections::VecDeque;

/// A connection that waits for accept.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) channel: &'static Channel,
    pub(crate) slot: usize,
    pub(crate) generation: u32,
}

/// Private record of a listener; recycled, never freed, since a thread may be inside accept.
pub(crate) struct Listener {
    endpoint: Lock<Option<&'static Endpoint>>,
    /// Index in the public page; LISTENERS when not registered.
    index: AtomicU32,
    generation: AtomicU32,
    backlog: AtomicU32,
    /// The monitor may deal connections to us.
    accepting: AtomicBool,
    /// accept, poll or epoll was called for it in this process.
    interested: AtomicBool,
    pub(crate) queue: Lock<VecDeque<Pending>>,
    pub(crate) spin: AtomicU32,
}

static REGISTRY: Lock<Vec<&'static Listener>> = Lock::new(Vec::new());
const UNREGISTERED: u32 = LISTENERS as u32;

/// The listener record of an endpoint.
pub(crate) fn record(endpoint: &Endpoint) -> Option<&'static Listener> {
    // SAFETY: null or a record that is never freed.
    unsafe { PROCESS.private(endpoint)?.listener.load(Ordering::Acquire).as_ref() }
}

/// listen(2).
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Outcome<c_int> {
    let Some(endpoint) = table::socket(fd) else { return Outcome::Kernel };
    match endpoint.state_now() {
        State::Fresh | State::Bound | State::Listen => {}
        State::Connected | State::Failed => return Outcome::Errno(libc::EINVAL),
        _ => return Outcome::Kernel,
    }
    if let Err(errno) = materialize(endpoint) {
        return Outcome::Errno(errno);
    }
    // SAFETY: no pointers.
    if let Err(e) = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_listen, fd, backlog) }) {
        return Outcome::Errno(e.0);
    }
    set_kernel_nonblock(fd, true);
    if let Some((_, name)) = addr::kernel_name(fd) {
        addr::store(&endpoint.local, name.ip);
        endpoint.ports.store(u32::from(name.port) << 16, Ordering::Relaxed);
    }
    let listener = record(endpoint).or_else(|| adopt(endpoint));
    endpoint.set_state(State::Listen);
    crate::epoll::became_listener(endpoint);
    if let Some(listener) = listener {
        listener.backlog.store(clamp_backlog(backlog), Ordering::Relaxed);
        listener.accepting.store(true, Ordering::Relaxed);
        register(listener, fd);
    }
    Outcome::Done(0)
}

/// A kernel listener that came from elsewhere, by SCM_RIGHTS or from a starter without us: connections to it are
/// accelerated from the time that this process accepts. It stays as it is when it is none, or cannot be.
pub(crate) fn adopt_from_kernel(fd: i32) {
    let option = |name| sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, name);
    let is_listening =
        option(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP) && option(libc::SO_ACCEPTCONN) == Ok(1);
    let Some((domain, name)) = addr::kernel_name(fd).filter(|_| is_listening && !table::is_ours(fd)) else {
        return;
    };
    let Some(endpoint) = crate::control::connected().and_then(|control| {
        drop(control);
        crate::endpoint::allocate(domain)
    }) else {
        return;
    };
    let flags = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as c_int;
    endpoint.set_flag(OWN_SOCKET | HAS_NAME | if flags & libc::O_NONBLOCK != 0 { NONBLOCK } else { 0 });
    endpoint.fd.store(fd, Ordering::Relaxed);
    addr::store(&endpoint.local, name.ip);
    endpoint.ports.store(u32::from(name.port) << 16, Ordering::Relaxed);
    endpoint.set_state(State::Listen);
    match adopt(endpoint).filter(|_| table::set_socket(fd, endpoint)) {
        Some(listener) => {
            set_kernel_nonblock(fd, true);
            // What listen was told cannot be asked; the kernel's queue bounds what it takes.
            listener.backlog.store(clamp_backlog(c_int::MAX), Ordering::Relaxed);
        }
        None => crate::endpoint::release(endpoint),
    }
}

/// Linux compares as unsigned with net.core.somaxconn, 4096 by default.
fn clamp_backlog(backlog: c_int) -> u32 {
    (backlog as u32).min(4096)
}

/// Our own accept must never block in the kernel; the program's view is in the endpoint's flags.
fn set_kernel_nonblock(fd: i32, on: bool) {
    if let Ok(flags) = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0) {
        let bit = libc::O_NONBLOCK as usize;
        let flags = if on { flags | bit } else { flags & !bit };
        let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, flags);
    }
}

/// A record for a new listener, an old one if there is any.
fn adopt(endpoint: &'static Endpoint) -> Option<&'static Listener> {
    let private = PROCESS.private(endpoint)?;
    let mut registry = REGISTRY.lock();
    let listener = match registry.iter().find(|l| l.endpoint.lock().is_none()) {
        Some(old) => *old,
        None => {
            let fresh: &'static Listener = Box::leak(Box::new(Listener {
                endpoint: Lock::new(None),
                index: AtomicU32::new(UNREGISTERED),
                generation: AtomicU32::new(0),
                backlog: AtomicU32::new(0),
                accepting: AtomicBool::new(false),
                interested: AtomicBool::new(false),
                queue: Lock::new(VecDeque::new()),
                spin: AtomicU32::new(0),
            }));
            registry.push(fresh);
            fresh
        }
    };
    *listener.endpoint.lock() = Some(endpoint);
    listener.interested.store(false, Ordering::Relaxed);
    private.listener.store(core::ptr::from_ref(listener).cast_mut(), Ordering::Release);
    Some(listener)
}

/// Publishes the listener in the public page and tells the monitor.
fn register(listener: &'static Listener, fd: i32) {
    let Some(control) = crate::control::connected() else { return };
    drop(control);
    let Some(public) = PROCESS.public() else { return };
    if listener.index.load(Ordering::Relaxed) == UNREGISTERED {
        let taken =
            |i: usize| public.listeners.get(i).is_none_or(|l| l.generation.load(Ordering::Relaxed) & 1 == 1);
        let Some(index) = (0..LISTENERS).find(|&i| !taken(i)) else { return };
        let Some(page) = public.listeners.get(index) else { return };
        let generation = page.generation.load(Ordering::Relaxed).wrapping_add(1) | 1;
        page.pending.store(0, Ordering::Relaxed);
        listener.index.store(index as u32, Ordering::Relaxed);
        listener.generation.store(generation, Ordering::Relaxed);
        page.generation.store(generation, Ordering::Release);
    }
    let index = listener.index.load(Ordering::Relaxed);
    if let Some(page) = public.listeners.get(index as usize) {
        page.backlog.store(listener.backlog.load(Ordering::Relaxed), Ordering::Release);
    }
    let _ = crate::control::question(&request(listener), &[fd]);
}

fn request(listener: &Listener) -> Request {
    Request::Listen {
        index: listener.index.load(Ordering::Relaxed),
        generation: listener.generation.load(Ordering::Relaxed),
        backlog: listener.backlog.load(Ordering::Relaxed),
        accepting: listener.accepting.load(Ordering::Relaxed),
    }
}

/// All listeners, to a restarted monitor.
pub(crate) fn announce_all(tell: impl Fn(&Request, i32) -> bool) {
    for listener in REGISTRY.lock().iter() {
        let Some(endpoint) = *listener.endpoint.lock() else { continue };
        if listener.index.load(Ordering::Relaxed) != UNREGISTERED {
            crate::connect::each_fd(endpoint, |fd| {
                tell(&request(listener), fd);
            });
        }
    }
}

/// This process is going to accept from the listener: connections may be dealt to it.
pub(crate) fn interested(endpoint: &'static Endpoint, fd: i32) {
    let listener = match record(endpoint) {
        Some(listener) => listener,
        None => return,
    };
    if listener.interested.load(Ordering::Relaxed) && listener.index.load(Ordering::Relaxed) != UNREGISTERED {
        return;
    }
    listener.interested.store(true, Ordering::Relaxed);
    let accepting = listener.accepting.swap(true, Ordering::Relaxed);
    if !accepting || listener.index.load(Ordering::Relaxed) == UNREGISTERED {
        register(listener, fd);
    }
}

/// Whether a connection waits in our backlog.
pub(crate) fn has_pending(endpoint: &Endpoint) -> bool {
    record(endpoint).is_some_and(|l| !l.queue.lock().is_empty())
}

/// The last descriptor of this process is closed: who waits is refused.
pub(crate) fn forget(private: &Priv) {
    let listener = private.listener.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: null or a record that is never freed.
    let Some(listener) = (unsafe { listener.as_ref() }) else { return };
    let index = listener.index.swap(UNREGISTERED, Ordering::AcqRel);
    if let Some(page) = PROCESS.public().and_then(|p| p.listeners.get(index as usize)) {
        page.generation.store(listener.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        sd_ring::fence_full();
        crate::control::tell(&Request::Unlisten { index }, &[]);
    }
    channel::drain();
    let waiting = core::mem::take(&mut *listener.queue.lock());
    for pending in waiting {
        // A child that never registered has a copy of its parent's backlog, not its own.
        if index != UNREGISTERED {
            refuse(pending.channel, pending.slot, pending.generation);
        }
        pending.channel.unused();
    }
    *listener.endpoint.lock() = None;
}

/// The socket stops listening though its number stays open: shutdown, or connect to AF_UNSPEC.
pub(crate) fn stop(endpoint: &'static Endpoint) {
    if let Some(private) = PROCESS.private(endpoint) {
        forget(private);
    }
    endpoint.set_state(State::Bound);
}

/// Before a fork: unless this process has shown that it accepts, its children will, so the
/// monitor must not deal connections to it any more.
pub(crate) fn before_fork() {
    let idle: Vec<&'static Listener> = REGISTRY
        .lock()
        .iter()
        .filter(|l| l.accepting.load(Ordering::Relaxed) && !l.interested.load(Ordering::Relaxed))
        .copied()
        .collect();
    for listener in idle {
        let Some(endpoint) = *listener.endpoint.lock() else { continue };
        listener.accepting.store(false, Ordering::Relaxed);
        crate::connect::each_fd(endpoint, |fd| {
            let _ = crate::control::question(&request(listener), &[fd]);
        });
    }
    channel::drain();
}

/// Keeps the registry unchanged across a fork.
pub(crate) fn keep_lock() {
    REGISTRY.lock_and_keep();
}

/// Ends `keep_lock`.
///
/// # Safety
/// The calling thread (or the one it is a copy of) called `keep_lock`.
pub(crate) unsafe fn unlock() {
    // SAFETY: promised by the caller.
    unsafe { REGISTRY.unlock() };
}

/// In the child of a fork: not registered yet. What waited at the time may be accepted by either.
pub(crate) fn forked() {
    for listener in REGISTRY.lock().iter() {
        // SAFETY: the child has one thread.
        unsafe {
            listener.queue.force_unlock();
            listener.endpoint.force_unlock();
        }
        listener.index.store(UNREGISTERED, Ordering::Relaxed);
        listener.accepting.store(false, Ordering::Relaxed);
        listener.interested.store(false, Ordering::Relaxed);
    }
}

/// A listener for the next image of the process.
pub(crate) struct Exported {
    /// Its number with the monitor, or UNREGISTERED.
    pub(crate) index: u32,
    pub(crate) backlog: u32,
    pub(crate) waiting: Vec<Pending>,
}

/// Before exec: peers find the listeners closed and ask the monitor; who knocked before is taken in.
pub(crate) fn suspend() {
    set_generations(1);
    sd_ring::fence_full();
    channel::drain();
}

/// The exec has failed.
pub(crate) fn resume() {
    set_generations(0);
}

fn set_generations(ahead: u32) {
    for listener in REGISTRY.lock().iter() {
        let index = listener.index.load(Ordering::Relaxed);
        if let Some(page) = PROCESS.public().and_then(|p| p.listeners.get(index as usize)) {
            let generation = listener.generation.load(Ordering::Relaxed).wrapping_add(ahead);
            page.generation.store(generation, Ordering::Release);
        }
    }
}

/// All listeners.
pub(crate) fn exported() -> Vec<(&'static Endpoint, Exported)> {
    let export = |listener: &&'static Listener| {
        let endpoint = *listener.endpoint.lock();
        let exported = Exported {
            index: listener.index.load(Ordering::Relaxed),
            backlog: listener.backlog.load(Ordering::Relaxed),
            waiting: listener.queue.lock().iter().copied().collect(),
        };
        endpoint.map(|endpoint| (endpoint, exported))
    };
    REGISTRY.lock().iter().filter_map(export).collect()
}

/// In a new image: a listener of the one before. Without `endpoint` the exec has closed it, and who waits is
/// refused; else it will be registered again when the program shows that it accepts.
pub(crate) fn import(exported: Exported, endpoint: Option<&'static Endpoint>) {
    let Exported { index, backlog, waiting, .. } = exported;
    if index != UNREGISTERED {
        crate::control::unlisten_before_hello(index);
    }
    match endpoint.and_then(adopt) {
        Some(listener) => {
            listener.backlog.store(backlog, Ordering::Relaxed);
            listener.queue.lock().extend(waiting);
        }
        None => {
            for Pending { channel, slot, generation } in waiting {
                if index != UNREGISTERED {
                    refuse(channel, slot, generation);
                }
                channel.unused();
            }
        }
    }
}

/// A slot without an endpoint was announced: a new connection, or an old story.
pub(crate) fn arrived(channel: &'static Channel, slot: usize) {
    let words = channel.map.slot(slot);
    let (generation, state) = words.side[0].state();
    if channel.side != sd_shm::channel::Side::B
        || !matches!(state, SlotState::Syn | SlotState::Closed)
        || words.side[1].state().0 == generation
    {
        return;
    }
    let index = words.side[0].listener.load(Ordering::Relaxed);
    let listener_generation = words.side[0].listener_gen.load(Ordering::Relaxed);
    let found = REGISTRY.lock().iter().copied().find(|l| {
        l.index.load(Ordering::Relaxed) == index
            && l.generation.load(Ordering::Relaxed) == listener_generation
            && index != UNREGISTERED
    });
    let Some(listener) = found else { return refuse(channel, slot, generation) };
    let mut queue = listener.queue.lock();
    // An event may be repeated; a connection is queued once.
    if !queue.iter().any(|p| core::ptr::eq(p.channel, channel) && p.slot == slot) {
        channel.used();
        queue.push_back(Pending { channel, slot, generation });
    }
    publish_pending(listener, queue.len());
    drop(queue);
    let endpoint = *listener.endpoint.lock();
    if let Some(endpoint) = endpoint {
        crate::epoll::endpoint_event(endpoint);
    }
}

pub(crate) fn publish_pending(listener: &Listener, pending: usize) {
    let index = listener.index.load(Ordering::Relaxed) as usize;
    if let Some(page) = PROCESS.public().and_then(|p| p.listeners.get(index)) {
        page.pending.store(pending as u32, Ordering::Release);
    }
}

/// Tells A that nobody listens (any more).
pub(crate) fn refuse(channel: &'static Channel, slot: usize, generation: u32) {
    let words = channel.map.slot(slot);
    words.side[1].flags.store(FLAG_RESET, Ordering::Release);
    words.side[1].set_state(generation, SlotState::Refused);
    let fired = doorbell::ring(&words.side[0].wait, ALL_BITS);
    if fired & (doorbell::RX_SLEEP | doorbell::TX_SLEEP) != 0 {
        sd_sys::futex::wake(&words.side[0].wait, i32::MAX, sd_sys::futex::Scope::Shared);
    }
    if fired & (doorbell::RX_EVENT | doorbell::TX_EVENT) != 0 {
        words.side[1].announced.store(sd_sys::time::tsc(), Ordering::Relaxed);
        channel.map.events(channel.side.other()).post(slot);
        channel.wake_peer();
    }
}
