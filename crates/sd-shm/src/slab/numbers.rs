//! What a slab says by number: states, reasons, and what is counted.

use sd_proto::numbered;

numbered! {
/// What is counted; the number is the index in the slab header.
pub enum Counter {
    /// Connections made over shared memory.
    ShmConnect = 0,
    /// Connections accepted over shared memory.
    ShmAccept = 1,
    /// Connections that went to the kernel.
    KernelConnect = 2,
    /// Connections accepted from regular peers.
    KernelAccept = 3,
    /// Connections reset because the peer broke the protocol.
    CorruptPeer = 4,
    /// Waits that ended while spinning.
    SpinHit = 5,
    /// Waits that slept in the kernel.
    Sleep = 6,
    /// Descriptors that were closed behind our back.
    LostFd = 7,
}
or none
}

numbered! {
/// What a socket is, as `sd ss` shows it.
pub enum State {
    /// Not in use.
    Free = 0,
    /// Made by socket(2), nothing else yet.
    Fresh = 1,
    /// Has a kernel socket of its own (bound, or an unusual option), not connected.
    Bound = 2,
    /// Listening.
    Listen = 3,
    /// Connected over shared memory.
    Connected = 4,
    /// A connect has failed; its error may have been told.
    Failed = 5,
    /// Given to the kernel, listed with the reason.
    Kernel = 6,
    /// Waits for room in a full backlog, as in SYN-SENT.
    Connecting = 7,
}
else Free
}

numbered! {
/// Why a socket is on the kernel path; shown by `sd ss`.
pub enum Reason {
    /// Not on the kernel path.
    None = 0,
    /// No monitor answered.
    NoMonitor = 1,
    /// The destination is not on this host.
    Remote = 2,
    /// Nobody accelerated listens there.
    NoListener = 3,
    /// A socket option asks for the kernel.
    Option = 4,
    /// The peer is a regular program.
    RegularPeer = 5,
    /// No room: slots, ports, memory or descriptors.
    Exhausted = 6,
    /// The listener's processes do not accept yet, or share it in a way not supported.
    NotAccepting = 7,
    /// The policy says `kernel`.
    Policy = 8,
    /// Handed to a program without the library, or of another user, through a bridge.
    Bridged = 9,
    /// The process has been in another network namespace than the one it began in.
    Elsewhere = 10,
    /// Not on the kernel path any more: the kernel made the connection, and its bytes were moved to shared memory.
    Promoted = 11,
    /// It was promoted, and has gone back.
    Demoted = 12,
    /// The first of a process that has not shown that it lives for long.
    Young = 13,
    /// Its listener hands connections to processes of their own.
    HandedOn = 14,
}
else None
}

impl Reason {
    /// A few words for people.
    pub fn text(self) -> &'static str {
        match self {
            Reason::None => "",
            Reason::NoMonitor => "no monitor",
            Reason::Remote => "destination is not on this host",
            Reason::NoListener => "no accelerated listener at the destination",
            Reason::Option => "socket option needs the kernel",
            Reason::RegularPeer => "peer is not accelerated",
            Reason::Exhausted => "out of slots, ports, memory or descriptors",
            Reason::NotAccepting => "listener's processes are not accepting yet",
            Reason::Policy => "policy",
            Reason::Elsewhere => "the process has changed its network namespace",
            Reason::Promoted => "promoted",
            Reason::Demoted => "demoted",
            Reason::HandedOn => "its listener hands each connection to another process",
            Reason::Young => "the first connection of a process",
            Reason::Bridged => "handed to a program of another user, or without the library",
        }
    }
}

numbered! {
/// Which connections that the kernel has made a process offers to the monitor.
pub enum Promotes {
    /// None.
    Nothing = 0,
    /// Those that have shown that they last and are busy.
    Earned = 1,
    /// For tests: each, after a few messages.
    All = 2,
}
else Nothing
}

numbered! {
/// Why the bytes of a connection that the kernel has made took another road the last time; shown by `sd ss`.
pub enum Moved {
    /// They never did.
    Never = 0,
    /// To shared memory: both ends have offered it.
    Promoted = 1,
    /// To the kernel: somebody has asked for that.
    Asked = 2,
    /// To the kernel: the policy says so.
    Policy = 3,
    /// To the kernel: it was handed to a program without the library, or with other rights.
    Passed = 4,
    /// To the kernel: the road does not carry any more.
    Failed = 5,
    /// To the kernel: the other end has gone there.
    Followed = 6,
    /// To the kernel: few connections between the two hosts are busy.
    Few = 7,
    /// To the kernel: all it carried was bulk.
    Bulk = 8,
    /// To the kernel: it carried a few messages a second.
    Sparse = 9,
    /// To the kernel: each message had to wake somebody.
    Woken = 10,
    /// To the kernel: the hosts file has changed.
    Unlisted = 11,
    /// To the kernel: connections to that service were slower by the engine.
    Slower = 12,
    /// To the kernel: the engine has ended in order.
    Replaced = 13,
}
else Never
}

impl Moved {
    /// A few words for people.
    pub fn text(self) -> &'static str {
        match self {
            Moved::Never => "",
            Moved::Promoted => "promoted",
            Moved::Asked => "asked for",
            Moved::Policy => "policy",
            Moved::Passed => "handed to a program without the library, or with other rights",
            Moved::Failed => "the road failed",
            Moved::Followed => "the other end went to the kernel",
            Moved::Few => "few are busy between the hosts",
            Moved::Bulk => "bulk",
            Moved::Sparse => "sparse",
            Moved::Woken => "each message wakes its reader",
            Moved::Unlisted => "the hosts file has changed",
            Moved::Slower => "the engine was slower",
            Moved::Replaced => "the engine was replaced",
        }
    }
}

numbered! {
/// What a connection of the kernel's waits for until it is moved to shared memory, or why it is not; shown by `sd ss`.
pub enum Awaits {
    /// Nobody looks at it for that.
    Nothing = 0,
    /// More messages.
    Messages = 1,
    /// More messages in a short time.
    Rate = 2,
    /// The other end's offer.
    Peer = 3,
    /// Both ends are known: a moment at which nobody is in a call on it.
    Moment = 4,
    /// The policy forbids it.
    Policy = 5,
    /// The monitor could not: no room, or more than one connection that it could be.
    Refused = 6,
    /// The monitor has not answered.
    Monitor = 7,
    /// Another process has it too.
    Shared = 8,
    /// An option of the socket, or its place in an epoll instance, is what rings do not have.
    Option = 9,
    /// Urgent data, MSG_ZEROCOPY or MSG_ERRQUEUE were used.
    Flags = 10,
    /// One of several threads waits for it in poll(2) or the like, beside others.
    Polled = 11,
    /// splice(2) and its like were used, or it was passed on.
    Passed = 12,
    /// The slot for it could not be had.
    Slot = 13,
    /// It is another connection than the one that was watched.
    Replaced = 14,
    /// It had bytes to be sent when it was offered.
    Unsent = 15,
    /// It has its slot: each end's next message.
    Sends = 16,
    /// An end had been closed, or shut down, when it was offered.
    Ending = 17,
    /// More connections between the two hosts that are busy.
    Few = 18,
    /// Messages that are not bulk: the other end is another host's.
    Small = 19,
    /// Another trial of the engine's road: the last was slower.
    Faster = 20,
}
else Nothing
}

impl Awaits {
    /// A few words for people.
    pub fn text(self) -> &'static str {
        match self {
            Awaits::Nothing => "",
            Awaits::Messages => "too few messages yet",
            Awaits::Rate => "too slow",
            Awaits::Peer => "the other end has not offered it",
            Awaits::Moment => "both ends are known, somebody is in a call",
            Awaits::Policy => "refused: policy",
            Awaits::Refused => "refused: no room, or ambiguous",
            Awaits::Monitor => "the monitor does not answer",
            Awaits::Shared => "other processes have it too",
            Awaits::Option => "socket option or epoll registration needs the kernel",
            Awaits::Flags => "urgent data or MSG_ZEROCOPY was used",
            Awaits::Polled => "a thread waits for it beside others",
            Awaits::Passed => "it was spliced or passed on",
            Awaits::Slot => "no slot for it",
            Awaits::Replaced => "it was connected anew",
            Awaits::Unsent => "it had unsent bytes when it was offered",
            Awaits::Sends => "the next message of each end",
            Awaits::Ending => "it was ending when it was offered",
            Awaits::Few => "few are busy between the hosts",
            Awaits::Small => "bulk, to another host",
            Awaits::Faster => "the engine was slower",
        }
    }
}
