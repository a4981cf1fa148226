//! Memory of connections that idle: the pump gives back what it has written, as each end gives back what it has written.
//!
//! Into its copy of a ring nobody writes but the pump, and the process at that end reads it. So the pump is to the copy what a sender is
//! to a ring, and does what senders do (`sd-socket/src/memory/idle.rs`; ADR 30): memory is given back when the receiver has counted
//! all of it as consumed, and the end of the stream was not announced. It reads as zeros then, which is what the receiver finds in an empty
//! ring anyway. Its last load from there comes before its count (release), that before the look at the count (acquire), and
//! that before the system call. Who counts too early loses what he would have received.
//!
//! Small rings share a page with those of three neighbours: it goes when all four are carried, drained, and idle.
//!
//! A slot is looked at once, a second after it was used last (`run`). Whatever makes more memory free later is announced, and so is a use.
//! Of what is shared with another user's process nothing is given back: that takes a lock of the file's, which the process can
//! hold as long as it likes.

use super::{Carried, Twin};
use crate::end::End;
use crate::flow::Flow;
use sd_ring::Piece;
use sd_shm::PAGE;
use sd_shm::channel::{GEOMETRY, SLOTS, SMALL_PER_PAGE, Side};
use std::sync::atomic::{AtomicU64, Ordering};

/// What the pump has written of a ring's memory, and not given back.
#[derive(Default)]
pub(crate) struct Used {
    small: bool,
    large: bool,
    /// The large region was left: ring bytes before the jump, and where that stands.
    left: Option<(u64, u32)>,
}

impl Used {
    /// A piece is put there; so many ring bytes come before it.
    pub(crate) fn note(&mut self, piece: &Piece, before: u64) {
        let [small, large] = piece.touches();
        self.small |= small;
        if large {
            self.large = true;
            self.left = piece.leaves_large_at().map(|at| (before, at));
        }
    }

    /// Gives the large region back, as far as a receiver does not need it that has consumed so much, which is all if it `is_drained`.
    fn give_back_large(&mut self, (end, side): (&End, Side), slot: usize, consumed: u64, is_drained: bool) {
        let page = PAGE as u32;
        // The jump stays until the receiver has read it.
        let kept = match self.left {
            _ if is_drained => 0..0,
            Some((before, _)) if consumed > before => 0..0,
            Some((before, at)) if consumed == before => at / page * page..at / page * page + page,
            _ => return,
        };
        let mut is_done = true;
        for (from, to) in [(0, kept.start), (kept.end, GEOMETRY.large)] {
            if from < to {
                let place = end.map.large_ring(slot, side).wrapping_add(from as usize);
                // SAFETY: whole pages of a large ring of a mapped channel, into which only the pump writes. Nothing in them is needed.
                is_done &= unsafe { sd_sys::mem::punch(place, (to - from) as usize) };
            }
        }
        if is_done && kept.is_empty() {
            (self.large, self.left) = (false, None);
        }
    }
}

impl Carried {
    /// What is sent by a side.
    fn flow(&mut self, from: Side) -> &mut Flow {
        if from == Side::A { &mut self.from_a } else { &mut self.from_b }
    }
}

impl Twin {
    /// A slot was used, and its memory is to be looked at when it was not for a while. Said once, until [`Twin::has_waited`].
    pub(crate) fn begins_to_idle(&mut self, slot: usize) -> bool {
        let slot = slot % SLOTS;
        if self.awaited[slot] || !std::mem::replace(&mut self.used[slot], false) {
            return false;
        }
        self.awaited[slot] = true;
        true
    }

    /// The while is over: gives memory back, unless the slot was used meanwhile.
    pub(crate) fn has_waited(&mut self, slot: usize) {
        let slot = slot % SLOTS;
        self.awaited[slot] = false;
        if self.used[slot] {
            return;
        }
        for side in [Side::A, Side::B] {
            self.give_back_large(slot, side);
            self.give_back_small(slot, side);
        }
    }

    /// Where the pump writes what a side sends.
    fn copy_at(&self, side: Side) -> &End {
        if side == Side::A { &self.far } else { &self.near }
    }

    /// What the receiver of a copy has consumed.
    fn consumed(&self, slot: usize, side: Side) -> u64 {
        self.copy_at(side).theirs(slot).consumed.load(Ordering::Acquire)
    }

    fn give_back_large(&mut self, slot: usize, side: Side) {
        let consumed = self.consumed(slot, side);
        let end = if side == Side::A { &self.far } else { &self.near };
        let Some(carried) = self.slots[slot].as_deref_mut().filter(|_| !end.is_stranger) else { return };
        let flow = carried.flow(side);
        if flow.used.large {
            let is_drained = flow.is_drained(consumed);
            flow.used.give_back_large((end, side), slot, consumed, is_drained);
        }
    }

    fn give_back_small(&mut self, slot: usize, side: Side) {
        let first = slot / SMALL_PER_PAGE * SMALL_PER_PAGE;
        let all = first..first + SMALL_PER_PAGE;
        let mut was_used = false;
        for slot in all.clone() {
            let consumed = self.consumed(slot, side);
            let is_quiet = !self.used[slot] && !self.awaited[slot];
            let Some(carried) = self.slots[slot].as_deref_mut().filter(|_| is_quiet) else { return };
            let flow = carried.flow(side);
            if !flow.is_drained(consumed) {
                return;
            }
            was_used |= flow.used.small;
        }
        let end = self.copy_at(side);
        if !was_used || end.is_stranger {
            return;
        }
        let (page, len) = end.map.small_page(slot, side);
        // SAFETY: a page of small rings of a mapped channel, into which only the pump writes. Nothing in it is needed.
        if unsafe { sd_sys::mem::punch(page, len) } {
            let carried = self.slots[all].iter_mut().filter_map(Option::as_deref_mut);
            carried.for_each(|carried| carried.flow(side).used.small = false);
        }
    }

    /// A connection is over, and nobody reads what was sent on it.
    pub(super) fn trim(&self, slot: usize, carried: &mut Carried) {
        for side in [Side::A, Side::B] {
            let (end, flow) = (self.copy_at(side), carried.flow(side));
            if flow.used.large && !end.is_stranger {
                flow.used.give_back_large((end, side), slot, 0, true);
            }
        }
    }

    /// The rings of a slot at the far end are empty again, for its next connection. Those that were never used have no memory, and get none.
    pub(super) fn clean_rings(&self, slot: usize) {
        if self.far.own(slot).state().0 == 0 {
            return;
        }
        for from in [Side::A, Side::B] {
            // SAFETY: the first word of a small ring of a mapped channel; nobody uses the slot now.
            unsafe {
                (*(self.far.map.small_ring(slot, from) as *const AtomicU64)).store(0, Ordering::Relaxed)
            };
        }
    }
}
