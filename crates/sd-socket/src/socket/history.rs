//! For `sd ss`: since when the bytes of a connection that the kernel has made take the road that they do, how often that has changed, why,
//! and what a move to shared memory waits for.
//!
//! For people only: nobody decides by it. It is written where a connection begins to be watched, is offered or refused, and where a
//! direction takes another road; never on the way of a message.

use crate::socket::cold;
use core::sync::atomic::Ordering;
use sd_shm::promotion::Advice;
use sd_shm::slab::{Awaits, Endpoint, Moved};

/// The kernel makes a connection, or has accepted one, whose calls are counted.
pub(crate) fn begin(endpoint: &Endpoint) {
    cold::change(endpoint, |cold| {
        cold.road_since_ns.store(sd_sys::time::now_ns(), Ordering::Relaxed);
        cold.road_changes.store(0, Ordering::Relaxed);
        cold.road_moved.store(Moved::Never as u16, Ordering::Relaxed);
        cold.road_awaits.store(Awaits::Messages as u16, Ordering::Relaxed);
    });
}

/// What it waits for now.
pub(crate) fn awaits(endpoint: &Endpoint, what: Awaits) {
    cold::of(endpoint).road_awaits.store(what as u16, Ordering::Relaxed);
}

/// It has left one road altogether, or has begun to leave it: what `sd ss` calls its path is another one.
pub(crate) fn moved(endpoint: &Endpoint, why: Moved) {
    cold::change(endpoint, |cold| {
        cold.road_since_ns.store(sd_sys::time::now_ns(), Ordering::Relaxed);
        let changes = cold.road_changes.load(Ordering::Relaxed);
        cold.road_changes.store(changes.saturating_add(1), Ordering::Relaxed);
        cold.road_moved.store(why as u16, Ordering::Relaxed);
        cold.road_awaits.store(Awaits::Nothing as u16, Ordering::Relaxed);
    });
}

/// It is to leave its road for this reason, as its own side wishes; [`why_it_leaves`] says so when it does.
pub(crate) fn leaves_for(endpoint: &Endpoint, why: Moved) {
    cold::of(endpoint).road_moved.store(why as u16, Ordering::Relaxed);
}

/// See [`leaves_for`]. Nobody has said more than that it is to leave: it was asked for.
pub(crate) fn why_it_leaves(endpoint: &Endpoint) -> Moved {
    match Moved::from_u32(cold::of(endpoint).road_moved.load(Ordering::Relaxed).into()) {
        Moved::Policy => Moved::Policy,
        _ => Moved::Asked,
    }
}

/// The peer wishes that it leaves its road: an engine may have said why.
pub(crate) fn why_the_peer_wishes(flags: u32) -> Moved {
    match Advice::of(flags) {
        Some(Advice::Few) => Moved::Few,
        Some(Advice::Bulk) => Moved::Bulk,
        Some(Advice::Sparse) => Moved::Sparse,
        Some(Advice::Woken) => Moved::Woken,
        Some(Advice::Unlisted) => Moved::Unlisted,
        Some(Advice::Slower) => Moved::Slower,
        Some(Advice::Replaced) => Moved::Replaced,
        None => Moved::Followed,
    }
}
