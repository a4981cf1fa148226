//! A lap of a cursor around a region.

/// Where the current lap of a region began: a count of ring bytes, a multiple of 8, and the region.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Lap(u64);

impl Lap {
    pub(crate) const fn new(start: u64, region: u32) -> Lap {
        Lap(start | region as u64)
    }

    #[inline(always)]
    pub(crate) fn start(self) -> u64 {
        self.0 & !7
    }

    #[inline(always)]
    pub(crate) fn region(self) -> u32 {
        (self.0 & 1) as u32
    }

    /// Offset in the region after so many ring bytes.
    #[inline(always)]
    pub(crate) fn offset(self, count: u64) -> u32 {
        count.wrapping_sub(self.start()) as u32
    }
}
