//! What has to be kept of the cursors of an idle ring, in a word each: the rest follows.
//!
//! A sender whose bytes were all consumed and whose rings' memory was given back, and a receiver that has returned all
//! credit, stand somewhere in the small region, and nowhere else. A cursor whose memory was given back reads as zeros
//! ([`TxCursor::is_parked`]), from which nobody can send. Tested below, and by `tests/model.rs`.

use crate::header::{self, Kind};
use crate::lap::Lap;
use crate::receive::RxCursor;
use crate::ring::{Geometry, Region, RingMem, TxCursor, in_order};

/// Count of ring bytes and offset in the small region, both multiples of 8.
fn word(count: u64, pos: u32) -> Option<u64> {
    (pos < 1 << 10 && count < 1 << 60).then_some(u64::from(pos >> 3) << 57 | count >> 3)
}

/// The count, and when its lap began.
fn count_and_lap(word: u64) -> (u64, Lap) {
    let (count, pos) = (word << 7 >> 4, word >> 57 << 3);
    (count, Lap::new(count.wrapping_sub(pos), Region::Small as u32))
}

impl TxCursor {
    /// The cursor stands in memory that was given back.
    #[inline(always)]
    pub fn is_parked(&self) -> bool {
        self.limit == 0
    }

    /// What has to be kept, if that is enough.
    pub fn parked(&self, g: &Geometry) -> Option<u64> {
        let is_idle = self.memory_is_free() && !self.large_was_used() && !self.small_was_used();
        if !is_idle || self.limit != g.small {
            return None;
        }
        word(self.written, self.lap.offset(self.written))
    }

    /// Writes the marker, unless something ends the ring already. Nothing may be sent afterwards; the reserved word always has room
    /// for it.
    pub fn mark<M: RingMem>(&mut self, mem: &M, stamp: u32) {
        if !self.is_finished() {
            mem.publish(
                self.lap.region(),
                self.lap.offset(self.written),
                header::encode(Kind::Marker, 0, stamp),
            );
            self.finished = 1;
        }
    }

    /// Parks it behind the marker, for as long as the ring lives: nothing can be sent from it, and nothing ends it once more. Whoever
    /// dies in here leaves it parked.
    pub fn park_behind_marker(&mut self) {
        self.limit = 0;
        in_order();
        self.lap = Lap::new(0, Region::Small as u32);
        (self.written, self.consumed, self.entered, self.large_left) = (0, 0, 0, 0);
        (self.left_at, self.given_back, self.finished) = (0, 0, 1);
    }

    /// The cursor of these words, where zeros stand now. Whoever dies in here leaves it parked.
    pub fn unpark(&mut self, g: &Geometry, word: u64) {
        let (count, lap) = count_and_lap(word);
        (self.lap, self.written, self.consumed) = (lap, count, count);
        // All was consumed since, whatever these were.
        (self.entered, self.large_left, self.left_at, self.finished) = (0, 0, 0, 0);
        self.given_back = count as u32;
        in_order();
        self.limit = g.small;
    }
}

/// Bits of an offset in a region, a multiple of 8, and of bytes taken of a message, in a word.
const OFFSET_BITS: u32 = 24;
const TAKEN_SHIFT: u32 = OFFSET_BITS + 1;

impl RxCursor {
    /// Where it stands, for somebody who goes on from there with what lies in the ring ([`RxCursor::resumed`]), beside
    /// [`RxCursor::position`].
    pub fn standing(&self) -> u64 {
        let (region, pos) = self.place();
        u64::from(self.taken()) << TAKEN_SHIFT | u64::from(region) << OFFSET_BITS | u64::from(pos >> 3)
    }

    /// A cursor that stands where another one did. What a peer has said of that may be senseless, and gives senseless results then.
    pub fn resumed(position: u64, standing: u64) -> RxCursor {
        let pos = (standing & ((1 << OFFSET_BITS) - 1)) << 3;
        let region = (standing >> OFFSET_BITS & 1) as u32;
        let mut cursor = RxCursor::new();
        cursor.lap = Lap::new(position.wrapping_sub(pos) & !7, region);
        cursor.consumed = position;
        cursor.published = position;
        cursor.take_over((standing >> TAKEN_SHIFT) as u32);
        cursor
    }

    /// Writes a marker where it stands, in a ring whose sender writes there no more, and has written nothing there.
    pub fn mark_here<M: RingMem>(&self, mem: &M) {
        let (region, pos) = self.place();
        mem.publish(region, pos, header::encode(Kind::Marker, 0, 0));
    }

    /// Nothing is read with it any more: it stands nowhere, and has no credit to give. The ring is its sender's to look after.
    pub fn close(&mut self) {
        self.lap = Lap::new(self.lap.start(), Region::Small as u32);
        self.consumed |= 1;
        self.published = self.consumed;
    }

    /// See [`TxCursor::parked`].
    pub fn parked(&self) -> Option<u64> {
        if self.is_large() || self.consumed != self.published || self.taken() != 0 {
            return None;
        }
        word(self.consumed, self.lap.offset(self.consumed))
    }

    /// The cursor that was parked.
    pub fn unparked(word: u64) -> RxCursor {
        let (count, lap) = count_and_lap(word);
        let mut cursor = RxCursor::new();
        (cursor.lap, cursor.consumed, cursor.published) = (lap, count, count);
        cursor
    }
}
