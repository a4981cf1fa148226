//! Connections that this process has requested and that the other side may not have accepted yet: the oldest is complained
//! about (`adopt.rs`), and a backlog has room for so many of them.
//!
//! What a listener says of its backlog is what it has seen, and a process that does not look sees nothing. So a process counts
//! its own requests too, over all its channels to that one: of those alone there are never more than the backlog takes, and those that
//! the listener has not seen are added to what it says. Threads that ask at the same time count each other
//! ([`Channel::requested`]). Other processes that ask while the listener does not look are not known of.

use crate::link::channel::Channel;
use crate::process::PROCESS;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sd_ring::fence_full;
use sd_shm::channel::Side;
use sd_sys::lock::Lock;

/// A connection that was requested, and when, by `sd_sys::time::ticks`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) slot: u16,
    pub(crate) generation: u32,
    pub(crate) at: u64,
}

/// Those of one channel.
pub(super) struct Outstanding {
    /// Oldest first. Some may have been accepted meanwhile.
    list: Lock<VecDeque<Asked>>,
    /// Its length.
    len: AtomicUsize,
    /// There is another channel to the same process.
    has_twin: AtomicBool,
}

/// Requests to one listener that wait for accept.
#[derive(Clone, Copy, Default)]
struct Count {
    all: usize,
    /// Of these, what the other side has not looked at.
    unseen: usize,
}

impl Outstanding {
    pub(crate) fn new() -> Outstanding {
        Outstanding {
            list: Lock::new(VecDeque::new()),
            len: AtomicUsize::new(0),
            has_twin: AtomicBool::new(false),
        }
    }

    /// As long as `most`, and the only list of this process's to that one.
    #[inline]
    fn is_at_most(&self, most: usize) -> bool {
        self.len.load(Ordering::Relaxed) <= most && !self.has_twin.load(Ordering::Relaxed)
    }

    /// In the child of a fork: another thread may have held the lock.
    ///
    /// # Safety
    /// The process has one thread.
    pub(crate) unsafe fn forked(&self) {
        // SAFETY: promised by the caller.
        unsafe { self.list.force_unlock() };
    }
}

/// Index and generation of the listener that a connection was requested from.
pub(crate) fn asked_for(channel: &Channel, slot: usize) -> (u32, u32) {
    let listener = &channel.map.slot(slot).side[0].listener;
    (listener.load(Ordering::Relaxed), channel.map.names(slot).listener_gen.load(Ordering::Relaxed))
}

impl Channel {
    /// The oldest of this side's connections that have not been accepted yet.
    pub(crate) fn oldest_waiting(&self) -> Option<Asked> {
        let mut list = self.outstanding.list.lock();
        self.forget_accepted(&mut list);
        list.front().copied()
    }

    /// The oldest, as far as they do not wait any more.
    #[cold]
    fn forget_accepted(&self, list: &mut VecDeque<Asked>) {
        while list.front().is_some_and(|first| !self.still_waits(first)) {
            list.pop_front();
        }
        self.outstanding.len.store(list.len(), Ordering::Relaxed);
    }

    /// Whether one more connection fits into the backlog of a listener, by index and generation. `pending` is how many wait
    /// there, by what it says.
    #[inline]
    pub(crate) fn fits(&self, listener: (u32, u32), backlog: u32, pending: u32) -> bool {
        // As in Linux, one more than the backlog.
        let Some(room) = backlog.checked_sub(pending) else { return false };
        // As long as that, accepted or not: most often there is no need to look at each.
        self.outstanding.is_at_most(room as usize) || self.fits_by_count(listener, backlog, room)
    }

    #[cold]
    fn fits_by_count(&self, listener: (u32, u32), backlog: u32, room: u32) -> bool {
        let Count { all, unseen } = self.count_to_process(listener);
        all <= backlog as usize && unseen <= room as usize
    }

    /// None of this side's connections on this channel waits at that listener.
    pub(crate) fn none_waits(&self, listener: (u32, u32)) -> bool {
        self.outstanding.len.load(Ordering::Relaxed) == 0 || self.count(listener).all == 0
    }

    fn still_waits(&self, asked: &Asked) -> bool {
        self.map.waiting(asked.slot as usize) == Some(asked.generation)
    }

    #[cold]
    fn count(&self, listener: (u32, u32)) -> Count {
        let mut list = self.outstanding.list.lock();
        list.retain(|known| self.still_waits(known));
        self.outstanding.len.store(list.len(), Ordering::Relaxed);
        let mut count = Count::default();
        for asked in list.iter().filter(|asked| asked_for(self, asked.slot as usize) == listener) {
            count.all += 1;
            count.unseen += usize::from(self.map.events(Side::B).is_posted(asked.slot as usize));
        }
        count
    }

    /// Over all channels to the same process.
    #[cold]
    fn count_to_process(&self, listener: (u32, u32)) -> Count {
        let mut sum = self.count(listener);
        if self.outstanding.has_twin.load(Ordering::Relaxed) {
            for twin in self.twins() {
                let more = twin.count(listener);
                sum = Count { all: sum.all + more.all, unseen: sum.unseen + more.unseen };
            }
        }
        sum
    }

    fn twins(&self) -> impl Iterator<Item = &'static Channel> {
        let (id, client) = (self.id, self.peer.client.load(Ordering::Relaxed));
        PROCESS.channels().filter(move |other| {
            other.side == Side::A
                && other.id != id
                && other.peer.client.load(Ordering::Relaxed) == client
                && !other.inherited.load(Ordering::Relaxed)
        })
    }

    /// The process on the other side is known from now on.
    pub(crate) fn set_client(&self, client: u64) {
        if self.peer.client.swap(client, Ordering::Relaxed) == client || self.side == Side::B {
            return;
        }
        // Of two that are set at the same time, one sees the other.
        fence_full();
        for twin in self.twins() {
            twin.outstanding.has_twin.store(true, Ordering::Relaxed);
            self.outstanding.has_twin.store(true, Ordering::Relaxed);
        }
    }

    /// A connection was requested at a slot; it is not announced yet. False if others were requested at the same time, so that it
    /// does not fit into the backlog any more.
    #[inline]
    pub(crate) fn requested(&self, asked: Asked, listener: (u32, u32), backlog: u32) -> bool {
        let mut list = self.outstanding.list.lock();
        list.push_back(asked);
        // At once, as the lines of its slot are still here: 32 at a time cost fewer instructions, and a twelfth of the rate.
        if list.len() > 1 {
            self.forget_accepted(&mut list);
        }
        self.outstanding.len.store(list.len(), Ordering::Relaxed);
        drop(list);
        self.outstanding.is_at_most(backlog as usize + 1)
            || self.is_among_the_first(&asked, listener, backlog)
    }

    #[cold]
    fn is_among_the_first(&self, asked: &Asked, listener: (u32, u32), backlog: u32) -> bool {
        let is_to =
            |known: &Asked| asked_for(self, known.slot as usize) == listener && self.still_waits(known);
        let list = self.outstanding.list.lock();
        let before = list.iter().take_while(|known| *known != asked).filter(|known| is_to(known)).count();
        drop(list);
        let on_others: usize = match self.outstanding.has_twin.load(Ordering::Relaxed) {
            true => self.twins().map(|twin| twin.count(listener).all).sum(),
            false => 0,
        };
        before + on_others <= backlog as usize
    }
}
