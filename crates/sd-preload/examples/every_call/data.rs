//! Bytes and descriptors through kernel sockets, pipes and files.

use crate::report::{close, show};
use crate::socket::tcp_pair;
use libc::{c_int, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::ptr::{null, null_mut};

unsafe extern "C" {
    fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, buf_len: size_t) -> ssize_t;
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, buf_len: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        buf_len: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t;
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
}

const TEXT: *const c_void = c"0123456789".as_ptr().cast();

pub(crate) fn run() {
    let (a, b) = tcp_pair();
    let mut bytes = [0u8; 64];
    let buf: *mut c_void = bytes.as_mut_ptr().cast();
    let mut iov = iovec { iov_base: buf, iov_len: 4 };
    // SAFETY: all pointers are literals or local variables of the right kind.
    unsafe {
        plain(a, b, buf);
        vectors(a, b, &mut iov);
        messages(a, b, &mut iov);
        rights(&mut iov);
        moves(a, b);
    }
    println!("bytes: {}", String::from_utf8_lossy(&bytes).trim_end_matches('\0'));
    close(a);
    close(b);
}

unsafe fn plain(a: c_int, b: c_int, buf: *mut c_void) {
    // SAFETY: see `run`.
    unsafe {
        show("write", libc::write(a, TEXT, 10) as i64);
        show("write", libc::write(-1, TEXT, 0) as i64);
        show("__write", __write(a, TEXT, 10) as i64);
        show("send", libc::send(a, TEXT, 10, libc::MSG_NOSIGNAL) as i64);
        show("__send", __send(a, TEXT, 10, 0) as i64);
        show("sendto", libc::sendto(a, TEXT, 10, 0, null(), 0) as i64);
        show("read", libc::read(b, buf, 3) as i64);
        show("read", libc::read(-1, buf, 3) as i64);
        show("__read", __read(b, buf, 3) as i64);
        show("__read_chk", __read_chk(b, buf, 3, 64) as i64);
        show("recv", libc::recv(b, buf, 3, libc::MSG_PEEK) as i64);
        show("__recv_chk", __recv_chk(b, buf, 3, 3, 0) as i64);
        show("recvfrom", libc::recvfrom(b, buf, 3, 0, null_mut(), null_mut()) as i64);
        show("__recvfrom_chk", __recvfrom_chk(b, buf, 3, 4, 0, null_mut(), null_mut()) as i64);
    }
}

unsafe fn vectors(a: c_int, b: c_int, iov: *mut iovec) {
    // SAFETY: see `run`.
    unsafe {
        show("readv", libc::readv(b, iov, 1) as i64);
        show("writev", libc::writev(a, iov, 1) as i64);
        show("preadv2", libc::preadv2(b, iov, 1, -1, 0) as i64);
        show("preadv2", libc::preadv2(b, iov, 1, 3, 0) as i64);
        show("preadv64v2", preadv64v2(b, iov, 1, -1, 0) as i64);
        show("pwritev2", libc::pwritev2(a, iov, 1, -1, 0) as i64);
        show("pwritev64v2", pwritev64v2(a, iov, 1, -1, 0) as i64);
    }
}

unsafe fn messages(a: c_int, b: c_int, iov: *mut iovec) {
    // SAFETY: see `run`; all-zero headers are valid.
    unsafe {
        let mut msg: msghdr = std::mem::zeroed();
        (msg.msg_iov, msg.msg_iovlen) = (iov, 1);
        show("sendmsg", libc::sendmsg(a, &msg, 0) as i64);
        show("recvmsg", libc::recvmsg(b, &mut msg, 0) as i64);
        let mut msgs: [mmsghdr; 2] = std::mem::zeroed();
        msgs.iter_mut().for_each(|m| (m.msg_hdr.msg_iov, m.msg_hdr.msg_iovlen) = (iov, 1));
        show("sendmmsg", libc::sendmmsg(a, msgs.as_mut_ptr(), 2, 0));
        show("recvmmsg", libc::recvmmsg(b, msgs.as_mut_ptr(), 2, 0, null_mut()));
    }
}

/// A descriptor through a Unix socket.
unsafe fn rights(iov: *mut iovec) {
    // SAFETY: see `run`; the control buffer has room for one descriptor.
    unsafe {
        let mut pair = [0; 2];
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr());
        let mut control = [0u64; 3];
        let mut msg: msghdr = std::mem::zeroed();
        (msg.msg_iov, msg.msg_iovlen) = (iov, 1);
        (msg.msg_control, msg.msg_controllen) = (control.as_mut_ptr().cast(), 24);
        let head = libc::CMSG_FIRSTHDR(&msg);
        (*head).cmsg_len = 20;
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        *libc::CMSG_DATA(head).cast::<c_int>() = 0;
        show("sendmsg", libc::sendmsg(pair[0], &msg, 0) as i64);
        show("recvmsg", libc::recvmsg(pair[1], &mut msg, 0) as i64);
        let fd = show("recvmsg", *libc::CMSG_DATA(libc::CMSG_FIRSTHDR(&msg)).cast::<c_int>());
        [pair[0], pair[1], fd].into_iter().for_each(close);
    }
}

unsafe fn moves(a: c_int, b: c_int) {
    // SAFETY: see `run`.
    unsafe {
        let file = libc::memfd_create(c"x".as_ptr(), 0);
        libc::write(file, TEXT, 10);
        let mut offset = 0;
        show("sendfile", libc::sendfile(a, file, &mut offset, 4) as i64);
        show("sendfile64", libc::sendfile64(a, file, &mut offset, 4) as i64);
        println!("sendfile: offset {offset}");
        let mut pipe = [0; 2];
        libc::pipe(pipe.as_mut_ptr());
        show("splice", libc::splice(b, null_mut(), pipe[1], null_mut(), 4, 0) as i64);
        show("splice", libc::splice(b, null_mut(), a, null_mut(), 4, 0) as i64);
        [file, pipe[0], pipe[1]].into_iter().for_each(close);
    }
}
