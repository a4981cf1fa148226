//! A process that is about to be checkpointed lets go of everything that it shares (ADR 86).
//!
//! ```text
//!  asked       promoted connections go back to the kernel's, nothing is offered any more        `setup::detach`
//!  an edge     nothing stands in the way: it leaves as one that gives rights up does            `separate`
//!  detached    connections are the kernel's, and counted as those of a process without a monitor (`setup::unregistered`)
//!  restored    with the next messages it registers; listeners are taken up, connections offered
//! ```
//! In the way is: a connection that was born in shared memory, and one that waits there to be accepted; a relative that shares sockets; a second
//! thread, which nobody could ask whether it is in a call; a peer that has still to send again what lay in its ring. The monitor's `shell/detach.rs` tells who asks.

use super::separate::{self, Left};
use crate::backlog::listener::has_pending;
use crate::fd::table::{self, Entry};
use crate::link::channel::Channel;
use crate::monitor::client;
use crate::process::{PROCESS, detaching};
use crate::setup::{began, unregistered};
use crate::socket::endpoint::EndpointExt;
use crate::socket::road::{self, ACTIVE, INSIDE, NEVER, WATCHED};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use sd_shm::channel::{SLOTS, Side, SlotState};
use sd_shm::slab::{Endpoint, State};
use sd_sys::lock::Lock;
use sd_sys::section::Section;

/// See [`detaching::AT_EDGE`].
pub(crate) static AT_EDGE: fn() = at_edge;
/// See [`detaching::IS_BACK`].
pub(crate) static IS_BACK: fn() = take_up;

/// Listeners of a process that is detached.
static LEFT: Lock<Vec<Left>> = Lock::new(Vec::new());

/// A pause, as long as the process was asked and has not done it.
pub(crate) fn pause() -> Option<u64> {
    const AGAIN_NS: u64 = 2_000_000;
    detaching::give_up_late();
    detaching::is_asked().then_some(AGAIN_NS)
}

#[cold]
fn at_edge() {
    if !is_ready() {
        return;
    }
    // A handler of a signal would find half of it.
    let _section = Section::enter();
    let kept = watched();
    let Ok(left) = separate::leave() else { return };
    client::leave_for_checkpoint();
    *LEFT.lock() = left;
    let (kept, roles): (Vec<_>, Vec<_>) = kept.into_iter().map(|(kept, fd, role)| (kept, (fd, role))).unzip();
    began::detached(kept);
    for (fd, is_active) in roles {
        unregistered::begin_as(fd, is_active);
    }
    detaching::done();
}

/// Nothing stands in the way, and nobody is in a call.
fn is_ready() -> bool {
    separate::is_only_call()
        && detaching::is_nobody_within()
        && !separate::has_relatives()
        && PROCESS.connections().next().is_none()
        && PROCESS.channels().all(is_left_by_peer)
        && is_nobody_in_a_call()
}

/// Whoever has to send again what lay in its ring for a connection that went back has done it: it would take that for lost with the channel.
fn is_left_by_peer(channel: &'static Channel) -> bool {
    (0..SLOTS).all(|slot| {
        let [a, b] = &channel.map.slot(slot).side;
        let (own, peer) = if channel.side == Side::A { (a, b) } else { (b, a) };
        let (generation, state) = peer.state();
        own.state().0 != generation || !matches!(state, SlotState::Syn | SlotState::Open)
    })
}

/// Who is in a call on a socket counts as a number of it. What waits at a listener is the program's to accept first.
fn is_nobody_in_a_call() -> bool {
    let (mut numbers, mut is_waited_for) = (0u32, false);
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = entry {
            numbers += 1;
            is_waited_for |= endpoint.state_now() == State::Listen && has_pending(endpoint);
        }
    });
    let slabs = PROCESS.slabs.iter().take(PROCESS.slab_count.load(Ordering::Acquire));
    let fds: u32 = slabs
        .filter_map(|rec| Some((rec, rec.slab()?.header().high.load(Ordering::Acquire) as usize)))
        .flat_map(|(rec, high)| (0..high).filter_map(|index| rec.private(index)))
        .map(|private| private.fds.load(Ordering::Acquire))
        .sum();
    fds == numbers && !is_waited_for
}

/// Watched connections that one number leads to, with that and whether this end has connected.
fn watched() -> Vec<(began::Kept, i32, bool)> {
    let mut found = Vec::new();
    table::for_each(0, u32::MAX, |fd, entry| {
        if let Entry::Kernel(endpoint) = entry
            && let Some(is_active) = role(endpoint)
            && let Some(kept) = began::keep(fd, endpoint)
        {
            found.push((kept, fd, is_active));
        }
    });
    found
}

/// Whether this end has connected, of a connection that may be promoted.
fn role(endpoint: &'static Endpoint) -> Option<bool> {
    let word = road::word(endpoint)?.load(Ordering::Acquire);
    let is_alone = PROCESS.private(endpoint)?.fds.load(Ordering::Acquire) == 1;
    (word & (WATCHED | NEVER | INSIDE) == WATCHED && is_alone).then_some(word & ACTIVE != 0)
}

/// The process has registered again.
fn take_up() {
    core::mem::take(&mut *LEFT.lock()).into_iter().for_each(Left::take_up);
}

/// In the child of a fork: listeners that are its parent's too stay the kernel's.
pub(crate) fn forked() {
    detaching::forked();
    began::forked();
    // SAFETY: the child has one thread.
    unsafe { LEFT.force_unlock() };
    LEFT.lock().clear();
}
