//! A lap of a cursor around a region.

/// Where the current lap of a region began: a count of ring bytes, a multiple of 8, and the region. One that is *apart* is read
/// by other means than the rest, and has no offsets: what [`Lap::offset`] says is none of a word.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Lap(u64);

const APART: u64 = 4;

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

    /// The lap, apart or not.
    pub(crate) fn set_apart(self, is_apart: bool) -> Lap {
        Lap(self.0 & !APART | if is_apart { APART } else { 0 })
    }

    pub(crate) fn is_apart(self) -> bool {
        self.0 & APART != 0
    }

    /// Offset in the region after so many ring bytes.
    #[inline(always)]
    pub(crate) fn offset(self, count: u64) -> u32 {
        count.wrapping_sub(self.0 & !3) as u32
    }
}
