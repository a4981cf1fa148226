//! The one place where atomics come from, so that loom can replace them.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A full fence: no store before it and no load after it change places.
#[inline(always)]
pub fn fence_full() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    sd_sys::arch::fence_full();
}

/// A full fence for a thread that has changed an atomic since what it wants to keep apart: on x86-64 such a change is one
/// already, and this takes no instruction.
#[inline(always)]
pub fn fence_after_change() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    sd_sys::arch::fence_after_change();
}

/// One half of an asymmetric fence: keeps the compiler from exchanging what stands before and behind
/// it. The processor does so only until the other half, membarrier(2), is executed by somebody.
#[inline(always)]
pub fn fence_light() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// A word that nobody but the calling thread writes. Unlike a load of an atomic, this one can be the operand of a
/// comparison.
pub(crate) trait Own<T> {
    fn own(&self) -> T;
}

macro_rules! own {
    ($atomic:ty, $value:ty) => {
        impl Own<$value> for $atomic {
            #[inline(always)]
            fn own(&self) -> $value {
                #[cfg(loom)]
                return self.load(Ordering::Relaxed);
                #[cfg(not(loom))]
                // SAFETY: only a store by another thread would make this a race.
                unsafe {
                    *self.as_ptr()
                }
            }
        }
    };
}

own!(AtomicU32, u32);
own!(AtomicU64, u64);
