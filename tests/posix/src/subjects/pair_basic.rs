//! Two processes: connecting, naming, talking, ending.

use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair};

pub(crate) const SUBJECTS: &[Subject] = &[
    pair("pair/echo", echo_server, echo_client),
    pair("pair/names", names_server, names_client),
    pair("pair/client_closes", reader_of_three, closing_client),
    pair("pair/server_closes", closing_server, reader_until_end),
    pair("pair/half_close", half_close_server, half_close_client),
    pair("pair/nonblocking_connect", patient_server, nonblocking_client),
    pair("pair/refused_then_listens", late_listener, early_client),
    pair("pair/listener_closed_with_pending", forgetful_server, pending_client),
    pair("pair/data_before_accept", slow_acceptor, eager_client),
    pair("pair/server_restart", restarting_server, twice_client),
    pair("pair/client_port", port_server, port_client),
    pair("pair/ipv6", server6, client6),
    pair("pair/dual_stack", dual_server, dual_client),
    pair("pair/connections_in_turn", turn_server, turn_client),
];

/// Listens, tells the port, and accepts one connection.
pub(crate) fn serve_one(role: &mut Role) -> i32 {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    let server = accept(listening);
    if !server.ok() {
        show("accept", server);
    }
    close(listening);
    server.fd()
}

/// Connects to the port that the server told.
pub(crate) fn call_server(role: &mut Role) -> i32 {
    dial(&Addr::local(role.hear_port("L")))
}

fn echo_server(role: &mut Role) {
    let server = serve_one(role);
    loop {
        let mut buffer = [0; 64];
        let result = recv(server, &mut buffer, 0);
        show_bytes("recv", result, &buffer);
        if result.value <= 0 {
            break;
        }
        show_send("echo", server, &buffer[..result.count()], 0);
    }
    show("close", close(server));
}

fn echo_client(role: &mut Role) {
    let client = call_server(role);
    for word in ["first", "second", "third"] {
        show_send("client", client, word.as_bytes(), 0);
        show_recv("client", client, 64, 0);
    }
    shutdown(client, libc::SHUT_WR);
    show_recv("client", client, 64, 0);
}

fn names_server(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    role.hear_port("C");
    let (result, peer) = accept_addr(listening);
    show_addr("accept", "address", Ret { value: result.value.min(0), ..result }, peer);
    show_sockname("server", result.fd());
    show_peername("server", result.fd());
    role.expect("end");
}

fn names_client(role: &mut Role) {
    let client = call_server(role);
    let (_, own) = getsockname(client);
    role.tell_port(&own);
    label_port(own.port(), "C");
    show_sockname("client", client);
    show_peername("client", client);
    role.tell("end");
}

fn reader_of_three(role: &mut Role) {
    let server = serve_one(role);
    role.expect("closed");
    await_events(server, libc::POLLRDHUP);
    show_poll("server", server);
    show_recv("server", server, 3, 0);
    show_recv("server", server, 64, 0);
    show_recv("server", server, 64, 0);
    show_poll("server", server);
    show_send("to the closed one", server, b"x", libc::MSG_NOSIGNAL);
    await_events(server, libc::POLLHUP);
    show_poll("server", server);
    show_send("once more", server, b"x", libc::MSG_NOSIGNAL);
}

fn closing_client(role: &mut Role) {
    let client = call_server(role);
    show_send("client", client, b"farewell", 0);
    show("close", close(client));
    role.tell("closed");
}

fn closing_server(role: &mut Role) {
    let server = serve_one(role);
    show_send("server", server, b"welcome and goodbye", 0);
    show("close", close(server));
    role.tell("closed");
}

fn reader_until_end(role: &mut Role) {
    let client = call_server(role);
    role.expect("closed");
    await_events(client, libc::POLLRDHUP);
    show_poll("client", client);
    show_recv("client", client, 7, 0);
    show_recv("client", client, 64, 0);
    show_recv("client", client, 64, 0);
    show_peername("client", client);
    show("shutdown WR", shutdown(client, libc::SHUT_WR));
    await_events(client, libc::POLLHUP);
    show_poll("client", client);
}

fn half_close_server(role: &mut Role) {
    let server = serve_one(role);
    show_recv("server", server, 64, libc::MSG_WAITALL);
    show_recv("server", server, 64, 0);
    show_send("server", server, b"late ", 0);
    sleep(3);
    show_send("server", server, b"answer", 0);
}

fn half_close_client(role: &mut Role) {
    let client = call_server(role);
    show_send("client", client, b"request", 0);
    show("shutdown", shutdown(client, libc::SHUT_WR));
    show_recv("client", client, 11, libc::MSG_WAITALL);
    show_recv("client", client, 64, 0);
    show_send("client", client, b"x", libc::MSG_NOSIGNAL);
}

fn patient_server(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    show_poll_for("listener", listening, libc::POLLIN, 5000);
    role.expect("connected");
    let server = show_fd("accept4", accept4(listening, libc::SOCK_NONBLOCK));
    show_poll_for("server", server, libc::POLLIN, 5000);
    show_recv("server", server, 64, 0);
    show_recv("server", server, 64, 0);
    show_send("server", server, b"reply", 0);
}

fn nonblocking_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let client = tcp_nonblocking();
    let ep = epoll();
    show("connect", connect(client, &addr));
    epoll_add(ep, client, libc::EPOLLOUT | libc::EPOLLIN, 1);
    show_epoll_within("client", ep, 5000);
    show_so_error("client", client);
    show("connect again", connect(client, &addr));
    show("and again", connect(client, &addr));
    role.tell("connected");
    show_send("client", client, b"request", 0);
    epoll_mod(ep, client, libc::EPOLLIN, 2);
    show_epoll_within("client", ep, 5000);
    show_recv("client", client, 64, 0);
}

fn late_listener(role: &mut Role) {
    let listening = tcp();
    bind(listening, &Addr::local(0));
    role.tell_port(&getsockname(listening).1);
    role.expect("refused");
    show("listen", listen(listening, 4));
    role.tell("listening");
    let server = show_fd("accept", accept(listening));
    show_recv("server", server, 64, 0);
    close(server);
    close(listening);
    role.tell("closed");
    role.expect("end");
}

fn early_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let client = tcp();
    show("connect", connect(client, &addr));
    role.tell("refused");
    role.expect("listening");
    show("connect of the same socket", connect(client, &addr));
    show_send("client", client, b"at last", 0);
    role.expect("closed");
    show("connect when the listener is closed", connect(tcp(), &addr));
    role.tell("end");
}

fn forgetful_server(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    role.expect("connected");
    show_poll("listener", listening);
    show("close", close(listening));
    role.tell("closed");
    role.expect("end");
}

fn pending_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let (a, b) = (dial(&addr), dial(&addr));
    show_send("a", a, b"into the backlog", 0);
    role.tell("connected");
    role.expect("closed");
    for client in [a, b] {
        await_events(client, libc::POLLHUP);
        show_poll("client", client);
        show_recv("client", client, 8, 0);
        show_recv("client", client, 8, 0);
    }
    show("connect", connect(tcp(), &addr));
    role.tell("end");
}

fn slow_acceptor(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    role.expect("closed");
    let server = show_fd("accept", accept(listening));
    await_events(server, libc::POLLRDHUP);
    show_recv("server", server, 64, 0);
    show_recv("server", server, 64, 0);
    set_nonblocking(listening, true);
    show("accept", accept(listening));
}

fn eager_client(role: &mut Role) {
    let client = call_server(role);
    show_poll("client", client);
    show_send("client", client, b"nobody accepted ", 0);
    show_send("client", client, b"me yet", 0);
    close(client);
    role.tell("closed");
}

fn restarting_server(role: &mut Role) {
    let first = tcp();
    set_int(first, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    let addr = listen_on(first, &Addr::local(0), 4);
    role.tell_port(&addr);
    let old = show_fd("accept", accept(first));
    show("close", close(first));
    let second = tcp();
    set_int(second, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    show("bind again", bind(second, &addr));
    show("listen again", listen(second, 4));
    role.tell("again");
    let new = show_fd("accept", accept(second));
    show_recv("new", new, 64, 0);
    show_recv("old", old, 64, 0);
}

fn twice_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let old = dial(&addr);
    role.expect("again");
    let new = dial(&addr);
    show_send("old", old, b"old connection", 0);
    show_send("new", new, b"new connection", 0);
    show_recv("old", old, 8, 0);
}

fn port_server(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    role.hear_port("C");
    let (result, peer) = accept_addr(listening);
    say!("accept ok {}, peer {peer}", result.ok());
    show_recv("server", result.fd(), 64, 0);
}

fn port_client(role: &mut Role) {
    let port = role.hear_port("L");
    let client = tcp();
    show("bind", bind(client, &Addr::v4([127, 0, 0, 9], 0)));
    let (_, own) = getsockname(client);
    label_port(own.port(), "C");
    role.tell_port(&own);
    show("connect", connect(client, &Addr::local(port)));
    show_sockname("client", client);
    show_send("client", client, b"from 127.0.0.9", 0);
}

fn server6(role: &mut Role) {
    let listening = tcp6();
    let addr = listen_on(listening, &Addr::local6(0), 4);
    role.tell_port(&addr);
    role.hear_port("C");
    let (result, peer) = accept_addr(listening);
    say!("peer {peer} len {}", peer.len);
    show_recv("server", result.fd(), 64, 0);
    show_send("server", result.fd(), b"six to you", 0);
}

fn client6(role: &mut Role) {
    let port = role.hear_port("L");
    let client = tcp6();
    show("connect", connect(client, &Addr::local6(port)));
    let (_, own) = getsockname(client);
    role.tell_port(&own);
    label_port(own.port(), "C");
    show_sockname("client", client);
    show_send("client", client, b"six", 0);
    show_recv("client", client, 64, 0);
}

fn dual_server(role: &mut Role) {
    let listening = tcp6();
    let addr = listen_on(listening, &Addr::any6(0), 4);
    role.tell_port(&addr);
    for _ in 0..2 {
        let (result, peer) = accept_addr(listening);
        say!("peer {peer}");
        show_sockname("server", result.fd());
        show_recv("server", result.fd(), 64, 0);
        send(result.fd(), b"ok", 0);
    }
}

fn dual_client(role: &mut Role) {
    let port = role.hear_port("L");
    let (four, six) = (tcp(), tcp6());
    show("connect over IPv4", connect(four, &Addr::local(port)));
    show_send("four", four, b"four", 0);
    show_recv("four", four, 8, 0);
    show("connect over IPv6", connect(six, &Addr::local6(port)));
    show_send("six", six, b"six", 0);
    show_recv("six", six, 8, 0);
}

fn turn_server(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    let mut good = 0;
    for round in 0..300u32 {
        let server = accept(listening).fd();
        let mut buffer = [0; 4];
        recv(server, &mut buffer, libc::MSG_WAITALL);
        good += u32::from(u32::from_ne_bytes(buffer) == round);
        send(server, &buffer, 0);
        close(server);
    }
    say!("good rounds {good}");
}

fn turn_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let mut good = 0;
    for round in 0..300u32 {
        let client = dial(&addr);
        let mut buffer = [0; 4];
        send(client, &round.to_ne_bytes(), 0);
        recv(client, &mut buffer, libc::MSG_WAITALL);
        good += u32::from(u32::from_ne_bytes(buffer) == round && recv(client, &mut buffer, 0).value == 0);
        close(client);
    }
    say!("good rounds {good}");
}
