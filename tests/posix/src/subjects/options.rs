//! `getsockopt()` and `setsockopt()`: the mechanism, and the options that programs use.

use std::ptr;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("options/socket_level", socket_level),
    solo("options/tcp_level", tcp_level),
    solo("options/ip_level", ip_level),
    solo("options/survive_connect", survive_connect),
    solo("options/buffer_sizes", buffer_sizes),
    solo("options/buffer_sizes_inherited", buffer_sizes_inherited),
    solo("options/nodelay", nodelay),
    solo("options/linger", linger),
    solo("options/keepalive_limits", keepalive_limits),
    solo("options/read_only", read_only),
    solo("options/set_lengths", set_lengths),
    solo("options/get_lengths", get_lengths),
    solo("options/unknown", unknown),
    solo("options/errors", errors),
    solo("options/so_error", so_error),
    solo("options/tcp_info", tcp_info),
    solo("options/tcp_info_lengths", tcp_info_lengths),
    solo("options/congestion", congestion),
    solo("options/defer_accept", defer_accept),
    solo("options/maxseg", maxseg),
    solo("options/cork", cork),
    solo("options/fastopen", fastopen),
    solo("options/peercred", peercred),
    solo("options/dup_shares", dup_shares),
    solo("options/booleans", booleans),
];

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const IP: i32 = libc::IPPROTO_IP;

/// Prints the default, sets a value, and prints what became of it.
fn set_and_read(fd: i32, level: i32, options: &[(&str, i32, i32)]) {
    for (name, option, value) in options {
        show_option(name, fd, level, *option);
        let result = set_int(fd, level, *option, *value);
        say!("set {name} {value} = {result}");
        show_option(name, fd, level, *option);
    }
}

fn socket_level() {
    let options = [
        ("SO_REUSEADDR", libc::SO_REUSEADDR, 1),
        ("SO_REUSEPORT", libc::SO_REUSEPORT, 1),
        ("SO_KEEPALIVE", libc::SO_KEEPALIVE, 1),
        ("SO_BROADCAST", libc::SO_BROADCAST, 1),
        ("SO_OOBINLINE", libc::SO_OOBINLINE, 1),
        ("SO_DONTROUTE", libc::SO_DONTROUTE, 1),
        ("SO_PRIORITY", libc::SO_PRIORITY, 5),
        ("SO_RCVLOWAT", libc::SO_RCVLOWAT, 10),
        ("SO_SNDLOWAT", libc::SO_SNDLOWAT, 10),
        ("SO_TIMESTAMP", libc::SO_TIMESTAMP, 1),
        ("SO_TIMESTAMPNS", libc::SO_TIMESTAMPNS, 1),
        ("SO_NO_CHECK", libc::SO_NO_CHECK, 1),
        ("SO_PASSCRED", libc::SO_PASSCRED, 1),
        ("SO_ZEROCOPY", libc::SO_ZEROCOPY, 1),
        ("SO_INCOMING_CPU", libc::SO_INCOMING_CPU, 1),
        ("SO_PEEK_OFF", libc::SO_PEEK_OFF, 3),
    ];
    set_and_read(tcp(), SOCKET, &options);
}

fn tcp_level() {
    let options = [
        ("TCP_NODELAY", libc::TCP_NODELAY, 1),
        ("TCP_CORK", libc::TCP_CORK, 1),
        ("TCP_KEEPIDLE", libc::TCP_KEEPIDLE, 60),
        ("TCP_KEEPINTVL", libc::TCP_KEEPINTVL, 10),
        ("TCP_KEEPCNT", libc::TCP_KEEPCNT, 3),
        ("TCP_SYNCNT", libc::TCP_SYNCNT, 4),
        ("TCP_LINGER2", libc::TCP_LINGER2, 20),
        ("TCP_QUICKACK", libc::TCP_QUICKACK, 0),
        ("TCP_USER_TIMEOUT", libc::TCP_USER_TIMEOUT, 5000),
        ("TCP_NOTSENT_LOWAT", libc::TCP_NOTSENT_LOWAT, 16_384),
        ("TCP_THIN_LINEAR_TIMEOUTS", libc::TCP_THIN_LINEAR_TIMEOUTS, 1),
        ("TCP_SAVE_SYN", libc::TCP_SAVE_SYN, 1),
        ("TCP_TIMESTAMP", libc::TCP_TIMESTAMP, 0),
    ];
    set_and_read(tcp(), TCP, &options[..12]);
    let pair = connected();
    set_and_read(pair.client, TCP, &options[..10]);
}

fn ip_level() {
    let options = [
        ("IP_TOS", libc::IP_TOS, 0x10),
        ("IP_TTL", libc::IP_TTL, 64),
        ("IP_MTU_DISCOVER", libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
        ("IP_RECVERR", libc::IP_RECVERR, 1),
        ("IP_FREEBIND", libc::IP_FREEBIND, 1),
        ("IP_BIND_ADDRESS_NO_PORT", libc::IP_BIND_ADDRESS_NO_PORT, 1),
        ("IP_RECVTOS", libc::IP_RECVTOS, 1),
        ("IP_PKTINFO", libc::IP_PKTINFO, 1),
    ];
    set_and_read(tcp(), IP, &options);
    let fd = tcp();
    show("IP_TTL 0", set_int(fd, IP, libc::IP_TTL, 0));
    show("IP_TTL 256", set_int(fd, IP, libc::IP_TTL, 256));
    show("IP_TTL -1", set_int(fd, IP, libc::IP_TTL, -1));
    show_option("IP_MTU unconnected", fd, IP, libc::IP_MTU);
}

fn survive_connect() {
    let (listening, addr) = listener();
    let client = tcp();
    let options = [
        ("SO_KEEPALIVE", SOCKET, libc::SO_KEEPALIVE, 1),
        ("SO_REUSEADDR", SOCKET, libc::SO_REUSEADDR, 1),
        ("SO_PRIORITY", SOCKET, libc::SO_PRIORITY, 3),
        ("TCP_NODELAY", TCP, libc::TCP_NODELAY, 1),
        ("TCP_KEEPIDLE", TCP, libc::TCP_KEEPIDLE, 99),
        ("TCP_USER_TIMEOUT", TCP, libc::TCP_USER_TIMEOUT, 7000),
    ];
    for (_, level, option, value) in options {
        set_int(client, level, option, value);
    }
    show("connect", connect(client, &addr));
    for (name, level, option, _) in options {
        show_option(name, client, level, option);
    }
    let server = show_fd("accept", accept(listening));
    for (name, level, option, _) in options {
        show_option(name, server, level, option);
    }
}

fn buffer_sizes() {
    for (name, option) in [("SO_SNDBUF", libc::SO_SNDBUF), ("SO_RCVBUF", libc::SO_RCVBUF)] {
        let fd = tcp();
        say!("{name} default is positive: {}", get_int(fd, SOCKET, option).1 > 0);
        for size in [10_000, 50_001, 100_000] {
            show(&format!("set {name} {size}"), set_int(fd, SOCKET, option, size));
            say!("{name} is doubled: {}", get_int(fd, SOCKET, option).1 == 2 * size);
        }
        show("set to 0", set_int(fd, SOCKET, option, 0));
        let least = get_int(fd, SOCKET, option).1;
        show("set to 1", set_int(fd, SOCKET, option, 1));
        say!("the same least value: {}", get_int(fd, SOCKET, option).1 == least && least > 0);
        show("set to -1", set_int(fd, SOCKET, option, -1));
        let most = get_int(fd, SOCKET, option).1;
        show("set to 2^30", set_int(fd, SOCKET, option, 1 << 30));
        say!("cut to the same most value: {}", get_int(fd, SOCKET, option).1 == most && most > least);
    }
}

fn buffer_sizes_inherited() {
    let listening = tcp();
    set_int(listening, SOCKET, libc::SO_RCVBUF, 30_000);
    set_int(listening, SOCKET, libc::SO_SNDBUF, 40_000);
    let addr = listen_on(listening, &Addr::local(0), 4);
    let pair = connect_to(listening, &addr);
    show_option("SO_RCVBUF accepted", pair.server, SOCKET, libc::SO_RCVBUF);
    show_option("SO_SNDBUF accepted", pair.server, SOCKET, libc::SO_SNDBUF);
    set_int(pair.client, SOCKET, libc::SO_RCVBUF, 20_000);
    show_option("SO_RCVBUF set when connected", pair.client, SOCKET, libc::SO_RCVBUF);
}

fn nodelay() {
    let pair = connected();
    for value in [1, 0, 2, -1] {
        show(&format!("set {value}"), set_int(pair.client, TCP, libc::TCP_NODELAY, value));
        show_option("TCP_NODELAY", pair.client, TCP, libc::TCP_NODELAY);
    }
    show_option("TCP_NODELAY of the peer", pair.server, TCP, libc::TCP_NODELAY);
    let (listening, _) = listener();
    show("set on a listener", set_int(listening, TCP, libc::TCP_NODELAY, 1));
    show("set on udp", {
        let udp = socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd();
        set_int(udp, TCP, libc::TCP_NODELAY, 1)
    });
    show(
        "set on unix",
        set_int(socketpair(libc::AF_UNIX, libc::SOCK_STREAM).1[0], TCP, libc::TCP_NODELAY, 1),
    );
}

fn linger() {
    let fd = tcp();
    let read = |label: &str| {
        let mut bytes = [0; 8];
        let (result, len) = get_bytes(fd, SOCKET, libc::SO_LINGER, &mut bytes);
        say!("{label}: {result} len {len} {bytes:?}");
    };
    read("default");
    show("on, 7 s", set_linger(fd, 1, 7));
    read("on");
    show("off, 3 s", set_linger(fd, 0, 3));
    read("off");
    show("on with 2", set_linger(fd, 2, 0));
    read("on with 2");
    show("4 bytes", set_int(fd, SOCKET, libc::SO_LINGER, 1));
    show("12 bytes", set_bytes(fd, SOCKET, libc::SO_LINGER, &[0; 12]));
    read("12 bytes of zero");
}

fn keepalive_limits() {
    let fd = tcp();
    for (name, option, values) in [
        ("TCP_KEEPIDLE", libc::TCP_KEEPIDLE, [0, 1, 32_767, 32_768, -1]),
        ("TCP_KEEPINTVL", libc::TCP_KEEPINTVL, [0, 1, 32_767, 32_768, -1]),
        ("TCP_KEEPCNT", libc::TCP_KEEPCNT, [0, 1, 127, 128, -1]),
        ("TCP_SYNCNT", libc::TCP_SYNCNT, [0, 1, 127, 128, -1]),
        ("TCP_USER_TIMEOUT", libc::TCP_USER_TIMEOUT, [0, 1, 86_400_000, i32::MAX, -1]),
        ("TCP_LINGER2", libc::TCP_LINGER2, [0, 1, 60, 100_000, -1]),
    ] {
        for value in values {
            let result = set_int(fd, TCP, option, value);
            say!("{name} {value}: set = {result}, is {}", get_int(fd, TCP, option).1);
        }
    }
}

fn read_only() {
    let fd = tcp();
    for (name, option) in [
        ("SO_TYPE", libc::SO_TYPE),
        ("SO_DOMAIN", libc::SO_DOMAIN),
        ("SO_PROTOCOL", libc::SO_PROTOCOL),
        ("SO_ERROR", libc::SO_ERROR),
        ("SO_ACCEPTCONN", libc::SO_ACCEPTCONN),
        ("SO_SNDLOWAT", libc::SO_SNDLOWAT),
        ("SO_PEERCRED", libc::SO_PEERCRED),
    ] {
        show(&format!("set {name}"), set_int(fd, SOCKET, option, 1));
    }
    show("set TCP_INFO", set_int(fd, TCP, libc::TCP_INFO, 1));
}

fn set_lengths() {
    let fd = tcp();
    for len in [0, 1, 2, 3, 4, 5, 8, 100] {
        let mut value = vec![0; len];
        if let Some(first) = value.first_mut() {
            *first = 1;
        }
        let socket_level = set_bytes(fd, SOCKET, libc::SO_KEEPALIVE, &value);
        let tcp_level = set_bytes(fd, TCP, libc::TCP_NODELAY, &value);
        let ip_level = set_bytes(fd, IP, libc::IP_TOS, &value);
        say!("length {len}: SO_KEEPALIVE {socket_level}, TCP_NODELAY {tcp_level}, IP_TOS {ip_level}");
    }
    show("length -1", set_raw(fd, SOCKET, libc::SO_KEEPALIVE, [0u8; 4].as_ptr().cast(), u32::MAX));
}

fn get_lengths() {
    let fd = tcp();
    set_int(fd, SOCKET, libc::SO_KEEPALIVE, 1);
    set_int(fd, TCP, libc::TCP_NODELAY, 1);
    set_linger(fd, 1, 9);
    for len in [0, 1, 2, 4, 6, 8, 16] {
        for (name, level, option) in [
            ("SO_KEEPALIVE", SOCKET, libc::SO_KEEPALIVE),
            ("TCP_NODELAY", TCP, libc::TCP_NODELAY),
            ("IP_TTL", IP, libc::IP_TTL),
            ("SO_LINGER", SOCKET, libc::SO_LINGER),
        ] {
            let mut value = vec![0xaa; len];
            let (result, got) = get_bytes(fd, level, option, &mut value);
            say!("{name} length {len}: {result} len {got} {value:?}");
        }
    }
}

fn unknown() {
    let fd = tcp();
    for (name, level, option) in [
        ("SOL_SOCKET 9999", SOCKET, 9999),
        ("SOL_SOCKET -1", SOCKET, -1),
        ("IPPROTO_TCP 9999", TCP, 9999),
        ("IPPROTO_TCP 0", TCP, 0),
        ("IPPROTO_IP 9999", IP, 9999),
        ("IPPROTO_UDP 1", libc::IPPROTO_UDP, 1),
        ("IPPROTO_IPV6 1", libc::IPPROTO_IPV6, 1),
        ("level 9999", 9999, 1),
        ("level -1", -1, 1),
    ] {
        say!("{name}: set = {}, get = {}", set_int(fd, level, option, 1), get_int(fd, level, option).0);
    }
}

fn errors() {
    let (fd, pipe_end) = (tcp(), pipe(0).0);
    show("set on -1", set_int(-1, SOCKET, libc::SO_KEEPALIVE, 1));
    show("get on -1", get_int(-1, SOCKET, libc::SO_KEEPALIVE).0);
    show("set on a pipe", set_int(pipe_end, SOCKET, libc::SO_KEEPALIVE, 1));
    show("get on a pipe", get_int(pipe_end, SOCKET, libc::SO_KEEPALIVE).0);
    show("set from null", set_raw(fd, SOCKET, libc::SO_KEEPALIVE, ptr::null(), 4));
    show("set TCP from null", set_raw(fd, TCP, libc::TCP_NODELAY, ptr::null(), 4));
    let (mut value, mut len) = (0i32, 4u32);
    let value = (&raw mut value).cast();
    show("get to null", get_raw(fd, SOCKET, libc::SO_KEEPALIVE, ptr::null_mut(), &raw mut len));
    show("get, null length", get_raw(fd, SOCKET, libc::SO_KEEPALIVE, value, ptr::null_mut()));
    show("get TCP, null length", get_raw(fd, TCP, libc::TCP_NODELAY, value, ptr::null_mut()));
    len = u32::MAX;
    show("get, length -1", get_raw(fd, SOCKET, libc::SO_KEEPALIVE, value, &raw mut len));
    show("get TCP, length -1", get_raw(fd, TCP, libc::TCP_NODELAY, value, &raw mut len));
}

fn so_error() {
    let pair = connected();
    show_so_error("connected", pair.client);
    show_so_error("listener", listener().0);
    show_so_error("udp", socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd());
    let client = tcp();
    connect(client, &Addr::local(free_port()));
    show_so_error("after a refused blocking connect", client);
    close(pair.server);
    await_readable(pair.client);
    show_so_error("after the peer closed", pair.client);
}

fn tcp_info() {
    let fd = tcp();
    show_tcp_state("fresh", fd, "CLOSE");
    let (listening, addr) = listener();
    show_tcp_state("listener", listening, "LISTEN");
    let client = dial(&addr);
    show_tcp_state("client", client, "ESTABLISHED");
    let server = accept(listening).fd();
    show_tcp_state("server", server, "ESTABLISHED");
    close(server);
    show_tcp_state("client, server closed", client, "CLOSE_WAIT");
    show("on udp", tcp_info_state(socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd()).0);
    show("on a pipe", tcp_info_state(pipe(0).0).0);
    show("on -1", tcp_info_state(-1).0);
}

fn tcp_info_lengths() {
    let pair = connected();
    for len in [0, 1, 8, 104, 192] {
        let mut info = vec![0; len];
        let (result, got) = get_bytes(pair.client, TCP, libc::TCP_INFO, &mut info);
        say!("length {len}: {result} len {got} state {:?}", info.first());
    }
    let mut info = vec![0; 1000];
    let (result, got) = get_bytes(pair.client, TCP, libc::TCP_INFO, &mut info);
    say!("length 1000: {result}, shorter: {}", (104..1000).contains(&got));
}

fn congestion() {
    let fd = tcp();
    let read = |label: &str| {
        let mut name = [0; 16];
        let (result, len) = get_bytes(fd, TCP, libc::TCP_CONGESTION, &mut name);
        say!("{label}: {result} len {len} {}", text(&name));
    };
    read("default");
    show("set reno", set_bytes(fd, TCP, libc::TCP_CONGESTION, b"reno"));
    read("after reno");
    show("set nonsense", set_bytes(fd, TCP, libc::TCP_CONGESTION, b"nonsense"));
    read("after nonsense");
    let mut short = [0; 3];
    let (result, len) = get_bytes(fd, TCP, libc::TCP_CONGESTION, &mut short);
    say!("3 bytes: {result} len {len} {}", text(&short));
    show("set nothing", set_bytes(fd, TCP, libc::TCP_CONGESTION, b""));
}

fn defer_accept() {
    let listening = tcp();
    for value in [0, 1, 3, 5, 100, -1] {
        show(&format!("set {value}"), set_int(listening, TCP, libc::TCP_DEFER_ACCEPT, value));
        show_option("TCP_DEFER_ACCEPT", listening, TCP, libc::TCP_DEFER_ACCEPT);
    }
    set_int(listening, TCP, libc::TCP_DEFER_ACCEPT, 5);
    let addr = listen_on(listening, &Addr::local(0), 4);
    let client = tcp();
    show("connect", connect(client, &addr));
    show_poll_for("no data yet", listening, libc::POLLIN, 20);
    show_send("client", client, b"data", 0);
    show_poll_for("data", listening, libc::POLLIN, 1000);
    let server = show_fd("accept", accept(listening));
    show_recv("server", server, 8, libc::MSG_DONTWAIT);
}

fn maxseg() {
    let fd = tcp();
    show_option("TCP_MAXSEG fresh", fd, TCP, libc::TCP_MAXSEG);
    show("set 1000", set_int(fd, TCP, libc::TCP_MAXSEG, 1000));
    show_option("TCP_MAXSEG", fd, TCP, libc::TCP_MAXSEG);
    show("set 10", set_int(fd, TCP, libc::TCP_MAXSEG, 10));
    show("set 100000", set_int(fd, TCP, libc::TCP_MAXSEG, 100_000));
    let pair = connected();
    show_option("TCP_MAXSEG connected", pair.client, TCP, libc::TCP_MAXSEG);
    show_option("IP_MTU connected", pair.client, IP, libc::IP_MTU);
}

fn cork() {
    let pair = connected();
    show("cork", set_int(pair.client, TCP, libc::TCP_CORK, 1));
    show_option("TCP_CORK", pair.client, TCP, libc::TCP_CORK);
    send(pair.client, b"held ", 0);
    send(pair.client, b"back", 0);
    show_poll_for("corked", pair.server, libc::POLLIN, 20);
    show("uncork", set_int(pair.client, TCP, libc::TCP_CORK, 0));
    await_bytes(pair.server, 9);
    show_recv("server", pair.server, 32, 0);
    set_int(pair.client, TCP, libc::TCP_CORK, 1);
    send(pair.client, b"until the end", 0);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 32, 0);
    show_recv("server", pair.server, 32, 0);
}

fn fastopen() {
    let listening = tcp();
    show("set TCP_FASTOPEN before listen", set_int(listening, TCP, libc::TCP_FASTOPEN, 5));
    show_option("TCP_FASTOPEN", listening, TCP, libc::TCP_FASTOPEN);
    let addr = listen_on(listening, &Addr::local(0), 4);
    let client = tcp();
    show("set TCP_FASTOPEN_CONNECT", set_int(client, TCP, libc::TCP_FASTOPEN_CONNECT, 1));
    show_option("TCP_FASTOPEN_CONNECT", client, TCP, libc::TCP_FASTOPEN_CONNECT);
    show("connect", connect(client, &addr));
    show_send("client", client, b"fast", 0);
    let server = show_fd("accept", accept(listening));
    await_readable(server);
    show_recv("server", server, 8, 0);
    let client = tcp();
    show("sendto MSG_FASTOPEN", sendto(client, b"open", libc::MSG_FASTOPEN, Some(&addr)));
    let server = show_fd("accept", accept(listening));
    await_readable(server);
    show_recv("server", server, 8, 0);
    show_peername("client", client);
}

fn peercred() {
    let pair = connected();
    let mut bytes = [0x55; 12];
    let (result, len) = get_bytes(pair.client, SOCKET, libc::SO_PEERCRED, &mut bytes);
    say!("SO_PEERCRED = {result} len {len} {bytes:?}");
    let mut name = [0; 64];
    let (result, len) = get_bytes(pair.client, SOCKET, libc::SO_PEERSEC, &mut name);
    say!("SO_PEERSEC = {result} len {len}");
    let (result, len) = get_bytes(pair.client, SOCKET, libc::SO_BINDTODEVICE, &mut name);
    say!("SO_BINDTODEVICE = {result} len {len}");
    let mut cookie = [0; 8];
    let (result, len) = get_bytes(pair.client, SOCKET, libc::SO_COOKIE, &mut cookie);
    say!("SO_COOKIE = {result} len {len} nonzero {}", cookie != [0; 8]);
    let mut other = [0; 8];
    get_bytes(pair.server, SOCKET, libc::SO_COOKIE, &mut other);
    say!("cookies differ: {}", cookie != other);
}

fn dup_shares() {
    let pair = connected();
    let twin = dup(pair.client).fd();
    set_int(twin, TCP, libc::TCP_NODELAY, 1);
    set_int(twin, SOCKET, libc::SO_KEEPALIVE, 1);
    show_option("TCP_NODELAY of the original", pair.client, TCP, libc::TCP_NODELAY);
    show_option("SO_KEEPALIVE of the original", pair.client, SOCKET, libc::SO_KEEPALIVE);
}

fn booleans() {
    let fd = tcp();
    for (name, option) in [
        ("SO_REUSEADDR", libc::SO_REUSEADDR),
        ("SO_REUSEPORT", libc::SO_REUSEPORT),
        ("SO_KEEPALIVE", libc::SO_KEEPALIVE),
        ("SO_OOBINLINE", libc::SO_OOBINLINE),
    ] {
        for value in [7, 0, -1] {
            let result = set_int(fd, SOCKET, option, value);
            say!("{name} {value}: {result} is {}", get_int(fd, SOCKET, option).1);
        }
    }
}
