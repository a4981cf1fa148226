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
    pair("pair/poll_states", poll_server, poll_client),
    pair("pair/edge_states", edge_server, edge_client),
    pair("pair/server_restart", restarting_server, twice_client),
    pair("pair/client_port", port_server, port_client),
    pair("pair/ipv6", server6, client6),
    pair("pair/dual_stack", dual_server, dual_client),
    pair("pair/connections_in_turn", turn_server, turn_client),
    pair("pair/receive_timeout", silent_server, timeout_client),
    pair("pair/interrupted", late_sender, interrupted_client),
    pair("pair/peek_waitall_trunc", sender_of_parts, flags_client),
    pair("pair/urgent", urgent_server, urgent_client),
    pair("pair/options", options_server, options_client),
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
    role.tell("restarting");
    let pinger = Pinger::start();
    show_recv("client", client, 8, 0);
    drop(pinger);
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

fn show_some_options(fd: i32) {
    show_option("TCP_NODELAY", fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    show_option("SO_KEEPALIVE", fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    show_option("SO_TYPE", fd, libc::SOL_SOCKET, libc::SO_TYPE);
    show_option("TCP_MAXSEG", fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    show_tcp_state("state", fd, "ESTABLISHED");
    show_so_error("error", fd);
    say!("{} {} {}", status_flags(fd), descriptor_flags(fd), file_type(fd));
}

fn options_server(role: &mut Role) {
    let (listening, addr) = listener();
    set_int(listening, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    role.tell_port(&addr);
    let server = accept(listening).fd();
    show_some_options(server);
    role.expect("closed");
    show_tcp_state("peer closed", server, "CLOSE_WAIT");
}

fn options_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let client = tcp();
    set_int(client, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    connect(client, &addr);
    show_some_options(client);
    close(client);
    role.tell("closed");
}
