//! accept(2): from our backlog, or from the kernel's.

use crate::Outcome;
use crate::backlog::arrivals::{WaitsInAccept, refuse, tell_owners};
use crate::backlog::beside;
use crate::backlog::defer::is_ripe;
use crate::backlog::listener::{Listener, Pending, has_pending, publish_pending, record};
use crate::fd::table;
use crate::process::PROCESS;
use crate::process::stats::{Counter, count};
use crate::process::waker::Sleeper;
use crate::setup::admission::{self, Verdict};
use crate::setup::listen::interested_in;
use crate::setup::withdrawn;
use crate::socket::addr::{self, Name};
use crate::socket::cold;
use crate::socket::endpoint::{self, EndpointExt, INQ, NONBLOCK, SHUT_RD, SHUT_WR};
use crate::socket::handle::Socket;
use crate::socket::kernel_socket::{dropped_behind_our_back, note_names, number};
use crate::socket::pin::PinnedListener;
use crate::socket::road::promotes;
use crate::socket::{life, mptcp};
use crate::wait::duties::{On, Waiting};
use crate::wait::sleep_set::SleepSet;
use crate::wait::{Deadline, earlier, interrupted};
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{c_int, sockaddr, socklen_t};
use sd_shm::channel::{FLAG_MPTCP, SlotState};
use sd_shm::slab::{End, Endpoint, Promotes, Reason, State};
use sd_sys::Errno;
use sd_sys::section::Watch;
use sd_sys::time::ticks;

/// accept(2) and accept4(2).
pub(crate) unsafe fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Outcome<c_int> {
    // As on Linux, before anything is accepted.
    if sd_sys::numbers::are_used_up(0) && sd_sys::fd::fcntl(fd, libc::F_GETFD, 0).is_ok() {
        return Outcome::Errno(Errno::EMFILE);
    }
    let Some(socket) = Socket::at(fd) else { return Outcome::Kernel };
    let endpoint = socket.endpoint;
    match endpoint.state_now() {
        State::Listen => {}
        State::Fresh | State::Bound | State::Connected | State::Connecting | State::Failed => {
            return Outcome::Errno(Errno::EINVAL);
        }
        _ => return Outcome::Kernel,
    }
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Outcome::Errno(Errno::EINVAL);
    }
    crate::route::leave::sweep(crate::epoll::take_in);
    let listener = socket.private.listener();
    listener.inspect(|listener| interested_in(listener, fd));
    let deadline = Deadline::option(cold::of(endpoint).rx_timeout_ns.load(Ordering::Relaxed));
    let watch = Watch::start();
    let mut wait: Option<(PinnedListener, Waiting)> = None;
    let mut brought = 0;
    loop {
        let kernel_fd = wait.as_ref().map_or(Some(fd), |(kept, _)| kept.fd(fd));
        crate::epoll::drain();
        if let Some(listener) = listener
            // SAFETY: the caller vouches for its address buffer.
            && let Some(done) = unsafe { accept_ours((socket, listener), addr, len, flags) }
        {
            return done;
        }
        let buffer = (addr, len);
        // SAFETY: as above.
        if let Some(done) = kernel_fd.and_then(|fd| unsafe { accept_kernel(endpoint, fd, buffer, flags) }) {
            return done;
        }
        if endpoint.flag(NONBLOCK) || deadline.left() == Some(0) {
            // What was brought may be another's by now; or nothing that can be accepted, however often it is brought.
            if brought == BROUGHT_MOST || !beside::has_brought_some() {
                return Outcome::Errno(Errno::EAGAIN);
            }
            brought += 1;
        } else {
            if wait.is_none() {
                let Some(kept) = PinnedListener::new(endpoint) else { return Outcome::Errno(Errno::EBADF) };
                wait = Some((kept, Waiting::begin(None, ticks())));
            }
            let Some((kept, waiting)) = &mut wait else { continue };
            if let Err(errno) = wait_for_connection((endpoint, fd), deadline, &watch, kept, waiting) {
                return Outcome::Errno(errno);
            }
        }
        if is_the_kernels(endpoint, fd) {
            return Err(withdrawn::moved(&watch, wait.is_some().then_some(deadline))).into();
        }
    }
}

/// So often a call that must not wait looks at what the monitor has brought.
const BROUGHT_MOST: u32 = 3;

/// The listener is the kernel's by now. A thread that takes the process out of its family says that of the number first.
#[cold]
#[inline(never)]
fn is_the_kernels(endpoint: &Endpoint, fd: c_int) -> bool {
    crate::socket::kernel_socket::is_moved(endpoint)
        || matches!(table::get(fd), table::Entry::Kernel(now) if core::ptr::eq(now, endpoint))
}

fn wait_for_connection(
    (endpoint, fd): (&'static Endpoint, i32),
    deadline: Deadline,
    watch: &Watch,
    kept: &PinnedListener,
    waiting: &mut Waiting,
) -> Result<(), Errno> {
    let listener = record(endpoint);
    let _waits = listener.map(WaitsInAccept::enter);
    if let Some(listener) = listener {
        let ready = || {
            crate::epoll::drain();
            next_of(&listener.queue.lock(), &listener.defer).is_some()
        };
        if crate::wait::spin_at(&listener.spin, crate::epoll::looks_of_drain(), ready) {
            return Ok(());
        }
    }
    kept.hold(fd);
    let pause = waiting.before_sleep(On::Events);
    let sleeper = Sleeper::enter();
    let set = SleepSet::take(&sleeper)?;
    let kernel_fd = kept.fd(fd);
    crate::epoll::drain();
    // Without the number only a connection of ours would end the sleep.
    let is_moved = kernel_fd.is_none() && is_the_kernels(endpoint, fd);
    let kernel_fd = kernel_fd.unwrap_or(-1);
    if has_pending(endpoint) || is_moved || sleeper.is_stale() {
        return Ok(());
    }
    let pause = earlier(pause, waiting.announced());
    let mut fds = [SleepSet::FIRST, libc::pollfd { fd: kernel_fd, events: libc::POLLIN, revents: 0 }];
    let timeout = earlier(deadline.left(), pause);
    interrupted(watch, deadline)?;
    let slept = set.sleep(&mut fds, timeout, core::ptr::null());
    waiting.after_sleep();
    match slept {
        // A sleep in ppoll always ends so.
        Err(Errno::EINTR) => interrupted(watch, deadline),
        other => other,
    }
}

/// The oldest connection that accept may have.
#[inline]
fn next_of(queue: &VecDeque<Pending>, defer: &AtomicU32) -> Option<usize> {
    match queue.front() {
        Some(first) if is_ripe(defer, first) => Some(0),
        Some(_) => next_behind(queue, defer),
        None => None,
    }
}

/// One behind the oldest.
#[cold]
fn next_behind(queue: &VecDeque<Pending>, defer: &AtomicU32) -> Option<usize> {
    queue.iter().skip(1).position(|pending| is_ripe(defer, pending)).map(|at| at + 1)
}

/// Takes it.
#[inline]
fn take_next(queue: &mut VecDeque<Pending>, defer: &AtomicU32) -> Option<Pending> {
    match next_of(queue, defer)? {
        0 => queue.pop_front(),
        at => queue.remove(at),
    }
}

/// Whether there is one after all: of those that were put off.
#[cold]
fn has_any_now(listener: &Listener) -> bool {
    admission::ask_again() && next_of(&listener.queue.lock(), &listener.defer).is_some()
}

/// Takes the oldest connection of our backlog; `None` when there is none.
unsafe fn accept_ours(
    (listening, listener): (Socket, &'static Listener),
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Option<Outcome<c_int>> {
    loop {
        let within = crate::link::reclaim::change();
        if within.is_counted() && crate::socket::kernel_socket::is_moved(listening.endpoint) {
            return Some(Outcome::Kernel);
        }
        if next_of(&listener.queue.lock(), &listener.defer).is_none() && !has_any_now(listener)
            || !crate::monitor::client::is_there()
                && crate::monitor::client::connected().is_none()
                && PROCESS.own().is_none()
        {
            return None;
        }
        let domain = listening.family();
        // The number first: with none to be had, the connection stays in the backlog.
        let fd = match number(domain, flags & libc::SOCK_CLOEXEC != 0) {
            Ok(fd) => fd,
            Err(errno) => return Some(Outcome::Errno(errno)),
        };
        let mut queue = listener.queue.lock();
        let pending = take_next(&mut queue, &listener.defer);
        publish_pending(listener, queue.len());
        drop(queue);
        let accepted = pending.as_ref().and_then(|p| open((listening, listener), p, fd.raw(), flags));
        pending.inspect(Pending::taken);
        let Some((connection, peer)) = accepted else { continue };
        if !addr.is_null() {
            // SAFETY: the caller vouches for its address buffer.
            if let Err(errno) = unsafe { addr::write(domain, peer, addr, len) } {
                table::clear(fd.raw());
                life::release(connection);
                return Some(Outcome::Errno(errno));
            }
        }
        super::inherited::accepted();
        count(Counter::ShmAccept);
        return Some(Outcome::Done(fd.into_raw()));
    }
}

/// Makes a waiting connection this process's; `None` when another process was faster, or the
/// request makes no sense, or it is not known yet whether it may be accepted.
fn open(
    (listening, listener): (Socket, &'static Listener),
    pending: &Pending,
    fd: i32,
    flags: c_int,
) -> Option<(&'static Endpoint, Name)> {
    let &Pending { channel, slot, generation, .. } = pending;
    let words = channel.map.slot(slot);
    if words.side[0].state().0 != generation {
        return None;
    }
    let old = words.side[1].state.load(Ordering::Relaxed);
    if old >> 8 == generation {
        return None;
    }
    if let Some(bound) = channel.endpoint(slot) {
        // Side A may use a slot again when both sides have closed it.
        endpoint::corrupt(bound);
        return None;
    }
    let names = channel.map.names(slot);
    let ports = names.ports.load(Ordering::Relaxed);
    let peer = Name { ip: addr::load(&names.local), port: (ports >> 16) as u16 };
    let local = Name { ip: addr::load(&names.remote), port: ports as u16 };
    let own_port = (listening.ports.load(Ordering::Relaxed) >> 16) as u16;
    let name = Name { ip: listener.ip(), port: own_port };
    if !addr::may_be_of_a_connection(name, local, peer) {
        refuse(channel, slot, generation);
        return None;
    }
    match admission::admits(channel, listener, local) {
        Verdict::In => {}
        verdict => {
            admission::not_in(verdict, listener, *pending, local);
            return None;
        }
    }
    let connection = life::allocate(listening.family())?;
    let open = generation << 8 | SlotState::Open as u32;
    if !sd_ring::sync::slot_state::answer(&words.side[1].state, old, open) {
        life::release(connection.endpoint);
        return None;
    }
    if channel.tells_accept || channel.inherited.load(Ordering::Relaxed) {
        tell_owners(channel, slot);
    }
    // Before this side announces that it waits for anything, so A sees it when it has to wake us.
    words.side[1].listener.store(channel.adopter, Ordering::Release);
    crate::setup::remember::inherit(listening, connection);
    if listening.is_mptcp() {
        // A client that has only TCP gets a TCP socket, as in Linux: a clone of that by which the kernel listens, which does not have all.
        match words.side[0].flags.load(Ordering::Relaxed) & FLAG_MPTCP {
            0 => connection.clear_flag(INQ),
            _ => connection.set_mptcp(),
        }
    }
    // As in Linux, which copies what was shut down before listen.
    connection.set_flag(listening.flags.load(Ordering::Relaxed) & (SHUT_RD | SHUT_WR));
    if flags & libc::SOCK_NONBLOCK != 0 {
        connection.set_flag(NONBLOCK);
    }
    connection.fd.store(fd, Ordering::Relaxed);
    connection.ports.store(u32::from(local.port) << 16 | u32::from(peer.port), Ordering::Relaxed);
    cold::set_ip(&connection, End::Local, local.ip);
    cold::set_ip(&connection, End::Remote, peer.ip);
    begin(connection, fd, pending);
    Some((connection.endpoint, peer))
}

/// The number leads to the connection from now on.
fn begin(connection: Socket, fd: i32, &Pending { channel, slot, generation, .. }: &Pending) {
    life::attach(connection, channel, slot, generation);
    table::set_socket(fd, connection.endpoint);
    if channel.is_gone() {
        super::mail::peer_is_dead(connection.endpoint);
    }
}

/// Takes a connection of a regular peer; `None` when there is none.
unsafe fn accept_kernel(
    listening: &Endpoint,
    fd: c_int,
    (addr, len): (*mut sockaddr, *mut socklen_t),
    flags: c_int,
) -> Option<Outcome<c_int>> {
    if !listening.flag(NONBLOCK) && blocks(fd) && sd_sys::fd::poll_one(fd, libc::POLLIN, 0) == Ok(0) {
        return None;
    }
    let is_asked = !addr.is_null() && sd_sys::user::seems_readable(len, size_of::<socklen_t>());
    // SAFETY: it can be read.
    let room = if is_asked { unsafe { len.read_unaligned() } } else { 0 };
    // SAFETY: the caller's buffers, for the kernel to check.
    match sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_accept4, fd, addr, len, flags) }) {
        Ok(fd) => {
            let fd = fd as i32;
            dropped_behind_our_back(fd);
            count(Counter::KernelAccept);
            super::inherited::accepted();
            let is_mptcp = listening.is_mptcp() && mptcp::is_one(fd);
            if promotes() == Promotes::Earned && !is_mptcp {
                super::unregistered::begin_as(fd, false);
                return Some(Outcome::Done(fd));
            }
            let told = (addr.cast_const(), room, len.cast_const());
            // SAFETY: the kernel has written its name and the length of that, which the caller can read.
            let peer = (room != 0).then(|| unsafe { name_told(told) }).flatten();
            track_kernel(fd, (listening, is_mptcp), peer);
            Some(Outcome::Done(fd))
        }
        Err(Errno::EAGAIN) => None,
        Err(e) => Some(Outcome::Errno(e)),
    }
}

/// The kernel's listener does not block, unless a program that was executed shares it: that has what the program of before wanted.
fn blocks(fd: c_int) -> bool {
    sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as c_int & libc::O_NONBLOCK == 0
}

/// The name that accept has written into a buffer with so much room.
///
/// # Safety
/// Both pointers are valid, for so many bytes.
unsafe fn name_told((addr, room, len): (*const sockaddr, socklen_t, *const socklen_t)) -> Option<Name> {
    // SAFETY: as the caller says.
    let full = unsafe { len.read_unaligned() };
    // SAFETY: as the caller says.
    unsafe { addr::parse(addr, room.min(full)) }.map(|(_, name)| name)
}

/// Lists a kernel connection in `sd ss`, which was accepted by a listener; `peer` is its other end, if that is known.
fn track_kernel(fd: i32, (listening, is_mptcp): (&Endpoint, bool), peer: Option<Name>) {
    let Some(Socket { endpoint, .. }) = life::allocate(listening.family()) else { return };
    if is_mptcp {
        endpoint.set_mptcp();
    }
    note_names(endpoint, fd, peer);
    super::watched::follow(endpoint, fd, Reason::RegularPeer, false);
    if !table::set_kernel(fd, endpoint) {
        return life::release(endpoint);
    }
    crate::epoll::accepted(fd, endpoint);
}
