//! Work that one of a process's sleepers does for all: it says when it will be back, and the others leave it to that one.
//!
//! ```text
//!  another thread                              caretaker that finds nothing left to do
//!  used: notes that there is work again        leave: says that it will not be back; full fence
//!  before_sleep: full fence                    used again? stays
//!  somebody will be back? sleeps without a timer
//! ```
//! Two threads that become it at the same time both come back; that costs a look.

use crate::facade::{AtomicU32, AtomicU64, Ordering, fence_full};

/// See the module.
pub struct Care {
    /// There may be work that no caretaker knows of.
    used: AtomicU32,
    /// When the caretaker will be back; what is past binds nobody, as its thread may have left the sleep by longjmp.
    back_at: AtomicU64,
}

/// A caretaker that finds that others make work looks again so much later.
pub const OTHERS_NS: u64 = 1_000_000_000;

impl Care {
    #[cfg(not(loom))]
    #[expect(clippy::new_without_default, reason = "a static")]
    pub const fn new() -> Care {
        Care { used: AtomicU32::new(0), back_at: AtomicU64::new(0) }
    }

    #[cfg(loom)]
    #[expect(clippy::new_without_default, reason = "as for a static")]
    pub fn new() -> Care {
        Care { used: AtomicU32::new(0), back_at: AtomicU64::new(0) }
    }

    /// There is work.
    #[inline]
    pub fn used(&self) {
        if !self.is_used() {
            self.used.store(1, Ordering::Relaxed);
        }
    }

    /// No caretaker has taken note of the last [`Care::used`].
    #[inline]
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) != 0
    }

    /// Before a sleep: in how many nanoseconds the thread comes back, if it is the caretaker. `mine`: when it said it would be; zero: it
    /// is not. `begin` takes note of new work; `work` does what is due, and says in how many nanoseconds there will be more.
    pub fn before_sleep(
        &self,
        mine: &mut u64,
        now: u64,
        mut begin: impl FnMut(),
        mut work: impl FnMut() -> Option<u64>,
    ) -> Option<u64> {
        loop {
            fence_full();
            let other = self.back_at.load(Ordering::Relaxed);
            if other > now && other != *mine {
                return None;
            }
            let others_use = *mine != 0;
            if self.is_used() && self.used.swap(0, Ordering::AcqRel) != 0 {
                begin();
                if others_use {
                    return Some(self.be_back(mine, now, OTHERS_NS));
                }
            }
            if let Some(pause) = work() {
                return Some(self.be_back(mine, now, pause));
            }
            self.leave(mine);
            fence_full();
            if !self.is_used() {
                return None;
            }
        }
    }

    fn be_back(&self, mine: &mut u64, now: u64, pause: u64) -> u64 {
        *mine = now.saturating_add(pause);
        self.back_at.store(*mine, Ordering::Relaxed);
        pause
    }

    /// The thread is the caretaker no more.
    pub fn leave(&self, mine: &mut u64) {
        match core::mem::take(mine) {
            0 => {}
            at => _ = self.back_at.compare_exchange(at, 0, Ordering::AcqRel, Ordering::Relaxed),
        }
    }

    /// In the child of a fork: the caretaker is the parent's.
    pub fn forked(&self) {
        self.back_at.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_is_back_and_the_others_sleep() {
        let care = Care::new();
        let (mut first, mut second) = (0, 0);
        care.used();
        assert_eq!(care.before_sleep(&mut first, 1000, || (), || Some(100)), Some(100));
        assert_eq!(care.before_sleep(&mut second, 1050, || (), || Some(100)), None, "the first will be back");
        assert_eq!(care.before_sleep(&mut first, 1100, || (), || Some(200)), Some(200), "the next round");
        care.used();
        let late = care.before_sleep(&mut first, 1300, || (), || Some(200));
        assert_eq!(late, Some(OTHERS_NS), "others use connections");
        care.leave(&mut first);
        assert_eq!(care.before_sleep(&mut second, 1400, || (), || Some(100)), Some(100), "takes its place");
        assert_eq!(
            care.before_sleep(&mut first, 1600, || (), || Some(100)),
            Some(100),
            "what is past binds nobody"
        );
        care.leave(&mut second);
        assert_eq!(first, 1700, "who left was it no more");
        assert_eq!(care.before_sleep(&mut second, 1650, || (), || Some(100)), None);
        assert_eq!(care.before_sleep(&mut first, 1700, || (), || None), None, "nothing left");
        assert_eq!(care.before_sleep(&mut second, 1701, || (), || Some(1)), Some(1));
    }
}
