//! What moves packets between two engines: one trait, three implementations (ADR 98, ADR 110). The engine chooses (ADR 102, ADR 112).
//!
//! ```text
//!  sd_link::Link ── transmit ──> room │ commit ─ flush ──> kernel ══ network ══ kernel ──> receive ── Link::receive
//! ```
//!
//! A carrier owns a non-blocking socket that is connected to the other engine, or a pair of an RDMA device's, and two buffers. A packet is written into the one
//! at the place from which the kernel takes it, and read in the other at the place where the kernel put it, so that it can be
//! opened there. Many packets go and come with one system call.
//!
//! | | [`Trunk`] | [`Datagram`] | [`Verbs`] |
//! |---|---|---|---|
//! | is | a kernel TCP connection | a UDP socket; segmented and put together by the kernel where it can | RDMA writes of batches into the other engine's memory |
//! | order | as they were sent | any | as they were sent |
//! | loss, doubles | none until it ends | both | none until it ends |
//! | ends | when the other engine ends or resets it, or breaks the framing | by errors of our own only | when the other engine ends it or does not answer, or breaks the framing |
//! | marks | the kernel answers them itself | are handed over with each packet | none |
//! | room for a packet | as it was made | as the path allows, which can change | as it was made |
//!
//! # Guarantees
//! * A packet that is handed over is one that the other engine committed, if nobody else can write to the road: whole, none in part.
//!   Who can write to it can make any; [`Datagram`] takes what comes from its peer's address only. Telling them apart is the seal's.
//! * No call blocks (dropping a [`Verbs`] waits up to 20 ms for its last word), allocates (what is placed takes its room the first times), or does more than one buffer's worth of work. No threads.
//! * Receiving never waits for sending: two ends that are full in both directions go on as soon as either reads.
//! * Writability is asked for only while something waits to be sent, so that an idle carrier costs nothing.
//! * Whatever comes, the worst is [`State::Ended`], and it says why. Lengths that the peer wrote are checked against our buffers.
//! * No byte of one packet's buffer is sent with another one: what fills a datagram up is zeroed.
//!
//! # Not here
//! Encryption, loss recovery and congestion control (`sd-link`); connecting, and who the peer is; pacing; a search for a greater
//! path MTU where ICMP is filtered; AF_XDP.
//!
//! # Tests
//! `tests/conformance`: one suite that each carrier passes, each also without what the kernel may lack. `tests/links.rs`: two links
//! over each but [`Verbs`], every byte compared, with loss. `tests/path.rs`: marks, ICMP, path MTU. `examples/rate.rs` measures.

mod datagram;
mod sys;
mod trunk;
mod verbs;

use std::os::fd::{AsFd, BorrowedFd};

pub use datagram::{Datagram, DatagramConfig, DatagramCounters};
pub use sd_verbs::{Error as VerbsError, Lending, Lent, Window};
pub use trunk::{Trunk, TrunkConfig, TrunkCounters};
pub use verbs::{Grant, Placing, Verbs, VerbsConfig, VerbsCounters, VerbsEnd};

/// A packet is at least as long as this can be made, by any carrier, as long as it is open.
pub const PACKET_MIN: usize = 512;
/// No packet is longer, whatever the configuration.
pub const PACKET_MAX: usize = 65_000;

/// What moves packets to one other engine.
///
/// ```
/// use sd_carrier::{Carrier, Flushed, Trunk, TrunkConfig};
/// # fn main() -> std::io::Result<()> {
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let here = std::net::TcpStream::connect(listener.local_addr()?)?;
/// let mut there = Trunk::new(listener.accept()?.0, TrunkConfig::default())?;
/// let mut here = Trunk::new(here, TrunkConfig::default())?;
///
/// let mut words = ["one", "two"].iter();
/// let flushed = here.send(&mut |room| {
///     let word = words.next()?.as_bytes();
///     room[..word.len()].copy_from_slice(word);
///     Some(word.len())
/// });
/// assert_eq!(flushed, Flushed::All);
///
/// let mut came = Vec::new();
/// while came.len() < 2 {
///     there.receive(&mut |packet, _| came.push(String::from_utf8_lossy(packet).into_owned()));
/// }
/// assert_eq!(came, ["one", "two"]);
/// # Ok(())
/// # }
/// ```
pub trait Carrier: AsFd {
    /// What it promises.
    fn kind(&self) -> Kind;

    /// Whether it carries; once it does not, it never does again, and is to be dropped: epoll may go on telling of it.
    fn state(&self) -> State;

    /// What the loop is to wait for, level-triggered. It changes with each call of the others.
    fn wants(&self) -> Wants;

    /// The length of the longest packet that it takes now; the other engine takes such ones.
    fn packet_max(&self) -> usize;

    /// Where the next packet is to be written: [`Carrier::packet_max`] bytes; `None` until [`Carrier::flush`] has made room, or
    /// when it has ended. What is in it is of no meaning. It may be asked for and not used.
    fn room(&mut self) -> Option<&mut [u8]>;

    /// The first `len` bytes of [`Carrier::room`], which was just asked for, are a packet: it is sent with the next flush.
    /// A length of 0, or more than there was, is a fault of the caller's: nothing is sent.
    fn commit(&mut self, len: usize);

    /// Gives the kernel what it takes. After [`Flushed::All`] there is room.
    fn flush(&mut self) -> Flushed;

    /// The descriptor was found ready, and the caller receives next. Without this word it may stay ready, or not become so again.
    fn woken(&mut self) {}

    /// Hands over what has come: at most as much as one system call gave. What came before an end is handed over before the
    /// end is told.
    fn receive(&mut self, each: &mut dyn FnMut(&mut [u8], Mark)) -> Received;

    /// Sends packets as long as `next` writes some into the room it is given, and flushes.
    fn send(&mut self, next: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> Flushed {
        loop {
            if let Some(room) = self.room() {
                match next(room) {
                    Some(len) => self.commit(len),
                    None => return self.flush(),
                }
                continue;
            }
            match self.flush() {
                Flushed::All => {}
                blocked => return blocked,
            }
        }
    }

    /// The descriptor to wait for.
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// An engine may make a carrier in one thread and run it in another.
const _: () = {
    const fn can_move<T: Send>() {}
    can_move::<Trunk>();
    can_move::<Datagram>();
    can_move::<Verbs>();
};

/// What a carrier promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Each packet once and in order, or the end is told.
    Stream,
    /// Packets may be lost, come twice, and in another order.
    Datagrams,
}

/// Whether a carrier carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Open,
    Ended(End),
}

/// Why a carrier carries no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The other engine has ended it, behind a whole packet.
    Closed,
    /// It has ended within a packet.
    Truncated,
    /// It has announced a packet of this length, which none may have.
    Length(usize),
    /// The kernel said this errno.
    Broken(i32),
    /// The path lets through no packet of [`PACKET_MIN`], but of so much.
    Narrow(usize),
}

/// What a loop is to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wants {
    pub read: bool,
    pub write: bool,
}

impl Wants {
    /// As epoll has it.
    pub fn epoll(self) -> u32 {
        let read = if self.read { libc::EPOLLIN as u32 } else { 0 };
        let write = if self.write { libc::EPOLLOUT as u32 } else { 0 };
        read | write
    }
}

/// What became of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flushed {
    /// The kernel has everything.
    All,
    /// The kernel is full: when it is writable, flush again.
    Blocked,
    /// It takes no more packets. [`Carrier::receive`] hands over what has come, and tells the end then.
    Ended,
}

/// What became of a reception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Received {
    /// There may be more.
    More,
    /// There was no more.
    Drained,
    /// It carries no more, see [`Carrier::state`]; all that came before was handed over.
    Ended,
}

/// What the network did to a packet's header (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// It cannot mark this one, or nothing is known of it.
    #[default]
    Incapable,
    Capable,
    /// There is congestion.
    Congested,
}

impl Mark {
    pub fn is_congested(self) -> bool {
        self == Mark::Congested
    }

    /// The two low bits of the traffic class.
    fn of_traffic_class(class: u8) -> Mark {
        match class & 3 {
            0 => Mark::Incapable,
            3 => Mark::Congested,
            _ => Mark::Capable,
        }
    }
}
