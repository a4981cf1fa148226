//! Which slots of a channel side A may use for new connections.

use alloc::collections::VecDeque;
use sd_shm::channel::{Mapping, SLOTS, Slot, SlotState};

/// Closed slots of which the oldest ones are looked at first: the other side mostly is done with them.
const LOOKS: usize = 4;

/// Side A's bookkeeping of slots.
pub(super) struct Slots {
    /// Slots 0..fresh have been used.
    fresh: usize,
    /// Closed by us, perhaps not yet by the peer; oldest first.
    closing: VecDeque<u16>,
}

impl Slots {
    pub(crate) const fn new() -> Slots {
        Slots { fresh: 0, closing: VecDeque::new() }
    }

    /// This side is done with a slot.
    pub(super) fn closed(&mut self, slot: usize) {
        self.closing.push_back(slot as u16);
    }

    /// A slot for a new connection, and whether it was used before.
    #[inline(always)]
    pub(crate) fn take(&mut self, map: &Mapping) -> Option<(usize, bool)> {
        let free = |slot: &u16| is_closed(map.slot(*slot as usize));
        if self.closing.front().is_some_and(free) {
            return self.closing.pop_front().map(|slot| (slot as usize, true));
        }
        self.take_other(map)
    }

    #[inline(never)]
    fn take_other(&mut self, map: &Mapping) -> Option<(usize, bool)> {
        let free = |slot: &u16| is_closed(map.slot(*slot as usize));
        let found = match self.closing.iter().take(LOOKS).position(free) {
            None if self.fresh < SLOTS => {
                self.fresh += 1;
                return Some((self.fresh - 1, false));
            }
            None => self.closing.iter().position(free),
            found => found,
        };
        self.closing.remove(found?).map(|slot| (slot as usize, true))
    }

    /// As [`Slots::take`], but of those that were closed last, if one is free: their memory was not given back.
    #[cold]
    pub(super) fn take_last(&mut self, map: &Mapping) -> Option<(usize, bool)> {
        let back = self.closing.len().saturating_sub(16 * LOOKS);
        let last = self.closing.iter().skip(back).rposition(|slot| is_closed(map.slot(*slot as usize)));
        match last {
            Some(at) => self.closing.remove(back + at).map(|slot| (slot as usize, true)),
            None => self.take_other(map),
        }
    }

    /// There is room, as far as a quick look tells.
    pub(super) fn have_room(&self, map: &Mapping) -> bool {
        let oldest = self.closing.iter().take(LOOKS);
        self.fresh < SLOTS || oldest.into_iter().any(|slot| is_closed(map.slot(*slot as usize)))
    }

    /// Slots that were ever used.
    pub(super) fn used(&self) -> usize {
        self.fresh
    }
}

/// Both sides are done with the slot.
fn is_closed(slot: &Slot) -> bool {
    let (a, a_state) = slot.side[0].state();
    let (b, b_state) = slot.side[1].state();
    a_state == SlotState::Closed && a == b && matches!(b_state, SlotState::Closed | SlotState::Refused)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A channel in which nothing happened yet.
    fn channel() -> Mapping {
        Mapping::create(1, 1, 2).unwrap().1
    }

    fn close(map: &Mapping, slot: usize, generations: [u32; 2]) {
        let sides = &map.slot(slot).side;
        sides
            .iter()
            .zip(generations)
            .for_each(|(side, generation)| side.set_state(generation, SlotState::Closed));
    }

    #[test]
    fn the_oldest_that_both_have_closed_comes_before_a_fresh_one() {
        let (map, mut slots) = (channel(), Slots::new());
        assert_eq!([slots.take(&map), slots.take(&map)], [Some((0, false)), Some((1, false))]);
        slots.closed(1);
        slots.closed(0);
        assert_eq!(slots.take(&map), Some((2, false)), "the other side has closed neither");
        close(&map, 0, [1, 1]);
        assert_eq!(slots.take(&map), Some((0, true)), "not the oldest, but closed");
        close(&map, 1, [2, 1]);
        assert_eq!(slots.take(&map), Some((3, false)), "the other side has closed an earlier connection");
        map.slot(1).side[1].set_state(2, SlotState::Refused);
        assert_eq!(slots.take(&map), Some((1, true)));
        assert_eq!(slots.used(), 4);
    }

    #[test]
    fn a_full_channel_has_room_when_the_other_side_closes() {
        let (map, mut slots) = (channel(), Slots::new());
        for slot in 0..SLOTS {
            assert_eq!(slots.take(&map), Some((slot, false)));
            slots.closed(slot);
        }
        assert!(!slots.have_room(&map) && slots.take(&map).is_none() && slots.take_last(&map).is_none());
        close(&map, SLOTS - 1, [1, 1]);
        assert!(!slots.have_room(&map), "a quick look sees the oldest only");
        assert_eq!(slots.take(&map), Some((SLOTS - 1, true)));
        close(&map, 3, [1, 1]);
        assert!(slots.have_room(&map));
    }

    #[test]
    fn where_memory_is_kept_the_last_closed_comes_first() {
        let (map, mut slots) = (channel(), Slots::new());
        assert_eq!([0; 3].map(|_| slots.take(&map)), [0, 1, 2].map(|slot| Some((slot, false))));
        for slot in 0..3 {
            slots.closed(slot);
            close(&map, slot, [1, 1]);
        }
        let last = [0; 4].map(|_| slots.take_last(&map));
        assert_eq!(last, [Some((2, true)), Some((1, true)), Some((0, true)), Some((3, false))]);
    }
}
