//! Readiness of a connection of which a direction is the kernel's still (`socket::road`).
//!
//! It has two parts: what the kernel's connection says, and what the ring does. An epoll instance of the kernel's tells the first,
//! the library's registrations tell the second; whoever looks at the connection itself wants both.

use crate::socket::apart;
use crate::socket::endpoint::{EOF, EndpointExt, PeerEnd, SHUT_WR, peer_end};
use crate::socket::far_end;
use crate::socket::road::{self, KERNEL, RX_KERNEL, TX_KERNEL};
use core::sync::atomic::Ordering;
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use sd_ring::Next;
use sd_ring::road::{Receive, RoadWord};
use sd_shm::channel::FLAG_FIN;
use sd_shm::slab::{Endpoint, State};

/// Events of the receiving half, and of the sending half.
const RX: u32 = (EPOLLIN | EPOLLRDNORM | EPOLLPRI | EPOLLRDHUP) as u32;
const TX: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;
const IN: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const END: u32 = EPOLLRDHUP as u32;
const ENDS: u32 = (EPOLLERR | EPOLLHUP) as u32;

/// The directions that are the kernel's; zero: it is like any other connection.
pub(crate) fn directions(endpoint: &Endpoint) -> u32 {
    if endpoint.state_now() != State::Connected {
        return 0;
    }
    road::word(endpoint).map_or(0, |word| word.load(Ordering::Acquire) & KERNEL)
}

/// Those that the kernel is asked about. A sending direction that is shut down has nothing more to tell: only EPOLLHUP comes, for whatever is
/// asked, when the peer's stream has ended in the kernel's connection too. Where that stream is the ring's it may have to be heard of there first, and
/// who reads would find no end yet; tcp_poll() never says EPOLLHUP without one.
pub(crate) fn watched(endpoint: &Endpoint) -> u32 {
    match directions(endpoint) {
        TX_KERNEL if endpoint.flag(SHUT_WR) => 0,
        directions => directions,
    }
}

/// Those of the `events` that the kernel's connection is watched for.
pub(crate) fn of_kernel(directions: u32, events: u32) -> u32 {
    let rx = if directions & RX_KERNEL != 0 { 0 } else { RX };
    let tx = if directions & TX_KERNEL != 0 { 0 } else { TX };
    events & !(rx | tx)
}

/// What the kernel's connection says now.
pub(crate) fn kernel_part(endpoint: &'static Endpoint) -> u32 {
    let directions = watched(endpoint);
    let Some(fd) = road::number(endpoint).filter(|_| directions != 0) else { return 0 };
    let found = sd_sys::fd::poll_one(fd, (RX | TX) as i16, 0).map_or(0, |events| u32::from(events as u16));
    let mut part = 0;
    if directions & RX_KERNEL != 0 && road::next_of_receiver(endpoint, fd, 0) != Receive::Ring {
        part |= found & (RX | ENDS);
    }
    if directions & TX_KERNEL != 0 {
        part |= found & (TX | ENDS);
    }
    part
}

/// What the ring says, of which `mask` is what it would say if both directions were there.
pub(super) fn ring_part(endpoint: &'static Endpoint, directions: u32, mask: impl FnOnce() -> u32) -> u32 {
    match directions {
        KERNEL => incoming(endpoint),
        RX_KERNEL => incoming(endpoint) | mask() & TX,
        _ => mask() & !TX,
    }
}

/// What has come in the ring. Data are news also where the kernel's connection has some that nobody has read, but not while bytes in front of
/// them are under way there: a read would find nothing, which who was told of some takes for an error (wrk). An end is told where nothing in
/// front of it is under way.
fn incoming(endpoint: &'static Endpoint) -> u32 {
    let Some(fd) = road::number(endpoint) else { return 0 };
    let next = road::next_of_receiver(endpoint, fd, 0);
    let both = if endpoint.flag(SHUT_WR) { EPOLLHUP as u32 } else { 0 };
    let end = IN | END | both;
    let is_next = next == Receive::Ring;
    let all_has_come = match next {
        Receive::Kernel(left) if left != u64::MAX => sd_sys::tcp::unread(fd).is_ok_and(|bytes| bytes >= left),
        _ => is_next,
    };
    if all_has_come && has_ended_in_ring(endpoint) || has_believed_end(endpoint, fd) {
        return end;
    }
    let mut rx = crate::socket::parked::receiver_now(endpoint);
    match apart::next(endpoint, &mut rx) {
        Ok(Next::Data { .. } | Next::Urgent) if is_next || sd_sys::tcp::unread(fd) != Ok(0) => IN,
        _ if !is_next => 0,
        Ok(Next::Empty) if peer_end(endpoint) == PeerEnd::Open => 0,
        _ => end,
    }
}

/// The end of the peer's stream, where it has come in the kernel's connection, and the ring has bytes that go before it.
pub(super) fn end_behind_ring(endpoint: &'static Endpoint, directions: u32) -> u32 {
    let has_left = || endpoint.peer_words().road().has(RoadWord::SWITCHED | RoadWord::LEFT);
    if directions & RX_KERNEL != 0 || !road::is_promoted(endpoint) || !has_left() {
        return 0;
    }
    let found = road::number(endpoint).map(|fd| sd_sys::fd::poll_one(fd, END as i16, 0));
    let has_ended = matches!(found, Some(Ok(events)) if u32::from(events as u16) & END != 0);
    let both = if endpoint.flag(SHUT_WR) { EPOLLHUP as u32 } else { 0 };
    if has_ended { IN | END | both } else { 0 }
}

/// Between hosts: the kernel's stream has ended, and by now it was heard that nothing follows in the ring. Who has read before that has found nothing,
/// and the kernel's instances tell an edge once.
fn has_believed_end(endpoint: &Endpoint, fd: i32) -> bool {
    let road = endpoint.peer_words().road();
    road::is_before_ring(endpoint)
        && road.has(RoadWord::ATTACHED)
        && !road.has(RoadWord::SWITCHED)
        && !endpoint.flag(EOF)
        && road::is_far(endpoint)
        && !far_end::is_untold(endpoint)
        && sd_sys::tcp::unread(fd) == Ok(0)
        && sd_sys::tcp::has_ended(fd)
}

/// The peer has sent its last byte in the ring, and its end behind it.
fn has_ended_in_ring(endpoint: &Endpoint) -> bool {
    let peer = endpoint.peer_words();
    let road = peer.road();
    let is_there = road.has(RoadWord::SWITCHED) && !road.has(RoadWord::RESUME);
    is_there && peer.flags.load(Ordering::Acquire) & FLAG_FIN != 0
}
