//! MPTCP sockets: how threads wait for them, how their connections end, who else gets them. See `mptcp`.

use std::thread;

use super::exec::exec_helper;
use super::mptcp::{MIXTURES, MPTCP, TCP, connected_by, dial_by, listener_of, show_kind, stream};
use super::others::{pass, take};
use super::pair_servers::echo_some;
use super::pass::answer_in_upper_case;
use crate::bulk::{receive_pattern, send_pattern};
use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("mptcp/poll", poll_tells),
    solo("mptcp/epoll", epoll_tells),
    solo("mptcp/shutdown", shut),
    solo("mptcp/ends", ends),
    solo("mptcp/resets", resets),
    solo("mptcp/resets_of_clients", resets_of_clients),
    solo("mptcp/backlog", backlog),
    solo("mptcp/bulk", bulk),
    solo("mptcp/fork", forked),
    solo("mptcp/exec_listener", exec_listener),
    solo("mptcp/exec_stream", exec_stream),
    solo("mptcp/passed", passed),
    solo("mptcp/passed_listener", passed_listener),
    pair("mptcp/server", epoll_server, tcp_client),
    pair("mptcp/both", epoll_server, mptcp_client),
    pair("mptcp/client", tcp_server, mptcp_client),
];

fn poll_tells() {
    for mixture in MIXTURES {
        say!("{}", mixture.0);
        let (listening, addr) = listener_of(mixture.1);
        show_poll("listener", listening);
        let client = dial_by(mixture.2, &addr);
        await_readable(listening);
        show_poll("listener", listening);
        show_select("select", &[("listener", listening), ("client", client)], 0);
        let server = show_fd("accept", accept(listening));
        show_poll("listener", listening);
        let waits = thread::spawn(move || {
            let (result, events) = poll_one(server, libc::POLLIN, 5000);
            format!("{result} {}", poll_mask(events))
        });
        sleep(30);
        show_send("client", client, b"wake", 0);
        say!("poll: {}", waits.join().unwrap_or_default());
        show_recv("server", server, 8, 0);
        close_all(&[client, server, listening]);
    }
}

fn epoll_tells() {
    for (label, listener, client) in MIXTURES {
        say!("{label}");
        let ep = epoll();
        let (listening, addr) = listener_of(listener);
        epoll_add(ep, listening, libc::EPOLLIN, 1);
        let client = stream(libc::AF_INET, client);
        set_nonblocking(client, true);
        show_epoll("nothing", ep);
        show("connect", connect(client, &addr));
        show_epoll_within("listener", ep, 5000);
        let server = show_fd("accept", accept(listening));
        let edges = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        await_events(client, libc::POLLOUT);
        // Each acknowledgment of the other end's makes an edge of EPOLLOUT where MPTCP is spoken.
        epoll_add(ep, client, edges & !libc::EPOLLOUT, 2);
        epoll_add(ep, server, edges, 3);
        show_epoll_within("both", ep, 5000);
        show_epoll("no new edge", ep);
        show_send("client", client, b"one", 0);
        await_bytes(server, 3);
        show_epoll_within("data", ep, 5000);
        show_epoll("no new edge", ep);
        show_recv("server", server, 8, 0);
        show("shutdown", shutdown(client, libc::SHUT_WR));
        await_events(server, libc::POLLRDHUP);
        show_epoll_within("end", ep, 5000);
        close_all(&[client, server, listening, ep]);
    }
}

fn shut() {
    for mixture in MIXTURES {
        say!("{}", mixture.0);
        let pair = connected_by(mixture);
        show_send("client", pair.client, b"last words", 0);
        show("client: shutdown WR", shutdown(pair.client, libc::SHUT_WR));
        show_send("client", pair.client, b"x", libc::MSG_NOSIGNAL);
        await_events(pair.server, libc::POLLRDHUP);
        show_poll("server", pair.server);
        show_recv("server", pair.server, 32, 0);
        show_recv("server", pair.server, 32, 0);
        show_send("server", pair.server, b"still here", 0);
        await_readable(pair.client);
        show_recv("client", pair.client, 32, 0);
        show("server: shutdown", shutdown(pair.server, libc::SHUT_RDWR));
        await_events(pair.client, libc::POLLHUP);
        show_poll("client", pair.client);
        show_recv("client", pair.client, 32, 0);
        close_all(&[pair.client, pair.server]);
    }
}

fn ends() {
    for mixture in MIXTURES {
        say!("{}", mixture.0);
        let pair = connected_by(mixture);
        close(pair.server);
        await_events(pair.client, libc::POLLRDHUP);
        show_poll("closed", pair.client);
        show_recv("closed", pair.client, 8, 0);
        close(pair.client);
    }
}

fn reset_in((label, listener, client): (&str, i32, i32)) {
    say!("{label}");
    let pair = connected_by((label, listener, client));
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_poll("aborted", pair.client);
    show_recv("aborted", pair.client, 8, 0);
    show_recv("aborted", pair.client, 8, 0);
    show_send("aborted", pair.client, b"x", libc::MSG_NOSIGNAL);
    close(pair.client);
    let pair = connected_by((label, listener, client));
    send(pair.client, b"unread", 0);
    await_readable(pair.server);
    close(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_poll("unread", pair.client);
    show_so_error("unread", pair.client);
    close(pair.client);
}

fn resets() {
    MIXTURES.iter().filter(|(_, _, client)| *client == TCP).for_each(|mixture| reset_in(*mixture));
}

/// After a reset an MPTCP socket is not connected.
fn resets_of_clients() {
    MIXTURES.iter().filter(|(_, _, client)| *client == MPTCP).for_each(|mixture| reset_in(*mixture));
}

/// Those that wait in the backlog are accepted in their order.
fn backlog() {
    let (listening, addr) = listener_of(MPTCP);
    let clients = [TCP, MPTCP, TCP, MPTCP].map(|protocol| dial_by(protocol, &addr));
    for (number, client) in clients.iter().enumerate() {
        send(*client, &[b'0' + number as u8], 0);
    }
    for _ in clients {
        let server = show_fd("accept", accept(listening));
        await_readable(server);
        show_recv("server", server, 8, 0);
        show_option("PROTOCOL", server, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    }
    let waits = dial_by(MPTCP, &addr);
    close(listening);
    await_events(waits, libc::POLLHUP);
    show_so_error("the listener was closed", waits);
}

fn bulk() {
    for mixture in MIXTURES {
        say!("{}", mixture.0);
        let Connected { client, server } = connected_by(mixture);
        let sender = thread::spawn(move || {
            let sent = send_pattern(client, 3_000_000, &[100_000, 1, 7000]);
            shutdown(client, libc::SHUT_WR);
            sent
        });
        receive_pattern(server, u64::MAX, &[65_536]).show("server");
        say!("sent {}", sender.join().unwrap_or_default());
        close_all(&[client, server]);
    }
}

fn forked() {
    for client in [MPTCP, TCP] {
        let (listening, addr) = listener_of(MPTCP);
        let child = fork_child(|| {
            let server = show_fd("child: accept", accept(listening));
            show_kind("child", server);
            let mut buffer = [0; 32];
            let got = recv(server, &mut buffer, 0);
            show_bytes("child: recv", got, &buffer);
            send(server, b"from the child", 0);
            0
        });
        close(listening);
        let client = stream(libc::AF_INET, client);
        connect(client, &addr);
        send(client, b"to the child", 0);
        let mut buffer = [0; 32];
        let got = recv(client, &mut buffer, 0);
        say!("child: {}", wait_child(child));
        show_bytes("recv", got, &buffer);
        show_recv("client", client, 32, 0);
    }
}

fn exec_listener() {
    for protocol in [MPTCP, TCP] {
        let (listening, addr) = listener_of(MPTCP);
        let child = fork_child(|| exec_helper("accept", &[listening]));
        close(listening);
        let client = stream(libc::AF_INET, protocol);
        connect(client, &addr);
        say!("child: {}", wait_child(child));
        await_events(client, libc::POLLRDHUP);
        show_recv("client", client, 32, 0);
        show_recv("client", client, 32, 0);
    }
}

fn exec_stream() {
    for mixture in MIXTURES {
        say!("{}", mixture.0);
        let pair = connected_by(mixture);
        let child = fork_child(|| {
            close(pair.client);
            exec_helper("upper", &[pair.server])
        });
        close(pair.server);
        let answers = ["first", "second"].map(|word| super::exec::ask(pair.client, word));
        shutdown(pair.client, libc::SHUT_WR);
        say!("child: {}", wait_child(child));
        say!("answers {answers:?}");
        show_option("client: PROTOCOL", pair.client, libc::SOL_SOCKET, libc::SO_PROTOCOL);
        close(pair.client);
    }
}

fn passed() {
    for mixture in MIXTURES {
        say!("{}", mixture.0);
        let (child, to) = super::pass::receiver(answer_in_upper_case);
        let pair = connected_by(mixture);
        pass(to, pair.server);
        close(pair.server);
        say!("answer {}", super::exec::ask(pair.client, "word"));
        say!("receiver: {}", wait_child(child));
        close_all(&[pair.client, to]);
    }
}

fn passed_listener() {
    let (listening, addr) = listener_of(MPTCP);
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        close(here);
        let (_, fd) = take(there);
        show_kind("child", fd);
        set_nonblocking(fd, false);
        let server = show_fd("child: accept", accept(fd));
        show_kind("child", server);
        answer_in_upper_case(server);
        0
    });
    pass(here, listening);
    close(listening);
    let client = stream(libc::AF_INET, TCP);
    connect(client, &addr);
    let answer = super::exec::ask(client, "word");
    say!("child: {}", wait_child(child));
    say!("answer {answer}");
}

const CONNECTIONS: usize = 12;

/// Echoes on all connections until each has ended.
fn serve(role: &mut Role, protocol: i32) {
    let (listening, addr) = listener_of(protocol);
    role.tell_port(&addr);
    let ep = epoll();
    epoll_add(ep, listening, libc::EPOLLIN, 0);
    let (mut ended, mut protocols) = (0, Vec::new());
    while ended < CONNECTIONS {
        let (result, events) = epoll_wait(ep, 8, 5000);
        if result.value <= 0 {
            break;
        }
        for (number, _) in events {
            if number == 0 {
                let fd = accept(listening).fd();
                protocols.push(get_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL).1);
                epoll_add(ep, fd, libc::EPOLLIN, fd as u64);
            } else if !echo_some(number as i32) {
                close(number as i32);
                ended += 1;
            }
        }
    }
    say!("ended {ended}, protocols {protocols:?}");
}

fn epoll_server(role: &mut Role) {
    serve(role, MPTCP);
}

fn tcp_server(role: &mut Role) {
    serve(role, TCP);
}

fn ask_all(role: &mut Role, protocol: i32) {
    let addr = Addr::local(role.hear_port("L"));
    let clients: Vec<i32> = (0..CONNECTIONS).map(|_| dial_by(protocol, &addr)).collect();
    let mut right = 0;
    for round in 0..40 {
        for client in &clients {
            let word = format!("round {round} of {client}");
            right += usize::from(super::exec::ask(*client, &word) == word);
        }
    }
    say!("right answers {right}");
    for client in clients {
        show_option("PROTOCOL", client, libc::SOL_SOCKET, libc::SO_PROTOCOL);
        shutdown(client, libc::SHUT_WR);
        show_recv("client", client, 8, 0);
    }
}

fn tcp_client(role: &mut Role) {
    ask_all(role, TCP);
}

fn mptcp_client(role: &mut Role) {
    ask_all(role, MPTCP);
}
