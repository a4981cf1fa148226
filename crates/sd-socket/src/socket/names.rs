//! getsockname(2), getpeername(2), and the TCP state that tools expect to see.

use crate::Outcome;
use crate::fd::table::{self, Entry};
use crate::socket::addr::{self, Name};
use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, FIN_SENT, KEEPS_ADDRESS, RESET};
use crate::socket::handle::Socket;
use crate::socket::kernel_socket::materialize;
use core::sync::atomic::Ordering;
use libc::{c_int, c_void, sockaddr, socklen_t};
use sd_proto::Ip;
use sd_shm::slab::{End, Endpoint, Reason, State};
use sd_sys::Errno;

/// # Safety
/// `addr` and `len` as the kernel wants them.
pub(crate) unsafe fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> Outcome<c_int> {
    let Some(endpoint) = table::socket(fd) else {
        // SAFETY: as the caller says.
        return unsafe { of_bridged(fd, addr, len, |endpoint| of(endpoint).0) };
    };
    match endpoint.state_now() {
        State::Connected | State::Connecting | State::Failed => {
            let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
            // SAFETY: as the caller says.
            unsafe { answer(endpoint, Name { ip: cold::ip(endpoint, End::Local), port }, addr, len) }
        }
        // Broken off: it still has its port.
        State::Fresh if endpoint.ports.load(Ordering::Relaxed) != 0 => {
            let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
            let is_v6 = endpoint.family() == libc::AF_INET6;
            let ip = match (endpoint.flag(KEEPS_ADDRESS), is_v6) {
                (true, _) => cold::ip(endpoint, End::Local),
                (false, true) => Ip([0; 16]),
                (false, false) => Ip::v4([0; 4]),
            };
            // SAFETY: as the caller says.
            unsafe { answer(endpoint, Name { ip, port }, addr, len) }
        }
        // The placeholder's name is that of any unbound socket; a bound one has its own.
        _ => Outcome::Kernel,
    }
}

/// # Safety
/// `addr` and `len` as the kernel wants them.
pub(crate) unsafe fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> Outcome<c_int> {
    let Some(endpoint) = table::socket(fd) else {
        // SAFETY: as the caller says.
        return unsafe { of_bridged(fd, addr, len, peer) };
    };
    match endpoint.state_now() {
        State::Connecting | State::Failed => Outcome::Errno(Errno::ENOTCONN),
        State::Connected if is_over(endpoint) => Outcome::Errno(Errno::ENOTCONN),
        // SAFETY: as the caller says.
        State::Connected => unsafe { answer(endpoint, peer(endpoint), addr, len) },
        _ => match materialize(endpoint) {
            Ok(()) => Outcome::Kernel,
            Err(errno) => Outcome::Errno(errno),
        },
    }
}

/// The name of a connection that has a bridge behind it, where it was remembered, as long as the kernel has one for it.
///
/// # Safety
/// `addr` and `len` as the kernel wants them.
unsafe fn of_bridged(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    name: impl FnOnce(&Endpoint) -> Name,
) -> Outcome<c_int> {
    let Entry::Kernel(endpoint) = table::get(fd) else { return Outcome::Kernel };
    let is_bridged = endpoint.reason.load(Ordering::Relaxed) == Reason::Bridged as u8;
    if !is_bridged || addr::kernel_peer(fd).is_none() {
        return Outcome::Kernel;
    }
    // SAFETY: as the caller says.
    unsafe { answer(endpoint, name(endpoint), addr, len) }
}

/// A kernel socket with a bridge behind it is told by the names of the connection; `None` where there is no monitor.
pub(crate) fn remember(fd: i32, domain: i32, local: Name, remote: Name) -> Option<&'static Endpoint> {
    drop(crate::monitor::client::connected()?);
    let Socket { endpoint, .. } = crate::socket::life::allocate(domain)?;
    endpoint.fd.store(fd, Ordering::Relaxed);
    endpoint.reason.store(Reason::Bridged as u8, Ordering::Relaxed);
    endpoint.ports.store(u32::from(local.port) << 16 | u32::from(remote.port), Ordering::Relaxed);
    cold::set_ip(endpoint, End::Local, local.ip);
    cold::set_ip(endpoint, End::Remote, remote.ip);
    endpoint.set_state(State::Kernel);
    if table::set_kernel(fd, endpoint) {
        return Some(endpoint);
    }
    crate::socket::life::release(endpoint);
    None
}

/// Both names of a connection.
pub(crate) fn of(endpoint: &Endpoint) -> (Name, Name) {
    let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
    (Name { ip: cold::ip(endpoint, End::Local), port }, peer(endpoint))
}

fn peer(endpoint: &Endpoint) -> Name {
    Name { ip: cold::ip(endpoint, End::Remote), port: endpoint.ports.load(Ordering::Relaxed) as u16 }
}

/// SO_PEERNAME of what was connected once: unlike getpeername after the end too, and never more room than the name.
///
/// # Safety
/// `value` and `len` as the kernel wants them.
pub(crate) unsafe fn peer_option(
    endpoint: &Endpoint,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Outcome<c_int> {
    let is_v6 = endpoint.family() == libc::AF_INET6;
    let full = if is_v6 { size_of::<libc::sockaddr_in6>() } else { size_of::<sockaddr>() };
    // SAFETY: as the caller says.
    unsafe {
        let room = len.read_unaligned();
        if room as usize > full {
            return Outcome::Errno(Errno::EINVAL);
        }
        let done = answer(endpoint, peer(endpoint), value.cast(), len);
        len.write_unaligned(room);
        done
    }
}

unsafe fn answer(
    endpoint: &Endpoint,
    name: Name,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Outcome<c_int> {
    // SAFETY: as the caller says.
    match unsafe { addr::write(endpoint.family(), name, addr, len) } {
        Ok(()) => Outcome::Done(0),
        Err(errno) => Outcome::Errno(errno),
    }
}

const ESTABLISHED: u8 = 1;
/// TCP_CLOSE.
const CLOSE: u8 = 7;

/// Neither direction has ended.
pub(crate) fn is_established(endpoint: &'static Endpoint) -> bool {
    tcp_state(endpoint) == ESTABLISHED
}

/// Both directions have ended, or the connection was reset.
pub(crate) fn is_over(endpoint: &'static Endpoint) -> bool {
    tcp_state(endpoint) == CLOSE
}

/// The state that `ss` would print, as a number of the kernel's tcp_states.h.
pub(crate) fn tcp_state(endpoint: &'static Endpoint) -> u8 {
    const SYN_SENT: u8 = 2;
    const FIN_WAIT2: u8 = 5;
    const CLOSE_WAIT: u8 = 8;
    if endpoint.state_now() == State::Connecting {
        return SYN_SENT;
    }
    crate::socket::errors::note_end(endpoint);
    match (endpoint.flag(RESET), endpoint.flag(FIN_SENT), crate::socket::endpoint::peer_finished(endpoint)) {
        (true, ..) | (_, true, true) => CLOSE,
        (_, true, false) => FIN_WAIT2,
        (_, false, true) => CLOSE_WAIT,
        _ => ESTABLISHED,
    }
}
