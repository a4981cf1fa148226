//! recvmsg, sendmsg and their plural forms.

use crate::Outcome;
use crate::data::iov::{BYTES_MAX, Pieces, bad_pointer, is_beyond};
use crate::data::stream;
use crate::data::urgent;
use crate::data::zero_copy;
use crate::socket::endpoint::{EndpointExt, INQ, STAMPS, STAMPS_NS};
use crate::socket::errors;
use libc::{c_int, c_void, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t, timespec};
use sd_shm::slab::Endpoint;
use sd_sys::libcs::{length, next_control};
use sd_sys::{Errno, user};

/// recv(2) with one of the flags MSG_OOB, MSG_ERRQUEUE, MSG_TRUNC.
#[cold]
pub(super) fn recv_specially(
    endpoint: &'static Endpoint,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> Outcome<ssize_t> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return zero_copy::take(endpoint).map(|_| 0).ok_or(Errno::EAGAIN).into();
    }
    // As the kernel: recv(2) cuts a length before it looks, read(2) does not, and comes without flags.
    if is_beyond(buf, if flags == 0 { len } else { len.min(BYTES_MAX) }) {
        return Outcome::Errno(Errno::EFAULT);
    }
    let len = len.min(BYTES_MAX);
    let nowhere = bad_pointer(buf, len) && flags & libc::MSG_TRUNC == 0;
    let pieces = Pieces::one(buf as *mut u8, len);
    let done = match flags & libc::MSG_OOB {
        0 if nowhere => crate::data::nowhere::recv_to_nowhere(endpoint, flags),
        0 => stream::recv(endpoint, pieces, flags),
        _ if nowhere => urgent::recv(endpoint, pieces, flags | libc::MSG_TRUNC).and(Err(Errno::EFAULT)),
        _ => urgent::recv(endpoint, pieces, flags),
    };
    done.map(|n| n as ssize_t).into()
}

/// send(2) with one of the flags MSG_OOB, MSG_FASTOPEN.
#[cold]
pub(super) fn send_specially(endpoint: &'static Endpoint, pieces: Pieces, flags: c_int) -> Outcome<ssize_t> {
    if flags & libc::MSG_FASTOPEN != 0 {
        return Outcome::Errno(Errno::EISCONN);
    }
    urgent::send(endpoint, pieces, flags).map(|n| n as ssize_t).into()
}

/// The address that a message names.
///
/// # Safety
/// `msg` is what sendmsg(2) wants.
pub(super) unsafe fn name_of(msg: *const msghdr) -> (*const sockaddr, socklen_t) {
    if !user::seems_readable(msg, size_of::<msghdr>()) {
        return (core::ptr::null(), 0);
    }
    // SAFETY: as the caller says.
    unsafe { ((*msg).msg_name as *const sockaddr, (*msg).msg_namelen) }
}

/// # Safety
/// `msg` is what recvmsg(2) wants.
pub(super) unsafe fn recvmsg(
    endpoint: &'static Endpoint,
    msg: *mut msghdr,
    flags: c_int,
) -> Outcome<ssize_t> {
    if !user::seems_readable(msg, size_of::<msghdr>()) {
        return Outcome::Errno(Errno::EFAULT);
    }
    // SAFETY: as the caller says.
    if unsafe { (*msg).msg_namelen } as i32 <= -1 {
        return Outcome::Errno(Errno::EINVAL);
    }
    // SAFETY: as the caller says.
    let pieces = match unsafe { Pieces::many((*msg).msg_iov, length((*msg).msg_iovlen)) } {
        Ok(pieces) => pieces,
        Err(errno) => return Outcome::Errno(errno),
    };
    if flags & libc::MSG_ERRQUEUE != 0 {
        // SAFETY: as the caller says.
        return unsafe { zero_copy::recvmsg(endpoint, msg) }.map(|n| n as ssize_t).into();
    }
    let urgent = flags & libc::MSG_OOB != 0;
    let cut = if urgent && pieces.total == 0 { libc::MSG_TRUNC } else { 0 };
    let done = match urgent {
        _ if pieces.nowhere => crate::data::nowhere::recv_to_nowhere(endpoint, flags),
        false => stream::recv(endpoint, pieces, flags),
        true => urgent::recv(endpoint, pieces, flags),
    };
    match done {
        // What was received is lost, as in the kernel.
        Ok(_) if !user::seems_writable(msg, size_of::<msghdr>()) => Outcome::Errno(Errno::EFAULT),
        Ok(got) => {
            // TCP reports no address, and no control data but times.
            // SAFETY: as the caller says.
            unsafe {
                (*msg).msg_namelen = 0;
                let control_cut = put_control(endpoint, msg, got);
                (*msg).msg_flags = flags & (libc::MSG_CMSG_CLOEXEC | libc::MSG_OOB) | cut | control_cut;
            }
            Outcome::Done(got as ssize_t)
        }
        Err(errno) => Outcome::Errno(errno),
    }
}

/// The control data of a message: SO_TIMESTAMP's, which is the time of this call, and TCP_INQ's. MSG_CTRUNC when there
/// is no room for it.
///
/// # Safety
/// `msg` is what recvmsg(2) wants.
unsafe fn put_control(endpoint: &'static Endpoint, msg: *mut msghdr, got: usize) -> c_int {
    // SAFETY: as the caller says.
    let room = length(unsafe { core::mem::replace(&mut (*msg).msg_controllen, 0) });
    if !endpoint.flag(STAMPS | STAMPS_NS | INQ) {
        return 0;
    }
    // SAFETY: as the caller says.
    let mut control = Control { at: unsafe { (*msg).msg_control }.cast(), room, cut: 0 };
    if got != 0 && endpoint.flag(STAMPS | STAMPS_NS) {
        let now = sd_sys::time::real();
        let (kind, fraction) = match endpoint.flag(STAMPS) {
            true => (libc::SO_TIMESTAMP, now.tv_nsec / 1000),
            false => (libc::SO_TIMESTAMPNS, now.tv_nsec),
        };
        // SAFETY: as the caller says.
        unsafe { control.put(libc::SOL_SOCKET, kind, &[now.tv_sec, fraction]) };
    }
    if endpoint.flag(INQ) {
        // SAFETY: as the caller says.
        unsafe {
            control.put(libc::IPPROTO_TCP, libc::TCP_INQ, &[crate::socket::ring_view::bytes_left(endpoint)])
        };
    }
    // SAFETY: as the caller says.
    unsafe { (*msg).msg_controllen = room - control.room };
    control.cut
}

/// Room for control data.
struct Control {
    at: *mut u8,
    room: usize,
    cut: c_int,
}

impl Control {
    /// As the kernel's `put_cmsg`.
    ///
    /// # Safety
    /// The room can be written to.
    unsafe fn put<T: Copy>(&mut self, level: c_int, kind: c_int, data: &[T]) {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        if self.at.is_null() || self.room < HEADER {
            self.cut = libc::MSG_CTRUNC;
            return;
        }
        let whole = HEADER + size_of_val(data);
        let len = whole.min(self.room);
        if len < whole {
            self.cut = libc::MSG_CTRUNC;
        }
        let header = libc::cmsghdr { cmsg_len: len, cmsg_level: level, cmsg_type: kind };
        let step = whole.next_multiple_of(size_of::<usize>()).min(self.room);
        // SAFETY: `len` bytes are within the room, and `step` does not lead out of it.
        unsafe {
            self.at.cast::<libc::cmsghdr>().write_unaligned(header);
            core::ptr::copy_nonoverlapping(data.as_ptr().cast::<u8>(), self.at.add(HEADER), len - HEADER);
            self.at = self.at.add(step);
        }
        self.room -= step;
    }
}

/// # Safety
/// `msg` is what sendmsg(2) wants.
pub(super) unsafe fn sendmsg(
    endpoint: &'static Endpoint,
    msg: *const msghdr,
    flags: c_int,
) -> Outcome<ssize_t> {
    if !user::seems_readable(msg, size_of::<msghdr>()) {
        return Outcome::Errno(Errno::EFAULT);
    }
    // SAFETY: as the caller says.
    if let Err(errno) = unsafe { check_outgoing(&*msg) } {
        // Control data that makes no sense is met behind the connection's state.
        let state = if errno == Errno::EINVAL { errors::before_send(endpoint, flags).err() } else { None };
        return Outcome::Errno(state.unwrap_or(errno));
    }
    // SAFETY: as the caller says.
    let result = unsafe { Pieces::many((*msg).msg_iov, length((*msg).msg_iovlen)) }.and_then(|pieces| {
        match flags & libc::MSG_OOB {
            _ if flags & libc::MSG_FASTOPEN != 0 => Err(Errno::EISCONN),
            _ if pieces.nowhere => Err(crate::data::nowhere::send_from_nowhere(endpoint, flags)),
            0 => stream::send(endpoint, pieces, flags),
            _ => urgent::send(endpoint, pieces, flags),
        }
    });
    zero_copy::sent(endpoint, flags, result.unwrap_or(0));
    result.map(|n| n as ssize_t).into()
}

/// What sendmsg refuses before it sends: a negative name length, and control data that TCP cannot
/// make sense of.
///
/// # Safety
/// The message's pointers are what sendmsg(2) wants.
unsafe fn check_outgoing(msg: &msghdr) -> Result<(), Errno> {
    if !msg.msg_name.is_null() {
        if (msg.msg_namelen as i32) < 0 {
            return Err(Errno::EINVAL);
        }
        crate::socket::addr::is_readable(msg.msg_name.cast(), msg.msg_namelen.min(128))?;
    }
    // SAFETY: the CMSG macros stay within msg_controllen.
    unsafe {
        let room = length(msg.msg_controllen);
        if room > i32::MAX as usize {
            return Err(Errno::ENOBUFS);
        }
        if !user::seems_readable(msg.msg_control, room) {
            return Err(Errno::EFAULT);
        }
        let has_any = !msg.msg_control.is_null() && room >= size_of::<libc::cmsghdr>();
        let mut at = if has_any { msg.msg_control.cast() } else { core::ptr::null_mut::<libc::cmsghdr>() };
        let end = msg.msg_control as usize + room;
        while !at.is_null() {
            let (len, level, kind) = (length((*at).cmsg_len), (*at).cmsg_level, (*at).cmsg_type);
            if len < size_of::<libc::cmsghdr>() || at as usize + len > end {
                return Err(Errno::EINVAL);
            }
            let known = [libc::SO_MARK, libc::SO_TIMESTAMPING, libc::SCM_RIGHTS, libc::SCM_CREDENTIALS];
            if level == libc::SOL_SOCKET && !known.contains(&kind) {
                return Err(Errno::EINVAL);
            }
            at = next_control(at, end);
        }
    }
    Ok(())
}

/// # Safety
/// `msgs` points to `count` entries.
pub(super) unsafe fn recvmmsg(
    endpoint: &'static Endpoint,
    msgs: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> Outcome<c_int> {
    if !timeout.is_null() && !user::is_readable(timeout, size_of::<timespec>()) {
        return Outcome::Errno(Errno::EFAULT);
    }
    // SAFETY: as the caller says.
    let time = unsafe { timeout.as_ref() };
    if time.is_some_and(|t| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec)) {
        return Outcome::Errno(Errno::EINVAL);
    }
    // Unlike recvmsg, Linux takes the pending error before it looks for data.
    errors::note_end(endpoint);
    let error = if flags & libc::MSG_ERRQUEUE == 0 { errors::take_error(endpoint) } else { None };
    if let Some(errno) = error {
        return Outcome::Errno(errno);
    }
    if count != 0 && !user::seems_readable(msgs, size_of::<mmsghdr>()) {
        return Outcome::Errno(Errno::EFAULT);
    }
    let after =
        |t: &timespec| (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64);
    let limit = time.map(|t| sd_sys::time::now_ns().saturating_add(after(t)));
    let mut done = 0;
    let mut flags = flags;
    while done < count {
        // SAFETY: done < count.
        let entry = unsafe { &mut *msgs.add(done as usize) };
        // SAFETY: as the caller says.
        match unsafe { recvmsg(endpoint, &mut entry.msg_hdr, flags & !libc::MSG_WAITFORONE) } {
            Outcome::Done(n) => entry.msg_len = n as u32,
            Outcome::Errno(errno) if done == 0 => return Outcome::Errno(errno),
            Outcome::Kernel if done == 0 => return Outcome::Kernel,
            _ => break,
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        let is_urgent = entry.msg_hdr.msg_flags & libc::MSG_OOB != 0;
        if is_urgent || limit.is_some_and(|at| sd_sys::time::now_ns() >= at) {
            break;
        }
    }
    if let Some(at) = limit
        && done > 0
    {
        if !user::is_writable(timeout, size_of::<timespec>()) {
            return Outcome::Errno(Errno::EFAULT);
        }
        let left = sd_sys::time::timespec_of(at.saturating_sub(sd_sys::time::now_ns()));
        // SAFETY: it can be written.
        unsafe { timeout.write_unaligned(left) };
    }
    Outcome::Done(done as c_int)
}

/// # Safety
/// `msgs` points to `count` entries.
pub(super) unsafe fn sendmmsg(
    endpoint: &'static Endpoint,
    msgs: *mut mmsghdr,
    count: u32,
    flags: c_int,
) -> Outcome<c_int> {
    if count != 0 && !user::seems_readable(msgs, size_of::<mmsghdr>()) {
        return Outcome::Errno(Errno::EFAULT);
    }
    let mut done = 0;
    while done < count.min(1024) {
        // SAFETY: done < count.
        let entry = unsafe { msgs.add(done as usize) };
        // SAFETY: as the caller says.
        match unsafe { sendmsg(endpoint, &(*entry).msg_hdr, flags) } {
            Outcome::Done(_) if !user::seems_writable(entry, size_of::<mmsghdr>()) => {
                if done == 0 {
                    return Outcome::Errno(Errno::EFAULT);
                }
                break;
            }
            // SAFETY: it can be written.
            Outcome::Done(n) => unsafe { (*entry).msg_len = n as u32 },
            Outcome::Errno(errno) if done == 0 => return Outcome::Errno(errno),
            Outcome::Kernel if done == 0 => return Outcome::Kernel,
            _ => break,
        }
        done += 1;
    }
    Outcome::Done(done as c_int)
}
