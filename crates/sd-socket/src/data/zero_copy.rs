//! SO_ZEROCOPY and MSG_ZEROCOPY: the error queue says which sends are done with their buffers.
//!
//! The bytes are copied, as the kernel copies them on loopback (SO_EE_CODE_ZEROCOPY_COPIED), so a send is done when it
//! returns. Sends are numbered from zero; one notice tells of all since the last
//! (linux/Documentation/networking/msg_zerocopy.rst). Tested by the subjects `rare/zero_copy*`.

use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, ZERO_COPY};
use core::sync::atomic::Ordering;
use libc::{c_int, msghdr};
use sd_shm::slab::Endpoint;
use sd_sys::Errno;
use sd_sys::libcs::length;

/// So many bytes were sent with these flags.
#[inline]
pub(super) fn sent(endpoint: &'static Endpoint, flags: c_int, len: usize) {
    if flags & libc::MSG_ZEROCOPY != 0 && len != 0 && endpoint.flag(ZERO_COPY) {
        cold::change(endpoint, |cold| _ = cold.zero_copies.fetch_add(1, Ordering::AcqRel));
        crate::epoll::look_again(endpoint);
    }
}

/// Takes a notice: the first and the last send that it tells of.
pub(crate) fn take(endpoint: &Endpoint) -> Option<(u32, u32)> {
    let cold = cold::of(endpoint);
    let told = &cold.zero_copies_told;
    let mut first = told.load(Ordering::Acquire);
    loop {
        let all = cold.zero_copies.load(Ordering::Acquire);
        if all == first {
            return None;
        }
        match told.compare_exchange(first, all, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some((first, all.wrapping_sub(1))),
            Err(now) => first = now,
        }
    }
}

/// recvmsg(2) with MSG_ERRQUEUE: `ip_recv_error` and `put_cmsg` in the kernel.
///
/// # Safety
/// `msg` is what recvmsg(2) wants.
pub(super) unsafe fn recvmsg(endpoint: &Endpoint, msg: *mut msghdr) -> Result<usize, Errno> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    // `ee_origin` SO_EE_ORIGIN_ZEROCOPY, `ee_code` SO_EE_CODE_ZEROCOPY_COPIED.
    const COPIED: u32 = 5 | 1 << 16;
    let (first, last) = take(endpoint).ok_or(Errno::EAGAIN)?;
    let is_v6 = endpoint.family() == libc::AF_INET6;
    // The error, and an address that is nobody's.
    let (level, kind, full) = match is_v6 {
        true => (libc::SOL_IPV6, libc::IPV6_RECVERR, HEADER + 16 + 28),
        false => (libc::SOL_IP, libc::IP_RECVERR, HEADER + 16 + 16),
    };
    // SAFETY: as the caller says; at most `room` bytes are written.
    unsafe {
        let room = length(core::mem::replace(&mut (*msg).msg_controllen, 0));
        (*msg).msg_namelen = 0;
        (*msg).msg_flags = libc::MSG_ERRQUEUE;
        if (*msg).msg_control.is_null() || room < HEADER {
            (*msg).msg_flags |= libc::MSG_CTRUNC;
            return Ok(0);
        }
        let len = full.min(room);
        let kind = (kind as u64) << 32 | level as u64;
        let range = u64::from(last) << 32 | u64::from(first);
        let words = [len as u64, kind, u64::from(COPIED) << 32, range, 0, 0, 0, 0];
        core::ptr::copy_nonoverlapping(words.as_ptr().cast::<u8>(), (*msg).msg_control.cast(), len);
        (*msg).msg_controllen = len.next_multiple_of(8).min(room);
        if len < full {
            (*msg).msg_flags |= libc::MSG_CTRUNC;
        }
    }
    Ok(0)
}
