//! A connection of the kernel's that a parent has accepted, or made, for its child (PostgreSQL, xinetd). Its endpoint is in the parent's slab.
//!
//! What is offered is in the slab of who offers it. So when such a connection has shown that it lasts, and nobody else has it any more,
//! the child gets an endpoint of its own for it, and registers for that if it has not. Most children are gone before.
//!
//! What is done about servers that hand on all that they accept: `family::hands_on`.
//!
//! Tested by `cargo xtask sharing --only short-lived`.

use super::{promote, watched};
use crate::fd::table;
use crate::monitor::client;
use crate::process::PROCESS;
use crate::socket::endpoint::EndpointExt;
use crate::socket::life;
use crate::socket::road::{ACTIVE, NEVER, OFFERED, word};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;
use sd_shm::slab::{Endpoint, Promotes, Reason, State};
use sd_sys::section::Section;

/// The connection's endpoint in the process's own slab, and its word. `None`: others have it, or are in a call on it, or there is no monitor
/// that wants it.
pub(super) fn own(
    endpoint: &'static Endpoint,
    of: &'static AtomicU32,
    fd: c_int,
) -> Option<(&'static Endpoint, &'static AtomicU32)> {
    let (rec, index) = PROCESS.locate(endpoint)?;
    if PROCESS.owns(rec) {
        return Some((endpoint, of));
    }
    let is_alone = || {
        endpoint.holders.load(Ordering::Acquire) == rec.bit.load(Ordering::Relaxed)
            && rec.private(index).is_some_and(|private| private.fds.load(Ordering::Acquire) == 1)
            && endpoint.state_now() == State::Kernel
            && of.load(Ordering::Acquire) & NEVER == 0
    };
    if !is_alone() {
        return None;
    }
    drop(client::connected()?);
    // A handler of a signal would wait for this thread.
    let _section = Section::enter();
    let now = of.load(Ordering::Acquire);
    if crate::socket::road::promotes() == Promotes::Nothing || !promote::close(endpoint, now, OFFERED) {
        return None;
    }
    let own = if is_alone() { replace(endpoint, fd, now & ACTIVE != 0) } else { None };
    if own.is_none() {
        promote::open(endpoint, 0);
    }
    own
}

/// Who waits for the old endpoint to open finds that the number leads to the new one.
fn replace(
    old: &'static Endpoint,
    fd: c_int,
    active: bool,
) -> Option<(&'static Endpoint, &'static AtomicU32)> {
    let reason = Reason::from_u32(u32::from(old.reason.load(Ordering::Relaxed)));
    let endpoint = watched::endpoint_of(fd, reason, active)?;
    if !table::replace_kernel(fd, old, endpoint) {
        life::release(endpoint);
        return None;
    }
    life::release(old);
    word(endpoint).map(|word| (endpoint, word))
}

/// Accepted since it was looked at last how many were handed on.
static ACCEPTED: AtomicU32 = AtomicU32::new(0);

/// A connection was accepted.
#[inline]
pub(super) fn accepted() {
    ACCEPTED.fetch_add(1, Ordering::Relaxed);
}

/// So many have been accepted since the latest [`take_accepted`].
#[inline]
pub(crate) fn are_accepted(count: u32) -> bool {
    ACCEPTED.load(Ordering::Relaxed) >= count
}

/// How many that are.
pub(crate) fn take_accepted() -> u32 {
    ACCEPTED.swap(0, Ordering::Relaxed)
}
