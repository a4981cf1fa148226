//! Where connections can be led to: a listener of a process, over a channel to it.

use crate::link::channel::Channel;
use crate::process::PROCESS;
use crate::route::deal::Taker;
use core::sync::atomic::Ordering;
use sd_shm::channel::Side;
use sd_shm::directory::Listing;
use sd_shm::public::{HANDS_ON, MPTCP};

/// A listening process, over a channel to it.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) channel: &'static Channel,
    pub(crate) listener: u32,
    pub(crate) generation: u32,
}

impl Target {
    /// A listener over the newest channel to its process, if there is one.
    pub(crate) fn of(listing: &Listing) -> Option<Target> {
        let leads_there = |channel: &&'static Channel| leads_to(channel, listing.client);
        let channel = PROCESS.channels().filter(leads_there).max_by_key(|channel| channel.id)?;
        Some(Target { channel, listener: listing.index, generation: listing.generation })
    }

    fn page(&self) -> Option<&'static sd_shm::public::Listener> {
        self.channel.peer.public?.listeners.get(self.listener as usize)
    }

    /// Its index and generation.
    pub(crate) fn name(&self) -> (u32, u32) {
        (self.listener, self.generation)
    }

    /// It does not listen any more. The page is the peer's: a lie hurts the peer alone.
    pub(crate) fn is_closed(&self) -> bool {
        let is_it = |page: &sd_shm::public::Listener| {
            page.generation.load(Ordering::Acquire) == self.generation && !self.channel.peer_is_dead()
        };
        !self.page().is_some_and(is_it)
    }

    /// Its socket is an MPTCP one.
    pub(crate) fn has_mptcp(&self) -> bool {
        self.page().is_some_and(|page| page.backlog.load(Ordering::Relaxed) & MPTCP != 0)
    }

    /// It listens still, and has room.
    pub(crate) fn state(&self) -> TargetState {
        let Some(listener) = self.page().filter(|_| !self.is_closed()) else { return TargetState::Closed };
        let backlog = listener.backlog.load(Ordering::Relaxed) & !MPTCP;
        if backlog & HANDS_ON != 0 {
            return TargetState::HandsOn;
        }
        let fits = self.channel.fits(self.name(), backlog, listener.pending.load(Ordering::Relaxed));
        if fits { TargetState::Open { backlog } } else { TargetState::Full }
    }
}

impl Taker for Target {
    fn is_idle(&self) -> bool {
        let page = self.channel.peer.public;
        let sleeps = page.is_some_and(|page| {
            let word = page.sleepers.load(Ordering::Relaxed) as u32;
            sd_ring::sync::sleepers::have_time(word, page.runs.load(Ordering::Relaxed))
        });
        let waits = |page: &sd_shm::public::Listener| {
            page.pending.load(Ordering::Relaxed) == 0 && (sleeps || page.waiting.load(Ordering::Relaxed) != 0)
        };
        self.page().is_some_and(waits) && self.channel.none_waits(self.name())
    }

    /// A closed one is not: whoever meets it forgets the route.
    fn is_full(&self) -> bool {
        self.state() == TargetState::Full
    }

    fn is_chosen(&self, nobody_idle: bool) {
        self.channel.nobody_idle.store(nobody_idle, Ordering::Relaxed);
    }
}

/// Connections can begin on the channel, and that process gets them.
pub(super) fn leads_to(channel: &Channel, client: u64) -> bool {
    channel.side == Side::A
        && channel.peer.client.load(Ordering::Relaxed) == client
        && !channel.inherited.load(Ordering::Relaxed)
        && !channel.is_over()
}

/// See [`Target::state`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetState {
    Open {
        backlog: u32,
    },
    /// It listens, but connections to it begin as the kernel's.
    HandsOn,
    Full,
    Closed,
}
