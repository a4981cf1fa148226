//! Slots of connections that wait for accept, as side B sees them.

use crate::channel::Channel;
use crate::endpoint::ALL_BITS;
use crate::listen::Listener;
use crate::process::PROCESS;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_ring::doorbell;
use sd_shm::channel::{FLAG_RESET, SlotState};

/// Index and generation of the listener that a connection was requested from.
pub(crate) fn asked_for(channel: &Channel, slot: usize) -> (u32, u32) {
    let listener = &channel.map.slot(slot).side[0].listener;
    (listener.load(Ordering::Relaxed), channel.map.names(slot).listener_gen.load(Ordering::Relaxed))
}

/// Slot and generation of every connection that waits on a channel.
pub(crate) fn each_waiting(channel: &Channel, mut each: impl FnMut(usize, u32)) {
    let used = channel.map.header().used.load(Ordering::Acquire) as usize;
    for slot in 0..used.min(sd_shm::channel::SLOTS) {
        if let Some(generation) = channel.map.waiting(slot) {
            each(slot, generation);
        }
    }
}

/// Tells A that nobody listens (any more), unless somebody has accepted meanwhile.
pub(crate) fn refuse(channel: &'static Channel, slot: usize, generation: u32) {
    let words = channel.map.slot(slot);
    let old = words.side[1].state.load(Ordering::Acquire);
    let refused = generation << 8 | SlotState::Refused as u32;
    let state = &words.side[1].state;
    if old >> 8 == generation
        || state.compare_exchange(old, refused, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return;
    }
    words.side[1].flags.store(FLAG_RESET, Ordering::Release);
    let fired = doorbell::ring(&words.side[0].wait, ALL_BITS);
    if fired & (doorbell::RX_SLEEP | doorbell::TX_SLEEP) != 0 {
        sd_sys::futex::wake(&words.side[0].wait, i32::MAX, sd_sys::futex::Scope::Shared);
    }
    if fired & (doorbell::RX_EVENT | doorbell::TX_EVENT) != 0 {
        channel.announce(slot);
    }
}

/// A thread waits in accept, as clients see it.
pub(crate) struct WaitsInAccept(Option<&'static AtomicU32>);

impl WaitsInAccept {
    pub(crate) fn enter(listener: &Listener) -> WaitsInAccept {
        let index = listener.index.load(Ordering::Relaxed) as usize;
        let page = PROCESS.public().and_then(|p| p.listeners.get(index));
        let waiting = page.map(|page| &page.waiting);
        waiting.inspect(|waiting| _ = waiting.fetch_add(1, Ordering::Relaxed));
        WaitsInAccept(waiting)
    }
}

impl Drop for WaitsInAccept {
    fn drop(&mut self) {
        self.0.inspect(|waiting| _ = waiting.fetch_sub(1, Ordering::Relaxed));
    }
}

/// How many wait, as clients see it.
pub(crate) fn publish_pending(listener: &Listener, pending: usize) {
    let index = listener.index.load(Ordering::Relaxed) as usize;
    if let Some(page) = PROCESS.public().and_then(|p| p.listeners.get(index)) {
        page.pending.store(pending as u32, Ordering::Release);
    }
}
