//! An endpoint: what a slab holds of a socket.
//!
//! An idle connection costs its endpoint and nothing else here: what only some sockets have, and who may send and
//! receive where several threads want to, stand in arrays of their own beside, by the same number. Their pages appear
//! when touched, so nobody looks there before a bit of the endpoint says that something is there.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use sd_ring::token::Token;
use sd_ring::{RxCursor, TxCursor};

/// Bit of [`Cold::linger`]: l_onoff.
pub const LINGER_ON: u32 = 1 << 31;

/// Bit of [`Endpoint::flags`]: something is in the endpoint's [`Cold`], or in its tokens.
pub const HAS_COLD: u32 = 1 << 31;
/// Bits of [`Endpoint::flags`]: for people and housekeepers, the half is parked.
pub const TX_PARKED: u32 = 1 << 20;
/// See [`TX_PARKED`].
pub const RX_PARKED: u32 = 1 << 21;
/// Bit of [`Endpoint::flags`]: SO_SNDBUF was set.
pub const FIXED_BUF: u32 = 1 << 30;
/// Bits of [`Cold::road`]: what comes, and what is sent, goes through the kernel's connection.
pub const ROAD_RX_KERNEL: u32 = 1 << 31;
/// See [`ROAD_RX_KERNEL`].
pub const ROAD_TX_KERNEL: u32 = 1 << 30;
/// Bit of [`Cold::road`]: calls on the kernel's connection are counted, and it may be offered.
pub const ROAD_WATCHED: u32 = 1 << 29;
/// Bits of [`Cold::road`]: that was in the ring, and has gone back for as long as the slot lives.
pub const ROAD_RX_LEFT: u32 = 1 << 23;
/// See [`ROAD_RX_LEFT`].
pub const ROAD_TX_LEFT: u32 = 1 << 22;
/// Bit of [`Cold::road`]: a direction has gone back, and the kernel's instances of epoll are to be told.
pub const ROAD_MOVED: u32 = 1 << 21;
/// Bit of [`Endpoint::domain`]: an MPTCP socket.
const MPTCP: u8 = 0x80;
/// Bit of [`Endpoint::domain`]: of an MPTCP socket, the other end of its connection has none.
const FELL_BACK: u8 = 0x40;
const _: () = assert!((libc::AF_INET | libc::AF_INET6) as u8 & (MPTCP | FELL_BACK) == 0);
/// Options that are set or not, from this bit of [`Endpoint::flags`] on, two bits each: never set, off, on.
const SWITCHES: u32 = 22;

/// An option in [`Endpoint::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Switch {
    /// TCP_NODELAY.
    NoDelay = SWITCHES,
    /// SO_KEEPALIVE.
    KeepAlive = SWITCHES + 2,
    /// SO_REUSEADDR.
    ReuseAddress = SWITCHES + 4,
    /// TCP_CORK.
    Cork = SWITCHES + 6,
}

/// All of them.
pub const SWITCHES_MASK: u32 = 0xff << SWITCHES;

/// Sending half. Its position and count belong to whoever has the token.
#[repr(C, align(64))]
pub struct TxHalf {
    /// Position in the ring.
    pub cursor: UnsafeCell<TxCursor>,
    /// Payload bytes sent.
    pub bytes: AtomicU64,
}

/// Receiving half. Its position and count belong to whoever has the token.
#[repr(C, align(64))]
pub struct RxHalf {
    /// Position in the ring.
    pub cursor: UnsafeCell<RxCursor>,
    /// Payload bytes received.
    pub bytes: AtomicU64,
    /// Spin budget learned for this socket, in units of the waiter's choice.
    pub spin: AtomicU32,
    /// SO_RCVLOWAT; zero: the half is parked, see [`ParkedHalves`].
    pub lowat: AtomicU32,
    /// Not of the half: see [`crate::slab::Slab::address`].
    pub short_addresses: [AtomicU32; 2],
}

// SAFETY: the cell belongs to whoever has the half's token; everything else is atomic.
unsafe impl Sync for TxHalf {}
// SAFETY: as above.
unsafe impl Sync for RxHalf {}

/// What is kept of halves that are *parked*: while a connection idles they may be in memory that was given back, so that all
/// of them is zero. That needs no mark: a parked half is one with which nothing can be sent or received. Of others
/// this is old.
#[repr(C)]
#[derive(Default)]
pub struct ParkedHalves {
    /// [`sd_ring::TxCursor::parked`].
    pub tx: AtomicU64,
    /// [`TxHalf::bytes`].
    pub tx_bytes: AtomicU64,
    /// [`sd_ring::RxCursor::parked`].
    pub rx: AtomicU64,
    /// [`RxHalf::bytes`].
    pub rx_bytes: AtomicU64,
    /// [`RxHalf::short_addresses`].
    pub short_addresses: [AtomicU32; 2],
}

/// Who may send and who may receive. All zero while no two threads ever used the endpoint.
#[repr(C, align(64))]
pub struct Tokens {
    /// Who may send.
    pub tx: Token,
    /// Who may receive.
    pub rx: Token,
}

/// What few sockets have: all zero, and in memory that does not exist, unless [`HAS_COLD`] is set.
#[repr(C)]
#[derive(Default)]
pub struct Cold {
    /// SO_RCVTIMEO in ns, zero = forever.
    pub rx_timeout_ns: AtomicU64,
    /// SO_SNDTIMEO in ns, zero = forever.
    pub tx_timeout_ns: AtomicU64,
    /// Position of the last urgent byte that was received out of band, plus one.
    pub urgent_read: AtomicU64,
    /// SO_LINGER: seconds, and [`LINGER_ON`].
    pub linger: AtomicU32,
    /// Status flags other than O_NONBLOCK; see `sd_socket::fds`.
    pub status: AtomicU32,
    /// Sends with MSG_ZEROCOPY; see `sd_socket::zero_copy`.
    pub zero_copies: AtomicU32,
    /// How many of them were told to be done.
    pub zero_copies_told: AtomicU32,
    /// The process that F_SETOWN named, zero when there is none; see [`crate::channel::ColdWords::wants_signals`].
    pub owner: AtomicU32,
    /// F_SETSIG's signal.
    pub signal: AtomicU16,
    /// Other remembered options; see `sd_socket::options`.
    pub opts: [AtomicU16; 5],
    /// Which way the bytes of a connection go that the kernel has made, and who is in a call on it; see `sd_socket::socket::road`.
    pub road: AtomicU32,
    /// Calls on such a connection since it was looked at last, for as long as it is the kernel's. While it has a slot: what the monitor
    /// has said of where its two ends count (`sd_proto::Reply::Promote`).
    pub messages: AtomicU32,
    /// When that was, in milliseconds; and how long it is not offered.
    pub looked_at_ms: AtomicU32,
    /// See `looked_at_ms`.
    pub pause_ms: AtomicU32,
    /// Since when its bytes take the road that they do: CLOCK_MONOTONIC. This and what follows is for people; see
    /// `sd_socket::socket::history`.
    pub road_since_ns: AtomicU64,
    /// How often that has changed; no more is counted than there is room for.
    pub road_changes: AtomicU16,
    /// The ordinal of the connection of the kernel's that the endpoint is for, modulo 2^16; not for people: see `sd_socket::setup::counted`.
    pub road_use: AtomicU16,
    /// [`crate::slab::Moved`].
    pub road_moved: AtomicU16,
    /// [`crate::slab::Awaits`].
    pub road_awaits: AtomicU16,
    /// The thread that lets nobody into a call on such a connection for a moment; zero: none does. A dead one is replaced.
    pub closer: AtomicU32,
    /// The lower half of how many bytes were read of the kernel's stream, as counted while such a connection has a slot. While it has
    /// none: KiB that the kernel had carried when calls began to be counted.
    pub stream_read: AtomicU32,
    /// See [`crate::slab::Slab::address`]; valid whether [`HAS_COLD`] is set or not.
    addresses: [[AtomicU64; 2]; 2],
}

/// Where TCP_LINGER2 stands in [`Cold::opts`]: seconds, and zero when it was never set.
const ORPHAN_SECONDS: usize = 3;
/// It is negative.
const ORPHAN_NEVER: u16 = u16::MAX;

impl Cold {
    /// SO_LINGER with zero seconds: the end of the connection is a reset.
    pub fn aborts(&self) -> bool {
        self.linger.load(Ordering::Relaxed) == LINGER_ON
    }

    /// TCP_LINGER2: for how long the port of a closed connection is kept while the other side goes on; zero: not at all.
    pub fn orphan_seconds(&self) -> Option<u32> {
        match self.opts[ORPHAN_SECONDS].load(Ordering::Relaxed) {
            0 => None,
            ORPHAN_NEVER => Some(0),
            seconds => Some(u32::from(seconds)),
        }
    }

    /// Sets it. The kernel does not wait at all where it is negative; zero is the default, which is the most.
    pub fn set_orphan_seconds(&self, seconds: i32) {
        let stored = if seconds < 0 { ORPHAN_NEVER } else { seconds.min(i32::from(ORPHAN_NEVER) - 1) as u16 };
        self.opts[ORPHAN_SECONDS].store(stored, Ordering::Relaxed);
    }

    /// What is set nowhere.
    pub const fn new() -> Cold {
        Cold {
            rx_timeout_ns: AtomicU64::new(0),
            tx_timeout_ns: AtomicU64::new(0),
            urgent_read: AtomicU64::new(0),
            linger: AtomicU32::new(0),
            status: AtomicU32::new(0),
            zero_copies: AtomicU32::new(0),
            zero_copies_told: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            signal: AtomicU16::new(0),
            opts: [const { AtomicU16::new(0) }; 5],
            road: AtomicU32::new(0),
            messages: AtomicU32::new(0),
            looked_at_ms: AtomicU32::new(0),
            pause_ms: AtomicU32::new(0),
            road_since_ns: AtomicU64::new(0),
            road_changes: AtomicU16::new(0),
            road_use: AtomicU16::new(0),
            road_moved: AtomicU16::new(0),
            road_awaits: AtomicU16::new(0),
            closer: AtomicU32::new(0),
            stream_read: AtomicU32::new(0),
            addresses: [const { [const { AtomicU64::new(0) }; 2] }; 2],
        }
    }

    /// As good as new, but for the addresses and `road_use`.
    pub fn reset(&self) {
        for word in [&self.rx_timeout_ns, &self.tx_timeout_ns, &self.urgent_read, &self.road_since_ns] {
            word.store(0, Ordering::Relaxed);
        }
        let words = [&self.linger, &self.status, &self.zero_copies, &self.zero_copies_told, &self.owner];
        for word in words.into_iter().chain([&self.closer, &self.stream_read]) {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.road, &self.messages, &self.looked_at_ms, &self.pause_ms] {
            word.store(0, Ordering::Relaxed);
        }
        let short = [&self.signal, &self.road_changes, &self.road_moved, &self.road_awaits];
        self.opts.iter().chain(short).for_each(|option| option.store(0, Ordering::Relaxed));
    }

    pub(crate) fn address(&self, end: End) -> [u8; 16] {
        let mut address = [0; 16];
        for (bytes, word) in address.chunks_exact_mut(8).zip(&self.addresses[end as usize]) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        address
    }

    pub(crate) fn set_address(&self, end: End, address: [u8; 16]) {
        for (bytes, word) in address.as_chunks::<8>().0.iter().zip(&self.addresses[end as usize]) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// This one.
    Local = 0,
    /// The peer's.
    Remote = 1,
}

/// In [`RxHalf::short_addresses`]: the address is in [`Cold`].
const LONG: u32 = u32::MAX;
/// Third word of an IPv4 address in its mapped form.
const MAPPED: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// A socket, a cache line: what both halves read, and people and the monitor ask for. The halves, a line each, and what is
/// [`ParkedHalves`] of them stand in arrays of their own.
#[repr(C, align(64))]
pub struct Endpoint {
    /// [`crate::slab::State`].
    pub state: AtomicU8,
    /// This side: 0 = A, 1 = B.
    pub side: AtomicU8,
    /// AF_INET or AF_INET6, and what it has of MPTCP: see [`Endpoint::family`] and [`Endpoint::is_mptcp`].
    domain: AtomicU8,
    /// [`crate::slab::Reason`] when state is Kernel.
    pub reason: AtomicU8,
    /// Status bits; see `sd_socket::endpoint`.
    pub flags: AtomicU32,
    /// Bit per member of the slab that has it open.
    pub holders: AtomicU64,
    /// Address of the slot's words of the peer's side: the same in all processes that hold it.
    pub peer: AtomicU64,
    /// Distance from there to the small ring that this side sends into, and to the one that it reads.
    pub rings: [AtomicU32; 2],
    /// Channel id, for the monitor.
    pub channel_id: AtomicU64,
    /// Slot generation.
    pub generation: AtomicU32,
    /// Local port << 16 | peer port.
    pub ports: AtomicU32,
    /// File descriptor at the time of creation, for `sd ss`.
    pub fd: AtomicI32,
    /// Id of the thread whose message is sent in parts, zero when none is; see `sd_socket::whole`.
    pub sender: AtomicU32,
    /// Slot number.
    pub slot: AtomicU16,
    /// Pending SO_ERROR.
    pub error: AtomicU16,
}

impl Endpoint {
    /// AF_INET or AF_INET6.
    #[inline]
    pub fn family(&self) -> i32 {
        i32::from(self.domain.load(Ordering::Relaxed) & !(MPTCP | FELL_BACK))
    }

    /// Changes it, and nothing else.
    pub fn set_family(&self, family: i32) {
        let change = |domain: u8| Some(domain & (MPTCP | FELL_BACK) | family as u8);
        let _ = self.domain.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// As good as new, of this family: a TCP socket.
    #[inline]
    pub fn begin(&self, family: i32) {
        self.domain.store(family as u8, Ordering::Relaxed);
    }

    /// SO_PROTOCOL is IPPROTO_MPTCP.
    #[inline]
    pub fn is_mptcp(&self) -> bool {
        self.domain.load(Ordering::Relaxed) & MPTCP != 0
    }

    /// From now on it is.
    pub fn set_mptcp(&self) {
        self.domain.fetch_or(MPTCP, Ordering::Relaxed);
    }

    /// The connection of an MPTCP socket has one at its other end.
    pub fn speaks_mptcp(&self) -> bool {
        self.domain.load(Ordering::Relaxed) & (MPTCP | FELL_BACK) == MPTCP
    }

    /// It has, or it has fallen back to TCP.
    pub fn set_speaks_mptcp(&self, speaks: bool) {
        match speaks {
            true => self.domain.fetch_and(!FELL_BACK, Ordering::Relaxed),
            false => self.domain.fetch_or(FELL_BACK, Ordering::Relaxed),
        };
    }

    /// Whether an option is on; `None`: it was never set.
    pub fn switch(&self, option: Switch) -> Option<bool> {
        match self.flags.load(Ordering::Relaxed) >> option as u32 & 3 {
            0 => None,
            value => Some(value > 1),
        }
    }

    /// Sets it.
    pub fn set_switch(&self, option: Switch, on: bool) {
        let bits = (1 + u32::from(on)) << option as u32;
        let change = |flags: u32| Some(flags & !(3 << option as u32) | bits);
        let _ = self.flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    /// SO_REUSEADDR.
    pub fn reuses_address(&self) -> bool {
        self.switch(Switch::ReuseAddress) == Some(true)
    }
}

/// An address as it stands in [`RxHalf::short_addresses`]; `None` when it stands in [`Cold`].
pub fn short_address(word: u32) -> Option<[u8; 16]> {
    let [a, b, c, d] = word.to_ne_bytes();
    match word {
        LONG => None,
        0 => Some([0; 16]),
        _ => Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]),
    }
}

impl RxHalf {
    /// Notes an address; false when it takes the slab to do so.
    #[inline]
    pub fn set_short_address(&self, end: End, address: [u8; 16]) -> bool {
        let word = |at: usize| u32::from_ne_bytes(core::array::from_fn(|byte| address[at + byte]));
        let (short, is_short) = match [word(0), word(4), word(8), word(12)] {
            [0, 0, MAPPED, LONG] => (LONG, false),
            [0, 0, MAPPED, short] => (short, short != 0),
            words => (0, words == [0; 4]),
        };
        if is_short {
            self.short_addresses[end as usize].store(short, Ordering::Relaxed);
        }
        is_short
    }

    pub(crate) fn set_long_address(&self, end: End) {
        self.short_addresses[end as usize].store(LONG, Ordering::Relaxed);
    }
}

const _: () = {
    assert!(core::mem::size_of::<Endpoint>() == 64);
    assert!(core::mem::size_of::<TxHalf>() == 64 && core::mem::size_of::<RxHalf>() == 64);
    assert!(core::mem::size_of::<ParkedHalves>() == 40);
    assert!(core::mem::size_of::<Tokens>() == 64);
    assert!(core::mem::size_of::<Cold>() == 128);
};
