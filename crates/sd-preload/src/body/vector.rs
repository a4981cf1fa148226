//! preadv2 and pwritev2 on a socket: with offset -1 they are readv and writev, and RWF_NOWAIT is MSG_DONTWAIT.
//!
//! Everything else (another offset: ESPIPE; an unknown flag: EOPNOTSUPP; a bad count: EINVAL) fails before the
//! kernel looks at the socket, so the placeholder gives the right errno.

use core::ffi::c_int;
use libc::{RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC, iovec, msghdr, off_t, ssize_t};
use sd_socket::{Outcome, calls};

/// These mean nothing to a socket.
const RWF_IGNORED: c_int = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND;

enum Mode {
    Plain,
    NoWait,
    Rejected,
}

fn mode(count: c_int, offset: off_t, flags: c_int) -> Mode {
    match (offset, flags & !RWF_IGNORED) {
        (-1, 0) => Mode::Plain,
        (-1, RWF_NOWAIT) if (0..=libc::UIO_MAXIOV).contains(&count) => Mode::NoWait,
        _ => Mode::Rejected,
    }
}

fn message(iov: *const iovec, count: c_int) -> msghdr {
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = iov.cast_mut();
    msg.msg_iovlen = count as usize;
    msg
}

/// # Safety
/// libc's contract.
pub(crate) unsafe fn preadv2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Outcome<ssize_t> {
    // SAFETY: libc's contract.
    unsafe {
        match mode(count, offset, flags) {
            Mode::Plain => calls::readv(fd, iov, count),
            Mode::NoWait => calls::recvmsg(fd, &mut message(iov, count), libc::MSG_DONTWAIT),
            Mode::Rejected => Outcome::Kernel,
        }
    }
}

/// # Safety
/// libc's contract.
pub(crate) unsafe fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Outcome<ssize_t> {
    // SAFETY: libc's contract.
    unsafe {
        match mode(count, offset, flags) {
            Mode::Plain => calls::writev(fd, iov, count),
            Mode::NoWait => calls::sendmsg(fd, &message(iov, count), libc::MSG_DONTWAIT),
            Mode::Rejected => Outcome::Kernel,
        }
    }
}
