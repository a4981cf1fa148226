//! Before a seccomp filter of the program's: from then on the library does without what the filter forbids.
//!
//! The connections stay on shared memory, also because other processes may share them (OpenSSH's monitor holds that of
//! its confined child). Calls that are forbidden are not made (`sd_sys::confine`): instead of sleeping on
//! a futex or an epoll instance the process naps for a millisecond at most and looks again; it does not yield. If it
//! must not call futex, it cannot wake either: a bit in its side's words tells the peer to nap too.

use crate::Outcome;
use crate::fd::table::{self, Entry};
use crate::socket::bell;
use crate::socket::confine::cannot_wake;
use crate::socket::endpoint::EndpointExt;
use core::ffi::c_int;
use sd_ring::doorbell;
use sd_shm::slab::State;
use sd_sys::Errno;
use sd_sys::confine::{self, Set};

/// Makes `install` install a filter that forbids the calls of a set; it says as prctl(2) whether it did.
pub fn install(set: &Set, install: impl FnOnce() -> c_int) -> Outcome<c_int> {
    if crate::process::borrowed::is_borrowed() {
        return Outcome::Kernel;
    }
    // What is found out later would be about this filter too.
    crate::process::env::may_work();
    if !crate::family::separate::now() {
        return Outcome::Errno(Errno::EAGAIN);
    }
    // Asked for and kept, while that is allowed.
    crate::process::tid();
    crate::link::stranger::before_filter();
    let new = confine::forbid(set);
    if confine::has(&new, libc::SYS_futex) {
        table::for_each(0, u32::MAX, |_, entry| {
            if let Entry::Socket(endpoint) = entry
                && endpoint.state_now() == State::Connected
            {
                cannot_wake(endpoint);
                // Whoever sleeps on the connection at the other side looks again.
                bell::notify(endpoint, doorbell::RX_SLEEP | doorbell::TX_SLEEP);
            }
        });
    }
    let result = install();
    if result < 0 {
        confine::allow_again(&new);
    }
    Outcome::Done(result)
}
