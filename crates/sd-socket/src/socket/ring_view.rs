//! What lies in the rings of a connection, looked at without taking it: FIONREAD, SIOCOUTQ, SIOCATMARK, TCP_INQ, and the
//! urgent mark.

use crate::socket::endpoint::{self, EndpointExt, OOB_INLINE};
use crate::socket::{apart, cold, road};
use core::sync::atomic::Ordering;
use sd_ring::road::Receive;
use sd_ring::{Next, RxCursor};
use sd_shm::channel::{FLAG_URGENT, GEOMETRY};
use sd_shm::slab::Endpoint;

const SIOCATMARK: u64 = 0x8905;

/// Ring bytes that a correct peer cannot exceed.
const WALK_MAX: u64 = 2 * GEOMETRY.large as u64;

/// What TCP_INQ tells after a call: the bytes that are left, and one more where the peer has ended its stream
/// (`tcp_inq_hint`).
pub(crate) fn bytes_left(endpoint: &'static Endpoint) -> i32 {
    let in_kernel = || receiver_by_kernel(endpoint).is_some_and(sd_sys::tcp::has_ended);
    walk(endpoint).bytes as i32 + i32::from(endpoint::peer_finished(endpoint) || in_kernel())
}

/// Bytes that can be received now (FIONREAD): up to the urgent mark, where there is one.
pub(crate) fn readable_bytes(endpoint: &'static Endpoint) -> usize {
    let found = walk(endpoint);
    found.before_mark.filter(|_| !endpoint.flag(OOB_INLINE)).unwrap_or(found.bytes)
}

/// Bytes that a receiver that waits would find.
pub(crate) fn data_bytes(endpoint: &'static Endpoint) -> usize {
    walk(endpoint).bytes
}

/// Bytes that are left of what the peer has sent by one call, if that is next; in the ring.
pub(crate) fn first_message(endpoint: &'static Endpoint) -> Option<usize> {
    let mut rx = crate::socket::parked::receiver_now(endpoint);
    match apart::next(endpoint, &mut rx) {
        Ok(Next::Data { len, .. }) => Some(len as usize),
        _ => None,
    }
}

/// SIOCATMARK.
pub(crate) fn is_at_mark(endpoint: &'static Endpoint) -> bool {
    if let Some(fd) = receiver_by_kernel(endpoint)
        && road::next_of_receiver(endpoint, fd, u64::MAX) != Receive::Ring
    {
        return queued(fd, SIOCATMARK) != 0;
    }
    // Without the token, which a handler of SIGURG may have interrupted.
    let mut rx = crate::socket::parked::receiver_now(endpoint);
    let start = rx.position();
    while rx.position().wrapping_sub(start) <= WALK_MAX && apart::next(endpoint, &mut rx) == Ok(Next::Urgent)
    {
        if is_mark(endpoint, &rx) {
            return true;
        }
        if endpoint.flag(OOB_INLINE) {
            return false;
        }
        rx.admit_urgent();
        rx.advance(1);
    }
    false
}

/// What lies in a ring.
struct Found {
    /// Bytes, but for urgent ones that the next recv passes over.
    bytes: usize,
    /// Bytes before the urgent mark.
    before_mark: Option<usize>,
    /// The marker is behind them: what follows is in the kernel's connection.
    goes_on_in_kernel: bool,
    /// More than an honest peer can have left: whoever reads on reads the same again and again.
    is_endless: bool,
}

fn walk(endpoint: &'static Endpoint) -> Found {
    let mut half = endpoint.rx_token();
    if crate::socket::parked::is_parked(endpoint, sd_ring::token::Way::Receive) {
        // The ring is at its beginning, or empty.
        let found = walk_from(endpoint, crate::socket::parked::receiver_now(endpoint));
        return Found { bytes: in_kernel(endpoint) + found.bytes, before_mark: None, ..found };
    }
    // A copy walks ahead.
    let found = walk_from(endpoint, *half.cursor());
    match found.goes_on_in_kernel && road::is_promoted(endpoint) {
        true => Found { bytes: found.bytes + in_kernel(endpoint), ..found },
        false => found,
    }
}

/// What has come by the kernel's connection, and was not read.
fn in_kernel(endpoint: &Endpoint) -> usize {
    road::number(endpoint).map_or(0, |fd| queued(fd, libc::FIONREAD))
}

fn walk_from(endpoint: &'static Endpoint, mut rx: RxCursor) -> Found {
    let mut found = Found { bytes: 0, before_mark: None, goes_on_in_kernel: false, is_endless: false };
    let start = rx.position();
    while rx.position().wrapping_sub(start) <= WALK_MAX {
        match apart::next(endpoint, &mut rx) {
            Ok(Next::Data { len, .. }) => {
                rx.advance(len);
                found.bytes += len as usize;
            }
            Ok(Next::Urgent) => {
                if is_mark(endpoint, &rx) {
                    found.before_mark = Some(found.bytes);
                }
                rx.admit_urgent();
                if found.bytes == 0 && !endpoint.flag(OOB_INLINE) {
                    rx.advance(1);
                }
            }
            Ok(Next::Marker) => return Found { goes_on_in_kernel: true, ..found },
            _ => return found,
        }
    }
    Found { is_endless: true, ..found }
}

/// See [`Found::is_endless`].
pub(crate) fn is_endless(endpoint: &'static Endpoint) -> bool {
    walk(endpoint).is_endless
}

/// Bytes that the peer has not taken yet, at most (SIOCOUTQ).
pub(crate) fn unsent_bytes(endpoint: &'static Endpoint) -> usize {
    let mut half = endpoint.tx_token();
    let tx = half.cursor();
    if tx.is_parked() {
        return road::number(endpoint).map_or(0, |fd| queued(fd, libc::TIOCOUTQ));
    }
    let _ = tx.credit(endpoint.peer_words().consumed.load(Ordering::Acquire));
    // What was sent before it moved may lie there still.
    let in_kernel = if road::is_promoted(endpoint) { road::number(endpoint) } else { None };
    tx.unread() as usize + in_kernel.map_or(0, |fd| queued(fd, libc::TIOCOUTQ))
}

/// The kernel's connection, if what comes does so there.
fn receiver_by_kernel(endpoint: &'static Endpoint) -> Option<i32> {
    if road::is_by_kernel(endpoint, road::RX_KERNEL) { road::number(endpoint) } else { None }
}

/// Bytes in a queue of the kernel's, or another number that ioctl(2) tells.
fn queued(fd: i32, request: u64) -> usize {
    let mut bytes = 0i32;
    // SAFETY: the kernel writes an int.
    let done =
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_ioctl, fd, request, &mut bytes as *mut i32) });
    if done.is_ok() { bytes.max(0) as usize } else { 0 }
}

/// Bit of `SlotSide::urgent`: there is a byte, the lowest eight bits.
pub(crate) const VALID: u64 = 0x100;

/// An urgent byte that the stream has not passed.
pub(crate) struct Mark {
    /// Ring bytes before it.
    pub(crate) position: u64,
    pub(crate) byte: u8,
}

/// The mark ahead of the receiver, or where it stands.
fn mark(endpoint: &Endpoint) -> Option<Mark> {
    let peer = endpoint.peer_words();
    if peer.flags.load(Ordering::Acquire) & FLAG_URGENT == 0 {
        return None;
    }
    let word = peer.cold()?.urgent.load(Ordering::Acquire);
    let mark = Mark { position: word >> 9, byte: word as u8 };
    let position = crate::socket::parked::receiver_now(endpoint).position();
    (word & VALID != 0 && mark.position >= position).then_some(mark)
}

/// Whether the urgent byte at which `rx` is is the mark.
pub(crate) fn is_mark(endpoint: &Endpoint, rx: &RxCursor) -> bool {
    mark(endpoint).is_some_and(|mark| mark.position == rx.position())
}

/// EPOLLPRI: there is an urgent byte that was not received out of band.
pub(crate) fn is_pending(endpoint: &Endpoint) -> bool {
    unread(endpoint).is_some()
}

/// The mark, unless its byte was received out of band.
pub(crate) fn unread(endpoint: &Endpoint) -> Option<Mark> {
    mark(endpoint).filter(|mark| cold::of(endpoint).urgent_read.load(Ordering::Relaxed) != mark.position + 1)
}
