//! How a ring grows and shrinks: what of the large region a sender uses. Each step is asked for, see
//! [`super::RingMem::may_take`].

use super::{Geometry, Grant, Region, RingMem, SIZE, TxCursor};
use core::ops::Range;

impl TxCursor {
    /// Room in the small region for a part of what would need the large one, which may not be used. At a third of free room
    /// there is a part, see [`TxCursor::is_roomy`].
    pub(super) fn reserve_part<M: RingMem>(&mut self, mem: &M, want: u32) -> Option<Grant> {
        let part = want.min(self.limit / 4);
        let least = part.min(self.limit / 8);
        if self.room() >= least {
            return Some(self.grant(part.min(self.room())));
        }
        self.reserve_wrapping(mem, part, least)
    }

    /// Bytes of the large region that are used.
    pub fn large_used(&self) -> u32 {
        if self.is_large() { self.limit } else { 0 }
    }

    /// So much more of the large region the ring uses when it grows next.
    pub fn next_step(&self, g: &Geometry) -> u32 {
        match self.is_large() {
            true => g.large.min(self.limit.saturating_mul(4)) - self.limit,
            false => self.large_limit(g),
        }
    }

    fn next_bytes(&self, g: &Geometry) -> Range<u32> {
        let used = self.large_used();
        used..used + self.next_step(g)
    }

    /// Whether the large region's limit can be raised: what lies in it ends where the next message goes.
    pub(super) fn is_extensible(&self, g: &Geometry) -> bool {
        let is_free = self.consumed >= self.large_left;
        is_free && self.is_large() && self.limit < g.large && self.in_flight() <= self.pos()
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.limit - self.in_flight() < self.limit / 2
    }

    /// How much of the large region is free to be entered.
    pub(super) fn large_limit(&self, g: &Geometry) -> u32 {
        if self.consumed < self.large_left { self.left_at.min(g.large_first) } else { g.large_first }
    }

    /// Leaves a drained large region for the small one; returns the offset of the one word there that stays in use:
    /// until the receiver has read that it says so. So near to the start of the region that too little
    /// would be left in front of the word, the sender stays, with the least of the region.
    pub fn shrink<M: RingMem>(&mut self, g: &Geometry, mem: &M) -> Option<u32> {
        if !self.is_large() || !self.is_drained() || self.finished != 0 {
            return None;
        }
        let at = self.pos();
        if at >= g.large_first / 4 * 3 {
            mem.give_back(self.limit);
            self.jump(mem, Region::Small, SIZE, g.small);
        } else if self.limit > g.large_first {
            mem.give_back(self.limit - g.large_first);
            self.limit = g.large_first;
        }
        Some(at)
    }

    /// Whether a sender that waited for room should try again: about a third of the ring is free (as Linux judges a
    /// socket writable), or it can be extended. A ring that grows then takes half of `large_first` without a wait, also
    /// from a blocking send: programs that poll before each write of some kilobytes rely on that. More must not be
    /// asked for, since the receiver holds up to a quarter of `large_first` of credit back. `may_take` is asked as by
    /// [`RingMem::may_take`], and nothing is taken.
    pub fn is_roomy(&self, g: &Geometry, grows: bool, may_take: impl FnOnce(Range<u32>) -> bool) -> bool {
        let free = self.limit - self.in_flight();
        if !self.is_large() {
            return free >= self.limit / 3 * 2 || may_take(self.next_bytes(g)) || free >= self.limit / 3;
        }
        let least = if grows && self.limit < g.large { g.large_first / 2 } else { 0 };
        free >= least.max(self.limit / 3) || grows && self.is_extensible(g) && may_take(self.next_bytes(g))
    }
}
