//! Large rings that strangers fill, read without a look at them.
//!
//! The kernel charges a page of a segment to who touches it first. A peer that announces messages and never writes them, or takes
//! their pages away (MADV_REMOVE), has us touch, and pay for, 2 MiB on each slot of a channel that ever carried a connection,
//! as long as anybody holds the segment (ADR 59). read(2) of a hole makes no page. So a few such rings are looked into as all others
//! are (`link::kept_rings`), while there is memory enough, and the rest is read by pread(2): two calls for a message.
//!
//! *Bound*: of large rings that others fill a process touches 32, 64 MiB, and none that it had not touched before while less than
//! 1 GiB is left above the reserve (`sd_sys::budget`). Small rings and words are touched always: less than 3 KiB a connection.
//! *Cost*: none for the short way, which sees an offset that cannot be ([`sd_ring::Next::Apart`]). Tested by `tests/model.rs` of sd-ring
//! and `cargo xtask hostile --only charge`.

use crate::link::channel::Channel;
use crate::link::kept_rings::may_enter;
use crate::socket::endpoint::EndpointExt;
use core::sync::atomic::Ordering;
use sd_ring::{Corrupt, Next, RingMem, RxCursor};
use sd_shm::channel::GEOMETRY;
use sd_shm::rings::Rings;
use sd_shm::slab::{Endpoint, FIXED_BUF};
use sd_sys::{Errno, confine};

/// Laps apart that a correct peer lets follow one another without a message: one.
const LAPS_MAX: u32 = 2;

/// A new connection to a stranger; `rx` is its cursor.
#[cold]
pub(super) fn attached(endpoint: &Endpoint, channel: &Channel, slot: usize, rx: &mut RxCursor) {
    if !channel.grown.may(slot, || true) {
        endpoint.set_flag(FIXED_BUF);
    }
    rx.beware();
}

/// What a receiver finds next; `rx` is its cursor, or a copy of it.
#[inline(always)]
pub(crate) fn next(endpoint: &Endpoint, rx: &mut RxCursor) -> Result<Next, Corrupt> {
    match rx.next(&GEOMETRY, &endpoint.rx_mem()) {
        Ok(Next::Apart) => next_apart(endpoint, rx),
        found => found,
    }
}

#[cold]
fn next_apart(endpoint: &Endpoint, rx: &mut RxCursor) -> Result<Next, Corrupt> {
    for _ in 0..LAPS_MAX {
        if let Some(mem) = Incoming::of(endpoint) {
            return rx.next_apart(&GEOMETRY, &mem);
        }
        rx.join();
        let found = rx.next(&GEOMETRY, &endpoint.rx_mem());
        if found != Ok(Next::Apart) {
            return found;
        }
    }
    Err(Corrupt)
}

/// Whether there is something to receive, for who has seen that there may be.
#[cold]
pub(super) fn has_data(endpoint: &Endpoint, rx: &mut RxCursor) -> bool {
    matches!(next(endpoint, rx), Ok(Next::Data { .. } | Next::Urgent))
}

/// When the message was sent that `next` has found; see [`RxCursor::stamp`].
pub(crate) fn stamp(endpoint: &Endpoint, rx: &RxCursor) -> u32 {
    match Incoming::of(endpoint).filter(|_| rx.is_apart()) {
        Some(mem) => rx.stamp(&mem),
        None => rx.stamp(&endpoint.rx_mem()),
    }
}

/// Copies bytes of a message that `next` has found: how many.
///
/// # Safety
/// So many bytes at `to` may be written, and `from` is where the cursor found them.
#[inline(always)]
pub(crate) unsafe fn copy(
    endpoint: &Endpoint,
    rx: &RxCursor,
    (to, from, len): (*mut u8, *const u8, usize),
) -> Result<usize, Errno> {
    if rx.is_apart()
        && let Some(mem) = Incoming::of(endpoint)
    {
        // SAFETY: as the caller says.
        return unsafe { mem.read(to, from, len) };
    }
    // SAFETY: as the caller says.
    unsafe { sd_ring::copy::copy_shared(to, from, len) };
    Ok(len)
}

/// The ring that a stranger fills, its large region by way of the file.
struct Incoming {
    near: Rings,
    file: i32,
    /// Where in the file the large region begins.
    large: u64,
}

impl Incoming {
    /// `None`: it is looked into.
    fn of(endpoint: &Endpoint) -> Option<Incoming> {
        let channel: &Channel = endpoint.channel_ref()?;
        let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
        if may_enter(channel, slot) || channel.segment_fd.raw() < 0 || !confine::allows(libc::SYS_pread64) {
            return None;
        }
        let near = endpoint.rx_mem();
        Some(Incoming { near, file: channel.segment_fd.raw(), large: near.place(&channel.map, 1, 0) })
    }

    /// # Safety
    /// As for [`copy`].
    #[cold]
    unsafe fn read(&self, to: *mut u8, from: *const u8, len: usize) -> Result<usize, Errno> {
        let at = self.large + (from as u64 - self.near.at(1, 0) as u64);
        // SAFETY: as the caller says.
        match unsafe { sd_sys::fd::pread(self.file, to, len, at) } {
            Ok(0) => Err(Errno::EIO),
            done => done,
        }
    }
}

impl RingMem for Incoming {
    fn load(&self, region: u32, off: u32) -> u64 {
        if region == 0 {
            return self.near.load(region, off);
        }
        let mut word = [0; 8];
        // SAFETY: the buffer is that long.
        let got = unsafe {
            sd_sys::fd::pread(self.file, word.as_mut_ptr(), word.len(), self.large + u64::from(off))
        };
        // It must not fail; a look at it makes a page at worst.
        if got == Ok(word.len()) { u64::from_ne_bytes(word) } else { self.near.load(region, off) }
    }
    fn publish(&self, _region: u32, _off: u32, _word: u64) {}
    fn store(&self, _region: u32, _off: u32, _word: u64) {}
}
