//! What the monitor says: answers, and notices that nobody has asked for.

use crate::route::{Admission, ErrorCode, Route};
use crate::{Ip, table};

table::messages! {
/// From the monitor.
pub enum Reply {
    /// Registered. Descriptor: the directory (`sd_shm::directory`) of the process's network namespace; none if there is
    /// none.
    1 Welcome {
        /// Unique among the clients of this monitor.
        client: u64,
    } brings 1, silent;
    /// Done.
    2 Ok brings 0, silent;
    /// Not done.
    3 Error {
        /// Why.
        code: ErrorCode,
    } brings 0, silent;
    /// Answer to Resume. Descriptors: slab, public page, eventfd of the sender's Hello.
    57 Resumed brings 3, silent;
    /// Answer to GiveBack. Descriptors: the segment; the eventfd of the process that the channel was made for on the other
    /// side, if there is one.
    58 GivenBack {
        /// As for [`Reply::NewChannel`].
        stranger: bool,
    } brings 2, silent;
    /// Answer to Connect.
    4 Route {
        /// First port of a block for the client's source ports, and how many; zero = none.
        port_first: u16,
        /// See `port_first`.
        port_count: u16,
        /// Where to.
        route: Route,
    } brings 3, silent;
    /// Unasked, to side B: a new channel. Descriptors: segment, A's public page, A's eventfd.
    5 NewChannel {
        /// Channel id.
        id: u64,
        /// Process id of A.
        peer_pid: u32,
        /// A is another user's: what it has may be used to hold B up.
        stranger: bool,
        /// The connection that it was made for.
        admits: Admission,
    } brings 3, silent;
    /// Unasked: the process on the other side of a channel is another user's from now on.
    52 Stranger {
        /// Channel id.
        id: u64,
    } brings 0, silent;
    /// Unasked, to a listening process: connections on this channel, which was made for another, wait
    /// for accept (ADR 14). Descriptors: as for [`Reply::NewChannel`]; none when the channel is the
    /// process's own.
    8 Offer {
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
    } brings 3, silent;
    /// Answer to Share.
    10 Shared {
        /// The process's member number in that slab; its bit is set.
        member: u32,
    } brings 0, silent;
    /// Answer to Adopter and WakeTarget. Descriptors: its public page, its eventfd.
    9 Adopter {
        /// As for [`Reply::NewChannel`].
        stranger: bool,
    } brings 2, silent;
    /// Answer to ThreadWakerOf. Descriptor: the eventfd.
    11 ThreadWaker brings 1, silent;
    /// Answer to Waiting.
    53 Waiting {
        /// So many connections.
        count: u32,
    } brings 0, silent;
    /// Unasked: the channel's peer is gone for good; unmap it when no connection needs it.
    6 ChannelDead {
        /// Channel id.
        id: u64,
    } brings 0, silent;
    /// Unasked: the same, but connections wait there for accept. Those that were accepted are over.
    12 PeerGone {
        /// Channel id.
        id: u64,
    } brings 0, silent;
    /// Unasked: nothing is left of the memory of a channel of which the process has said [`Request::Finished`].
    ///
    /// [`Request::Finished`]: crate::Request::Finished
    54 Emptied {
        /// Channel id.
        id: u64,
    } brings 0, silent;
    /// Answer to Memory. Descriptor: a memfd of zeros, of that length for good.
    30 Memory brings 1, silent;
    /// Unasked, to side A: nobody will accept the connection at this slot over its channel; it is to go over the kernel.
    32 Withdraw {
        /// Channel id.
        channel: u64,
        /// Slot in it.
        slot: u32,
        /// The slot's generation.
        generation: u32,
    } brings 0, silent;
    /// Unasked, to a pump: two channels, whose connections it carries from one to the other, slot by slot. It is side B of the
    /// first and side A of the second. Descriptors, of the connecting process and then of the listening one: segment, public
    /// page, eventfd.
    60 Twin {
        /// Id of the channel to the connecting process.
        near: u64,
        /// Id of the channel to the listening process.
        far: u64,
        /// The connecting process is another user's than the pump.
        near_stranger: bool,
        /// The listening one is.
        far_stranger: bool,
    } brings 6, silent;
    /// Unasked: both ends of a connection were offered ([`Request::Offer`]). Side A takes a slot of the channel for it and shows
    /// the ticket there; to side B, which knows the channel already, no descriptors come. Descriptors: segment, public page,
    /// eventfd of B, if A does not have the channel yet.
    ///
    /// [`Request::Offer`]: crate::Request::Offer
    63 Promote {
        /// The receiver's own name for its offer.
        serial: u64,
        /// Channel id.
        channel: u64,
        /// The receiver's side: 0 = A, 1 = B.
        side: u32,
        /// A number that nobody else knows.
        ticket: u64,
        /// The other process.
        peer_pid: u32,
        /// Its number as a client.
        peer: u64,
        /// As for [`Reply::NewChannel`].
        stranger: bool,
        /// Where the other end counts byte 0 of what it sends, as the receiver counts what it has received; zero, but for connections of which
        /// an end was restored, whose kernel begins anew to count. Modulo 2^32.
        behind: u32,
        /// The next two are known.
        told: bool,
        /// The sequence number of the first byte that the receiver has sent since the connection began, and of the first that it has received:
        /// to be said again if the connection is restored ([`crate::Request::Offer`]).
        sent: u32,
        /// See `sent`.
        received: u32,
        /// To an engine: the network namespace of the other end, SO_NETNS_COOKIE. Else zero.
        netns: u64,
    } brings 3, silent;
    /// Unasked: connections of the process that were promoted are to go back to the kernel's, if one of their ends has this name.
    64 Demote {
        /// An address, perhaps unspecified.
        ip: Ip,
        /// A port; zero: any.
        port: u16,
        /// Now, and not when their peers have done their part.
        at_once: bool,
        /// The policy wants it; else somebody has asked for it.
        by_policy: bool,
    } brings 0, silent;
    /// Answer to Demote.
    65 Demoted {
        /// So many connections' processes were told.
        count: u32,
    } brings 0, silent;
    /// Unasked: the process is about to be checkpointed. It is to let go of everything that it shares with others, the monitor included.
    66 Detach brings 0, silent;
    /// Answer to Detach.
    67 Detaching {
        /// The process is registered still.
        is_there: bool,
        /// Its connections that have a connection of the kernel's to go back to, and have not gone back.
        promoted: u32,
        /// Those that were born in shared memory, and those that wait there to be accepted.
        shared: u32,
        /// Other processes that share its sockets.
        relatives: u32,
    } brings 0, silent;
    /// Unasked, to an engine: a connection is offered whose other end may be another host's. The names are those of this end, which has
    /// connected; the numbers as for [`crate::Request::Sought`].
    68 Seek {
        /// Who offers it.
        client: u64,
        /// That client's name for it.
        offer: u64,
        /// Own address.
        local: Ip,
        /// Own port.
        local_port: u16,
        /// Where it leads.
        remote: Ip,
        /// See `remote`.
        remote_port: u16,
        /// The next two are known.
        told: bool,
        /// The number of the first byte sent.
        sent: u32,
        /// The number of the first byte received.
        received: u32,
        /// The number from which the kernel counts what was sent, and what was received: other ones if the connection was restored.
        sent_from: u32,
        /// See `sent_from`.
        received_from: u32,
        /// As for [`crate::Request::Offer`].
        messages: u32,
        /// See `messages`.
        bytes: u64,
        /// Its network namespace, SO_NETNS_COOKIE; zero: the kernel does not tell.
        netns: u64,
    } brings 0, silent;
    /// Unasked, to an engine: a client that [`Reply::Seek`] was said of has ended, or a connection of its.
    69 Unseek {
        /// As in [`Reply::Seek`].
        client: u64,
        /// As in [`Reply::Seek`]; zero: all.
        offer: u64,
    } brings 0, silent;
    /// Unasked, to an engine: the hosts file, as it is now. When the engine has registered, and when the monitor is asked to read its files again.
    /// Descriptors: the file, open for reading; the folder that it was named in.
    70 Hosts brings 2, silent;
    /// Descriptor: a memfd with a JSON document.
    7 Status brings 1, silent;
}
}
