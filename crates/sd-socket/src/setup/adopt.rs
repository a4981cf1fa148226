//! Connections that another process accepts than the one they were made for (ADR 14).
//!
//! Side A learns from B's words of a slot that an adopter has accepted, and asks the monitor, once,
//! how to wake it. And side A is who complains: while a connection waits for accept, it tells the monitor after a
//! pause, which grows, so that an idle sibling gets it. When there is none, the monitor says so in the slabs
//! of all siblings, and the first that has nothing to do asks.

use crate::link::channel::Channel;
use crate::monitor::client;
use crate::process::PROCESS;
use crate::wait::duties::{self, REQUESTS};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_proto::Request;
use sd_ring::sync::starving;
use sd_shm::channel::Side;

/// After so long the first complaint about a connection is made, each further one after four times as long.
const COMPLAINT_NS: u64 = 2_000_000;
/// Complaints about one connection. The monitor remembers them, so they are for what it overlooks.
const COMPLAINTS: u64 = 9;

/// A connection was requested.
#[inline]
pub(super) fn connecting() {
    duties::note(REQUESTS);
}

/// Complains where it is time, and says when somebody should look again.
#[cold]
pub(crate) fn complain() -> Option<u64> {
    let _user = crate::link::reclaim::User::enter();
    // Before the look: a connection that is requested meanwhile notes it again.
    duties::clear(REQUESTS);
    let mut next: Option<u64> = None;
    for channel in PROCESS.channels() {
        if channel.side == Side::A && !channel.inherited.load(Ordering::Relaxed) {
            next = crate::process::earlier(next, complain_of(channel));
        }
    }
    if next.is_some() {
        duties::note(REQUESTS);
    }
    next
}

/// When the next complaint about the channel's oldest connection is due, in nanoseconds from now.
fn complain_of(channel: &Channel) -> Option<u64> {
    let asked = channel.oldest_waiting()?;
    let waited = sd_sys::time::ns_of_ticks(sd_sys::time::ticks().saturating_sub(asked.at));
    let count = channel.complaints.count(&asked);
    let mut due = COMPLAINT_NS << (2 * count);
    if waited >= due {
        client::tell(&Request::Stuck { channel: channel.id }, &[]);
        channel.complaints.note(&asked, count + 1);
        if count + 1 >= COMPLAINTS {
            return None;
        }
        due <<= 2;
    }
    Some(due.saturating_sub(waited).max(COMPLAINT_NS / 4))
}

/// So often, at most, one process asks.
const ASK_EVERY_NS: u64 = 1_000_000;

/// Before a thread sleeps that may be waiting for connections: asks for those that wait at busy siblings, if the
/// monitor has said that there are some. How long it may sleep until it should ask again. The thread has said that it sleeps
/// (SYNC POINT: starving, with `starve` in crates/sd-monitor/src/shell/starving.rs).
#[inline]
pub(crate) fn ask_for_work() -> Option<u64> {
    let header = PROCESS.header();
    if !starving::has_heard(&header.starving) {
        return None;
    }
    ask(&header.starving)
}

#[cold]
fn ask(word: &AtomicU32) -> Option<u64> {
    static ASKED_AT: AtomicU64 = AtomicU64::new(0);
    let now = sd_sys::time::now_ns();
    let since = now.wrapping_sub(ASKED_AT.load(Ordering::Relaxed));
    if since < ASK_EVERY_NS {
        return Some(ASK_EVERY_NS - since);
    }
    ASKED_AT.store(now, Ordering::Relaxed);
    if starving::take(word) {
        client::tell(&Request::Idle, &[]);
    }
    None
}
