//! May a bridge read, while other processes have the connection too?

use crate::endpoint::EndpointExt;
use crate::iov::Pieces;
use crate::{endpoint, ends, stream};
use core::sync::atomic::Ordering;
use sd_shm::slab::Endpoint;

/// When a bridge takes from the connection what the peer has sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// As soon as it comes: on Linux it goes to whoever reads first, and the program behind the bridge reads.
    AtOnce,
    /// Once no other process has the connection, or those that have it leave unread what came (see `Others`).
    WhenUnread,
}

/// Whether the program's own family has let go of the connection. Until then what arrives may be
/// meant for them, and the end of the bridged program is not the end of the connection.
pub(super) fn is_sole_holder(endpoint: &Endpoint) -> bool {
    endpoint.holders.load(Ordering::Acquire).is_power_of_two()
}

/// What other processes leave unread for so long is not meant for them.
const UNREAD_NS: u64 = 100_000_000;

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
}

impl Others {
    pub(super) fn new(endpoint: &Endpoint, reads: Reads) -> Others {
        let received = endpoint.rx().bytes.load(Ordering::Relaxed);
        Others { reads, received, unread_since: None, are_idle: false }
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
        if ends::data_bytes(endpoint) == 0 && !endpoint::peer_finished(endpoint) {
            self.unread_since = None;
            return false;
        }
        let now = sd_sys::time::now_ns();
        self.are_idle = now.saturating_sub(*self.unread_since.get_or_insert(now)) >= UNREAD_NS;
        self.are_idle
    }

    /// The bridge reads.
    pub(super) fn read(
        &mut self,
        endpoint: &'static Endpoint,
        into: &mut [u8],
        flags: i32,
    ) -> core::result::Result<usize, i32> {
        let got = stream::recv(endpoint, Pieces::one(into.as_mut_ptr(), into.len()), flags)?;
        self.received = self.received.wrapping_add(got as u64);
        Ok(got)
    }
}
