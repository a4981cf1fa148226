//! Rings between users, whose memory is kept as long as their channel.
//!
//! To give memory of a segment back takes a lock of the file's (MADV_REMOVE), which a peer can hold as long as it likes, by a
//! write whose bytes do not come. So nothing of what is shared with a stranger is given back, and there are few rings that
//! may become as large as others (ADR 52). The rest uses 64 KiB; slots that were used last are used first.
//!
//! What a stranger sends is another matter: it may be looked at where there is no memory, which is then made at our expense.
//! That is done for few rings as well; the others are read another way (`socket::apart`).

use crate::link::channel::Channel;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_shm::channel::SLOTS;

/// So many rings of one channel, and of all channels of the process, grow beyond 64 KiB, and so many are looked into.
const OF_CHANNEL: u32 = 8;
const OF_ALL: u32 = 32;

/// Rings that this process sends into and may grow; rings that it receives from and looks into.
static GROWN: AtomicU32 = AtomicU32::new(0);
static ENTERED: AtomicU32 = AtomicU32::new(0);

/// Few slots of a channel.
pub(crate) struct Few {
    slots: [AtomicU64; SLOTS / 64],
    /// Of all channels.
    all: &'static AtomicU32,
}

impl Few {
    pub(crate) const fn to_grow() -> Few {
        Few { slots: [const { AtomicU64::new(0) }; SLOTS / 64], all: &GROWN }
    }

    pub(crate) const fn to_enter() -> Few {
        Few { slots: [const { AtomicU64::new(0) }; SLOTS / 64], all: &ENTERED }
    }

    fn count(&self) -> u32 {
        self.slots.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Whether a slot is one of them, or becomes one: of one that was before the memory is there already.
    pub(crate) fn may(&self, slot: usize, is_time: impl FnOnce() -> bool) -> bool {
        let Some(word) = self.slots.get(slot / 64) else { return false };
        let bit = 1 << (slot % 64);
        if word.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        if self.count() >= OF_CHANNEL || self.all.load(Ordering::Relaxed) >= OF_ALL || !is_time() {
            return false;
        }
        let is_free = self.all.fetch_add(1, Ordering::Relaxed) < OF_ALL;
        if !is_free || word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            self.all.fetch_sub(1, Ordering::Relaxed);
        }
        is_free
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        self.all.fetch_sub(self.count(), Ordering::Relaxed);
    }
}

/// Whether the memory of a channel's rings is kept.
#[inline(always)]
pub(crate) fn are_kept(channel: &Channel) -> bool {
    channel.peer.is_stranger.load(Ordering::Relaxed)
}

/// Whether this process looks into the large ring that a stranger fills on a slot: not where memory is short, and otherwise
/// into few.
pub(crate) fn may_enter(channel: &Channel, slot: usize) -> bool {
    channel.entered.may(slot, || !sd_sys::budget::is_short())
}
