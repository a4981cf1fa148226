//! Memory that is another process's: that of a child of vfork(2), until it executes or ends.
//!
//! Only a process that has nothing of ours, and one thread, has such children (`sd-preload`'s `body/process.rs`); the others fork. What the
//! library noted in that memory would be the parent's. So in the child it only passes calls on.

use core::sync::atomic::{AtomicI32, Ordering};

/// Whose memory it is, while there may be such a child; or zero.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether this process runs on another's memory.
#[inline]
pub(crate) fn is_borrowed() -> bool {
    match OWNER.load(Ordering::Relaxed) {
        0 => false,
        owner => differs(owner),
    }
}

#[cold]
fn differs(owner: i32) -> bool {
    if owner != sd_sys::fd::getpid() {
        return true;
    }
    // It runs again, so the child does not any more.
    OWNER.store(0, Ordering::Relaxed);
    false
}

/// Before vfork(2), in a process with one thread.
pub(crate) fn lend() {
    if !is_borrowed() {
        OWNER.store(sd_sys::fd::getpid(), Ordering::Relaxed);
    }
}

/// In the child of a fork, which has memory of its own.
pub(crate) fn forked() {
    if OWNER.load(Ordering::Relaxed) != 0 {
        OWNER.store(0, Ordering::Relaxed);
    }
}
