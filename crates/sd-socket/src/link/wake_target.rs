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
//! The process that makes itself the wake target: `wait::settle`.

use crate::link::adopters::answered;
use crate::link::channel::Channel;
use crate::link::peer::Peer;
use crate::monitor::client;
use crate::process::PROCESS;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use sd_proto::{Reply, Request};
use sd_shm::channel::Side;
use sd_sys::lock::Lock;

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

    /// The program has closed what they are woken by, past libc.
    pub(crate) fn drop_lost(&self) {
        let mut known = self.known.lock();
        let peers = known.values_mut().filter_map(|wake_target| wake_target.peer.take());
        peers.for_each(Peer::drop_lost);
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
