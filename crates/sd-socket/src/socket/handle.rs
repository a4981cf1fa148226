//! A socket as a call uses it: its endpoint, and what this process has of it.
//!
//! What only this process knows of an endpoint stands beside the slab, by the endpoint's number; which of several slabs it is,
//! and the number, follow from the endpoint's address. A call that needs it more than once finds it once, in the beginning.

use crate::fd::table;
use crate::link::channel::Channel;
use crate::process::{PROCESS, Priv};
use core::ops::Deref;
use sd_shm::slab::Endpoint;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Socket {
    pub(crate) endpoint: &'static Endpoint,
    /// What only this process knows of it.
    pub(crate) private: &'static Priv,
}

impl Socket {
    /// `None`: it is in no slab that this process has.
    #[inline]
    pub(crate) fn of(endpoint: &'static Endpoint) -> Option<Socket> {
        Some(Socket { endpoint, private: PROCESS.private(endpoint)? })
    }

    /// The one behind a number.
    #[inline]
    pub(crate) fn at(fd: i32) -> Option<Socket> {
        Socket::of(table::socket(fd)?)
    }

    /// The channel that it is connected through.
    #[inline]
    pub(crate) fn channel(&self) -> Option<&'static Channel> {
        self.private.channel()
    }
}

impl Deref for Socket {
    type Target = Endpoint;
    #[inline(always)]
    fn deref(&self) -> &Endpoint {
        self.endpoint
    }
}
