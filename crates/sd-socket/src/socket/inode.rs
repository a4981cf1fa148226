//! fstat(2): a socket has an inode of its own, and keeps it when it is passed on.
//!
//! Most numbers lead to a placeholder, which all sockets of a process share. Who asks gets a kernel socket of his own under
//! the number (`connect::materialize`), and where a bridge takes the connection's place, it is that socket which the bridge
//! connects: so a receiver finds the inode that the sender has told it of (Dovecot compares them).
//!
//! Not guaranteed: that a socket whose inode was looked at long ago, or before a fork, keeps it.

use crate::fd::table;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sd_shm::slab::Endpoint;

/// Inodes of kernel sockets that this process has made for one endpoint each, and that no other process has: the latest.
static OWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Before fstat(2), or another call that tells the inode.
pub(crate) fn look(fd: c_int) {
    if let Some(endpoint) = table::socket(fd)
        && crate::setup::connect::materialize(endpoint).is_ok()
        && is_own(fd)
    {
        note(fd);
    }
}

/// A kernel socket was made for the endpoint to which this number leads.
pub(crate) fn note(fd: c_int) {
    let Ok((_, inode)) = sd_sys::fd::identity(fd) else { return };
    if !OWN.iter().any(|own| own.load(Ordering::Relaxed) == inode) {
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % OWN.len();
        OWN.get(at).into_iter().for_each(|own| own.store(inode, Ordering::Relaxed));
    }
}

fn is_own(fd: c_int) -> bool {
    sd_sys::fd::identity(fd)
        .is_ok_and(|(_, inode)| OWN.iter().any(|own| own.load(Ordering::Relaxed) == inode))
}

/// Before a fork: the child will have them too.
pub(crate) fn before_fork() {
    OWN.iter().for_each(|own| own.store(0, Ordering::Relaxed));
}

/// The kernel socket under the connection's numbers, if the kernel may connect it, as nobody else has it and it is not bound;
/// and what leads to its other end.
pub(crate) fn pair(endpoint: &'static Endpoint) -> Option<(i32, i32)> {
    let fd = endpoint.fd.load(Ordering::Relaxed);
    let is_it = table::socket(fd).is_some_and(|found| core::ptr::eq(found, endpoint)) && is_own(fd);
    let is_unbound = || crate::socket::addr::kernel_name(fd).is_some_and(|(_, name)| name.port == 0);
    let outer = (is_it && is_unbound()).then(|| sd_sys::fd::dup_above(fd, 3).ok()).flatten()?;
    let flags = sd_sys::fd::fcntl(outer, libc::F_GETFL, 0).unwrap_or(0);
    let _ = sd_sys::fd::fcntl(outer, libc::F_SETFL, 0);
    match crate::family::tcp_pair::make_from(outer) {
        Ok(inner) => {
            crate::options::replay(endpoint, outer);
            Some((outer, inner))
        }
        Err(_) => {
            let _ = sd_sys::fd::fcntl(outer, libc::F_SETFL, flags);
            sd_sys::fd::close(outer);
            None
        }
    }
}
