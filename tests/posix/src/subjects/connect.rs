//! `connect()`: results, repeated calls, refused, pending, odd addresses.

use std::ptr;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("connect/blocking", blocking),
    solo("connect/nonblocking", nonblocking),
    solo("connect/nonblocking_poll_first", nonblocking_poll_first),
    solo("connect/refused", refused),
    solo("connect/refused_nonblocking", refused_nonblocking),
    solo("connect/refused_recv", refused_recv),
    solo("connect/refused_then_again", refused_then_again),
    solo("connect/repeated", repeated),
    solo("connect/errors", errors),
    solo("connect/any_address", any_address),
    solo("connect/second_loopback", second_loopback),
    solo("connect/data_before_accept", data_before_accept),
    solo("connect/in_progress", in_progress),
    solo("connect/in_progress_calls", in_progress_calls),
    solo("connect/send_timeout", send_timeout),
    solo("connect/interrupted", interrupted),
    solo("connect/close_in_progress", close_in_progress),
    solo("connect/udp_port_is_no_listener", udp_port_is_no_listener),
    solo("connect/bound_not_listening", bound_not_listening),
    solo("connect/port_zero", port_zero),
    solo("connect/unreachable", unreachable),
    solo("connect/disconnect", disconnect),
    solo("connect/disconnect_and_reuse", disconnect_and_reuse),
    solo("connect/self", connect_to_itself),
    solo("connect/many_in_turn", many_in_turn),
];

fn blocking() {
    let (listening, addr) = listener();
    let client = tcp();
    show("connect", connect(client, &addr));
    show_tcp_state("client", client, "ESTABLISHED");
    show_poll("client", client);
    show_so_error("client", client);
    label_port(getsockname(client).1.port(), "C");
    show_sockname("client", client);
    show_peername("client", client);
    let server = show_fd("accept", accept(listening));
    show_tcp_state("server", server, "ESTABLISHED");
    show_sockname("server", server);
    show_peername("server", server);
}

fn nonblocking() {
    let (listening, addr) = listener();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    await_events(client, libc::POLLOUT);
    show_poll("client", client);
    show_so_error("client", client);
    show("second connect", connect(client, &addr));
    show("third connect", connect(client, &addr));
    let server = show_fd("accept", accept(listening));
    show_send("server", server, b"hello", 0);
    await_readable(client);
    show_recv("client", client, 8, 0);
    say!("client {}", status_flags(client));
}

fn nonblocking_poll_first() {
    let (listening, addr) = listener();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    show_poll_for("client", client, libc::POLLOUT, 1000);
    show_send("client, no second connect", client, b"ping", 0);
    let server = show_fd("accept", accept(listening));
    await_readable(server);
    show_recv("server", server, 8, 0);
    show("connect at last", connect(client, &addr));
    show("connect once more", connect(client, &addr));
}

fn refused() {
    let addr = Addr::local(free_port());
    let client = tcp();
    show("connect", connect(client, &addr));
    show_so_error("after", client);
    show_poll("after", client);
    show_peername("after", client);
    show_tcp_state("after", client, "CLOSE");
    show_recv("after", client, 8, 0);
    show_send("after", client, b"x", libc::MSG_NOSIGNAL);
    show("connect again", connect(client, &addr));
}

fn refused_nonblocking() {
    let addr = Addr::local(free_port());
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    await_events(client, libc::POLLERR);
    show_poll("client", client);
    show_so_error("first", client);
    show_so_error("second", client);
    show_poll("after SO_ERROR", client);
    show("connect after SO_ERROR took the error", connect(client, &addr));
    show("connect anew", connect(client, &addr));
    await_events(client, libc::POLLERR);
    show("connect for the result", connect(client, &addr));
    show_so_error("after that", client);
}

/// The error of a refused connection is told by whatever call comes first.
fn refused_recv() {
    let addr = Addr::local(free_port());
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    await_events(client, libc::POLLERR);
    show_recv("first", client, 8, 0);
    show_recv("second", client, 8, 0);
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    await_events(client, libc::POLLERR);
    show_send("first", client, b"x", libc::MSG_NOSIGNAL);
    show_send("second", client, b"x", libc::MSG_NOSIGNAL);
}

fn refused_then_again() {
    let port = free_port();
    let client = tcp();
    show("connect", connect(client, &Addr::local(port)));
    let (listening, addr) = listener();
    show("connect the same socket elsewhere", connect(client, &addr));
    let server = show_fd("accept", accept(listening));
    show_send("client", client, b"second try", 0);
    await_readable(server);
    show_recv("server", server, 32, 0);
}

fn repeated() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    show("connect of a connected client", connect(pair.client, &addr));
    show("to another port", connect(pair.client, &Addr::local(free_port())));
    show("connect of an accepted socket", connect(pair.server, &addr));
    show_send("still works", pair.client, b"ok", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
    close(pair.server);
    await_readable(pair.client);
    show("connect after the peer closed", connect(pair.client, &addr));
}

fn errors() {
    let (fd, (read_end, _)) = (tcp(), pipe(0));
    let (_, addr) = listener();
    show("bad descriptor", connect(-1, &addr));
    show("closed descriptor", connect(999, &addr));
    show("pipe", connect(read_end, &addr));
    show("regular file", connect(temporary_file(b""), &addr));
    show("null address", connect_raw(fd, ptr::null(), 16));
    show("bad address", connect_raw(fd, ptr::without_provenance(8), 16));
    show("length 0", connect(fd, &addr.with_len(0)));
    show("length 1", connect(fd, &addr.with_len(1)));
    show("length 15", connect(fd, &addr.with_len(15)));
    show("length -1", connect(fd, &addr.with_len(u32::MAX)));
    show("length 129", connect(fd, &addr.with_len(129)));
    show("INET6 address on INET", connect(fd, &Addr::local6(addr.port())));
    show("UNIX family on INET", connect(fd, &addr.with_family(libc::AF_UNIX)));
    show("family 99 on INET", connect(fd, &addr.with_family(99)));
    show("still usable", connect(fd, &addr));
    let fd = tcp6();
    show("INET6 length 16", connect(fd, &Addr::local6(addr.port()).with_len(16)));
    show("length 128 is fine", connect(tcp(), &addr.with_len(128)));
}

fn any_address() {
    let (listening, addr) = listener();
    let client = tcp();
    show("connect 0.0.0.0", connect(client, &Addr::any(addr.port())));
    label_port(getsockname(client).1.port(), "C");
    show_sockname("client", client);
    show_peername("client", client);
    let server = show_fd("accept", accept(listening));
    show_sockname("server", server);
    show_peername("server", server);
}

fn second_loopback() {
    let listening = tcp();
    let addr = listen_on(listening, &Addr::any(0), 4);
    let client = tcp();
    show("connect 127.0.0.2", connect(client, &Addr::v4([127, 0, 0, 2], addr.port())));
    label_port(getsockname(client).1.port(), "C");
    show_sockname("client", client);
    show_peername("client", client);
    let (result, peer) = accept_addr(listening);
    say!("peer {peer}");
    show_sockname("server", result.fd());
    let (_, specific) = self::listener();
    show("127.0.0.3 of a 127.0.0.1 listener", connect(tcp(), &Addr::v4([127, 0, 0, 3], specific.port())));
}

fn data_before_accept() {
    let (listening, addr) = listener();
    let client = dial(&addr);
    show_send("client", client, b"request", 0);
    show("shutdown WR", shutdown(client, libc::SHUT_WR));
    let server = show_fd("accept", accept(listening));
    await_events(server, libc::POLLRDHUP);
    show_recv("server", server, 32, 0);
    show_recv("server", server, 32, 0);
    show_send("server", server, b"response", 0);
    await_readable(client);
    show_recv("client", client, 32, 0);
}

fn in_progress() {
    let (_, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    show("connect again", connect(client, &addr));
    show("connect a third time", connect(client, &addr));
    show_poll("client", client);
    show_so_error("client", client);
    show_tcp_state("client", client, "SYN_SENT");
    show_peername("client", client);
    label_port(getsockname(client).1.port(), "C");
    show_sockname("client", client);
}

fn in_progress_calls() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let (_, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    show_send("client", client, b"x", 0);
    show_recv("client", client, 8, 0);
    show_taken(libc::SIGPIPE);
    show("listen", listen(client, 1));
    show("bind", bind(client, &Addr::local(0)));
    show("accept", accept(client));
    show("shutdown WR", shutdown(client, libc::SHUT_WR));
    show_tcp_state("client", client, "CLOSE");
    show_poll("client", client);
    show_send("client", client, b"x", libc::MSG_NOSIGNAL);
    show_recv("client", client, 8, 0);
}

fn send_timeout() {
    let (_, addr, _filler) = full_backlog();
    let client = tcp();
    set_timeout(client, libc::SO_SNDTIMEO, 30);
    show("connect", connect(client, &addr));
    show("connect again", connect(client, &addr));
    set_nonblocking(client, true);
    show("connect without blocking", connect(client, &addr));
}

fn interrupted() {
    count_signal(libc::SIGUSR1, 0);
    let (_, addr, _filler) = full_backlog();
    let client = tcp();
    let pinger = Pinger::start();
    show("connect", connect(client, &addr));
    drop(pinger);
    say!("signalled: {}", taken(libc::SIGUSR1) > 0);
    set_nonblocking(client, true);
    show("connect without blocking", connect(client, &addr));
}

fn close_in_progress() {
    let (listening, addr, filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    show("close", close(client));
    set_nonblocking(listening, true);
    for _ in &filler {
        show_fd("accept a filler", accept(listening));
    }
    show("no more to accept", accept(listening));
}

fn udp_port_is_no_listener() {
    let (udp, addr) = loop {
        let udp = socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd();
        bind(udp, &Addr::local(0));
        let (_, addr) = getsockname(udp);
        let probe = tcp();
        let free = bind(probe, &addr).ok();
        close(probe);
        if free {
            break (udp, addr);
        }
        close(udp);
    };
    show("connect", connect(tcp(), &addr));
    close(udp);
}

fn bound_not_listening() {
    let bound = tcp();
    bind(bound, &Addr::local(0));
    let (_, addr) = getsockname(bound);
    show("connect to a bound port", connect(tcp(), &addr));
    show("listen", listen(bound, 1));
    show("connect to a listening port", connect(tcp(), &addr));
}

fn port_zero() {
    show("connect", connect(tcp(), &Addr::local(0)));
    let client = tcp_nonblocking();
    let result = connect(client, &Addr::local(0));
    say!("non-blocking: {result}");
}

fn unreachable() {
    show("255.255.255.255", connect(tcp(), &Addr::v4([255, 255, 255, 255], 1)));
    show("224.0.0.1", connect(tcp(), &Addr::v4([224, 0, 0, 1], 1)));
    let client = tcp();
    bind(client, &Addr::local(0));
    show("192.0.2.77 from 127.0.0.1", connect(client, &Addr::v4([192, 0, 2, 77], 1)));
}

fn disconnect() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    show("connect AF_UNSPEC", connect(pair.client, &Addr::unspec()));
    show_peername("client", pair.client);
    show_sockname("client", pair.client);
    show_poll("client", pair.client);
    await_events(pair.server, libc::POLLHUP);
    show_poll("server", pair.server);
    show_recv("server", pair.server, 8, 0);
    show("AF_UNSPEC on a fresh socket", connect(tcp(), &Addr::unspec()));
    show("AF_UNSPEC of length 2", connect(tcp(), &Addr::unspec().with_len(2)));
}

fn disconnect_and_reuse() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    show("connect AF_UNSPEC", connect(pair.client, &Addr::unspec()));
    show("connect", connect(pair.client, &addr));
    let server = show_fd("accept", accept(listening));
    show_send("client", pair.client, b"again", 0);
    await_readable(server);
    show_recv("server", server, 8, 0);
    show("AF_UNSPEC on a listener", connect(listening, &Addr::unspec()));
    show("connect to it", connect(tcp(), &addr));
}

/// Simultaneous open with oneself (RFC 793, figure 8).
fn connect_to_itself() {
    let fd = tcp();
    bind(fd, &Addr::local(0));
    let (_, addr) = getsockname(fd);
    label_port(addr.port(), "S");
    show("connect", connect(fd, &addr));
    show_sockname("self", fd);
    show_peername("self", fd);
    show_send("self", fd, b"echo", 0);
    await_readable(fd);
    show_recv("self", fd, 8, 0);
    show("shutdown WR", shutdown(fd, libc::SHUT_WR));
    await_readable(fd);
    show_recv("self", fd, 8, 0);
}

fn many_in_turn() {
    let (listening, addr) = listener();
    let mut good = 0;
    for round in 0..200u32 {
        let pair = connect_to(listening, &addr);
        let mut buffer = [0; 4];
        send(pair.client, &round.to_ne_bytes(), 0);
        let got = recv(pair.server, &mut buffer, libc::MSG_WAITALL);
        good += u32::from(got.value == 4 && u32::from_ne_bytes(buffer) == round);
        close_all(&[pair.client, pair.server]);
    }
    say!("good rounds: {good}");
}
