//! What the monitor says: answers, and notices that nobody has asked for.

use crate::route::{Admission, ErrorCode, Route};
use crate::wire::{Reader, Writer};
use crate::{MESSAGE_MAX, Malformed};

/// From the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Registered. Descriptor: the directory (`sd_shm::directory`) of the process's network namespace; none if there is
    /// none.
    Welcome {
        /// Unique among the clients of this monitor.
        client: u64,
    },
    /// Done.
    Ok,
    /// Not done.
    Error {
        /// Why.
        code: ErrorCode,
    },
    /// Answer to Connect.
    Route {
        /// Where to.
        route: Route,
        /// First port of a block for the client's source ports, and how many; zero = none.
        port_first: u16,
        /// See `port_first`.
        port_count: u16,
    },
    /// Unasked, to side B: a new channel. Descriptors: segment, A's public page, A's eventfd.
    NewChannel {
        /// Channel id.
        id: u64,
        /// Process id of A.
        peer_pid: u32,
        /// A is another user's: what it has may be used to hold B up.
        stranger: bool,
        /// The connection that it was made for.
        admits: Admission,
    },
    /// Unasked: the process on the other side of a channel is another user's from now on.
    Stranger {
        /// Channel id.
        id: u64,
    },
    /// Unasked, to a listening process: connections on this channel, which was made for another, wait
    /// for accept (ADR 14). Descriptors: as for [`Reply::NewChannel`]; none when the channel is the
    /// process's own.
    Offer {
        /// Channel id.
        id: u64,
        /// Process id of A.
        peer_pid: u32,
        /// The process's number among the adopters; 0: the channel is its own.
        adopter: u32,
        /// Index of the listener that shall have them.
        listener: u32,
        /// As for [`Reply::NewChannel`].
        stranger: bool,
    },
    /// Answer to Share.
    Shared {
        /// The process's member number in that slab; its bit is set.
        member: u32,
    },
    /// Answer to Adopter and Home. Descriptors: its public page, its eventfd.
    Adopter {
        /// As for [`Reply::NewChannel`].
        stranger: bool,
    },
    /// Answer to BerthOf. Descriptor: the eventfd.
    Berth,
    /// Unasked: the channel's peer is gone for good; unmap it when no connection needs it.
    ChannelDead {
        /// Channel id.
        id: u64,
    },
    /// Unasked: the same, but connections wait there for accept. Those that were accepted are over.
    PeerGone {
        /// Channel id.
        id: u64,
    },
    /// Answer to Memory. Descriptor: a memfd of zeros, of that length for good.
    Memory,
    /// Unasked, to side A: nobody will accept the connection at this slot over its channel; it is to go over the kernel.
    Withdraw {
        /// Channel id.
        channel: u64,
        /// Slot in it.
        slot: u32,
        /// The slot's generation.
        generation: u32,
    },
    /// Descriptor: a memfd with a JSON document.
    Status,
}

impl Reply {
    /// Writes the message into `buf`; the bytes used.
    pub fn encode<'a>(&self, buf: &'a mut [u8; MESSAGE_MAX]) -> &'a [u8] {
        let mut w = Writer::new(buf);
        match *self {
            Reply::Welcome { client } => w.u8(1).u64(client),
            Reply::Ok => w.u8(2),
            Reply::Error { code } => w.u8(3).u32(code as u32),
            Reply::Route { route, port_first, port_count } => {
                w.u8(4).u16(port_first).u16(port_count);
                route.encode(&mut w)
            }
            Reply::NewChannel { id, peer_pid, stranger, admits } => {
                admits.encode(w.u8(5).u64(id).u32(peer_pid).bool(stranger))
            }
            Reply::Stranger { id } => w.u8(52).u64(id),
            Reply::ChannelDead { id } => w.u8(6).u64(id),
            Reply::PeerGone { id } => w.u8(12).u64(id),
            Reply::Memory => w.u8(30),
            Reply::Status => w.u8(7),
            Reply::Withdraw { channel, slot, generation } => w.u8(32).u64(channel).u32(slot).u32(generation),
            Reply::Offer { id, peer_pid, adopter, listener, stranger } => {
                w.u8(8).u64(id).u32(peer_pid).u32(adopter).u32(listener).bool(stranger)
            }
            Reply::Adopter { stranger } => w.u8(9).bool(stranger),
            Reply::Berth => w.u8(11),
            Reply::Shared { member } => w.u8(10).u32(member),
        };
        w.done()
    }

    /// Reads a message.
    pub fn decode(bytes: &[u8]) -> Result<Reply, Malformed> {
        let mut r = Reader::new(bytes);
        let reply = match r.u8()? {
            1 => Reply::Welcome { client: r.u64()? },
            2 => Reply::Ok,
            3 => Reply::Error { code: ErrorCode::decode(r.u32()?)? },
            4 => {
                let (port_first, port_count) = (r.u16()?, r.u16()?);
                Reply::Route { route: Route::decode(&mut r)?, port_first, port_count }
            }
            5 => Reply::NewChannel {
                id: r.u64()?,
                peer_pid: r.u32()?,
                stranger: r.bool()?,
                admits: Admission::decode(&mut r)?,
            },
            52 => Reply::Stranger { id: r.u64()? },
            6 => Reply::ChannelDead { id: r.u64()? },
            12 => Reply::PeerGone { id: r.u64()? },
            30 => Reply::Memory,
            7 => Reply::Status,
            32 => Reply::Withdraw { channel: r.u64()?, slot: r.u32()?, generation: r.u32()? },
            8 => Reply::Offer {
                id: r.u64()?,
                peer_pid: r.u32()?,
                adopter: r.u32()?,
                listener: r.u32()?,
                stranger: r.bool()?,
            },
            9 => Reply::Adopter { stranger: r.bool()? },
            11 => Reply::Berth,
            10 => Reply::Shared { member: r.u32()? },
            _ => return Err(Malformed),
        };
        r.end().map(|()| reply)
    }
}
