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
use crate::fd::table;
use crate::link::channel::{self, Channel};
use crate::link::outstanding::asked_for;
use crate::process::{LISTENER, PROCESS, Priv};
use crate::setup::arrivals::{each_waiting, publish_pending, refuse};
use crate::setup::defer::{Since, is_ripe};
use crate::setup::first_contact::Announced;
use crate::socket::addr;
use crate::socket::endpoint::{EndpointExt, HAS_NAME, KEEPS_ADDRESS, NONBLOCK, OWN_SOCKET, SHUT_RD, SHUT_WR};
use crate::socket::kernel_socket::materialize;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use libc::c_int;
use sd_proto::{Ip, Request};
use sd_shm::public::{LISTENERS, Listener as Page, Public};
use sd_shm::slab::{End, Endpoint, Reason, State};
use sd_sys::Errno;
use sd_sys::lock::Lock;
use std::collections::VecDeque;

/// A connection that waits for accept.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) channel: &'static Channel,
    pub(crate) slot: usize,
    pub(crate) generation: u32,
    /// When it came, where TCP_DEFER_ACCEPT is set.
    pub(crate) since: Since,
}

/// Private record of a listener; recycled, never freed, since a thread may be inside accept.
pub(crate) struct Listener {
    pub(crate) endpoint: Lock<Option<&'static Endpoint>>,
    /// Index in the public page; LISTENERS when not registered.
    pub(crate) index: AtomicU32,
    pub(crate) generation: AtomicU32,
    pub(crate) backlog: AtomicU32,
    /// The largest that it was.
    pub(super) backlog_most: AtomicU32,
    /// The monitor may deal connections to us.
    accepting: AtomicBool,
    /// accept, poll or epoll was called for it in this process.
    pub(super) interested: AtomicBool,
    /// TCP_DEFER_ACCEPT, in seconds.
    pub(super) defer: AtomicU32,
    pub(crate) queue: Lock<VecDeque<Pending>>,
    pub(super) spin: AtomicU32,
    /// The address that it was bound to, which accept compares with each connection's.
    address: [AtomicU64; 2],
}

impl Listener {
    /// Its address, whatever it is by now.
    pub(crate) fn ip(&self) -> Ip {
        addr::load(&self.address)
    }

    pub(crate) fn set_backlog(&self, backlog: u32) {
        self.backlog_most.fetch_max(backlog, Ordering::Relaxed);
        self.backlog.store(backlog, Ordering::Relaxed);
    }

    /// What others have accepted meanwhile does not wait here any more.
    pub(super) fn drop_taken(&self) {
        let mut queue = self.queue.lock();
        queue.retain(|pending| {
            let waits = pending.waits();
            if !waits {
                pending.taken();
            }
            waits
        });
        publish_pending(self, queue.len());
    }

    fn note_address(&self, endpoint: &Endpoint) {
        let halves = crate::socket::cold::ip(endpoint, End::Local).halves();
        self.address.iter().zip(halves).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
    }
}

pub(crate) static REGISTRY: Lock<Vec<&'static Listener>> = Lock::new(Vec::new());
pub(crate) const UNREGISTERED: u32 = LISTENERS as u32;

/// The listener record of an endpoint.
pub(super) fn record(endpoint: &Endpoint) -> Option<&'static Listener> {
    PROCESS.private(endpoint)?.listener()
}

/// How many connections may wait at a listener of ours.
pub(crate) fn backlog(endpoint: &Endpoint) -> Option<u32> {
    record(endpoint).map(|listener| listener.backlog.load(Ordering::Relaxed))
}

/// For one that is not registered yet.
pub(crate) fn set_backlog(endpoint: &Endpoint, backlog: u32) {
    if let Some(listener) = record(endpoint) {
        listener.set_backlog(backlog);
    }
}

/// listen(2).
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Outcome<c_int> {
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
        return crate::setup::connect::demote(endpoint, Reason::Option).map(|()| 0).into();
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
        listener.defer.store(crate::setup::defer::seconds(fd), Ordering::Relaxed);
        register(listener, fd, announced);
    }
    Outcome::Done(0)
}

/// A kernel listener that came from elsewhere, by SCM_RIGHTS or from a starter without us: connections to it are
/// accelerated from the time that this process accepts. It stays as it is when it is none, or cannot be.
pub(crate) fn adopt_from_kernel(fd: i32) {
    let option = |name| sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, name);
    let is_listening =
        option(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP) && option(libc::SO_ACCEPTCONN) == Ok(1);
    // Without a monitor as well: one may come.
    let may_be_ours =
        || crate::monitor::client::connected().is_some() || crate::setup::before_monitor::is_ready();
    if is_listening && !table::is_ours(fd) && may_be_ours() {
        // What listen was told cannot be asked; the kernel's queue bounds what it takes.
        take_up(fd, c_int::MAX);
    }
}

/// Takes up a kernel socket that surely is a listener, or is about to become one, in a process that has a slab.
pub(super) fn take_up(fd: i32, backlog: c_int) -> Option<&'static Endpoint> {
    let (domain, name) = addr::kernel_name(fd)?;
    let endpoint = crate::socket::endpoint::allocate(domain)?;
    let flags = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as c_int;
    endpoint.set_flag(if name.ip.is_unspecified() { 0 } else { KEEPS_ADDRESS });
    endpoint.set_flag(OWN_SOCKET | HAS_NAME | if flags & libc::O_NONBLOCK != 0 { NONBLOCK } else { 0 });
    endpoint.fd.store(fd, Ordering::Relaxed);
    crate::options::recall(endpoint, fd);
    crate::socket::cold::set_ip(endpoint, End::Local, name.ip);
    endpoint.ports.store(u32::from(name.port) << 16, Ordering::Relaxed);
    endpoint.set_state(State::Listen);
    match adopt(endpoint).filter(|_| table::set_socket(fd, endpoint)) {
        Some(listener) => {
            set_kernel_nonblock(fd, true);
            listener.set_backlog(clamp_backlog(backlog));
            listener.defer.store(crate::setup::defer::seconds(fd), Ordering::Relaxed);
            Some(endpoint)
        }
        None => {
            crate::socket::endpoint::release(endpoint);
            None
        }
    }
}

/// The opposite of [`take_up`].
pub(super) fn give_back(endpoint: &'static Endpoint, fd: i32) {
    table::clear(fd);
    set_kernel_nonblock(fd, endpoint.flag(NONBLOCK));
    crate::socket::endpoint::release(endpoint);
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
    *listener.endpoint.lock() = Some(endpoint);
    listener.note_address(endpoint);
    listener.backlog_most.store(0, Ordering::Relaxed);
    listener.interested.store(false, Ordering::Relaxed);
    private.set_listener(listener);
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
    page.backlog.store(listener.backlog.load(Ordering::Relaxed), Ordering::Release);
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
        register(listener, fd, Announced::No);
    }
}

/// How many of our connections wait for accept at the listener's socket, in this process and others: as the monitor knows, which
/// sees also what they have not looked at, or as this process does.
pub(crate) fn waiting(endpoint: &Endpoint) -> u32 {
    let Some(listener) = record(endpoint) else { return 0 };
    channel::drain();
    let index = listener.index.load(Ordering::Relaxed);
    let asks = index != UNREGISTERED && crate::monitor::client::is_there();
    match asks.then(|| crate::monitor::client::question(&Request::Waiting { index }, &[])).flatten() {
        Some((sd_proto::Reply::Waiting { count }, _)) => count,
        _ => {
            listener.drop_taken();
            listener.queue.lock().len() as u32
        }
    }
}

/// Whether a connection waits in our backlog that nobody else has accepted meanwhile.
pub(crate) fn has_pending(endpoint: &Endpoint) -> bool {
    record(endpoint).is_some_and(|listener| {
        let mut queue = listener.queue.lock();
        while let Some(first) = queue.front().filter(|first| !first.waits()) {
            first.taken();
            queue.pop_front();
            publish_pending(listener, queue.len());
        }
        queue.iter().any(|pending| is_ripe(&listener.defer, pending))
    })
}

impl Pending {
    /// Nobody has accepted it, or taken it back.
    pub(crate) fn waits(&self) -> bool {
        let [a, b] = &self.channel.map.slot(self.slot).side;
        a.state().0 == self.generation && b.state().0 != self.generation
    }

    /// It is in no backlog any more.
    pub(super) fn taken(&self) {
        self.channel.queued.remove(self.slot, self.generation);
        self.channel.unused();
    }
}

/// A listener that this process has no more; what is to be told of it when its endpoint is given up.
pub(crate) struct Ended {
    index: u32,
    generation: u32,
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
        sd_ring::fence_full();
    }
    let queue = core::mem::take(&mut *listener.queue.lock());
    queue.iter().for_each(Pending::taken);
    *listener.endpoint.lock() = None;
    Some(Ended { index, generation })
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
        let Some(endpoint) = *listener.endpoint.lock() else { continue };
        listener.accepting.store(false, Ordering::Relaxed);
        crate::socket::kernel_socket::each_fd(endpoint, |fd| {
            let _ = crate::monitor::client::question(&request(listener), &[fd]);
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

impl Priv {
    /// Its listener record.
    #[inline]
    pub(crate) fn listener(&self) -> Option<&'static Listener> {
        let role = self.role.load(Ordering::Acquire);
        let record = role.map_addr(|address| address & !LISTENER).cast::<Listener>();
        // SAFETY: set by `set_listener` to a record that is never freed.
        if role.addr() & LISTENER != 0 { unsafe { record.as_ref() } } else { None }
    }

    pub(crate) fn set_listener(&self, listener: &'static Listener) {
        let record = core::ptr::from_ref(listener).cast_mut().cast::<u8>();
        self.role.store(record.map_addr(|address| address | LISTENER), Ordering::Release);
    }

    /// Takes its listener record away.
    pub(crate) fn take_listener(&self) -> Option<&'static Listener> {
        let listener = self.listener()?;
        let record = core::ptr::from_ref(listener).cast_mut().cast::<u8>();
        let role = record.map_addr(|address| address | LISTENER);
        let none = core::ptr::null_mut();
        self.role.compare_exchange(role, none, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| listener)
    }
}
