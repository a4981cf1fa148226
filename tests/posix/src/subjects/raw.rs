//! `syscall()`: libc's function for system calls by number, which libuv closes its sockets with.

use super::limits::{limit, talk, use_up};
use super::others::{pass, take_by};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};
use std::ptr::null;

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("raw/close", raw_close),
    solo("raw/data", data),
    solo("raw/life", life),
    solo("raw/options", options),
    solo("raw/duplicates", duplicates),
    solo("raw/lowest_fd", lowest_fd),
    solo("raw/limits", every_call_at_the_limit),
    solo("raw/poll_select", poll_select),
    solo("raw/epoll", raw_epoll),
    solo("raw/others", others),
    solo("raw/rights", rights),
];

mod number {
    pub(super) use crate::sys::old_calls::{SYS_dup2, SYS_epoll_wait, SYS_poll, SYS_select};
    pub(super) use libc::*;
}

/// Calls by number; what is not given is zero.
macro_rules! raw {
    ($nr:ident, $($arg:expr),*) => { call!(libc::syscall(number::$nr, $($arg),*)) };
}

fn raw_close() {
    let pair = connected();
    show("close", raw!(SYS_close, pair.client));
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 8, 0);
    show("close again", raw!(SYS_close, pair.client));
    let pair = connected();
    send(pair.server, b"never read", 0);
    await_events(pair.client, libc::POLLIN);
    show("close with unread data", raw!(SYS_close, pair.client));
    await_events(pair.server, libc::POLLERR);
    show_recv("server", pair.server, 8, 0);
    let pair = connected();
    show("close_range", raw!(SYS_close_range, pair.client, pair.client, 0));
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 8, 0);
}

fn data() {
    let pair = connected();
    let mut buffer = [0u8; 16];
    let (place, len) = (buffer.as_mut_ptr(), buffer.len());
    show("write", raw!(SYS_write, pair.client, b"one".as_ptr(), 3usize));
    show("sendto", raw!(SYS_sendto, pair.client, b"two".as_ptr(), 3usize, 0, 0usize, 0usize));
    let parts = [libc::iovec { iov_base: b"three".as_ptr() as *mut _, iov_len: 5 }];
    show("writev", raw!(SYS_writev, pair.client, parts.as_ptr(), 1));
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_bytes("read", raw!(SYS_read, pair.server, place, 3usize), &buffer);
    show_bytes("recvfrom", raw!(SYS_recvfrom, pair.server, place, 3usize, 0, 0usize, 0usize), &buffer);
    let parts = [libc::iovec { iov_base: place as *mut _, iov_len: len }];
    show_bytes("readv", raw!(SYS_readv, pair.server, parts.as_ptr(), 1), &buffer);
    show("the end", raw!(SYS_read, pair.server, place, len));
}

fn life() {
    let socket = || raw!(SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0);
    let listener = show_fd("socket", socket());
    let mut addr = Addr::local(0);
    let mut len = addr.len;
    show("bind", raw!(SYS_bind, listener, addr.ptr(), addr.len));
    show("listen", raw!(SYS_listen, listener, 8));
    show("getsockname", raw!(SYS_getsockname, listener, addr.ptr_mut(), &raw mut len));
    let client = show_fd("socket", socket());
    show("connect", raw!(SYS_connect, client, addr.ptr(), addr.len));
    let server = show_fd("accept4", raw!(SYS_accept4, listener, 0usize, 0usize, libc::SOCK_CLOEXEC));
    say!("{}", descriptor_flags(server));
    show("shutdown", raw!(SYS_shutdown, client, libc::SHUT_WR));
    await_events(server, libc::POLLRDHUP);
    show_recv("server", server, 8, 0);
    let mut peer = Addr::empty();
    show("getpeername", raw!(SYS_getpeername, client, peer.ptr_mut(), &raw mut len));
    say!("the listener's port: {}", peer.port() == addr.port());
}

fn options() {
    let pair = connected();
    let mut value: i32 = 1;
    let mut len: libc::socklen_t = 4;
    show(
        "setsockopt",
        raw!(SYS_setsockopt, pair.client, libc::IPPROTO_TCP, libc::TCP_NODELAY, &raw const value, len),
    );
    value = 0;
    show(
        "getsockopt",
        raw!(SYS_getsockopt, pair.client, libc::IPPROTO_TCP, libc::TCP_NODELAY, &raw mut value, &raw mut len),
    );
    say!("{value}");
    show("fcntl", raw!(SYS_fcntl, pair.client, libc::F_SETFL, libc::O_NONBLOCK));
    say!("{}", status_flags(pair.client));
    send(pair.server, b"seven..", 0);
    await_events(pair.client, libc::POLLIN);
    show("ioctl", raw!(SYS_ioctl, pair.client, libc::FIONREAD, &raw mut value));
    say!("{value}");
}

fn duplicates() {
    let pair = connected();
    let copy = show_fd("dup", raw!(SYS_dup, pair.client));
    let other = show_fd("fcntl", raw!(SYS_fcntl, pair.client, libc::F_DUPFD_CLOEXEC, 0));
    let file = eventfd(0, 0);
    say!("dup3 onto an eventfd: {}", raw!(SYS_dup3, pair.client, file, libc::O_CLOEXEC).fd() == file);
    for fd in [pair.client, copy, other] {
        raw!(SYS_close, fd);
    }
    send(file, b"by the last", 0);
    say!("dup2 over the last: {}", raw!(SYS_dup2, eventfd(0, 0), file).fd() == file);
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 16, 0);
    show_recv("server", pair.server, 16, 0);
}

fn lowest_fd() {
    let first = tcp();
    let second = tcp();
    close(first);
    say!("eventfd: {}", raw!(SYS_eventfd2, 0, 0).fd() == first);
    close(second);
    let path = c"/dev/null";
    say!("openat: {}", raw!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY).fd() == second);
}

/// Calls by number that make descriptors, more of them than libc's functions use.
fn every_call_at_the_limit() {
    let pair = connected();
    let set = signal_set(&[libc::SIGUSR1]);
    limit(lowest_free() as u64 + 5, 1000);
    let taken = use_up();
    let mut ends = [-1; 2];
    let place = ends.as_mut_ptr();
    show("pipe2", call!(libc::syscall(libc::SYS_pipe2, place, 0)));
    show("pipe", call!(libc::syscall(old_calls::SYS_pipe, place)));
    let pair_of_unix =
        || call!(libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0, place));
    show("socketpair", pair_of_unix());
    show("signalfd4", call!(libc::syscall(libc::SYS_signalfd4, -1, &raw const set, 8usize, 0)));
    show("eventfd", call!(libc::syscall(old_calls::SYS_eventfd, 0)));
    show("memfd_create", call!(libc::syscall(libc::SYS_memfd_create, c"none".as_ptr(), 0)));
    show("inotify_init", call!(libc::syscall(old_calls::SYS_inotify_init)));
    show("epoll_create", call!(libc::syscall(old_calls::SYS_epoll_create, 1)));
    show("pidfd_open", call!(libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0)));
    show("open", call!(libc::syscall(old_calls::SYS_open, c"/dev/null".as_ptr(), 0)));
    close(taken[0]);
    show("pipe2 with one number left", call!(libc::syscall(libc::SYS_pipe2, place, 0)));
    show("socketpair with one number left", pair_of_unix());
    close(taken[1]);
    show("pipe2 with two", call!(libc::syscall(libc::SYS_pipe2, place, 0)));
    say!("they are those: {}", ends == [taken[0], taken[1]]);
    talk(pair.client, pair.server);
}

fn poll_select() {
    let pair = connected();
    send(pair.client, b"x", 0);
    await_events(pair.server, libc::POLLIN);
    let mut poll = libc::pollfd { fd: pair.server, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    show("poll", raw!(SYS_poll, &raw mut poll, 1usize, 1000));
    say!("{:#x}", poll.revents);
    let mut time = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    show("ppoll", raw!(SYS_ppoll, &raw mut poll, 1usize, &raw mut time, 0usize, 8usize));
    show_left(&mut time);
    let mask = 0u64;
    let wrong_length = raw!(SYS_ppoll, &raw mut poll, 1usize, &raw const time, &raw const mask, 7usize);
    show("ppoll with a mask of 7 bytes", wrong_length);
    // SAFETY: an fd_set is plain bits, and the number is below FD_SETSIZE.
    let set = || unsafe {
        let mut set: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(pair.server, &mut set);
        set
    };
    let mut readable = set();
    let mut limit = libc::timeval { tv_sec: 1, tv_usec: 0 };
    show("select", raw!(SYS_select, pair.server + 1, &raw mut readable, 0usize, 0usize, &raw mut limit));
    let mut readable = set();
    let pair_of_mask = [&raw const mask as usize, 8usize];
    let count = raw!(
        SYS_pselect6,
        pair.server + 1,
        &raw mut readable,
        0usize,
        0usize,
        &raw mut time,
        pair_of_mask.as_ptr()
    );
    show("pselect6", count);
    show_left(&mut time);
    let mut little = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let mut readable = set();
    recv(pair.server, &mut [0; 8], 0);
    show(
        "none",
        raw!(SYS_pselect6, pair.server + 1, &raw mut readable, 0usize, 0usize, &raw mut little, 0usize),
    );
    say!("left {} {}", little.tv_sec, little.tv_nsec);
    little.tv_nsec = 20_000_000;
    poll.events = libc::POLLIN;
    show("none", raw!(SYS_ppoll, &raw mut poll, 1usize, &raw mut little, 0usize, 8usize));
    say!("left {} {}", little.tv_sec, little.tv_nsec);
    let mut closed = set();
    close(pair.server);
    show("closed", raw!(SYS_pselect6, 1024, &raw mut closed, 0usize, 0usize, &raw mut time, 0usize));
    show_left(&mut time);
}

/// The kernel tells how much of it is left; and then it is one second again.
fn show_left(time: &mut libc::timespec) {
    say!("some is left: {}", time.tv_sec == 0 && time.tv_nsec > 100_000_000);
    *time = libc::timespec { tv_sec: 1, tv_nsec: 0 };
}

fn raw_epoll() {
    let pair = connected();
    let set = show_fd("epoll_create1", raw!(SYS_epoll_create1, libc::EPOLL_CLOEXEC));
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    show("epoll_ctl", raw!(SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, pair.server, &raw mut event));
    show("nothing", raw!(SYS_epoll_wait, set, &raw mut event, 1, 0));
    send(pair.client, b"x", 0);
    show("epoll_wait", raw!(SYS_epoll_wait, set, &raw mut event, 1, 1000));
    show("epoll_pwait", raw!(SYS_epoll_pwait, set, &raw mut event, 1, 1000, null::<u64>(), 8usize));
    let (data, events) = (event.u64, event.events);
    say!("{data} {events:#x}");
    raw!(SYS_close, pair.server);
    show("closed", raw!(SYS_epoll_wait, set, &raw mut event, 1, 0));
}

/// What has nothing to do with sockets goes through unchanged.
fn others() {
    say!("getpid: {}", raw!(SYS_getpid,).fd() == std::process::id() as i32);
    show("unknown number", call!(libc::syscall(100_000)));
    let word = 1u32;
    show("futex", raw!(SYS_futex, &raw const word, libc::FUTEX_WAIT, 0, 0usize));
    show("read of a bad number", raw!(SYS_read, -1, 0usize, 0usize));
    show("close of a bad number", raw!(SYS_close, -1));
}

/// How a message is received.
type Receives = dyn Fn(i32, &mut libc::msghdr) -> Ret;

/// A connection that arrives by number is the one that was passed.
fn rights() {
    let one = |over: i32, header: &mut libc::msghdr| raw!(SYS_recvmsg, over, &raw mut *header, 0);
    let many = |over: i32, header: &mut libc::msghdr| {
        let mut list = libc::mmsghdr { msg_hdr: *header, msg_len: 0 };
        raw!(SYS_recvmmsg, over, &raw mut list, 1, 0, null::<libc::timespec>())
    };
    let calls: [(_, &Receives); 2] = [("recvmsg", &one), ("recvmmsg", &many)];
    for (name, call) in calls {
        let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
        let pair = connected();
        let names = |fd| [getsockname(fd).1.port(), getpeername(fd).1.port()];
        let before = names(pair.server);
        show("pass", pass(here, pair.server));
        close(pair.server);
        let (taken, fd) = take_by(|header| call(there, header));
        show(name, taken);
        say!("the same names {}, the lowest number {}", names(fd) == before, fd == pair.server);
        send(pair.client, b"word", 0);
        await_readable(fd);
        show_recv("received descriptor", fd, 8, 0);
        for fd in [here, there, pair.client, fd] {
            close(fd);
        }
    }
}
