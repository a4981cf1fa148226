//! unshare(2) and setns(2), where they may change the network namespace; chroot(2), behind which no monitor is found.

use crate::table::real;
use core::ffi::c_int;
use sd_socket::{Outcome, network};

/// unshare(2).
pub(crate) fn unshare(flags: c_int) -> Outcome<c_int> {
    match flags & libc::CLONE_NEWNET {
        0 => Outcome::Kernel,
        // SAFETY: no pointers.
        _ => network::leave(|| unsafe { real::unshare(flags) }),
    }
}

/// setns(2).
pub(crate) fn setns(fd: c_int, kind: c_int) -> Outcome<c_int> {
    if kind != 0 && kind & libc::CLONE_NEWNET == 0 {
        return Outcome::Kernel;
    }
    // SAFETY: no pointers.
    network::leave(|| unsafe { real::setns(fd, kind) })
}

/// chroot(2), for which the kernel does all.
pub(crate) fn chroot() -> Outcome<c_int> {
    network::before_chroot();
    Outcome::Kernel
}
