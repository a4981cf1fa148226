//! Room for a moment that no stack has: a thread's or a fiber's may be of 16 KiB, a handler's of 8.
//!
//! A mapping, and no allocation: a handler of a signal may be where libc's allocator was interrupted. One is kept for the next
//! who needs it, so that in general nobody makes a system call for it. Not in a child that borrows its parent's
//! memory (vfork(2)): its exec would take the kept one along.

use crate::{Result, mem};
use core::ops::{Deref, DerefMut};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The bytes of each.
pub const LEN: usize = 64 << 10;

/// The one that is kept; null: none.
static KEPT: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// What stands in for it where nothing can be mapped.
const LITTLE: usize = 1024;

/// Calls `f` with so many bytes of anything, but at most [`LEN`]; with fewer, of the stack, where the program is not to map anything any more (seccomp(2),
/// RLIMIT_AS of setrlimit(2)): what Linux does without memory of the program's must not fail for that.
pub fn with<R>(most: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let (mut mapped, mut little) = (Scratch::take(), [0; LITTLE]);
    let room = mapped.as_deref_mut().unwrap_or(&mut little);
    let len = most.min(room.len());
    f(room.get_mut(..len).unwrap_or(&mut []))
}

/// [`LEN`] bytes of anything.
pub struct Scratch(NonNull<u8>);

impl Scratch {
    /// The one that is kept, or a new one: errors as mmap(2).
    pub fn take() -> Result<Scratch> {
        let kept = NonNull::new(KEPT.swap(null_mut(), Ordering::Acquire));
        let fresh = || mem::map_private(LEN).map(NonNull::new);
        Ok(Scratch(kept.map_or_else(fresh, |kept| Ok(Some(kept)))?.ok_or(crate::Errno::ENOMEM)?))
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a mapping of so many bytes, which the kernel has zeroed, and whose only owner this is.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr(), LEN) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), LEN) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let place = self.0.as_ptr();
        if KEPT.compare_exchange(null_mut(), place, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: the mapping is this one's, which ends here.
            unsafe { mem::unmap(place, LEN) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_kept_and_nobody_shares_one() {
        let mut all: Vec<Scratch> = (0..3).map(|_| Scratch::take().unwrap()).collect();
        all.iter_mut().enumerate().for_each(|(at, one)| one.fill(at as u8));
        assert!(all.iter().enumerate().all(|(at, one)| one.iter().all(|byte| usize::from(*byte) == at)));
        let first = all[0].as_ptr();
        drop(all);
        assert_eq!(Scratch::take().unwrap().as_ptr(), first);
    }
}
