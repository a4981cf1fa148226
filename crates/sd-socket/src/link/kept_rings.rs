//! Rings between users, whose memory is kept as long as their channel.
//!
//! To give memory of a segment back takes a lock of the file's (MADV_REMOVE), which a peer can hold as long as it likes, by a
//! write whose bytes do not come. So nothing of what is shared with a stranger is given back, and there are few rings that
//! may become as large as others (ADR 52). The rest uses 64 KiB; slots that were used last are used first.
//!
//! What a stranger sends is another matter: it may be looked at where there is no memory, which is then made at our expense.
//! That is done for few rings as well; the others are read another way (`socket::apart`).
//!
//! The end of a channel is not the end of its memory: whoever keeps the segment keeps it. The monitor has it emptied when all who are
//! left have said that they are finished (ADR 68), and says when that is done. Until then the rings of the channel count as ours:
//!
//! ```text
//!  record freed --give_up--> owed --Finished--> monitor ... --Emptied--> paid
//! ```

use crate::link::channel::Channel;
use crate::process::PROCESS;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_shm::channel::{GEOMETRY, SLOTS};
use sd_sys::lock::Lock;

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
    pub(super) const fn to_grow() -> Few {
        Few { slots: [const { AtomicU64::new(0) }; SLOTS / 64], all: &GROWN }
    }

    pub(super) const fn to_enter() -> Few {
        Few { slots: [const { AtomicU64::new(0) }; SLOTS / 64], all: &ENTERED }
    }

    fn count(&self) -> u32 {
        self.slots.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// None of them is any more, but they still count: how many.
    fn take(&self) -> u32 {
        self.slots.iter().map(|word| word.swap(0, Ordering::Relaxed).count_ones()).sum()
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
    channel.peer.is_stranger.load(Ordering::Relaxed) || !channel.link.gives_memory_back()
}

/// Whether this process looks into the large ring that a stranger fills on a slot: into few, all of them a small part of the
/// memory that is left, and into none where that is short.
pub(crate) fn may_enter(channel: &Channel, slot: usize) -> bool {
    let bytes = || u64::from(ENTERED.load(Ordering::Relaxed) + 1) * u64::from(GEOMETRY.large);
    channel.entered.may(slot, || bytes() <= sd_sys::budget::led_max())
}

/// What a channel that is over counts for.
struct Owed {
    id: u64,
    /// Of [`GROWN`], of [`ENTERED`].
    counts: [u32; 2],
    /// To be told to the monitor.
    is_new: bool,
}

impl Drop for Owed {
    fn drop(&mut self) {
        for (all, count) in [&GROWN, &ENTERED].into_iter().zip(self.counts) {
            all.fetch_sub(count, Ordering::Relaxed);
        }
    }
}

static OWED: Lock<Vec<Owed>> = Lock::new(Vec::new());

/// A record is about to be freed, under the lock of those.
#[cold]
pub(super) fn give_up(channel: &Channel) {
    if !are_kept(channel) {
        return;
    }
    let counts = [channel.grown.take(), channel.entered.take()];
    // A process may have two, one of them inherited; the last one says it.
    let is_new = !PROCESS.channels().any(|other| other.id == channel.id);
    OWED.lock().push(Owed { id: channel.id, counts, is_new });
}

/// A channel of which the monitor is to be told, once.
#[cold]
pub(super) fn next_new() -> Option<u64> {
    let mut owed = OWED.lock();
    let new = owed.iter_mut().find(|owed| owed.is_new)?;
    new.is_new = false;
    Some(new.id)
}

/// It could not be told of.
#[cold]
pub(super) fn is_new_again(id: u64) {
    let mut owed = OWED.lock();
    owed.iter_mut().filter(|owed| owed.id == id).for_each(|owed| owed.is_new = true);
}

/// What the monitor has answered is lost: it is to be told of all of them once more.
#[cold]
pub(super) fn are_new_again() {
    let is_left = |id: u64| PROCESS.channels().any(|channel| channel.id == id);
    OWED.lock().iter_mut().filter(|owed| !is_left(owed.id)).for_each(|owed| owed.is_new = true);
}

/// Nothing is left of a channel's memory, or nobody would tell.
#[cold]
pub(crate) fn paid(id: u64) {
    OWED.lock().retain(|owed| owed.id != id);
}

/// The monitor is another, which knows nothing of them.
#[cold]
pub(crate) fn forgive() {
    OWED.lock().retain(|owed| owed.is_new);
}

/// In the child of a fork: the parent pays.
pub(crate) fn forked() {
    match OWED.try_lock() {
        Some(mut owed) => owed.clear(),
        // Another thread was changing it.
        None => {
            // SAFETY: the child has one thread.
            unsafe { OWED.force_unlock() };
            core::mem::forget(core::mem::take(&mut *OWED.lock()));
        }
    }
}

/// Gives large rings' memory of a finished connection back to the system: the one that this side
/// read, and, when the peer has closed before, the one that it wrote.
pub(crate) fn trim(channel: &Channel, slot: usize, peer_closed: bool) {
    if are_kept(channel) {
        return;
    }
    let other = channel.side.other();
    for from in [channel.side, other].into_iter().filter(|&from| from == other || peer_closed) {
        // SAFETY: a whole large ring of this mapping, a multiple of the page size, that nobody
        // will read any more.
        unsafe { sd_sys::mem::punch(channel.map.large_ring(slot, from), GEOMETRY.large as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monitor_is_told_once_more_where_its_answer_is_lost() {
        GROWN.fetch_add(3, Ordering::Relaxed);
        OWED.lock().push(Owed { id: 7, counts: [3, 0], is_new: true });
        assert_eq!((next_new(), next_new()), (Some(7), None));
        are_new_again();
        assert_eq!((next_new(), next_new()), (Some(7), None));
        paid(7);
        are_new_again();
        assert_eq!((next_new(), GROWN.load(Ordering::Relaxed)), (None, 0));
    }
}
