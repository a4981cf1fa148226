//! Descriptors that arrive in messages on the kernel's Unix sockets: recvmsg is a creator of descriptors too.

use core::ffi::c_int;
use libc::{SCM_RIGHTS, SOL_SOCKET, cmsghdr, mmsghdr, msghdr, ssize_t};
use sd_socket::calls;
use sd_sys::libcs::length;

/// A pidfd of the sender (SO_PASSPIDFD); one number.
const SCM_PIDFD: c_int = 4;

/// The result `len` of recvmsg(2) on a socket of the kernel's.
///
/// # Safety
/// If `len` is not negative, the kernel has just filled `msg`.
#[inline(always)]
pub(crate) unsafe fn message(msg: *mut msghdr, len: ssize_t, flags: c_int) -> ssize_t {
    // SAFETY: by contract.
    unsafe {
        if len >= 0 && length((*msg).msg_controllen) >= size_of::<cmsghdr>() {
            renumber(msg, flags & libc::MSG_PEEK != 0);
        }
    }
    len
}

/// The result `count` of recvmmsg(2).
///
/// # Safety
/// The kernel has just filled `count` messages, if that is not negative.
pub(crate) unsafe fn messages(msgs: *mut mmsghdr, count: c_int, flags: c_int) -> c_int {
    for i in 0..count.max(0) as usize {
        // SAFETY: the kernel has written this many.
        unsafe { message(&raw mut (*msgs.add(i)).msg_hdr, 0, flags) };
    }
    count
}

/// Gives each descriptor in the control messages the number that the program is to see. What was only looked at
/// will be received again, so it stays what it is.
///
/// # Safety
/// The kernel has just written the control messages of `msg`.
#[cold]
unsafe fn renumber(msg: *mut msghdr, is_peek: bool) {
    // SAFETY: the kernel's control messages are well formed, and lie within the caller's buffer.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(msg);
        while !head.is_null() {
            if (*head).cmsg_level == SOL_SOCKET && matches!((*head).cmsg_type, SCM_RIGHTS | SCM_PIDFD) {
                let bytes = (*head).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let (fds, count) = (libc::CMSG_DATA(head) as *mut c_int, bytes / size_of::<c_int>());
                let given = (0..count).map(|i| fds.add(i).read_unaligned()).map(|number| match is_peek {
                    true => calls::created(number),
                    false => calls::received(number),
                });
                // The program may have the first of them only, since the kernel gives out the lowest numbers.
                let given = given.filter(Result::is_ok).count();
                if given < count {
                    return truncate(msg, head, given);
                }
            }
            head = libc::CMSG_NXTHDR(msg, head);
        }
    }
}

/// As Linux tells that numbers were short: the message ends with the `given` descriptors of its part `head`.
///
/// # Safety
/// As for [`renumber`]; `head` is one of its parts.
#[cold]
unsafe fn truncate(msg: *mut msghdr, head: *mut cmsghdr, given: usize) {
    let bytes = (given * size_of::<c_int>()) as libc::c_uint;
    // SAFETY: by contract; both lengths shrink. CMSG_LEN and CMSG_SPACE only compute.
    unsafe {
        let before = head as usize - (*msg).msg_control as usize;
        (*msg).msg_flags |= libc::MSG_CTRUNC;
        (*msg).msg_controllen = before;
        if given > 0 {
            (*head).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            (*msg).msg_controllen = before + libc::CMSG_SPACE(bytes) as usize;
        }
    }
}

/// Whether an outgoing message carries control data, which may be descriptors of ours.
#[inline(always)]
pub(crate) fn has_control(msg: *const msghdr) -> bool {
    // SAFETY: it can be read; what cannot is left to the kernel's EFAULT.
    sd_sys::user::seems_readable(msg, size_of::<msghdr>()) && unsafe { length((*msg).msg_controllen) } != 0
}
