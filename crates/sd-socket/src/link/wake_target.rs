//! Who is woken for an inherited connection.
//!
//! ```text
//! child, alone with it: "wake me" in its words of the slot --> peer: asks the monitor, once, how --> child's eventfd
//! ```
//! A channel wakes the process that it was made for, by an eventfd which the children of that process watch as well. A
//! server with a child for each connection would so wake all of them for each message. Therefore a process that
//! alone has each of its inherited connections makes itself their *wake target* before it sleeps, and watches its own eventfd
//! only. Before it forks, and when the monitor is gone, it takes that back and watches all. It needs no set of events
//! for such connections, since it looks at each of them anyway (`ready::is_polled`).
//!
//! SYNC POINT: wake target. Settling: wake targets are stored, then the others are watched no more; leaving: the others are watched
//! again, then wake targets are cleared. So a thread that says on its own page only that it sleeps is known as the wake target of all by
//! whoever rings after its last look. In both cases threads that sleep already are made to look, and sleep anew.

use crate::link::adopters::answered;
use crate::link::channel::Channel;
use crate::link::peer::Peer;
use crate::monitor::client;
use crate::process::waker;
use crate::process::{PROCESS, single_threaded};
use crate::socket::endpoint::EndpointExt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sd_proto::{Reply, Request};
use sd_shm::channel::Side;
use sd_shm::slab::Endpoint;
use sd_sys::lock::Lock;
use std::collections::BTreeMap;

/// This process is the wake target of its inherited connections; changed under `PROCESS.alloc`.
static SETTLED: AtomicBool = AtomicBool::new(false);
/// Sleeps with inherited connections that others have too.
static TRIES: AtomicU32 = AtomicU32::new(0);
/// After so many of them only each power of two is a try.
const TRIES_MANY: u32 = 8;

/// Before a sleep on several things: becomes the wake target of what was inherited, if it is not shared.
#[inline]
pub(crate) fn settle() {
    if PROCESS.forked.load(Ordering::Relaxed) && !SETTLED.load(Ordering::Relaxed) {
        settle_slow();
    }
}

#[cold]
fn settle_slow() {
    if !PROCESS.channels().any(|channel| channel.inherited.load(Ordering::Relaxed) && channel.is_used()) {
        return;
    }
    let tries = TRIES.fetch_add(1, Ordering::Relaxed);
    if tries > TRIES_MANY && !tries.is_power_of_two() || !inherited().all(|(_, is_alone)| is_alone) {
        return;
    }
    if inherited().next().is_none() || client::connected().is_none() {
        return;
    }
    let _alloc = PROCESS.alloc.lock();
    // Again, since now nobody can fork.
    let Some(client) = client::client().filter(|_| inherited().all(|(_, is_alone)| is_alone)) else {
        return;
    };
    inherited().for_each(|(endpoint, _)| {
        endpoint.own_words().make_cold().wake_target.store(client, Ordering::SeqCst)
    });
    SETTLED.store(true, Ordering::Relaxed);
    waker::watch_own_only();
    if !single_threaded() {
        waker::event_fds().for_each(sd_sys::fd::eventfd_signal);
    }
}

/// Inherited connections that are open here, and whether no other process has them.
fn inherited() -> impl Iterator<Item = (&'static Endpoint, bool)> {
    let inherited = PROCESS.connections().filter(|(_, endpoint)| crate::wait::ready::is_polled(endpoint));
    inherited.map(|(rec, endpoint)| {
        let bit = rec.bit.load(Ordering::Relaxed);
        (endpoint, bit != 0 && endpoint.holders.load(Ordering::Acquire) == bit)
    })
}

/// Whoever shares the connections, or has the eventfds, is to be woken again.
pub(crate) fn leave() {
    if SETTLED.load(Ordering::Relaxed) {
        let _alloc = PROCESS.alloc.lock();
        leave_under_lock();
    }
}

/// [`leave`] for a caller that has `PROCESS.alloc` locked. Allocates nothing.
pub(crate) fn leave_under_lock() {
    if !SETTLED.swap(false, Ordering::Relaxed) {
        return;
    }
    TRIES.store(0, Ordering::Relaxed);
    waker::watch_all();
    inherited()
        .for_each(|(endpoint, _)| endpoint.own_words().make_cold().wake_target.store(0, Ordering::SeqCst));
    if crate::process::waker::any_sleeper() {
        // One of those that sleep on the same instance watches for all, but each says so on the own page only.
        crate::process::waker::assume_asleep(true);
        sd_sys::fd::eventfd_signal(waker::own_event_fd());
    }
}

/// In the child of a fork, which has left already.
pub(crate) fn forked() {
    TRIES.store(0, Ordering::Relaxed);
}

/// Some [`WakeTarget`] is `unrung`.
static UNRUNG: AtomicBool = AtomicBool::new(false);

/// There is a monitor again.
pub(crate) fn ring_late() {
    if !UNRUNG.swap(false, Ordering::AcqRel) {
        return;
    }
    let _user = crate::link::reclaim::User::enter();
    for channel in PROCESS.channels() {
        channel.wake_targets.unrung().into_iter().for_each(|slot| channel.announce(usize::from(slot)));
    }
}

/// Asks how to wake the process that alone has the other side of a connection, which the monitor also does itself.
fn ask_for_wake_target((channel, side): (u64, Side), client: u64) -> Answer {
    let request = &Request::WakeTarget { channel, side: side as u32, client };
    // A monitor that was restarted is found at the second try.
    let Some((reply, got)) = client::question(request, &[]).or_else(|| client::question(request, &[])) else {
        return Answer::NoMonitor;
    };
    match reply {
        Reply::Error { .. } => Answer::Unknown,
        _ => Answer::Woken(answered((channel, side), &reply, got)),
    }
}

/// See [`ask_for_wake_target`].
enum Answer {
    /// It was woken. How to do it, unless we are out of descriptors.
    Woken(Option<Peer>),
    /// There is no such process there.
    Unknown,
    NoMonitor,
}

/// How to wake the wake targets of the connections of a channel, by slot.
pub(crate) struct WakeTargets {
    known: Lock<BTreeMap<u16, WakeTarget>>,
    any: AtomicBool,
}

struct WakeTarget {
    client: u64,
    peer: Option<Peer>,
    /// Names of processes that were none.
    lies: u32,
    /// It is to be woken as soon as there is a monitor.
    unrung: bool,
}

/// What a peer says is believed no longer after so many lies: each costs a question to the monitor.
const LIES_MAX: u32 = 16;

impl WakeTargets {
    pub(crate) const fn new() -> WakeTargets {
        WakeTargets { known: Lock::new(BTreeMap::new()), any: AtomicBool::new(false) }
    }

    /// Wakes the wake target of the connection at a slot, if all its threads sleep. False when it is not known.
    pub(super) fn wake(&self, channel: &Channel, slot: usize, client: u64) -> bool {
        if let Some(wake_target) = self.known.lock().get(&(slot as u16)) {
            match &wake_target.peer {
                Some(peer) if wake_target.client == client => {
                    peer.wake();
                    return true;
                }
                _ if wake_target.lies >= LIES_MAX => return false,
                _ => {}
            }
        }
        self.ask(channel, slot, client)
    }

    /// The monitor wakes it, and says how it is woken from now on.
    #[cold]
    fn ask(&self, channel: &Channel, slot: usize, client: u64) -> bool {
        let answer = ask_for_wake_target((channel.id, channel.side), client);
        let mut known = self.known.lock();
        self.any.store(true, Ordering::Relaxed);
        let wake_target =
            known.entry(slot as u16).or_insert(WakeTarget { client, peer: None, lies: 0, unrung: false });
        match answer {
            Answer::Woken(peer) => {
                (wake_target.client, wake_target.peer, wake_target.unrung) = (client, peer, false);
                return true;
            }
            Answer::Unknown => wake_target.lies += 1,
            Answer::NoMonitor => {
                wake_target.unrung = true;
                UNRUNG.store(true, Ordering::Release);
            }
        }
        false
    }

    /// They are another user's.
    pub(super) fn become_strangers(&self) {
        let known = self.known.lock();
        known.values().filter_map(|wake_target| wake_target.peer.as_ref()).for_each(Peer::becomes_stranger);
    }

    /// The slots whose wake targets could not be woken for want of a monitor.
    fn unrung(&self) -> Vec<u16> {
        let mut known = self.known.lock();
        let unrung = |(slot, wake_target): (&u16, &mut WakeTarget)| {
            core::mem::take(&mut wake_target.unrung).then_some(*slot)
        };
        known.iter_mut().filter_map(unrung).collect()
    }

    /// The connection at a slot is over.
    pub(crate) fn forget(&self, slot: usize) {
        if self.any.load(Ordering::Relaxed) {
            self.known.lock().remove(&(slot as u16));
        }
    }

    /// No wake target is known any more.
    pub(crate) fn forget_all(&self) {
        self.known.lock().clear();
    }

    /// In the child of a fork.
    ///
    /// # Safety
    /// There is one thread.
    pub(crate) unsafe fn forked(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.known.force_unlock() };
    }
}
