//! When must the other side be woken? The word in which a waiter announces itself.
//!
//! ```text
//!  waiter                          notifier
//!  arm: word |= bits               publish (header or credit)
//!  full fence                      full fence
//!  look again; nothing? sleep      word & bits? clear them, wake
//! ```
//! Store-buffer reasoning (SYNC POINT: doorbell): of the two stores before the fences, at least one
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

/// Announces a waiter. Afterwards the caller must look at the ring once more before it sleeps.
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
/// announcement but [`RX_SIGNAL`] is answered once.
#[inline(always)]
pub fn ring(word: &AtomicU32, bits: u32) -> u32 {
    fence_full();
    if word.load(Ordering::Relaxed) & bits == 0 {
        return 0;
    }
    word.fetch_and(!bits | RX_SIGNAL, Ordering::SeqCst) & bits
}
