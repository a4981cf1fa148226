//! The seam: all that this library needs of whoever stands behind the other side of a channel, besides the words and rings.
//!
//! Send and recv know slot words and rings in local memory, and nothing else. Whatever is not a process of this host stands behind a
//! *pump*, a process that plays the other side on local rings and moves the bytes elsewhere (ADR 72). So there is no transport
//! in front of a ring; there are few cold functions behind it:
//!
//! | function | what it does | where |
//! |---|---|---|
//! | kick | wakes the other side, after something was published | [`Channel::kick`], [`Channel::announce`] |
//! | tell | the same for what a local process would see by looking | [`Channel::tell`] |
//! | take in | takes what the other side has announced | `link::channel::drain` |
//! | rest | what a thread sleeps on: the slot's word, or the process's eventfd | `wait::sleep` |
//! | capabilities | what the other side can do | [`sd_shm::link::Link`], in [`Channel::link`] |
//!
//! Capabilities are asked where nothing is fast: before memory is given back (`kept_rings`), before a thread sleeps alone
//! (`wait::thread_waker`), before a process id is looked at (`Channel::peer_seems_alive`), before a page is believed to say
//! who sleeps (`peer`).

use crate::link::channel::Channel;
use sd_ring::doorbell::{RX_EVENT, RX_SLEEP, TX_EVENT, TX_SLEEP};
use sd_shm::channel::SlotSide;
use sd_sys::futex::{self, Scope};

impl Channel {
    /// Wakes who waits at the other side of a slot: of what it had announced, `fired` was answered.
    #[cold]
    pub(crate) fn kick(&self, slot: usize, fired: u32) {
        if fired & (RX_SLEEP | TX_SLEEP) != 0 {
            futex::wake(&self.peer_words(slot).wait, i32::MAX, Scope::Shared);
        }
        if fired & (RX_EVENT | TX_EVENT) != 0 {
            self.announce(slot);
        }
    }

    /// A word of a slot has changed that the other side reads when it needs it: whoever has to pass it on is told.
    #[cold]
    pub(crate) fn tell(&self, slot: usize) {
        if self.link.must_be_told() {
            self.announce(slot);
        }
    }

    fn peer_words(&self, slot: usize) -> &'static SlotSide {
        let [a, b] = &self.map.slot(slot).side;
        if self.side == sd_shm::channel::Side::A { b } else { a }
    }
}
