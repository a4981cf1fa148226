//! Two processes: readiness, waiting, flags and options as the other side changes them.

use super::pair_basic::{call_server, serve_one};
use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair};

pub(crate) const SUBJECTS: &[Subject] = &[
    pair("pair/poll_states", poll_server, poll_client),
    pair("pair/edge_states", edge_server, edge_client),
    pair("pair/receive_timeout", silent_server, timeout_client),
    pair("pair/interrupted", late_sender, interrupted_client),
    pair("pair/peek_waitall_trunc", sender_of_parts, flags_client),
    pair("pair/urgent", urgent_server, urgent_client),
    pair("pair/options", options_server, options_client),
];

fn poll_server(role: &mut Role) {
    let server = serve_one(role);
    role.expect("look");
    show_poll("idle", server);
    role.tell("seen");
    role.expect("look");
    show_poll("data", server);
    show_recv("server", server, 64, 0);
    show_poll("taken", server);
    role.tell("seen");
    role.expect("look");
    await_events(server, libc::POLLRDHUP);
    show_poll("peer shut down", server);
    show_recv("server", server, 8, 0);
    show_send("server", server, b"answer", 0);
    role.tell("seen");
    role.expect("look");
    close(server);
    role.tell("closed");
}

fn poll_client(role: &mut Role) {
    let client = call_server(role);
    role.tell("look");
    role.expect("seen");
    send(client, b"data", 0);
    role.tell("look");
    role.expect("seen");
    show_poll("client", client);
    shutdown(client, libc::SHUT_WR);
    role.tell("look");
    role.expect("seen");
    show_poll("answer is there", client);
    show_select("answer is there", &[("c", client)], 0);
    show_recv("client", client, 64, 0);
    show_poll("answer taken", client);
    role.tell("look");
    role.expect("closed");
    await_events(client, libc::POLLHUP);
    show_poll("all closed", client);
    show_recv("client", client, 8, 0);
}

fn edge_server(role: &mut Role) {
    let server = serve_one(role);
    let ep = epoll();
    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
    epoll_add(ep, server, events, 1);
    show_epoll("when added", ep);
    for label in ["first", "second", "third"] {
        role.tell("go");
        role.expect("sent");
        show_epoll(label, ep);
        show_epoll("told already", ep);
        show_recv("one byte", server, 1, 0);
        show_epoll("part taken", ep);
    }
    role.tell("go");
    role.expect("closed");
    await_events(server, libc::POLLRDHUP);
    show_epoll("the end", ep);
    show_recv("server", server, 64, 0);
    show_recv("server", server, 64, 0);
    show_epoll("all taken", ep);
}

fn edge_client(role: &mut Role) {
    let client = call_server(role);
    for word in ["abc", "def", "ghi"] {
        role.expect("go");
        show_send("client", client, word.as_bytes(), 0);
        role.tell("sent");
    }
    role.expect("go");
    close(client);
    role.tell("closed");
}

fn silent_server(role: &mut Role) {
    let server = serve_one(role);
    role.expect("timed out");
    show_send("server", server, b"now", 0);
    role.expect("end");
}

fn timeout_client(role: &mut Role) {
    let client = call_server(role);
    set_timeout(client, libc::SO_RCVTIMEO, 30);
    show_recv("client", client, 8, 0);
    show_poll_for("client", client, libc::POLLIN, 20);
    role.tell("timed out");
    set_timeout(client, libc::SO_RCVTIMEO, 5000);
    show_recv("client", client, 8, 0);
    role.tell("end");
}

fn late_sender(role: &mut Role) {
    let server = serve_one(role);
    role.expect("interrupted");
    show_send("server", server, b"calm", 0);
    role.expect("restarting");
    sleep(30);
    show_send("server", server, b"again", 0);
    role.expect("end");
}

fn interrupted_client(role: &mut Role) {
    let client = call_server(role);
    count_signal(libc::SIGUSR1, 0);
    let pinger = Pinger::start();
    show_recv("client", client, 8, 0);
    show("poll", poll_one(client, libc::POLLIN, -1).0);
    drop(pinger);
    role.tell("interrupted");
    show_recv("client", client, 8, 0);
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    let pinger = ping_then(|| Role::inherited().tell("restarting"));
    show_recv("client", client, 8, 0);
    let _ = pinger.join();
    say!("signalled: {}", taken(libc::SIGUSR1) > 0);
    role.tell("end");
}

fn sender_of_parts(role: &mut Role) {
    let server = serve_one(role);
    send(server, b"abcdef", 0);
    role.tell("sent");
    role.expect("next");
    for part in [b"one", b"two", b"thr"] {
        sleep(3);
        send(server, part, 0);
    }
    role.expect("next");
    send(server, b"tail", 0);
    close(server);
    role.tell("closed");
}

fn flags_client(role: &mut Role) {
    let client = call_server(role);
    role.expect("sent");
    await_bytes(client, 6);
    show_recv("peek", client, 64, libc::MSG_PEEK);
    show_recv("trunc", client, 2, libc::MSG_TRUNC);
    show_recv("dontwait", client, 64, libc::MSG_DONTWAIT);
    show_recv("dontwait", client, 64, libc::MSG_DONTWAIT);
    role.tell("next");
    show_recv("waitall 9", client, 9, libc::MSG_WAITALL);
    role.tell("next");
    role.expect("closed");
    show_recv("waitall to the end", client, 64, libc::MSG_WAITALL);
}

fn urgent_server(role: &mut Role) {
    let server = serve_one(role);
    send(server, b"ab", 0);
    send(server, b"!", libc::MSG_OOB);
    send(server, b"cd", 0);
    role.tell("sent");
    role.expect("end");
}

fn urgent_client(role: &mut Role) {
    let client = call_server(role);
    role.expect("sent");
    await_events(client, libc::POLLPRI);
    show_poll("client", client);
    show_recv("urgent", client, 8, libc::MSG_OOB);
    show_recv("up to the mark", client, 8, 0);
    await_readable(client);
    show_recv("after it", client, 8, 0);
    role.tell("end");
}

fn options_server(role: &mut Role) {
    let (listening, addr) = listener();
    set_int(listening, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    role.tell_port(&addr);
    let server = accept(listening).fd();
    show_some_options(server);
    role.tell("shown");
    role.expect("closed");
    show_tcp_state("peer closed", server, "CLOSE_WAIT");
}

fn options_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let client = tcp();
    set_int(client, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    connect(client, &addr);
    show_some_options(client);
    role.expect("shown");
    close(client);
    role.tell("closed");
}

fn show_some_options(fd: i32) {
    show_option("TCP_NODELAY", fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    show_option("SO_KEEPALIVE", fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    show_option("SO_TYPE", fd, libc::SOL_SOCKET, libc::SO_TYPE);
    show_option("TCP_MAXSEG", fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    show_tcp_state("state", fd, "ESTABLISHED");
    show_so_error("error", fd);
    say!("{} {} {}", status_flags(fd), descriptor_flags(fd), file_type(fd));
}
