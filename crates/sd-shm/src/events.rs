//! Announcements: which slots of a channel a process should look at.
//!
//! Each wait of a process looks at the summary of every channel that it has, so with a thousand channels what such a look
//! costs is what counts. Processors find a translation, or a line, by the low bits of an address; channels are mapped at
//! multiples of a MiB, and at one offset in each of them all would compete for the same few places of these caches (5 ns a
//! look, not 0.6: ADR 39). So each channel has its events at a place of its own.

use crate::PAGE;
use crate::channel::{ADOPTERS, SLOTS};
use core::sync::atomic::{AtomicU64, Ordering};
use sd_ring::sync::events;

/// Pages among which a channel's events have one; the others are never touched.
pub(crate) const PAGES: usize = 213;
/// Sets in a page: for A, for B, for adopters.
const SETS: usize = 2 + ADOPTERS;

const _: () = assert!(SETS * core::mem::size_of::<EventSet>() == PAGE);

/// Where a channel has its sets: a page, and how far their order is turned.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    page: u32,
    turn: u32,
}

impl Place {
    /// Of the channel of that identity.
    pub(crate) fn of(id: u64) -> Place {
        Place { page: (id % PAGES as u64) as u32, turn: (id % SETS as u64) as u32 }
    }

    /// Of a set, behind the first of the pages.
    #[inline]
    pub(crate) fn set(self, number: usize) -> usize {
        self.page as usize * PAGE + (number + self.turn as usize) % SETS * core::mem::size_of::<EventSet>()
    }
}

/// Slots that one side should look at; set by the other side, taken by the first.
#[repr(C, align(128))]
pub struct EventSet {
    /// Bit per leaf that is not zero; and [`EventSet::say_left_beside`].
    pub summary: AtomicU64,
    _pad: [u64; 15],
    /// Bit per slot.
    pub leaf: [AtomicU64; SLOTS / 64],
}

impl EventSet {
    /// Announces `slot` (SYNC POINT: events, with `take` in crates/sd-shm/src/events.rs).
    #[inline]
    pub fn post(&self, slot: usize) {
        events::post(&self.summary, &self.leaf, slot);
    }

    /// `slot` is announced, and was not taken yet.
    pub fn is_posted(&self, slot: usize) -> bool {
        self.leaf[(slot / 64) % (SLOTS / 64)].load(Ordering::Relaxed) & 1 << (slot % 64) != 0
    }

    /// Nothing is announced.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.summary.load(Ordering::Relaxed) == 0
    }

    /// Says to the process that takes connections on this side that some wait at a sibling of its, which is busy.
    #[inline]
    pub fn say_left_beside(&self) {
        events::say(&self.summary);
    }

    /// Calls `each` for every announced slot and forgets it (SYNC POINT: events, with `post` in crates/sd-shm/src/events.rs).
    /// Whether [`EventSet::say_left_beside`] was called.
    #[inline]
    pub fn take(&self, each: impl FnMut(usize)) -> bool {
        events::take(&self.summary, &self.leaf, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "long, and without unsafe code")]
    fn sets_are_apart_and_channels_beside_each_other_use_different_lines() {
        for id in [0, 1, 15, 16, 212, 213, 5000, u64::MAX] {
            let mut places: Vec<usize> = (0..SETS).map(|set| Place::of(id).set(set)).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[1] - pair[0] == core::mem::size_of::<EventSet>()));
            assert!(places[0].is_multiple_of(PAGE) && places[SETS - 1] < PAGES * PAGE);
        }
        let mut all: Vec<usize> = (0..(PAGES * SETS) as u64).map(|id| Place::of(id).set(0)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), PAGES * SETS);
    }
}
