//! A futex lock without poisoning or allocation, and how many of them a thread holds.

use crate::futex::{self, Scope};
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

// Locks that the thread holds or is about to take. Initial-exec, so that reading it is no call.
global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".hidden sd_locks_held",
    ".globl sd_locks_held",
    ".type sd_locks_held,@object",
    ".balign 4",
    "sd_locks_held: .zero 4",
    ".size sd_locks_held, 4",
    ".popsection",
);

/// Whether the calling thread holds a lock. A signal handler that finds it so has interrupted the holder, and would wait
/// for ever for a lock.
pub fn is_held() -> bool {
    let held: u32;
    // SAFETY: reads the thread's own word. Not `pure`: a handler's frame must look each time.
    unsafe {
        asm!("mov {at}, qword ptr [rip + sd_locks_held@GOTTPOFF]", "mov {held:e}, dword ptr fs:[{at}]",
            at = out(reg) _, held = out(reg) held, options(nostack, readonly, preserves_flags));
    }
    held != 0
}

/// Comes before the lock is taken, so that a handler never finds it taken and not counted.
#[inline(always)]
fn count_one() {
    // SAFETY: the thread's own word, by one instruction, which a handler cannot come into.
    unsafe {
        asm!("mov {at}, qword ptr [rip + sd_locks_held@GOTTPOFF]", "inc dword ptr fs:[{at}]",
            at = out(reg) _, options(nostack));
    }
}

/// Comes after the lock is free.
#[inline(always)]
fn count_one_less() {
    // SAFETY: as above.
    unsafe {
        asm!("mov {at}, qword ptr [rip + sd_locks_held@GOTTPOFF]", "dec dword ptr fs:[{at}]",
            at = out(reg) _, options(nostack));
    }
}

/// A process-private mutual exclusion lock around `T`.
pub struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one `&mut T` at a time.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Lock { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, sleeping while another thread holds it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        count_one();
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        count_one();
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            count_one_less();
            return None;
        }
        Some(Guard { lock: self })
    }

    #[cold]
    fn lock_slow(&self) {
        for _ in 0..100 {
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.word, CONTENDED, None, Scope::Private);
        }
    }

    /// Takes the lock and keeps it beyond this call, until [`Lock::unlock`].
    pub fn lock_and_keep(&self) {
        core::mem::forget(self.lock());
    }

    /// Ends a [`Lock::lock_and_keep`].
    ///
    /// # Safety
    /// The calling thread holds the lock that way.
    pub unsafe fn unlock(&self) {
        drop(Guard { lock: self });
    }

    /// Takes up a [`Lock::lock_and_keep`], or a guard that was forgotten.
    ///
    /// # Safety
    /// As for [`Lock::unlock`].
    pub unsafe fn resume(&self) -> Guard<'_, T> {
        Guard { lock: self }
    }

    /// Frees the lock whoever held it: for the child of a fork, where the holder does not exist.
    ///
    /// # Safety
    /// No other thread may use the lock at that time.
    pub unsafe fn force_unlock(&self) {
        self.word.store(FREE, Ordering::Release);
    }
}

/// Holds a [`Lock`] until dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard proves that this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` makes the access unique.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.lock.word.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(&self.lock.word, 1, Scope::Private);
        }
        count_one_less();
    }
}

#[cfg(test)]
mod tests {
    use super::{Lock, is_held};
    use std::sync::Arc;

    #[test]
    fn a_thread_knows_that_it_holds_one() {
        let (one, other) = (Lock::new(()), Lock::new(()));
        assert!(!is_held());
        let guard = one.lock();
        other.lock_and_keep();
        assert!(one.try_lock().is_none() && is_held());
        assert!(!std::thread::scope(|scope| scope.spawn(is_held).join().unwrap()), "only the holder");
        drop(guard);
        assert!(is_held());
        // SAFETY: kept above.
        drop(unsafe { other.resume() });
        assert!(!is_held());
    }

    #[test]
    fn counts_exactly_under_contention() {
        let lock = Arc::new(Lock::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || (0..10_000).for_each(|_| *lock.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock.lock(), 40_000);
    }
}
