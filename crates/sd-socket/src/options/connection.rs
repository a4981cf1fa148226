//! Questions of getsockopt(2) that only a connection can answer, and that its kernel socket, if it has one, cannot: it
//! is not connected. Tested by the subjects `options_socket/*`, `options_tcp/*`, `options_ip/*`, `options_ipv6/*`.

use crate::Outcome;
use crate::options::mptcp;
use crate::options::put;
use crate::options::tcp_info;
use crate::socket::cold;
use crate::socket::names;
use core::sync::atomic::Ordering;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int, c_void, socklen_t};
use sd_shm::channel::Side;
use sd_shm::slab::{End, Endpoint};

/// Of linux/in.h and linux/in6.h, which the libc crate lacks.
const IP_PROTOCOL: c_int = 52;
const IPV6_ADDRFORM: c_int = 1;
const IPV6_PATHMTU: c_int = 61;

/// Questions about names and route, which have an answer from connect on.
pub(super) fn are_known_early(question: (c_int, c_int)) -> bool {
    let known = [(SOL_SOCKET, libc::SO_PEERNAME), (IPPROTO_IP, libc::IP_MTU), (IPPROTO_IPV6, libc::IPV6_MTU)];
    known.contains(&question) || question == (IPPROTO_IPV6, IPV6_PATHMTU)
}

/// The answer for a socket in state Connected, or Connecting where it is known early, if the question is one of these.
///
/// # Safety
/// `value` and `len` as the kernel wants them.
pub(super) unsafe fn of_connection(
    fd: c_int,
    endpoint: &'static Endpoint,
    (level, name): (c_int, c_int),
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<Outcome<c_int>> {
    if endpoint.is_mptcp()
        // SAFETY: as the caller says.
        && let Some(answer) = unsafe { mptcp::of_connection(fd, endpoint, (level, name), value, len) }
    {
        return Some(answer);
    }
    let is_v6 = endpoint.family() == libc::AF_INET6;
    let over_v4 = cold::ip(endpoint, End::Remote).to_v4().is_some();
    let number = match (level, name) {
        (IPPROTO_TCP, libc::TCP_INFO) => {
            // SAFETY: as the caller says.
            return Some(unsafe { tcp_info::get(fd, endpoint, value, len) });
        }
        (SOL_SOCKET, libc::SO_PEERNAME) => {
            // SAFETY: as the caller says.
            return Some(unsafe { names::peer_option(endpoint, value, len) });
        }
        (IPPROTO_IPV6, IPV6_PATHMTU) if is_v6 => {
            // SAFETY: as the caller says.
            return unsafe { path_mtu(tcp_info::mtu(fd, over_v4), value, len) };
        }
        (IPPROTO_TCP, libc::TCP_MAXSEG) => tcp_info::mss(endpoint, fd),
        (IPPROTO_IP, libc::IP_MTU) => tcp_info::mtu(fd, over_v4),
        (IPPROTO_IPV6, libc::IPV6_MTU) if is_v6 => tcp_info::mtu(fd, over_v4),
        (IPPROTO_IPV6, IPV6_ADDRFORM) if is_v6 && names::is_established(endpoint) => libc::AF_INET6,
        // Whatever its name: what raw sockets have there is the local port of others.
        (IPPROTO_IP, IP_PROTOCOL) => (endpoint.ports.load(Ordering::Relaxed) >> 16) as i32,
        // An accepted connection has the time to live of the segment that opened it.
        (IPPROTO_IP, libc::IP_MULTICAST_TTL)
            if over_v4 && endpoint.side.load(Ordering::Relaxed) == Side::B as u8 =>
        {
            64
        }
        _ => return None,
    };
    // SAFETY: as the caller says.
    Some(unsafe { put(&number.to_ne_bytes(), value, len) })
}

/// struct ip6_mtuinfo: an empty name, and the size. What does not fit is the kernel's to refuse.
unsafe fn path_mtu(mtu: i32, value: *mut c_void, len: *mut socklen_t) -> Option<Outcome<c_int>> {
    const NAME: usize = size_of::<libc::sockaddr_in6>();
    let mut info = [0; NAME + 4];
    info.get_mut(NAME..)?.copy_from_slice(&mtu.to_ne_bytes());
    // SAFETY: as the caller says.
    unsafe {
        let has_room = len.read_unaligned() as i32 >= info.len() as i32;
        has_room.then(|| put(&info, value, len))
    }
}
