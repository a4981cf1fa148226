//! Connections that another process accepts than the one they were made for (ADR 14).
//!
//! Side A learns from B's words of a slot that an adopter has accepted, and asks the monitor, once,
//! how to wake it. And side A is who complains: while a connection waits for accept, it tells the monitor after a
//! pause, which grows, so that an idle sibling gets it. When there is none, the monitor says so in the slabs
//! of all siblings, and the first that has nothing to do asks (`backlog::beside`). Since a client need not come back, it leaves
//! its word with the siblings where nobody was idle when it connected ([`leave_word`]).

use crate::link::channel::Channel;
use crate::monitor::client;
use crate::process::PROCESS;
use crate::route::target::Target;
use crate::socket::addr::Name;
use crate::wait::duties::{self, REQUESTS};
use core::sync::atomic::Ordering;
use sd_proto::Request;
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

/// A connection was requested of a process that was not idle, nor was anybody who shares its socket: who is idle first shall ask.
#[cold]
#[inline(never)]
pub(super) fn leave_word(to: Name, target: Target) {
    if !crate::route::say_left_beside(to, &target) {
        // Not all of them are known to this process.
        client::tell(&Request::Stuck { channel: target.channel.id }, &[]);
    }
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
