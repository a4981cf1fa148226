//! Connections that another process accepts than the one they were made for (ADR 14).
//!
//! Side A learns from B's words of a slot that an adopter has accepted, and asks the monitor, once,
//! how to wake it. And side A is who complains: when it goes to sleep while a connection waits for
//! accept, it tells the monitor after a pause, which grows, so that an idle sibling gets it.

use crate::channel::Peer;
use crate::control;
use crate::process::PROCESS;
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

    #[cold]
    fn ask(&self, cell: &AtomicPtr<Peer>, channel: u64, number: u32) -> *mut Peer {
        let registration = control::REGISTRATIONS.load(Ordering::Acquire);
        if self.vain.load(Ordering::Relaxed) == registration {
            return core::ptr::null_mut();
        }
        let Some(peer) = control::ask_for_adopter(&Request::Adopter { channel, number }) else {
            self.vain.store(control::REGISTRATIONS.load(Ordering::Acquire), Ordering::Relaxed);
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

/// The answer to [`Request::Adopter`].
pub(crate) fn answered(reply: &Reply, got: &sd_sys::msg::Received) -> Option<Peer> {
    let (&Reply::Adopter, &[public, event_fd]) = (reply, got.fds.get(..got.fd_count)?) else {
        got.fds.iter().take(got.fd_count).for_each(|&fd| sd_sys::fd::close(fd));
        return None;
    };
    let page = sd_shm::public::map_peer(public);
    sd_sys::fd::close(public);
    let event_fd = crate::process::hide_fd(event_fd);
    match page {
        Ok(public) => Some(Peer { pid: 0, public: Some(public), event_fd }),
        Err(_) => {
            crate::process::close_hidden(event_fd);
            None
        }
    }
}

/// The first complaint comes after so long, each further one after four times as long.
const PATIENCE_NS: u64 = 2_000_000;
/// Complaints that are made of one wait.
const COMPLAINTS: u32 = 9;

/// 0: nothing waits for accept; 1: something does, and since when is not noted yet; more: what was
/// done about it.
static STAGE: AtomicU32 = AtomicU32::new(0);
static SINCE: AtomicU64 = AtomicU64::new(0);

/// A connection was requested.
#[inline]
pub(crate) fn connecting() {
    if STAGE.load(Ordering::Relaxed) != 1 {
        STAGE.store(1, Ordering::Relaxed);
    }
}

/// Before a sleep: how long it may last before somebody should look again at what waits for accept, or for
/// room in a backlog. Complains when it is time.
#[inline]
pub(crate) fn pause() -> Option<u64> {
    let knocks = crate::wait::earlier(crate::syn_sent::pause(), crate::defer::pause());
    if STAGE.load(Ordering::Relaxed) == 0 {
        return knocks;
    }
    crate::wait::earlier(knocks, pause_slow())
}

#[cold]
fn pause_slow() -> Option<u64> {
    let is_waiting = |c: &&'static crate::channel::Channel| {
        c.side == Side::A && !c.inherited.load(Ordering::Relaxed) && c.is_waiting()
    };
    let _user = crate::reclaim::User::enter();
    let mut waiting = PROCESS.channels().filter(is_waiting).peekable();
    let stage = STAGE.load(Ordering::Relaxed);
    if waiting.peek().is_none() || stage > COMPLAINTS {
        let _ = STAGE.compare_exchange(stage, 0, Ordering::Relaxed, Ordering::Relaxed);
        return None;
    }
    let now = sd_sys::time::now_ns();
    if stage <= 1 {
        SINCE.store(now, Ordering::Relaxed);
        let _ = STAGE.compare_exchange(stage, 2, Ordering::Relaxed, Ordering::Relaxed);
        return Some(PATIENCE_NS);
    }
    let patience = PATIENCE_NS << (2 * (stage - 2));
    let waited = now.saturating_sub(SINCE.load(Ordering::Relaxed));
    if waited < patience {
        return Some(patience - waited);
    }
    waiting.for_each(|channel| control::tell(&Request::Stuck { channel: channel.id }, &[]));
    let _ = STAGE.compare_exchange(stage, stage + 1, Ordering::Relaxed, Ordering::Relaxed);
    Some((PATIENCE_NS << (2 * (stage - 1))) - waited.min(patience))
}
