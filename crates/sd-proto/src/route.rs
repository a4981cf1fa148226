//! What a reply says: where a connection leads, or why a request failed.

use crate::wire::{Reader, Writer};
use crate::{Ip, Malformed};

/// A kernel's listener, of which the kernel can be asked whether it is still there, and whose process has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Socket {
    /// User of the process.
    pub user: u32,
    /// SO_COOKIE.
    pub cookie: u64,
    /// Its own address, perhaps unspecified.
    pub ip: Ip,
}

/// What side A of a new channel may reach at side B. Policy 0: it is not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Number of the policy that says so.
    pub policy: u32,
    /// The listener is one at all addresses.
    pub has_all: bool,
    /// Where A connects to.
    pub ip: Ip,
    /// See `ip`.
    pub port: u16,
}

impl Admission {
    pub(crate) fn encode<'w, 'b>(&self, w: &'w mut Writer<'b>) -> &'w mut Writer<'b> {
        w.u32(self.policy).bool(self.has_all).ip(self.ip).u16(self.port)
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Admission, Malformed> {
        Ok(Admission { policy: r.u32()?, has_all: r.bool()?, ip: r.ip()?, port: r.u16()? })
    }
}

/// Answer to "where does this connection lead?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the kernel; the number is a `sd_shm::slab::Reason`.
    Kernel {
        /// Why.
        reason: u32,
    },
    /// The policy forbids it.
    Denied,
    /// Somebody is about to listen there: ask again in a moment.
    Soon,
    /// Over shared memory.
    Shm {
        /// Channel to use. When `fresh` the descriptors segment, B's public page and B's eventfd
        /// come along; otherwise the client has it already.
        channel: u64,
        /// See `channel`.
        fresh: bool,
        /// Listener's index and generation in B's public page.
        listener: u32,
        /// See `listener`.
        generation: u32,
        /// How many candidates there are at present (>= 1).
        candidates: u32,
        /// Process id of B.
        peer_pid: u32,
        /// B as the monitor counts, and as in its directory.
        peer: u64,
        /// B is another user's: what it has may be used to hold A up.
        stranger: bool,
        /// The kernel's listener.
        socket: Socket,
    },
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// Library and monitor are of different versions.
    Version = 1,
    /// A descriptor is missing or not what it should be.
    Descriptor = 2,
    /// The message makes no sense now.
    Protocol = 3,
    /// The monitor is out of something.
    Exhausted = 4,
    /// The policy forbids it.
    Denied = 5,
    /// Somebody uses it.
    InUse = 6,
}

impl Route {
    pub(crate) fn encode<'w, 'b>(&self, w: &'w mut Writer<'b>) -> &'w mut Writer<'b> {
        match *self {
            Route::Kernel { reason } => w.u8(1).u32(reason),
            Route::Denied => w.u8(2),
            Route::Soon => w.u8(4),
            Route::Shm {
                channel,
                fresh,
                listener,
                generation,
                candidates,
                peer_pid,
                peer,
                stranger,
                socket,
            } => w
                .u8(3)
                .u64(channel)
                .bool(fresh)
                .u32(listener)
                .u32(generation)
                .u32(candidates)
                .u32(peer_pid)
                .u64(peer)
                .bool(stranger)
                .u32(socket.user)
                .u64(socket.cookie)
                .ip(socket.ip),
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Route, Malformed> {
        Ok(match r.u8()? {
            1 => Route::Kernel { reason: r.u32()? },
            2 => Route::Denied,
            4 => Route::Soon,
            3 => Route::Shm {
                channel: r.u64()?,
                fresh: r.bool()?,
                listener: r.u32()?,
                generation: r.u32()?,
                candidates: r.u32()?,
                peer_pid: r.u32()?,
                peer: r.u64()?,
                stranger: r.bool()?,
                socket: Socket { user: r.u32()?, cookie: r.u64()?, ip: r.ip()? },
            },
            _ => return Err(Malformed),
        })
    }
}

impl ErrorCode {
    pub(crate) fn decode(n: u32) -> Result<ErrorCode, Malformed> {
        use ErrorCode::*;
        [Version, Descriptor, Protocol, Exhausted, Denied, InUse]
            .into_iter()
            .find(|c| *c as u32 == n)
            .ok_or(Malformed)
    }
}
