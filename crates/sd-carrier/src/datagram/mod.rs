//! Packets as UDP datagrams.
//!
//! | | |
//! |---|---|
//! | sending | `runs`: packets of nearly one length are one message, which the kernel or the device cuts (UDP_SEGMENT); many messages by one sendmmsg(2) |
//! | receiving | what the kernel has put together (UDP_GRO) is cut here; many messages by one recvmmsg(2) |
//! | marks | what goes out is ECT(0); what the network made of it comes as a control message (IP_RECVTOS, IPV6_RECVTCLASS) |
//! | path | no datagram is fragmented (IP_PMTUDISC_DO); a smaller MTU is learned from the kernel, and `packet_max` follows |
//!
//! # What errors mean
//! A pending ICMP error is told by any call, once, and stops it: it is counted, and the call made again. A message that is refused
//! twice is dropped, as if the network had lost it. One that was to be cut and could not be (EIO without checksums by the device, EINVAL by
//! old kernels) is sent as single datagrams, as is everything after it. Only errors that say that we did wrong end the carrier.

mod runs;

use crate::sys::{self, Fault, ReceiveBatch, SendBatch};
use crate::{Carrier, End, Flushed, Kind, Mark, PACKET_MAX, PACKET_MIN, Received, State, Wants};
use runs::{LEN, Runs};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The kernel takes so many datagrams as one message (UDP_MAX_SEGMENTS before Linux 6.9).
const SEGMENTS_MAX: usize = 64;
/// Messages that may wait, and that are sent at once.
const RUNS_MAX: usize = 64;
/// Messages that are read at once, each of which may be 64 KiB.
const MESSAGES_MAX: usize = 8;
const MESSAGE_BYTES_MAX: usize = 1 << 16;
/// Errors that are not ours, within one call; then the loop does something else first.
const FAULTS_MAX: usize = 8;
/// What stands before a datagram in an IP packet.
const HEADERS_V4: usize = 20 + 8;
const HEADERS_V6: usize = 40 + 8;

/// How a datagram carrier is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramConfig {
    /// No packet is longer, though the path let it through.
    pub packet_max: usize,
    /// Bytes of packets that wait here for the kernel; it is made to hold two packets at least.
    pub send_bytes: usize,
    /// Bytes that the kernel is asked to hold in each direction (SO_SNDBUF, SO_RCVBUF), of which it may give less; 0: as it has them.
    pub kernel_bytes: u32,
    /// Whether the kernel is asked to cut messages, and to put datagrams together.
    pub is_cut: bool,
    pub is_joined: bool,
    /// Whether the network may mark packets instead of dropping them.
    pub is_marking: bool,
}

impl Default for DatagramConfig {
    fn default() -> DatagramConfig {
        DatagramConfig {
            packet_max: 1470,
            send_bytes: 256 << 10,
            kernel_bytes: 4 << 20,
            is_cut: true,
            is_joined: true,
            is_marking: true,
        }
    }
}

/// What a datagram carrier has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounters {
    /// Given to the kernel.
    pub packets_sent: u64,
    pub packets_received: u64,
    pub sends: u64,
    pub reads: u64,
    /// The kernel was full.
    pub blocked: u64,
    /// Too long for the path, or refused by the kernel.
    pub dropped: u64,
    /// Errors that were not ours: ICMP, a firewall, no memory.
    pub faults: u64,
    pub malformed: u64,
    pub congested: u64,
}

/// Packets as UDP datagrams.
pub struct Datagram {
    socket: OwnedFd,
    is_v6: bool,
    packet_most: usize,
    packet_max: usize,
    state: State,
    runs: Runs,
    send_batch: SendBatch,
    receive_batch: ReceiveBatch,
    places: Box<[u8]>,
    /// The first message that waits was refused before.
    is_refused: bool,
    is_joined: bool,
    counters: DatagramCounters,
}

impl Datagram {
    /// Takes a UDP socket that is connected: what comes from elsewhere, the kernel drops.
    pub fn new(socket: impl Into<OwnedFd>, config: DatagramConfig) -> io::Result<Datagram> {
        let socket = socket.into();
        let fd = socket.as_fd();
        sys::set_nonblocking(fd)?;
        let is_v6 = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)? == libc::AF_INET6;
        set_path_options(fd, is_v6, config.is_marking)?;
        if config.kernel_bytes > 0 {
            let bytes = config.kernel_bytes.min(i32::MAX as u32) as i32;
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
        }
        // Kernels before 4.18 and 5.0 do not know these.
        let is_cut = config.is_cut && sys::option(fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        let is_joined = config.is_joined && sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let packet_most = config.packet_max.clamp(PACKET_MIN, PACKET_MAX);
        let send_bytes = config.send_bytes.max(2 * (LEN + packet_most));
        let mut carrier = Datagram {
            is_v6,
            packet_most,
            packet_max: packet_most,
            state: State::Open,
            runs: Runs::new(send_bytes, RUNS_MAX, if is_cut { SEGMENTS_MAX } else { 1 }),
            send_batch: SendBatch::new(RUNS_MAX),
            receive_batch: ReceiveBatch::new(MESSAGES_MAX),
            places: vec![0; MESSAGES_MAX * MESSAGE_BYTES_MAX].into_boxed_slice(),
            is_refused: false,
            is_joined,
            counters: DatagramCounters::default(),
            socket,
        };
        // The options made the kernel forget its route, and with it the MTU.
        sys::connect_again(carrier.socket.as_fd())?;
        carrier.path_mtu()?;
        carrier.look_at_path();
        Ok(carrier)
    }

    pub fn counters(&self) -> DatagramCounters {
        self.counters
    }

    /// Whether the kernel cuts messages: until it once could not.
    pub fn is_cut(&self) -> bool {
        self.runs.is_cut()
    }

    /// Whether the kernel puts datagrams together.
    pub fn is_joined(&self) -> bool {
        self.is_joined
    }

    /// Asks the kernel what the path lets through now, and returns [`Carrier::packet_max`]. It is asked whenever a packet was too
    /// long; that the path has become wider again only the caller can want to know, once in some minutes.
    pub fn look_at_path(&mut self) -> usize {
        let headers = if self.is_v6 { HEADERS_V6 } else { HEADERS_V4 };
        if let Ok(mtu) = self.path_mtu() {
            let packet = mtu.saturating_sub(headers + LEN);
            self.packet_max = packet.min(self.packet_most);
            if packet < PACKET_MIN {
                self.end(End::Narrow(packet));
            }
        }
        self.packet_max
    }

    /// What the kernel knows (ip(7), IP_MTU).
    fn path_mtu(&self) -> io::Result<usize> {
        let (level, name) = match self.is_v6 {
            true => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
            false => (libc::IPPROTO_IP, libc::IP_MTU),
        };
        Ok(sys::option(self.socket.as_fd(), level, name)? as usize)
    }

    fn end(&mut self, end: End) {
        if self.state == State::Open {
            self.state = State::Ended(end);
        }
    }

    /// An error of the socket, not of a message; whether the carrier goes on.
    fn take_fault(&mut self, errno: i32) -> bool {
        match errno {
            libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::ENOTCONN | libc::EDESTADDRREQ => {
                self.end(End::Broken(errno));
            }
            libc::EMSGSIZE => {
                self.look_at_path();
            }
            _ => {}
        }
        self.counters.faults += 1;
        self.state == State::Open
    }

    /// The first message that waits was not sent.
    fn take_refusal(&mut self, errno: i32) {
        if errno == libc::EINVAL {
            // Some kernels say so of a message whose datagrams are too long.
            self.look_at_path();
        }
        if !self.take_fault(errno) {
            return;
        }
        let Some((longest, is_cut)) = self.runs.first() else { return };
        let is_too_long = longest > LEN + self.packet_max;
        if !is_too_long && is_cut && [libc::EIO, libc::EINVAL, libc::EOPNOTSUPP].contains(&errno) {
            self.runs.never_cut();
        } else if is_too_long || self.is_refused {
            self.counters.dropped += self.runs.take(1);
            self.is_refused = false;
        } else {
            self.is_refused = true;
        }
    }

    /// Hands over the packets of message `at`.
    fn hand_over(&mut self, at: usize, each: &mut dyn FnMut(&mut [u8], Mark)) {
        let (len, about) = self.receive_batch.about(at);
        let from = at * MESSAGE_BYTES_MAX;
        let mark = Mark::of_traffic_class(about.traffic_class);
        let message = &mut self.places[from..from + len.min(MESSAGE_BYTES_MAX)];
        if message.is_empty() {
            self.counters.malformed += 1;
        }
        let segment = about.segment.unwrap_or(MESSAGE_BYTES_MAX);
        for datagram in message.chunks_mut(segment) {
            let packet = datagram.split_first_chunk_mut::<LEN>().and_then(|(len, rest)| {
                let len = usize::from(u16::from_le_bytes(*len));
                rest.get_mut(..len).filter(|packet| !packet.is_empty())
            });
            let Some(packet) = packet else {
                self.counters.malformed += 1;
                continue;
            };
            each(packet, mark);
            self.counters.packets_received += 1;
            self.counters.congested += u64::from(mark.is_congested());
        }
    }
}

/// No fragments; marks out and in.
fn set_path_options(fd: BorrowedFd<'_>, is_v6: bool, is_marking: bool) -> io::Result<()> {
    const ECT_0: i32 = 2;
    let traffic_class = if is_marking { ECT_0 } else { 0 };
    let v4 =
        [(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO), (libc::IP_TOS, traffic_class), (libc::IP_RECVTOS, 1)];
    for (name, value) in v4 {
        let set = sys::set_option(fd, libc::IPPROTO_IP, name, value);
        // A socket of IPv6 may talk to an address of IPv4, or be forbidden to.
        if !is_v6 {
            set?;
        }
    }
    let v6 = [
        (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        (libc::IPV6_TCLASS, traffic_class),
        (libc::IPV6_RECVTCLASS, 1),
    ];
    for (name, value) in v6.iter().filter(|_| is_v6) {
        sys::set_option(fd, libc::IPPROTO_IPV6, *name, *value)?;
    }
    Ok(())
}

impl std::fmt::Debug for Datagram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut of = f.debug_struct("Datagram");
        of.field("state", &self.state)
            .field("packet_max", &self.packet_max)
            .field("counters", &self.counters);
        of.finish_non_exhaustive()
    }
}

impl AsFd for Datagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Carrier for Datagram {
    fn kind(&self) -> Kind {
        Kind::Datagrams
    }

    fn state(&self) -> State {
        self.state
    }

    fn wants(&self) -> Wants {
        let is_open = self.state == State::Open;
        Wants { read: is_open, write: is_open && !self.runs.is_empty() }
    }

    fn packet_max(&self) -> usize {
        self.packet_max
    }

    fn room(&mut self) -> Option<&mut [u8]> {
        if self.state != State::Open {
            return None;
        }
        self.runs.room(self.packet_max)
    }

    fn commit(&mut self, len: usize) {
        let is_sound = len > 0 && len <= self.packet_max;
        debug_assert!(is_sound, "a packet of {len} bytes");
        if is_sound && self.room().is_some() {
            self.runs.commit(len);
        }
    }

    fn flush(&mut self) -> Flushed {
        while self.state == State::Open && !self.runs.is_empty() {
            self.counters.sends += 1;
            match self.send_batch.send(self.socket.as_fd(), self.runs.messages()) {
                Ok(messages) => {
                    self.counters.packets_sent += self.runs.take(messages);
                    self.is_refused = false;
                }
                Err(Fault::Again) => {
                    self.counters.blocked += 1;
                    return Flushed::Blocked;
                }
                Err(Fault::Errno(errno)) => self.take_refusal(errno),
            }
        }
        if self.state == State::Open { Flushed::All } else { Flushed::Ended }
    }

    fn receive(&mut self, each: &mut dyn FnMut(&mut [u8], Mark)) -> Received {
        for _ in 0..FAULTS_MAX {
            if self.state != State::Open {
                return Received::Ended;
            }
            self.counters.reads += 1;
            let places = self.places.chunks_mut(MESSAGE_BYTES_MAX);
            match self.receive_batch.receive(self.socket.as_fd(), places) {
                Ok(count) => {
                    (0..count).for_each(|at| self.hand_over(at, each));
                    return if count < MESSAGES_MAX { Received::Drained } else { Received::More };
                }
                Err(Fault::Again) => return Received::Drained,
                Err(Fault::Errno(errno)) => {
                    self.take_fault(errno);
                }
            }
        }
        Received::More
    }
}
