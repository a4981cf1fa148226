//! What the document says of roads: of each connection, since when it takes its road and what it waits for; of the monitor, which
//! connections that the kernel has made may be moved.
//!
//! The words are the owner's (`sd_socket::socket::history`), who may write there what he likes: they are shown, not believed.

use super::super::segments::Slab;
use super::super::server::Server;
use crate::Promote;
use sd_shm::slab::{Awaits, Endpoint, Moved, Promotes, ROAD_RX_LEFT, ROAD_TX_LEFT, ROAD_WATCHED, State};
use serde::Serialize;
use std::sync::atomic::Ordering;

/// Of a connection. One that is over shared memory from its beginning says nothing here: it has no such words.
#[derive(Serialize, Default)]
pub(super) struct History {
    /// Since when it takes its road: CLOCK_MONOTONIC, as `clock_ns` of the document.
    road_since_ns: Option<u64>,
    /// How often that has changed.
    road_changes: u32,
    /// Why it did the last time.
    road_moved: Option<&'static str>,
    /// Of a connection that is the kernel's: what it waits for until it is moved, or why it is not.
    awaits: Option<&'static str>,
    /// Calls that have moved bytes over the kernel's connection, while it is watched.
    messages: Option<u32>,
}

impl History {
    /// What the engine has said of its offer, if that is what it waits for.
    pub(super) fn stays(&mut self, why: Option<Awaits>) {
        if self.awaits == Some(Awaits::Peer.text()) {
            self.awaits = why.map(Awaits::text).or(self.awaits);
        }
    }
}

/// `by_kernel`: bytes of it go through the kernel now. `promotes`: what is offered at all.
pub(super) fn history(slab: &Slab, endpoint: &Endpoint, by_kernel: bool, promotes: Promotes) -> History {
    let Some(cold) = slab.cold(endpoint) else { return History::default() };
    let some = |text: &'static str| Some(text).filter(|text| !text.is_empty());
    let since = cold.road_since_ns.load(Ordering::Relaxed);
    let is_watched = cold.road.load(Ordering::Relaxed) & ROAD_WATCHED != 0;
    let is_kernels = State::from_u32(endpoint.state.load(Ordering::Relaxed).into()) == State::Kernel;
    let awaits = Awaits::from_u32(cold.road_awaits.load(Ordering::Relaxed).into());
    let waits = by_kernel && promotes != Promotes::Nothing && (is_watched || !is_kernels);
    History {
        road_since_ns: Some(since).filter(|since| *since != 0),
        road_changes: cold.road_changes.load(Ordering::Relaxed).into(),
        road_moved: some(Moved::from_u32(cold.road_moved.load(Ordering::Relaxed).into()).text()),
        awaits: some(awaits.text()).filter(|_| waits),
        messages: (is_watched && is_kernels).then(|| cold.messages.load(Ordering::Relaxed)),
    }
}

/// Of a connection that has a slot, and of which a direction is the kernel's: why.
pub(super) fn on_the_way(slab: &Slab, endpoint: &Endpoint) -> &'static str {
    let road = slab.cold(endpoint).map_or(0, |cold| cold.road.load(Ordering::Relaxed));
    if road & (ROAD_RX_LEFT | ROAD_TX_LEFT) != 0 { "on the way back" } else { "on the way to shared memory" }
}

/// What the monitor does for connections that the kernel has made.
#[derive(Serialize)]
pub(super) struct Promotion {
    /// Which of them processes offer.
    offered: &'static str,
    /// Why not, where that has a reason.
    off_because: Option<&'static str>,
    /// Offers that wait for the other end.
    waiting: usize,
    /// How the ends of one connection are found: by `numbers`, also between network namespaces, or by `names` within one.
    evidence: &'static str,
    /// What the policy lets be moved of what the user who asks connects to: `all`, `some`, `none`.
    policy: &'static str,
}

impl Server {
    pub(super) fn promotion(&self, uid: u32) -> Promotion {
        let by_pumps = self.pumps.is_wanted() && self.promote != Promote::Nothing;
        Promotion {
            offered: match self.promote {
                Promote::Nothing => "nothing",
                Promote::Earned => "earned",
                Promote::All => "all",
            },
            off_because: by_pumps.then_some("pumps"),
            waiting: self.core.offers.len(),
            evidence: if sd_sys::origins::may_ask() { "numbers" } else { "names" },
            policy: self.core.policy.share_that_may_move(uid),
        }
    }
}
