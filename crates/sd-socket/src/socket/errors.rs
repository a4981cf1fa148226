//! Why a call on a connection fails, and in which order Linux looks: at the state first, at the buffer last.

use crate::socket::bell::notify;
use crate::socket::endpoint::{EOF, EndpointExt, FIN_SENT, PeerEnd, RESET, SHUT_WR, peer_end};
use crate::socket::road::{self, RX_KERNEL};
use core::sync::atomic::Ordering;
use sd_shm::channel::{FLAG_FIN, FLAG_RESET};
use sd_shm::slab::Endpoint;
use sd_sys::Errno;

/// How a send ends that cannot go on (tcp(7), send(2)): with an error, or well where the bytes are as good as sent but
/// nobody will read them. `None`: it can go on. `len` is how many are left to send.
#[inline(always)]
pub(crate) fn send_error(endpoint: &'static Endpoint, len: usize) -> Option<Result<(), Errno>> {
    if !endpoint.flag(SHUT_WR | RESET) && peer_end(endpoint) == PeerEnd::Open {
        return None;
    }
    send_error_slow(endpoint, len)
}

#[cold]
fn send_error_slow(endpoint: &'static Endpoint, len: usize) -> Option<Result<(), Errno>> {
    note_end(endpoint);
    if endpoint.flag(RESET | SHUT_WR) {
        return Some(Err(take_error(endpoint).unwrap_or(Errno::EPIPE)));
    }
    if let Some(errno) = reset_of_kernels(endpoint) {
        break_off(endpoint);
        return Some(Err(errno));
    }
    if len == 0 {
        return None;
    }
    // The peer closed: the first write is answered by a reset, which the next one finds.
    // A peer that only shut both directions down finds a reset as well.
    endpoint.error.store(Errno::EPIPE.0 as u16, Ordering::Relaxed);
    break_off(endpoint);
    Some(Ok(()))
}

fn break_off(endpoint: &Endpoint) {
    endpoint.set_flag(RESET);
    endpoint.own_words().flags.fetch_or(FLAG_RESET, Ordering::AcqRel);
    notify(endpoint, crate::socket::bell::ALL_BITS);
    crate::socket::bell::announce_to_self(endpoint);
}

/// The reset of a connection from which the program reads the kernel's part still: that, or the slot, tells it, and whichever call comes first
/// gets the error. An end of the slot alone says nothing of how the connection has ended.
fn reset_of_kernels(endpoint: &'static Endpoint) -> Option<Errno> {
    if !road::is_promoted(endpoint) || !road::is_by_kernel(endpoint, RX_KERNEL) {
        return None;
    }
    let of_kernel = || {
        let fd = road::number(endpoint)?;
        let errno = sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
        (errno != 0).then_some(Errno(errno))
    };
    let of_slot =
        || (peer_end(endpoint) == PeerEnd::Reset && !endpoint.flag(EOF)).then_some(Errno::ECONNRESET);
    take_error(endpoint).or_else(of_kernel).or_else(of_slot)
}

/// Turns what the peer's words say into our flags: a reset is remembered, with its error.
pub(crate) fn note_end(endpoint: &'static Endpoint) -> PeerEnd {
    let end = peer_end(endpoint);
    if end != PeerEnd::Open && road::is_by_kernel(endpoint, RX_KERNEL) {
        // The kernel's connection tells the end.
        return PeerEnd::Open;
    }
    if end == PeerEnd::Reset && !endpoint.flag(RESET) {
        let finished =
            endpoint.flag(EOF) || endpoint.peer_words().flags.load(Ordering::Acquire) & FLAG_FIN != 0;
        // tcp_reset() in the kernel: an error by the state in which the reset comes, none in TCP_CLOSE.
        // A connection that waited at a listener that closed is reset like any: it was established.
        let errno = match (finished, endpoint.flag(FIN_SENT)) {
            (true, true) => None,
            (true, false) => Some(Errno::EPIPE),
            // Another one is of the kernel's connection, without which this one cannot go on.
            _ => Some(kept_end(endpoint).unwrap_or(Errno::ECONNRESET)),
        };
        if let Some(errno) = errno {
            endpoint.error.store(errno.0 as u16, Ordering::Relaxed);
        }
        endpoint.set_flag(RESET);
    }
    end
}

/// The errno of a send that failed, after the signal that belongs to it.
pub(crate) fn send_failed(errno: Errno, flags: i32) -> Errno {
    if errno == Errno::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        sd_sys::fd::raise(libc::SIGPIPE);
    }
    errno
}

/// What a send would fail with before it takes its first byte. The peer is told nothing.
pub(crate) fn before_send(endpoint: &'static Endpoint, flags: i32) -> Result<(), Errno> {
    match send_error(endpoint, 0) {
        None | Some(Ok(())) => Ok(()),
        Some(Err(errno)) => Err(send_failed(errno, flags)),
    }
}

/// The pending error, once.
pub(crate) fn take_error(endpoint: &Endpoint) -> Option<Errno> {
    Some(Errno(i32::from(endpoint.error.swap(0, Ordering::AcqRel)))).filter(|errno| errno.0 != 0)
}

/// The library has taken an error of the kernel's connection that the program was to be told: its next call is. Only an end is such.
pub(crate) fn keep_end(endpoint: &Endpoint, errno: Errno) {
    if is_end(errno) {
        endpoint.error.store(errno.0 as u16, Ordering::Relaxed);
    }
}

/// What was kept so, once.
pub(crate) fn take_end(endpoint: &Endpoint) -> Option<Errno> {
    let kept = kept_end(endpoint)?;
    let taken = endpoint.error.compare_exchange(kept.0 as u16, 0, Ordering::AcqRel, Ordering::Relaxed);
    taken.is_ok().then_some(kept)
}

fn kept_end(endpoint: &Endpoint) -> Option<Errno> {
    Some(Errno(endpoint.error.load(Ordering::Acquire).into())).filter(|errno| is_end(*errno))
}

/// The other end has reset the connection, or nothing has got there for too long (tcp(7)).
fn is_end(errno: Errno) -> bool {
    matches!(errno.0, libc::ECONNRESET | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH)
}
