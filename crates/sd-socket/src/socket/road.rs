//! The road of a connection that the kernel has made: its bytes go through the kernel's connection, or through a slot's rings besides,
//! each direction for itself (ADR 82).
//!
//! ```text
//!  sender    kernel ──SWITCHED at a byte──> ring          receiver   kernel, up to that byte ──> ring
//! ```
//! The way back is in `way_back`. Who does what next [`sd_ring::road`] says, of what both ends say in their words of the slot.
//!
//! A word of the endpoint ([`sd_shm::slab::Cold::road`]) says which directions are the kernel's still, so relatives know it too. A
//! direction that is looks parked to everybody else (`parked`): the short ways of send and recv know nothing of it, and who takes
//! its token finds it parked, and asks here.

use crate::fd::table::{self, Entry};
use crate::process::PROCESS;
use crate::socket::cold;
use crate::socket::endpoint::EndpointExt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sd_ring::road::{Position, Receive, RoadWord, Send, between_hosts, receive, send};
use sd_shm::channel::Side;
use sd_shm::slab::{
    Awaits, Cold, Endpoint, HAS_COLD, Moved, Promotes, ROAD_WATCHED, RX_PARKED, State, TX_PARKED,
};
pub(crate) use sd_shm::slab::{
    ROAD_MOVED as MOVED, ROAD_RX_KERNEL as RX_KERNEL, ROAD_RX_LEFT as RX_LEFT, ROAD_TX_KERNEL as TX_KERNEL,
    ROAD_TX_LEFT as TX_LEFT,
};

/// Either.
pub(crate) const KERNEL: u32 = RX_KERNEL | TX_KERNEL;
/// Calls on it are counted, and it may be offered.
pub(crate) const WATCHED: u32 = ROAD_WATCHED;
/// This end has connected.
pub(crate) const ACTIVE: u32 = 1 << 28;
/// It stays the kernel's.
pub(crate) const NEVER: u32 = 1 << 27;
/// Nobody may enter a call on it for a moment.
pub(crate) const CLOSED: u32 = 1 << 26;
/// The monitor has found the other end.
pub(crate) const PROMISED: u32 = 1 << 25;
/// It was offered.
pub(crate) const OFFERED: u32 = 1 << 24;
/// It has a slot besides. Its peer cannot write this, as it can all words of the slot.
const PROMOTED: u32 = 1 << 20;
/// It has a slot besides, and the options that keep a silent connection alive are not the program's (`beneath`).
pub(crate) const KEPT: u32 = 1 << 19;
/// The lowest bits of [`Cold::road_use`], of a word with [`WATCHED`]: who changes that of one connection does not change another's.
pub(crate) const USE: u32 = 7 << 16;
/// So many threads are in calls of the kernel's on it.
pub(crate) const INSIDE: u32 = 0xffff;

/// See [`USE`].
#[inline(always)]
pub(crate) fn bits_of_use(which: u16) -> u32 {
    u32::from(which & 7) << 16
}

/// The word, of an endpoint that has one.
#[inline]
pub(crate) fn word(endpoint: &Endpoint) -> Option<&'static AtomicU32> {
    let has_cold = endpoint.flags.load(Ordering::Acquire) & HAS_COLD != 0;
    has_cold.then(|| &cold::of(endpoint).road)
}

/// Whether one of these directions is the kernel's, of a connection that has a slot.
#[inline]
pub(crate) fn is_by_kernel(endpoint: &Endpoint, which: u32) -> bool {
    word(endpoint).is_some_and(|word| word.load(Ordering::Acquire) & which != 0)
}

/// What comes is the kernel's still: this end has not come to its ring yet.
pub(crate) fn is_before_ring(endpoint: &Endpoint) -> bool {
    word(endpoint).is_some_and(|word| word.load(Ordering::Acquire) & (RX_KERNEL | RX_LEFT) == RX_KERNEL)
}

/// A connection that the kernel has made, and that has a slot besides. To all others roads mean nothing, whatever a peer says of them.
#[cold]
#[inline(never)]
pub(crate) fn is_promoted(endpoint: &Endpoint) -> bool {
    let is_so = is_by_kernel(endpoint, PROMOTED);
    if is_so && !ARE_THERE.load(Ordering::Relaxed) {
        ARE_THERE.store(true, Ordering::Relaxed);
    }
    is_so
}

/// The other end is another host's.
pub(crate) fn is_far(endpoint: &Endpoint) -> bool {
    endpoint.channel_ref().is_some_and(|channel| !channel.link.sends_again())
}

/// This process has such connections, or had some at the last look.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

/// See [`ARE_THERE`].
pub(crate) fn are_there() -> bool {
    ARE_THERE.load(Ordering::Relaxed)
}

/// Before a look at all connections: who finds one ([`is_promoted`]) says so again.
pub(crate) fn look_anew() {
    ARE_THERE.store(false, Ordering::Relaxed);
}

/// It had a slot, and has given it back: a kernel's connection again. Calls that were under way go on, through the kernel.
#[inline]
pub(crate) fn is_given_back(endpoint: &Endpoint) -> bool {
    endpoint.state_now() == State::Kernel
        && is_by_kernel(endpoint, TX_LEFT)
        && is_by_kernel(endpoint, RX_LEFT)
}

/// It is the kernel's, and another connection than a call that is under way began with.
#[cold]
pub(crate) fn is_withdrawn(endpoint: &Endpoint) -> bool {
    let is_kernels = || endpoint.state_now() == State::Kernel;
    // Between two looks it may have gone to another slot, which is said before what was left is taken back.
    is_kernels() && !is_given_back(endpoint) && is_kernels()
}

/// A number of this process that leads to the connection, and so to the kernel's: that of the thread's call, which the program keeps open, before others,
/// which another thread may close at any moment.
pub(crate) fn number(endpoint: &Endpoint) -> Option<i32> {
    let leads_here = |entry: Entry| matches!(entry, Entry::Socket(other) | Entry::Kernel(other) if core::ptr::eq(other, endpoint));
    let first = endpoint.fd.load(Ordering::Relaxed);
    let mut likely = [sd_sys::thread::called(), Some(first)].into_iter().flatten();
    if let Some(fd) = likely.find(|fd| leads_here(table::get(*fd))) {
        return Some(fd);
    }
    let mut found = None;
    table::for_each(0, u32::MAX, |fd, entry| {
        if leads_here(entry) {
            found.get_or_insert(fd);
        }
    });
    found.inspect(|fd| endpoint.fd.store(*fd, Ordering::Relaxed))
}

/// Both halves look parked from now on, as those of a fresh connection. Until [`opened`] nobody enters. `fd` leads to the kernel's, which was
/// open in both directions just now; `behind`: see [`as_received`].
pub(crate) fn begin(endpoint: &'static Endpoint, role: u32, (fd, behind): (i32, u32)) {
    let Some((rec, index)) = PROCESS.locate(endpoint) else { return };
    let Some(kept) = rec.slab().and_then(|slab| slab.kept(index)) else { return };
    let (rx, tx) = (endpoint.rx(), endpoint.tx());
    for word in [&kept.tx, &kept.tx_bytes, &kept.rx, &kept.rx_bytes] {
        word.store(0, Ordering::Relaxed);
    }
    // Else it was promoted before, and they stand there.
    let is_live = rx.lowat.load(Ordering::Relaxed) != 0;
    for (to, from) in kept.short_addresses.iter().zip(&rx.short_addresses).filter(|_| is_live) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    endpoint.set_flag(TX_PARKED | RX_PARKED);
    let read = sd_sys::tcp::read(fd, 0, 0).unwrap_or(0);
    cold::change(endpoint, |cold| {
        cold.stream_read.store(read as u32, Ordering::Relaxed);
        cold.messages.store(behind, Ordering::Relaxed);
        let kept = role & ACTIVE | bits_of_use(cold.road_use.load(Ordering::Relaxed));
        cold.road.store(PROMOTED | KERNEL | WATCHED | CLOSED | kept, Ordering::Release);
    });
    rx.lowat.store(0, Ordering::Release);
    // SAFETY: plain integers; nobody uses the halves of a connection that no number leads to yet.
    unsafe {
        core::ptr::write_bytes(rx.cursor.get(), 0, 1);
        core::ptr::write_bytes(tx.cursor.get(), 0, 1);
    }
}

/// The numbers lead to it by now.
pub(crate) fn opened(endpoint: &Endpoint) {
    word(endpoint).inspect(|word| _ = word.fetch_and(!(WATCHED | CLOSED), Ordering::AcqRel));
    cold::of(endpoint).closer.store(0, Ordering::Release);
}

pub(super) fn own_side(endpoint: &Endpoint) -> Side {
    if endpoint.side.load(Ordering::Relaxed) == Side::A as u8 { Side::A } else { Side::B }
}

/// What the sender does next; for who has the token.
///
/// The peer can write this end's word of the slot as well. So what is noted here is not looked up there: a half that has gone over, and one
/// that has left.
pub(crate) fn next_of_sender(endpoint: &Endpoint, is_open: bool) -> Send {
    if endpoint.state_now() == State::Kernel {
        return Send::Kernel;
    }
    let noted = word(endpoint).map_or(TX_KERNEL | NEVER, |word| word.load(Ordering::Acquire));
    let (mut own, mut peer) = (endpoint.own_words().road(), endpoint.peer_words().road());
    if is_far(endpoint) {
        [own, peer] = between_hosts(own, peer);
    } else {
        // A lie, which would keep it in the ring.
        (own.0, peer.0) = (own.0 & !RoadWord::BROKEN.0, peer.0 & !RoadWord::BROKEN.0);
    }
    next_as_noted(noted, is_open, own, peer)
}

fn next_as_noted(noted: u32, is_open: bool, own: RoadWord, peer: RoadWord) -> Send {
    let (has_left, is_there) = (noted & TX_LEFT != 0, noted & (TX_KERNEL | TX_LEFT) == 0);
    let own = if has_left || is_there { own | RoadWord::SWITCHED } else { own };
    let own = if is_there { RoadWord(own.0 & !RoadWord::LEFT.0) } else { own };
    match send(own, peer, is_open && noted & NEVER == 0) {
        // There is nothing to write into.
        Send::Ring | Send::Leave if has_left => Send::Kernel,
        next => next,
    }
}

/// What is sent stays the kernel's: something goes there of which a position in the stream says nothing.
pub(crate) fn stay(endpoint: &Endpoint) {
    word(endpoint).inspect(|word| _ = word.fetch_or(NEVER, Ordering::AcqRel));
}

/// From here on what is sent goes into the ring. For who has the token, and is sure that nobody else writes. False: it cannot be said
/// where that is. P is written before it is said that it holds (`SlotSide::say` is a release), and read after (`left_in_kernel`).
pub(crate) fn switch(endpoint: &'static Endpoint, fd: i32) -> bool {
    let Some(word) = word(endpoint) else { return false };
    let active = word.load(Ordering::Relaxed) & ACTIVE != 0;
    let (Some(channel), Ok(sent)) = (endpoint.channel_ref(), sd_sys::tcp::sent(fd, active)) else {
        return false;
    };
    let names = channel.map.names(usize::from(endpoint.slot.load(Ordering::Relaxed)));
    names.switched_at(own_side(endpoint)).store(sent, Ordering::Relaxed);
    endpoint.own_words().say(RoadWord::SWITCHED);
    has_switched(endpoint);
    true
}

/// It is noted for the threads and processes that share the connection.
pub(crate) fn has_switched(endpoint: &Endpoint) {
    leave_kernel(endpoint, TX_KERNEL);
}

/// What the kernel's connection has for the receiver, who has the half's token, or only wants a hint. `waiting`: so many bytes lay there,
/// when that was asked before this call. What came since may already stand behind what lies in the ring.
pub(crate) fn next_of_receiver(endpoint: &'static Endpoint, fd: i32, waiting: u64) -> Receive {
    if is_by_kernel(endpoint, RX_LEFT) {
        // The marker was read; there may be no slot any more.
        return Receive::Kernel(u64::MAX);
    }
    let peer = endpoint.peer_words().road();
    let mut at = Position { waiting, read: 0, switched_at: 0, marker: false, ended: false };
    if peer.has(RoadWord::SWITCHED) {
        // It changes all the time; whose bytes these are will be seen.
        let Some(positions) = positions(endpoint, fd) else { return Receive::Kernel(0) };
        (at.switched_at, at.read) = positions;
    }
    receive(peer, at)
}

/// What follows for the receiver that has read the kernel's stream to its end, of a connection that has its slot. For who has the half's token.
pub(crate) fn next_at_end(endpoint: &Endpoint, fd: i32) -> Receive {
    let peer = endpoint.peer_words().road();
    let marker = !peer.has(RoadWord::RESUME);
    match positions(endpoint, fd) {
        Some((switched_at, read)) => {
            receive(peer, Position { waiting: 0, read, switched_at, marker, ended: true })
        }
        None => Receive::Kernel(0),
    }
}

/// The peer's P, and how many bytes were read of the kernel's stream.
pub(super) fn positions(endpoint: &Endpoint, fd: i32) -> Option<(u64, u64)> {
    let names = endpoint.channel_ref()?.map.names(usize::from(endpoint.slot.load(Ordering::Relaxed)));
    let switched_at = names.switched_at(own_side(endpoint).other()).load(Ordering::Relaxed);
    let switched_at = as_received(endpoint, fd, switched_at).ok()?;
    let counted = cold::of(endpoint).stream_read.load(Ordering::Relaxed);
    Some((switched_at, sd_sys::tcp::read(fd, switched_at, counted).ok()?))
}

/// So many bytes more were read of the kernel's stream; for who has the receiving half's token. Who dies before that leaves a number that
/// is wrong, and hardly ever needed ([`sd_sys::tcp::read`]).
pub(crate) fn has_read(endpoint: &Endpoint, bytes: usize) {
    let count = &cold::of(endpoint).stream_read;
    count.store(count.load(Ordering::Relaxed).wrapping_add(bytes as u32), Ordering::Relaxed);
}

/// A place in what the other end sends, as it counts, as this end's kernel counts what it has received. The counts are the same, but for
/// connections of which an end was restored, whose kernel began anew: then both are known modulo 2^32, and less than 2^31 apart.
fn as_received(endpoint: &Endpoint, fd: i32, sent: u64) -> sd_sys::Result<u64> {
    let behind = cold::of(endpoint).messages.load(Ordering::Relaxed);
    if behind == 0 {
        return Ok(sent);
    }
    let received = sd_sys::tcp::info(fd)?.received;
    let ahead = (sent as u32).wrapping_add(behind).wrapping_sub(received as u32);
    Ok(received.wrapping_add(i64::from(ahead as i32) as u64))
}

/// From here on what comes is in the ring. For who has the receiving half's token.
pub(crate) fn arrive(endpoint: &Endpoint) {
    leave_kernel(endpoint, RX_KERNEL);
}

/// A direction is not the kernel's any more.
fn leave_kernel(endpoint: &Endpoint, which: u32) {
    let before = word(endpoint).map(|word| word.fetch_and(!which, Ordering::AcqRel));
    // The last one.
    if before.is_some_and(|before| before & KERNEL == which) {
        crate::socket::history::moved(endpoint, Moved::Promoted);
    }
}

/// What a connection of the kernel's is not offered for, the first time and after many; in tests.
const PAUSE_MS: [u32; 2] = [1_000, 60_000];
const TEST_PAUSE_MS: u32 = 5;
/// Beside the length of a pause: it is over.
pub(crate) const PAUSED_BEFORE: u32 = 1 << 31;
/// While there is no monitor.
const NO_MONITOR_MS: u32 = 300;

/// It was refused, or has gone back: it is not offered for a while, longer each time. What has gone back for what it is itself stays so for the longest.
pub(crate) fn put_off(cold: &Cold) {
    let before = cold.pause_ms.load(Ordering::Relaxed) & !PAUSED_BEFORE;
    let moved = Moved::from_u32(cold.road_moved.load(Ordering::Relaxed).into());
    let longer = match before {
        _ if matches!(moved, Moved::Bulk | Moved::Woken | Moved::Slower) => PAUSE_MS[1],
        0 => PAUSE_MS[0],
        before => (before * 2).min(PAUSE_MS[1]),
    };
    let pause = if promotes() == Promotes::All { TEST_PAUSE_MS } else { longer };
    cold.pause_ms.store(pause, Ordering::Relaxed);
    cold.looked_at_ms.store(now_ms(), Ordering::Relaxed);
}

/// There is no monitor that it could be offered to.
pub(crate) fn await_monitor(cold: &Cold) {
    cold.pause_ms.store(NO_MONITOR_MS, Ordering::Relaxed);
    cold.looked_at_ms.store(now_ms(), Ordering::Relaxed);
}

/// The monitor is another than the one that it was offered to, which has not found the other end.
pub(crate) fn offer_anew(endpoint: &Endpoint) {
    let Some(word) = word(endpoint) else { return };
    let cold = cold::of(endpoint);
    word.fetch_and(!OFFERED, Ordering::AcqRel);
    cold.pause_ms.store(0, Ordering::Relaxed);
    cold.looked_at_ms.store(now_ms(), Ordering::Relaxed);
}

/// Bytes that the kernel's connection has carried in both directions, about.
pub(crate) fn carried(fd: i32) -> u64 {
    sd_sys::tcp::info(fd).map_or(0, |info| info.acked.saturating_add(info.received))
}

/// What the monitor says.
#[inline]
pub(crate) fn promotes() -> Promotes {
    Promotes::from_u32(PROCESS.header().promotes.load(Ordering::Relaxed))
}

/// Now, as [`Cold::looked_at_ms`] has it.
pub(crate) fn now_ms() -> u32 {
    (sd_sys::time::now_ns() / 1_000_000) as u32
}

/// It is a connection of the kernel's again, and all that leads to it knows that.
pub(crate) fn opened_to_kernel(endpoint: &Endpoint) {
    let cold = cold::of(endpoint);
    cold.messages.store(0, Ordering::Relaxed);
    let carried = carried(endpoint.fd.load(Ordering::Relaxed)) >> 10;
    cold.stream_read.store(carried.min(u64::from(u32::MAX)) as u32, Ordering::Relaxed);
    put_off(cold);
    let awaits = match Moved::from_u32(cold.road_moved.load(Ordering::Relaxed).into()) {
        Moved::Few => Awaits::Few,
        Moved::Bulk => Awaits::Small,
        Moved::Sparse => Awaits::Rate,
        Moved::Slower => Awaits::Faster,
        _ => Awaits::Messages,
    };
    crate::socket::history::awaits(endpoint, awaits);
    word(endpoint).inspect(|word| _ = word.fetch_and(!CLOSED, Ordering::AcqRel));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a peer writes into both words: who has left does not go back to the ring, and who is there does not leave it without a
    /// marker.
    #[test]
    fn a_peer_that_writes_both_words_moves_nobody() {
        const ALL: u32 = 1 << 9;
        for (own, peer) in (0..ALL).flat_map(|own| (0..ALL).map(move |peer| (RoadWord(own), RoadWord(peer))))
        {
            let next = |noted| next_as_noted(noted, true, own, peer);
            let left = next(TX_KERNEL | TX_LEFT);
            assert!(matches!(left, Send::Kernel | Send::Mark | Send::Resend), "{own:?} {peer:?}: {left:?}");
            let there = next(0);
            assert!(
                !matches!(there, Send::Switch | Send::Decline | Send::Kernel),
                "{own:?} {peer:?}: {there:?}"
            );
        }
    }
}
