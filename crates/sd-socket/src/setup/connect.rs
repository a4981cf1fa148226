//! socket(2), connect(2): from nothing to a connection, or to the kernel.
//!
//! Connection set-up of one side, after §4.5.2 and Fig. 6 (B's half is in `listen`):
//!
//! | A's state | event | next |
//! |---|---|---|
//! | Fresh, Bound | connect, route = shm, slot taken | Connected (SYN posted; A may send at once) |
//! | Fresh, Bound | connect, route = shm, backlog full | Connecting (see `syn_sent`) |
//! | Fresh, Bound | connect, route = kernel | Kernel (the real call decides) |
//! | Connected | B refuses, or its listener closes | Failed: ECONNREFUSED or ECONNRESET |
//! | Connected | both sides close | Free |

use crate::Outcome;
use crate::fd::table;
use crate::link::outstanding::Asked;
use crate::link::reclaim::{User, change};
use crate::process::PROCESS;
use crate::process::stats::{Counter, count};
use crate::route::target::{Target, TargetState};
use crate::route::{self, Decision, elsewhere};
use crate::setup::syn_sent::{self, Verdict};
use crate::setup::to_kernel::{self, KernelConnect};
use crate::socket::addr::{self, Name};
use crate::socket::endpoint::{
    self, CONNECTING, EndpointExt, HAS_NAME, KEEPS_ADDRESS, NONBLOCK, OWN_SOCKET, SHUT_RD, SHUT_WR,
};
use crate::socket::endpoint::{HAS_SIGNALS, INQ, OOB_INLINE, STAMPS, STAMPS_NS, WATCHED, ZERO_COPY};
use crate::socket::errors::take_error;
use crate::socket::handle::Socket;
use crate::socket::kernel_socket::{is_moved, kernels_own, number, placeholder};
use crate::socket::road::promotes;
use crate::socket::{cold, life, names::is_over};
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use sd_proto::Ip;
use sd_shm::channel::{FLAG_MPTCP, Side, SlotState};
use sd_shm::slab::{End, Endpoint, Promotes, Reason, State};
use sd_sys::Errno;

/// socket(2).
pub(crate) fn socket(domain: c_int, ty: c_int, protocol: c_int) -> Outcome<c_int> {
    let kind = ty & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_mptcp = protocol == libc::IPPROTO_MPTCP;
    let tcp = kind == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP || is_mptcp);
    let is_other = !tcp || (domain != libc::AF_INET && domain != libc::AF_INET6);
    if is_other || crate::process::network::has_left() {
        return Outcome::Kernel;
    }
    if !crate::monitor::client::is_there() {
        let is_brief = crate::setup::handed_on::makes_one();
        if crate::setup::first::may_begin() {
            return crate::setup::first::socket(domain, ty, protocol);
        }
        if is_brief {
            return Outcome::Kernel;
        }
        if crate::monitor::client::connected().is_none() {
            return crate::setup::before_monitor::socket(domain, ty, protocol);
        }
    }
    let within = change();
    if within.is_counted() && crate::monitor::client::is_ending() {
        return Outcome::Kernel;
    }
    if elsewhere::is_likely() && promotes() == Promotes::Earned {
        elsewhere::expect();
        return kernels_own(domain, ty, protocol).inspect(|fd| super::unregistered::begin(*fd)).into();
    }
    let Some(Socket { endpoint, .. }) = life::allocate(domain) else { return Outcome::Kernel };
    let made = match elsewhere::is_likely() || is_mptcp {
        true => to_kernel::socket(endpoint, domain, ty, protocol),
        false => number(domain, ty & libc::SOCK_CLOEXEC != 0),
    };
    let fd = match made {
        Ok(fd) => fd,
        Err(errno) => {
            life::release(endpoint);
            // Without a placeholder the kernel makes no socket of this kind; it says why.
            return if placeholder(domain) < 0 { Outcome::Kernel } else { Outcome::Errno(errno) };
        }
    };
    if ty & libc::SOCK_NONBLOCK != 0 {
        endpoint.set_flag(NONBLOCK);
    }
    endpoint.fd.store(fd.raw(), Ordering::Relaxed);
    if !table::set_socket(fd.raw(), endpoint) {
        life::release(endpoint);
        return Outcome::Kernel;
    }
    Outcome::Done(fd.into_raw())
}

/// connect(2).
pub(crate) unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Outcome<c_int> {
    // SAFETY: as the caller says.
    unsafe { make(fd, addr, len, false) }
}

/// The connect of a send with MSG_FASTOPEN. `Kernel`: that call of the kernel's connects.
///
/// # Safety
/// As for [`connect`].
pub(super) unsafe fn connect_by_send(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Outcome<c_int> {
    // SAFETY: as the caller says.
    unsafe { make(fd, addr, len, true) }
}

/// # Safety
/// As for [`connect`].
#[inline(always)]
unsafe fn make(fd: c_int, addr: *const sockaddr, len: socklen_t, by_send: bool) -> Outcome<c_int> {
    // SAFETY: as the caller says.
    let found = Socket::at(fd).or_else(|| unsafe { expected_elsewhere(fd, addr, len) });
    let Some(mut socket) = found else { return Outcome::Kernel };
    let within = change();
    if within.is_counted() {
        // Another thread may have left with it before the change.
        let Some(now) = Socket::at(fd) else { return Outcome::Kernel };
        socket = now;
    }
    let endpoint = socket.endpoint;
    if let Err(errno) = addr::check(addr, len) {
        return Outcome::Errno(errno);
    }
    // SAFETY: the caller vouches for its address.
    let unspecified = unsafe { addr::family(addr, len) } == Some(libc::AF_UNSPEC);
    match endpoint.state_now() {
        State::Fresh | State::Bound => {}
        State::Connected if unspecified => {
            disconnect(endpoint);
            return Outcome::Done(0);
        }
        State::Connected => return again(endpoint),
        State::Connecting if unspecified => {
            syn_sent::abandon(endpoint);
            return Outcome::Done(0);
        }
        State::Connecting => {
            drop(within);
            let kernel = KernelConnect { fd, addr, len, by_send };
            return wait_for_room(endpoint, &kernel, Errno::EALREADY);
        }
        State::Failed => return Outcome::Errno(syn_sent::tell_failure(endpoint)),
        State::Listen if unspecified => {
            crate::setup::listen::stop(endpoint);
            return Outcome::Kernel;
        }
        State::Listen => return Outcome::Errno(Errno::EISCONN),
        _ => return Outcome::Kernel,
    }
    let kernel = KernelConnect { fd, addr, len, by_send };
    // SAFETY: the caller vouches for its address.
    let parsed = unsafe { addr::parse(addr, len) };
    let domain = endpoint.family();
    let to = match parsed {
        Some((family, name)) if family == domain && name.port != 0 => normalise(domain, name),
        None if unspecified => {
            endpoint.clear_flag(SHUT_RD | SHUT_WR);
            return Outcome::Kernel;
        }
        _ => return kernel.try_first(endpoint, within),
    };
    if bound_to_other_family(endpoint, fd, to) || crate::socket::notes::need_the_kernel(socket) {
        return kernel.go(endpoint, Reason::Option, within);
    }
    if endpoint.flag(HAS_NAME) && crate::setup::time_wait::is_taken(endpoint, fd, to) {
        return Outcome::Errno(Errno::EADDRNOTAVAIL);
    }
    let mut attempt = attempt(socket, fd, to);
    let mut _until_the_kernel_was_asked = None;
    if matches!(attempt, Attempt::Kernel(Reason::NoListener)) {
        (attempt, _until_the_kernel_was_asked) = crate::setup::first_contact::once_more(socket, fd, to);
    }
    conclude((socket, to), attempt, &kernel, within)
}

/// A kernel's socket that was made for a connection to another host, or namespace. If it does lead there it stays that; else it is one of ours
/// from now on, if it can be.
///
/// # Safety
/// As for [`connect`].
#[cold]
unsafe fn expected_elsewhere(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<Socket> {
    if !matches!(table::get(fd), table::Entry::Early) {
        return None;
    }
    // SAFETY: the caller vouches for its address.
    let to = unsafe { addr::parse(addr, len) }.map(|(_, name)| name.ip);
    if to.is_some_and(route::is_elsewhere) {
        elsewhere::leads_there();
        count(Counter::KernelConnect);
        return None;
    }
    super::unregistered::becomes_ours(fd);
    Socket::at(fd)
}

/// What comes of the first try. Ends the change before anything sleeps.
fn conclude(
    (socket, to): (Socket, Name),
    attempt: Attempt,
    kernel: &KernelConnect,
    within: User,
) -> Outcome<c_int> {
    let endpoint = socket.endpoint;
    match attempt {
        Attempt::Joined => established(endpoint),
        Attempt::Kernel(reason) => kernel.go(endpoint, reason, within),
        Attempt::Denied => Outcome::Errno(Errno::ECONNREFUSED),
        Attempt::Busy(source) => {
            let Some(local) = source_name(endpoint, kernel.fd, to, source) else {
                return kernel.go(endpoint, Reason::Exhausted, within);
            };
            note_names(endpoint, local, to);
            syn_sent::begin(socket, kernel.fd, to);
            if endpoint.flag(NONBLOCK) {
                return Outcome::Errno(Errno::EINPROGRESS);
            }
            drop(within);
            wait_for_room(endpoint, kernel, Errno::EINPROGRESS)
        }
    }
}

/// connect(2) on a socket in SYN-SENT; `later` is what is said as long as it is.
fn wait_for_room(endpoint: &'static Endpoint, kernel: &KernelConnect, later: Errno) -> Outcome<c_int> {
    match syn_sent::connect_again(endpoint, later) {
        Ok(Verdict::Kernel(reason)) => {
            let within = change();
            if within.is_counted() && is_moved(endpoint) {
                return Outcome::Kernel;
            }
            kernel.go(endpoint, reason, within)
        }
        Ok(_) if endpoint.state_now() == State::Connected => {
            endpoint.clear_flag(CONNECTING);
            Outcome::Done(0)
        }
        Ok(_) => Outcome::Kernel,
        Err(errno) => Outcome::Errno(errno),
    }
}

/// See [`attempt`].
pub(super) enum Attempt {
    Joined,
    /// The backlog is full. The connection would come from this address.
    Busy(Ip),
    /// It is the kernel's.
    Kernel(Reason),
    Denied,
}

/// One try to connect.
pub(super) fn attempt(socket: Socket, fd: c_int, to: Name) -> Attempt {
    crate::route::leave::sweep(crate::epoll::take_in);
    let _user = User::enter();
    crate::monitor::client::check_mail();
    for attempt in 0..3 {
        match route::decide(to, attempt > 0) {
            Decision::Denied => return Attempt::Denied,
            Decision::Kernel(reason) => return Attempt::Kernel(reason),
            Decision::Shm { target, source } => match join(socket, fd, to, source, target) {
                Ok(()) => return Attempt::Joined,
                Err(Join::Full) => {
                    let Decision::Shm { target, source } = route::another(to, source, &target) else {
                        return Attempt::Kernel(Reason::Exhausted);
                    };
                    return match join(socket, fd, to, source, target) {
                        Ok(()) => Attempt::Joined,
                        // Its backlog has filled meanwhile.
                        Err(Join::Busy) => Attempt::Busy(source),
                        Err(_) => Attempt::Kernel(Reason::Exhausted),
                    };
                }
                Err(Join::Busy) => return Attempt::Busy(source),
                Err(Join::HandsOn) => return Attempt::Kernel(Reason::HandedOn),
                Err(Join::NoPort) => return Attempt::Kernel(Reason::Exhausted),
                Err(Join::Closed) => route::forget_all(),
            },
        }
    }
    Attempt::Kernel(Reason::NoListener)
}

/// The unspecified address means this host, as in the kernel.
fn normalise(domain: i32, name: Name) -> Name {
    let loopback4 = Ip::v4([127, 0, 0, 1]);
    let mut ip = name.ip;
    if ip == Ip::v4([0; 4]) {
        ip = loopback4;
    } else if domain == libc::AF_INET6 && ip == Ip([0; 16]) {
        ip = Ip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
    Name { ip, port: name.port }
}

/// connect on a connection: once 0 or the error after EINPROGRESS, then EISCONN. After the error the socket is as new.
fn again(endpoint: &'static Endpoint) -> Outcome<c_int> {
    if !endpoint.flag(CONNECTING) {
        return Outcome::Errno(Errno::EISCONN);
    }
    let over = is_over(endpoint);
    endpoint.clear_flag(CONNECTING);
    if !over {
        return Outcome::Done(0);
    }
    let error = take_error(endpoint).unwrap_or(Errno::ECONNABORTED);
    disconnect(endpoint);
    Outcome::Errno(error)
}

/// A TCP connect never finishes within a non-blocking call, so ours does not either.
fn established(endpoint: &'static Endpoint) -> Outcome<c_int> {
    count(Counter::ShmConnect);
    if endpoint.flag(NONBLOCK) {
        endpoint.set_flag(CONNECTING);
        return Outcome::Errno(Errno::EINPROGRESS);
    }
    Outcome::Done(0)
}

enum Join {
    /// The channel has no free slot.
    Full,
    /// The backlog is full.
    Busy,
    /// No source port.
    NoPort,
    /// The listener is gone.
    Closed,
    /// It is to begin as the kernel's.
    HandsOn,
}

/// Bound to an IPv6 address but connecting to an IPv4 one, or the other way round.
fn bound_to_other_family(endpoint: &Endpoint, fd: i32, to: Name) -> bool {
    // A connection that was given up has no port any more, but the address that it was bound to.
    if !endpoint.flag(HAS_NAME | KEEPS_ADDRESS) {
        return false;
    }
    let ip = match endpoint.flag(HAS_NAME) {
        true => addr::kernel_name(fd).map(|(_, name)| name.ip),
        false => Some(cold::ip(endpoint, End::Local)),
    };
    ip.is_some_and(|ip| !ip.is_unspecified() && ip.to_v4().is_some() != to.ip.to_v4().is_some())
}

/// Takes a slot and posts the request.
fn join(socket: Socket, fd: i32, to: Name, source: Ip, target: Target) -> Result<(), Join> {
    let endpoint = socket.endpoint;
    let backlog = match target.state() {
        TargetState::Open { .. } if !target.channel.peer_seems_alive() => return Err(Join::Closed),
        TargetState::Open { backlog } => backlog,
        TargetState::Full => {
            // It may not have looked since others took what waited there.
            target.channel.peer.wake();
            return Err(Join::Busy);
        }
        TargetState::Closed => return Err(Join::Closed),
        TargetState::HandsOn => return Err(Join::HandsOn),
    };
    let local = source_name(endpoint, fd, to, source).ok_or(Join::NoPort)?;
    let (slot, generation) = target.channel.allocate_slot().ok_or(Join::Full)?;
    let words = &target.channel.map.slot(slot).side[0];
    words.listener.store(target.listener, Ordering::Relaxed);
    let names = target.channel.map.names(slot);
    names.listener_gen.store(target.generation, Ordering::Relaxed);
    names.ports.store(u32::from(local.port) << 16 | u32::from(to.port), Ordering::Relaxed);
    addr::store(&names.local, local.ip);
    addr::store(&names.remote, to.ip);
    if endpoint.is_mptcp() {
        words.flags.fetch_or(FLAG_MPTCP, Ordering::Relaxed);
        endpoint.set_speaks_mptcp(target.has_mptcp());
    }
    note_names(endpoint, local, to);
    endpoint.error.store(0, Ordering::Relaxed);
    words.set_state(generation, SlotState::Syn);
    let asked = Asked { slot: slot as u16, generation, at: sd_sys::time::ticks() };
    words.announced.store(asked.at, Ordering::Relaxed);
    let fits = target.channel.requested(asked, target.name(), backlog);
    if !fits && target.channel.withdraw(slot, generation) {
        if endpoint.state_now() != State::Connecting {
            route::port_unused(endpoint);
        }
        return Err(Join::Busy);
    }
    target.channel.map.events(Side::B).post(slot);
    if listener_is_gone(&target) && target.channel.withdraw(slot, generation) {
        route::port_unused(endpoint);
        return Err(Join::Closed);
    }
    life::attach(socket, target.channel, slot, generation);
    crate::socket::signals::publish(endpoint, fd);
    crate::epoll::state_event(socket, 0);
    target.channel.peer.wake();
    if target.channel.nobody_idle.load(Ordering::Relaxed) {
        crate::setup::adopt::leave_word(to, target);
    }
    crate::setup::adopt::connecting();
    Ok(())
}

/// What getsockname and getpeername say of a socket that connects.
fn note_names(endpoint: &Endpoint, local: Name, to: Name) {
    endpoint.ports.store(u32::from(local.port) << 16 | u32::from(to.port), Ordering::Relaxed);
    cold::set_ip(endpoint, End::Local, local.ip);
    cold::set_ip(endpoint, End::Remote, to.ip);
    endpoint.side.store(Side::A as u8, Ordering::Relaxed);
}

/// After the request was posted: whoever ended the listener before may not have seen it (SYNC POINT: end of a listener, with `forget`
/// in crates/sd-socket/src/setup/listen.rs, `suspend` in crates/sd-socket/src/family/exec/listeners.rs and `rescue_all` in
/// crates/sd-monitor/src/shell/rescue.rs: each fences between the end and its look at the slots).
fn listener_is_gone(target: &Target) -> bool {
    sd_ring::fence_full();
    target.is_closed()
}

/// Where the connection comes from: the bound name, or the route's source and the port that an earlier connection
/// had, or a leased one.
fn source_name(endpoint: &Endpoint, fd: i32, to: Name, source: Ip) -> Option<Name> {
    if endpoint.state_now() == State::Connecting {
        let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
        return Some(Name { ip: cold::ip(endpoint, End::Local), port });
    }
    if endpoint.flag(HAS_NAME) {
        let (_, name) = addr::kernel_name(fd)?;
        let ip = if name.ip.is_unspecified() { source } else { name.ip };
        if name.port != 0 {
            return Some(Name { ip, port: name.port }).filter(|name| addr::may_be_source(name.port));
        }
        return route::take_port(to).map(|port| Name { ip, port });
    }
    let source = if endpoint.flag(KEEPS_ADDRESS) { cold::ip(endpoint, End::Local) } else { source };
    let kept = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
    let port = if kept != 0 && route::take_port_again(to, kept) { Some(kept) } else { route::take_port(to) };
    port.map(|port| Name { ip: source, port })
}

/// Breaks a connection off, for connect(2) with AF_UNSPEC: the peer is reset, and the endpoint is
/// as good as new.
pub(super) fn disconnect(endpoint: &'static Endpoint) {
    let over = crate::socket::names::is_over(endpoint);
    endpoint.set_flag(endpoint::RESET);
    if let (Some(channel), Some((rec, _))) = (endpoint.channel_ref(), PROCESS.locate(endpoint)) {
        life::hang_up(endpoint, channel, rec);
    }
    if endpoint.reason.swap(0, Ordering::Relaxed) == Reason::Promoted as u8 {
        // The kernel's connection ends as well.
        crate::socket::kernel_socket::renew(endpoint, endpoint.fd.load(Ordering::Relaxed));
    }
    let kept = NONBLOCK
        | OWN_SOCKET
        | WATCHED
        | OOB_INLINE
        | STAMPS
        | STAMPS_NS
        | ZERO_COPY
        | HAS_SIGNALS
        | INQ
        | KEEPS_ADDRESS;
    endpoint.flags.fetch_and(kept, Ordering::AcqRel);
    crate::setup::syn_sent::unconnect(endpoint, (!over).then_some(Errno::ECONNRESET));
}
