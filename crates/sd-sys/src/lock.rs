//! A futex lock without poisoning or allocation. Who holds one is in a [`Section`].
//!
//! While the process has one thread, taking and freeing it are plain loads and stores: no handler of a signal comes into a
//! section, and no thread can begin in one.

use crate::futex::{self, Scope};
use crate::section::{Section, is_only_thread};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

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
        let section = Section::enter();
        if !self.take() {
            self.lock_slow();
        }
        Guard { lock: self, _section: section }
    }

    #[inline(always)]
    fn take(&self) -> bool {
        if is_only_thread() {
            let is_free = self.word.load(Ordering::Relaxed) == FREE;
            if is_free {
                self.word.store(HELD, Ordering::Relaxed);
            }
            return is_free;
        }
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let section = Section::enter();
        if !self.take() {
            return None;
        }
        Some(Guard { lock: self, _section: section })
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

    /// Takes the lock and keeps it beyond this call, until [`Lock::unlock`]: for a fork.
    ///
    /// The only thread need not write to the word, and its section keeps its own handlers off: a page that is written
    /// to around a fork is copied by it.
    pub fn lock_and_keep(&self) {
        match is_only_thread() {
            true => core::mem::forget(Section::enter()),
            false => core::mem::forget(self.lock()),
        }
    }

    /// Ends a [`Lock::lock_and_keep`].
    ///
    /// # Safety
    /// The calling thread, or the one that it is a copy of, holds the lock that way.
    pub unsafe fn unlock(&self) {
        let section = Section::resume();
        if self.word.load(Ordering::Relaxed) != FREE {
            drop(Guard { lock: self, _section: section });
        }
    }

    /// What a lock guards that [`Lock::lock_and_keep`] keeps.
    ///
    /// # Safety
    /// As for [`Lock::unlock`], and nobody else has a reference.
    pub unsafe fn kept(&self) -> &T {
        // SAFETY: promised by the caller.
        unsafe { &*self.value.get() }
    }

    /// What a lock guards that [`Lock::lock_and_keep`] keeps, to be changed.
    ///
    /// # Safety
    /// As for [`Lock::kept`].
    #[expect(clippy::mut_from_ref, reason = "the lock is held, so nobody else has a reference")]
    pub unsafe fn kept_mut(&self) -> &mut T {
        // SAFETY: the caller holds the lock.
        unsafe { &mut *self.value.get() }
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
    /// Ends after the lock is free.
    _section: Section,
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
        if is_only_thread() {
            self.lock.word.store(FREE, Ordering::Release);
        } else if self.lock.word.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(&self.lock.word, 1, Scope::Private);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lock;
    use crate::section::is_inside;
    use std::sync::Arc;

    #[test]
    fn a_thread_knows_that_it_holds_one() {
        let (one, other) = (Lock::new(()), Lock::new(()));
        assert!(!is_inside());
        let guard = one.lock();
        other.lock_and_keep();
        assert!(one.try_lock().is_none() && is_inside());
        assert!(!std::thread::scope(|scope| scope.spawn(is_inside).join().unwrap()), "only the holder");
        drop(guard);
        assert!(is_inside());
        // SAFETY: kept above.
        unsafe { other.unlock() };
        assert!(!is_inside());
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
