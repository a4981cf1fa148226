//! fstat(2): a socket has an inode of its own, and keeps it when it is passed on.
//!
//! Most numbers lead to a placeholder, which all sockets of a process share. Who asks gets a kernel socket of his own under
//! the number (`kernel_socket::materialize`), and where a bridge takes the connection's place, it is that socket which the bridge
//! connects: so a receiver finds the inode that the sender has told it of (Dovecot compares them).
//!
//! Not guaranteed: that a socket whose inode was looked at long ago, or before a fork, keeps it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Inodes of kernel sockets that this process has made, for one endpoint each or without a monitor, and that no other process has:
/// the latest.
static OWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A kernel socket was made for the endpoint to which this number leads.
pub(crate) fn note(fd: c_int) {
    let Ok((_, inode)) = sd_sys::fd::identity(fd) else { return };
    if !OWN.iter().any(|own| own.load(Ordering::Relaxed) == inode) {
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % OWN.len();
        OWN.get(at).into_iter().for_each(|own| own.store(inode, Ordering::Relaxed));
    }
}

pub(crate) fn is_own(fd: c_int) -> bool {
    sd_sys::fd::identity(fd)
        .is_ok_and(|(_, inode)| OWN.iter().any(|own| own.load(Ordering::Relaxed) == inode))
}

/// Before a fork: the child will have them too.
pub(crate) fn before_fork() {
    // Memory that is written to around a fork is copied.
    if NEXT.load(Ordering::Relaxed) != 0 {
        OWN.iter().for_each(|own| own.store(0, Ordering::Relaxed));
        NEXT.store(0, Ordering::Relaxed);
    }
}
