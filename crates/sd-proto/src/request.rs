//! What processes ask of the monitor, and what they tell it.

use crate::{Carrier, Ip, Name, PeerState, table};
#[cfg(doc)]
use crate::{ErrorCode, Reply, VERSION};

table::messages! {
/// From the library (or the command line) to the monitor.
pub enum Request {
    /// First message of a process.
    /// Descriptors: slab, public page, eventfd, a TCP socket (tells the network namespace), and the witness, if there is
    /// one: an empty memfd on which another description has a lock (flock(2)) for as long as this image of the process lives.
    /// Answer: [`Reply::Welcome`] or [`Reply::Error`].
    1 Hello {
        /// [`VERSION`] of the sender.
        version: u32,
        /// True when the monitor was lost and the process registers again: listeners and
        /// channels follow.
        again: bool,
    } brings 5, answered;
    /// First message over another connection, of a process that has registered: the program has closed the one before, and
    /// other descriptors of the library's, past libc. Answer: [`Reply::Resumed`]; [`Reply::Error`] with
    /// [`ErrorCode::InUse`] while the one before is still to be heard: ask again in a moment.
    57 Resume brings 0, answered;
    /// The descriptors of a channel were closed too. Answer: [`Reply::GivenBack`], or [`Reply::Error`]: it is over.
    58 GiveBack {
        /// Channel id.
        channel: u64,
        /// The sender's side: 0 = A, 1 = B.
        side: u32,
    } brings 0, answered;
    /// The sender has all again that was closed, but may have failed to wake others since: they are to look around. No answer.
    59 Restored brings 0, silent;
    /// A listener of this process; also sent again when its backlog or interest changes.
    /// Descriptor: the kernel listener, which proves ownership of its address.
    /// Answer: [`Reply::Ok`] or [`Reply::Error`].
    2 Listen {
        /// Index in the public page.
        index: u32,
        /// Generation in the public page (odd).
        generation: u32,
        /// As given to listen(2), clamped.
        backlog: u32,
        /// The process has shown that it accepts (accept, poll, epoll), or is the only holder.
        accepting: bool,
    } brings 1, answered;
    /// A socket of this process is about to listen. Descriptor: the bound socket, which proves that its address is the
    /// process's. Who asks for a route to there is told to ask again, until Listens, Listen or Unlisten follows. Answer:
    /// [`Reply::Ok`]; [`Reply::Error`] with [`ErrorCode::InUse`] while somebody was told to connect over the kernel and
    /// has not done it yet: ask again in a moment. After another error the proof is not enough: Listen has to bring the
    /// listener.
    30 WillListen {
        /// Index in the public page.
        index: u32,
    } brings 1, answered;
    /// The socket of [`Request::WillListen`] listens by now, as the kernel says too. No answer.
    43 Listens {
        /// Index in the public page.
        index: u32,
        /// See [`Request::Listen`].
        generation: u32,
        /// See [`Request::Listen`].
        backlog: u32,
    } brings 0, silent;
    /// The process accepts from this listener, but can take no channel: what is to come there shall come over the kernel. Also
    /// from the child of a fork that could not register. Descriptor: the kernel listener. No answer.
    32 CannotTake brings 1, silent;
    /// The listener's interest changed. No answer.
    3 Accepting {
        /// Index in the public page.
        index: u32,
        /// See [`Request::Listen`].
        accepting: bool,
    } brings 0, silent;
    /// The listener was closed; an index that is none: one that was never registered. What waits there
    /// is given to others by the time of the answer. Answer: [`Reply::Ok`].
    4 Unlisten {
        /// Index in the public page.
        index: u32,
    } brings 0, answered;
    /// How many connections wait for accept at the socket of this listener, in all processes that have it? Answer:
    /// [`Reply::Waiting`] or [`Reply::Error`].
    53 Waiting {
        /// Index in the public page.
        index: u32,
    } brings 0, answered;
    /// Connections on this channel have been waiting for accept for a while. No answer.
    11 Stuck {
        /// Channel id.
        channel: u64,
    } brings 0, silent;
    /// The process waits for connections, and was told that some wait at its siblings: by the monitor (zero), or by the process that
    /// connects over this channel, and over others to them. No answer.
    17 Idle {
        /// Channel id.
        channel: u64,
    } brings 0, silent;
    /// Who has this number among the adopters of a channel (side A asks)? Answer: [`Reply::Adopter`]
    /// or [`Reply::Error`].
    12 Adopter {
        /// Channel id.
        channel: u64,
        /// As B's words of a slot say.
        number: u32,
    } brings 0, answered;
    /// The sender has no connection on this channel, and its maker on the other side, or on its own,
    /// is gone. Answer: [`Reply::Ok`], and the channel is over for the sender, or [`Reply::Error`]:
    /// connections wait there.
    13 Leave {
        /// Channel id.
        channel: u64,
    } brings 0, answered;
    /// The sender has no use any more for a channel that joined users and is over, as [`Reply::ChannelDead`] said: the
    /// monitor may empty it, where others keep it. No answer; [`Reply::Emptied`] follows some time.
    54 Finished {
        /// Channel id.
        channel: u64,
    } brings 0, silent;
    /// The process could not take a channel that it was told of: no addresses or descriptors were to be had. No answer.
    19 Decline {
        /// Channel id.
        channel: u64,
    } brings 0, silent;
    /// Where does a connection to this address lead? Answer: [`Reply::Route`].
    5 Connect {
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
    } brings 0, answered;
    /// The process is about to fork. Descriptor: one end of a pair of SOCK_SEQPACKET sockets with SO_PASSCRED,
    /// whose other end only the child will have: its control connection, if it registers, and in any
    /// case what tells of its end. No answer.
    6 Fork {
        /// Member number of the child in each slab that it inherits.
        member: u32,
        /// Counts the forks of the sender.
        serial: u32,
    } brings 1, silent;
    /// The child of that fork is there. Descriptor: its pidfd. No answer.
    9 Born {
        /// As in [`Request::Fork`].
        serial: u32,
    } brings 1, silent;
    /// After `Hello { again: true }`: a channel this process has. Descriptor: the segment.
    /// No answer.
    7 Channel {
        /// Channel id.
        id: u64,
        /// 0 = A, 1 = B.
        side: u32,
        /// The other side's process id.
        peer_pid: u32,
        /// The sender's number among the adopters; 0 = none.
        adopter: u32,
    } brings 1, silent;
    /// A connection over this channel was passed to the process, which holds a side of it too from now on.
    /// Descriptor: the segment. Answer: [`Reply::Ok`] or [`Reply::Error`].
    10 Join {
        /// Channel id.
        id: u64,
        /// 0 = A, 1 = B.
        side: u32,
    } brings 1, answered;
    /// A connection of another family was passed to the process, which shares its slab from now on. Descriptor: the slab.
    /// Answer: [`Reply::Shared`] or [`Reply::Error`].
    18 Share brings 1, answered;
    /// The sender is about to give rights up, and has let go of everything that it had or shared: it has ended, and is
    /// nobody until its next Hello. Answer: [`Reply::Ok`], after which nothing comes that was meant for it before, or
    /// [`Reply::Error`].
    40 Separate brings 0, answered;
    /// How is this process woken, which alone has the other side of a connection (see `sd_shm::channel::SlotSide::wake_target`)?
    /// Answer: [`Reply::Adopter`] or [`Reply::Error`].
    15 WakeTarget {
        /// Channel id.
        channel: u64,
        /// The sender's side: 0 = A, 1 = B.
        side: u32,
        /// As the other side's words of a slot say.
        client: u64,
    } brings 0, answered;
    /// An eventfd at which single threads of the process sleep (see `sd_shm::channel::ThreadWaker`), which is the descriptor.
    /// Answer: [`Reply::Ok`] or [`Reply::Error`].
    20 ThreadWaker {
        /// Its number.
        number: u32,
    } brings 1, answered;
    /// Which eventfd is that, of the process for which the channel was made on the other side? Answer:
    /// [`Reply::ThreadWaker`] or [`Reply::Error`].
    21 ThreadWakerOf {
        /// Channel id.
        channel: u64,
        /// The sender's side: 0 = A, 1 = B.
        side: u32,
        /// Its number.
        number: u32,
    } brings 0, answered;
    /// The other side of a connection wants a signal. No answer.
    14 Signal {
        /// Channel id.
        channel: u64,
        /// Slot in it.
        slot: u32,
        /// The sender's side: 0 = A, 1 = B.
        side: u32,
        /// SIGURG, not SIGIO.
        urgent: bool,
    } brings 0, silent;
    /// The sender, on that side (0 = A, 1 = B), cannot wake the other: the monitor shall. No answer.
    52 Ring { channel: u64, side: u32 } brings 0, silent;
    /// The process has bound a socket in the kernel. Does some accelerated connection use the port, or has it just
    /// been closed? Answer: [`Reply::Ok`], or [`Reply::Error`] with [`ErrorCode::InUse`].
    16 Bind {
        /// Address, perhaps unspecified.
        ip: Ip,
        /// Port, not zero.
        port: u16,
        /// SO_REUSEADDR is set.
        reuse: bool,
    } brings 0, answered;
    /// The process wants to connect from a port that it has bound, as others may have. Has some accelerated connection
    /// these four numbers already? Answer: [`Reply::Ok`], or [`Reply::Error`] with [`ErrorCode::InUse`].
    41 Tuple {
        /// Own address.
        ip: Ip,
        /// Own port.
        port: u16,
        /// Where to.
        to_ip: Ip,
        /// Port there.
        to_port: u16,
    } brings 0, answered;
    /// The process may not make a file so large (RLIMIT_FSIZE). Answer: [`Reply::Memory`] or [`Reply::Error`]. Allowed
    /// before Hello.
    31 Memory {
        /// Its length, a slab's at most.
        len: u64,
    } brings 0, answered;
    /// The sender may start no process (RLIMIT_NPROC, pids.max, a filter of its own), and has a connection for which there
    /// must be a bridge. Descriptor: an end of a pair of SOCK_SEQPACKET sockets, over whose other end it gives the
    /// connection to the process that the monitor starts; closed where none is started. No answer. Also from the child of a
    /// fork that has not registered.
    50 Bridge brings 1, silent;
    /// Does the policy let the other side of a channel, which connects, reach a listener of the sender's? Answer:
    /// [`Reply::Ok`], or [`Reply::Error`] with [`ErrorCode::Denied`].
    42 Admits {
        /// Channel id.
        channel: u64,
        /// Index in the public page.
        listener: u32,
        /// Where the other side says that it connects to.
        ip: Ip,
    } brings 0, answered;
    /// The process is a pump: it carries connections between other processes. Answer: [`Reply::Ok`], or [`Reply::Error`] with
    /// [`ErrorCode::Denied`]: the monitor was not told to use one, or the process is neither root's nor of the monitor's user; with
    /// [`ErrorCode::InUse`]: there is one.
    60 Pump {
        /// It carries connections that were made with an earlier monitor, and wants no others.
        again: bool,
    } brings 0, answered;
    /// From a pump that has come back to a new monitor, after both channels were announced: it carries the connections of one
    /// to the other, as after [`Reply::Twin`]. No answer.
    62 Carries {
        /// Channel id, of which the sender is side B.
        near: u64,
        /// Channel id, of which it is side A.
        far: u64,
    } brings 0, silent;
    /// From a pump: the other side of the twin of this channel is gone, and what it had sent was carried. The pump's side of this
    /// one has ended too. No answer.
    61 Over {
        /// Channel id.
        channel: u64,
    } brings 0, silent;
    /// A connection that the kernel has made, on which nobody is in a call and nothing waits to be sent: if the other end is
    /// offered too, both can be moved to shared memory. Descriptor: its socket, which alone is believed. Answer: [`Reply::Ok`],
    /// it waits for the other end or has found it ([`Reply::Promote`] comes); [`Reply::Error`] with [`ErrorCode::Denied`]: it
    /// stays as it is; with [`ErrorCode::InUse`]: something waits to be sent after all, or the offer is older than
    /// [`OFFER_MAX_MS`](crate::OFFER_MAX_MS). Until the answer nobody may be in a call on the socket.
    63 Offer {
        /// The sender's own name for this offer.
        serial: u64,
        /// The sender connected; otherwise it accepted.
        connected: bool,
        /// The connection was restored, at another place perhaps, since the monitor said [`Reply::Promote`] of it: its streams began at
        /// these numbers, as were said then, and not at those that follow from the socket.
        restored: bool,
        /// See [`Reply::Promote`].
        sent: u32,
        /// See `sent`.
        received: u32,
        /// Calls that have moved bytes of it, as far as the sender has counted.
        messages: u32,
        /// Bytes that they have moved, in both directions.
        bytes: u64,
        /// When this was asked, in ms of CLOCK_REALTIME, which all time namespaces share.
        asked_ms: u64,
    } brings 1, answered;
    /// From `sd demote`: connections that were promoted are to go back to the kernel's, of the user's own processes; of all for root and the
    /// monitor's user. Answer: [`Reply::Demoted`] or [`Reply::Error`]. Allowed before Hello.
    64 Demote {
        /// A process; zero: any.
        pid: u32,
        /// The address of one of their ends, perhaps unspecified.
        ip: Ip,
        /// Its port; zero: any.
        port: u16,
        /// As for [`Reply::Demote`].
        at_once: bool,
        /// Zero: they are told. Else nobody is: how many such connections took the road that they have before that time (CLOCK_MONOTONIC)?
        before_ns: u64,
    } brings 0, answered;
    /// From `sd detach`: a process, which is about to be checkpointed, is to let go of everything that is not its own, or the kernel's. Who
    /// may: as for [`Request::Demote`]. Answer: [`Reply::Detaching`] or [`Reply::Error`]. Allowed before Hello.
    65 Detach {
        /// The process.
        pid: u32,
        /// It is to be told; otherwise only what stands in its way is asked for.
        tell: bool,
    } brings 0, answered;
    /// The process is the engine of this host: it carries promoted connections to the engines of others. Answer: [`Reply::Ok`], or
    /// [`Reply::Error`] with [`ErrorCode::Denied`]: the monitor was not told to use one, or the process is neither root's nor of the monitor's
    /// user; with [`ErrorCode::InUse`]: there is one.
    66 Engine brings 0, answered;
    /// From the engine: another host's has asked about this connection, of which an end has connected there, so named. If it is offered here,
    /// [`Reply::Promote`] comes. No answer.
    67 Sought {
        /// The sender's own name for the question.
        serial: u64,
        /// As that end has it.
        local: Ip,
        /// See `local`.
        local_port: u16,
        /// See `local`.
        remote: Ip,
        /// See `local`.
        remote_port: u16,
        /// The next two are known.
        told: bool,
        /// The number of the first byte that that end has sent.
        sent: u32,
        /// The number of the first byte that it has received.
        received: u32,
        /// See [`Reply::Seek`].
        sent_from: u32,
        /// See [`Reply::Seek`].
        received_from: u32,
        /// The other host's engine, for people.
        engine: Ip,
        /// See `engine`.
        port: u16,
        /// Whose connection it is; empty: nobody's. For people.
        tenant: Name,
    } brings 0, silent;
    /// From the engine: the other end of an offer, as of [`Reply::Seek`], is another host's, and is offered there. [`Reply::Promote`] comes, or
    /// nothing. No answer.
    68 Found {
        /// As in [`Reply::Seek`].
        client: u64,
        /// As in [`Reply::Seek`].
        offer: u64,
        /// The sender's own name for the connection.
        serial: u64,
        /// What that end's monitor has told its engine ([`Reply::Promote`]): as this end is to be told.
        behind: u32,
        /// The other host's engine, for people.
        engine: Ip,
        /// See `engine`.
        port: u16,
        /// Whose connection it is; empty: nobody's. For people.
        tenant: Name,
    } brings 0, silent;
    /// From the engine: the connection of this offer stays the kernel's for now. For people. No answer.
    70 Stays {
        /// As in [`Reply::Seek`].
        client: u64,
        /// As in [`Reply::Seek`].
        offer: u64,
        /// Why (`Awaits` of sd-shm): few are busy between the two hosts, it is bulk, or the engine was slower.
        why: u32,
    } brings 0, silent;
    /// A connection that was offered is over, or is offered anew by another name. No answer.
    71 Withdraw {
        /// As in [`Request::Offer`].
        serial: u64,
    } brings 0, silent;
    /// From the engine: a hosts file is taken, or has a mistake and is not. If it is taken, what was said of other engines and networks before is of
    /// no use any more, and [`Request::Network`] and [`Request::Peer`] follow. For people. No answer.
    72 Listed {
        /// The one before stays.
        mistaken: bool,
        /// Where, from 1; zero: not in a line.
        line: u32,
        /// So many names have no address.
        names: u32,
    } brings 0, silent;
    /// From the engine: a network behind another host's engine. For people. No answer.
    73 Network {
        /// Its first address.
        ip: Ip,
        /// So many bits of it count: of 32 where it is one of IPv4.
        prefix: u32,
        /// Where the engine listens.
        engine: Ip,
        /// See `engine`.
        port: u16,
        /// Whose it is; empty: nobody's.
        tenant: Name,
        /// It is that in the tenant's own network namespaces alone.
        apart: bool,
    } brings 0, silent;
    /// From the engine: how it stands with another host's, and what it has counted since it was started. Once a second at most, and only when
    /// something has changed. No answer.
    69 Peer {
        /// Where that one listens, as the hosts file says.
        ip: Ip,
        /// See `ip`.
        port: u16,
        /// Whether it is reached, or why not.
        state: PeerState,
        /// The kernel's reason, where there is one; else zero.
        errno: u32,
        /// What goes there is encrypted.
        sealed: bool,
        /// By what it goes there now.
        carrier: Carrier,
        /// Since when it is reached, or is not: CLOCK_MONOTONIC.
        since_ns: u64,
        /// From a packet to its acknowledgement; zero: not known.
        rtt_ns: u64,
        /// Connections that are carried.
        connections: u32,
        /// Of packets, and what was placed besides, both ways: the first is what was sent.
        bytes_sent: u64,
        /// See `bytes_sent`.
        bytes_received: u64,
        /// See `bytes_sent`.
        packets_sent: u64,
        /// See `bytes_sent`.
        packets_received: u64,
        /// Bytes of those that went from ring to ring without a copy.
        placed_sent: u64,
        /// See `placed_sent`.
        placed_received: u64,
        /// Records that the engine has sent again: those of packets that were lost, as with a trunk that broke.
        said_again: u64,
        /// Segments that the kernel has sent again below.
        retransmitted: u64,
    } brings 0, silent;
    /// From `sd ss`: everything the monitor knows. Answer: [`Reply::Status`].
    8 Status brings 0, answered;
}
}
