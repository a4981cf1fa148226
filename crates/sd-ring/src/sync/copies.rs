//! All numbers of a socket are turned, from the kernel's to ours or back, while another thread makes one more of them.
//!
//! ```text
//!  who turns                                       who copies
//!  numbers that it knows: from one to the other    counts one more; the new number is what the old one is
//!  full fence                                      full fence
//!  more are counted? all that there are            the old one is another by now? the new one too
//! ```

use crate::facade::{AtomicU64, Ordering, fence_full};

/// Numbers that are `from` become `to`: those that are known, then all, if there may be more (SYNC POINT: copies, with `copy` in
/// crates/sd-ring/src/sync/copies.rs). One that was closed meanwhile, and is something else, stays that.
pub fn turn<'a, All: Iterator<Item = &'a AtomicU64>>(
    known: impl Iterator<Item = &'a AtomicU64>,
    (from, to): (u64, u64),
    more: impl FnOnce() -> Option<All>,
) {
    let turn = |word: &AtomicU64| {
        let _ = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    };
    known.for_each(turn);
    fence_full();
    more().into_iter().flatten().for_each(turn);
}

/// A new number becomes `value`, which the old one was, and what that has become since, as long as it `is_same` socket's. It was counted before (SYNC POINT: copies,
/// with `turn` in crates/sd-ring/src/sync/copies.rs).
pub fn copy(old: &AtomicU64, new: &AtomicU64, value: u64, is_same: impl Fn(u64) -> bool) {
    new.store(value, Ordering::Release);
    let mut value = value;
    loop {
        fence_full();
        let now = old.load(Ordering::Acquire);
        if now == value || !is_same(now) {
            return;
        }
        let _ = new.compare_exchange(value, now, Ordering::AcqRel, Ordering::Relaxed);
        value = now;
    }
}
