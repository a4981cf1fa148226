//! The short way through send and recv (§4.2): one buffer, room or data at hand, and nothing unusual.
//!
//! What meets anything else has changed nothing and goes the long way, `stream`, which does all of this as well. So
//! here are only the usual branches, and no state that would have to be kept across a wait.

use crate::data::stream::{RX_BITS, add, publish_credit};
use crate::socket::bell::notify_at;
use crate::socket::bell::stamp_for;
use crate::socket::endpoint::{EndpointExt, PEER_DEAD, RESET, SHUT_WR, rings_at};
use crate::socket::token::{Quick, Rx, Tx};
use core::sync::atomic::Ordering;
use sd_ring::Next;
use sd_ring::copy::copy_shared;
use sd_shm::channel::{FLAG_DEAD, FLAG_READS_NO_MORE, FLAG_RESET, FLAG_URGENT, GEOMETRY, SlotState};
use sd_shm::promotion::FLAG_WANTS_KERNEL;
use sd_shm::slab::Endpoint;

/// Sends a whole buffer; false when nothing was done. Its length is not zero.
#[inline(always)]
pub(crate) fn send(endpoint: &'static Endpoint, buf: *const u8, len: usize) -> bool {
    let Some(mut half) = Quick::<Tx>::take(endpoint) else { return false };
    let peer = endpoint.peer_words();
    let flags = peer.flags.load(Ordering::Acquire);
    // The lowest byte is the state; older generations' states are judged on the long way.
    let is_over = peer.state.load(Ordering::Acquire) as u8 > SlotState::Open as u8;
    let unusual = endpoint.flags.load(Ordering::Relaxed) & (SHUT_WR | RESET | PEER_DEAD)
        | flags & (FLAG_RESET | FLAG_READS_NO_MORE | FLAG_DEAD | FLAG_WANTS_KERNEL)
        | endpoint.sender.load(Ordering::Relaxed);
    if unusual != 0 || is_over {
        return false;
    }
    let [distance, _] = &endpoint.rings;
    let mem = rings_at(peer, distance);
    let tx = half.cursor();
    let Some(grant) = tx.reserve_here(&GEOMETRY, len) else { return false };
    // SAFETY: the grant is room in our ring that the peer does not read yet; the caller of the hooked function
    // vouches for its buffer.
    unsafe { copy_shared(mem.at(grant.region, grant.off), buf, grant.len as usize) };
    tx.commit(&mem, grant.len, stamp_for(flags));
    add(&endpoint.tx().bytes, u64::from(grant.len));
    notify_at(endpoint, peer, RX_BITS);
    true
}

/// Receives what there is: how many bytes; zero when nothing was done.
#[inline(always)]
pub(super) fn recv(endpoint: &'static Endpoint, buf: *mut u8, len: usize) -> usize {
    // Where urgent data was sent, what lies behind it may belong to the same call.
    let has_urgent = endpoint.peer_words().flags.load(Ordering::Relaxed) & FLAG_URGENT != 0;
    if has_urgent {
        return 0;
    }
    let Some(mut half) = Quick::<Rx>::take(endpoint) else { return 0 };
    if endpoint.rx().lowat.load(Ordering::Relaxed) != 1 {
        return 0;
    }
    let mem = endpoint.rx_mem();
    let rx = half.cursor();
    let mut got = 0;
    while got < len {
        let Ok(Next::Data { region, off, len: there }) = rx.next(&GEOMETRY, &mem) else { break };
        let taken = (there as usize).min(len - got);
        // SAFETY: the ring checked region, off and length against our mapping; the caller of the hooked function
        // vouches for its buffer, of which `got` bytes are filled.
        unsafe { copy_shared(buf.add(got), mem.at(region, off), taken) };
        rx.advance(taken as u32);
        got += taken;
        add(&endpoint.rx().bytes, taken as u64);
        if let Some(consumed) = rx.credit_due(&GEOMETRY) {
            publish_credit(endpoint, consumed);
        }
    }
    got
}
