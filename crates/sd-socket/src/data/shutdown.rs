//! shutdown(2), connect(2) with AF_UNSPEC, and how much lies in the rings of a connection.

use crate::process::PROCESS;
use crate::socket::apart;
use crate::socket::endpoint::{
    self, EndpointExt, FIN_SENT, HAS_SIGNALS, INQ, KEEPS_ADDRESS, NONBLOCK, OOB_INLINE, OWN_SOCKET, SHUT_RD,
    SHUT_WR, STAMPS, STAMPS_NS, WATCHED, ZERO_COPY, notify, rx_cursor, tx_cursor,
};
use core::sync::atomic::Ordering;
use sd_ring::{Next, doorbell};
use sd_shm::channel::{FLAG_FIN, FLAG_READS_NO_MORE, GEOMETRY};
use sd_shm::slab::Endpoint;
use sd_sys::futex::{self, Scope};

/// Ring bytes that a correct peer cannot exceed.
const WALK_MAX: u64 = 2 * GEOMETRY.large as u64;

/// shutdown(2) on a connection.
pub(crate) fn shutdown(endpoint: &'static Endpoint, how: i32) -> Result<(), i32> {
    if crate::socket::names::is_over(endpoint) {
        return Err(libc::ENOTCONN);
    }
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        crate::setup::time_wait::note_shutdown(endpoint);
        let _half = endpoint.tx_token();
        // SAFETY: the tx half is held.
        unsafe { tx_cursor(endpoint) }.finish(&endpoint.tx_mem(), crate::data::fast::stamp(endpoint));
        endpoint.own_words().flags.fetch_or(FLAG_FIN, Ordering::AcqRel);
        endpoint.set_flag(SHUT_WR | FIN_SENT);
        notify(endpoint, crate::data::stream::RX_BITS);
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        endpoint.own_words().flags.fetch_or(FLAG_READS_NO_MORE, Ordering::AcqRel);
        endpoint.set_flag(SHUT_RD);
    }
    look_again(endpoint);
    Ok(())
}

/// Threads of ours that wait on the socket must look again.
pub(crate) fn look_again(endpoint: &'static Endpoint) {
    wake_sleepers(endpoint);
    crate::epoll::endpoint_event(endpoint);
}

/// Those of them that sleep in send or recv.
pub(crate) fn wake_sleepers(endpoint: &'static Endpoint) {
    let own = &endpoint.own_words().wait;
    doorbell::disarm(own, endpoint::ALL_BITS & !(doorbell::RX_SIGNAL | doorbell::TX_SIGNAL));
    futex::wake(own, i32::MAX, Scope::Shared);
}

/// Breaks a connection off, for connect(2) with AF_UNSPEC: the peer is reset, and the endpoint is
/// as good as new.
pub(crate) fn disconnect(endpoint: &'static Endpoint) {
    let over = crate::socket::names::is_over(endpoint);
    endpoint.set_flag(endpoint::RESET);
    if let (Some(channel), Some((rec, _))) = (endpoint.channel_ref(), PROCESS.locate(endpoint)) {
        endpoint::hang_up(endpoint, channel, rec);
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
    crate::setup::syn_sent::unconnect(endpoint, if over { 0 } else { libc::ECONNRESET });
}

/// What TCP_INQ tells after a call: the bytes that are left, and one more where the peer has ended its stream
/// (`tcp_inq_hint`).
pub(super) fn bytes_left(endpoint: &'static Endpoint) -> i32 {
    walk(endpoint).bytes as i32 + i32::from(endpoint::peer_finished(endpoint))
}

/// Bytes that can be received now (FIONREAD): up to the urgent mark, where there is one.
pub(crate) fn readable_bytes(endpoint: &'static Endpoint) -> usize {
    let found = walk(endpoint);
    found.before_mark.filter(|_| !endpoint.flag(OOB_INLINE)).unwrap_or(found.bytes)
}

/// Bytes that a receiver with patience finds.
pub(crate) fn data_bytes(endpoint: &'static Endpoint) -> usize {
    walk(endpoint).bytes
}

/// SIOCATMARK.
pub(crate) fn is_at_mark(endpoint: &'static Endpoint) -> bool {
    // Without the token, which a handler of SIGURG may have interrupted.
    let mut rx = crate::memory::parked::receiver_now(endpoint);
    let start = rx.position();
    while rx.position().wrapping_sub(start) <= WALK_MAX && apart::next(endpoint, &mut rx) == Ok(Next::Urgent)
    {
        if crate::data::urgent::is_mark(endpoint, &rx) {
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
    /// More than an honest peer can have left: whoever reads on reads the same again and again.
    is_endless: bool,
}

fn walk(endpoint: &'static Endpoint) -> Found {
    let _half = endpoint.rx_token();
    // SAFETY: the rx half is held; a copy walks ahead.
    let mut rx = unsafe { *rx_cursor(endpoint) };
    let mut found = Found { bytes: 0, before_mark: None, is_endless: false };
    let start = rx.position();
    while rx.position().wrapping_sub(start) <= WALK_MAX {
        match apart::next(endpoint, &mut rx) {
            Ok(Next::Data { len, .. }) => {
                rx.advance(len);
                found.bytes += len as usize;
            }
            Ok(Next::Urgent) => {
                if crate::data::urgent::is_mark(endpoint, &rx) {
                    found.before_mark = Some(found.bytes);
                }
                rx.admit_urgent();
                if found.bytes == 0 && !endpoint.flag(OOB_INLINE) {
                    rx.advance(1);
                }
            }
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
    let _half = endpoint.tx_token();
    // SAFETY: the tx half is held.
    let tx = unsafe { tx_cursor(endpoint) };
    let _ = tx.credit(endpoint.peer_words().consumed.load(Ordering::Acquire));
    tx.unread() as usize
}
