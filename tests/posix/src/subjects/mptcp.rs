//! MPTCP sockets: all mixtures of them and TCP sockets at the two ends. Where the kernel has none, TCP sockets take their place.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("mptcp/made", made),
    solo("mptcp/arguments", arguments),
    solo("mptcp/mixtures", mixtures),
    solo("mptcp/mixtures_ipv6", mixtures_ipv6),
    solo("mptcp/mapped", mapped),
    solo("mptcp/info", info),
    solo("mptcp/options", options),
    solo("mptcp/options_inherited", options_inherited),
    solo("mptcp/nonblocking", nonblocking),
    solo("mptcp/refused", refused),
    solo("mptcp/bound_client", bound_client),
    solo("mptcp/connected_again", connected_again),
];

/// Of linux/socket.h, linux/tcp.h and linux/mptcp.h, which the libc crate lacks.
const SOL_MPTCP: i32 = 284;
const TCP_IS_MPTCP: i32 = 43;
const MPTCP_INFO: i32 = 1;

pub(super) const TCP: i32 = libc::IPPROTO_TCP;
pub(super) const MPTCP: i32 = libc::IPPROTO_MPTCP;
/// Listener and client.
pub(super) const MIXTURES: [(&str, i32, i32); 4] =
    [("both", MPTCP, MPTCP), ("listener", MPTCP, TCP), ("client", TCP, MPTCP), ("none", TCP, TCP)];

pub(super) fn stream(family: i32, protocol: i32) -> i32 {
    let made = socket(family, libc::SOCK_STREAM, protocol);
    match made.ok() || protocol != MPTCP {
        true => made.fd(),
        false => socket(family, libc::SOCK_STREAM, 0).fd(),
    }
}

pub(super) fn listener_of(protocol: i32) -> (i32, Addr) {
    let listening = stream(libc::AF_INET, protocol);
    let addr = listen_on(listening, &Addr::local(0), 16);
    (listening, addr)
}

pub(super) fn dial_by(protocol: i32, addr: &Addr) -> i32 {
    let client = stream(addr.family(), protocol);
    show("connect", connect(client, addr));
    label_port(getsockname(client).1.port(), "C");
    client
}

pub(super) fn connected_by((_, listener, client): (&str, i32, i32)) -> Connected {
    let (listening, addr) = listener_of(listener);
    let client = dial_by(client, &addr);
    let server = show_fd("accept", accept(listening));
    close(listening);
    Connected { client, server }
}

pub(super) fn show_kind(label: &str, fd: i32) {
    let options = [
        ("TYPE", libc::SOL_SOCKET, libc::SO_TYPE),
        ("DOMAIN", libc::SOL_SOCKET, libc::SO_DOMAIN),
        ("PROTOCOL", libc::SOL_SOCKET, libc::SO_PROTOCOL),
        ("ACCEPTCONN", libc::SOL_SOCKET, libc::SO_ACCEPTCONN),
        ("IS_MPTCP", TCP, TCP_IS_MPTCP),
    ];
    for (name, level, option) in options {
        show_option(&format!("{label}: {name}"), fd, level, option);
    }
}

/// What is the same in each run.
fn show_info(label: &str, fd: i32) {
    let mut info = [0; 96];
    let (result, len) = get_bytes(fd, SOL_MPTCP, MPTCP_INFO, &mut info);
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    match result.ok() {
        true => say!(
            "{label}: MPTCP_INFO of {len}: {:?} flags {} token {} sent {} received {} acked {} paths {}",
            &info[..6],
            word(8),
            word(12) != 0,
            word(56),
            word(64),
            word(72),
            info[80]
        ),
        false => say!("{label}: MPTCP_INFO = {result}"),
    }
}

/// Sequence numbers: what is written, acknowledged, and received.
fn numbers(fd: i32) -> [u64; 3] {
    let mut info = [0; 96];
    get_bytes(fd, SOL_MPTCP, MPTCP_INFO, &mut info);
    [16, 24, 32].map(|at| info[at..at + 8].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

fn made() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    for (label, family) in [("v4", libc::AF_INET), ("v6", libc::AF_INET6)] {
        let fd = stream(family, MPTCP);
        show_kind(label, fd);
        show_info(label, fd);
        show_sockname(label, fd);
        show_peername(label, fd);
        show_poll(label, fd);
        show_send(label, fd, b"x", libc::MSG_NOSIGNAL);
        show("write", write(fd, b"x"));
        show_taken(libc::SIGPIPE);
        show_recv(label, fd, 8, 0);
        show("accept", accept(fd));
        show_so_error(label, fd);
        show_tcp_state(label, fd, "CLOSE");
        show("bind", bind(fd, &if family == libc::AF_INET { Addr::local(0) } else { Addr::local6(0) }));
        show("listen", listen(fd, 4));
        show_kind(label, fd);
        show_info(label, fd);
        show_poll(label, fd);
        show_recv(label, fd, 8, libc::MSG_DONTWAIT);
        set_nonblocking(fd, true);
        show("accept", accept(fd));
        show("listen again", listen(fd, 8));
        say!("{} {}", status_flags(fd), file_type(fd));
    }
}

fn arguments() {
    let stream = libc::SOCK_STREAM;
    show_fd("INET DGRAM", socket(libc::AF_INET, libc::SOCK_DGRAM, MPTCP));
    show_fd("UNIX STREAM", socket(libc::AF_UNIX, stream, MPTCP));
    show_fd("INET SEQPACKET", socket(libc::AF_INET, libc::SOCK_SEQPACKET, MPTCP));
    show_fd("INET type 0", socket(libc::AF_INET, 0, MPTCP));
    for flags in [0, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC] {
        let fd = show_fd("INET STREAM", socket(libc::AF_INET, stream | flags, MPTCP));
        say!("{} {}", status_flags(fd), descriptor_flags(fd));
        let copy = show_fd("dup", dup(fd));
        show_option("dup: PROTOCOL", copy, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    }
}

fn mixture(listening: i32, addr: &Addr, client: i32) {
    let client = dial_by(client, addr);
    let server = show_fd("accept", accept(listening));
    for (label, fd) in [("client", client), ("server", server)] {
        show_kind(label, fd);
        show_info(label, fd);
        show_sockname(label, fd);
        show_peername(label, fd);
        show_poll(label, fd);
        show_so_error(label, fd);
        show_tcp_state(label, fd, "ESTABLISHED");
    }
    show_send("client", client, b"question", 0);
    await_readable(server);
    show_recv("server", server, 32, 0);
    show_send("server", server, b"answer", 0);
    await_readable(client);
    show_recv("client", client, 32, 0);
    show("connect again", connect(client, addr));
    show("listen", listen(client, 1));
    show("shutdown", shutdown(client, libc::SHUT_WR));
    await_events(server, libc::POLLRDHUP);
    show_poll("server", server);
    show_recv("server", server, 32, 0);
    close(server);
    await_events(client, libc::POLLHUP);
    show_poll("client", client);
    show_recv("client", client, 32, 0);
    close(client);
}

fn mixtures() {
    for (label, listener, client) in MIXTURES {
        say!("{label}");
        let (listening, addr) = listener_of(listener);
        mixture(listening, &addr, client);
        close(listening);
    }
}

fn mixtures_ipv6() {
    for (label, listener, client) in MIXTURES {
        say!("{label}");
        let listening = stream(libc::AF_INET6, listener);
        let addr = listen_on(listening, &Addr::local6(0), 16);
        mixture(listening, &addr, client);
        close(listening);
    }
}

/// An IPv6 listener, as Go's are, and clients that come by IPv4.
fn mapped() {
    for client in [MPTCP, TCP] {
        let listening = stream(libc::AF_INET6, MPTCP);
        let addr = listen_on(listening, &Addr::any6(0), 16);
        mixture(listening, &Addr::local(addr.port()), client);
        close(listening);
    }
}

fn info() {
    let pair = connected_by(MIXTURES[0]);
    let (client, server) = (numbers(pair.client), numbers(pair.server));
    say!("client's fit server's: {} {}", client[0] == server[2], server[0] == client[2]);
    show_send("client", pair.client, b"twelve bytes", 0);
    await_bytes(pair.server, 12);
    show_recv("server", pair.server, 32, 0);
    show_send("server", pair.server, b"four", 0);
    await_bytes(pair.client, 4);
    show_recv("client", pair.client, 32, 0);
    sleep(50);
    show_info("client", pair.client);
    show_info("server", pair.server);
    let (client, server) = (numbers(pair.client), numbers(pair.server));
    say!("client's fit server's: {} {}", client[0] == server[2], server[0] == client[2]);
    say!("all is acknowledged: {} {}", client[0] == client[1], server[0] == server[1]);
    for len in [0, 4, 40, 200] {
        let (result, got) = get_bytes(pair.client, SOL_MPTCP, MPTCP_INFO, &mut vec![0; len]);
        say!("in {len}: {result} {got}");
    }
    show("set", set_int(pair.client, SOL_MPTCP, MPTCP_INFO, 1));
    show_option("unknown", pair.client, SOL_MPTCP, 99);
}

/// Options that have the same values each time.
const OPTIONS: [(&str, i32, i32, i32); 12] = [
    ("KEEPALIVE", libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ("REUSEADDR", libc::SOL_SOCKET, libc::SO_REUSEADDR, 1),
    ("PRIORITY", libc::SOL_SOCKET, libc::SO_PRIORITY, 3),
    ("NODELAY", TCP, libc::TCP_NODELAY, 1),
    ("CORK", TCP, libc::TCP_CORK, 0),
    ("KEEPIDLE", TCP, libc::TCP_KEEPIDLE, 77),
    ("KEEPINTVL", TCP, libc::TCP_KEEPINTVL, 7),
    ("KEEPCNT", TCP, libc::TCP_KEEPCNT, 5),
    ("INQ", TCP, libc::TCP_INQ, 1),
    ("TOS", libc::IPPROTO_IP, libc::IP_TOS, 16),
    ("FREEBIND", libc::IPPROTO_IP, libc::IP_FREEBIND, 0),
    ("MPTCP 1", SOL_MPTCP, 1, 1),
];

/// Those that an MPTCP socket does not have.
const ABSENT: [(&str, i32); 6] = [
    ("USER_TIMEOUT", libc::TCP_USER_TIMEOUT),
    ("SYNCNT", libc::TCP_SYNCNT),
    ("LINGER2", libc::TCP_LINGER2),
    ("WINDOW_CLAMP", libc::TCP_WINDOW_CLAMP),
    ("QUEUE_SEQ", libc::TCP_QUEUE_SEQ),
    ("unknown", 99),
];

fn show_options(label: &str, fd: i32) {
    for (name, level, option, value) in OPTIONS {
        if level != SOL_MPTCP {
            show_option(&format!("{label}: {name}"), fd, level, option);
        }
        show(&format!("{label}: set {name}"), set_int(fd, level, option, value));
        if level != SOL_MPTCP {
            show_option(&format!("{label}: {name}"), fd, level, option);
        }
    }
}

fn show_absent(label: &str, fd: i32) {
    for (name, option) in ABSENT {
        let (result, _) = get_int(fd, TCP, option);
        say!("{label}: {name} = {result}, set = {}", set_int(fd, TCP, option, 3000));
    }
    let mut name = [0; 16];
    let (result, len) = get_bytes(fd, TCP, libc::TCP_ULP, &mut name);
    say!("{label}: ULP {result} {}", text(&name[..len.min(5)]));
}

fn options() {
    let fresh = stream(libc::AF_INET, MPTCP);
    show_options("fresh", fresh);
    show_absent("fresh", fresh);
    let (listening, _) = listener_of(MPTCP);
    show_options("listening", listening);
    show_absent("listening", listening);
    for mixture in MIXTURES {
        say!("{}", mixture.0);
        let pair = connected_by(mixture);
        show_options("client", pair.client);
        show_options("server", pair.server);
        show_absent("server", pair.server);
        if mixture.0 != "client" {
            show_absent("client", pair.client);
        }
    }
}

fn options_inherited() {
    for client in [MPTCP, TCP] {
        let (listening, addr) = listener_of(MPTCP);
        for (_, level, option, value) in OPTIONS {
            set_int(listening, level, option, value);
        }
        dial_by(client, &addr);
        let server = show_fd("accept", accept(listening));
        for (name, level, option, _) in OPTIONS.iter().filter(|option| option.1 != SOL_MPTCP) {
            show_option(name, server, *level, *option);
        }
        say!("{} {}", status_flags(server), descriptor_flags(server));
        let server = {
            dial_by(client, &addr);
            show_fd("accept4", accept4(listening, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC))
        };
        say!("{} {}", status_flags(server), descriptor_flags(server));
        show_kind("server", server);
    }
}

fn nonblocking() {
    for (label, listener, client) in MIXTURES {
        say!("{label}");
        let (listening, addr) = listener_of(listener);
        set_nonblocking(listening, true);
        show("accept", accept(listening));
        let client = stream(libc::AF_INET, client);
        set_nonblocking(client, true);
        show("connect", connect(client, &addr));
        label_port(getsockname(client).1.port(), "C");
        await_events(client, libc::POLLOUT);
        show_poll("client", client);
        show_so_error("client", client);
        show("connect", connect(client, &addr));
        show("connect", connect(client, &addr));
        show_kind("client", client);
        await_readable(listening);
        let server = show_fd("accept", accept(listening));
        show_recv("client", client, 8, 0);
        show_send("server", server, b"data", 0);
        await_readable(client);
        show_recv("client", client, 8, 0);
        close_all(&[client, server, listening]);
    }
}

fn refused() {
    let nowhere = Addr::local(free_port());
    let client = stream(libc::AF_INET, MPTCP);
    show("connect", connect(client, &nowhere));
    show_so_error("client", client);
    show_kind("client", client);
    let (listening, addr) = listener_of(MPTCP);
    show("connect elsewhere", connect(client, &addr));
    let server = show_fd("accept", accept(listening));
    show_send("client", client, b"data", 0);
    await_readable(server);
    show_recv("server", server, 8, 0);
    let client = stream(libc::AF_INET, MPTCP);
    set_nonblocking(client, true);
    show("connect", connect(client, &nowhere));
    await_events(client, libc::POLLOUT);
    show_poll("client", client);
    show_so_error("client", client);
}

fn bound_client() {
    for (label, listener, client) in MIXTURES {
        say!("{label}");
        let (listening, addr) = listener_of(listener);
        let client = stream(libc::AF_INET, client);
        show("bind", bind(client, &Addr::local(0)));
        let port = getsockname(client).1.port();
        label_port(port, "C");
        show("connect", connect(client, &addr));
        let server = show_fd("accept", accept(listening));
        say!("the same port: {}", getpeername(server).1.port() == port);
        show_sockname("client", client);
        show_kind("server", server);
        close_all(&[client, server, listening]);
    }
}

fn connected_again() {
    let (first, to_first) = listener_of(TCP);
    let (second, to_second) = listener_of(MPTCP);
    let client = dial_by(MPTCP, &to_first);
    let server = show_fd("accept", accept(first));
    show_option("IS_MPTCP", client, TCP, TCP_IS_MPTCP);
    show("disconnect", connect(client, &Addr::unspec()));
    await_readable(server);
    show_recv("server", server, 8, 0);
    show_kind("client", client);
    show("connect", connect(client, &to_second));
    let server = show_fd("accept", accept(second));
    show_kind("client", client);
    show_kind("server", server);
    show_send("client", client, b"again", 0);
    await_readable(server);
    show_recv("server", server, 8, 0);
}
