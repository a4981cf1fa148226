//! Control messages between library, monitor and command line: plain values and their bytes.
//!
//! One message is one datagram on a Unix-domain SOCK_SEQPACKET socket; descriptors travel beside it
//! (SCM_RIGHTS) in the order that each message names. The first byte is the kind, fields follow in
//! little-endian order without padding. Decoding accepts exactly what encoding makes: a short,
//! long or senseless message is an error, never a guess. No unsafe code, no allocation.
#![forbid(unsafe_code)]
#![no_std]

mod ip;
mod kinds;
mod reply;
mod route;
mod wire;

pub use ip::Ip;
pub use reply::Reply;
pub use route::{Admission, ErrorCode, Route, Socket};
use wire::{Reader, Writer};

/// Largest encoded message.
pub const MESSAGE_MAX: usize = 256;
/// Must be equal on both sides; sent in [`Request::Hello`]. Tests build the next version, to see both beside each other.
pub const VERSION: u32 = 15 + cfg!(sd_next_version) as u32;

/// A message could not be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// From the library (or the command line) to the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// First message of a process.
    /// Descriptors: slab, public page, eventfd, a TCP socket (tells the network namespace).
    /// Answer: [`Reply::Welcome`] or [`Reply::Error`].
    Hello {
        /// [`VERSION`] of the sender.
        version: u32,
        /// True when the monitor was lost and the process registers again: listeners and
        /// channels follow.
        again: bool,
    },
    /// A listener of this process; also sent again when its backlog or interest changes.
    /// Descriptor: the kernel listener, which proves ownership of its address.
    /// Answer: [`Reply::Ok`] or [`Reply::Error`].
    Listen {
        /// Index in the public page.
        index: u32,
        /// Generation in the public page (odd).
        generation: u32,
        /// As given to listen(2), clamped.
        backlog: u32,
        /// The process has shown that it accepts (accept, poll, epoll), or is the only holder.
        accepting: bool,
    },
    /// A socket of this process is about to listen. Descriptor: the bound socket, which proves that its address is the
    /// process's. Who asks for a route to there is told to ask again, until Listens, Listen or Unlisten follows. Answer:
    /// [`Reply::Ok`]; [`Reply::Error`] with [`ErrorCode::InUse`] while somebody was told to connect over the kernel and
    /// has not done it yet: ask again in a moment. After another error the proof is not enough: Listen has to bring the
    /// listener.
    WillListen {
        /// Index in the public page.
        index: u32,
    },
    /// The socket of [`Request::WillListen`] listens by now, as the kernel says too. No answer.
    Listens {
        /// Index in the public page.
        index: u32,
        /// See [`Request::Listen`].
        generation: u32,
        /// See [`Request::Listen`].
        backlog: u32,
    },
    /// The process accepts from this listener, but can take no channel: what is to come there shall come over the kernel. Also
    /// from the child of a fork that could not register. Descriptor: the kernel listener. No answer.
    CannotTake,
    /// The listener's interest changed. No answer.
    Accepting {
        /// Index in the public page.
        index: u32,
        /// See [`Request::Listen`].
        accepting: bool,
    },
    /// The listener was closed; an index that is none: one that was never registered. What waits there
    /// is given to others by the time of the answer. Answer: [`Reply::Ok`].
    Unlisten {
        /// Index in the public page.
        index: u32,
    },
    /// Connections on this channel have been waiting for accept for a while. No answer.
    Stuck {
        /// Channel id.
        channel: u64,
    },
    /// The process waits for connections, and was told that some wait at its siblings. No answer.
    Idle,
    /// Who has this number among the adopters of a channel (side A asks)? Answer: [`Reply::Adopter`]
    /// or [`Reply::Error`].
    Adopter {
        /// Channel id.
        channel: u64,
        /// As B's words of a slot say.
        number: u32,
    },
    /// The sender has no connection on this channel, and its maker on the other side, or on its own,
    /// is gone. Answer: [`Reply::Ok`], and the channel is over for the sender, or [`Reply::Error`]:
    /// connections wait there.
    Leave {
        /// Channel id.
        channel: u64,
    },
    /// The process could not take a channel that it was told of: no addresses or descriptors were to be had. No answer.
    Decline {
        /// Channel id.
        channel: u64,
    },
    /// Where does a connection to this address lead? Answer: [`Reply::Route`].
    Connect {
        /// Destination.
        ip: Ip,
        /// Destination port.
        port: u16,
        /// Which of the candidates, counted round.
        nth: u32,
        /// A block of source ports is wanted.
        want_ports: bool,
        /// The channels that the process has to the candidate are full: make another.
        want_channel: bool,
    },
    /// The process is about to fork. Descriptor: one end of a pair of SOCK_SEQPACKET sockets with SO_PASSCRED,
    /// whose other end only the child will have: its control connection, if it registers, and in any
    /// case what tells of its end. No answer.
    Fork {
        /// Member number of the child in each slab that it inherits.
        member: u32,
        /// Counts the forks of the sender.
        serial: u32,
    },
    /// The child of that fork is there. Descriptor: its pidfd. No answer.
    Born {
        /// As in [`Request::Fork`].
        serial: u32,
    },
    /// After `Hello { again: true }`: a channel this process has. Descriptor: the segment.
    /// No answer.
    Channel {
        /// Channel id.
        id: u64,
        /// 0 = A, 1 = B.
        side: u32,
        /// The other side's process id.
        peer_pid: u32,
        /// The sender's number among the adopters; 0 = none.
        adopter: u32,
    },
    /// A connection over this channel was passed to the process, which holds a side of it too from now on.
    /// Descriptor: the segment. Answer: [`Reply::Ok`] or [`Reply::Error`].
    Join {
        /// Channel id.
        id: u64,
        /// 0 = A, 1 = B.
        side: u32,
    },
    /// A connection of another family was passed to the process, which shares its slab from now on. Descriptor: the slab.
    /// Answer: [`Reply::Shared`] or [`Reply::Error`].
    Share,
    /// The sender is about to give rights up, and has let go of everything that it had or shared: it has ended, and is
    /// nobody until its next Hello. Answer: [`Reply::Ok`], after which nothing comes that was meant for it before, or
    /// [`Reply::Error`].
    Separate,
    /// How is this process woken, which alone has the other side of a connection (see `sd_shm::channel::SlotSide::home`)?
    /// Answer: [`Reply::Adopter`] or [`Reply::Error`].
    Home {
        /// Channel id.
        channel: u64,
        /// The sender's side: 0 = A, 1 = B.
        side: u32,
        /// As the other side's words of a slot say.
        client: u64,
    },
    /// An eventfd at which single threads of the process sleep (see `sd_shm::channel::Berth`), which is the descriptor.
    /// Answer: [`Reply::Ok`] or [`Reply::Error`].
    Berth {
        /// Its number.
        number: u32,
    },
    /// Which eventfd is that, of the process for which the channel was made on the other side? Answer:
    /// [`Reply::Berth`] or [`Reply::Error`].
    BerthOf {
        /// Channel id.
        channel: u64,
        /// The sender's side: 0 = A, 1 = B.
        side: u32,
        /// Its number.
        number: u32,
    },
    /// The other side of a connection wants a signal. No answer.
    Signal {
        /// Channel id.
        channel: u64,
        /// Slot in it.
        slot: u32,
        /// The sender's side: 0 = A, 1 = B.
        side: u32,
        /// SIGURG, not SIGIO.
        urgent: bool,
    },
    /// The sender, on that side (0 = A, 1 = B), cannot wake the other: the monitor shall. No answer.
    Ring { channel: u64, side: u32 },
    /// The process has bound a socket in the kernel. Does some accelerated connection use the port, or has it just
    /// been closed? Answer: [`Reply::Ok`], or [`Reply::Error`] with [`ErrorCode::InUse`].
    Bind {
        /// Address, perhaps unspecified.
        ip: Ip,
        /// Port, not zero.
        port: u16,
        /// SO_REUSEADDR is set.
        reuse: bool,
    },
    /// The process wants to connect from a port that it has bound, as others may have. Has some accelerated connection
    /// these four numbers already? Answer: [`Reply::Ok`], or [`Reply::Error`] with [`ErrorCode::InUse`].
    Tuple {
        /// Own address.
        ip: Ip,
        /// Own port.
        port: u16,
        /// Where to.
        to_ip: Ip,
        /// Port there.
        to_port: u16,
    },
    /// The process may not make a file so large (RLIMIT_FSIZE). Answer: [`Reply::Memory`] or [`Reply::Error`]. Allowed
    /// before Hello.
    Memory {
        /// Its length, a slab's at most.
        len: u64,
    },
    /// The sender may start no process (RLIMIT_NPROC, pids.max, a filter of its own), and has a connection for which there
    /// must be a bridge. Descriptor: an end of a pair of SOCK_SEQPACKET sockets, over whose other end it gives the
    /// connection to the process that the monitor starts; closed where none is started. No answer. Also from the child of a
    /// fork that has not registered.
    Bridge,
    /// Does the policy let the other side of a channel, which connects, reach a listener of the sender's? Answer:
    /// [`Reply::Ok`], or [`Reply::Error`] with [`ErrorCode::Denied`].
    Admits {
        /// Channel id.
        channel: u64,
        /// Index in the public page.
        listener: u32,
        /// Where the other side says that it connects to.
        ip: Ip,
    },
    /// From `sd ss`: everything the monitor knows. Answer: [`Reply::Status`].
    Status,
}

impl Request {
    /// Writes the message into `buf`; the bytes used.
    pub fn encode<'a>(&self, buf: &'a mut [u8; MESSAGE_MAX]) -> &'a [u8] {
        let mut w = Writer::new(buf);
        match *self {
            Request::Hello { version, again } => w.u8(1).u32(version).bool(again),
            Request::Listen { index, generation, backlog, accepting } => {
                w.u8(2).u32(index).u32(generation).u32(backlog).bool(accepting)
            }
            Request::CannotTake => w.u8(32),
            Request::Bridge => w.u8(50),
            Request::WillListen { index } => w.u8(30).u32(index),
            Request::Listens { index, generation, backlog } => {
                w.u8(43).u32(index).u32(generation).u32(backlog)
            }
            Request::Accepting { index, accepting } => w.u8(3).u32(index).bool(accepting),
            Request::Unlisten { index } => w.u8(4).u32(index),
            Request::Connect { ip, port, nth, want_ports, want_channel } => {
                w.u8(5).ip(ip).u16(port).u32(nth).bool(want_ports).bool(want_channel)
            }
            Request::Fork { member, serial } => w.u8(6).u32(member).u32(serial),
            Request::Channel { id, side, peer_pid, adopter } => {
                w.u8(7).u64(id).u32(side).u32(peer_pid).u32(adopter)
            }
            Request::Join { id, side } => w.u8(10).u64(id).u32(side),
            Request::Share => w.u8(18),
            Request::Separate => w.u8(40),
            Request::Ring { channel, side } => w.u8(52).u64(channel).u32(side),
            Request::Stuck { channel } => w.u8(11).u64(channel),
            Request::Idle => w.u8(17),
            Request::Adopter { channel, number } => w.u8(12).u64(channel).u32(number),
            Request::Leave { channel } => w.u8(13).u64(channel),
            Request::Decline { channel } => w.u8(19).u64(channel),
            Request::Bind { ip, port, reuse } => w.u8(16).ip(ip).u16(port).bool(reuse),
            Request::Admits { channel, listener, ip } => w.u8(42).u64(channel).u32(listener).ip(ip),
            Request::Tuple { ip, port, to_ip, to_port } => w.u8(41).ip(ip).u16(port).ip(to_ip).u16(to_port),
            Request::Memory { len } => w.u8(31).u64(len),
            Request::Status => w.u8(8),
            Request::Born { serial } => w.u8(9).u32(serial),
            Request::Home { channel, side, client } => w.u8(15).u64(channel).u32(side).u64(client),
            Request::Berth { number } => w.u8(20).u32(number),
            Request::BerthOf { channel, side, number } => w.u8(21).u64(channel).u32(side).u32(number),
            Request::Signal { channel, slot, side, urgent } => {
                w.u8(14).u64(channel).u32(slot).u32(side).bool(urgent)
            }
        };
        w.done()
    }

    /// Reads a message.
    pub fn decode(bytes: &[u8]) -> Result<Request, Malformed> {
        let mut r = Reader::new(bytes);
        let request = match r.u8()? {
            1 => Request::Hello { version: r.u32()?, again: r.bool()? },
            2 => Request::Listen {
                index: r.u32()?,
                generation: r.u32()?,
                backlog: r.u32()?,
                accepting: r.bool()?,
            },
            32 => Request::CannotTake,
            50 => Request::Bridge,
            30 => Request::WillListen { index: r.u32()? },
            43 => Request::Listens { index: r.u32()?, generation: r.u32()?, backlog: r.u32()? },
            3 => Request::Accepting { index: r.u32()?, accepting: r.bool()? },
            4 => Request::Unlisten { index: r.u32()? },
            5 => Request::Connect {
                ip: r.ip()?,
                port: r.u16()?,
                nth: r.u32()?,
                want_ports: r.bool()?,
                want_channel: r.bool()?,
            },
            6 => Request::Fork { member: r.u32()?, serial: r.u32()? },
            7 => Request::Channel { id: r.u64()?, side: r.u32()?, peer_pid: r.u32()?, adopter: r.u32()? },
            10 => Request::Join { id: r.u64()?, side: r.u32()? },
            18 => Request::Share,
            40 => Request::Separate,
            52 => Request::Ring { channel: r.u64()?, side: r.u32()? },
            11 => Request::Stuck { channel: r.u64()? },
            17 => Request::Idle,
            12 => Request::Adopter { channel: r.u64()?, number: r.u32()? },
            13 => Request::Leave { channel: r.u64()? },
            19 => Request::Decline { channel: r.u64()? },
            16 => Request::Bind { ip: r.ip()?, port: r.u16()?, reuse: r.bool()? },
            42 => Request::Admits { channel: r.u64()?, listener: r.u32()?, ip: r.ip()? },
            41 => Request::Tuple { ip: r.ip()?, port: r.u16()?, to_ip: r.ip()?, to_port: r.u16()? },
            31 => Request::Memory { len: r.u64()? },
            8 => Request::Status,
            9 => Request::Born { serial: r.u32()? },
            15 => Request::Home { channel: r.u64()?, side: r.u32()?, client: r.u64()? },
            20 => Request::Berth { number: r.u32()? },
            21 => Request::BerthOf { channel: r.u64()?, side: r.u32()?, number: r.u32()? },
            14 => Request::Signal { channel: r.u64()?, slot: r.u32()?, side: r.u32()?, urgent: r.bool()? },
            _ => return Err(Malformed),
        };
        r.end().map(|()| request)
    }
}
