//! May a bridge read, while other processes have the connection too?

use super::lent::Lent;
use crate::data::iov::Pieces;
use crate::data::stream;
use crate::socket::endpoint;
use crate::socket::endpoint::EndpointExt;
use core::sync::atomic::Ordering;
use sd_shm::slab::Endpoint;
use sd_sys::Errno;

/// When a bridge takes from the connection what the peer has sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// As soon as it comes: on Linux it goes to whoever reads first, and the program behind the bridge reads.
    AtOnce,
    /// Once no other process has the connection, or those that have it leave unread what came (see `Others`). What the
    /// program behind the bridge has not read stays for the others (see `lent`).
    AsRead,
}

/// Whether the program's own family has let go of the connection. Until then what arrives may be
/// meant for them, and the end of the bridged program is not the end of the connection.
pub(super) fn is_sole_holder(endpoint: &Endpoint) -> bool {
    endpoint.holders.load(Ordering::Acquire).is_power_of_two()
}

/// So long, in milliseconds, those that have just died may be holders still, and so may all while there is no monitor.
const DEATH_MS: u32 = 2000;

/// As [`is_sole_holder`], or soon.
pub(super) fn is_soon_sole_holder(endpoint: &Endpoint) -> bool {
    (0..DEATH_MS).any(|_| {
        let is_sole = is_sole_holder(endpoint);
        if !is_sole {
            let _ = sd_sys::time::sleep_ns(1_000_000);
        }
        is_sole
    })
}

/// What other processes leave unread for so long is not meant for them.
const UNREAD_NS: u64 = 100_000_000;
/// That time where the bridge takes away only what was read behind it: everywhere but where the kernel does not tell that.
const UNREAD_LENT_NS: u64 = 5_000_000;

/// What the other holders of the connection do with what the peer sends. One that waits for the program behind the bridge,
/// with its copy open, reads nothing: if the bridge left the data to it, all three would wait for ever. One
/// that reads itself must not lose bytes to a program that does not want them.
pub(super) struct Others {
    reads: Reads,
    /// Bytes received by anybody when the bridge looked last.
    received: u64,
    /// Since when something has been there, and nobody has read.
    unread_since: Option<u64>,
    /// They read nothing.
    are_idle: bool,
    /// Of [`Reads::AsRead`], where the kernel tells what was read.
    pub(super) lent: Option<Lent>,
}

impl Others {
    pub(super) fn new(endpoint: &Endpoint, reads: Reads, inner: i32) -> Others {
        let received = endpoint.rx().bytes.load(Ordering::Relaxed);
        let lent = if reads == Reads::AsRead { Lent::new(inner) } else { None };
        Others { reads, received, unread_since: None, are_idle: false, lent }
    }

    /// What was lent is taken, as far as it was read.
    pub(super) fn settle(&mut self, endpoint: &'static Endpoint) {
        let is_alone = is_sole_holder(endpoint);
        let taken = self.lent.as_mut().map_or(0, |lent| lent.settle(endpoint, is_alone));
        self.received = self.received.wrapping_add(taken);
    }

    /// The program has closed its socket, and others have the connection.
    pub(super) fn finish(&mut self, endpoint: &'static Endpoint) {
        if let Some(lent) = &mut self.lent {
            lent.finish(endpoint);
        }
    }

    /// How long to wait for that to go on; `None`: nothing is lent, or to be.
    pub(super) fn pause_ns(&mut self) -> Option<u64> {
        self.lent.as_mut().filter(|lent| lent.is_out() || lent.waits()).map(Lent::pause_ns)
    }

    /// The program's side is broken.
    pub(super) fn end_turn(&mut self, endpoint: &'static Endpoint) {
        if let Some(lent) = &mut self.lent {
            lent.end_turn(endpoint);
        }
    }

    /// All that the program has sent so far was passed on.
    pub(super) fn has_answered(&mut self, endpoint: &'static Endpoint) {
        if let Some(lent) = &mut self.lent {
            lent.has_answered(endpoint);
        }
    }

    /// The program's side is broken off, as others have read what it had there unread.
    pub(super) fn have_read_it(&mut self, endpoint: &'static Endpoint) -> bool {
        self.settle(endpoint);
        self.lent.as_ref().is_some_and(Lent::was_closed_with_others_bytes)
    }

    /// Whether the bridge may read now.
    pub(super) fn leave_it(&mut self, endpoint: &'static Endpoint) -> bool {
        if self.reads == Reads::AtOnce || is_sole_holder(endpoint) {
            return true;
        }
        let received = endpoint.rx().bytes.load(Ordering::Relaxed);
        // Zero: the half is parked.
        if received != 0 && received != self.received {
            (self.received, self.unread_since, self.are_idle) = (received, None, false);
        }
        if self.are_idle {
            return true;
        }
        if crate::socket::ring_view::data_bytes(endpoint) == 0 && !endpoint::peer_finished(endpoint) {
            self.unread_since = None;
            self.lent.iter_mut().for_each(Lent::waits_no_more);
            return false;
        }
        let now = sd_sys::time::now_ns();
        let limit = if self.lent.is_some() { UNREAD_LENT_NS } else { UNREAD_NS };
        self.are_idle = now.saturating_sub(*self.unread_since.get_or_insert(now)) >= limit;
        self.are_idle
    }

    /// Something has come that they may read.
    pub(super) fn see_something(&self) -> bool {
        self.unread_since.is_some()
    }

    /// The bridge reads.
    pub(super) fn read(
        &mut self,
        endpoint: &'static Endpoint,
        into: &mut [u8],
        flags: i32,
    ) -> Result<usize, Errno> {
        if let Some(lent) = self.lent.as_mut().filter(|lent| lent.is_out() || !is_sole_holder(endpoint)) {
            return lent.lend(endpoint, into);
        }
        self.lent.iter_mut().for_each(Lent::waits_no_more);
        let got = stream::recv(endpoint, Pieces::one(into.as_mut_ptr(), into.len()), flags)?;
        self.received = self.received.wrapping_add(got as u64);
        self.lent.iter_mut().for_each(|lent| lent.passes_on(got));
        Ok(got)
    }
}
