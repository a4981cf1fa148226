//! The process on the other side of a channel, and how to wake it.

use crate::fd::hidden::Hidden;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sd_ring::fence_full;
use sd_shm::channel::Side;
use sd_shm::public::Public;

/// See the module.
pub(crate) struct Peer {
    /// As the monitor sees it.
    pub(crate) pid: u32,
    /// As the monitor counts, where it has said so (side A); else zero.
    pub(crate) client: AtomicU64,
    /// None after exec: whether the peer sleeps is not known then.
    pub(crate) public: Option<&'static Public>,
    pub(crate) event_fd: Hidden,
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
        Peer { pid, client: AtomicU64::new(0), public, event_fd, is_stranger: is_stranger.into(), of }
    }

    /// Makes sure that the process looks at its events, if all its threads sleep. What it shall see was
    /// published before.
    pub(crate) fn wake(&self) {
        fence_full();
        if self.public.is_none_or(|page| page.sleepers.load(Ordering::Relaxed) != 0) {
            self.ring(self.event_fd.raw());
        }
    }

    /// Wakes who watches an eventfd of its.
    pub(crate) fn ring(&self, event_fd: i32) {
        match self.is_stranger.load(Ordering::Relaxed) {
            false => sd_sys::fd::eventfd_signal(event_fd),
            true => crate::link::stranger::ring(event_fd, self.of),
        }
    }

    /// It has become another user's.
    pub(crate) fn becomes_stranger(&self) {
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
