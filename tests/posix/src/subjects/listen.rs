//! `listen()`: backlogs, errors, and what becomes of connections that nobody accepted yet.

use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("listen/backlog_order", backlog_order),
    solo("listen/pending_data", pending_data),
    solo("listen/pending_client_closed", pending_client_closed),
    solo("listen/pending_client_reset", pending_client_reset),
    solo("listen/close_resets_pending", close_resets_pending),
    solo("listen/close_refuses", close_refuses),
    solo("listen/unbound", unbound),
    solo("listen/twice", twice),
    solo("listen/connected", on_connected),
    solo("listen/errors", errors),
    solo("listen/state", state),
    solo("listen/io_on_listener", io_on_listener),
    solo("listen/shutdown", shutdown_listener),
    solo("listen/shutdown_then_listen", shutdown_then_listen),
    solo("listen/backlog_values", backlog_values),
    solo("listen/backlog_full", backlog_full),
    solo("listen/accepted_survives_close", accepted_survives_close),
    solo("listen/queue_in_tcp_info", queue_in_tcp_info),
    solo("listen/queue_of_busy_workers", queue_of_busy_workers),
    pair("listen/no_number_left", full_server, early_client),
];

fn backlog_order() {
    let (listening, addr) = listener();
    let clients: Vec<i32> = (0..10).map(|_| dial(&addr)).collect();
    for (index, client) in clients.iter().enumerate() {
        send(*client, format!("client {index}").as_bytes(), 0);
    }
    for client in &clients {
        let (result, peer) = accept_addr(listening);
        await_readable(result.fd());
        let own = getsockname(*client).1;
        say!("in order: {}", peer.port() == own.port());
        show_recv("server", result.fd(), 32, 0);
    }
    set_nonblocking(listening, true);
    show("one more accept", accept(listening));
}

fn pending_data() {
    let (listening, addr) = listener();
    let client = dial(&addr);
    show_poll("client before accept", client);
    show_send("client", client, b"early ", 0);
    show_send("client", client, b"bird", 0);
    show_poll("listener", listening);
    let server = show_fd("accept", accept(listening));
    await_bytes(server, 10);
    show_recv("server", server, 64, 0);
    show_poll("listener", listening);
}

fn pending_client_closed() {
    let (listening, addr) = listener();
    let client = dial(&addr);
    show_send("client", client, b"bye", 0);
    close(client);
    show_poll("listener", listening);
    let server = show_fd("accept", accept(listening));
    await_events(server, libc::POLLRDHUP);
    show_poll("server", server);
    show_recv("server", server, 8, 0);
    show_recv("server", server, 8, 0);
}

fn pending_client_reset() {
    let (listening, addr) = listener();
    let client = dial(&addr);
    show_send("client", client, b"bye", 0);
    abort(client);
    sleep(2);
    show_poll("listener", listening);
    let server = show_fd("accept", accept(listening));
    await_events(server, libc::POLLHUP);
    show_poll("server", server);
    show_peername("server", server);
    show_recv("server", server, 8, 0);
    show_recv("server", server, 8, 0);
}

fn close_resets_pending() {
    let (listening, addr) = listener();
    let (a, b) = (dial(&addr), dial(&addr));
    show_send("a", a, b"data", 0);
    close(listening);
    for (label, client) in [("a", a), ("b", b)] {
        await_events(client, libc::POLLHUP);
        show_poll(label, client);
        show_recv(label, client, 8, 0);
        show_recv(label, client, 8, 0);
        show_send(label, client, b"x", libc::MSG_NOSIGNAL);
    }
}

fn close_refuses() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    close(listening);
    show("connect", connect(tcp(), &addr));
    show_send("the old connection", pair.client, b"on", 0);
    await_readable(pair.server);
    show_recv("the old connection", pair.server, 8, 0);
}

fn unbound() {
    let fd = tcp();
    show("listen", listen(fd, 4));
    let (_, addr) = getsockname(fd);
    label_port(addr.port(), "L");
    say!("got a port: {}", addr.port() != 0);
    show_sockname("listener", fd);
    let client = tcp();
    show("connect", connect(client, &Addr::local(addr.port())));
    show_fd("accept", accept(fd));
}

fn twice() {
    let (fd, addr) = listener();
    show("listen again", listen(fd, 1));
    show("listen again", listen(fd, 100));
    let client = tcp();
    show("connect", connect(client, &addr));
    show("listen with one pending", listen(fd, 5));
    show_fd("accept", accept(fd));
}

fn on_connected() {
    let pair = connected();
    show("listen on the client", listen(pair.client, 1));
    show("listen on the server", listen(pair.server, 1));
    show_send("still works", pair.client, b"x", 0);
}

fn errors() {
    let (read_end, _) = pipe(0);
    show("bad descriptor", listen(-1, 1));
    show("closed descriptor", listen(999, 1));
    show("pipe", listen(read_end, 1));
    show("udp", listen(socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd(), 1));
    show("unbound unix", listen(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd(), 1));
}

fn state() {
    let fd = tcp();
    bind(fd, &Addr::local(0));
    show_option("SO_ACCEPTCONN bound", fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    show_tcp_state("bound", fd, "CLOSE");
    listen(fd, 4);
    show_option("SO_ACCEPTCONN listening", fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    show_tcp_state("listening", fd, "LISTEN");
    show_so_error("listening", fd);
    show_poll("listening", fd);
    let (_, addr) = getsockname(fd);
    label_port(addr.port(), "L");
    show_sockname("listening", fd);
    show_peername("listening", fd);
    let pair = connect_to(fd, &addr);
    show_option("SO_ACCEPTCONN accepted", pair.server, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    show_tcp_state("accepted", pair.server, "ESTABLISHED");
}

fn io_on_listener() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let (fd, addr) = listener();
    show_recv("listener", fd, 8, 0);
    show_read("listener", fd, 8);
    show_send("listener", fd, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_send("listener", fd, b"x", libc::MSG_NOSIGNAL);
    show("connect of a listener", connect(fd, &addr));
    let (result, _) = ioctl_int(fd, libc::FIONREAD, 0);
    show("FIONREAD", result);
    say!("F_GETFL {}", status_flags(fd));
}

fn shutdown_listener() {
    let (fd, addr) = listener();
    let pending = dial(&addr);
    show("shutdown WR", shutdown(fd, libc::SHUT_WR));
    show_poll("listener", fd);
    show("shutdown RD", shutdown(fd, libc::SHUT_RD));
    show_poll("listener", fd);
    show("accept", accept(fd));
    show("connect", connect(tcp(), &addr));
    await_events(pending, libc::POLLHUP);
    show_recv("pending client", pending, 8, 0);
    show_option("SO_ACCEPTCONN", fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    show_tcp_state("listener", fd, "CLOSE");
    show_sockname("listener", fd);
}

fn shutdown_then_listen() {
    let (fd, addr) = listener();
    show("shutdown RDWR", shutdown(fd, libc::SHUT_RDWR));
    show("listen again", listen(fd, 4));
    let client = tcp();
    show("connect", connect(client, &addr));
    let (result, local) = getsockname(fd);
    show("getsockname", result);
    say!("same port: {}", local.port() == addr.port());
}

fn backlog_values() {
    for backlog in [-1, 0, 1, 128, 4096, i32::MAX] {
        let fd = tcp();
        bind(fd, &Addr::local(0));
        show(&format!("listen {backlog}"), listen(fd, backlog));
        let (_, addr) = getsockname(fd);
        let client = tcp();
        show("connect", connect(client, &addr));
        show_fd("accept", accept(fd));
    }
}

/// A backlog of N holds N + 1 connections; further ones wait in SYN-SENT.
fn backlog_full() {
    let (listening, addr) = listener_with(3);
    let mut clients = Vec::new();
    let mut established = 0;
    for _ in 0..7 {
        let client = tcp_nonblocking();
        let result = connect(client, &addr);
        say!("connect = {result}");
        established += i32::from(poll_one(client, libc::POLLOUT, 30).1 & libc::POLLOUT != 0);
        clients.push(client);
    }
    say!("established {established}");
    set_nonblocking(listening, true);
    let accepted = (0..7).filter(|_| accept(listening).ok()).count();
    say!("accepted {accepted}");
}

fn accepted_survives_close() {
    let (listening, addr) = listener();
    let first = connect_to(listening, &addr);
    let second = connect_to(listening, &addr);
    close(listening);
    for (label, pair) in [("first", &first), ("second", &second)] {
        show_send(label, pair.server, b"still here", 0);
        await_readable(pair.client);
        show_recv(label, pair.client, 32, 0);
    }
    show_sockname("first server", first.server);
}

/// Connections are completed for a process that has no descriptor left, and wait until it has one.
fn full_server(role: &mut Role) {
    limit_descriptors(200);
    let (listening, addr) = listener();
    let mut dups = Vec::new();
    loop {
        let result = dup(listening);
        if !result.ok() {
            say!("{result}");
            break;
        }
        dups.push(result.fd());
    }
    role.tell_port(&addr);
    role.expect("sent");
    say!("accept without a number: {}", accept(listening));
    dups.drain(..8).for_each(|fd| _ = close(fd));
    let server = accept(listening).fd();
    show_recv("server", server, 16, 0);
    send(server, b"late", 0);
    close_all(&dups);
}

fn early_client(role: &mut Role) {
    let client = dial(&Addr::local(role.hear_port("L")));
    say!("{}", send(client, b"early", 0));
    role.tell("sent");
    show_recv("client", client, 16, 0);
}

/// What php-fpm shows as its listen queue.
fn queue_in_tcp_info() {
    let (listening, addr) = listener_with(3);
    say!("listens: {:?}", tcp_info_queue(listening));
    let clients = [(); 3].map(|()| {
        let client = dial(&addr);
        sleep(2);
        say!("one more: {:?}", tcp_info_queue(listening));
        client
    });
    let server = show_fd("accept", accept(listening));
    say!("accepted: {:?}, state {:?}", tcp_info_queue(listening), tcp_info_state(listening).1);
    show("listen again", listen(listening, 9));
    // It is accepted all the same.
    close(clients[1]);
    sleep(2);
    say!("a client has left: {:?}", tcp_info_queue(listening));
    show_send("client", clients[0], b"hello", 0);
    await_readable(server);
    show_recv("server", server, 8, 0);
    close_all(&[accept(listening).fd(), accept(listening).fd()]);
    say!("none is left: {:?}", tcp_info_queue(listening));
}

/// A master that never accepts asks while its workers look at nothing.
fn queue_of_busy_workers() {
    let (listening, addr) = listener_with(5);
    let (end, may_end) = pipe(0);
    let (busy, is_busy) = pipe(0);
    let work = || {
        let server = accept(listening);
        write(is_busy, b"!");
        read(end, &mut [0]);
        i32::from(!server.ok())
    };
    let workers = [(); 2].map(|()| fork_child(work));
    sleep(50);
    let mut clients = vec![dial(&addr), dial(&addr)];
    for _ in 0..2 {
        read(busy, &mut [0]);
    }
    say!("all are busy: {:?}", tcp_info_queue(listening));
    for _ in 0..3 {
        clients.push(dial(&addr));
        sleep(2);
        say!("one more: {:?}", tcp_info_queue(listening));
    }
    write(may_end, b"!!");
    workers.into_iter().for_each(|worker| say!("worker: {}", wait_child(worker)));
    close_all(&clients);
}
