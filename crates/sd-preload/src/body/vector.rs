//! preadv2 and pwritev2 on a socket: with offset -1 they are readv and writev, and RWF_NOWAIT is MSG_DONTWAIT.
//!
//! Everything else (another offset: ESPIPE; an unknown flag: EOPNOTSUPP; a bad count: EINVAL) fails before the
//! kernel looks at the socket, so the placeholder gives the right errno.

use core::ffi::c_int;
use libc::{RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC, iovec, msghdr, off_t, ssize_t};
use sd_socket::{Outcome, calls};
use sd_sys::Errno;

/// Linux 6.9.
const RWF_NOAPPEND: c_int = 0x20;

/// These mean nothing to a socket.
const RWF_IGNORED: c_int = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND | RWF_NOAPPEND;

/// Linux 6.18: no SIGPIPE.
const RWF_NOSIGNAL: c_int = 0x100;

enum Mode {
    Plain,
    /// As a message, with these flags.
    Message(c_int),
    Rejected,
}

fn mode(count: c_int, offset: off_t, flags: c_int) -> Mode {
    let rest = flags & !RWF_IGNORED;
    let no_wait = if rest & RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    let no_signal = if rest & RWF_NOSIGNAL != 0 { libc::MSG_NOSIGNAL } else { 0 };
    match (offset, rest & !(RWF_NOWAIT | RWF_NOSIGNAL)) {
        (-1, 0) if rest == 0 && flags & RWF_NOAPPEND == 0 => Mode::Plain,
        (-1, 0) if !(0..=libc::UIO_MAXIOV).contains(&count) => Mode::Rejected,
        (-1, 0) if no_signal != 0 && !knows(RWF_NOSIGNAL) => Mode::Rejected,
        (-1, 0) if flags & RWF_NOAPPEND != 0 && !knows(RWF_NOAPPEND) => Mode::Rejected,
        (-1, 0) => Mode::Message(no_wait | no_signal),
        _ => Mode::Rejected,
    }
}

/// Whether this kernel knows a flag. It looks at flags before it reads; so what is asked is a descriptor that never has anything, and
/// not the program's, which may be a connection of the kernel's with bytes in it.
fn knows(flag: c_int) -> bool {
    let Ok(empty) = sd_sys::fd::eventfd(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) else { return false };
    let mut number = [0u8; 8];
    let part = iovec { iov_base: number.as_mut_ptr().cast(), iov_len: number.len() };
    const ANYWHERE: usize = usize::MAX;
    // SAFETY: the kernel writes at most eight bytes.
    let asked = unsafe {
        sd_sys::syscall!(libc::SYS_preadv2, empty.raw(), &raw const part, 1, ANYWHERE, ANYWHERE, flag)
    };
    sd_sys::check(asked) == Err(Errno::EAGAIN)
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
            Mode::Message(flags) => calls::recvmsg(fd, &mut message(iov, count), flags),
            Mode::Rejected => calls::passes(fd),
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
            Mode::Message(flags) => calls::sendmsg(fd, &message(iov, count), flags),
            Mode::Rejected => calls::passes(fd),
        }
    }
}
