//! Why a call on a connection fails, and in which order Linux looks: at the state first, at the buffer last.

use crate::socket::bell::notify;
use crate::socket::endpoint::{EOF, EndpointExt, FIN_SENT, PeerEnd, RESET, SHUT_WR, peer_end};
use core::sync::atomic::Ordering;
use sd_shm::channel::{FLAG_FIN, FLAG_RESET};
use sd_shm::slab::Endpoint;

/// Why sending is impossible, if it is (tcp(7), send(2)); zero when the bytes are as good as sent but
/// nobody will read them. `len` is how many are left to send.
#[inline(always)]
pub(crate) fn send_error(endpoint: &'static Endpoint, len: usize) -> Option<i32> {
    if !endpoint.flag(SHUT_WR | RESET) && peer_end(endpoint) == PeerEnd::Open {
        return None;
    }
    send_error_slow(endpoint, len)
}

#[cold]
fn send_error_slow(endpoint: &'static Endpoint, len: usize) -> Option<i32> {
    note_end(endpoint);
    if endpoint.flag(RESET | SHUT_WR) {
        let error = i32::from(endpoint.error.swap(0, Ordering::AcqRel));
        return Some(if error != 0 { error } else { libc::EPIPE });
    }
    if len == 0 {
        return None;
    }
    // The peer closed: the first write is answered by a reset, which the next one finds.
    // A peer that only shut both directions down finds a reset as well.
    endpoint.error.store(libc::EPIPE as u16, Ordering::Relaxed);
    endpoint.set_flag(RESET);
    endpoint.own_words().flags.fetch_or(FLAG_RESET, Ordering::AcqRel);
    notify(endpoint, crate::socket::bell::ALL_BITS);
    crate::link::channel::announce_to_self(endpoint);
    Some(0)
}

/// Turns what the peer's words say into our flags: a reset is remembered, with its error.
pub(crate) fn note_end(endpoint: &'static Endpoint) -> PeerEnd {
    let end = peer_end(endpoint);
    if end == PeerEnd::Reset && !endpoint.flag(RESET) {
        let finished =
            endpoint.flag(EOF) || endpoint.peer_words().flags.load(Ordering::Acquire) & FLAG_FIN != 0;
        // tcp_reset() in the kernel: an error by the state in which the reset comes, none in TCP_CLOSE.
        // A connection that waited at a listener that closed is reset like any: it was established.
        let errno = match (finished, endpoint.flag(FIN_SENT)) {
            (true, true) => 0,
            (true, false) => libc::EPIPE,
            _ => libc::ECONNRESET,
        };
        if errno != 0 {
            endpoint.error.store(errno as u16, Ordering::Relaxed);
        }
        endpoint.set_flag(RESET);
    }
    end
}

/// The errno of a send that failed, after the signal that belongs to it.
pub(crate) fn send_failed(errno: i32, flags: i32) -> i32 {
    if errno == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        sd_sys::fd::raise(libc::SIGPIPE);
    }
    errno
}

/// What a send would fail with before it takes its first byte. The peer is told nothing.
pub(crate) fn before_send(endpoint: &'static Endpoint, flags: i32) -> Result<(), i32> {
    match send_error(endpoint, 0) {
        None | Some(0) => Ok(()),
        Some(errno) => Err(send_failed(errno, flags)),
    }
}

/// The pending error, once.
pub(crate) fn take_error(endpoint: &Endpoint) -> Option<i32> {
    Some(i32::from(endpoint.error.swap(0, Ordering::AcqRel))).filter(|errno| *errno != 0)
}
