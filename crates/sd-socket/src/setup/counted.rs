//! Threads in calls on connections of the kernel's: each is counted in the connection's word, and leaves what it was counted at.
//!
//! ```text
//!  Cold::road      ... use, three bits | inside       one more, one less: by an exchange of the whole word
//!  Cold::road_use  the ordinal of the connection that the endpoint is for      kept with the thread until its call returns
//! ```
//! Another thread may close the number of a call that is under way. When that returns, the number may lead to another connection on which others are, and so
//! may the endpoint be another one's: a count that is taken from that would let it be moved under them.

use crate::socket::cold;
use crate::socket::endpoint::EndpointExt;
use crate::socket::road::{self, CLOSED, INSIDE, WATCHED, word};
use core::sync::atomic::Ordering;
use libc::c_int;
use sd_shm::slab::{Endpoint, State};

/// A call that is counted at an endpoint, for the connection that this is for now.
#[derive(Clone, Copy)]
pub(super) struct Counted {
    endpoint: &'static Endpoint,
    /// [`sd_shm::slab::Cold::road_use`].
    which: u16,
}

/// What the thread keeps ([`sd_sys::thread::count`]) of a call that is counted at something else than an endpoint.
pub(super) const EARLY: u64 = 1;
const ADDRESS_BITS: u32 = 48;

impl Counted {
    /// One more is in a call, if the word is still `now`.
    #[inline(always)]
    pub(super) fn enter(endpoint: &'static Endpoint, now: u32) -> Option<Counted> {
        let cold = cold::of(endpoint);
        let which = cold.road_use.load(Ordering::Acquire);
        // Else it has just become another connection's.
        let is_same = now & road::USE == road::bits_of_use(which);
        let entered =
            is_same && cold.road.compare_exchange(now, now + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        entered.then_some(Counted { endpoint, which })
    }

    /// For who was counted by another thread, at what the endpoint is for now.
    pub(super) fn now(endpoint: &'static Endpoint) -> Counted {
        Counted { endpoint, which: cold::of(endpoint).road_use.load(Ordering::Acquire) }
    }

    pub(super) fn endpoint(&self) -> &'static Endpoint {
        self.endpoint
    }

    /// The thread keeps it until it has returned (`watched::left`).
    #[inline(always)]
    pub(super) fn keep(self, fd: c_int) {
        let address = core::ptr::from_ref(self.endpoint) as u64;
        sd_sys::thread::count(fd, address | u64::from(self.which) << ADDRESS_BITS);
    }

    /// What the thread has kept.
    ///
    /// # Safety
    /// [`Counted::keep`] has written it, and the process has the endpoint's memory still: who gives that up has the thread forget it, or leaves something in its
    /// place (`family::separate`).
    #[inline(always)]
    pub(super) unsafe fn kept(word: u64) -> Counted {
        let address = (word & ((1 << ADDRESS_BITS) - 1)) as *const Endpoint;
        // SAFETY: by contract: the address of an endpoint.
        Counted { endpoint: unsafe { &*address }, which: (word >> ADDRESS_BITS) as u16 }
    }

    /// One less; false: the endpoint is for another connection by now.
    #[inline(always)]
    pub(super) fn leave(self) -> bool {
        let cold = cold::of(self.endpoint);
        let one_less = |word: u32| {
            let is_same = cold.road_use.load(Ordering::Acquire) == self.which
                && word & road::USE == road::bits_of_use(self.which);
            (is_same && word & INSIDE != 0).then(|| word - 1)
        };
        cold.road.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less).is_ok()
    }
}

/// A call that began before its connection gave the slot back goes on in the kernel's, and is counted there as one of the program's is: nobody offers or
/// moves the connection meanwhile.
pub(crate) struct Inside(pub(super) Option<Counted>);

impl Inside {
    /// For who has a token of the connection, or is about to wait for it. One that has its slot needs no count. `None`: nobody may enter for a
    /// moment; who gets that lets go of the token before he waits ([`super::promote::await_open`]).
    pub(crate) fn enter(endpoint: &'static Endpoint) -> Option<Inside> {
        while endpoint.state_now() == State::Kernel
            && let Some(word) = word(endpoint)
        {
            let now = word.load(Ordering::Acquire);
            if now & WATCHED == 0 {
                // Nobody offers it. Or it has just got a slot.
                break;
            }
            if now & CLOSED != 0 {
                return None;
            }
            if let Some(counted) = Counted::enter(endpoint, now) {
                return Some(Inside(Some(counted)));
            }
        }
        Some(Inside(None))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inspect(|counted| _ = counted.leave());
    }
}
