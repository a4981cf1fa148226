//! What a reply says: where a connection leads, or why a request failed.

use crate::table::Field;
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

impl Field for Admission {
    fn put(self, to: &mut Writer<'_>) {
        to.u32(self.policy).bool(self.has_all).ip(self.ip).u16(self.port);
    }
    fn take(from: &mut Reader<'_>) -> Result<Admission, Malformed> {
        Ok(Admission { policy: from.u32()?, has_all: from.bool()?, ip: from.ip()?, port: from.u16()? })
    }
    fn made_of(next: &mut dyn FnMut() -> u64) -> Admission {
        let (policy, has_all) = (Field::made_of(next), Field::made_of(next));
        Admission { policy, has_all, ip: Field::made_of(next), port: Field::made_of(next) }
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

crate::numbered! {
/// Why a request failed.
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
or none
}

impl Field for Route {
    fn put(self, w: &mut Writer<'_>) {
        match self {
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
        };
    }

    fn take(r: &mut Reader<'_>) -> Result<Route, Malformed> {
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
    fn made_of(next: &mut dyn FnMut() -> u64) -> Route {
        match next() % 4 {
            0 => Route::Kernel { reason: Field::made_of(next) },
            1 => Route::Denied,
            2 => Route::Soon,
            _ => Route::Shm {
                channel: Field::made_of(next),
                fresh: Field::made_of(next),
                listener: Field::made_of(next),
                generation: Field::made_of(next),
                candidates: Field::made_of(next),
                peer_pid: Field::made_of(next),
                peer: Field::made_of(next),
                stranger: Field::made_of(next),
                socket: Socket {
                    user: Field::made_of(next),
                    cookie: Field::made_of(next),
                    ip: Field::made_of(next),
                },
            },
        }
    }
}

crate::table::by_number!(ErrorCode::Version);
