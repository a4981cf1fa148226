//! shutdown(2), and how much lies in the rings of a connection.

use crate::endpoint::{self, EndpointExt, SHUT_RD, SHUT_WR, notify, rx_cursor, tx_cursor};
use core::sync::atomic::Ordering;
use sd_ring::{Next, doorbell};
use sd_shm::channel::{FLAG_FIN, FLAG_READS_NO_MORE, GEOMETRY};
use sd_shm::slab::Endpoint;
use sd_sys::futex::{self, Scope};

/// shutdown(2) on a connection.
pub(crate) fn shutdown(endpoint: &'static Endpoint, how: i32) -> Result<(), i32> {
    if crate::names::is_over(endpoint) {
        return Err(libc::ENOTCONN);
    }
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        let _half = endpoint.tx_token();
        // SAFETY: the tx half is held.
        unsafe { tx_cursor(endpoint) }.finish(&endpoint.tx_mem());
        endpoint.own_words().flags.fetch_or(FLAG_FIN, Ordering::AcqRel);
        endpoint.set_flag(SHUT_WR);
        notify(endpoint, doorbell::RX_SLEEP | doorbell::RX_EVENT);
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        endpoint.own_words().flags.fetch_or(FLAG_READS_NO_MORE, Ordering::AcqRel);
        endpoint.set_flag(SHUT_RD);
    }
    // Threads of ours that wait on the socket must look again.
    let own = &endpoint.own_words().wait;
    doorbell::disarm(own, endpoint::ALL_BITS);
    futex::wake(own, i32::MAX, Scope::Shared);
    crate::epoll::endpoint_event(endpoint);
    Ok(())
}

/// Bytes that can be received now (FIONREAD).
pub(crate) fn readable_bytes(endpoint: &'static Endpoint) -> usize {
    let _half = endpoint.rx_token();
    let mem = endpoint.rx_mem();
    // SAFETY: the rx half is held; a copy walks ahead.
    let mut rx = unsafe { *rx_cursor(endpoint) };
    let mut bytes = 0usize;
    while let Ok(Next::Data { len, .. }) = rx.next(&GEOMETRY, &mem) {
        rx.advance(len);
        bytes += len as usize;
        if bytes > i32::MAX as usize / 2 {
            break;
        }
    }
    bytes
}

/// Bytes that the peer has not taken yet, at most (SIOCOUTQ).
pub(crate) fn unsent_bytes(endpoint: &'static Endpoint) -> usize {
    let _half = endpoint.tx_token();
    // SAFETY: the tx half is held.
    let tx = unsafe { tx_cursor(endpoint) };
    let _ = tx.credit(endpoint.peer_words().consumed.load(Ordering::Acquire));
    tx.unread() as usize
}
