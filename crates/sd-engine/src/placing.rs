//! Zero copy with RDMA: payload goes straight from the ring that one program writes to the ring that another one reads (the paper's §4.3, ADR 124).
//!
//! ```text
//!  reader's engine                                     writer's engine
//!  a large message has come by RDMA
//!  lends the ring, to be written ── words: a grant ──> lends the ring, to send from
//!                                                      has payload placed; a record behind it says so
//!  publishes the header <──────────────── record ─────
//! ```
//! Rings are alike at both hosts, so a byte's place here is its place there. Headers, jumps, ends and small messages go in records as ever.
//!
//! # Guarantees
//! * Only between engines that agree not to encrypt: what a device places nobody seals.
//! * Nothing is written into a ring behind its engine's back once something of the connection has come by another way: the grant has ended by then.
//! * A slot is nobody else's before the device is done with its ring, unless the session is over.
//! * What the other engine says it has placed, and has not, is zero or was this connection's.

use crate::connection::Connection;
use crate::desk::Desk;
use crate::seat::{Seat, Slot};
use crate::words::Words;
use sd_carrier::{Grant, Lending, Lent, Placing, Verbs};
use sd_link::Way;
use sd_shm::channel::{GEOMETRY, LENT, SlotState};
use std::ptr::NonNull;
use std::sync::Arc;

/// Payload of fewer bytes is copied: as within a host (§4.3).
pub(crate) const LEAST: u32 = 16 << 10;
/// Nor is a rest of fewer placed.
const REST: usize = 4 << 10;
/// Rings that are lent at a time, 2 MiB each.
pub(crate) const LENT_MAX: usize = 64;
const LARGE: usize = GEOMETRY.large as usize;

/// What of one connection is lent.
#[derive(Default)]
pub(crate) struct Rented {
    /// The ring that the local process reads, for the other engine; it was so once.
    window: Option<(Grant, Held<Lent>)>,
    pub(crate) was_granted: bool,
    /// What the other engine has granted, and the ring that the local process writes.
    granted: Option<Grant>,
    source: Option<Held<Arc<Lent>>>,
    /// They were asked for: to be written, to send from.
    is_asked: [bool; 2],
}

/// Counted as long as it lives.
struct Held<T> {
    lent: T,
    _count: Arc<()>,
}

/// A ring that is to be lent, as soon as the end for RDMA is at hand.
pub(crate) struct Wanted {
    pub(crate) peer: usize,
    pub(crate) id: u64,
    pub(crate) to: Lending,
}

impl Connection {
    /// Bytes have come in a record. By another way than RDMA: nothing may come by that any more which could be late.
    pub(crate) fn has_come(&mut self, by_rdma: bool) {
        if !by_rdma {
            self.rented.window = None;
        }
    }

    /// Large messages come by RDMA, and nothing is missing before them: the ring is to be lent. Said once.
    pub(crate) fn wants_window(&mut self) -> bool {
        let wants = self.incoming.is_bulk && self.incoming.early_bytes == 0 && self.at.is_some();
        wants && self.rented.window.is_none() && !std::mem::replace(&mut self.rented.is_asked[0], true)
    }

    /// The other engine has granted its ring: this one is to be lent, too. Said once.
    pub(crate) fn wants_source(&mut self) -> bool {
        let wants = self.rented.granted.is_some() && self.rented.source.is_none() && self.at.is_some();
        wants && !std::mem::replace(&mut self.rented.is_asked[1], true)
    }

    /// What the other engine's words say of it.
    pub(crate) fn hear_grant(&mut self, words: &Words) {
        if words.grant != self.rented.granted {
            (self.rented.granted, self.rented.is_asked[1]) = (words.grant, false);
        }
    }

    /// What this engine's words say of it.
    pub(crate) fn grant(&self) -> Option<Grant> {
        self.rented.window.as_ref().map(|(grant, _)| *grant)
    }

    /// Lends a ring to the end's device: whether the other engine is to be told.
    pub(crate) fn lend(&mut self, seat: &Seat, to: Lending, end: &Verbs, count: &Arc<()>) -> bool {
        // Besides the desk's own and this one.
        let is_room = Arc::strong_count(count) < LENT_MAX + 2;
        let Some(at) = self.at.filter(|_| is_room && self.is_carried()) else { return false };
        match to {
            Lending::ToBeWritten => self.lend_window(seat, at, end, count),
            Lending::ToSend => {
                self.lend_source(seat, at, end, count);
                false
            }
        }
    }

    fn lend_window(&mut self, seat: &Seat, at: Slot, end: &Verbs, count: &Arc<()>) -> bool {
        if self.incoming.early_bytes != 0 {
            self.rented.is_asked[0] = false;
            return false;
        }
        let ring = seat.rings(at.slot, true).at(1, 0);
        // Nobody is shown what a connection before has left there.
        self.incoming.clear_rest(seat, at.slot);
        let Some(lent) = lend(end, ring, Lending::ToBeWritten) else { return false };
        self.rented.window = Some((end.grant(&lent), Held { lent, _count: Arc::clone(count) }));
        self.rented.was_granted = true;
        true
    }

    fn lend_source(&mut self, seat: &Seat, at: Slot, end: &Verbs, count: &Arc<()>) {
        let is_usable = |grant: &Grant| end.is_granted(grant) && grant.window.len == LARGE as u64;
        if !self.rented.granted.as_ref().is_some_and(is_usable) {
            return;
        }
        let (own, theirs) = (&seat.end.own(at.slot).flags, &seat.end.theirs(at.slot).flags);
        if !LENT.lend(own, theirs) {
            // The local process gives its memory back just now. It has sent nothing for long, so there is no hurry.
            self.rented.is_asked[1] = false;
            return;
        }
        match lend(end, seat.rings(at.slot, false).at(1, 0), Lending::ToSend) {
            Some(lent) => {
                self.rented.source = Some(Held { lent: Arc::new(lent), _count: Arc::clone(count) });
            }
            None => LENT.take_back(own),
        }
    }

    /// Of the bytes from `position` on: how many are to be copied, or are placed.
    pub(crate) fn place(&self, position: u64, len: usize, placing: &mut Placing) -> Way {
        let (Some(source), Some(grant)) = (&self.rented.source, self.rented.granted) else {
            return Way::Copied(len);
        };
        if self.is_ending() {
            return Way::Copied(len);
        }
        match self.outgoing.place_of(position, len) {
            Ok((off, together)) if together >= REST && placing.has_room() => {
                placing.add((Arc::clone(&source.lent), off as usize, together), grant, off.into());
                Way::Placed(together)
            }
            Ok(_) => Way::Copied(len),
            Err(len) => Way::Copied(len),
        }
    }

    /// The other engine says that bytes are in the ring.
    pub(crate) fn placed(&mut self, seat: &Seat, position: u64, len: usize) {
        if !self.rented.was_granted {
            self.is_broken = true;
            return;
        }
        self.put(seat, |incoming, rings, wants_time| incoming.placed(rings, position, len, wants_time));
    }

    /// The device may be reading the ring of the local process.
    fn is_placing(&self) -> bool {
        self.rented.source.as_ref().is_some_and(|source| Arc::strong_count(&source.lent) > 1)
    }

    /// Words that end the connection wait until the device is done with the ring: the slot may be another connection's behind them.
    pub(crate) fn waits_for_device(&self) -> bool {
        self.is_ending() && self.is_placing()
    }

    /// The other engine may have bytes under way into the ring.
    pub(crate) fn has_window(&self) -> bool {
        self.rented.window.is_some()
    }

    /// Nothing is lent any more. What the device has been told to send it sends.
    pub(crate) fn take_back_rings(&mut self, seat: &Seat) {
        let before = std::mem::take(&mut self.rented);
        self.rented.was_granted = before.was_granted;
        if let (Some(at), Some(_)) = (self.at, before.source) {
            LENT.take_back(&seat.end.own(at.slot).flags);
        }
    }
}

impl Desk {
    /// Lends what is wanted of connections with this peer, if there is an end that may place; else it is asked for again with the next.
    pub(crate) fn lend(&mut self, peer: usize, end: Option<&Verbs>) {
        let (now, others) = std::mem::take(&mut self.wanted).into_iter().partition(|it| it.peer == peer);
        self.wanted = others;
        let count = Arc::clone(&self.lent);
        for Wanted { id, to, .. } in now {
            let Some((connection, seat)) = self.with_seat(id) else { continue };
            match end {
                Some(end) if connection.lend(seat, to, end, &count) => connection.owes_word = true,
                Some(_) => continue,
                None => connection.rented.is_asked = [false; 2],
            }
            self.touch(id);
        }
    }

    /// The end is gone: nothing is lent to its device any more.
    pub(crate) fn take_back_rings(&mut self, peer: usize) {
        for id in self.connections.ids() {
            if let Some((connection, seat)) = self.with_seat(id)
                && connection.peer == peer
            {
                connection.take_back_rings(seat);
            }
        }
        self.look_after_device();
    }

    /// The device has done more of what it was told to send, or is gone.
    pub(crate) fn look_after_device(&mut self) {
        for id in std::mem::take(&mut self.waiting) {
            self.touch(id);
        }
    }
}

impl Words {
    /// The side that says them is through with the connection.
    pub(crate) fn is_end(&self) -> bool {
        matches!(SlotState::of_word(self.state.into()), SlotState::Closed | SlotState::Refused)
    }
}

fn lend(end: &Verbs, ring: *mut u8, to: Lending) -> Option<Lent> {
    let start = NonNull::new(ring)?;
    // SAFETY: a large ring of a mapped channel, of which there are no references to more than single words that are atomics.
    let lent = unsafe { end.lend(start, LARGE, to) };
    lent.inspect_err(|error| tracing::debug!("engine: a ring is not lent: {error}")).ok()
}
