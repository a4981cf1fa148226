//! Calls that move bytes.

use std::mem;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{Addr, Ret, pause, show, show_bytes};

pub(crate) fn send(fd: i32, data: &[u8], flags: i32) -> Ret {
    paced(fd, call!(libc::send(fd, data.as_ptr().cast(), data.len(), flags)))
}

pub(crate) fn recv(fd: i32, buffer: &mut [u8], flags: i32) -> Ret {
    paced(fd, call!(libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags)))
}

static PACE: AtomicU64 = AtomicU64::new(0);

/// What `SD_POSIX_PACE` says. To be read once and before all else, as handlers may not wait for who was interrupted while he read it.
pub(crate) fn read_pace() {
    let told = || std::env::var("SD_POSIX_PACE").ok()?.parse().ok();
    PACE.store(told().unwrap_or(0), Relaxed);
}

/// Waits so long after each of the first messages: for connections that change their road meanwhile.
fn paced(fd: i32, result: Ret) -> Ret {
    static LEFT: AtomicU32 = AtomicU32::new(16);
    let pace = PACE.load(Relaxed);
    let is_message = pace > 0 && result.value > 0 && fd < crate::role::INPUT;
    let counted = |left: u32| left.checked_sub(1);
    if is_message && LEFT.fetch_update(Relaxed, Relaxed, counted).is_ok() {
        pause(pace);
    }
    result
}

/// A `send` whose pointer is chosen by the subject.
pub(crate) fn send_raw(fd: i32, data: *const libc::c_void, len: usize) -> Ret {
    call!(libc::send(fd, data, len, libc::MSG_NOSIGNAL))
}

/// A `recv` whose pointer is chosen by the subject.
pub(crate) fn recv_raw(fd: i32, buffer: *mut libc::c_void, len: usize) -> Ret {
    call!(libc::recv(fd, buffer, len, libc::MSG_DONTWAIT))
}

pub(crate) fn write(fd: i32, data: &[u8]) -> Ret {
    paced(fd, call!(libc::write(fd, data.as_ptr().cast(), data.len())))
}

pub(crate) fn read(fd: i32, buffer: &mut [u8]) -> Ret {
    paced(fd, call!(libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len())))
}

pub(crate) fn pwrite(fd: i32, data: &[u8], offset: i64) -> Ret {
    call!(libc::pwrite(fd, data.as_ptr().cast(), data.len(), offset))
}

pub(crate) fn pread(fd: i32, buffer: &mut [u8], offset: i64) -> Ret {
    call!(libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), offset))
}

pub(crate) fn sendto(fd: i32, data: &[u8], flags: i32, addr: Option<&Addr>) -> Ret {
    let (to, len) = addr.map_or((ptr::null(), 0), |addr| (addr.ptr(), addr.len));
    call!(libc::sendto(fd, data.as_ptr().cast(), data.len(), flags, to, len))
}

/// `recvfrom` with a full-size address buffer, which comes back as the call left it.
pub(crate) fn recvfrom(fd: i32, buffer: &mut [u8], flags: i32) -> (Ret, Addr) {
    let mut addr = Addr::empty();
    let from = addr.ptr_mut();
    let result =
        call!(libc::recvfrom(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags, from, &raw mut addr.len));
    (result, addr)
}

/// Receives up to `len` bytes and prints them.
pub(crate) fn show_recv(label: &str, fd: i32, len: usize, flags: i32) -> Ret {
    let mut buffer = vec![0; len];
    let result = recv(fd, &mut buffer, flags);
    show_bytes(&format!("{label}: recv"), result, &buffer)
}

/// Reads up to `len` bytes and prints them.
pub(crate) fn show_read(label: &str, fd: i32, len: usize) -> Ret {
    let mut buffer = vec![0; len];
    let result = read(fd, &mut buffer);
    show_bytes(&format!("{label}: read"), result, &buffer)
}

/// Sends and prints the result.
pub(crate) fn show_send(label: &str, fd: i32, data: &[u8], flags: i32) -> Ret {
    show(&format!("{label}: send {}", data.len()), send(fd, data, flags))
}

fn iovecs(parts: &[&[u8]]) -> Vec<libc::iovec> {
    let to_iovec = |part: &&[u8]| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() };
    parts.iter().map(to_iovec).collect()
}

fn iovecs_mut(parts: &mut [Vec<u8>]) -> Vec<libc::iovec> {
    let to_iovec =
        |part: &mut Vec<u8>| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
    parts.iter_mut().map(to_iovec).collect()
}

pub(crate) fn writev(fd: i32, parts: &[&[u8]]) -> Ret {
    let iov = iovecs(parts);
    call!(libc::writev(fd, iov.as_ptr(), iov.len() as i32))
}

/// `writev` with a count and a length of the subject's choice.
pub(crate) fn writev_raw(fd: i32, iov: &[libc::iovec], count: i32) -> Ret {
    call!(libc::writev(fd, iov.as_ptr(), count))
}

pub(crate) fn readv(fd: i32, parts: &mut [Vec<u8>]) -> Ret {
    let iov = iovecs_mut(parts);
    call!(libc::readv(fd, iov.as_ptr(), iov.len() as i32))
}

/// An empty message header.
pub(crate) fn message() -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid msghdr.
    unsafe { mem::zeroed() }
}

pub(crate) fn sendmsg(fd: i32, parts: &[&[u8]], flags: i32) -> Ret {
    let mut iov = iovecs(parts);
    let mut header = message();
    header.msg_iov = iov.as_mut_ptr();
    header.msg_iovlen = iov.len() as _;
    sendmsg_raw(fd, &header, flags)
}

pub(crate) fn sendmsg_raw(fd: i32, header: &libc::msghdr, flags: i32) -> Ret {
    call!(libc::sendmsg(fd, header, flags))
}

pub(crate) fn recvmsg_raw(fd: i32, header: &mut libc::msghdr, flags: i32) -> Ret {
    call!(libc::recvmsg(fd, header, flags))
}

/// What `recvmsg` gave back besides its return value.
pub(crate) struct Received {
    pub(crate) result: Ret,
    pub(crate) parts: Vec<Vec<u8>>,
    pub(crate) flags: i32,
    pub(crate) name_len: u32,
    pub(crate) control_len: usize,
}

/// `recvmsg` into buffers of the given sizes, with room for a name and for control data.
pub(crate) fn recvmsg(fd: i32, sizes: &[usize], flags: i32) -> Received {
    let mut parts: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
    let mut iov = iovecs_mut(&mut parts);
    let mut addr = Addr::empty();
    let mut control = [0u64; 16];
    let mut header = message();
    header.msg_iov = iov.as_mut_ptr();
    header.msg_iovlen = iov.len() as _;
    header.msg_name = addr.ptr_mut().cast();
    header.msg_namelen = addr.len;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = mem::size_of_val(&control) as _;
    header.msg_flags = -1;
    let result = recvmsg_raw(fd, &mut header, flags);
    let (flags, name_len, control_len) = (header.msg_flags, header.msg_namelen, header.msg_controllen);
    Received { result, parts, flags, name_len, control_len: control_len as _ }
}

/// `recvmsg`, printed with everything it reports.
pub(crate) fn show_recvmsg(label: &str, fd: i32, sizes: &[usize], flags: i32) -> Ret {
    let got = recvmsg(fd, sizes, flags);
    if !got.result.ok() {
        return show(&format!("{label}: recvmsg"), got.result);
    }
    let parts: Vec<String> = got.parts.iter().map(|part| super::text(part)).collect();
    say!(
        "{label}: recvmsg = {} [{}] flags {} namelen {} controllen {}",
        got.result,
        parts.join(", "),
        super::msg_flags(got.flags),
        got.name_len,
        got.control_len
    );
    got.result
}

fn mmsghdr(iov: &mut libc::iovec) -> libc::mmsghdr {
    let mut header = message();
    header.msg_iov = iov;
    header.msg_iovlen = 1;
    libc::mmsghdr { msg_hdr: header, msg_len: 0 }
}

/// `sendmmsg`, one part per message; the second result is `msg_len` of each.
pub(crate) fn sendmmsg(fd: i32, parts: &[&[u8]], flags: i32) -> (Ret, Vec<u32>) {
    let mut iov = iovecs(parts);
    let mut messages: Vec<libc::mmsghdr> = iov.iter_mut().map(mmsghdr).collect();
    let result = call!(libc::sendmmsg(fd, messages.as_mut_ptr(), messages.len() as u32, flags as _));
    (result, messages.iter().map(|message| message.msg_len).collect())
}

/// `recvmmsg`, one buffer of `size` bytes per message; the second result is what each got.
pub(crate) fn recvmmsg(fd: i32, count: usize, size: usize, flags: i32) -> (Ret, Vec<String>) {
    let mut parts = vec![vec![0; size]; count];
    let mut iov = iovecs_mut(&mut parts);
    let mut messages: Vec<libc::mmsghdr> = iov.iter_mut().map(mmsghdr).collect();
    let result =
        call!(libc::recvmmsg(fd, messages.as_mut_ptr(), messages.len() as u32, flags as _, ptr::null_mut()));
    let filled = parts.iter().zip(&messages).take(result.count());
    (result, filled.map(|(part, message)| super::text(&part[..message.msg_len as usize])).collect())
}

/// `sendfile` at an explicit offset, which comes back advanced.
pub(crate) fn sendfile_at(out: i32, input: i32, offset: &mut i64, count: usize) -> Ret {
    call!(libc::sendfile(out, input, offset, count))
}

/// `sendfile` from the file's own position.
pub(crate) fn sendfile(out: i32, input: i32, count: usize) -> Ret {
    call!(libc::sendfile(out, input, ptr::null_mut(), count))
}

pub(crate) fn splice(input: i32, out: i32, len: usize, flags: u32) -> Ret {
    call!(libc::splice(input, ptr::null_mut(), out, ptr::null_mut(), len, flags))
}

/// Makes a pipe; failing is fatal.
pub(crate) fn pipe(flags: i32) -> (i32, i32) {
    let mut fds = [-1; 2];
    let result = call!(libc::pipe2(fds.as_mut_ptr(), flags));
    match result.ok() {
        true => (fds[0], fds[1]),
        false => super::give_up(&format!("pipe2 = {result}")),
    }
}
