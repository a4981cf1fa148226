//! The memory of a connection's ring in a channel.

use crate::channel::{Mapping, Side, large_of};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use sd_ring::RingMem;

/// Both regions of one direction's ring: the address of the small one, from which that of the large one follows.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    small: u64,
}

impl Rings {
    /// The ring that `from` sends into on a slot.
    pub fn of(channel: &Mapping, slot: usize, from: Side) -> Rings {
        Rings { small: channel.small_ring(slot, from) as u64 }
    }

    /// The rings of a slot, by the address of the small one.
    ///
    /// # Safety
    /// A small ring of a channel is there, which stays mapped while this is used.
    #[inline(always)]
    pub unsafe fn at_address(small: u64) -> Rings {
        Rings { small }
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
        // both regions lie in a channel that stays mapped while this is used.
        unsafe { &*((self.base(region) + u64::from(off)) as *const AtomicU64) }
    }

    /// Where in the channel's file a byte is.
    pub fn place(&self, channel: &Mapping, region: u32, off: u32) -> u64 {
        self.at(region, off) as u64 - core::ptr::from_ref(channel.header()) as u64
    }

    /// Address of a byte.
    #[inline(always)]
    pub fn at(&self, region: u32, off: u32) -> *mut u8 {
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
    fn may_take(&self, bytes: Range<u32>) -> bool {
        let len = bytes.end - bytes.start;
        if !sd_sys::budget::take(bytes.clone()) {
            return false;
        }
        // Where memory is short it is taken at once, so that all who look see what is left.
        if sd_sys::budget::is_tight() && !sd_sys::mem::populate(self.at(1, bytes.start), len as usize) {
            sd_sys::budget::give_back(len);
            return false;
        }
        true
    }
    fn give_back(&self, bytes: u32) {
        sd_sys::budget::give_back(bytes);
    }
    #[inline(always)]
    fn complete(&self, region: u32, pos: u32, size: u32, word: u64) {
        // One look at the region for all.
        let here = Rings { small: self.base(region) };
        here.store(0, pos + size, 0);
        here.publish(0, pos, word);
        // The word that ends a message like this one. If that is in another line, which the receiver had last, the next
        // publication would wait for it.
        sd_ring::copy::fetch_for_writing(here.at(0, pos.wrapping_add(2 * size)));
    }
}
