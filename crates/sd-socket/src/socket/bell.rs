//! Waking those who wait for a connection: the peer, as its doorbell word says, and threads of this process.

use crate::process::{PROCESS, waker};
use crate::socket::endpoint::EndpointExt;
use crate::socket::thread_waker;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_ring::{doorbell, fence_full};
use sd_shm::channel::{FLAG_WANTS_STAMPS, SlotSide};
use sd_shm::slab::Endpoint;
use sd_sys::futex::{self, Scope};

/// Wakes the peer as its doorbell word says, after something was published for it.
#[inline(always)]
pub(crate) fn notify(endpoint: &Endpoint, bits: u32) {
    notify_at(endpoint, endpoint.peer_words(), bits);
}

/// Wakes the peer as `peer`, its words of the slot, say, after something was published for it.
#[inline(always)]
pub(crate) fn notify_at(endpoint: &Endpoint, peer: &SlotSide, bits: u32) {
    let fired = doorbell::ring(&peer.wait, bits);
    if fired != 0 {
        notify_slow(endpoint, fired);
    }
}

#[cold]
fn notify_slow(endpoint: &Endpoint, fired: u32) {
    if fired & (doorbell::RX_SIGNAL | doorbell::TX_SIGNAL) != 0 && fired & doorbell::RX_SLEEP == 0 {
        crate::socket::signals::tell(endpoint, false);
    }
    if let Some(channel) = endpoint.channel_ref() {
        channel.kick(usize::from(endpoint.slot.load(Ordering::Relaxed)), fired);
    }
}

/// All bits a waiter can announce.
pub(crate) const ALL_BITS: u32 = doorbell::RX_SLEEP
    | doorbell::RX_EVENT
    | doorbell::RX_SIGNAL
    | doorbell::TX_SLEEP
    | doorbell::TX_EVENT
    | doorbell::TX_SIGNAL;

/// Threads of this process that sleep in send or recv on it look again.
pub(crate) fn wake_sleepers(endpoint: &Endpoint) {
    wake_at(&endpoint.own_words().wait);
}

/// What instances of epoll have announced stays: nobody looks at the connection for them now, and what comes next would be announced to nobody.
fn wake_at(own: &AtomicU32) {
    doorbell::disarm(own, doorbell::RX_SLEEP | doorbell::TX_SLEEP);
    futex::wake(own, i32::MAX, Scope::Shared);
}

/// What is sent now bears the time, if the peer wants that.
#[inline(always)]
pub(crate) fn stamp(endpoint: &Endpoint) -> u32 {
    stamp_for(endpoint.peer_words().flags.load(Ordering::Relaxed))
}

/// The time that a message bears, if `peer_flags` ask for it; zero if not.
#[inline(always)]
pub(crate) fn stamp_for(peer_flags: u32) -> u32 {
    if peer_flags & FLAG_WANTS_STAMPS != 0 { sd_ring::stamp::of(sd_sys::time::ticks()) } else { 0 }
}

/// The state of a connection was changed from inside, by a thread that holds a lock of it: whoever
/// watches it learns it as if the peer had rung.
#[cold]
pub(crate) fn announce_to_self(endpoint: &Endpoint) {
    let Some(channel) = endpoint.channel_ref() else { return };
    channel.announce_here(usize::from(endpoint.slot.load(Ordering::Relaxed)));
    fence_full();
    thread_waker::wake(endpoint);
    if PROCESS.public().is_some_and(|own| sd_ring::sync::sleepers::are_there(&own.sleepers)) {
        sd_sys::fd::eventfd_signal(waker::own_event_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn who_wakes_sleepers_takes_no_event_away() {
        let word = AtomicU32::new(ALL_BITS);
        wake_at(&word);
        let kept = ALL_BITS & !(doorbell::RX_SLEEP | doorbell::TX_SLEEP);
        assert_eq!(word.load(Ordering::Relaxed), kept, "what is waited for in epoll is rung for still");
        assert_ne!(doorbell::ring(&word, doorbell::RX_EVENT) & doorbell::RX_EVENT, 0);
    }
}
