//! Connections that another process accepts than the one they were made for (ADR 14).
//!
//! Side A learns from B's words of a slot that an adopter has accepted, and asks the monitor, once,
//! how to wake it. And side A is who complains: while a connection waits for accept, it tells the monitor after a
//! pause, which grows, so that an idle sibling gets it. When there is none, the monitor says so in the slabs
//! of all siblings, and the first that has nothing to do asks.

use crate::link::channel::Channel;
use crate::link::peer::Peer;
use crate::monitor::client;
use crate::process::PROCESS;
use crate::setup::outstanding::Asked;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
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
    pub(crate) fn wake(&self, channel: u64, number: u32) {
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

    #[cold]
    fn ask(&self, cell: &AtomicPtr<Peer>, channel: u64, number: u32) -> *mut Peer {
        let registration = client::REGISTRATIONS.load(Ordering::Acquire);
        if self.vain.load(Ordering::Relaxed) == registration {
            return core::ptr::null_mut();
        }
        let Some(peer) = client::ask_for_adopter(channel, number) else {
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
    pub(crate) fn become_strangers(&self) {
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

/// The answer to [`Request::Adopter`], by a process that has that side of the channel.
pub(crate) fn answered(of: (u64, Side), reply: &Reply, got: sd_sys::msg::Received) -> Option<Peer> {
    let Reply::Adopter { stranger } = *reply else { return None };
    let [public, event_fd] = got.fds.take()?;
    let page = sd_shm::public::map_peer(public);
    sd_sys::fd::close(public);
    let event_fd = crate::process::hide_fd(event_fd);
    match page {
        Ok(public) => Some(Peer::new(0, (Some(public), event_fd), of, stranger)),
        Err(_) => {
            crate::process::close_hidden(event_fd);
            None
        }
    }
}

/// After so long the first complaint about a connection is made, each further one after four times as long.
const PATIENCE_NS: u64 = 2_000_000;
/// Complaints about one connection. The monitor remembers them, so they are for what it overlooks.
const COMPLAINTS: u64 = 9;

/// Which connection of a channel was complained about, and how often.
#[derive(Default)]
pub(crate) struct Complaints(AtomicU64);

impl Complaints {
    fn count(&self, asked: &Asked) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        if word >> 8 == Complaints::name(asked) { word & 0xff } else { 0 }
    }

    fn note(&self, asked: &Asked, count: u64) {
        self.0.store(Complaints::name(asked) << 8 | count, Ordering::Relaxed);
    }

    fn name(asked: &Asked) -> u64 {
        u64::from(asked.generation) << 16 | u64::from(asked.slot)
    }
}

/// Connections may wait for accept.
static WAITING: AtomicBool = AtomicBool::new(false);

/// A connection was requested.
#[inline]
pub(super) fn connecting() {
    if !WAITING.load(Ordering::Relaxed) {
        WAITING.store(true, Ordering::Relaxed);
    }
}

/// Before a sleep: how long it may last before somebody should look again at what waits for accept, or for
/// room in a backlog. Complains when it is time.
#[inline]
pub(crate) fn pause() -> Option<u64> {
    let knocks = crate::wait::earlier(crate::setup::syn_sent::pause(), crate::setup::defer::pause());
    if !WAITING.load(Ordering::Relaxed) {
        return knocks;
    }
    crate::wait::earlier(knocks, complain())
}

/// Looks now and then at what waits for accept, and complains, for a thread that never sleeps as others have work for it.
#[inline]
pub(crate) fn look() {
    if WAITING.load(Ordering::Relaxed) {
        look_now_and_then();
    }
}

#[cold]
fn look_now_and_then() {
    static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
    let now = sd_sys::time::now_ns();
    if now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed)) > PATIENCE_NS {
        LOOKED_AT.store(now, Ordering::Relaxed);
        complain();
    }
}

#[cold]
fn complain() -> Option<u64> {
    let _user = crate::link::reclaim::User::enter();
    // Before the look: a connection that is requested meanwhile sets it again.
    WAITING.store(false, Ordering::Relaxed);
    let mut next: Option<u64> = None;
    for channel in PROCESS.channels() {
        if channel.side == Side::A && !channel.inherited.load(Ordering::Relaxed) {
            next = crate::wait::earlier(next, complain_of(channel));
        }
    }
    if next.is_some() {
        WAITING.store(true, Ordering::Relaxed);
    }
    next
}

/// When the next complaint about the channel's oldest connection is due, in nanoseconds from now.
fn complain_of(channel: &Channel) -> Option<u64> {
    let asked = channel.oldest_waiting()?;
    let waited = sd_sys::time::ns_of_cycles(sd_sys::time::tsc().saturating_sub(asked.at));
    let count = channel.complaints.count(&asked);
    let mut patience = PATIENCE_NS << (2 * count);
    if waited >= patience {
        client::tell(&Request::Stuck { channel: channel.id }, &[]);
        channel.complaints.note(&asked, count + 1);
        if count + 1 >= COMPLAINTS {
            return None;
        }
        patience <<= 2;
    }
    Some(patience.saturating_sub(waited).max(PATIENCE_NS / 4))
}

/// So often, at most, one process asks.
const ASK_EVERY_NS: u64 = 1_000_000;

/// Before a thread sleeps that may be waiting for connections: asks for those that wait at busy siblings, if the
/// monitor has said that there are some. How long it may sleep until it should ask again.
#[inline]
pub(crate) fn ask_for_work() -> Option<u64> {
    let header = PROCESS.own().and_then(|own| own.slab())?.header();
    if header.starving.load(Ordering::Relaxed) == 0 {
        return None;
    }
    ask(&header.starving)
}

#[cold]
fn ask(starving: &AtomicU32) -> Option<u64> {
    static ASKED_AT: AtomicU64 = AtomicU64::new(0);
    let now = sd_sys::time::now_ns();
    let since = now.wrapping_sub(ASKED_AT.load(Ordering::Relaxed));
    if since < ASK_EVERY_NS {
        return Some(ASK_EVERY_NS - since);
    }
    ASKED_AT.store(now, Ordering::Relaxed);
    if starving.swap(0, Ordering::AcqRel) != 0 {
        client::tell(&Request::Idle, &[]);
    }
    None
}
