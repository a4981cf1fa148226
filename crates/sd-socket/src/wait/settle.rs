//! A process that alone has its inherited connections makes itself their wake target (`link::wake_target` says why).
//!
//! SYNC POINT: wake target, with `enter` in crates/sd-socket/src/process/waker.rs. Settling: wake targets are stored, then the others are watched no more; leaving: the others are watched
//! again, then wake targets are cleared. So a thread that says on its own page only that it sleeps is known as the wake target of all by
//! whoever rings after its last look. In both cases threads that sleep already are made to look, and sleep anew.

use crate::monitor::client;
use crate::process::{PROCESS, single_threaded, waker};
use crate::socket::endpoint::EndpointExt;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sd_shm::slab::Endpoint;

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
    if waker::any_sleeper() {
        // One of those that sleep on the same instance watches for all, but each says so on the own page only.
        waker::assume_asleep(true);
        sd_sys::fd::eventfd_signal(waker::own_event_fd());
    }
}

/// In the child of a fork, which has left already.
pub(crate) fn forked() {
    TRIES.store(0, Ordering::Relaxed);
}
