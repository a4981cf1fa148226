//! A connection goes back from its slot's rings to the kernel's connection, each direction for itself, at an exact byte (ADR 83).
//!
//! ```text
//!  sender    ring ── LEAVING ── marker ── LEFT ──> kernel          receiver   ring ── reads the marker ──> kernel
//! ```
//! What is next [`sd_ring::road`] says; here it is done, under the token of the half. A half that has left looks parked, as in the beginning, and
//! stays so: the short ways of send and recv find nothing there, and who takes its token asks the roads. Who dies between two steps
//! leaves a word from which the next one goes on.
//!
//! Who holds a token may not tell instances of epoll, so that is noted ([`MOVED`]) and done by `epoll::way_back`.

use crate::process::{PROCESS, waker};
use crate::socket::apart;
use crate::socket::bell::{self, ALL_BITS, notify};
use crate::socket::endpoint::{EndpointExt, PEER_DEAD, PeerEnd, RESET, SHUT_RD, SHUT_WR, peer_end};
use crate::socket::errors::keep_end;
use crate::socket::parked::{leave_rx, leave_tx, receiver_now};
use crate::socket::road::{self, KEPT, MOVED, RX_KERNEL, RX_LEFT, TX_KERNEL, TX_LEFT, is_by_kernel, word};
use crate::socket::{beneath, broken, history, resend};
use core::sync::atomic::Ordering;
use sd_ring::road::{RoadWord, Send, is_over as is_slot_over, leaving};
use sd_ring::{Next, RxCursor, TxCursor};
use sd_shm::channel::{FLAG_DEAD, FLAG_FIN, FLAG_RESET, SlotState};
use sd_shm::promotion::{FLAG_BROKEN, FLAG_LEFT, FLAG_SWITCHED, FLAG_WANTS_KERNEL, FLAGS_BACK};
use sd_shm::slab::{Endpoint, Moved, State};
use sd_sys::Errno;

/// The connection is to go back, in both directions. [`step`] follows.
pub(crate) fn wish(endpoint: &Endpoint) {
    endpoint.own_words().say(RoadWord::WANTS_KERNEL);
    notify(endpoint, ALL_BITS);
}

/// Either side has said something of the way back.
#[inline(always)]
pub(crate) fn is_begun(endpoint: &Endpoint) -> bool {
    let peer = endpoint.peer_words();
    let flags = peer.flags.load(Ordering::Acquire) | peer.other().flags.load(Ordering::Relaxed);
    flags & FLAGS_BACK != 0 && road::is_promoted(endpoint)
}

/// The peer of a connection to another host has gone over to its ring, and a direction is the kernel's: there is something to do.
#[inline(always)]
pub(crate) fn is_half_there(endpoint: &Endpoint) -> bool {
    endpoint.peer_words().flags.load(Ordering::Acquire) & FLAG_SWITCHED != 0 && broken::is_half(endpoint)
}

/// The road to another host is gone, and this end has not begun to see to that: for who has just said that he waits.
#[inline(always)]
pub(crate) fn is_broken(endpoint: &Endpoint) -> bool {
    endpoint.peer_words().flags.load(Ordering::Acquire) & FLAG_BROKEN != 0 && broken::is_new(endpoint)
}

/// Either, for who has just said that he waits for something to read.
#[inline(always)]
pub(crate) fn is_due_now(endpoint: &Endpoint) -> bool {
    is_wanted_by_peer(endpoint) && is_due(endpoint) || is_broken(endpoint)
}

/// The road to another host is gone, and that is no end of the connection.
pub(crate) fn is_mended(endpoint: &Endpoint) -> bool {
    broken::is_gone(endpoint)
}

/// In a call that finds nothing, and does not wait: the road may be gone, and nobody else may see to that.
#[inline(always)]
pub(crate) fn may_be_broken(endpoint: &Endpoint) -> bool {
    endpoint.peer_words().flags.load(Ordering::Relaxed) & FLAG_BROKEN != 0 && broken::is_gone(endpoint)
}

/// The sending direction has something to do for the way back, and it was not begun: for who has just said that he waits, since what the peer said
/// before that was announced to nobody.
#[cold]
pub(crate) fn is_due(endpoint: &Endpoint) -> bool {
    !is_by_kernel(endpoint, TX_LEFT) && is_leaving(endpoint)
}

/// The sending direction has something to do for the way back.
pub(crate) fn is_leaving(endpoint: &Endpoint) -> bool {
    let is_open = endpoint.state_now() == State::Connected && !endpoint.flag(RESET);
    is_open
        && road::is_promoted(endpoint)
        && matches!(
            road::next_of_sender(endpoint, false),
            Send::Decline | Send::Leave | Send::Mark | Send::Resend
        )
}

/// The peer wants what is sent to go through the kernel.
#[inline(always)]
pub(crate) fn is_wanted_by_peer(endpoint: &Endpoint) -> bool {
    endpoint.peer_words().flags.load(Ordering::Acquire) & FLAG_WANTS_KERNEL != 0
        && road::is_promoted(endpoint)
}

/// Both directions do what is next for them, as far as that is the way back. Not for who has a token. True: instances of epoll
/// are to be told.
pub(crate) fn step(endpoint: &'static Endpoint) -> bool {
    if !road::is_promoted(endpoint) {
        return false;
    }
    step_tx(endpoint);
    step_rx(endpoint);
    take_moved(endpoint)
}

/// Instances of epoll are to be told of a direction; the caller does it.
pub(crate) fn take_moved(endpoint: &Endpoint) -> bool {
    word(endpoint).is_some_and(|word| word.fetch_and(!MOVED, Ordering::AcqRel) & MOVED != 0)
}

fn step_tx(endpoint: &'static Endpoint) {
    let mut half = endpoint.tx_token();
    if endpoint.state_now() == State::Connected && !endpoint.flag(RESET) {
        leave(endpoint, half.cursor());
    }
}

/// For who has the sending half's token: it leaves the ring, if it is to.
pub(crate) fn leave(endpoint: &'static Endpoint, tx: &mut TxCursor) {
    loop {
        match road::next_of_sender(endpoint, false) {
            Send::Decline => return say_left(endpoint),
            Send::Leave => _ = endpoint.own_words().decide(leaving),
            Send::Mark => {
                note_first(endpoint);
                leave_tx(endpoint, tx, true);
                return say_left(endpoint);
            }
            Send::Resend => {
                note_first(endpoint);
                leave_tx(endpoint, tx, false);
                resend::go_on(endpoint);
                return;
            }
            _ => return,
        }
    }
}

/// For `sd ss`: a direction goes back, of a connection whose both were there.
fn note_first(endpoint: &Endpoint) {
    let why = match endpoint.own_words().road().has(RoadWord::WANTS_KERNEL) {
        _ if broken::is_begun(endpoint) => Moved::Failed,
        true => history::why_it_leaves(endpoint),
        false => history::why_the_peer_wishes(endpoint.peer_words().flags.load(Ordering::Acquire)),
    };
    note_first_as(endpoint, why);
}

/// See [`note_first`].
pub(super) fn note_first_as(endpoint: &Endpoint, why: Moved) {
    if !is_by_kernel(endpoint, RX_KERNEL | TX_KERNEL) {
        history::moved(endpoint, why);
    }
}

/// What is sent is in the kernel's stream from here on, and the peer is told.
#[cold]
pub(crate) fn say_left(endpoint: &Endpoint) {
    if endpoint.flag(SHUT_WR) {
        // In the ring an end stands where the marker would.
        shut_kernels(endpoint, libc::SHUT_WR);
    }
    endpoint.own_words().say(RoadWord::LEFT);
    notify(endpoint, ALL_BITS);
    tell_self(endpoint);
}

/// shutdown(2) of the kernel's connection.
pub(crate) fn shut_kernels(endpoint: &Endpoint, how: i32) {
    if let Some(fd) = road::number(endpoint) {
        // SAFETY: no pointers.
        unsafe { sd_sys::syscall!(libc::SYS_shutdown, fd, how) };
    }
}

fn step_rx(endpoint: &'static Endpoint) {
    let mut half = endpoint.rx_token();
    if endpoint.state_now() != State::Connected || is_by_kernel(endpoint, RX_KERNEL) {
        return;
    }
    let rx = half.cursor();
    let found = apart::next(endpoint, rx);
    meet(endpoint, rx, found.ok());
}

/// For who has the receiving half's token, and has found this in the ring: whether what comes is in the kernel's connection from here on.
pub(crate) fn meet(endpoint: &Endpoint, rx: &mut RxCursor, found: Option<Next>) -> bool {
    let has_left = || endpoint.peer_words().flags.load(Ordering::Acquire) & FLAG_LEFT != 0;
    let ends = match found {
        Some(Next::Marker) => true,
        // The kernel's connection tells the same end.
        Some(Next::Fin) => has_left(),
        _ => false,
    };
    if !ends || !road::is_promoted(endpoint) {
        return false;
    }
    if let Some(consumed) = rx.credit_all() {
        endpoint.own_words().consumed.store(consumed, Ordering::Release);
    }
    note_first(endpoint);
    leave_rx(endpoint);
    if endpoint.flag(SHUT_RD) {
        shut_kernels(endpoint, libc::SHUT_RD);
    }
    tell_self(endpoint);
    true
}

/// Threads that wait for the connection look again, in this process and in relatives that share it; in each, one of them tells the instances
/// of epoll.
#[cold]
pub(crate) fn tell_self(endpoint: &Endpoint) {
    bell::wake_sleepers(endpoint);
    bell::announce_to_self(endpoint);
    if !is_held_alone(endpoint) {
        waker::event_fds().for_each(sd_sys::fd::eventfd_signal);
    }
}

/// No other process has the connection.
pub(crate) fn is_held_alone(endpoint: &Endpoint) -> bool {
    PROCESS
        .locate(endpoint)
        .is_some_and(|(rec, _)| endpoint.holders.load(Ordering::Acquire) == rec.bit.load(Ordering::Relaxed))
}

/// This end has no use for the slot any more, whatever the other one has still to do.
pub(crate) fn has_left(endpoint: &Endpoint) -> bool {
    endpoint.state_now() == State::Connected
        && is_by_kernel(endpoint, RX_LEFT)
        && is_by_kernel(endpoint, TX_KERNEL)
        && endpoint.own_words().road().has(RoadWord::LEFT)
}

/// From one [`notes_death`] of who waits to the next, at first and at most.
pub(crate) const LOOK_FOR_DEATH_NS: (u64, u64) = (250_000_000, 16_000_000_000);

/// The kernel's connection has ended, and the peer, which sends into the ring, has said of no end: it is dead, which the monitor, if there is one, says as
/// well. True: that was noted.
#[cold]
pub(crate) fn notes_death(endpoint: &Endpoint) -> bool {
    let peer = endpoint.peer_words();
    let sends_there = peer.road().has(RoadWord::SWITCHED)
        && !peer.road().has(RoadWord::LEFT)
        && peer.flags.load(Ordering::Acquire) & FLAG_FIN == 0;
    let is_open = endpoint.state_now() == State::Connected && peer_end(endpoint) == PeerEnd::Open;
    if !is_open || !sends_there || broken::is_gone(endpoint) {
        return false;
    }
    // Between hosts bytes may still be on their way, and the engine tells of the death behind them; of its own the monitor tells. But not
    // of what the program has asked the kernel to find out.
    let is_far = endpoint.channel_ref().is_some_and(|channel| !channel.link.sends_again());
    let is_told = is_far && crate::monitor::client::is_there();
    if is_told && is_by_kernel(endpoint, KEPT) {
        return false;
    }
    let Some(fd) = road::number(endpoint) else { return false };
    let events = sd_sys::fd::poll_one(fd, libc::POLLRDHUP, 0).unwrap_or(0);
    if events == 0 {
        return false;
    }
    let of_kernel = || match events & libc::POLLERR {
        0 => 0,
        _ => sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0),
    };
    let error = if is_told { beneath::finds_nobody(fd).map(|errno| errno.0) } else { Some(of_kernel()) };
    let Some(error) = error else { return false };
    // Of what was on its way nobody is left to tell, so an end would be a lie.
    let was_reset = is_far || error == libc::ECONNRESET;
    if is_far {
        keep_end(endpoint, Errno(error));
    }
    peer.flags.fetch_or(if was_reset { FLAG_DEAD | FLAG_RESET } else { FLAG_DEAD }, Ordering::AcqRel);
    endpoint.set_flag(PEER_DEAD);
    tell_self(endpoint);
    true
}

/// Nothing is unread but the marker that the peer, which is leaving, is about to write.
pub(crate) fn is_peer_leaving(endpoint: &'static Endpoint) -> bool {
    if endpoint.state_now() != State::Connected || is_by_kernel(endpoint, RX_LEFT) {
        return false;
    }
    let is_read =
        matches!(apart::next(endpoint, &mut receiver_now(endpoint)), Ok(Next::Empty | Next::Marker));
    is_read && endpoint.peer_words().road().has(RoadWord::LEAVING)
}

/// Nothing comes, or goes, through the slot any more.
pub(crate) fn is_over(endpoint: &Endpoint) -> bool {
    let Some(road) = word(endpoint).map(|word| word.load(Ordering::Acquire)) else { return false };
    if endpoint.state_now() != State::Connected || road & (RX_KERNEL | TX_KERNEL) != RX_KERNEL | TX_KERNEL {
        return false;
    }
    let (own, peer) = (endpoint.own_words(), endpoint.peer_words());
    let is_refused = peer.state() == (endpoint.generation.load(Ordering::Relaxed), SlotState::Refused);
    is_refused || is_slot_over(own.road(), peer.road(), road & RX_LEFT != 0) && broken::has_come(endpoint)
}
