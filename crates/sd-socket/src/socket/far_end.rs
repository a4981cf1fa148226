//! The end of the kernel's stream, of a connection to another host: whether it is the end of what the other end has sent (ADR 101).
//!
//! The kernel's FIN comes by itself, and what the other end said of its ring through the engines. So a FIN is believed when the engine has told
//! how the other end has ended, and who closes waits until the other end knows where he has gone over to the ring.

use crate::socket::broken::{self, is_lost};
use crate::socket::endpoint::EndpointExt;
use crate::socket::road::{self, RX_LEFT, is_by_kernel, is_far};
use core::sync::atomic::Ordering;
use sd_ring::road::RoadWord;
use sd_shm::channel::{FLAG_DEAD, FLAG_FIN, FLAG_RESET, SlotState};
use sd_shm::slab::{Endpoint, State};

/// What it means that the kernel's stream has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtEnd {
    End,
    /// Something is missing.
    Reset,
    /// The other end's engine has not said how it has ended, or that it has gone over to its ring before: then that comes first.
    Untold,
}

/// For who has the receiving half's token.
pub(crate) fn at_end(endpoint: &Endpoint) -> AtEnd {
    if endpoint.state_now() != State::Connected || !is_far(endpoint) {
        return AtEnd::End;
    }
    let flags = endpoint.peer_words().flags.load(Ordering::Acquire);
    let is_reset = !is_by_kernel(endpoint, RX_LEFT) && flags & FLAG_RESET != 0;
    match is_untold(endpoint) || is_told_just_now(endpoint) {
        _ if is_reset || !broken::has_come(endpoint) => AtEnd::Reset,
        true => AtEnd::Untold,
        false => AtEnd::End,
    }
}

/// That the other end has gone over to its ring has been heard since the caller looked: what follows is there.
fn is_told_just_now(endpoint: &Endpoint) -> bool {
    let has_switched = endpoint.peer_words().road().has(RoadWord::SWITCHED);
    let places = || road::positions(endpoint, road::number(endpoint)?);
    has_switched && road::is_before_ring(endpoint) && places().is_some_and(|(at, read)| at == read)
}

/// The kernel's stream may end, and the other end may have sent more in its ring, of which nothing is known here.
pub(crate) fn is_untold(endpoint: &Endpoint) -> bool {
    let peer = endpoint.peer_words();
    let (flags, (generation, state)) = (peer.flags.load(Ordering::Acquire), peer.state());
    let is_over = generation == endpoint.generation.load(Ordering::Relaxed)
        && matches!(state, SlotState::Closed | SlotState::Refused);
    road::is_before_ring(endpoint)
        && peer.road().has(RoadWord::ATTACHED)
        && !peer.road().has(RoadWord::SWITCHED)
        && !peer.road().has(RoadWord::LEFT)
        && flags & (FLAG_FIN | FLAG_DEAD | FLAG_RESET) == 0
        && !is_over
        && is_far(endpoint)
}

/// So long who closes waits until the other end knows where this one has gone over to its ring. If it does not, it takes the end of the kernel's stream for the end.
const KNOWN_WITHIN_NS: u64 = 1_000_000_000;

/// The last descriptor of a connection to another host is being closed.
pub(super) fn await_knowledge(endpoint: &Endpoint) {
    let until = sd_sys::time::now_ns() + KNOWN_WITHIN_NS;
    let must_know = || {
        let (own, peer) = (endpoint.own_words().road(), endpoint.peer_words().road());
        own.has(RoadWord::SWITCHED)
            && !peer.has(RoadWord::KNOWS)
            && !peer.has(RoadWord::BROKEN)
            && !is_lost(endpoint)
    };
    while must_know() && is_far(endpoint) && sd_sys::time::now_ns() < until {
        let _ = sd_sys::time::sleep_ns(broken::CLOSING_PAUSE_NS);
    }
}
