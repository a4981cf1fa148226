//! The thread wakers of the process on the other side of a channel: eventfds on each of which one thread of its sleeps. The other
//! end of it, and the protocol: `socket::thread_waker`.

use crate::fd::hidden::{Hidden, HiddenCell};
use crate::link::channel::Channel;
use crate::link::peer::Peer;
use crate::process::PROCESS;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_proto::{Reply, Request};
use sd_shm::channel::{RINGS_NOT, SlotSide, THREAD_WAKERS};

/// Which thread wakers whoever has these words can ring for the connection.
pub(crate) fn rings_in(words: &SlotSide) -> u64 {
    words.cold().map_or(0, |words| words.rings.load(Ordering::SeqCst))
}

/// Those that this process can ring.
pub(crate) struct Known {
    event_fds: [HiddenCell; THREAD_WAKERS],
    /// Which of them are known, a bit each.
    mask: AtomicU64,
    /// Questions that the monitor could not answer.
    vain: AtomicU32,
}

/// Thread wakers of others that this process can ring, and how many there may be: each is a descriptor.
static COUNT: AtomicU32 = AtomicU32::new(0);
const COUNT_MAX: u32 = 512;
/// After so many the channel does without.
const VAIN_MAX: u32 = 16;

impl Known {
    pub(crate) const fn new() -> Known {
        let event_fds = [const { HiddenCell::empty() }; THREAD_WAKERS];
        Known { event_fds, mask: AtomicU64::new(0), vain: AtomicU32::new(0) }
    }

    /// What `rings` says of a connection that only this process has.
    pub(crate) fn mask(&self) -> u64 {
        self.mask.load(Ordering::Acquire)
    }

    /// Rings that one of the peer. False: it is not known.
    pub(crate) fn ring(&self, peer: &Peer, number: u32) -> bool {
        let event_fd = self.event_fds.get(number as usize).map_or(-1, HiddenCell::raw);
        if event_fd >= 0 {
            peer.ring(event_fd);
        }
        event_fd >= 0
    }

    /// The other side would sleep on a thread waker for the connection at a slot.
    pub(super) fn grant(&self, channel: &Channel, slot: usize, own: &SlotSide, number: u32) {
        if rings_in(own) & (RINGS_NOT | 1 << number) == 0 {
            self.grant_slow(channel, slot, own, number);
        }
    }

    #[cold]
    fn grant_slow(&self, channel: &Channel, slot: usize, own: &SlotSide, number: u32) {
        let Some(known) = self.event_fds.get(number as usize) else { return };
        if !known.is_some() && self.ask(channel, known, number).is_none() {
            self.vain.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // So that nobody forks meanwhile: what is learned from now on a child would not know.
        let Some(_alloc) = PROCESS.alloc.try_lock() else { return };
        let Some(endpoint) = channel.endpoint(slot) else { return };
        let is_alone = PROCESS.locate(endpoint).is_some_and(|(rec, _)| {
            endpoint.holders.load(Ordering::SeqCst) == rec.bit.load(Ordering::Relaxed)
        });
        if is_alone {
            own.make_cold().rings.fetch_or(1 << number, Ordering::SeqCst);
        }
    }

    fn ask(&self, channel: &Channel, known: &HiddenCell, number: u32) -> Option<()> {
        if self.vain.load(Ordering::Relaxed) >= VAIN_MAX || COUNT.load(Ordering::Relaxed) >= COUNT_MAX {
            return None;
        }
        let request = Request::ThreadWakerOf { channel: channel.id, side: channel.side as u32, number };
        let (reply, got) = crate::monitor::client::question(&request, &[])?;
        if reply != Reply::ThreadWaker {
            return None;
        }
        let [event_fd] = got.fds.take()?;
        if known.put_first(Hidden::of(event_fd)) {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        self.mask.fetch_or(1 << number, Ordering::AcqRel);
        Some(())
    }
}

impl Known {
    /// The program has closed them past libc. Connections say so next.
    pub(crate) fn drop_lost(&self) {
        COUNT.fetch_sub(self.mask.swap(0, Ordering::AcqRel).count_ones(), Ordering::Relaxed);
        self.event_fds.iter().for_each(HiddenCell::lose);
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        COUNT.fetch_sub(self.mask().count_ones(), Ordering::Relaxed);
        self.event_fds.iter().for_each(HiddenCell::close);
    }
}
