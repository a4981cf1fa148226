//! Socket options: remembered, answered, and replayed on a kernel socket when one is needed.

use crate::Outcome;
use crate::fd::table;
use crate::options::mptcp;
use crate::setup::remember::{Remembered, remember, set_least};
use crate::socket::endpoint::{EndpointExt, HAS_NAME, OWN_SOCKET};
use crate::socket::kernel_socket::materialize;
use crate::socket::recorded::{linger_of, number, raw_set, timeval_of};
use crate::socket::{beneath, cold};
use core::sync::atomic::Ordering;
use libc::{SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, c_int, c_void, socklen_t};
use sd_shm::slab::{End, Endpoint, State};
use sd_sys::{Errno, user};

const TCP: c_int = libc::IPPROTO_TCP;

/// setsockopt(2).
///
/// # Safety
/// `value` points to `len` readable bytes, or the kernel would say EFAULT.
pub(crate) unsafe fn set(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Outcome<c_int> {
    crate::setup::first::option(fd, level, name);
    let Some(endpoint) = table::socket(fd) else { return Outcome::Kernel };
    let connected = endpoint.state_now() == State::Connected;
    let is_v6 = endpoint.family() == libc::AF_INET6;
    let connects = connected || endpoint.state_now() == State::Connecting;
    if endpoint.is_mptcp()
        && let Some(answer) = mptcp::set(endpoint, (level, name), connects)
    {
        return answer;
    }
    if connects && is_v6 && level == libc::IPPROTO_IPV6 {
        match name {
            // It has a port, which one that is over has lost unless it was bound to it.
            libc::IPV6_V6ONLY if endpoint.flag(HAS_NAME) || !crate::socket::names::is_over(endpoint) => {
                return Outcome::Errno(Errno::EINVAL);
            }
            // SAFETY: as the caller says.
            IPV6_ADDRFORM if connected => return unsafe { set_address_form(endpoint, value, len) },
            _ => {}
        }
    }
    if (level, name) == (TCP, libc::TCP_ULP) && connected && crate::socket::road::is_promoted(endpoint) {
        // What it would do to the bytes (TLS) is not done to those in a ring. So a kernel answers that does not have it.
        return Outcome::Errno(Errno::ENOENT);
    }
    if level == TCP
        && connects
        && len >= 4
        && user::is_readable(value, 4)
        && !crate::socket::names::is_over(endpoint)
    {
        // SAFETY: at least four bytes.
        let is_zero = unsafe { (value as *const i32).read_unaligned() } == 0;
        match name {
            libc::TCP_FASTOPEN | libc::TCP_FASTOPEN_CONNECT | libc::TCP_FASTOPEN_NO_COOKIE => {
                return Outcome::Errno(Errno::EINVAL);
            }
            libc::TCP_WINDOW_CLAMP if is_zero => return Outcome::Errno(Errno::EINVAL),
            libc::TCP_QUEUE_SEQ if !endpoint.speaks_mptcp() => return Outcome::Errno(Errno::EPERM),
            _ => {}
        }
    }
    if level == SOL_SOCKET && name == libc::SO_RCVLOWAT {
        // SAFETY: as the caller says.
        return unsafe { set_low_water(endpoint, fd, value, len) };
    }
    // SAFETY: as the caller says.
    match unsafe { remember(endpoint, level, name, value, len) } {
        Remembered::Yes if !endpoint.flag(OWN_SOCKET) => Outcome::Done(0),
        // When it is the kernel's again the socket gets what is recorded by then.
        Remembered::Yes if beneath::takes(endpoint, fd, (level, name)) => Outcome::Done(0),
        Remembered::Yes => Outcome::Kernel,
        Remembered::Invalid(errno) => Outcome::Errno(errno),
        Remembered::No => match materialize(endpoint) {
            Ok(()) if connected => Outcome::Kernel,
            // SAFETY: as the caller says.
            Ok(()) => unsafe { set_and_note(fd, endpoint, (level, name), value, len) },
            Err(errno) => Outcome::Errno(errno),
        },
    }
}

/// Of linux/in6.h, which the libc crate lacks.
const IPV6_ADDRFORM: c_int = 1;

/// IPV6_ADDRFORM: a connection between IPv4 addresses becomes an IPv4 socket.
unsafe fn set_address_form(
    endpoint: &'static Endpoint,
    value: *const c_void,
    len: socklen_t,
) -> Outcome<c_int> {
    let family = match len {
        0..4 => return Outcome::Errno(Errno::EINVAL),
        _ if value.is_null() => 0,
        _ if !user::is_readable(value, 4) => return Outcome::Errno(Errno::EFAULT),
        // SAFETY: four bytes can be read.
        _ => unsafe { (value as *const c_int).read_unaligned() },
    };
    if family != libc::AF_INET {
        return Outcome::Errno(Errno::EINVAL);
    }
    if !crate::socket::names::is_established(endpoint) {
        return Outcome::Errno(Errno::ENOTCONN);
    }
    if cold::ip(endpoint, End::Remote).to_v4().is_none() {
        return Outcome::Errno(Errno::EADDRNOTAVAIL);
    }
    endpoint.set_family(libc::AF_INET);
    // Another kernel socket, which knows the options of its family.
    endpoint.clear_flag(OWN_SOCKET);
    materialize(endpoint).map(|()| 0).into()
}

/// Sets an option of the kernel socket that connections inherit, should this become a listener.
unsafe fn set_and_note(
    fd: c_int,
    endpoint: &Endpoint,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: socklen_t,
) -> Outcome<c_int> {
    // SAFETY: as the caller says; what the kernel has accepted could be read.
    match unsafe { raw_set(fd, level, name, value, len) } {
        Ok(_) if value.is_null() => Outcome::Done(0),
        Ok(_) => {
            // SAFETY: as above.
            unsafe { crate::socket::notes::note(endpoint, level, name, value, len as usize) };
            crate::backlog::defer::option_set(endpoint, fd);
            Outcome::Done(0)
        }
        Err(e) => Outcome::Errno(e),
    }
}

/// SO_RCVLOWAT: the kernel bounds it by its buffer sizes.
unsafe fn set_low_water(
    endpoint: &'static Endpoint,
    fd: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Outcome<c_int> {
    if let Err(errno) = materialize(endpoint) {
        return Outcome::Errno(errno);
    }
    // SAFETY: as the caller says.
    let set = unsafe { raw_set(fd, SOL_SOCKET, libc::SO_RCVLOWAT, value, len) };
    if let Ok(least) = sd_sys::fd::getsockopt_int(fd, SOL_SOCKET, libc::SO_RCVLOWAT) {
        set_least(endpoint, least);
    }
    let least = endpoint.rx().lowat.load(Ordering::Relaxed).max(1) as usize;
    if endpoint.state_now() == State::Connected
        && (crate::socket::ring_view::data_bytes(endpoint) >= least
            || crate::socket::endpoint::peer_finished(endpoint))
    {
        // What waits is enough now (tcp_set_rcvlowat() in the kernel).
        crate::socket::bell::wake_sleepers(endpoint);
        crate::epoll::readable_event(endpoint);
    }
    set.map(|_| 0).into()
}

/// getsockopt(2).
///
/// # Safety
/// `value` and `len` as the kernel wants them.
pub(crate) unsafe fn get(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Outcome<c_int> {
    let Some(endpoint) = table::socket(fd) else { return Outcome::Kernel };
    let has_len = user::seems_writable(len, size_of::<socklen_t>());
    // SAFETY: it can be read.
    let room = if has_len { unsafe { len.read_unaligned() } } else { 0 };
    if !has_len || (room as i32) > 0 && !user::seems_writable(value, 1) {
        if level == SOL_SOCKET && name == libc::SO_ERROR && has_len {
            take_error(endpoint);
        }
        return Outcome::Kernel;
    }
    if endpoint.state_now() == State::Connecting {
        crate::setup::syn_sent::look_at(endpoint);
        if endpoint.state_now() == State::Kernel {
            return Outcome::Kernel;
        }
    }
    let is_answered = match endpoint.state_now() {
        State::Connected => true,
        State::Connecting => crate::options::connection::are_known_early((level, name)),
        _ => false,
    };
    if is_answered {
        // SAFETY: as the caller says.
        let answer =
            unsafe { crate::options::connection::of_connection(fd, endpoint, (level, name), value, len) };
        if let Some(answer) = answer {
            return answer;
        }
    }
    let domain = endpoint.family();
    let listening = endpoint.state_now() == State::Listen;
    let own = endpoint.flag(OWN_SOCKET);
    let answer = match (level, name) {
        (SOL_SOCKET, libc::SO_ERROR) => Some(take_error(endpoint)),
        (SOL_SOCKET, libc::SO_RCVLOWAT) => Some(endpoint.rx().lowat.load(Ordering::Relaxed).max(1) as i32),
        (SOL_SOCKET, libc::SO_TYPE) => Some(libc::SOCK_STREAM),
        (SOL_SOCKET, libc::SO_DOMAIN) => Some(domain),
        (SOL_SOCKET, libc::SO_PROTOCOL) if endpoint.is_mptcp() => Some(libc::IPPROTO_MPTCP),
        (SOL_SOCKET, libc::SO_PROTOCOL) => Some(TCP),
        (SOL_SOCKET, libc::SO_ACCEPTCONN) => Some(i32::from(listening)),
        (TCP, libc::TCP_INFO) if matches!(endpoint.state_now(), State::Connecting | State::Listen) => {
            // SAFETY: as the caller says.
            return unsafe { crate::options::tcp_info::get(fd, endpoint, value, len) };
        }
        _ if own && !beneath::hides(endpoint, (level, name)) => None,
        _ => number(level, name).map(|n| n.load(endpoint).unwrap_or(n.default)),
    };
    if let Some(answer) = answer {
        // SAFETY: as the caller says.
        return unsafe { put(&answer.to_ne_bytes(), value, len) };
    }
    let bytes = if own { None } else { recorded_bytes(endpoint, level, name) };
    if let Some((bytes, full)) = bytes {
        // SAFETY: as the caller says.
        return unsafe { put(bytes.get(..full).unwrap_or(&[]), value, len) };
    }
    match materialize(endpoint) {
        Ok(()) => Outcome::Kernel,
        Err(errno) => Outcome::Errno(errno),
    }
}

/// The recorded value of an option that is more than a number, and its length.
fn recorded_bytes(endpoint: &Endpoint, level: c_int, name: c_int) -> Option<([u8; 16], usize)> {
    match (level, name) {
        (SOL_SOCKET, SO_RCVTIMEO) => {
            Some((timeval_bytes(cold::of(endpoint).rx_timeout_ns.load(Ordering::Relaxed)), 16))
        }
        (SOL_SOCKET, SO_SNDTIMEO) => {
            Some((timeval_bytes(cold::of(endpoint).tx_timeout_ns.load(Ordering::Relaxed)), 16))
        }
        (SOL_SOCKET, SO_LINGER) => {
            let linger = linger_of(cold::of(endpoint).linger.load(Ordering::Relaxed));
            let pair = ((linger.l_linger as u128) << 32) | linger.l_onoff as u128;
            Some((pair.to_ne_bytes(), 8))
        }
        _ => None,
    }
}

fn timeval_bytes(ns: u64) -> [u8; 16] {
    let tv = timeval_of(ns);
    let mut bytes = [0; 16];
    let (sec, usec) = bytes.split_at_mut(8);
    sec.copy_from_slice(&tv.tv_sec.to_ne_bytes());
    usec.copy_from_slice(&tv.tv_usec.to_ne_bytes());
    bytes
}

/// SO_ERROR: read and cleared; a reset that nobody has met yet counts.
fn take_error(endpoint: &'static Endpoint) -> i32 {
    if endpoint.state_now() == State::Connected {
        crate::socket::errors::note_end(endpoint);
    }
    let by_kernel = crate::wait::by_kernel::directions(endpoint) != 0;
    if let Some(fd) = by_kernel.then(|| crate::socket::road::number(endpoint)).flatten()
        && let Ok(error @ 1..) = sd_sys::fd::getsockopt_int(fd, SOL_SOCKET, libc::SO_ERROR)
    {
        return error;
    }
    i32::from(endpoint.error.swap(0, Ordering::AcqRel))
}

/// Copies an answer out, truncated to the caller's buffer as getsockopt does.
pub(super) unsafe fn put(bytes: &[u8], value: *mut c_void, len: *mut socklen_t) -> Outcome<c_int> {
    // SAFETY: as the caller says.
    unsafe {
        let room = len.read_unaligned();
        if (room as i32) < 0 {
            return Outcome::Errno(Errno::EINVAL);
        }
        let n = bytes.len().min(room as usize);
        if !user::seems_writable(value, n) {
            return Outcome::Errno(Errno::EFAULT);
        }
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), value as *mut u8, n);
        len.write_unaligned(n as socklen_t);
    }
    Outcome::Done(0)
}
