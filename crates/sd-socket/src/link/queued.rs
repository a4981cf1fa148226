//! Which requests of a channel are in a backlog of this process: an event may be repeated, and a connection is queued once.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_shm::channel::{SLOTS, Side};

/// See the module.
pub(crate) struct Queued {
    /// By slot, of side B: the generation, plus one, that is in a backlog; zero: none.
    cells: Box<[AtomicU32]>,
}

impl Queued {
    pub(crate) fn of(side: Side) -> Queued {
        let count = if side == Side::B { SLOTS } else { 0 };
        Queued { cells: (0..count).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The request at a slot is in a backlog from now on; false when it was. Under the lock of its listener's.
    pub(crate) fn add(&self, slot: usize, generation: u32) -> bool {
        let Some(cell) = self.cells.get(slot) else { return false };
        cell.swap(generation.wrapping_add(1), Ordering::Relaxed) != generation.wrapping_add(1)
    }

    /// The request at a slot is in a backlog.
    pub(crate) fn has(&self, slot: usize, generation: u32) -> bool {
        self.cells.get(slot).is_some_and(|cell| cell.load(Ordering::Relaxed) == generation.wrapping_add(1))
    }

    /// It is not any more; another one at the slot may be.
    pub(crate) fn remove(&self, slot: usize, generation: u32) {
        let Some(cell) = self.cells.get(slot) else { return };
        let _ = cell.compare_exchange(generation.wrapping_add(1), 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_queued_once() {
        let queued = Queued::of(Side::B);
        assert!(queued.add(5, 0) && !queued.add(5, 0), "generation zero, too");
        assert!(queued.add(5, 1), "the next one at the slot");
        queued.remove(5, 0);
        assert!(!queued.add(5, 1), "an old one was removed");
        assert!(queued.has(5, 1) && !queued.has(5, 0));
        queued.remove(5, 1);
        assert!(!queued.has(5, 1));
        assert!(queued.add(5, 1));
        assert!(!queued.add(SLOTS, 0) && !Queued::of(Side::A).add(0, 0));
    }
}
