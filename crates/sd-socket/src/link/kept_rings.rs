//! Rings between users, whose memory is kept as long as their channel.
//!
//! To give memory of a segment back takes a lock of the file's (MADV_REMOVE), which a peer can hold as long as it likes, by a
//! write whose bytes do not come. So nothing of what is shared with a stranger is given back, and there are few rings that
//! may become as large as others (ADR 52). The rest uses 64 KiB; slots that were used last are used first.

use crate::link::channel::Channel;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_shm::channel::SLOTS;

/// So many rings of one channel, and of all channels of the process, grow beyond 64 KiB.
const OF_CHANNEL: u32 = 8;
const OF_ALL: u32 = 32;

static ALL: AtomicU32 = AtomicU32::new(0);

/// Slots of a channel whose rings may grow.
pub(crate) struct Grown([AtomicU64; SLOTS / 64]);

impl Grown {
    pub(crate) const fn new() -> Grown {
        Grown([const { AtomicU64::new(0) }; SLOTS / 64])
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Whether the ring at a slot may grow: one that might have before has its memory already.
    fn may(&self, slot: usize) -> bool {
        let Some(word) = self.0.get(slot / 64) else { return false };
        let bit = 1 << (slot % 64);
        if word.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        if self.count() >= OF_CHANNEL {
            return false;
        }
        let is_free = ALL.fetch_add(1, Ordering::Relaxed) < OF_ALL;
        if !is_free || word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            ALL.fetch_sub(1, Ordering::Relaxed);
        }
        is_free
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        ALL.fetch_sub(self.count(), Ordering::Relaxed);
    }
}

/// Whether the memory of a channel's rings is kept.
pub(crate) fn are_kept(channel: &Channel) -> bool {
    channel.peer.is_stranger.load(Ordering::Relaxed)
}

/// Whether a new connection's ring is to stay at 64 KiB.
pub(crate) fn stays_small(channel: &Channel, slot: usize) -> bool {
    are_kept(channel) && !channel.grown.may(slot)
}
