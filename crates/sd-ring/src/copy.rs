//! Copies between private memory and memory that a peer may write at the same time.
//!
//! Rust's memory model has no word for such a race, so the shared side is only touched by
//! assembly (`sd_sys::arch`): the compiler can neither assume that it is stable nor read it twice.

pub use sd_sys::arch::fetch_for_writing;
use sd_sys::arch::{copy_string, load8, store8};

/// Up to here a loop over words beats the start-up cost of copying a string.
const WORD_LOOP_MAX: usize = 192;

/// Copies `len` bytes; either side may be shared.
///
/// # Safety
/// Both ranges must be mapped for the duration and must not overlap; the destination writable.
#[inline(always)]
pub unsafe fn copy_shared(dst: *mut u8, src: *const u8, len: usize) {
    if len == 8 {
        // SAFETY: promised by the caller.
        unsafe { store8(dst, load8(src)) };
    } else if len <= WORD_LOOP_MAX {
        // SAFETY: as above.
        unsafe { copy_words(dst, src, len) };
    } else {
        // SAFETY: as above.
        unsafe { copy_string(dst, src, len) };
    }
}

#[inline(always)]
unsafe fn copy_words(mut dst: *mut u8, mut src: *const u8, len: usize) {
    let end = src.wrapping_add(len & !7);
    // SAFETY: `src..end` and as many bytes at `dst` lie in the ranges that the caller vouches for;
    // the tail loop covers the rest byte by byte.
    unsafe {
        while src != end {
            store8(dst, load8(src));
            dst = dst.add(8);
            src = src.add(8);
        }
        for i in 0..len & 7 {
            dst.add(i).write_volatile(src.add(i).read_volatile());
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_length_is_copied_exactly() {
        let src: Vec<u8> = (0..1024u32).map(|i| (i * 7 + 3) as u8).collect();
        let (all, some) = if cfg!(miri) { (0..10, &[200][..]) } else { (0..300, &[511, 512, 777, 1000][..]) };
        for len in all.chain(some.iter().copied()) {
            for shift in [0usize, 1, 5] {
                let mut dst = vec![0xAAu8; 1100];
                // SAFETY: both vectors are large enough.
                unsafe { super::copy_shared(dst.as_mut_ptr().add(shift), src.as_ptr().add(shift), len) };
                assert_eq!(&dst[shift..shift + len], &src[shift..shift + len]);
                assert!(dst[shift + len..].iter().all(|&b| b == 0xAA));
            }
        }
    }
}
