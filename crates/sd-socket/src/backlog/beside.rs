//! Connections that wait at a busy sibling, for a process that has nothing to do ([ADR 14]).
//!
//! ```text
//!  monitor: `starving` in the slab          ──┐  before a sleep           Idle ──> monitor ──Offer──> `arrivals`
//!  client: a word in the channel's events   ──┴─ a look that finds nothing      the same, and the answer is waited for
//! ```
//! A client leaves its word where nobody who shares a socket was idle when it connected, so that it need not come back to complain. What comes
//! of it is a question to the monitor, so it is asked ever more rarely while nothing does.
//!
//! [ADR 14]: ../../../docs/adr/0014-connections-go-to-siblings.md

use crate::backlog::listener::{REGISTRY, UNREGISTERED};
use crate::link::channel::Channel;
use crate::link::reclaim::User;
use crate::monitor::client;
use crate::process::PROCESS;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_proto::{Reply, Request};
use sd_ring::sync::starving;
use sd_sys::time::now_ns;

/// So often, at most, one process asks.
const ASK_EVERY_NS: u64 = 1_000_000;
/// So long after a client's word a thread that sleeps asks: by then a sibling that is not busy for long has accepted, and a client that waits in
/// a call has complained (`setup::adopt`). Twice as long
/// for each time in a row that nothing came of it.
const PATIENCE_NS: u64 = 20_000_000;
const DOUBLINGS: u32 = 6;
/// So many looks in a row ask at once: what a question brings may be connections of this process's own, which were on their way.
const LOOKS_AT_ONCE: u32 = 3;

/// So long a look, which must not wait, gives a monitor for its answer. From one that is late nothing is awaited until it has answered.
const LOOK_MS: i32 = 50;

/// When the first of those words came that were not asked about; zero: there are none.
static TOLD_AT: AtomicU64 = AtomicU64::new(0);
static ASKED_AT: AtomicU64 = AtomicU64::new(0);
/// Questions in a row that brought nothing: before sleeps, and in looks. Who sleeps may do so for something else, and have connections of its own to
/// accept, with which it gets no others.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);
static LOOKED_IN_VAIN: AtomicU32 = AtomicU32::new(0);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// The client of a channel has left its word. The channel's before the process's; [`ask`] takes them the other way round.
#[cold]
pub(crate) fn told(channel: &Channel) {
    channel.left_beside.store(true, Ordering::SeqCst);
    let _ = TOLD_AT.compare_exchange(0, now_ns().max(1), Ordering::SeqCst, Ordering::SeqCst);
}

/// Connections were offered.
pub(crate) fn offered() {
    IN_VAIN.store(0, Ordering::Relaxed);
    LOOKED_IN_VAIN.store(0, Ordering::Relaxed);
}

/// A client or the monitor has left its word.
#[inline]
pub(crate) fn is_told() -> bool {
    TOLD_AT.load(Ordering::Relaxed) != 0 || starving::has_heard(&PROCESS.header().starving)
}

/// Before a thread sleeps that may be waiting for connections: asks for those at busy siblings, if there are some by anybody's word.
/// How long it may sleep until it should ask again. The thread has said that it sleeps (SYNC POINT: starving, with `starve` in
/// crates/sd-monitor/src/shell/starving.rs).
#[inline]
pub(crate) fn ask_for_work() -> Option<u64> {
    if !is_told() {
        return None;
    }
    ask_in_time()
}

#[cold]
fn ask_in_time() -> Option<u64> {
    let now = now_ns();
    let left = |begin: &AtomicU64, pause: u64| {
        pause.checked_sub(now.wrapping_sub(begin.load(Ordering::Relaxed))).filter(|left| *left != 0)
    };
    let patience = match starving::has_heard(&PROCESS.header().starving) {
        true => 0,
        false => PATIENCE_NS << IN_VAIN.load(Ordering::Relaxed).min(DOUBLINGS),
    };
    let left = left(&ASKED_AT, ASK_EVERY_NS).or_else(|| left(&TOLD_AT, patience));
    if left.is_none() {
        ask(now, &IN_VAIN);
    }
    left
}

/// A look that does not wait has found nothing: whether it should look once more.
#[cold]
#[inline(never)]
pub(crate) fn has_brought_some() -> bool {
    is_told() && ask_at_once()
}

fn ask_at_once() -> bool {
    let (now, vain) = (now_ns(), LOOKED_IN_VAIN.load(Ordering::Relaxed));
    let pause = if vain < LOOKS_AT_ONCE { 0 } else { ASK_EVERY_NS << vain.min(DOUBLINGS) };
    if now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed)) < pause {
        return false;
    }
    LOOKED_AT.store(now, Ordering::Relaxed);
    ask(now, &LOOKED_IN_VAIN);
    let indices = |listener: &&crate::backlog::listener::Listener| {
        Some(listener.index.load(Ordering::Relaxed)).filter(|index| *index != UNREGISTERED)
    };
    let Some(index) = REGISTRY.lock().iter().find_map(indices) else { return false };
    // The monitor answers in turn, so what it offers has come before this answer.
    let answer = client::question_within(&Request::Waiting { index }, LOOK_MS);
    client::check_mail();
    matches!(answer, Some((Reply::Waiting { .. }, _)))
}

fn ask(now: u64, in_vain: &AtomicU32) {
    let _user = User::enter();
    ASKED_AT.store(now, Ordering::Relaxed);
    in_vain.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_add(1)).ok();
    if starving::take(&PROCESS.header().starving) {
        client::tell(&Request::Idle { channel: 0 }, &[]);
    }
    if TOLD_AT.swap(0, Ordering::SeqCst) == 0 {
        return;
    }
    for channel in PROCESS.channels().filter(|channel| channel.left_beside.swap(false, Ordering::SeqCst)) {
        client::tell(&Request::Idle { channel: channel.id }, &[]);
    }
}
