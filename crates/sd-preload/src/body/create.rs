//! New descriptors from the kernel, and many closed at once.

use crate::edge;
use core::ffi::c_int;
use sd_socket::{Outcome, calls};
use sd_sys::Errno;

/// A new descriptor, or what failed.
#[inline(always)]
pub(crate) fn made(fd: c_int) -> c_int {
    match fd {
        -1 => -1,
        _ => calls::created(fd).unwrap_or_else(edge::fail),
    }
}

/// A connection of the kernel's that was accepted.
#[inline(always)]
pub(crate) fn accepted(fd: c_int) -> c_int {
    calls::accepted(made(fd))
}

/// A new epoll instance; its number too must be the lowest.
pub(crate) fn epoll(fd: c_int) -> c_int {
    match fd {
        -1 => -1,
        _ => calls::epoll_created(made(fd)),
    }
}

/// Two new descriptors, if `ret` is success.
///
/// # Safety
/// On success both places must hold a number.
pub(crate) unsafe fn pair(first: *mut c_int, second: *mut c_int, ret: c_int) -> c_int {
    if ret != 0 {
        return ret;
    }
    // SAFETY: the real function has just written both.
    match unsafe { [*first, *second] }.map(calls::created) {
        [Ok(_), Ok(_)] => ret,
        made => {
            made.into_iter().flatten().for_each(sd_sys::fd::close);
            edge::fail(Errno::EMFILE)
        }
    }
}

/// Whether fcntl creates a descriptor. What other commands return is no number to be looked at: F_SETFD's success is
/// no descriptor 0, and FD_CLOEXEC no descriptor 1.
#[inline(always)]
pub(crate) fn by_fcntl(cmd: c_int) -> bool {
    matches!(cmd, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// signalfd creates when `fd` is -1; else it changes `fd`.
pub(crate) fn by_signalfd(fd: c_int, ret: c_int) -> c_int {
    if fd == -1 { made(ret) } else { ret }
}

/// closefrom(3) cannot fail; glibc's own knows what to do where close_range(2) is missing.
pub(crate) fn closefrom(first_fd: c_int) -> Outcome<()> {
    match calls::close_range(first_fd.max(0) as u32, u32::MAX, 0) {
        Outcome::Done(_) => Outcome::Done(()),
        Outcome::Kernel | Outcome::Errno(_) => Outcome::Kernel,
    }
}
