//! TCP_DEFER_ACCEPT: a connection is given to accept when its first bytes are there, or the time is over.
//!
//! What has not sent yet stays in the backlog, not ripe. Side B asks for an event in its word of the slot, so the first
//! bytes announce the slot like a request. A sleep of a process with unripe connections lasts until the first of them is ripe.

use crate::backlog::listener::{Listener, Pending, record};
use crate::link::outstanding::asked_for;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_ring::doorbell;
use sd_shm::channel::{FLAG_DEAD, FLAG_FIN, FLAG_RESET, Side, SlotState};
use sd_shm::slab::Endpoint;

const SECOND_NS: u64 = 1_000_000_000;
const MS_NS: u64 = 1_000_000;
/// The shortest sleep for one.
const LOOK_NS: u64 = 1_000_000;

/// When the first of those that were found unripe lately will be ripe; MAX: there are none.
static RIPE_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// When a connection came, in milliseconds that wrap around.
#[derive(Clone, Copy)]
pub(crate) struct Since(u32);

impl Since {
    /// For a listener without TCP_DEFER_ACCEPT.
    pub(super) const NOT_ASKED: Since = Since(0);

    pub(crate) fn now() -> Since {
        Since::ago(0)
    }

    pub(super) fn ago(ns: u64) -> Since {
        Since((sd_sys::time::now_ns().saturating_sub(ns) / MS_NS) as u32)
    }

    fn elapsed_ns(self, now_ns: u64) -> u64 {
        u64::from(((now_ns / MS_NS) as u32).wrapping_sub(self.0)) * MS_NS
    }
}

/// What a listener's kernel socket says.
pub(crate) fn seconds(fd: i32) -> u32 {
    let set = sd_sys::fd::getsockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
    set.unwrap_or(0).max(0) as u32
}

/// An option of the kernel socket was set.
pub(crate) fn option_set(endpoint: &Endpoint, fd: i32) {
    if let Some(listener) = record(endpoint) {
        listener.defer.store(seconds(fd), Ordering::Relaxed);
    }
}

/// Whether accept may have a connection that waits at a listener with these seconds of TCP_DEFER_ACCEPT.
#[inline]
pub(crate) fn is_ripe(seconds: &AtomicU32, pending: &Pending) -> bool {
    match seconds.load(Ordering::Relaxed) {
        0 => true,
        seconds => is_ripe_slow(seconds, pending),
    }
}

#[cold]
fn is_ripe_slow(seconds: u32, pending: &Pending) -> bool {
    let Pending { channel, slot, .. } = *pending;
    let [a, b] = &channel.map.slot(slot).side;
    let has_sent = || {
        // SAFETY: the first word of a small ring of a channel that the pending connection keeps mapped.
        let first = unsafe { &*(channel.map.small_ring(slot, Side::A) as *const AtomicU64) };
        first.load(Ordering::Acquire) != 0
            || a.flags.load(Ordering::Acquire) & (FLAG_FIN | FLAG_RESET | FLAG_DEAD) != 0
            || a.state().1 == SlotState::Closed
    };
    let now = sd_sys::time::now_ns();
    let left = (u64::from(seconds) * SECOND_NS).saturating_sub(pending.since.elapsed_ns(now));
    if left == 0 || has_sent() {
        return true;
    }
    doorbell::arm(&b.wait, doorbell::RX_EVENT);
    RIPE_AT.fetch_min(now.saturating_add(left), Ordering::Relaxed);
    has_sent()
}

/// Another process shall have a connection only when it is ripe, unless nobody else can have it.
pub(super) fn stays(listener: &Listener, pending: &Pending) -> bool {
    let is_orphan = pending.channel.map.header().dead.iter().any(|dead| dead.load(Ordering::Acquire) != 0);
    let (_, generation) = asked_for(pending.channel, pending.slot);
    generation != 0 && !is_orphan && !is_ripe(&listener.defer, pending)
}

/// A sleep shall last until then at most.
pub(crate) fn look_at(time_ns: u64) {
    RIPE_AT.fetch_min(time_ns, Ordering::Relaxed);
}

/// Something is to be looked at some time.
#[inline]
pub(crate) fn is_any() -> bool {
    RIPE_AT.load(Ordering::Relaxed) != u64::MAX
}

/// Before a sleep: how long it may last.
pub(crate) fn pause() -> Option<u64> {
    let ripe_at = RIPE_AT.load(Ordering::Relaxed);
    if ripe_at == u64::MAX {
        return None;
    }
    let left = ripe_at.saturating_sub(sd_sys::time::now_ns());
    if left == 0 {
        // Whoever sleeps now looks again soon, and notes what is to be looked at later.
        let _ = RIPE_AT.compare_exchange(ripe_at, u64::MAX, Ordering::Relaxed, Ordering::Relaxed);
    }
    Some(left.max(LOOK_NS))
}
