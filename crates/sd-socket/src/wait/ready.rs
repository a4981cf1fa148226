//! What poll(2) would say of a socket of ours, after Linux' tcp_poll().

use crate::process::PROCESS;
use crate::socket::apart;
use crate::socket::endpoint::{
    EOF, EndpointExt, NO_SPACE, PEER_DEAD, PeerEnd, RESET, SHUT_RD, SHUT_WR, ZERO_COPY,
};
use crate::socket::errors::note_end;
use crate::socket::parked::is_parked;
use crate::socket::token::{Quick, Rx};
use crate::socket::way_back;
use crate::wait::by_kernel;
use core::sync::atomic::Ordering;
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use sd_ring::token::Way;
use sd_ring::{Next, doorbell};
use sd_shm::channel::{
    FLAG_DEAD, FLAG_FIN, FLAG_READS_NO_MORE, FLAG_RESET, FLAG_URGENT, FLAG_WANTS_STAMPS, GEOMETRY, SlotState,
};
use sd_shm::promotion::{FLAG_LEFT, FLAG_WANTS_KERNEL};
use sd_shm::slab::{Endpoint, FIXED_BUF, State};
use sd_sys::time::ticks;

const IN: u32 = (EPOLLIN | EPOLLRDNORM) as u32;
const OUT: u32 = (EPOLLOUT | EPOLLWRNORM) as u32;

/// Those of the `wanted` events that hold now, level-wise. What the kernel alone knows, a listener's kernel backlog, is not looked at.
#[inline]
pub(crate) fn mask(endpoint: &'static Endpoint, wanted: u32) -> u32 {
    match usual_mask(endpoint, wanted) {
        Some(mask) => mask & wanted,
        None => full_mask(endpoint) & wanted,
    }
}

/// The mask of a connection on which nothing has ended, failed or is urgent. `None`: it is not one.
#[inline(always)]
fn usual_mask(endpoint: &'static Endpoint, wanted: u32) -> Option<u32> {
    if endpoint.state_now() != State::Connected {
        return None;
    }
    let peer = endpoint.peer_words();
    let unusual = endpoint.flags.load(Ordering::Relaxed)
        & (SHUT_RD | SHUT_WR | EOF | RESET | ZERO_COPY | PEER_DEAD)
        | peer.flags.load(Ordering::Acquire)
            & (FLAG_RESET
                | FLAG_DEAD
                | FLAG_FIN
                | FLAG_READS_NO_MORE
                | FLAG_URGENT
                | FLAG_WANTS_KERNEL
                | FLAG_LEFT)
        | endpoint.error.load(Ordering::Relaxed) as u32;
    // The lowest byte is the state.
    let is_over = peer.state.load(Ordering::Acquire) as u8 > SlotState::Open as u8;
    if unusual != 0 || is_over {
        return None;
    }
    let has_data = {
        let mut half: Quick<Rx> = Quick::take(endpoint)?;
        if endpoint.rx().lowat.load(Ordering::Relaxed) != 1 {
            return None;
        }
        half.cursor().is_at_data(&GEOMETRY, &endpoint.rx_mem())?
    };
    let has_room = wanted & OUT != 0 && has_space(endpoint);
    Some(if has_data { IN } else { 0 } | if has_room { OUT } else { 0 })
}

#[inline(never)]
fn full_mask(endpoint: &'static Endpoint) -> u32 {
    match endpoint.state_now() {
        State::Connected => {
            if way_back::is_wanted_by_peer(endpoint) && way_back::is_due(endpoint) {
                way_back::tell_self(endpoint);
            }
            let directions = by_kernel::watched(endpoint);
            let mask = match directions {
                0 => connected_mask(endpoint),
                _ => by_kernel::ring_part(endpoint, directions, || connected_mask(endpoint)),
            } | by_kernel::end_behind_ring(endpoint, directions);
            // Nothing that was seen counts of one that went to the kernel meanwhile.
            if crate::socket::kernel_socket::is_moved(endpoint) { 0 } else { mask }
        }
        State::Listen if crate::backlog::listener::has_pending(endpoint) => IN,
        State::Fresh | State::Bound => {
            let read_end = if endpoint.flag(SHUT_RD) { IN | EPOLLRDHUP as u32 } else { 0 };
            let error = if endpoint.error.load(Ordering::Relaxed) != 0 { EPOLLERR as u32 } else { 0 };
            OUT | EPOLLHUP as u32 | read_end | error
        }
        State::Failed => {
            let error = endpoint.error.load(Ordering::Relaxed) != 0;
            IN | OUT | (EPOLLHUP | EPOLLRDHUP | if error { EPOLLERR } else { 0 }) as u32
        }
        _ => 0,
    }
}

fn connected_mask(endpoint: &'static Endpoint) -> u32 {
    let found = look(endpoint);
    if found.is_err() && !endpoint.flag(RESET) {
        crate::socket::endpoint::corrupt(endpoint);
    }
    let end = note_end(endpoint);
    if found == Ok(Next::Fin) {
        endpoint.set_flag(EOF);
    }
    let data = matches!(found, Ok(Next::Data { .. } | Next::Urgent));
    let reset = endpoint.flag(RESET) || end == PeerEnd::Reset;
    let ended = crate::socket::endpoint::peer_finished(endpoint);
    let mut mask = 0;
    let lowat = endpoint.rx().lowat.load(Ordering::Relaxed) as usize;
    let one_is_enough = lowat <= 1 && found != Ok(Next::Urgent);
    if data && (one_is_enough || crate::socket::ring_view::data_bytes(endpoint) >= lowat.max(1)) {
        mask |= IN;
    }
    if ended || reset || endpoint.flag(SHUT_RD) {
        mask |= IN | EPOLLRDHUP as u32;
    }
    if reset || ((ended || endpoint.flag(SHUT_RD)) && endpoint.flag(SHUT_WR)) {
        mask |= EPOLLHUP as u32;
    }
    // Nobody makes room any more: a send does not wait for it.
    if reset || end == PeerEnd::Gone || endpoint.flag(SHUT_WR) || has_space(endpoint) {
        mask |= OUT;
    }
    if crate::socket::ring_view::is_pending(endpoint) {
        mask |= EPOLLPRI as u32;
    }
    if endpoint.error.load(Ordering::Relaxed) != 0 || crate::socket::cold::has_notices(endpoint) {
        mask |= EPOLLERR as u32;
    }
    mask
}

fn look(endpoint: &'static Endpoint) -> Result<Next, sd_ring::Corrupt> {
    let mut half = endpoint.rx_token();
    if is_parked(endpoint, Way::Receive) {
        return Ok(Next::Empty);
    }
    // The copy is thrown away.
    let mut rx = *half.cursor();
    let found = apart::next(endpoint, &mut rx);
    let went =
        matches!(found, Ok(Next::Marker | Next::Fin)) && way_back::meet(endpoint, half.cursor(), found.ok());
    if went { Ok(Next::Empty) } else { found }
}

/// The time at which what can be received now was sent, if its sender said so.
pub(crate) fn sent(endpoint: &'static Endpoint) -> Option<u64> {
    if endpoint.state_now() != State::Connected {
        return None;
    }
    let mut half = endpoint.rx_token();
    if is_parked(endpoint, Way::Receive) {
        return None;
    }
    // The copy is thrown away.
    let mut rx = *half.cursor();
    match apart::next(endpoint, &mut rx) {
        Ok(Next::Data { .. } | Next::Urgent | Next::Fin) => {
            sd_ring::stamp::time(apart::stamp(endpoint, &rx), ticks())
        }
        _ => None,
    }
}

/// Asks the peer to say when it sends.
pub(crate) fn want_stamps(endpoint: &Endpoint) {
    let flags = &endpoint.own_words().flags;
    if flags.load(Ordering::Relaxed) & FLAG_WANTS_STAMPS == 0 {
        flags.fetch_or(FLAG_WANTS_STAMPS, Ordering::AcqRel);
    }
}

/// Linux calls a socket writable when at least a third of its buffer is free.
fn has_space(endpoint: &'static Endpoint) -> bool {
    let mut half = endpoint.tx_token();
    let tx = half.cursor();
    if tx.is_parked() {
        // The kernel's.
        return false;
    }
    let grows = !endpoint.flag(FIXED_BUF);
    if tx.is_roomy(&GEOMETRY, grows, sd_sys::budget::may_take) {
        return true;
    }
    let _ = tx.credit(endpoint.peer_words().consumed.load(Ordering::Acquire));
    tx.is_roomy(&GEOMETRY, grows, sd_sys::budget::may_take)
}

/// What an empty buffer takes.
pub(crate) fn room_max(endpoint: &'static Endpoint) -> usize {
    let grows = !endpoint.flag(FIXED_BUF);
    (if grows { GEOMETRY.large } else { GEOMETRY.large_first }) as usize
}

/// Asks the peer for an event when one of `events` may have become true. The caller looks again
/// afterwards. Room to write is asked for only when there is none, as Linux tells of it only then.
pub(crate) fn arm(endpoint: &'static Endpoint, events: u32) {
    if endpoint.state_now() != State::Connected {
        return;
    }
    let mut bits = doorbell::RX_EVENT;
    if events & OUT != 0 && !has_space(endpoint) {
        endpoint.set_flag(NO_SPACE);
        bits |= doorbell::TX_EVENT;
    }
    let word = &endpoint.own_words().wait;
    if word.load(Ordering::Relaxed) & bits != bits {
        doorbell::arm(word, bits);
    } else {
        sd_ring::fence_full();
    }
}

/// Events of the endpoint reach another process of the family, so it has to be looked at.
pub(crate) fn is_polled(endpoint: &'static Endpoint) -> bool {
    PROCESS.forked.load(Ordering::Relaxed)
        && endpoint.channel_ref().is_some_and(|c| c.inherited.load(Ordering::Relaxed))
}

/// POLLOUT holds.
pub(crate) fn is_writable(endpoint: &'static Endpoint) -> bool {
    mask(endpoint, OUT) != 0 || by_kernel::kernel_part(endpoint) & OUT != 0
}
