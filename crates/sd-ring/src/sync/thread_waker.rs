//! The word of a connection in which a thread says that it alone waits for it, and which eventfd of its own wakes it.
//!
//! ```text
//!  sleeper                          peer with news             who makes it a matter of others too, or cannot ring any more
//!  name: its number, if it is free  publishes                  says so
//!  named: full fence                full fence (doorbell)      displace, no_more: full fence
//!  still alone, the peer rings,     target: rings that one,    a number? takes it away, rings that one
//!  no news? sleeps                  or the whole process
//! ```
//! A name that turns out not to be safe stood there for a moment: a peer may have rung that thread, and nobody else. So who takes it
//! back wakes the others.

use crate::facade::{AtomicU64, Ordering, fence_full};

/// Replaces what stands in the word, unless it is something else by now.
pub fn name(target: &AtomicU64, before: u64, name: u64) -> bool {
    target.compare_exchange(before, name, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// After all names were written: whether nobody else is concerned. Afterwards the caller looks for news, and sleeps.
pub fn named(is_alone: impl FnOnce() -> bool) -> bool {
    fence_full();
    is_alone()
}

/// Takes a name back that was not safe. Afterwards the caller wakes all others that wait: a peer may have rung it only.
pub fn take_back<'a>(words: impl Iterator<Item = &'a AtomicU64>, old: u64) {
    words.for_each(|word| _ = name(word, old, 0));
}

/// What stands in the word, for a peer that has published its news, and fenced since.
#[inline]
pub fn target(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Others are concerned too, and the caller has said so. Takes the name of a sleeping thread away: the number of who must be woken.
/// `word` is asked for behind the fence.
pub fn displace<'a>(
    word: impl FnOnce() -> Option<&'a AtomicU64>,
    sleeping: impl Fn(u64) -> Option<u32>,
) -> Option<u32> {
    fence_full();
    let word = word()?;
    loop {
        let found = word.load(Ordering::SeqCst);
        let number = sleeping(found)?;
        if name(word, found, 0) {
            return Some(number);
        }
    }
}

/// The caller will ring no more, as `bit` of `rings` says from now on. Afterwards he looks who sleeps.
pub fn no_more(rings: &AtomicU64, bit: u64) {
    rings.fetch_or(bit, Ordering::SeqCst);
    fence_full();
}
