//! The side that closes a connection first keeps its port busy for about a minute (TIME-WAIT): what is noted of that in the
//! slab. Who asks about it is `setup::time_wait`.

use crate::process::SlabRec;
use crate::socket::cold;
use crate::socket::endpoint::{CLOSED_FIRST, EndpointExt, FIN_SENT, peer_finished};
use core::sync::atomic::Ordering;
use sd_shm::slab::{End, Endpoint};
use sd_shm::time_wait::{SECONDS, TimeWait, step};

/// shutdown(2) is about to end this side's stream.
pub(crate) fn note_shutdown(endpoint: &Endpoint) {
    if !endpoint.flag(FIN_SENT) && !peer_finished(endpoint) {
        endpoint.set_flag(CLOSED_FIRST);
    }
}

/// The connection is closed, and not reset; the caller has its receiving half. True if a reset is to follow the end of the
/// stream, as nothing is waited for: TCP_LINGER2 is negative.
pub(super) fn note_close(endpoint: &Endpoint, rec: &SlabRec) -> bool {
    let has_peer_finished = peer_finished(endpoint);
    let first = endpoint.flag(CLOSED_FIRST) || !endpoint.flag(FIN_SENT) && !has_peer_finished;
    let Some(slab) = rec.slab().filter(|_| first) else { return false };
    let seconds = match cold::of(endpoint).orphan_seconds() {
        // The other side has not ended its stream, and is not waited for any longer than that (FIN-WAIT-2).
        Some(0) if !has_peer_finished => return true,
        Some(seconds) if !has_peer_finished => seconds,
        _ => SECONDS,
    };
    let Some(index) = slab.index_of(endpoint) else { return false };
    let [word, _] = &endpoint.rx().short_addresses;
    let local = slab.whole_address(index, End::Local, word.load(Ordering::Relaxed));
    slab.time_waits().note(TimeWait::of(endpoint, local, step(sd_sys::time::ticks()), seconds));
    false
}
