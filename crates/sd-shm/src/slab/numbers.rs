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
