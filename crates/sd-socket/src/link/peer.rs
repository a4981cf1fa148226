//! The process on the other side of a channel, and how to wake it.

use crate::fd::hidden::Hidden;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sd_ring::fence_full;
use sd_ring::sync::sleepers;
use sd_shm::channel::{Header, Side};
use sd_shm::link::Link;
use sd_shm::public::Public;

/// An answer is waited for so long at most: whoever owes it may be stopped, or may lie.
const ANSWER_NS: u64 = 200_000_000;

/// See the module.
pub(crate) struct Peer {
    /// As the monitor sees it.
    pub(crate) pid: u32,
    /// As the monitor counts, where it has said so (side A); else zero.
    pub(crate) client: AtomicU64,
    /// None after exec: whether the peer sleeps is not known then.
    pub(crate) public: Option<&'static Public>,
    pub(crate) event_fd: Hidden,
    /// The page, if it says who sleeps.
    sleepers: Option<&'static Public>,
    /// What that said before this process has rung last; see `sd_ring::sync::sleepers`.
    rung: AtomicU64,
    /// Where the other side answers: how often it was rung, and up to which of these it has looked.
    answers: Option<[&'static AtomicU32; 2]>,
    /// It is another user's: see `stranger`.
    pub(crate) is_stranger: AtomicBool,
    /// The channel, and this process's side of it.
    of: (u64, Side),
}

impl Peer {
    pub(crate) fn new(
        pid: u32,
        (public, event_fd): (Option<&'static Public>, Hidden),
        of: (u64, Side),
        is_stranger: bool,
    ) -> Peer {
        if is_stranger {
            crate::link::stranger::expected();
        }
        let [client, rung] = [const { AtomicU64::new(0) }; 2];
        let is_stranger = is_stranger.into();
        Peer { pid, client, public, event_fd, sleepers: public, rung, answers: None, is_stranger, of }
    }

    /// It stands behind such a link of a channel.
    pub(super) fn behind(mut self, link: Link, header: &'static Header) -> Peer {
        self.sleepers = self.public.filter(|_| link.says_who_sleeps());
        let side = self.of.1 as usize;
        let words = header.rung.get(side).zip(header.answered.get(side));
        self.answers = words.filter(|_| link.answers()).map(|(rung, answered)| [rung, answered]);
        self
    }

    /// Makes sure that the process looks at its events, if all its threads sleep. What it shall see was
    /// published before (SYNC POINT: sleepers, with `enter` in crates/sd-socket/src/process/waker.rs; SYNC POINT: rung, with `has_taken` in
    /// crates/sd-socket/src/process/waker.rs).
    pub(crate) fn wake(&self) {
        match self.sleepers {
            Some(page) => {
                if let Some(word) = sleepers::whom_to_wake(&page.sleepers, &self.rung) {
                    self.ring_noting(word);
                }
            }
            None => self.ring_unseen(),
        }
    }

    /// Another user's is rung by way of others, which may fail.
    fn ring_noting(&self, word: u64) {
        if self.ring(self.event_fd.raw()) {
            self.rung.store(word, Ordering::Relaxed);
        }
    }

    /// It is not known whether it sleeps.
    #[cold]
    fn ring_unseen(&self) {
        fence_full();
        let number = self.answers.map(|[rung, _]| rung.fetch_add(1, Ordering::SeqCst).wrapping_add(1));
        self.ring(self.event_fd.raw());
        if let (Some([_, answered]), Some(number)) = (self.answers, number) {
            let end = sd_sys::time::now_ns() + ANSWER_NS;
            let is_owed = || number.wrapping_sub(answered.load(Ordering::Acquire)) as i32 > 0;
            while is_owed() && sd_sys::time::now_ns() < end {
                sd_sys::time::yield_now();
            }
        }
    }

    /// Wakes who watches an eventfd of its. Whether that is done for certain.
    pub(crate) fn ring(&self, event_fd: i32) -> bool {
        if self.is_stranger.load(Ordering::Relaxed) {
            crate::link::stranger::ring(event_fd, self.of);
            return false;
        }
        let is_rung = sd_sys::fd::signal_eventfd(event_fd);
        if !is_rung {
            crate::monitor::client::noticed_loss();
        }
        is_rung
    }

    /// The program has closed its eventfd past libc.
    pub(crate) fn drop_lost(mut self) {
        core::mem::replace(&mut self.event_fd, Hidden::from_raw(-1)).lost();
    }

    /// It has become another user's.
    pub(super) fn becomes_stranger(&self) {
        crate::link::stranger::expected();
        self.is_stranger.store(true, Ordering::Relaxed);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(page) = self.public {
            // SAFETY: nobody uses the record any more, so nobody uses its mapping.
            unsafe { sd_shm::public::unmap_peer(page) };
        }
    }
}
