//! Packets over a kernel TCP connection.
//!
//! ```text
//! len u16, little-endian | packet: len bytes | len u16 | packet ...
//! ```
//!
//! What is to be sent lies in one piece, so one `send` gives the kernel many packets. What comes is read in large pieces, and packets
//! are handed over where they lie; only the beginning of one that is not whole is moved, when there is no place behind it.
//!
//! The kernel takes no more than [`TrunkConfig::unsent_bytes_max`] that it has not sent (TCP_NOTSENT_LOWAT): what waits there
//! cannot be overtaken by what is small and urgent, and would be sent as it was, not as it is.

use crate::sys::{self, Fault};
use crate::{Carrier, End, Flushed, Kind, Mark, PACKET_MAX, PACKET_MIN, Received, State, Wants};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a length.
const LEN: usize = 2;
/// A read asks for at least so much, or what is not whole is moved to the beginning first.
const READ_MIN: usize = 64 << 10;

/// How a trunk is made; both engines have the same `packet_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrunkConfig {
    pub packet_max: usize,
    /// Bytes of packets that wait here for the kernel; it is made to hold two packets at least.
    pub send_bytes: usize,
    /// Bytes that are read at once; likewise.
    pub receive_bytes: usize,
    /// Bytes that the kernel may hold and not have sent; 0: as many as it likes.
    pub unsent_bytes_max: u32,
}

impl Default for TrunkConfig {
    fn default() -> TrunkConfig {
        TrunkConfig {
            packet_max: 16 << 10,
            send_bytes: 128 << 10,
            receive_bytes: 256 << 10,
            unsent_bytes_max: 256 << 10,
        }
    }
}

/// What a trunk has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrunkCounters {
    pub packets_sent: u64,
    pub packets_received: u64,
    pub sends: u64,
    pub reads: u64,
    /// The kernel was full.
    pub blocked: u64,
}

/// Packets over a kernel TCP connection.
#[derive(Debug)]
pub struct Trunk {
    socket: OwnedFd,
    packet_max: usize,
    state: State,
    /// Why nothing more can be sent; told when all that came was handed over.
    fault: Option<End>,
    out: Piece,
    come: Piece,
    counters: TrunkCounters,
}

/// A buffer of which `begin..end` is of meaning.
#[derive(Debug)]
struct Piece {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl Piece {
    fn new(len: usize) -> Piece {
        Piece { bytes: vec![0; len].into_boxed_slice(), begin: 0, end: 0 }
    }

    fn len(&self) -> usize {
        self.end - self.begin
    }

    fn place(&self) -> usize {
        self.bytes.len() - self.end
    }

    /// Makes place behind it, if it is worth it: what is moved is not more than `moved_max`.
    fn make_place(&mut self, wanted: usize, moved_max: usize) {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.place() < wanted && self.len() <= moved_max {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.len());
        }
    }
}

impl Trunk {
    /// Takes a TCP socket that is connected, or is connecting: what is sent then waits.
    pub fn new(socket: impl Into<OwnedFd>, config: TrunkConfig) -> io::Result<Trunk> {
        let socket = socket.into();
        let fd = socket.as_fd();
        sys::set_nonblocking(fd)?;
        sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        if config.unsent_bytes_max > 0 {
            let bytes = config.unsent_bytes_max.min(i32::MAX as u32) as i32;
            sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)?;
        }
        let packet_max = config.packet_max.clamp(PACKET_MIN, PACKET_MAX);
        let least = 2 * (LEN + packet_max);
        Ok(Trunk {
            socket,
            packet_max,
            state: State::Open,
            fault: None,
            out: Piece::new(config.send_bytes.max(least)),
            come: Piece::new(config.receive_bytes.max(least)),
            counters: TrunkCounters::default(),
        })
    }

    pub fn counters(&self) -> TrunkCounters {
        self.counters
    }

    /// Bytes that wait here for the kernel.
    pub fn waiting(&self) -> usize {
        self.out.len()
    }

    /// The first reason is the one that says something.
    fn end(&mut self, end: End) {
        self.state = State::Ended(self.fault.unwrap_or(end));
    }

    /// Nothing more can be sent. What came can still be read, and then the kernel says that nothing follows.
    fn fail_to_send(&mut self, errno: i32) {
        self.fault = Some(End::Broken(errno));
        self.out.begin = self.out.end;
        sys::shutdown(self.socket.as_fd());
    }

    fn is_sending(&self) -> bool {
        self.state == State::Open && self.fault.is_none()
    }

    /// Hands over the packets that are whole.
    fn hand_over(&mut self, each: &mut dyn FnMut(&mut [u8], Mark)) {
        let Piece { bytes, begin, end } = &mut self.come;
        let mut bad = None;
        while let Some((len, rest)) = bytes[*begin..*end].split_first_chunk_mut::<LEN>() {
            let len = usize::from(u16::from_le_bytes(*len));
            if len == 0 || len > self.packet_max {
                bad = Some(len);
                break;
            }
            let Some(packet) = rest.get_mut(..len) else { break };
            each(packet, Mark::Incapable);
            *begin += LEN + len;
            self.counters.packets_received += 1;
        }
        if let Some(len) = bad {
            self.end(End::Length(len));
        }
    }
}

impl AsFd for Trunk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Carrier for Trunk {
    fn kind(&self) -> Kind {
        Kind::Stream
    }

    fn state(&self) -> State {
        self.state
    }

    fn wants(&self) -> Wants {
        let is_open = self.state == State::Open;
        Wants { read: is_open, write: is_open && self.out.len() > 0 }
    }

    fn packet_max(&self) -> usize {
        self.packet_max
    }

    fn room(&mut self) -> Option<&mut [u8]> {
        if !self.is_sending() {
            return None;
        }
        let wanted = LEN + self.packet_max;
        // Less is moved than the packet is long for which there is to be room.
        self.out.make_place(wanted, wanted);
        let at = self.out.end + LEN;
        self.out.bytes.get_mut(at..at + self.packet_max)
    }

    fn commit(&mut self, len: usize) {
        let is_sound = len > 0 && len <= self.packet_max && LEN + len <= self.out.place();
        debug_assert!(is_sound, "a packet of {len} bytes");
        if !is_sound || !self.is_sending() {
            return;
        }
        let at = self.out.end;
        self.out.bytes[at..at + LEN].copy_from_slice(&(len as u16).to_le_bytes());
        self.out.end += LEN + len;
        self.counters.packets_sent += 1;
    }

    fn flush(&mut self) -> Flushed {
        while self.is_sending() && self.out.len() > 0 {
            match sys::send(self.socket.as_fd(), &self.out.bytes[self.out.begin..self.out.end]) {
                Ok(len) => {
                    self.counters.sends += 1;
                    self.out.begin += len;
                }
                Err(Fault::Again) => {
                    self.counters.blocked += 1;
                    return Flushed::Blocked;
                }
                Err(Fault::Errno(errno)) => self.fail_to_send(errno),
            }
        }
        if self.is_sending() { Flushed::All } else { Flushed::Ended }
    }

    fn receive(&mut self, each: &mut dyn FnMut(&mut [u8], Mark)) -> Received {
        if self.state != State::Open {
            return Received::Ended;
        }
        // What is not whole is less than a packet, and two have place.
        let wanted = READ_MIN.min(self.come.bytes.len() / 2);
        self.come.make_place(wanted, LEN + self.packet_max);
        let place = self.come.place();
        let read = sys::receive(self.socket.as_fd(), &mut self.come.bytes[self.come.end..]);
        self.counters.reads += 1;
        match read {
            Ok(0) => {
                self.end(if self.come.len() == 0 { End::Closed } else { End::Truncated });
                Received::Ended
            }
            Ok(len) => {
                self.come.end += len;
                self.hand_over(each);
                match self.state {
                    State::Ended(_) => Received::Ended,
                    State::Open if len == place => Received::More,
                    State::Open => Received::Drained,
                }
            }
            Err(Fault::Again) => Received::Drained,
            Err(Fault::Errno(errno)) => {
                self.end(End::Broken(errno));
                Received::Ended
            }
        }
    }
}
