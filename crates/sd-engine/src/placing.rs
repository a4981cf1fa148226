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
use crate::words::{Granting, Words};
use sd_carrier::{Grant, Lending, Lent, Placing, Verbs};
use sd_link::Way;
use sd_shm::channel::{GEOMETRY, LENT, SlotState};
use std::ptr::NonNull;
use std::sync::Arc;

/// Payload of fewer bytes is copied: as within a host (§4.3).
pub(crate) const LEAST: u32 = 16 << 10;
/// Nor is a rest of fewer placed.
const REST: usize = 4 << 10;
const LARGE: usize = GEOMETRY.large as usize;
/// Where there is no room for more rings, those that were not used for so long are taken back.
const QUIET_NS: u64 = 1_000_000_000;

/// What of one connection is lent.
#[derive(Default)]
pub(crate) struct LentRings {
    /// The ring that the local process reads, for the other engine. It was so once. That one is told that it is over, and has not said yet that it knows.
    window: Option<(Grant, Held<Lent>)>,
    pub(crate) was_granted: bool,
    is_recalled: bool,
    /// What was said of that, and what the other engine says.
    said: Granting,
    heard: Granting,
    /// The ring that the local process writes.
    source: Option<Held<Arc<Lent>>>,
    /// They were asked for: to be written, to send from.
    is_asked: [bool; 2],
    /// What was placed, both ways, and when that was looked at last.
    moved: u64,
    moved_before: u64,
}

impl LentRings {
    fn end_window(&mut self) {
        (self.window, self.is_recalled, self.is_asked[0]) = (None, false, false);
    }
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

/// All that is wanted and lent.
#[derive(Default)]
pub(crate) struct Lender {
    pub(crate) wanted: Vec<Wanted>,
    /// Connections that wait for the device.
    pub(crate) waiting: Vec<u64>,
    /// Rings that may be lent at a time; who is one of them.
    pub(crate) most: usize,
    count: Arc<()>,
    /// When rings may be taken back again.
    due: u64,
}

impl Connection {
    /// Bytes have come in a record. By another way than RDMA: nothing may come by that any more which could be late.
    pub(crate) fn has_come(&mut self, by_rdma: bool) {
        if !by_rdma {
            self.lent_rings.end_window();
        }
    }

    /// Large messages come by RDMA, and nothing is missing before them: the ring is to be lent. Said once.
    pub(crate) fn wants_window(&mut self) -> bool {
        let wants = self.incoming.is_bulk && self.incoming.early_bytes == 0 && self.at.is_some();
        wants
            && self.lent_rings.window.is_none()
            && !std::mem::replace(&mut self.lent_rings.is_asked[0], true)
    }

    /// Bytes of a large message from `position` on go to a ring that the other engine has granted: this one is to be lent, too. Said once.
    pub(crate) fn wants_source(&mut self, position: u64, len: usize) -> bool {
        let may =
            self.lent_rings.heard.grant.is_some() && self.lent_rings.source.is_none() && self.at.is_some();
        let wants = may && !self.lent_rings.is_asked[1] && self.outgoing.place_of(position, len).is_ok();
        self.lent_rings.is_asked[1] |= wants;
        wants
    }

    /// What the other engine's words say of rings.
    pub(crate) fn hear_granting(&mut self, words: &Words) {
        let before = std::mem::replace(&mut self.lent_rings.heard, words.granting);
        if before.count != words.granting.count {
            self.lent_rings.is_asked[1] = false;
        }
        let LentRings { is_recalled, said, .. } = &self.lent_rings;
        let is_said = *is_recalled && said.grant.is_none();
        if is_said && words.granting.done == said.count {
            self.lent_rings.end_window();
        }
    }

    /// What this engine's words say of them.
    pub(crate) fn granting(&mut self, seat: &Seat) -> Granting {
        let grant = self.lent_rings.window.as_ref().filter(|_| !self.lent_rings.is_recalled);
        let grant = grant.map(|(grant, _)| *grant);
        if grant != self.lent_rings.said.grant {
            (self.lent_rings.said.grant, self.lent_rings.said.count) =
                (grant, self.lent_rings.said.count.wrapping_add(1));
        }
        if self.owes_granting() {
            if self.lent_rings.heard.grant.is_none() {
                self.take_back_source(seat);
            }
            self.lent_rings.said.done = self.lent_rings.heard.count;
        }
        self.lent_rings.said
    }

    /// The other engine waits for the word that this one goes by what it has said.
    pub(crate) fn owes_granting(&self) -> bool {
        let LentRings { heard, said, .. } = &self.lent_rings;
        heard.count != said.done && (heard.grant.is_some() || !self.is_placing())
    }

    /// Lends a ring to the end's device: whether the other engine is to be told.
    fn lend(&mut self, seat: &Seat, to: Lending, end: &Verbs, count: &Arc<()>) -> bool {
        let Some(at) = self.at.filter(|_| self.is_carried()) else { return false };
        match to {
            Lending::ToBeWritten => self.lend_window(seat, at, end, count),
            Lending::ToSend => {
                self.lend_source(seat, at, end, count);
                false
            }
        }
    }

    /// There is no room for it: it is asked for again with the next large message.
    fn has_no_room(&mut self, to: Lending) {
        self.lent_rings.is_asked[usize::from(to == Lending::ToSend)] = false;
    }

    /// Nothing was placed since this was asked last: its rings are taken back. Whether the other engine is to be told.
    fn gives_room(&mut self, seat: &Seat) -> bool {
        let before = std::mem::replace(&mut self.lent_rings.moved_before, self.lent_rings.moved);
        if before != self.lent_rings.moved {
            return false;
        }
        if !self.is_placing() {
            self.take_back_source(seat);
        }
        let recalls = self.lent_rings.window.is_some() && !self.lent_rings.is_recalled;
        self.lent_rings.is_recalled |= recalls;
        recalls
    }

    fn lend_window(&mut self, seat: &Seat, at: Slot, end: &Verbs, count: &Arc<()>) -> bool {
        if self.incoming.early_bytes != 0 {
            self.lent_rings.is_asked[0] = false;
            return false;
        }
        let ring = seat.rings(at.slot, true).at(1, 0);
        // Nobody is shown what a connection before has left there.
        seat.clear_large(at.slot, self.incoming.extent());
        let Some(lent) = lend(end, ring, Lending::ToBeWritten) else { return false };
        self.lent_rings.window = Some((end.grant(&lent), Held { lent, _count: Arc::clone(count) }));
        self.lent_rings.was_granted = true;
        true
    }

    fn lend_source(&mut self, seat: &Seat, at: Slot, end: &Verbs, count: &Arc<()>) {
        let is_usable = |grant: &Grant| end.is_granted(grant) && grant.window.len == LARGE as u64;
        if !self.lent_rings.heard.grant.as_ref().is_some_and(is_usable) {
            return;
        }
        let (own, theirs) = (&seat.end.own(at.slot).flags, &seat.end.theirs(at.slot).flags);
        if !LENT.lend(own, theirs) {
            // The local process gives its memory back just now. It has sent nothing for long, so there is no hurry.
            self.lent_rings.is_asked[1] = false;
            return;
        }
        match lend(end, seat.rings(at.slot, false).at(1, 0), Lending::ToSend) {
            Some(lent) => {
                self.lent_rings.source = Some(Held { lent: Arc::new(lent), _count: Arc::clone(count) });
            }
            None => LENT.take_back(own),
        }
    }

    /// Of the bytes from `position` on: how many are to be copied, or are placed.
    pub(crate) fn place(&mut self, position: u64, len: usize, placing: &mut Placing) -> Way {
        let (Some(source), Some(grant)) = (&self.lent_rings.source, self.lent_rings.heard.grant) else {
            return Way::Copied(len);
        };
        if self.is_ending() {
            return Way::Copied(len);
        }
        match self.outgoing.place_of(position, len) {
            Ok((off, together)) if together >= REST && placing.has_room() => {
                placing.add((Arc::clone(&source.lent), off as usize, together), grant, off.into());
                self.lent_rings.moved += together as u64;
                Way::Placed(together)
            }
            Ok(_) => Way::Copied(len),
            Err(len) => Way::Copied(len),
        }
    }

    /// The other engine says that bytes are in the ring.
    pub(crate) fn placed(&mut self, seat: &Seat, position: u64, len: usize) {
        if !self.lent_rings.was_granted {
            self.is_broken = true;
            return;
        }
        self.lent_rings.moved += len as u64;
        self.put(seat, |incoming, rings, wants_time| incoming.placed(rings, position, len, wants_time));
    }

    /// The device may be reading the ring of the local process.
    fn is_placing(&self) -> bool {
        self.lent_rings.source.as_ref().is_some_and(|source| Arc::strong_count(&source.lent) > 1)
    }

    /// Words that end the connection wait until the device is done with the ring: the slot may be another connection's behind them.
    pub(crate) fn ends_later(&self) -> bool {
        self.is_ending() && self.is_placing()
    }

    /// Something waits until the device is done with the ring.
    pub(crate) fn waits_for_device(&self) -> bool {
        self.is_placing() && (self.is_ending() || self.lent_rings.heard.grant.is_none())
    }

    /// The other engine may have bytes under way into the ring.
    pub(crate) fn has_window(&self) -> bool {
        self.lent_rings.window.is_some()
    }

    /// Nothing is lent any more. What the device has been told to send it sends.
    pub(crate) fn take_back_rings(&mut self, seat: &Seat) {
        self.take_back_source(seat);
        self.lent_rings.end_window();
        self.lent_rings.heard.grant = None;
    }

    fn take_back_source(&mut self, seat: &Seat) {
        self.lent_rings.is_asked[1] = false;
        if let (Some(at), Some(_)) = (self.at, self.lent_rings.source.take()) {
            LENT.take_back(&seat.end.own(at.slot).flags);
        }
    }
}

impl Desk {
    /// Lends what is wanted of connections with this peer, if there is an end that may place: with another end there are other grants.
    pub(crate) fn lend(&mut self, (peer, now): (usize, u64), end: Option<&Verbs>) {
        let wanted = std::mem::take(&mut self.lender.wanted);
        let (here, others) = wanted.into_iter().partition(|it| it.peer == peer);
        self.lender.wanted = others;
        for Wanted { id, to, .. } in here {
            // Each of them has the count, besides the lender.
            let is_room = Arc::strong_count(&self.lender.count) <= self.lender.most;
            let count = Arc::clone(&self.lender.count);
            let Some((connection, seat)) = self.with_seat(id) else { continue };
            match end {
                Some(end) if is_room => {
                    if connection.lend(seat, to, end, &count) {
                        connection.owes_word = true;
                        self.touch(id);
                    }
                }
                Some(_) => {
                    connection.has_no_room(to);
                    self.make_room(now);
                }
                None => connection.has_no_room(to),
            }
        }
    }

    /// Takes rings back that nobody has used for a while.
    fn make_room(&mut self, now: u64) {
        if now < self.lender.due || self.lender.most == 0 {
            return;
        }
        self.lender.due = now + QUIET_NS;
        for id in self.connections.ids() {
            if let Some((connection, seat)) = self.with_seat(id)
                && connection.gives_room(seat)
            {
                connection.owes_word = true;
                self.touch(id);
            }
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
        for id in std::mem::take(&mut self.lender.waiting) {
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
