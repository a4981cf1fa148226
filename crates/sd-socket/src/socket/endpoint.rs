//! An endpoint's life: allocation, its rings, locks of its halves, its end.

use crate::link::channel::Channel;
use crate::process::PROCESS;
use crate::socket::bell::{ALL_BITS, notify};
use crate::socket::token::{Half, Rx, Tx};
use core::sync::atomic::{AtomicU32, Ordering};
use sd_shm::channel::{FLAG_DEAD, FLAG_FIN, FLAG_READS_NO_MORE, FLAG_RESET, SlotSide, SlotState};
use sd_shm::promotion::{FLAG_LEFT, FLAG_WANTS_KERNEL};
use sd_shm::rings::Rings;
use sd_shm::slab::{
    Endpoint, FIXED_BUF, HAS_COLD, RX_DISTANCE, RX_PARKED, RxHalf, SWITCHES_MASK, State, TOKENS_DISTANCE,
    TX_DISTANCE, TX_PARKED, Tokens, TxHalf,
};
use sd_sys::Errno;

/// O_NONBLOCK.
pub(crate) const NONBLOCK: u32 = 1 << 0;
/// shutdown(SHUT_RD) was called.
pub(crate) const SHUT_RD: u32 = 1 << 1;
/// shutdown(SHUT_WR) was called; the end is announced to the peer.
pub(crate) const SHUT_WR: u32 = 1 << 2;
/// The peer's end of stream was seen.
pub(crate) const EOF: u32 = 1 << 3;
/// The connection is torn down (reset); SO_ERROR may be pending.
pub(crate) const RESET: u32 = 1 << 4;
/// A non-blocking connect has not been asked about yet: the next connect returns 0.
pub(crate) const CONNECTING: u32 = 1 << 5;
/// The number is held by a kernel socket of its own, which mirrors the options.
pub(crate) const OWN_SOCKET: u32 = 1 << 6;
/// Some epoll instance watches it, or did, of any process that has it.
pub(crate) const WATCHED: u32 = 1 << 7;
/// The kernel socket has an address of its own: the connection must use that.
pub(crate) const HAS_NAME: u32 = 1 << 8;
/// SO_OOBINLINE.
pub(crate) const OOB_INLINE: u32 = 1 << 9;
/// SO_TIMESTAMP, SO_TIMESTAMPNS.
pub(crate) const STAMPS: u32 = 1 << 12;
/// See `STAMPS`.
pub(crate) const STAMPS_NS: u32 = 1 << 13;
/// SO_ZEROCOPY.
pub(crate) const ZERO_COPY: u32 = 1 << 15;
/// This side ended its stream before the other did.
pub(super) const CLOSED_FIRST: u32 = 1 << 14;
/// F_SETOWN, O_ASYNC and the like were used.
pub(crate) const HAS_SIGNALS: u32 = 1 << 10;
/// The end of our stream was announced; without it SHUT_WR is only noted, from before there was a connection.
pub(crate) const FIN_SENT: u32 = 1 << 11;
/// An epoll instance, or the program, found no room to write: it is told when there is some.
pub(crate) const NO_SPACE: u32 = 1 << 16;
/// The monitor said that nobody is on the other side any more, whatever its words say, which others may still write.
pub(crate) const PEER_DEAD: u32 = 1 << 17;
/// TCP_INQ.
pub(crate) const INQ: u32 = 1 << 18;
/// It, or the listener that it comes from, was bound to one address, which it keeps when its connection is broken off.
pub(crate) const KEEPS_ADDRESS: u32 = 1 << 19;

// The bits from 1 << 20 on are those of `sd_shm::slab`.
const _: () = {
    let low = NONBLOCK | SHUT_RD | SHUT_WR | EOF | RESET | CONNECTING | OWN_SOCKET | WATCHED | HAS_NAME;
    let middle = OOB_INLINE | STAMPS | STAMPS_NS | ZERO_COPY | CLOSED_FIRST | HAS_SIGNALS | FIN_SENT;
    let all = low | middle | NO_SPACE | PEER_DEAD | INQ | KEEPS_ADDRESS;
    let shared = SWITCHES_MASK | FIXED_BUF | HAS_COLD | TX_PARKED | RX_PARKED;
    assert!(all.count_ones() == 20 && all & shared == 0);
};

/// Atomics of an endpoint that are addresses of shared structures.
pub(crate) trait EndpointExt {
    fn flag(&self, bits: u32) -> bool;
    fn set_flag(&self, bits: u32);
    fn clear_flag(&self, bits: u32);
    fn state_now(&self) -> State;
    fn set_state(&self, state: State);
    fn own_words(&self) -> &'static SlotSide;
    fn peer_words(&self) -> &'static SlotSide;
    fn channel_ref(&self) -> Option<&'static Channel>;
    fn tokens(&self) -> &Tokens;
    fn tx(&self) -> &TxHalf;
    fn rx(&self) -> &RxHalf;
    fn tx_token(&self) -> Half<'_, Tx>;
    fn rx_token(&self) -> Half<'_, Rx>;
    fn tx_mem(&self) -> Rings;
    fn rx_mem(&self) -> Rings;
}

impl EndpointExt for Endpoint {
    #[inline(always)]
    fn flag(&self, bits: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & bits != 0
    }
    fn set_flag(&self, bits: u32) {
        self.flags.fetch_or(bits, Ordering::AcqRel);
    }
    fn clear_flag(&self, bits: u32) {
        self.flags.fetch_and(!bits, Ordering::AcqRel);
    }
    #[inline(always)]
    fn state_now(&self) -> State {
        State::from_u32(u32::from(self.state.load(Ordering::Acquire)))
    }
    fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }
    #[inline(always)]
    fn own_words(&self) -> &'static SlotSide {
        self.peer_words().other()
    }
    #[inline(always)]
    fn peer_words(&self) -> &'static SlotSide {
        // SAFETY: set by `attach` to words of a mapped channel; channels of live endpoints stay mapped.
        unsafe { &*(self.peer.load(Ordering::Relaxed) as *const SlotSide) }
    }
    fn channel_ref(&self) -> Option<&'static Channel> {
        PROCESS.private(self)?.channel()
    }
    #[inline(always)]
    fn tokens(&self) -> &Tokens {
        let place = core::ptr::from_ref(self).cast::<u8>();
        // SAFETY: both lie in a slab.
        unsafe { &*place.wrapping_add(TOKENS_DISTANCE).cast::<Tokens>() }
    }
    #[inline(always)]
    fn tx(&self) -> &TxHalf {
        let place = core::ptr::from_ref(self).cast::<u8>();
        // SAFETY: both lie in a slab.
        unsafe { &*place.wrapping_add(TX_DISTANCE).cast::<TxHalf>() }
    }
    #[inline(always)]
    fn rx(&self) -> &RxHalf {
        let place = core::ptr::from_ref(self).cast::<u8>();
        // SAFETY: both lie in a slab.
        unsafe { &*place.wrapping_add(RX_DISTANCE).cast::<RxHalf>() }
    }
    #[inline(always)]
    fn tx_token(&self) -> Half<'_, Tx> {
        Half::take(self)
    }
    #[inline(always)]
    fn rx_token(&self) -> Half<'_, Rx> {
        Half::take(self)
    }
    #[inline(always)]
    fn tx_mem(&self) -> Rings {
        let [tx, _] = &self.rings;
        rings_at(self.peer_words(), tx)
    }
    #[inline(always)]
    fn rx_mem(&self) -> Rings {
        let [_, rx] = &self.rings;
        rings_at(self.peer_words(), rx)
    }
}

/// A ring at a distance from the peer's words.
#[inline(always)]
pub(crate) fn rings_at(peer: &SlotSide, distance: &AtomicU32) -> Rings {
    let small = core::ptr::from_ref(peer) as u64 + u64::from(distance.load(Ordering::Relaxed));
    // SAFETY: set by `attach`; channels of live endpoints stay mapped.
    unsafe { Rings::at_address(small) }
}

/// What the peer's words say of the end of the connection, beyond what the ring says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerEnd {
    /// Nothing.
    Open,
    /// Closed, both directions, or its process is gone.
    Gone,
    /// Reset.
    Reset,
}

/// See [`PeerEnd`]. After `Gone` the ring must be looked at once more: data came before.
#[inline(always)]
pub(crate) fn peer_end(endpoint: &Endpoint) -> PeerEnd {
    let peer = endpoint.peer_words();
    let flags = peer.flags.load(Ordering::Acquire);
    if flags & FLAG_RESET != 0 {
        return PeerEnd::Reset;
    }
    if flags & (FLAG_FIN | FLAG_READS_NO_MORE) == FLAG_FIN | FLAG_READS_NO_MORE {
        return PeerEnd::Gone;
    }
    let (generation, state) = peer.state();
    let mine = generation == endpoint.generation.load(Ordering::Relaxed);
    if mine && state == SlotState::Refused {
        return PeerEnd::Reset;
    }
    // Where it has gone back to the kernel's connection, that tells the end.
    if flags & FLAG_DEAD != 0 || (mine && state == SlotState::Closed && flags & FLAG_LEFT == 0) {
        return PeerEnd::Gone;
    }
    if endpoint.flag(PEER_DEAD) { PeerEnd::Gone } else { PeerEnd::Open }
}

/// Something in the peer's words may keep a sender from its ring: an end, the way back to the kernel, or the state of an older connection.
#[inline(always)]
pub(crate) fn is_unusual(endpoint: &Endpoint) -> bool {
    let peer = endpoint.peer_words();
    let flags = FLAG_RESET | FLAG_READS_NO_MORE | FLAG_DEAD | FLAG_WANTS_KERNEL;
    // The lowest byte is the state.
    let is_over = peer.state.load(Ordering::Acquire) as u8 > SlotState::Open as u8;
    is_over || peer.flags.load(Ordering::Acquire) & flags != 0
}

/// The peer will send no more, though some of it may not have been read yet.
pub(crate) fn peer_finished(endpoint: &Endpoint) -> bool {
    endpoint.flag(EOF)
        || endpoint.peer_words().flags.load(Ordering::Acquire) & FLAG_FIN != 0
        || peer_end(endpoint) == PeerEnd::Gone
}

/// The peer broke the protocol: both ends are reset.
#[cold]
pub(crate) fn corrupt(endpoint: &Endpoint) {
    crate::process::stats::count(crate::process::stats::Counter::CorruptPeer);
    endpoint.own_words().flags.fetch_or(FLAG_RESET, Ordering::AcqRel);
    endpoint.error.store(Errno::ECONNRESET.0 as u16, Ordering::Relaxed);
    endpoint.set_flag(RESET);
    notify(endpoint, ALL_BITS);
    crate::socket::bell::announce_to_self(endpoint);
}

/// The connection behind `fd`. For a socket of ours in any other state see `unconnected`.
#[inline(always)]
pub(crate) fn connection(fd: i32) -> Option<&'static Endpoint> {
    crate::fd::table::socket(fd).filter(|e| e.state_now() == State::Connected)
}
