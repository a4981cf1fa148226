//! The calls that move bytes, with libc's arguments; a part of [`crate::calls`], whose rules hold here too.
#![allow(clippy::missing_safety_doc)]

use crate::Outcome;
use crate::data::fast;
use crate::data::iov::{BYTES_MAX, Pieces, bad_pointer};
use crate::data::message;
use crate::data::stream;
use crate::setup::{unconnected, watched};
use crate::socket::endpoint::connection;
use libc::{c_int, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use sd_shm::slab::Endpoint;
use sd_sys::Errno;
use sd_sys::thread::Called;

/// No address is named.
pub(super) const NOWHERE: (*const sockaddr, socklen_t) = (core::ptr::null(), 0);

/// recv(2).
#[inline]
pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> Outcome<ssize_t> {
    let Some(endpoint) = connection(fd) else {
        if watched::enters(fd, flags) {
            return Outcome::Kernel;
        }
        // SAFETY: see the module.
        return unconnected::recv(fd, flags, || unsafe { recv(fd, buf, len, flags) });
    };
    if flags & !USUAL == 0 && !bad_pointer(buf, len) {
        let got = fast::recv(endpoint, buf as *mut u8, len.min(BYTES_MAX));
        if got != 0 {
            return Outcome::Done(got as ssize_t);
        }
    }
    // SAFETY: see the module.
    let anew = || unconnected::recv(fd, flags, || unsafe { recv(fd, buf, len, flags) });
    recv_slow((endpoint, fd), buf, len, flags).or_moved(anew)
}

/// Flags that ask for nothing where nobody has to wait, and nothing fails.
const USUAL: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

#[inline(never)]
fn recv_slow(
    (endpoint, fd): (&'static Endpoint, c_int),
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> Outcome<ssize_t> {
    let _called = Called::on(fd);
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC) != 0 || bad_pointer(buf, len) {
        return message::recv_specially(endpoint, buf, len, flags);
    }
    stream::recv(endpoint, Pieces::one(buf as *mut u8, len), flags).map(|n| n as ssize_t).into()
}

/// send(2).
#[inline]
pub unsafe fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> Outcome<ssize_t> {
    let Some(endpoint) = connection(fd) else {
        if watched::enters(fd, flags) {
            return Outcome::Kernel;
        }
        // SAFETY: see the module.
        let again = |flags| unsafe { send(fd, buf, len, flags) };
        // SAFETY: see the module.
        return unsafe { unconnected::send(fd, flags, NOWHERE, again) };
    };
    let is_usual = flags & !USUAL == 0 && len != 0 && !bad_pointer(buf, len);
    if is_usual && fast::send(endpoint, buf as *const u8, len) {
        return Outcome::Done(len as ssize_t);
    }
    // SAFETY: see the module.
    let again = |flags| unsafe { send(fd, buf, len, flags) };
    // SAFETY: see the module.
    send_slow((endpoint, fd), (buf, len), flags)
        .or_moved(|| unsafe { unconnected::send(fd, flags, NOWHERE, again) })
}

/// recvfrom(2): TCP fills in no address.
pub unsafe fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> Outcome<ssize_t> {
    // SAFETY: see the module.
    let outcome = unsafe { recv(fd, buf, len, flags) };
    if !matches!(outcome, Outcome::Done(_)) || addr.is_null() {
        return outcome;
    }
    if !sd_sys::user::seems_writable(addr_len, size_of::<socklen_t>()) {
        return Outcome::Errno(Errno::EFAULT);
    }
    // SAFETY: see the module.
    if unsafe { addr_len.read_unaligned() } as i32 <= -1 {
        return Outcome::Errno(Errno::EINVAL);
    }
    // SAFETY: see the module.
    unsafe { addr_len.write_unaligned(0) };
    outcome
}

/// sendto(2): a connected TCP socket ignores the address.
pub unsafe fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> Outcome<ssize_t> {
    if addr.is_null() {
        // SAFETY: see the module.
        return unsafe { send(fd, buf, len, flags) };
    }
    let Some(endpoint) = connection(fd) else {
        // SAFETY: see the module.
        let again = |flags| unsafe { send(fd, buf, len, flags) };
        // SAFETY: see the module.
        return unsafe { unconnected::send(fd, flags, (addr, addr_len), again) };
    };
    match crate::socket::addr::is_readable(addr, addr_len) {
        Ok(()) => {
            // SAFETY: see the module.
            let again = |flags| unsafe { sendto(fd, buf, len, flags, addr, addr_len) };
            // SAFETY: see the module.
            let anew = || unsafe { unconnected::send(fd, flags, (addr, addr_len), again) };
            send_slow((endpoint, fd), (buf, len), flags).or_moved(anew)
        }
        Err(errno) => Outcome::Errno(errno),
    }
}

#[inline(never)]
fn send_slow(
    (endpoint, fd): (&'static Endpoint, c_int),
    (buf, len): (*const c_void, size_t),
    flags: c_int,
) -> Outcome<ssize_t> {
    let _called = Called::on(fd);
    if bad_pointer(buf, len) {
        return Outcome::Errno(crate::data::nowhere::send_from(endpoint, buf, len, flags));
    }
    let pieces = Pieces::one(buf as *mut u8, len);
    if flags & (libc::MSG_OOB | libc::MSG_FASTOPEN) != 0 {
        return message::send_specially(endpoint, pieces, flags);
    }
    let sent = stream::send(endpoint, pieces, flags);
    crate::data::zero_copy::sent(endpoint, flags, sent.unwrap_or(0));
    sent.map(|n| n as ssize_t).into()
}

/// read(2).
#[inline]
pub unsafe fn read(fd: c_int, buf: *mut c_void, len: size_t) -> Outcome<ssize_t> {
    if len == 0 {
        let is_ours = connection(fd).is_some() || watched::enter(fd, 0);
        return if is_ours { Outcome::Done(0) } else { Outcome::Kernel };
    }
    // SAFETY: see the module.
    unsafe { recv(fd, buf, len, 0) }
}

/// write(2).
#[inline]
pub unsafe fn write(fd: c_int, buf: *const c_void, len: size_t) -> Outcome<ssize_t> {
    // SAFETY: see the module.
    unsafe { send(fd, buf, len, 0) }
}

unsafe fn pieces(iov: *const iovec, count: c_int) -> Result<Pieces, Errno> {
    match usize::try_from(count) {
        // readv and writev call too many buffers EINVAL, sendmsg EMSGSIZE.
        Ok(count) if count <= crate::data::iov::IOV_MAX => {
            // SAFETY: see the module.
            unsafe { Pieces::many(iov, count) }
        }
        _ => Err(Errno::EINVAL),
    }
}

/// readv, and preadv2 with offset -1.
pub unsafe fn readv(fd: c_int, iov: *const iovec, count: c_int) -> Outcome<ssize_t> {
    let Some(endpoint) = connection(fd) else {
        if watched::enters(fd, 0) {
            return Outcome::Kernel;
        }
        // SAFETY: see the module.
        return unconnected::recv(fd, 0, || unsafe { readv(fd, iov, count) });
    };
    let called = Called::on(fd);
    // SAFETY: see the module.
    let result = match unsafe { pieces(iov, count) } {
        Ok(p) if p.total == 0 => Ok(0),
        Ok(p) if p.nowhere => crate::data::nowhere::recv_to_nowhere(endpoint, 0),
        Ok(p) => stream::recv(endpoint, p, 0),
        Err(errno) => Err(errno),
    };
    drop(called);
    // SAFETY: see the module.
    let anew = || unconnected::recv(fd, 0, || unsafe { readv(fd, iov, count) });
    Outcome::from(result.map(|n| n as ssize_t)).or_moved(anew)
}

/// writev, and pwritev2 with offset -1.
pub unsafe fn writev(fd: c_int, iov: *const iovec, count: c_int) -> Outcome<ssize_t> {
    let Some(endpoint) = connection(fd) else {
        if watched::enters(fd, 0) {
            return Outcome::Kernel;
        }
        // SAFETY: see the module.
        if unsafe { pieces(iov, count) }.is_ok_and(|pieces| pieces.total == 0) {
            return Outcome::Done(0);
        }
        // SAFETY: see the module.
        let again = |_| unsafe { writev(fd, iov, count) };
        // SAFETY: see the module.
        return unsafe { unconnected::send(fd, 0, NOWHERE, again) };
    };
    let called = Called::on(fd);
    // SAFETY: see the module.
    let result = match unsafe { pieces(iov, count) } {
        Ok(p) if p.nowhere => Err(crate::data::nowhere::send_from_nowhere(endpoint, 0)),
        // Nobody is asked, unlike in write(2).
        Ok(p) if p.total == 0 => Ok(0),
        Ok(p) => stream::send(endpoint, p, 0),
        Err(errno) => Err(errno),
    };
    drop(called);
    // SAFETY: see the module.
    let again = |_| unsafe { writev(fd, iov, count) };
    // SAFETY: see the module.
    let anew = || unsafe { unconnected::send(fd, 0, NOWHERE, again) };
    Outcome::from(result.map(|n| n as ssize_t)).or_moved(anew)
}

/// MSG_CMSG_COMPAT: the kernel refuses it, whatever the socket.
pub(crate) const CMSG_COMPAT: c_int = c_int::MIN;

/// recvmsg(2).
pub unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Outcome<ssize_t> {
    if flags & CMSG_COMPAT != 0 {
        watched::enter(fd, 0);
        return Outcome::Kernel;
    }
    let Some(endpoint) = connection(fd) else {
        // SAFETY: see the module.
        return unconnected::recv(fd, flags, || unsafe { recvmsg(fd, msg, flags) });
    };
    // SAFETY: see the module.
    let anew = || unconnected::recv(fd, flags, || unsafe { recvmsg(fd, msg, flags) });
    let _called = Called::on(fd);
    // SAFETY: see the module.
    unsafe { message::recvmsg(endpoint, msg, flags) }.or_moved(anew)
}

/// sendmsg(2).
pub(crate) unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Outcome<ssize_t> {
    if flags & CMSG_COMPAT != 0 {
        watched::enter(fd, 0);
        return Outcome::Kernel;
    }
    let Some(endpoint) = connection(fd) else {
        // SAFETY: see the module.
        let again = |flags| unsafe { sendmsg(fd, msg, flags) };
        // SAFETY: see the module.
        return unsafe { unconnected::send(fd, flags, message::name_of(msg), again) };
    };
    // SAFETY: see the module.
    let again = |flags| unsafe { sendmsg(fd, msg, flags) };
    // SAFETY: see the module.
    let anew = || unsafe { unconnected::send(fd, flags, message::name_of(msg), again) };
    let _called = Called::on(fd);
    // SAFETY: see the module.
    unsafe { message::sendmsg(endpoint, msg, flags) }.or_moved(anew)
}

/// recvmmsg(2).
pub unsafe fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> Outcome<c_int> {
    if flags & CMSG_COMPAT != 0 {
        watched::enter(fd, 0);
        return Outcome::Kernel;
    }
    let Some(endpoint) = connection(fd) else {
        if let Some(errno) = unconnected::error_before_messages(fd, flags) {
            return Outcome::Errno(errno);
        }
        // SAFETY: see the module.
        return unconnected::recv(fd, flags, || unsafe { recvmmsg(fd, msgs, count, flags, timeout) });
    };
    // SAFETY: see the module.
    let anew = || unconnected::recv(fd, flags, || unsafe { recvmmsg(fd, msgs, count, flags, timeout) });
    let _called = Called::on(fd);
    // SAFETY: see the module.
    unsafe { message::recvmmsg(endpoint, msgs, count, flags, timeout) }.or_moved(anew)
}

/// sendmmsg(2).
pub unsafe fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int) -> Outcome<c_int> {
    if flags & CMSG_COMPAT != 0 {
        watched::enter(fd, 0);
        return Outcome::Kernel;
    }
    let Some(endpoint) = connection(fd) else {
        // SAFETY: see the module.
        let again = |flags| unsafe { sendmmsg(fd, msgs, count, flags) };
        // SAFETY: see the module.
        return unsafe { unconnected::send(fd, flags, NOWHERE, again) };
    };
    // SAFETY: see the module.
    let again = |flags| unsafe { sendmmsg(fd, msgs, count, flags) };
    // SAFETY: see the module.
    let anew = || unsafe { unconnected::send(fd, flags, NOWHERE, again) };
    let _called = Called::on(fd);
    // SAFETY: see the module.
    unsafe { message::sendmmsg(endpoint, msgs, count, flags) }.or_moved(anew)
}
