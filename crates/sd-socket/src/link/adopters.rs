//! The processes that accept on a channel besides the one that it was made for: how they are woken, and what was complained
//! about to the monitor (`setup::adopt`).

use crate::fd::hidden::Hidden;
use crate::link::outstanding::Asked;
use crate::link::peer::Peer;
use crate::monitor::client;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sd_proto::{Reply, Request};
use sd_shm::channel::{ADOPTERS, Side};

/// How to wake the adopters of a channel, by number; null: not asked yet.
pub(crate) struct Adopters {
    known: [AtomicPtr<Peer>; ADOPTERS],
    /// Registration with the monitor in which one was asked for in vain.
    vain: AtomicU32,
}

impl Adopters {
    pub(crate) fn new() -> Adopters {
        let known = [const { AtomicPtr::new(core::ptr::null_mut()) }; ADOPTERS];
        Adopters { known, vain: AtomicU32::new(u32::MAX) }
    }

    /// Wakes an adopter of this channel, if all its threads sleep. While there is no monitor to ask,
    /// sleepers look around by themselves.
    pub(super) fn wake(&self, channel: u64, number: u32) {
        let Some(cell) = self.known.get((number as usize).wrapping_sub(1)) else { return };
        let mut known = cell.load(Ordering::Acquire);
        if known.is_null() {
            known = self.ask(cell, channel, number);
        }
        // SAFETY: null, or made by Box and freed with the channel.
        if let Some(peer) = unsafe { known.as_ref() } {
            peer.wake();
        }
    }

    /// Those that are known.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> {
        // SAFETY: null, or made by Box and freed with the channel.
        self.known.iter().filter_map(|cell| unsafe { cell.load(Ordering::Acquire).as_ref() })
    }

    /// Those that are known, with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (u32, &Peer)> {
        // SAFETY: null, or made by Box and freed with the channel.
        let all = self.known.iter().map(|cell| unsafe { cell.load(Ordering::Acquire).as_ref() });
        (1..).zip(all).filter_map(|(number, peer)| Some((number, peer?)))
    }

    #[cold]
    fn ask(&self, cell: &AtomicPtr<Peer>, channel: u64, number: u32) -> *mut Peer {
        let registration = client::REGISTRATIONS.load(Ordering::Acquire);
        if self.vain.load(Ordering::Relaxed) == registration {
            return core::ptr::null_mut();
        }
        let Some(peer) = ask_how_to_wake(channel, number) else {
            self.vain.store(client::REGISTRATIONS.load(Ordering::Acquire), Ordering::Relaxed);
            return core::ptr::null_mut();
        };
        let fresh = Box::into_raw(Box::new(peer));
        match cell.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => {
                // SAFETY: just made, and nobody else knows it.
                drop(unsafe { Box::from_raw(fresh) });
                other
            }
        }
    }

    /// They are another user's.
    pub(super) fn become_strangers(&self) {
        for cell in &self.known {
            // SAFETY: null, or made by Box and freed with the channel.
            if let Some(peer) = unsafe { cell.load(Ordering::Acquire).as_ref() } {
                peer.becomes_stranger();
            }
        }
    }
}

impl Drop for Adopters {
    fn drop(&mut self) {
        for cell in &self.known {
            let known = cell.load(Ordering::Acquire);
            if !known.is_null() {
                // SAFETY: made by Box; the channel's record is being freed, so nobody uses it.
                drop(unsafe { Box::from_raw(known) });
            }
        }
    }
}

/// Asks how to wake an adopter of a channel.
fn ask_how_to_wake(channel: u64, number: u32) -> Option<Peer> {
    let (reply, got) = client::question(&Request::Adopter { channel, number }, &[])?;
    answered((channel, Side::A), &reply, got)
}

/// The answer to [`Request::Adopter`], by a process that has that side of the channel.
pub(super) fn answered(of: (u64, Side), reply: &Reply, got: sd_sys::msg::Received) -> Option<Peer> {
    let Reply::Adopter { stranger } = *reply else { return None };
    let [public, event_fd] = got.fds.take()?;
    let page = sd_shm::public::map_peer(public.raw()).ok()?;
    Some(Peer::new(0, (Some(page), Hidden::of(event_fd)), of, stranger))
}

/// Which connection of a channel was complained about, and how often.
#[derive(Default)]
pub(crate) struct Complaints(AtomicU64);

impl Complaints {
    pub(crate) fn count(&self, asked: &Asked) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        if word >> 8 == Complaints::name(asked) { word & 0xff } else { 0 }
    }

    pub(crate) fn note(&self, asked: &Asked, count: u64) {
        self.0.store(Complaints::name(asked) << 8 | count, Ordering::Relaxed);
    }

    fn name(asked: &Asked) -> u64 {
        u64::from(asked.generation) << 16 | u64::from(asked.slot)
    }
}
