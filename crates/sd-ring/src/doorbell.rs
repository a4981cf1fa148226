//! When must the other side be woken? The word in which a waiter announces itself.
//!
//! ```text
//!  waiter                          notifier
//!  arm: word |= bits               publish (header or credit)
//!  full fence                      full fence
//!  look again; nothing? sleep      word & bits? clear them, wake
//! ```
//! Store-buffer reasoning: of the two stores before the fences, at least one
//! is seen by the load after the other side's fence. So either the waiter finds the message, or
//! the notifier finds the bits; a wake-up cannot be lost. A waiter that sleeps on the word itself
//! (futex) cannot miss the clearing either, since the kernel compares the word again.

use crate::facade::{AtomicU32, Ordering, fence_full};

/// The waiter sleeps on the word, waiting for bytes to read (or for the end of the stream).
pub const RX_SLEEP: u32 = 1;
/// The waiter wants an event when there are bytes to read.
pub const RX_EVENT: u32 = 2;
/// The waiter sleeps on the word, waiting for room to write.
pub const TX_SLEEP: u32 = 4;
/// The waiter wants an event when there is room to write.
pub const TX_EVENT: u32 = 8;
/// The waiter's process wants a signal whenever there are bytes to read. It stays announced.
pub const RX_SIGNAL: u32 = 16;
/// The waiter's process wants a signal when there is room to write.
pub const TX_SIGNAL: u32 = 32;

/// An [`RX_EVENT`] was answered, and nobody has taken note of it.
pub const RX_NEWS: u32 = RX_EVENT << NEWS_SHIFT;
/// A [`TX_EVENT`] was answered, and nobody has taken note of it.
pub const TX_NEWS: u32 = TX_EVENT << NEWS_SHIFT;
const NEWS_SHIFT: u32 = 6;

/// Announces a waiter. Afterwards the caller must look at the ring once more before it sleeps (SYNC POINT: doorbell, with `ring` in
/// crates/sd-ring/src/doorbell.rs).
///
/// Returns the word as it is now, the value to sleep on.
#[inline]
pub fn arm(word: &AtomicU32, bits: u32) -> u32 {
    let now = word.fetch_or(bits, Ordering::SeqCst) | bits;
    fence_full();
    now
}

/// Takes an announcement back.
#[inline]
pub fn disarm(word: &AtomicU32, bits: u32) {
    word.fetch_and(!bits, Ordering::SeqCst);
}

/// To be called after a publication: which of `bits` were announced. They are cleared, so each
/// announcement but [`RX_SIGNAL`] is answered once; of events there is a note, since whoever announces himself next would
/// hide that they were answered (SYNC POINT: doorbell, with `arm` in crates/sd-ring/src/doorbell.rs).
#[inline(always)]
pub fn ring(word: &AtomicU32, bits: u32) -> u32 {
    fence_full();
    if word.load(Ordering::Relaxed) & bits == 0 {
        return 0;
    }
    answer(word, bits)
}

#[cold]
fn answer(word: &AtomicU32, bits: u32) -> u32 {
    let events = bits & (RX_EVENT | TX_EVENT);
    let mut old = word.load(Ordering::Relaxed);
    loop {
        let new = old & (!bits | RX_SIGNAL) | (old & events) << NEWS_SHIFT;
        match word.compare_exchange_weak(old, new, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return old & bits,
            Err(now) => old = now,
        }
    }
}

/// Takes note of the answers to events: [`RX_NEWS`], [`TX_NEWS`].
pub fn take_news(word: &AtomicU32) -> u32 {
    match word.load(Ordering::Acquire) & (RX_NEWS | TX_NEWS) {
        0 => 0,
        news => word.fetch_and(!news, Ordering::SeqCst) & news,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_announces_himself_next_does_not_hide_an_answer() {
        let word = AtomicU32::new(0);
        arm(&word, RX_EVENT | TX_SLEEP | RX_SIGNAL);
        assert_eq!(ring(&word, RX_EVENT | RX_SLEEP | RX_SIGNAL), RX_EVENT | RX_SIGNAL);
        arm(&word, RX_EVENT);
        assert_eq!(take_news(&word), RX_NEWS);
        assert_eq!(take_news(&word), 0, "taken once");
        assert_eq!(word.load(Ordering::Relaxed), RX_EVENT | TX_SLEEP | RX_SIGNAL);
        assert_eq!(ring(&word, TX_EVENT | TX_SLEEP), TX_SLEEP);
        assert_eq!(take_news(&word), 0, "a sleeper is no event");
    }
}
