//! The other names under which glibc exports its calls: old ones, fortified ones, and functions built on one call.

use std::mem;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};
use libc::{c_int, c_void, iovec, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timespec};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("aliases/data", data),
    solo("aliases/vectors", vectors),
    solo("aliases/fortified", fortified),
    solo("aliases/waiting", waiting),
    solo("aliases/life", life),
    solo("aliases/closefrom", close_from),
    solo("aliases/bindresvport", reserved_port),
];

unsafe extern "C" {
    fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    fn __send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn __close(fd: c_int) -> c_int;
    fn __dup2(old: c_int, new: c_int) -> c_int;
    fn __fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, ...) -> c_int;
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int;
    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const libc::sigset_t,
        size: size_t,
    ) -> c_int;
    fn __select(
        count: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int;
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, size: size_t) -> ssize_t;
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, size: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        size: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t;
    fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn sockatmark(fd: c_int) -> c_int;
    fn closefrom(first: c_int);
    fn bindresvport(fd: c_int, addr: *mut libc::sockaddr_in) -> c_int;
}

fn data() {
    let pair = connected();
    show("__write", call!(__write(pair.client, b"write ".as_ptr().cast(), 6)));
    show("__send", call!(__send(pair.client, b"send ".as_ptr().cast(), 5, 0)));
    let file = temporary_file(b"from a file");
    show("sendfile64", call!(sendfile64(pair.client, file, &mut 5, 6)));
    show("sockatmark", call!(sockatmark(pair.server)));
    await_bytes(pair.server, 17);
    let mut buffer = [0; 32];
    show_bytes("__read", call!(__read(pair.server, buffer.as_mut_ptr().cast(), 32)), &buffer);
    show("sockatmark of a file", call!(sockatmark(file)));
}

fn vectors() {
    let pair = connected();
    let mut byte = *b"v";
    let part = iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    show("pwritev64v2", call!(pwritev64v2(pair.client, &raw const part, 1, -1, 0)));
    await_bytes(pair.server, 1);
    show("preadv64v2", call!(preadv64v2(pair.server, &raw const part, 1, -1, 0)));
    show("preadv64v2 at 0", call!(preadv64v2(pair.server, &raw const part, 1, 0, 0)));
}

fn fortified() {
    let pair = connected();
    send(pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    let mut buffer = [0; 4];
    let place = buffer.as_mut_ptr().cast();
    show_bytes("__read_chk", call!(__read_chk(pair.server, place, 4, 4)), &buffer);
    show_bytes("__recv_chk", call!(__recv_chk(pair.server, place, 2, 4, libc::MSG_PEEK)), &buffer);
    let (mut addr, mut len) = (Addr::empty(), 16);
    let from = addr.ptr_mut();
    let result = call!(__recvfrom_chk(pair.server, place, 3, 4, 0, from, &raw mut len));
    show_bytes("__recvfrom_chk", result, &buffer);
    say!("address of length {len}");
}

fn waiting() {
    let pair = connected();
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    let size = mem::size_of::<pollfd>();
    let mut fds = [pollfd(pair.server, libc::POLLIN)];
    show("__poll", call!(__poll(fds.as_mut_ptr(), 1, 1000)));
    show("__poll_chk", call!(__poll_chk(fds.as_mut_ptr(), 1, 1000, size)));
    let time = timespec(1000);
    show("__ppoll_chk", call!(__ppoll_chk(fds.as_mut_ptr(), 1, &raw const time, std::ptr::null(), size)));
    let (none, mut time) = (std::ptr::null_mut(), libc::timeval { tv_sec: 1, tv_usec: 0 });
    // SAFETY: an fd_set is plain bits, and the number is below FD_SETSIZE.
    let mut set = unsafe {
        let mut set: libc::fd_set = mem::zeroed();
        libc::FD_SET(pair.server, &mut set);
        set
    };
    show("__select", call!(__select(pair.server + 1, &raw mut set, none, none, &raw mut time)));
}

fn life() {
    let (listening, addr) = listener();
    let client = tcp();
    show("__connect", call!(__connect(client, addr.ptr(), addr.len)));
    let server = show_fd("accept", accept(listening));
    show("__fcntl", call!(__fcntl(client, libc::F_SETFL, libc::O_NONBLOCK)));
    say!("{}", status_flags(client));
    say!("fcntl64: {}", call!(fcntl64(client, libc::F_GETFL)).fd() & libc::O_NONBLOCK != 0);
    let other = tcp();
    say!("__dup2: {}", call!(__dup2(client, other)).fd() == other);
    show("__close", call!(__close(client)));
    show_send("the copy", other, b"x", 0);
    show("__close", call!(__close(other)));
    await_events(server, libc::POLLRDHUP);
    show_recv("server", server, 8, 0);
    show_recv("server", server, 8, 0);
}

fn close_from() {
    let pair = connected();
    let child = fork_child(|| {
        call!({
            closefrom(3);
            0
        });
        say!("{} {}", descriptor_flags(pair.client), descriptor_flags(1));
        0
    });
    say!("child: {}", wait_child(child));
    show_send("client", pair.client, b"still there", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 16, 0);
}

fn reserved_port() {
    let fd = tcp();
    show("bindresvport", call!(bindresvport(fd, std::ptr::null_mut())));
    say!("a low port: {}", (512..1024).contains(&getsockname(fd).1.port()));
    show("again", call!(bindresvport(fd, std::ptr::null_mut())));
    show("on a file", call!(bindresvport(temporary_file(b""), std::ptr::null_mut())));
}
