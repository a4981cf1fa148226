//! Announced slots: a bit each in a leaf, and a bit for each leaf that is not zero in a summary.
//!
//! The leaf is set before the summary, and the summary is taken before the leaves: so a bit that is left behind has left
//! its leaf's bit in the summary for whoever looks next. A bit of the summary that stands for no leaf is a word to the
//! whole side ([`WORD`]).

use crate::facade::{AtomicU64, Ordering};

/// Of a summary, beyond all leaves.
pub const WORD: u64 = 1 << 63;

/// Says the word.
#[inline]
pub fn say(summary: &AtomicU64) {
    summary.fetch_or(WORD, Ordering::SeqCst);
}

/// Announces a slot. Leaves of which the summary has no bit, and that of [`WORD`], are none.
#[inline]
pub fn post<const N: usize>(summary: &AtomicU64, leaves: &[AtomicU64; N], slot: usize) {
    let at = (slot / 64) % N;
    leaves[at].fetch_or(1 << (slot % 64), Ordering::SeqCst);
    summary.fetch_or(1 << (at % 64), Ordering::SeqCst);
}

/// Calls `each` for every announced slot and forgets it; whether the word was said.
#[inline]
pub fn take<const N: usize>(
    summary: &AtomicU64,
    leaves: &[AtomicU64; N],
    mut each: impl FnMut(usize),
) -> bool {
    if summary.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let mut news = summary.swap(0, Ordering::SeqCst);
    while news != 0 {
        let at = news.trailing_zeros() as usize;
        // The highest bits are the last.
        let Some(leaf) = leaves.get(at) else { return news & WORD != 0 };
        news &= news - 1;
        let mut bits = leaf.swap(0, Ordering::SeqCst);
        while bits != 0 {
            each(at * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
    false
}
