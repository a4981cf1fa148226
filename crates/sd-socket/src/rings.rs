//! The memory of rings, as an endpoint finds it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_ring::RingMem;
use sd_shm::channel::{SlotSide, large_of};

/// The memory of one direction's ring: address of the small region, from which that of the large one follows.
#[derive(Clone, Copy)]
pub(crate) struct Rings {
    small: u64,
}

impl Rings {
    #[inline(always)]
    pub(crate) fn at_distance(words: &SlotSide, distance: &AtomicU32) -> Rings {
        Rings { small: core::ptr::from_ref(words) as u64 + u64::from(distance.load(Ordering::Relaxed)) }
    }

    #[inline(always)]
    fn base(&self, region: u32) -> u64 {
        match region {
            0 => self.small,
            // Small messages shall not pay for what they do not need: the compiler would compute it ahead.
            _ => large_of(core::hint::black_box(self.small)),
        }
    }

    #[inline(always)]
    fn word(&self, region: u32, off: u32) -> &'static AtomicU64 {
        // SAFETY: the ring checked `off` against the region's size and keeps it a multiple of 8;
        // both regions lie in a channel that stays mapped while an endpoint uses it.
        unsafe { &*((self.base(region) + u64::from(off)) as *const AtomicU64) }
    }

    /// Address of a byte.
    #[inline(always)]
    pub(crate) fn at(&self, region: u32, off: u32) -> *mut u8 {
        (self.base(region) + u64::from(off)) as *mut u8
    }
}

impl RingMem for Rings {
    #[inline(always)]
    fn load(&self, region: u32, off: u32) -> u64 {
        self.word(region, off).load(Ordering::Acquire)
    }
    #[inline(always)]
    fn publish(&self, region: u32, off: u32, word: u64) {
        self.word(region, off).store(word, Ordering::Release);
    }
    #[inline(always)]
    fn store(&self, region: u32, off: u32, word: u64) {
        self.word(region, off).store(word, Ordering::Relaxed);
    }
    #[inline(always)]
    fn complete(&self, region: u32, pos: u32, size: u32, word: u64) {
        // One look at the region for all.
        let here = Rings { small: self.base(region) };
        here.store(0, pos + size, 0);
        here.publish(0, pos, word);
        sd_ring::copy::fetch_for_writing(here.at(0, pos.wrapping_add(2 * size)));
    }
}
