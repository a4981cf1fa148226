//! Threads that were cancelled, as a sleeper finds itself among them.
//!
//! ```text
//!  who cancels                              sleeper
//!  mark; full fence                         arms its word; full fence (doorbell)
//!  changes the words of all, wakes them     is_marked? ends instead; else sleeps while the word is what it has armed
//! ```

use crate::facade::{AtomicU32, AtomicUsize, Ordering, fence_full};

/// The threads that were marked last. Most of them have ended long since.
pub struct Marks<const N: usize> {
    threads: [AtomicUsize; N],
    /// How many have been marked.
    next: AtomicU32,
}

impl<const N: usize> Marks<N> {
    #[cfg(not(loom))]
    #[expect(clippy::new_without_default, reason = "a static")]
    pub const fn new() -> Marks<N> {
        Marks { threads: [const { AtomicUsize::new(0) }; N], next: AtomicU32::new(0) }
    }

    #[cfg(loom)]
    #[expect(clippy::new_without_default, reason = "as for a static")]
    pub fn new() -> Marks<N> {
        Marks { threads: [0; N].map(AtomicUsize::new), next: AtomicU32::new(0) }
    }

    /// Marks a thread. Afterwards the caller wakes all that sleep.
    pub fn mark(&self, thread: usize) {
        let next = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        if let Some(cell) = next.checked_rem(N).and_then(|at| self.threads.get(at)) {
            cell.store(thread, Ordering::SeqCst);
        }
        fence_full();
    }

    /// Some thread was ever marked, as a sleeper sees that has armed its word.
    #[inline]
    pub fn are_any(&self) -> bool {
        self.next.load(Ordering::SeqCst) != 0
    }

    /// That thread was marked.
    pub fn is_marked(&self, thread: usize) -> bool {
        self.threads.iter().any(|cell| cell.load(Ordering::SeqCst) == thread)
    }

    /// It acts on its mark.
    pub fn clear(&self, thread: usize) {
        for cell in &self.threads {
            let _ = cell.compare_exchange(thread, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// In the child of a fork: only this thread exists.
    pub fn forked(&self) {
        self.threads.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
        self.next.store(0, Ordering::Relaxed);
    }
}
