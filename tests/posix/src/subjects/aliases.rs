//! The other names under which glibc exports its calls: old ones, fortified ones, and functions built on one call.

use std::mem;

use crate::setup::*;
use crate::sys::glibc;
use crate::sys::*;
use crate::table::{Subject, solo};
use libc::{iovec, pollfd};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("aliases/data", data),
    solo("aliases/vectors", vectors),
    solo("aliases/fortified", fortified),
    solo("aliases/waiting", waiting),
    solo("aliases/life", life),
    solo("aliases/closefrom", close_from),
    solo("aliases/bindresvport", reserved_port),
];

fn data() {
    let pair = connected();
    show("__write", call!(glibc::__write(pair.client, b"write ".as_ptr().cast(), 6)));
    show("__send", call!(glibc::__send(pair.client, b"send ".as_ptr().cast(), 5, 0)));
    let file = temporary_file(b"from a file");
    show("sendfile64", call!(glibc::sendfile64(pair.client, file, &mut 5, 6)));
    show("sockatmark", call!(glibc::sockatmark(pair.server)));
    await_bytes(pair.server, 17);
    let mut buffer = [0; 32];
    show_bytes("__read", call!(glibc::__read(pair.server, buffer.as_mut_ptr().cast(), 32)), &buffer);
    show("sockatmark of a file", call!(glibc::sockatmark(file)));
}

fn vectors() {
    let pair = connected();
    let mut byte = *b"v";
    let part = iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    show("pwritev64v2", call!(glibc::pwritev64v2(pair.client, &raw const part, 1, -1, 0)));
    await_bytes(pair.server, 1);
    show("preadv64v2", call!(glibc::preadv64v2(pair.server, &raw const part, 1, -1, 0)));
    show("preadv64v2 at 0", call!(glibc::preadv64v2(pair.server, &raw const part, 1, 0, 0)));
}

fn fortified() {
    let pair = connected();
    send(pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    let mut buffer = [0; 4];
    let place = buffer.as_mut_ptr().cast();
    show_bytes("__read_chk", call!(glibc::__read_chk(pair.server, place, 4, 4)), &buffer);
    show_bytes("__recv_chk", call!(glibc::__recv_chk(pair.server, place, 2, 4, libc::MSG_PEEK)), &buffer);
    let (mut addr, mut len) = (Addr::empty(), 16);
    let from = addr.ptr_mut();
    let result = call!(glibc::__recvfrom_chk(pair.server, place, 3, 4, 0, from, &raw mut len));
    show_bytes("__recvfrom_chk", result, &buffer);
    say!("address of length {len}");
}

fn waiting() {
    let pair = connected();
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    let size = mem::size_of::<pollfd>();
    let mut fds = [pollfd(pair.server, libc::POLLIN)];
    show("__poll", call!(glibc::__poll(fds.as_mut_ptr(), 1, 1000)));
    show("__poll_chk", call!(glibc::__poll_chk(fds.as_mut_ptr(), 1, 1000, size)));
    let time = timespec(1000);
    show(
        "__ppoll_chk",
        call!(glibc::__ppoll_chk(fds.as_mut_ptr(), 1, &raw const time, std::ptr::null(), size)),
    );
    let (none, mut time) = (std::ptr::null_mut(), libc::timeval { tv_sec: 1, tv_usec: 0 });
    // SAFETY: an fd_set is plain bits, and the number is below FD_SETSIZE.
    let mut set = unsafe {
        let mut set: libc::fd_set = mem::zeroed();
        libc::FD_SET(pair.server, &mut set);
        set
    };
    show("__select", call!(glibc::__select(pair.server + 1, &raw mut set, none, none, &raw mut time)));
}

fn life() {
    let (listening, addr) = listener();
    let client = tcp();
    show("__connect", call!(glibc::__connect(client, addr.ptr(), addr.len)));
    let server = show_fd("accept", accept(listening));
    show("__fcntl", call!(glibc::__fcntl(client, libc::F_SETFL, libc::O_NONBLOCK)));
    say!("{}", status_flags(client));
    say!("fcntl64: {}", call!(glibc::fcntl64(client, libc::F_GETFL)).fd() & libc::O_NONBLOCK != 0);
    let other = tcp();
    say!("__dup2: {}", call!(glibc::__dup2(client, other)).fd() == other);
    show("__close", call!(glibc::__close(client)));
    show_send("the copy", other, b"x", 0);
    show("__close", call!(glibc::__close(other)));
    await_events(server, libc::POLLRDHUP);
    show_recv("server", server, 8, 0);
    show_recv("server", server, 8, 0);
}

fn close_from() {
    let pair = connected();
    let child = fork_child(|| {
        call!({
            glibc::closefrom(3);
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
    show("bindresvport", call!(glibc::bindresvport(fd, std::ptr::null_mut())));
    say!("a low port: {}", (512..1024).contains(&getsockname(fd).1.port()));
    show("again", call!(glibc::bindresvport(fd, std::ptr::null_mut())));
    show("on a file", call!(glibc::bindresvport(temporary_file(b""), std::ptr::null_mut())));
}
