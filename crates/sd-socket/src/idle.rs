//! What a process does for its peers' memory and its own before it sleeps for long: returns all
//! credits, and leaves large rings that are empty, so that an idle connection keeps little memory.

use crate::endpoint::{EndpointExt, rx_cursor, tx_cursor};
use core::sync::atomic::Ordering;
use sd_shm::channel::GEOMETRY;
use sd_shm::slab::{Endpoint, State};

const PAGE: u32 = 4096;

/// Gives all credits back to the peer.
pub(crate) fn return_credit(endpoint: &'static Endpoint) {
    let _rx = endpoint.rx_token();
    // SAFETY: the rx half is held.
    if let Some(consumed) = unsafe { rx_cursor(endpoint) }.credit_all() {
        endpoint.own_words().consumed.store(consumed, Ordering::Release);
        crate::endpoint::notify(endpoint, sd_ring::doorbell::TX_EVENT | sd_ring::doorbell::TX_SLEEP);
    }
}

/// Whether `tidy` has memory to give back.
pub(crate) fn is_due(endpoint: &'static Endpoint) -> bool {
    // SAFETY: plain data in our own slab; a torn read gives a wrong hint only.
    unsafe { core::ptr::read_volatile(endpoint.tx.cursor.get()) }.is_large()
}

/// See the module. Takes both halves for a moment.
pub(crate) fn tidy(endpoint: &'static Endpoint) {
    if endpoint.state_now() != State::Connected {
        return;
    }
    return_credit(endpoint);
    let _tx = endpoint.tx_token();
    let mem = endpoint.tx_mem();
    // SAFETY: the tx half is held.
    let tx = unsafe { tx_cursor(endpoint) };
    if !tx.is_large() || tx.credit(endpoint.peer_words().consumed.load(Ordering::Acquire)).is_err() {
        return;
    }
    let Some(jump_at) = tx.shrink(&GEOMETRY, &mem) else { return };
    // The receiver will still read the word with the jump; all other pages hold nothing.
    let page = jump_at / PAGE * PAGE;
    for (from, to) in [(0, page), (page + PAGE, GEOMETRY.large)] {
        if from < to {
            // SAFETY: whole pages of our own large ring, all of it consumed.
            unsafe { sd_sys::mem::punch(mem.at(1, from), (to - from) as usize) };
        }
    }
}
