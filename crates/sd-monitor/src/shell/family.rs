//! What the monitor holds of a registered process, and of the children that share its slab: it
//! stays until the last of them is gone.

use super::closers::wake;
use super::segments::Slab;
use super::shortage::Room;
use sd_ring::sync::sleepers;
use sd_shm::public::{Listener, Public};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// See the module.
pub(crate) struct Family {
    pub(crate) slab: Slab,
    /// Its public page, for handing to peers; none while it is silent.
    pub(crate) public: Option<File>,
    /// None while it is silent.
    pub(crate) eventfd: Option<OwnedFd>,
    /// What tells that the image of the owner lives, if it made one (see `cut_off`).
    pub(crate) witness: Option<OwnedFd>,
    /// Eventfds of single threads, by number.
    pub(crate) thread_wakers: BTreeMap<u32, OwnedFd>,
    pub(crate) netns: u64,
    pub(crate) uid: u32,
    /// Process id of the owner.
    pub(crate) pid: u32,
    /// The owner's control connection while it lives; none while it is silent (see `silent`) or cut off (see `cut_off`).
    pub(crate) connection: Option<u64>,
    pub(crate) room: Room,
}

impl Family {
    /// See the field.
    pub(crate) fn eventfd(&self) -> Option<BorrowedFd<'_>> {
        self.eventfd.as_ref().map(AsFd::as_fd)
    }

    /// Makes whoever waits for the eventfd look around.
    pub(crate) fn wake(&self) {
        if let Some(eventfd) = &self.eventfd {
            wake(self.uid, eventfd);
        }
    }

    /// Wakes all threads of the process, those that wait for their own eventfds too: a connection may have ended.
    pub(crate) fn wake_all(&self) {
        self.wake();
        self.thread_wakers.values().for_each(|waker| wake(self.uid, waker));
    }

    /// After a message was sent unasked: the owner looks at its control socket.
    pub(crate) fn announce_mail(&self) {
        self.slab.header().mail.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Routes that were learned are invalid.
    pub(crate) fn forget_routes(&self) {
        sd_ring::sync::will_listen::void(&self.slab.header().route_epoch);
    }

    /// Connections that wait at a listener, as its owner says.
    pub(crate) fn pending(&self, listener: u32) -> u32 {
        self.public_word(listener_offset(listener) + std::mem::offset_of!(Listener, pending))
    }

    /// The owner says that it has nothing to do but to wait for connections.
    pub(crate) fn is_idle(&self, listener: u32) -> bool {
        let waiting = listener_offset(listener) + std::mem::offset_of!(Listener, waiting);
        let sleepers = self.public_word(std::mem::offset_of!(Public, sleepers));
        let have_time = sleepers::have_time(sleepers, self.public_word(std::mem::offset_of!(Public, runs)));
        (have_time || self.public_word(waiting) != 0) && self.pending(listener) == 0
    }

    fn public_word(&self, at: usize) -> u32 {
        let mut word = [0u8; 4];
        match self.public.as_ref().map(|page| page.read_exact_at(&mut word, at as u64)) {
            Some(Ok(())) => u32::from_ne_bytes(word),
            _ => 0,
        }
    }
}

fn listener_offset(listener: u32) -> usize {
    std::mem::offset_of!(Public, listeners) + listener as usize * size_of::<Listener>()
}
