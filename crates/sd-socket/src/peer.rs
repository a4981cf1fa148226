//! The process on the other side of a channel, and how to wake it.

use core::sync::atomic::{AtomicU64, Ordering};
use sd_ring::fence_full;
use sd_shm::public::Public;

/// See the module.
pub(crate) struct Peer {
    /// As the monitor sees it.
    pub(crate) pid: u32,
    /// As the monitor counts, where it has said so (side A); else zero.
    pub(crate) client: AtomicU64,
    /// None after exec: whether the peer sleeps is not known then.
    pub(crate) public: Option<&'static Public>,
    pub(crate) event_fd: i32,
}

impl Peer {
    pub(crate) fn new(pid: u32, public: Option<&'static Public>, event_fd: i32) -> Peer {
        Peer { pid, client: AtomicU64::new(0), public, event_fd }
    }

    /// Makes sure that the process looks at its events, if all its threads sleep. What it shall see was
    /// published before.
    pub(crate) fn wake(&self) {
        fence_full();
        if self.public.is_none_or(|page| page.sleepers.load(Ordering::Relaxed) != 0) {
            sd_sys::fd::eventfd_signal(self.event_fd);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        crate::process::close_hidden(self.event_fd);
        if let Some(page) = self.public {
            // SAFETY: nobody uses the record any more, so nobody uses its mapping.
            unsafe { sd_shm::public::unmap_peer(page) };
        }
    }
}
