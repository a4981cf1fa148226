//! SO_SNDBUF that is raised while somebody waits for room, and IPV6_ADDRFORM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("buffers/raised_wakes_send", raised_wakes_send),
    solo("buffers/raised_wakes_poll", raised_wakes_poll),
    solo("buffers/raised_is_an_edge", raised_is_an_edge),
    solo("buffers/raised_takes_more", raised_takes_more),
    solo("buffers/address_form", address_form),
    solo("buffers/address_form_errors", address_form_errors),
];

/// A connection whose client finds no room, with a send buffer that was set.
fn full() -> Connected {
    let pair = connected();
    set_int(pair.server, libc::SOL_SOCKET, libc::SO_RCVBUF, 20_000);
    set_int(pair.client, libc::SOL_SOCKET, libc::SO_SNDBUF, 20_000);
    fill(pair.client);
    pair
}

fn fill(fd: i32) -> usize {
    let (mut sent, mut quiet) = (0, 0);
    while quiet < 5 {
        let result = send(fd, &[b'f'; 8192], libc::MSG_DONTWAIT);
        let result = if result.ok() { result } else { send(fd, b"1", libc::MSG_DONTWAIT) };
        quiet = if result.ok() { 0 } else { quiet + 1 };
        sent += result.value.max(0) as usize;
        if !result.ok() {
            sleep(20);
        }
    }
    sent
}

fn raise(fd: i32) {
    show("SO_SNDBUF", raised(fd));
}

fn raised(fd: i32) -> Ret {
    set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 200_000)
}

/// What a thread does is over after the buffer was raised, and not before; that it was woken its result says.
fn raised_wakes(waits: fn(i32)) {
    let pair = full();
    let client = pair.client;
    let is_raised = Arc::new(AtomicBool::new(false));
    let seen = is_raised.clone();
    let waiter = std::thread::spawn(move || {
        waits(client);
        seen.load(Ordering::SeqCst)
    });
    sleep(100);
    is_raised.store(true, Ordering::SeqCst);
    let result = raised(client);
    let has_waited = waiter.join().unwrap_or_default();
    show("SO_SNDBUF", result);
    say!("waited: {has_waited}");
}

fn raised_wakes_send() {
    raised_wakes(|fd| {
        set_timeout(fd, libc::SO_SNDTIMEO, 3000);
        show_send("send", fd, b"x", 0);
    });
}

fn raised_wakes_poll() {
    raised_wakes(|fd| show_poll_for("poll", fd, libc::POLLOUT, 3000));
}

fn raised_is_an_edge() {
    let pair = full();
    let ep = epoll();
    epoll_add(ep, pair.client, libc::EPOLLOUT | libc::EPOLLET, 1);
    show_epoll("full", ep);
    show_send("send", pair.client, b"x", libc::MSG_DONTWAIT);
    raise(pair.client);
    show_epoll_within("raised", ep, 1000);
    show_epoll("again", ep);
}

fn raised_takes_more() {
    let pair = full();
    raise(pair.client);
    show_poll("raised", pair.client);
    say!("takes more: {}", fill(pair.client) > 50_000);
}

/// A connection over IPv4 of an IPv6 socket.
fn mapped() -> Connected {
    let (listening, addr) = listener();
    let client = tcp6();
    connect(client, &Addr::mapped(addr.port()));
    label_port(getsockname(client).1.port(), "C");
    let server = accept(listening).fd();
    close(listening);
    Connected { client, server }
}

const ADDRESS_FORM: i32 = 1;

fn address_form() {
    let pair = mapped();
    let fd = pair.client;
    set_int(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    show_sockname("before", fd);
    show_option("IPV6_ADDRFORM", fd, libc::IPPROTO_IPV6, ADDRESS_FORM);
    show("set", set_int(fd, libc::IPPROTO_IPV6, ADDRESS_FORM, libc::AF_INET));
    show_sockname("after", fd);
    show_peername("after", fd);
    show_option("SO_DOMAIN", fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    show_option("SO_KEEPALIVE", fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    show_option("IPV6_V6ONLY", fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    show("again", set_int(fd, libc::IPPROTO_IPV6, ADDRESS_FORM, libc::AF_INET));
    show("IP_TTL", set_int(fd, libc::IPPROTO_IP, libc::IP_TTL, 9));
    show_option("IP_TTL", fd, libc::IPPROTO_IP, libc::IP_TTL);
    send(pair.server, b"hello", 0);
    show_recv("recv", fd, 16, 0);
    show_send("send", fd, b"there", 0);
    show_recv("server", pair.server, 16, 0);
    close(fd);
    show_recv("server", pair.server, 16, 0);
}

fn address_form_errors() {
    let set = |fd, value| set_int(fd, libc::IPPROTO_IPV6, ADDRESS_FORM, value);
    show("fresh", set(tcp6(), libc::AF_INET));
    show("IPv4", set(connected().client, libc::AF_INET));
    let pair = mapped();
    show("other family", set(pair.client, libc::AF_UNIX));
    show("short", set_bytes(pair.client, libc::IPPROTO_IPV6, ADDRESS_FORM, &[2, 0]));
    shutdown(pair.client, libc::SHUT_WR);
    show("half closed", set(pair.client, libc::AF_INET));
    let listening = tcp6();
    let addr = listen_on(listening, &Addr::local6(0), 4);
    show("IPv6 peer", set(connect_to(listening, &addr).client, libc::AF_INET));
    show("listening", set(listening, libc::AF_INET));
}
