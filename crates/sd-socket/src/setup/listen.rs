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
use crate::backlog::arrivals::{each_waiting, refuse};
use crate::backlog::listener::{Listener, Pending, REGISTRY, UNREGISTERED, record};
use crate::fd::table;
use crate::link::channel::Channel;
use crate::link::outstanding::asked_for;
use crate::process::{PROCESS, Priv};
use crate::setup::first_contact::Announced;
use crate::socket::addr;
use crate::socket::endpoint::{EndpointExt, HAS_NAME, KEEPS_ADDRESS, NONBLOCK, OWN_SOCKET, SHUT_RD, SHUT_WR};
use crate::socket::handle::Socket;
use crate::socket::kernel_socket::materialize;
use crate::socket::life::Ended;
use crate::socket::mptcp;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use libc::c_int;
use sd_proto::Request;
use sd_shm::public::{Listener as Page, Public};
use sd_shm::slab::{End, Endpoint, Reason, State};
use sd_sys::Errno;
use sd_sys::lock::Lock;

/// listen(2).
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Outcome<c_int> {
    crate::setup::first::becomes_ours(fd);
    let _within = crate::link::reclaim::change();
    let Some(endpoint) = table::socket(fd) else { return crate::setup::before_monitor::listen(fd, backlog) };
    match endpoint.state_now() {
        State::Fresh | State::Bound | State::Listen => {}
        State::Connected | State::Connecting | State::Failed => return Outcome::Errno(Errno::EINVAL),
        _ => return Outcome::Kernel,
    }
    if let Err(errno) = materialize(endpoint) {
        return Outcome::Errno(errno);
    }
    let wants_stamps = crate::socket::notes::wants_stamps(endpoint) && record(endpoint).is_none();
    let is_first = endpoint.state_now() != State::Listen && !wants_stamps;
    let announced =
        if is_first { crate::setup::first_contact::announce(endpoint, fd) } else { Announced::No };
    // SAFETY: no pointers.
    if let Err(e) = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_listen, fd, backlog) }) {
        if is_first {
            PROCESS.private(endpoint).and_then(forget).into_iter().for_each(ended);
        }
        return Outcome::Errno(e);
    }
    if wants_stamps {
        return crate::setup::to_kernel::demote(endpoint, Reason::Option).map(|()| 0).into();
    }
    set_kernel_nonblock(fd, true);
    if let Some((_, name)) = addr::kernel_name(fd) {
        crate::socket::cold::set_ip(endpoint, End::Local, name.ip);
        endpoint.ports.store(u32::from(name.port) << 16, Ordering::Relaxed);
    }
    let listener = record(endpoint).or_else(|| adopt(endpoint));
    endpoint.set_state(State::Listen);
    crate::epoll::became_listener(endpoint);
    if let Some(listener) = listener {
        listener.note_address(endpoint);
        listener.set_backlog(clamp_backlog(backlog));
        listener.accepting.store(true, Ordering::Relaxed);
        listener.defer.store(crate::backlog::defer::seconds(fd), Ordering::Relaxed);
        register(listener, fd, announced);
    }
    Outcome::Done(0)
}

/// A kernel listener that came from elsewhere, by SCM_RIGHTS or from a starter without us: connections to it are
/// accelerated from the time that this process accepts. It stays as it is when it is none, or cannot be.
pub(crate) fn adopt_from_kernel(fd: i32) {
    let is_listening = mptcp::is_stream(fd)
        && sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1);
    // Without a monitor as well: one may come.
    if is_listening && !table::is_ours(fd) && crate::setup::before_monitor::may_be_taken_up() {
        // What listen was told cannot be asked; the kernel's queue bounds what it takes.
        take_up(fd, c_int::MAX);
    }
}

/// Takes up a kernel socket that surely is a listener, or is about to become one, in a process that has a slab.
pub(super) fn take_up(fd: i32, backlog: c_int) -> Option<&'static Endpoint> {
    let (domain, name) = addr::kernel_name(fd)?;
    let Socket { endpoint, .. } = crate::socket::life::allocate(domain)?;
    let flags = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as c_int;
    endpoint.set_flag(if name.ip.is_unspecified() { 0 } else { KEEPS_ADDRESS });
    endpoint.set_flag(OWN_SOCKET | HAS_NAME | if flags & libc::O_NONBLOCK != 0 { NONBLOCK } else { 0 });
    endpoint.fd.store(fd, Ordering::Relaxed);
    crate::setup::remember::recall(endpoint, fd);
    crate::socket::cold::set_ip(endpoint, End::Local, name.ip);
    endpoint.ports.store(u32::from(name.port) << 16, Ordering::Relaxed);
    endpoint.set_state(State::Listen);
    match adopt(endpoint).filter(|_| table::set_socket(fd, endpoint)) {
        Some(listener) => {
            set_kernel_nonblock(fd, true);
            listener.set_backlog(clamp_backlog(backlog));
            listener.defer.store(crate::backlog::defer::seconds(fd), Ordering::Relaxed);
            Some(endpoint)
        }
        None => {
            crate::socket::life::release(endpoint);
            None
        }
    }
}

/// The opposite of [`take_up`].
pub(super) fn give_back(endpoint: &'static Endpoint, fd: i32) {
    table::clear(fd);
    set_kernel_nonblock(fd, endpoint.flag(NONBLOCK));
    crate::socket::life::release(endpoint);
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
pub(crate) fn adopt(endpoint: &'static Endpoint) -> Option<&'static Listener> {
    crate::monitor::client::listens();
    let socket = Socket::of(endpoint)?;
    let mut registry = REGISTRY.lock();
    let listener = match registry.iter().find(|l| l.socket.lock().is_none()) {
        Some(old) => *old,
        None => {
            let fresh: &'static Listener = Box::leak(Box::new(Listener {
                socket: Lock::new(None),
                index: AtomicU32::new(UNREGISTERED),
                generation: AtomicU32::new(0),
                backlog: AtomicU32::new(0),
                backlog_most: AtomicU32::new(0),
                accepting: AtomicBool::new(false),
                interested: AtomicBool::new(false),
                defer: AtomicU32::new(0),
                queue: Lock::new(VecDeque::new()),
                spin: AtomicU32::new(0),
                address: [const { AtomicU64::new(0) }; 2],
            }));
            registry.push(fresh);
            fresh
        }
    };
    *listener.socket.lock() = Some(socket);
    listener.note_address(endpoint);
    listener.backlog_most.store(0, Ordering::Relaxed);
    listener.interested.store(false, Ordering::Relaxed);
    socket.private.set_listener(listener);
    Some(listener)
}

/// A record and a place in the public page for a socket that is going to listen. Its index; `None` without a monitor.
pub(super) fn prepare(endpoint: &'static Endpoint) -> Option<u32> {
    crate::monitor::spare::want();
    drop(crate::monitor::client::connected()?);
    let listener = record(endpoint).or_else(|| adopt(endpoint))?;
    listener.accepting.store(false, Ordering::Relaxed);
    publish(listener, PROCESS.public()?)?;
    Some(listener.index.load(Ordering::Relaxed))
}

/// Publishes the listener in the public page and tells the monitor: without waiting for it, and without the descriptor, where
/// it knows of the socket.
fn register(listener: &'static Listener, fd: i32, announced: Announced) {
    crate::monitor::spare::want();
    let Some(control) = crate::monitor::client::connected() else {
        return crate::setup::before_monitor::wait(fd);
    };
    drop(control);
    let Some(page) = PROCESS.public().and_then(|public| publish(listener, public)) else { return };
    page.backlog.store(listener.public_backlog(), Ordering::Release);
    if announced.holds() {
        let Request::Listen { index, generation, backlog, .. } = request(listener) else { return };
        return crate::monitor::client::tell(&Request::Listens { index, generation, backlog }, &[]);
    }
    let _ = crate::monitor::client::question(&request(listener), &[fd]);
}

/// The listener's place in the public page; taken once, though several threads may begin to wait at the same time.
pub(super) fn publish(listener: &Listener, public: &'static Public) -> Option<&'static Page> {
    let _alone = REGISTRY.lock();
    let index = listener.index.load(Ordering::Relaxed);
    if index != UNREGISTERED {
        return public.listeners.get(index as usize);
    }
    let is_free = |page: &Page| page.generation.load(Ordering::Relaxed) & 1 == 0;
    let (index, page) = public.listeners.iter().enumerate().find(|(_, page)| is_free(page))?;
    let generation = page.generation.load(Ordering::Relaxed).wrapping_add(1) | 1;
    page.pending.store(0, Ordering::Relaxed);
    listener.generation.store(generation, Ordering::Relaxed);
    listener.index.store(index as u32, Ordering::Relaxed);
    page.generation.store(generation, Ordering::Release);
    Some(page)
}

pub(super) fn request(listener: &Listener) -> Request {
    Request::Listen {
        index: listener.index.load(Ordering::Relaxed),
        generation: listener.generation.load(Ordering::Relaxed),
        backlog: listener.backlog.load(Ordering::Relaxed),
        accepting: listener.accepting.load(Ordering::Relaxed),
    }
}

/// epoll_ctl is about to watch what is behind a number.
pub(crate) fn watched(fd: i32) {
    if let Some(endpoint) = table::socket(fd).filter(|endpoint| endpoint.state_now() == State::Listen) {
        interested(endpoint, fd);
    }
}

/// This process is going to accept from the listener: connections may be dealt to it.
pub(crate) fn interested(endpoint: &'static Endpoint, fd: i32) {
    record(endpoint).into_iter().for_each(|listener| interested_in(listener, fd));
}

/// As [`interested`], by the listener's record.
#[inline]
pub(super) fn interested_in(listener: &'static Listener, fd: i32) {
    if listener.interested.load(Ordering::Relaxed) && listener.index.load(Ordering::Relaxed) != UNREGISTERED {
        return;
    }
    listener.interested.store(true, Ordering::Relaxed);
    let accepting = listener.accepting.swap(true, Ordering::Relaxed);
    if !accepting || listener.index.load(Ordering::Relaxed) == UNREGISTERED {
        register(listener, fd, Announced::No);
    }
}

/// The last descriptor of this process is closed: no client takes the listener for open any more.
/// [`ended`] must follow.
pub(crate) fn forget(private: &Priv) -> Option<Ended> {
    let listener = private.take_listener()?;
    let index = listener.index.swap(UNREGISTERED, Ordering::AcqRel);
    let generation = listener.generation.load(Ordering::Relaxed);
    if let Some(page) = PROCESS.public().and_then(|p| p.listeners.get(index as usize)) {
        // Odd: nobody else's, until the monitor knows of the end.
        page.generation.store(generation.wrapping_add(2), Ordering::Release);
        // A client that asks later sees this and withdraws; who asked before is found by the monitor.
        // SYNC POINT: end of a listener, with `listener_is_gone` in crates/sd-socket/src/setup/connect.rs.
        sd_ring::fence_full();
    }
    let queue = core::mem::take(&mut *listener.queue.lock());
    queue.iter().for_each(Pending::taken);
    *listener.socket.lock() = None;
    Some(Ended { index, generation })
}

/// No client takes a listener of this process for open any more. False, and they are open: somebody waits to be accepted.
pub(crate) fn shut_all() -> bool {
    let listeners = REGISTRY.lock().clone();
    let say = |by: u32| {
        for listener in &listeners {
            let index = listener.index.load(Ordering::Relaxed) as usize;
            if let Some(page) = PROCESS.public().and_then(|public| public.listeners.get(index)) {
                page.generation
                    .store(listener.generation.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
            }
        }
    };
    say(2);
    // SYNC POINT: end of a listener, with `listener_is_gone` in crates/sd-socket/src/setup/connect.rs.
    sd_ring::fence_full();
    crate::epoll::drain();
    let is_empty = listeners.iter().all(|listener| listener.queue.lock().is_empty());
    if !is_empty {
        say(0);
    }
    is_empty
}

/// Who waits for accept goes to others that listen there, or is refused: by the monitor, which knows
/// the others, or else by us.
pub(crate) fn ended(Ended { index, generation }: Ended) {
    if index == UNREGISTERED {
        // Perhaps the last one that had the socket open.
        return crate::monitor::client::tell(&Request::Accepting { index, accepting: false }, &[]);
    }
    let told = crate::monitor::client::question(&Request::Unlisten { index }, &[]).is_some();
    if let Some(page) = PROCESS.public().and_then(|p| p.listeners.get(index as usize)) {
        let (ending, free) = (generation.wrapping_add(2), generation.wrapping_add(3));
        let _ = page.generation.compare_exchange(ending, free, Ordering::AcqRel, Ordering::Relaxed);
    }
    if told {
        return;
    }
    let _user = crate::link::reclaim::User::enter();
    let own = |c: &&'static Channel| c.side == sd_shm::channel::Side::B && c.adopter == 0;
    for channel in PROCESS.channels().filter(own).filter(|c| !c.inherited.load(Ordering::Relaxed)) {
        each_waiting(channel, |slot, slot_generation| {
            if asked_for(channel, slot) == (index, generation) {
                refuse(channel, slot, slot_generation);
            }
        });
    }
}

/// The socket stops listening though its number stays open: shutdown, or connect to AF_UNSPEC.
pub(super) fn stop(endpoint: &'static Endpoint) {
    endpoint.set_state(State::Bound);
    endpoint.clear_flag(SHUT_RD | SHUT_WR);
    if let Some(end) = PROCESS.private(endpoint).and_then(forget) {
        ended(end);
    }
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
        let Some(socket) = *listener.socket.lock() else { continue };
        listener.accepting.store(false, Ordering::Relaxed);
        crate::socket::kernel_socket::each_fd(socket.endpoint, |fd| {
            let _ = crate::monitor::client::question(&request(listener), &[fd]);
        });
    }
    crate::epoll::drain();
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
            listener.socket.force_unlock();
        }
        listener.index.store(UNREGISTERED, Ordering::Relaxed);
        listener.accepting.store(false, Ordering::Relaxed);
        listener.interested.store(false, Ordering::Relaxed);
    }
}
