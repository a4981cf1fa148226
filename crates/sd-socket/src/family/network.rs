//! unshare(2), setns(2) and clone(2): a thread of the program goes to another network namespace, or a child begins there. And chroot(2): another
//! root directory.
//!
//! A socket belongs to the namespace in which it was made. Those that are there stay where they are, accelerated or not;
//! one that has no kernel socket yet gets it before the move. From then on the process connects over the kernel, and
//! sockets that it makes are the kernel's: the monitor knows it as one of the namespace in which it
//! registered, and which thread is where we do not follow. A program that it executes begins anew. Tested by the
//! subjects `network/*`.

use crate::Outcome;
use crate::fd::table::{self, Entry};
use crate::process::network::HAS_LEFT;
use crate::socket::endpoint::{EndpointExt, OWN_SOCKET};
use crate::socket::kernel_socket::materialize;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use sd_shm::slab::State;
use sd_sys::fd::netns;

/// Makes `go` take the calling thread to another namespace, perhaps one of networks; it says as unshare(2) whether it
/// did.
pub fn leave(go: impl FnOnce() -> c_int) -> Outcome<c_int> {
    if !crate::process::env::may_work() {
        return Outcome::Kernel;
    }
    let before = netns();
    settle();
    let result = go();
    if result == 0 && (before.is_err() || before != netns()) {
        HAS_LEFT.store(true, Ordering::Relaxed);
    }
    Outcome::Done(result)
}

/// The program is about to have another root directory, where the path to the monitor leads elsewhere: it gets to know the monitor now. Not who
/// is done soon, most likely.
pub fn before_chroot() {
    if !crate::setup::handed_on::is_brief() {
        drop(crate::monitor::client::connected());
    }
}

/// Makes `fork` make a child, which begins in another namespace if clone's flags say so.
pub fn child(flags: c_int, fork: impl FnOnce() -> c_int) -> c_int {
    if flags & libc::CLONE_NEWNET == 0 {
        return fork();
    }
    settle();
    // What other threads make meanwhile is the kernel's, which does no harm.
    let before = HAS_LEFT.swap(true, Ordering::Relaxed);
    let pid = fork();
    if pid != 0 {
        HAS_LEFT.store(before, Ordering::Relaxed);
    }
    pid
}

/// Gives fresh sockets their kernel socket, here and now.
fn settle() {
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Socket(endpoint) = entry
            && endpoint.state_now() == State::Fresh
            && !endpoint.flag(OWN_SOCKET)
        {
            let _ = materialize(endpoint);
        }
    });
}
