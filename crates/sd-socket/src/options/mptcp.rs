//! What the connection of an MPTCP socket says of MPTCP: TCP_IS_MPTCP, MPTCP_INFO. Over shared memory it has one path, and no keys: the token and
//! the sequence numbers are made up, and fit each other at both ends. Tested by the subjects `mptcp/*`.

use crate::Outcome;
use crate::options::put;
use crate::socket::kernel_socket::materialize;
use crate::socket::{cold, parked};
use core::sync::atomic::Ordering;
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int, c_void, socklen_t};
use sd_shm::slab::{End, Endpoint};
use sd_sys::Errno;

/// Of linux/socket.h, linux/tcp.h and linux/mptcp.h, which the libc crate lacks.
const SOL_MPTCP: c_int = 284;
const TCP_IS_MPTCP: c_int = 43;
const MPTCP_INFO: c_int = 1;
/// Flag in `mptcpi_flags`: the other end's key is known.
const REMOTE_KEY_RECEIVED: u32 = 2;
/// Largest struct mptcp_info that is answered; kernels add to it.
const INFO_MAX: usize = 256;

/// setsockopt(2) on an MPTCP socket, if it is decided here: what such sockets do not have is not noted, as the kernel refuses it.
pub(super) fn set(
    endpoint: &'static Endpoint,
    option: (c_int, c_int),
    connects: bool,
) -> Option<Outcome<c_int>> {
    const IPV6_ADDRFORM: c_int = 1;
    match option {
        _ if connects && is_too_late(endpoint, option) => Some(Outcome::Errno(Errno::EINVAL)),
        (SOL_SOCKET, libc::SO_OOBINLINE | libc::SO_ZEROCOPY)
        | (IPPROTO_TCP, libc::TCP_LINGER2)
        | (IPPROTO_IPV6, IPV6_ADDRFORM) => {
            Some(materialize(endpoint).map_or_else(Outcome::Errno, |()| Outcome::Kernel))
        }
        _ => None,
    }
}

/// Whether an option can be set on an MPTCP socket only before it connects: its first path takes it, or that listens.
fn is_too_late(endpoint: &Endpoint, (level, name): (c_int, c_int)) -> bool {
    const SO_BINDTOIFINDEX: c_int = 62;
    const IP_LOCAL_PORT_RANGE: c_int = 51;
    let names: &[c_int] = match level {
        SOL_SOCKET => &[libc::SO_REUSEADDR, libc::SO_REUSEPORT, libc::SO_BINDTODEVICE, SO_BINDTOIFINDEX],
        _ if !endpoint.speaks_mptcp() => &[],
        IPPROTO_IP => {
            &[libc::IP_FREEBIND, libc::IP_TRANSPARENT, libc::IP_BIND_ADDRESS_NO_PORT, IP_LOCAL_PORT_RANGE]
        }
        IPPROTO_IPV6 => &[libc::IPV6_V6ONLY, libc::IPV6_TRANSPARENT, libc::IPV6_FREEBIND],
        _ => &[],
    };
    names.contains(&name)
}

/// The answer of an MPTCP socket in state Connected, if it is not its kernel socket's.
///
/// # Safety
/// `value` and `len` as the kernel wants them.
pub(super) unsafe fn of_connection(
    fd: c_int,
    endpoint: &'static Endpoint,
    question: (c_int, c_int),
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<Outcome<c_int>> {
    match (question, endpoint.speaks_mptcp()) {
        // SAFETY: as the caller says.
        ((IPPROTO_TCP, TCP_IS_MPTCP), false) => Some(unsafe { put(&0i32.to_ne_bytes(), value, len) }),
        // As the kernel's TCP answers for a level that it does not know.
        ((SOL_MPTCP, _), false) if endpoint.family() == libc::AF_INET6 => {
            Some(Outcome::Errno(Errno(libc::ENOPROTOOPT)))
        }
        ((SOL_MPTCP, _), false) => Some(Outcome::Errno(Errno::EOPNOTSUPP)),
        // SAFETY: as the caller says.
        ((SOL_MPTCP, MPTCP_INFO), true) => Some(unsafe { info(fd, endpoint, value, len) }),
        _ => None,
    }
}

/// MPTCP_INFO: the answer of the kernel's socket, which is not connected, with what a connection shows.
unsafe fn info(
    fd: c_int,
    endpoint: &'static Endpoint,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Outcome<c_int> {
    if let Err(errno) = materialize(endpoint) {
        return Outcome::Errno(errno);
    }
    let mut info = [0u8; INFO_MAX];
    let mut full = INFO_MAX as u32;
    // SAFETY: the kernel writes at most `full` bytes.
    let asked = sd_sys::check(unsafe {
        let (at, len) = (info.as_mut_ptr(), &mut full as *mut u32);
        sd_sys::syscall!(libc::SYS_getsockopt, fd, SOL_MPTCP, MPTCP_INFO, at, len)
    });
    if let Err(errno) = asked {
        return Outcome::Errno(errno);
    }
    fill(&mut info, endpoint);
    let answer = info.get(..(full as usize).min(INFO_MAX)).unwrap_or(&[]);
    // SAFETY: as the caller says.
    unsafe { put(answer, value, len) }
}

/// What a healthy connection shows in struct mptcp_info. Kernels that have less of it cut the end off.
fn fill(info: &mut [u8; INFO_MAX], endpoint: &Endpoint) {
    let (sent, received) = parked::counts(endpoint);
    let (own, other) = (begins_at(endpoint, End::Local), begins_at(endpoint, End::Remote));
    let acked = own.wrapping_add(sent);
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = info.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(8, &REMOTE_KEY_RECEIVED.to_ne_bytes()); // mptcpi_flags
    put(12, &(((own >> 32) as u32) | 1).to_ne_bytes()); // mptcpi_token
    put(16, &acked.to_ne_bytes()); // mptcpi_write_seq
    put(24, &acked.to_ne_bytes()); // mptcpi_snd_una
    put(32, &other.wrapping_add(received).to_ne_bytes()); // mptcpi_rcv_nxt
    put(56, &sent.to_ne_bytes()); // mptcpi_bytes_sent
    put(64, &received.to_ne_bytes()); // mptcpi_bytes_received
    put(72, &sent.to_ne_bytes()); // mptcpi_bytes_acked
    put(80, &[1]); // mptcpi_subflows_total
}

/// From where an end counts what it sends: both ends know their names.
fn begins_at(endpoint: &Endpoint, from: End) -> u64 {
    let ports = endpoint.ports.load(Ordering::Relaxed);
    let (ports, to) = match from {
        End::Local => (ports, End::Remote),
        End::Remote => (ports.rotate_left(16), End::Local),
    };
    let [a, b] = cold::ip(endpoint, from).halves();
    let [c, d] = cold::ip(endpoint, to).halves();
    [a, b, c, d].into_iter().fold(u64::from(ports), |mixed, word| {
        // The finishing steps of splitmix64.
        let mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    })
}
