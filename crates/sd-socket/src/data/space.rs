//! Waiting for room to send.

use crate::socket::cold;
use crate::socket::endpoint::{self, EndpointExt, NONBLOCK, PeerEnd, RESET, SHUT_WR, peer_end};
use crate::socket::road::{TX_KERNEL, TX_LEFT};
use crate::wait::duties::{On, Waiting};
use crate::wait::{Deadline, interrupted, sleep_on_connection, spin};
use core::sync::atomic::Ordering;
use libc::MSG_DONTWAIT;
use sd_ring::doorbell;
use sd_shm::slab::{Endpoint, FIXED_BUF, TX_PARKED};
use sd_sys::Errno;
use sd_sys::section::Watch;
use sd_sys::time::ticks;

/// A look without the lock: has the peer consumed more than was `seen`, or is there an end?
fn tx_hint(endpoint: &'static Endpoint, seen: u64) -> bool {
    endpoint.peer_words().consumed.load(Ordering::Acquire) != seen
        || endpoint.flag(RESET | SHUT_WR | TX_PARKED)
        || peer_end(endpoint) != PeerEnd::Open
        || crate::socket::way_back::is_wanted_by_peer(endpoint)
}

/// Waits until there is more room to send than when the peer had consumed `seen`, which must have been read before
/// the ring was found full: a peer that has meanwhile consumed everything says so no more. True when that took a
/// sleep, or would have.
pub(super) fn wait_tx(
    endpoint: &'static Endpoint,
    seen: u64,
    deadline: Deadline,
    may_sleep: bool,
) -> Result<bool, Errno> {
    let watch = Watch::start();
    if crate::socket::road::is_by_kernel(endpoint, TX_KERNEL | TX_LEFT) {
        return match may_sleep {
            true => crate::data::by_kernel::wait_tx(endpoint, deadline, &watch).map(|()| true),
            false => Ok(true),
        };
    }
    if spin(&endpoint.rx().spin, || tx_hint(endpoint, seen)) {
        return Ok(false);
    }
    if !may_sleep {
        // The ring may grow before anybody sleeps.
        return Ok(true);
    }
    let generation = endpoint.generation.load(Ordering::Relaxed);
    let was_fixed = endpoint.flag(FIXED_BUF);
    let mut waiting = Waiting::begin(None, ticks());
    loop {
        let pause = waiting.before_sleep(On::Word);
        let value = doorbell::arm(&endpoint.own_words().wait, doorbell::TX_SLEEP);
        if tx_hint(endpoint, seen) {
            return Ok(true);
        }
        if crate::socket::way_back::is_broken(endpoint) {
            crate::epoll::look_at_way_back(endpoint);
            return Ok(true);
        }
        interrupted(&watch, deadline)?;
        let slept = sleep_on_connection(endpoint, value, deadline, pause);
        waiting.after_sleep();
        if endpoint.generation.load(Ordering::Relaxed) != generation {
            return Err(Errno::EBADF);
        }
        slept?;
        crate::data::by_kernel::nothing(endpoint);
        crate::setup::withdrawn::look(endpoint, &watch, deadline)?;
        // SO_SNDBUF may have been raised meanwhile.
        if pause.is_none() || tx_hint(endpoint, seen) || endpoint.flag(FIXED_BUF) != was_fixed {
            return Ok(true);
        }
    }
}

/// The program met a full ring: epoll instances want to know when there is room.
pub(super) fn want_event(endpoint: &'static Endpoint) {
    crate::data::by_kernel::nothing(endpoint);
    crate::socket::signals::want_room(endpoint);
    if endpoint.flag(endpoint::WATCHED) {
        crate::epoll::no_space(endpoint);
    }
}

/// Waits until the socket is writable.
pub(crate) fn wait(endpoint: &'static Endpoint, flags: i32) -> Result<(), Errno> {
    let nonblock = flags & MSG_DONTWAIT != 0 || endpoint.flag(NONBLOCK);
    let deadline = Deadline::option(cold::of(endpoint).tx_timeout_ns.load(Ordering::Relaxed));
    loop {
        let seen = endpoint.peer_words().consumed.load(Ordering::Acquire);
        if crate::wait::ready::is_writable(endpoint) {
            return Ok(());
        }
        if nonblock {
            want_event(endpoint);
            return Err(Errno::EAGAIN);
        }
        wait_tx(endpoint, seen, deadline, true)?;
    }
}
