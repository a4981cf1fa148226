//! `shutdown()` from either side, and what both sides then see.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("shutdown/write_half", write_half),
    solo("shutdown/half_close_reply", half_close_reply),
    solo("shutdown/read_half", read_half),
    solo("shutdown/read_half_with_data", read_half_with_data),
    solo("shutdown/read_half_peer_sends", read_half_peer_sends),
    solo("shutdown/both_halves", both_halves),
    solo("shutdown/both_sides_write", both_sides_write),
    solo("shutdown/both_halves_peer_sends", both_halves_peer_sends),
    solo("shutdown/twice", twice),
    solo("shutdown/after_peer_closed", after_peer_closed),
    solo("shutdown/errors", errors),
    solo("shutdown/wakes_recv", wakes_recv),
    solo("shutdown/wakes_poll", wakes_poll),
    solo("shutdown/wakes_accept", wakes_accept),
    solo("shutdown/wakes_send", wakes_send),
    solo("shutdown/pending_data_delivered", pending_data_delivered),
    solo("shutdown/states", states),
    solo("shutdown/dup_shares", dup_shares),
    solo("shutdown/before_connect", before_connect),
    solo("shutdown/before_listen", before_listen),
    solo("shutdown/refused_then_connect", refused_then_connect),
];

fn both_polls(pair: &Connected) {
    show_poll("client", pair.client);
    show_poll("server", pair.server);
}

fn write_half() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    show("shutdown WR", shutdown(pair.client, libc::SHUT_WR));
    await_events(pair.server, libc::POLLRDHUP);
    both_polls(&pair);
    show_recv("server", pair.server, 8, 0);
    show_recv("server again", pair.server, 8, 0);
    show_send("client", pair.client, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_send("server", pair.server, b"still open", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
    both_polls(&pair);
    show_so_error("client", pair.client);
}

/// What `nc -N` and HTTP/1.0 clients do: request, end, and then the whole answer.
fn half_close_reply() {
    let pair = connected();
    show_send("client", pair.client, b"request", 0);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 64, 0);
    show_recv("server", pair.server, 64, 0);
    show_send("server", pair.server, b"the answer", 0);
    show("close server", close(pair.server));
    await_events(pair.client, libc::POLLHUP);
    show_poll("client", pair.client);
    show_recv("client", pair.client, 64, 0);
    show_recv("client", pair.client, 64, 0);
}

fn read_half() {
    let pair = connected();
    show("shutdown RD", shutdown(pair.server, libc::SHUT_RD));
    both_polls(&pair);
    show_recv("server", pair.server, 8, 0);
    show_recv("server peek", pair.server, 8, libc::MSG_PEEK);
    show_recv("server without blocking", pair.server, 8, libc::MSG_DONTWAIT);
    show_send("server", pair.server, b"outwards", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

fn read_half_with_data() {
    let pair = connected();
    send(pair.client, b"queued", 0);
    await_readable(pair.server);
    show("shutdown RD", shutdown(pair.server, libc::SHUT_RD));
    show_poll("server", pair.server);
    show_recv("server", pair.server, 3, 0);
    show_recv("server", pair.server, 8, 0);
    show_recv("server", pair.server, 8, 0);
}

fn read_half_peer_sends() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    shutdown(pair.server, libc::SHUT_RD);
    show_send("client", pair.client, b"after", 0);
    await_bytes(pair.server, 5);
    both_polls(&pair);
    show_recv("server", pair.server, 8, 0);
    show_recv("server", pair.server, 8, 0);
    show_send("client", pair.client, b"more", 0);
    show_taken(libc::SIGPIPE);
}

fn both_halves() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    show("shutdown RDWR", shutdown(pair.client, libc::SHUT_RDWR));
    await_events(pair.server, libc::POLLRDHUP);
    both_polls(&pair);
    show_recv("client", pair.client, 8, 0);
    show_send("client", pair.client, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_recv("server", pair.server, 8, 0);
    show("close server", close(pair.server));
    show_tcp_state("client", pair.client, "CLOSE");
    show_poll("client", pair.client);
    show_recv("client", pair.client, 8, 0);
}

fn both_sides_write() {
    let pair = connected();
    show_send("client", pair.client, b"c", 0);
    show_send("server", pair.server, b"s", 0);
    shutdown(pair.client, libc::SHUT_WR);
    shutdown(pair.server, libc::SHUT_WR);
    await_events(pair.client, libc::POLLHUP);
    await_events(pair.server, libc::POLLHUP);
    both_polls(&pair);
    show_recv("client", pair.client, 8, 0);
    show_recv("server", pair.server, 8, 0);
    show_recv("client", pair.client, 8, 0);
    show_recv("server", pair.server, 8, 0);
    both_polls(&pair);
    show_send("client", pair.client, b"x", libc::MSG_NOSIGNAL);
    show_send("server", pair.server, b"x", libc::MSG_NOSIGNAL);
}

fn both_halves_peer_sends() {
    let pair = connected();
    shutdown(pair.client, libc::SHUT_RDWR);
    await_events(pair.server, libc::POLLRDHUP);
    show_send("server", pair.server, b"into the void", 0);
    await_events(pair.server, libc::POLLHUP);
    await_events(pair.client, libc::POLLHUP);
    both_polls(&pair);
    show_recv("client", pair.client, 32, libc::MSG_DONTWAIT);
    show_send("server", pair.server, b"again", libc::MSG_NOSIGNAL);
    show_recv("client", pair.client, 32, libc::MSG_DONTWAIT);
}

fn twice() {
    let pair = connected();
    for how in [libc::SHUT_WR, libc::SHUT_WR, libc::SHUT_RD, libc::SHUT_RD, libc::SHUT_RDWR] {
        show(&format!("shutdown {how}"), shutdown(pair.client, how));
    }
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 8, 0);
}

fn after_peer_closed() {
    let pair = connected();
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show("shutdown WR", shutdown(pair.client, libc::SHUT_WR));
    await_events(pair.client, libc::POLLHUP);
    show_poll("client", pair.client);
    show_tcp_state("client", pair.client, "CLOSE");
    show("shutdown WR when all is over", shutdown(pair.client, libc::SHUT_WR));
    show("shutdown RD when all is over", shutdown(pair.client, libc::SHUT_RD));
    let pair = connected();
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show("shutdown WR after a reset", shutdown(pair.client, libc::SHUT_WR));
    show("shutdown RDWR after a reset", shutdown(pair.client, libc::SHUT_RDWR));
}

fn errors() {
    let pair = connected();
    show("how 3", shutdown(pair.client, 3));
    show("how -1", shutdown(pair.client, -1));
    show("bad descriptor", shutdown(-1, libc::SHUT_WR));
    show("bad descriptor and how", shutdown(-1, 9));
    show("pipe", shutdown(pipe(0).0, libc::SHUT_WR));
    show("fresh socket", shutdown(tcp(), libc::SHUT_RDWR));
    show("fresh socket, how 3", shutdown(tcp(), 3));
    let bound = tcp();
    bind(bound, &Addr::local(0));
    show("bound socket", shutdown(bound, libc::SHUT_WR));
    show_send("still open", pair.client, b"x", 0);
}

fn wakes_recv() {
    for (label, how) in [("RD", libc::SHUT_RD), ("RDWR", libc::SHUT_RDWR)] {
        let pair = connected();
        let server = pair.server;
        let reader = thread::spawn(move || recv(server, &mut [0; 8], 0));
        sleep(5);
        shutdown(pair.server, how);
        show(&format!("recv woken by {label}"), reader.join().expect("reader"));
    }
}

fn wakes_poll() {
    let pair = connected();
    let server = pair.server;
    let poller = thread::spawn(move || poll_one(server, libc::POLLIN | libc::POLLRDHUP, 5000));
    sleep(5);
    shutdown(pair.server, libc::SHUT_RD);
    let (result, revents) = poller.join().expect("poller");
    say!("poll = {result} {}", poll_mask(revents));
    let ep = epoll();
    epoll_add(ep, pair.client, libc::EPOLLRDHUP | libc::EPOLLIN, 1);
    let waiter = thread::spawn(move || epoll_wait(ep, 4, 5000));
    sleep(5);
    shutdown(pair.client, libc::SHUT_RD);
    let (result, events) = waiter.join().expect("waiter");
    say!("epoll_wait = {result} {}", epoll_mask(events[0].1));
}

fn wakes_accept() {
    let (listening, _) = listener();
    let acceptor = thread::spawn(move || accept(listening));
    sleep(5);
    shutdown(listening, libc::SHUT_RDWR);
    show("accept", acceptor.join().expect("acceptor"));
}

fn wakes_send() {
    let pair = connected();
    crate::bulk::fill(pair.client, 0);
    let client = pair.client;
    let writer = thread::spawn(move || send(client, b"no room", libc::MSG_NOSIGNAL));
    sleep(5);
    shutdown(pair.client, libc::SHUT_WR);
    show("send", writer.join().expect("writer"));
}

fn pending_data_delivered() {
    let pair = connected();
    let sent = crate::bulk::fill(pair.client, 0);
    show("shutdown WR", shutdown(pair.client, libc::SHUT_WR));
    show("close", close(pair.client));
    let tally = crate::bulk::receive_pattern(pair.server, u64::MAX, &[30_000]);
    say!("all: {}, intact {}, then recv = {}", tally.bytes == sent, tally.intact, tally.end);
}

fn states() {
    let pair = connected();
    shutdown(pair.client, libc::SHUT_WR);
    show_tcp_state("client", pair.client, "FIN_WAIT2");
    show_tcp_state("server", pair.server, "CLOSE_WAIT");
    shutdown(pair.server, libc::SHUT_WR);
    show_tcp_state("client", pair.client, "CLOSE");
    show_tcp_state("server", pair.server, "CLOSE");
    let pair = connected();
    abort(pair.client);
    show_tcp_state("server after a reset", pair.server, "CLOSE");
}

fn dup_shares() {
    let pair = connected();
    let twin = dup(pair.client).fd();
    shutdown(twin, libc::SHUT_WR);
    show_send("the original", pair.client, b"x", libc::MSG_NOSIGNAL);
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 8, 0);
}

/// Linux notes what is shut down though it says that the socket is not connected.
fn before_connect() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    for how in [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR] {
        let (listening, addr) = listener();
        let client = tcp();
        show(&format!("shutdown {how}"), shutdown(client, how));
        show_poll("client", client);
        let ep = epoll();
        epoll_add(ep, client, libc::EPOLLIN | libc::EPOLLRDHUP, 1);
        show_epoll("client", ep);
        show_recv("unconnected", client, 8, 0);
        show_send("unconnected", client, b"x", 0);
        show("connect", connect(client, &addr));
        let server = show_fd("accept", accept(listening));
        show_poll("client", client);
        show_poll("server", server);
        show_epoll("client", ep);
        show_send("server", server, b"hello", 0);
        show_send("client", client, b"hello", 0);
        show_taken(libc::SIGPIPE);
        show_recv("client", client, 8, libc::MSG_DONTWAIT);
        show_recv("server", server, 8, libc::MSG_DONTWAIT);
        show_tcp_state("client", client, "ESTABLISHED");
        show("shutdown WR", shutdown(client, libc::SHUT_WR));
        show("close", close(client));
        await_events(server, libc::POLLRDHUP);
        show_recv("server", server, 8, 0);
        show_recv("server", server, 8, 0);
    }
}

fn before_listen() {
    let fd = tcp();
    bind(fd, &Addr::local(0));
    show("shutdown RDWR", shutdown(fd, libc::SHUT_RDWR));
    show_poll("bound", fd);
    show("listen", listen(fd, 4));
    show_poll("listening", fd);
    let addr = getsockname(fd).1;
    let pair = connect_to(fd, &addr);
    show_poll("accepted", pair.server);
    show_send("accepted", pair.server, b"x", libc::MSG_NOSIGNAL);
    show_poll("listening", fd);
    show("shutdown RD", shutdown(fd, libc::SHUT_RD));
    show_poll("no more", fd);
}

fn refused_then_connect() {
    let addr = Addr::local(free_port());
    let client = tcp();
    show("connect", connect(client, &addr));
    show("shutdown RD", shutdown(client, libc::SHUT_RD));
    show_poll("client", client);
    show_recv("client", client, 8, 0);
    let (listening, addr) = listener();
    show("connect", connect(client, &addr));
    show_fd("accept", accept(listening));
    show_poll("client", client);
}
