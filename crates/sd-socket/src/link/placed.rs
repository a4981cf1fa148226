//! The addresses that an endpoint holds: of the peer's words of its slot, and from there to the rings.
//!
//! They stand in the slab, which the members of a family write, all with the same rights (see `separate`), so that no use
//! of them is checked. Who takes an endpoint up that another process has filled in, by hand-over or exec, looks once.

use crate::link::channel::Channel;
use core::sync::atomic::{AtomicPtr, Ordering};
use sd_shm::channel::{Mapping, SLOTS, Side, SlotSide};
use sd_shm::slab::Endpoint;

/// Of a slot of a channel.
#[derive(PartialEq, Eq)]
struct Place {
    peer: u64,
    rings: [u32; 2],
}

#[inline(always)]
fn of(channel: &Channel, slot: usize, peer: &SlotSide) -> Place {
    within((channel.map, channel.side), slot, peer)
}

#[inline(always)]
fn within((map, side): (Mapping, Side), slot: usize, peer: &SlotSide) -> Place {
    let peer = core::ptr::from_ref(peer) as u64;
    let distance = |from| (map.small_ring(slot, from) as u64 - peer) as u32;
    Place { peer, rings: [distance(side), distance(side.other())] }
}

/// Notes them in an endpoint that is tied to the slot, with these words of the peer's.
#[inline(always)]
pub(crate) fn note(endpoint: &Endpoint, channel: &Channel, slot: usize, peer: &SlotSide) {
    store(endpoint, of(channel, slot, peer));
}

#[inline(always)]
fn store(endpoint: &Endpoint, place: Place) {
    let Place { peer, rings: [to_send, to_receive] } = place;
    let [tx, rx] = &endpoint.rings;
    endpoint.peer.store(peer, Ordering::Relaxed);
    tx.store(to_send, Ordering::Relaxed);
    rx.store(to_receive, Ordering::Relaxed);
}

/// Where [`nowhere`] begins; null: it was not needed yet.
static NOWHERE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// A slot of private memory. Children of forks have it at the same place.
pub(crate) fn nowhere() -> Option<Mapping> {
    let known = NOWHERE.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(Mapping::known_nowhere(known));
    }
    let made = Mapping::nowhere().ok()?;
    let none = core::ptr::null_mut();
    match NOWHERE.compare_exchange(none, made.base(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made),
        Err(known) => {
            // SAFETY: just made, and known to nobody.
            unsafe { made.unmap() };
            Some(Mapping::known_nowhere(known))
        }
    }
}

/// The endpoint has given its slot back, which may carry another connection from now on, or be unmapped. A call that is under way finds words
/// that say nothing, and empty rings.
pub(crate) fn note_nowhere(endpoint: &Endpoint, nowhere: Mapping) {
    let [_, peer] = &nowhere.slot(0).side;
    store(endpoint, within((nowhere, Side::A), 0, peer));
}

/// Whether they are those of the slot that the endpoint names.
pub(crate) fn is_right(endpoint: &Endpoint, channel: &Channel) -> bool {
    let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
    let [tx, rx] = &endpoint.rings;
    let rings = [tx.load(Ordering::Relaxed), rx.load(Ordering::Relaxed)];
    let noted = Place { peer: endpoint.peer.load(Ordering::Relaxed), rings };
    let [a, b] = &channel.map.slot(slot).side;
    slot < SLOTS && noted == of(channel, slot, if channel.side == Side::A { b } else { a })
}
