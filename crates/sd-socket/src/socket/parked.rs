//! A half of a connection that was parked: its page was given back, and a word of it is kept beside (`memory::park` parks).
//!
//! A half of zeros is *parked*: nothing can be sent or received with it. There who takes its token makes it what it was,
//! first of all; who looks without a token takes what is kept.

use crate::link::kept_rings::are_kept;
use crate::process::PROCESS;
use crate::socket::addr::{self, Name};
use crate::socket::endpoint::{EndpointExt, RESET};
use core::sync::atomic::{AtomicU32, Ordering, fence};
use sd_ring::token::Way;
use sd_ring::{RxCursor, TxCursor};
use sd_shm::channel::GEOMETRY;
use sd_shm::slab::{
    End, Endpoint, ParkedHalves, ROAD_MOVED, ROAD_RX_KERNEL, ROAD_RX_LEFT, ROAD_TX_KERNEL, ROAD_TX_LEFT,
    RX_PARKED, TX_PARKED,
};

/// Pages that this process has given back.
pub(crate) static PAGES: AtomicU32 = AtomicU32::new(0);

fn kept(endpoint: &Endpoint) -> Option<&'static ParkedHalves> {
    let (rec, index) = PROCESS.locate(endpoint)?;
    rec.slab()?.kept(index)
}

/// Nothing is sent, or received, through the half now: its bytes go through the kernel's connection (`road`). If they will come back
/// (`kernel`, and not `left`), who ends the connection is told of none of that.
fn stays_parked(endpoint: &Endpoint, kernel: u32, left: u32) -> bool {
    let Some((rec, index)) = PROCESS.locate(endpoint) else { return false };
    let Some(cold) = rec.slab().and_then(|slab| slab.cold_of(endpoint)) else { return false };
    let road = cold.road.load(Ordering::Acquire);
    let is_open = || rec.private(index).is_some_and(|private| private.fds.load(Ordering::Acquire) != 0);
    road & left != 0 || road & kernel != 0 && is_open()
}

/// [`sd_shm::slab::Cold::road`].
fn road(endpoint: &Endpoint) -> u32 {
    crate::socket::cold::of(endpoint).road.load(Ordering::Acquire)
}

/// The sending half leaves the ring for good: a marker is the last there, if there is to be one, and nothing is sent from it any more. For
/// who has its token, after LEAVING or RESUME was said. Whoever dies in here leaves it to the next, who does it again.
pub(super) fn leave_tx(endpoint: &Endpoint, tx: &mut TxCursor, marker: bool) {
    let Some(kept) = kept(endpoint) else { return };
    let word = &crate::socket::cold::of(endpoint).road;
    let was = word.load(Ordering::Acquire);
    if was & (ROAD_TX_KERNEL | ROAD_TX_LEFT) == ROAD_TX_KERNEL {
        // Who switched died before it was noted: nothing was sent through the ring yet.
        word.fetch_and(!ROAD_TX_KERNEL, Ordering::AcqRel);
        unpark_tx(endpoint, tx);
    }
    if was & ROAD_TX_LEFT == 0 {
        if marker {
            tx.mark(&endpoint.tx_mem(), crate::socket::bell::stamp(endpoint));
        }
        sd_sys::budget::give_back(tx.large_used());
        // Whether the large region was used.
        kept.tx.store(u64::from(tx.large_was_used()), Ordering::Relaxed);
        kept.tx_bytes.store(endpoint.tx().bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        word.fetch_or(ROAD_TX_KERNEL | ROAD_TX_LEFT | ROAD_MOVED, Ordering::AcqRel);
    }
    endpoint.set_flag(TX_PARKED);
    tx.park_behind_marker();
}

/// The receiving half leaves the ring for good, at the marker, where it stays. For who has its token.
pub(super) fn leave_rx(endpoint: &Endpoint) {
    let Some(kept) = kept(endpoint) else { return };
    let half = endpoint.rx();
    kept.rx.store(0, Ordering::Relaxed);
    kept.rx_bytes.store(half.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    for (to, from) in kept.short_addresses.iter().zip(&half.short_addresses) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    let word = &crate::socket::cold::of(endpoint).road;
    word.fetch_or(ROAD_RX_KERNEL | ROAD_RX_LEFT | ROAD_MOVED, Ordering::AcqRel);
    endpoint.set_flag(RX_PARKED);
    half.lowat.store(0, Ordering::Release);
}

/// The receiving half goes on in the ring, which it had left, from `at` on. For who has its token. Whoever dies in here leaves what the next
/// one does again, or a half that reads the ring.
pub(super) fn enter_rx(endpoint: &Endpoint, rx: &mut RxCursor, at: RxCursor) {
    let Some(kept) = kept(endpoint) else { return };
    restore_rx(endpoint, rx, kept, at);
    let word = &crate::socket::cold::of(endpoint).road;
    word.fetch_and(!(ROAD_RX_KERNEL | ROAD_RX_LEFT), Ordering::AcqRel);
}

/// The half is parked; for who has its token.
#[inline(always)]
pub(crate) fn is_parked(endpoint: &Endpoint, way: Way) -> bool {
    match way {
        // SAFETY: plain integers in our own slab.
        Way::Send => unsafe { &*endpoint.tx().cursor.get() }.is_parked(),
        Way::Receive => endpoint.rx().lowat.load(Ordering::Relaxed) == 0,
    }
}

/// Makes a parked half to send what it was, for who has its token.
#[cold]
pub(super) fn unpark_tx(endpoint: &Endpoint, cursor: &mut TxCursor) {
    let Some(kept) = kept(endpoint).filter(|_| !stays_parked(endpoint, ROAD_TX_KERNEL, ROAD_TX_LEFT)) else {
        return;
    };
    endpoint.tx().bytes.store(kept.tx_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    cursor.unpark(&GEOMETRY, kept.tx.load(Ordering::Relaxed));
    endpoint.clear_flag(TX_PARKED);
}

/// Whether bytes lie unread in the kernel's connection, whose last number is being closed. That may be another file's by now if there was a
/// second one, so its ports are looked at.
fn has_unread_in_kernel(endpoint: &Endpoint) -> bool {
    let fd = endpoint.fd.load(Ordering::Relaxed);
    let mut bytes = 0i32;
    // SAFETY: the kernel writes an int.
    let asked = sd_sys::check(unsafe {
        sd_sys::syscall!(libc::SYS_ioctl, fd, libc::FIONREAD, &mut bytes as *mut i32)
    });
    let port = |name: Option<(i32, Name)>| name.map_or(0, |(_, name)| u32::from(name.port));
    asked.is_ok()
        && bytes > 0
        && port(addr::kernel_name(fd)) << 16 | port(addr::kernel_peer(fd))
            == endpoint.ports.load(Ordering::Relaxed)
}

/// Makes a parked half to receive what it was, for who has its token.
#[cold]
pub(super) fn unpark_rx(endpoint: &Endpoint, cursor: &mut RxCursor) {
    let Some(kept) = kept(endpoint).filter(|_| !stays_parked(endpoint, ROAD_RX_KERNEL, ROAD_RX_LEFT)) else {
        return;
    };
    if road(endpoint) & ROAD_RX_KERNEL != 0 && has_unread_in_kernel(endpoint) {
        // The connection ends with a reset, which the kernel's cannot tell who reads the ring.
        endpoint.set_flag(RESET);
    }
    restore_rx(endpoint, cursor, kept, unparked(endpoint, kept));
}

/// The receiving half has what was kept of it again, and receives from `at` on. The low-water mark is the last: who looks without the token
/// believes what stands there as soon as it is not zero.
fn restore_rx(endpoint: &Endpoint, rx: &mut RxCursor, kept: &ParkedHalves, at: RxCursor) {
    let half = endpoint.rx();
    half.bytes.store(kept.rx_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    for (to, from) in half.short_addresses.iter().zip(&kept.short_addresses) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    *rx = at;
    half.lowat.store(1, Ordering::Release);
    endpoint.clear_flag(RX_PARKED);
}

/// The receiving cursor that was parked.
fn unparked(endpoint: &Endpoint, kept: &ParkedHalves) -> RxCursor {
    let mut cursor = RxCursor::unparked(kept.rx.load(Ordering::Relaxed));
    if endpoint.channel_ref().is_some_and(are_kept) {
        cursor.beware();
    }
    cursor
}

/// Both halves are parked.
pub(crate) fn are_both_parked(endpoint: &Endpoint) -> bool {
    let both = TX_PARKED | RX_PARKED;
    endpoint.flags.load(Ordering::Relaxed) & both == both
}

/// The sending cursor as it may be: for a hint.
pub(crate) fn glance(endpoint: &Endpoint) -> TxCursor {
    if endpoint.flag(TX_PARKED)
        && let Some((rec, _)) = PROCESS.locate(endpoint)
        && let Some((cursor, _)) = rec.slab().and_then(|slab| slab.sender(endpoint))
    {
        return cursor;
    }
    // SAFETY: plain data in our own slab; a torn read gives a wrong hint only.
    unsafe { core::ptr::read_volatile(endpoint.tx().cursor.get()) }
}

/// What is read in a receiving half without its token. `None`: it is parked, or a page was given back meanwhile.
#[inline(always)]
fn unless_parked<T>(endpoint: &Endpoint, read: impl FnOnce() -> T) -> Option<T> {
    let pages = PAGES.load(Ordering::Acquire);
    if endpoint.rx().lowat.load(Ordering::Acquire) == 0 {
        return None;
    }
    let found = read();
    fence(Ordering::Acquire);
    (PAGES.load(Ordering::Relaxed) == pages).then_some(found)
}

/// The receiving cursor, for a look without the token: torn at worst by another thread that receives. `None`: it was
/// parked meanwhile.
#[inline(always)]
pub(crate) fn receiver(endpoint: &Endpoint) -> Option<RxCursor> {
    // SAFETY: plain integers in our own slab.
    unless_parked(endpoint, || unsafe { core::ptr::read_volatile(endpoint.rx().cursor.get()) })
}

/// What stands in a receiving half, parked or not, for who cannot look again, since it may be a handler of signals.
fn look<T>(
    endpoint: &Endpoint,
    live: impl Fn() -> Option<T>,
    parked: impl Fn(&ParkedHalves) -> T,
) -> Option<T> {
    loop {
        if let Some(found) = live() {
            return Some(found);
        }
        // Else some other page was given back just now.
        if is_parked(endpoint, Way::Receive) {
            return kept(endpoint).map(parked);
        }
    }
}

/// The receiving cursor, parked or not.
pub(crate) fn receiver_now(endpoint: &Endpoint) -> RxCursor {
    if road(endpoint) & ROAD_RX_LEFT != 0 {
        // It was never given up, and stands at the marker.
        // SAFETY: plain integers in our own slab.
        return unsafe { core::ptr::read_volatile(endpoint.rx().cursor.get()) };
    }
    look(endpoint, || receiver(endpoint), |kept| unparked(endpoint, kept)).unwrap_or_default()
}

/// An address as it stands in the receiving half.
pub(crate) fn address(endpoint: &Endpoint, end: End) -> u32 {
    let word = |[local, remote]: &[AtomicU32; 2]| {
        let word = if end == End::Local { local } else { remote };
        word.load(Ordering::Relaxed)
    };
    let live = || unless_parked(endpoint, || word(&endpoint.rx().short_addresses));
    look(endpoint, live, |kept| word(&kept.short_addresses)).unwrap_or(0)
}

/// Bytes that were sent and received.
pub(crate) fn counts(endpoint: &Endpoint) -> (u64, u64) {
    let slab = PROCESS.locate(endpoint).and_then(|(rec, _)| rec.slab());
    let count = |found: Option<u64>| found.unwrap_or(0);
    let sent = slab.and_then(|slab| slab.sender(endpoint)).map(|(_, bytes)| bytes);
    let received = slab.and_then(|slab| slab.receiver(endpoint)).map(|(_, bytes, _)| bytes);
    (count(sent), count(received))
}
