//! Sockets and descriptors that are not TCP must work as ever, also beside TCP.

use std::mem;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("others/udp", udp),
    solo("others/udp_connected", udp_connected),
    solo("others/unix_stream", unix_stream),
    solo("others/unix_listener", unix_listener),
    solo("others/unix_datagram", unix_datagram),
    solo("others/socketpair_states", socketpair_states),
    solo("others/pipe", pipes),
    solo("others/eventfd", eventfds),
    solo("others/bad_messages", bad_messages),
    solo("others/pass_stream", pass_stream),
    solo("others/pass_listener", pass_listener),
    solo("others/passed_listener_options", passed_listener_options),
    solo("others/passed_listener_time_wait", passed_listener_time_wait),
    solo("others/pass_to_child", pass_to_child),
    solo("others/getaddrinfo", getaddrinfo),
];

fn udp_socket() -> (i32, Addr) {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd();
    bind(fd, &Addr::local(0));
    (fd, getsockname(fd).1)
}

fn udp() {
    let ((a, from), (b, to)) = (udp_socket(), udp_socket());
    label_port(from.port(), "A");
    label_port(to.port(), "B");
    show("sendto", sendto(a, b"datagram", 0, Some(&to)));
    show("sendto", sendto(a, b"", 0, Some(&to)));
    let mut buffer = [0; 4];
    let (result, addr) = recvfrom(b, &mut buffer, 0);
    show_bytes("recvfrom, cut", result, &buffer);
    say!("from {addr} len {}", addr.len);
    show_recv("empty datagram", b, 8, 0);
    show_recv("nothing", b, 8, libc::MSG_DONTWAIT);
    show_poll("udp", b);
    show("listen", listen(a, 1));
    show("accept", accept(a));
    show_send("no destination", a, b"x", 0);
}

fn udp_connected() {
    let ((a, _), (b, to)) = (udp_socket(), udp_socket());
    label_port(to.port(), "B");
    show("connect", connect(a, &to));
    show_peername("a", a);
    show_send("a", a, b"one", 0);
    show_send("a", a, b"two", 0);
    show_recv("b", b, 16, 0);
    show_recv("b", b, 16, 0);
    close(b);
    show_send("to nobody", a, b"x", 0);
    show_recv("a", a, 8, 0);
    show("disconnect", connect(a, &Addr::unspec()));
    show_peername("a", a);
}

fn unix_stream() {
    let (result, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    show("socketpair", result);
    show_send("a", a, b"through unix", 0);
    show_recv("b", b, 7, 0);
    show_recv("b", b, 64, 0);
    show_recv("b", b, 64, libc::MSG_DONTWAIT);
    shutdown(a, libc::SHUT_WR);
    show_recv("b", b, 64, 0);
    show_send("b", b, b"back", 0);
    show_recv("a", a, 64, 0);
    close(b);
    show_recv("a", a, 64, 0);
    show_send("a", a, b"x", libc::MSG_NOSIGNAL);
    show_sockname("a", a);
    show("TCP socketpair", socketpair(libc::AF_INET, libc::SOCK_STREAM).0);
}

/// An abstract address that no other run of the suite has.
pub(super) fn unix_address() -> Addr {
    unix_name(format!("\0sd-posix-{}", getpid()).as_bytes())
}

/// The address of a path.
pub(super) fn unix_path(path: &std::path::Path) -> Addr {
    unix_name(path.as_os_str().as_encoded_bytes())
}

fn unix_name(name: &[u8]) -> Addr {
    let mut addr = Addr::empty().with_family(libc::AF_UNIX);
    let start = mem::size_of::<libc::sa_family_t>();
    // SAFETY: the name is shorter than sockaddr_storage less its family.
    unsafe {
        let bytes = (&raw mut addr.raw).cast::<u8>().add(start);
        bytes.copy_from_nonoverlapping(name.as_ptr(), name.len());
    }
    addr.with_len((start + name.len()) as libc::socklen_t)
}

fn unix_listener() {
    let listening = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd();
    let addr = unix_address();
    show("bind", bind(listening, &addr));
    show("listen", listen(listening, 4));
    let client = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd();
    show("connect", connect(client, &addr));
    let server = show_fd("accept", accept(listening));
    show_send("client", client, b"unix", 0);
    show_recv("server", server, 8, 0);
    let ep = epoll();
    epoll_add(ep, server, libc::EPOLLIN | libc::EPOLLRDHUP, 1);
    epoll_add(ep, connected().client, libc::EPOLLOUT, 2);
    show_epoll("unix and tcp", ep);
    close(client);
    show_epoll("unix closed", ep);
}

fn unix_datagram() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_DGRAM);
    send(a, b"first", 0);
    send(a, b"second", 0);
    show_recv("b", b, 3, 0);
    show_recv("b", b, 64, 0);
    let (_, [c, d]) = socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET);
    send(c, b"packet", 0);
    show_recvmsg("d", d, &[3], 0);
    close(c);
    show_recv("d", d, 8, 0);
}

fn socketpair_states() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    show_poll("idle", a);
    show_recv("idle", a, 8, 0);
    send(b, b"x", 0);
    show_poll("data", a);
    shutdown(b, libc::SHUT_WR);
    show_poll("half closed", a);
    close(b);
    show_poll("closed", a);
    say!("{} {}", status_flags(a), file_type(a));
}

fn pipes() {
    let (read_end, write_end) = pipe(0);
    show("write", write(write_end, b"pipe data"));
    show_read("pipe", read_end, 4);
    say!("ready {}", fionread(read_end));
    show_read("pipe", read_end, 64);
    close(write_end);
    show_read("pipe", read_end, 64);
    let (read_end, write_end) = pipe(libc::O_NONBLOCK);
    show_read("empty", read_end, 8);
    close(read_end);
    show("write with no reader", write(write_end, b"x"));
    show_poll("no reader", write_end);
    say!("{} {}", status_flags(write_end), file_type(write_end));
}

fn eventfds() {
    let fd = eventfd(3, libc::EFD_NONBLOCK);
    let mut count = [0; 8];
    show("read", read(fd, &mut count));
    say!("{}", u64::from_ne_bytes(count));
    show("read", read(fd, &mut count));
    show("write", write(fd, &5u64.to_ne_bytes()));
    show_poll("eventfd", fd);
    show_send("eventfd", fd, b"12345678", 0);
}

#[repr(C)]
struct Rights {
    len: usize,
    level: i32,
    kind: i32,
    fd: i32,
    padding: i32,
}

/// Messages where no memory is, on connections that are the kernel's: the library looks for descriptors in what is sent there.
fn bad_messages() {
    let pair = connected();
    let (_, [over, other]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let (listening, to) = listener();
    let bound = tcp();
    set_bytes(bound, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"lo\0");
    show("connect", connect(bound, &to));
    for (bad, fd) in [0, 8, 0xffff_8000_0000_1000].into_iter().flat_map(|bad| [(bad, over), (bad, bound)]) {
        let bad: *mut libc::c_void = std::ptr::without_provenance_mut(bad);
        show("message", call!(libc::sendmsg(fd, bad.cast(), libc::MSG_NOSIGNAL)));
        let mut header = message();
        header.msg_control = bad;
        header.msg_controllen = 24;
        show("control data", sendmsg_raw(fd, &header, libc::MSG_NOSIGNAL));
    }
    close(listening);
    show("a good one", pass(over, pair.client));
    let (result, passed) = take(other);
    show("taken", result);
    show_send("passed", passed, b"well", 0);
    await_readable(pair.server);
    show_recv("received", pair.server, 8, 0);
}

/// Sends one byte and a descriptor over a Unix socket.
pub(super) fn pass(over: i32, fd: i32) -> Ret {
    let rights = Rights { len: 20, level: libc::SOL_SOCKET, kind: libc::SCM_RIGHTS, fd, padding: 0 };
    let byte = [b'r'];
    let mut part = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
    let mut header = message();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw const rights).cast_mut().cast();
    header.msg_controllen = mem::size_of::<Rights>() as _;
    sendmsg_raw(over, &header, 0)
}

pub(super) fn take(over: i32) -> (Ret, i32) {
    take_with(over, 0)
}

pub(super) fn take_with(over: i32, flags: i32) -> (Ret, i32) {
    take_by(|header| recvmsg_raw(over, header, flags))
}

/// What a call receives.
pub(super) fn take_by(call: impl FnOnce(&mut libc::msghdr) -> Ret) -> (Ret, i32) {
    let mut rights = Rights { len: 0, level: 0, kind: 0, fd: -1, padding: 0 };
    let mut byte = [0];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut header = message();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut rights).cast();
    header.msg_controllen = mem::size_of::<Rights>() as _;
    let result = call(&mut header);
    (result, rights.fd)
}

fn pass_stream() {
    let pair = connected();
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    show("pass", pass(a, pair.server));
    show("close the original", close(pair.server));
    show_send("client", pair.client, b"under way", 0);
    let (result, fd) = take(b);
    show("take", result);
    await_readable(fd);
    show_recv("received descriptor", fd, 32, 0);
    show_send("received descriptor", fd, b"answer", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
    show_peername("received descriptor", fd);
    close(fd);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

fn pass_listener() {
    let (listening, addr) = listener();
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    pass(a, listening);
    close(listening);
    let client = dial(&addr);
    let (_, fd) = take(b);
    let server = show_fd("accept", accept(fd));
    show_send("server", server, b"hello", 0);
    await_readable(client);
    show_recv("client", client, 8, 0);
    close(fd);
    show("connect", connect(tcp(), &addr));
}

/// A listener that came by SCM_RIGHTS, and a connection of it.
fn accept_of_passed(listening: i32) -> (i32, Connected) {
    let addr = listen_on(listening, &Addr::local(0), 4);
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    pass(a, listening);
    close(listening);
    let (_, fd) = take(b);
    accept(fd);
    (fd, connect_to(fd, &addr))
}

/// Connections inherit what was set on the listener, whoever set it.
fn passed_listener_options() {
    let listening = tcp();
    let numbers = [
        ("SO_REUSEADDR", libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
        ("SO_KEEPALIVE", libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        ("SO_OOBINLINE", libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
        ("SO_RCVLOWAT", libc::SOL_SOCKET, libc::SO_RCVLOWAT, 3),
        ("TCP_NODELAY", libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        ("TCP_KEEPIDLE", libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
        ("TCP_USER_TIMEOUT", libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 9000),
    ];
    for (_, level, name, value) in numbers {
        set_int(listening, level, name, value);
    }
    set_linger(listening, 1, 3);
    set_timeout(listening, libc::SO_RCVTIMEO, 60);
    fcntl(listening, libc::F_SETFL, libc::O_NONBLOCK);
    let (_, pair) = accept_of_passed(listening);
    for (text, level, name, _) in numbers {
        show_option(text, pair.server, level, name);
    }
    let mut linger = [0; 8];
    show("SO_LINGER", get_bytes(pair.server, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger).0);
    say!("{linger:?}");
    show_recv("nothing comes", pair.server, 8, 0);
    show_send("client", pair.client, b"ab", 0);
    show_poll("less than SO_RCVLOWAT", pair.server);
    show_send("client", pair.client, b"c", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
}

/// The port of one that asked for reuse can be bound again at once.
fn passed_listener_time_wait() {
    let listening = tcp();
    set_int(listening, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    fcntl(listening, libc::F_SETFL, libc::O_NONBLOCK);
    let (fd, pair) = accept_of_passed(listening);
    let (_, addr) = getsockname(fd);
    end_server_first(fd, &pair);
    show("bind without SO_REUSEADDR", bind(tcp(), &addr));
    let again = tcp();
    set_int(again, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    show("bind with SO_REUSEADDR", bind(again, &addr));
    show("listen", listen(again, 1));
}

fn pass_to_child() {
    let (_, [a, b]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        close(a);
        let (_, fd) = take(b);
        let mut buffer = [0; 32];
        let got = recv(fd, &mut buffer, 0).count();
        buffer[..got].make_ascii_uppercase();
        send(fd, &buffer[..got], 0);
        0
    });
    close(b);
    let pair = connected();
    show("pass", pass(a, pair.server));
    close(pair.server);
    show_send("client", pair.client, b"to a process born before", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
    say!("child: {}", wait_child(child));
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
}

/// Name resolution opens sockets inside libc, which no hook sees.
fn getaddrinfo() {
    let pair = connected();
    let mut list = std::ptr::null_mut();
    let result =
        call!(libc::getaddrinfo(c"localhost".as_ptr(), c"80".as_ptr(), std::ptr::null(), &raw mut list));
    say!("getaddrinfo = {}, some: {}", result.value, !list.is_null());
    if !list.is_null() {
        // SAFETY: the list came from getaddrinfo and is freed once.
        unsafe { libc::freeaddrinfo(list) };
    }
    show_send("client", pair.client, b"x", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
}
