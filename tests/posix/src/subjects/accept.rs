//! `accept()` and `accept4()`.

use std::ptr;
use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("accept/nonblocking", nonblocking),
    solo("accept/blocking_waits", blocking_waits),
    solo("accept/accept4_flags", accept4_flags),
    solo("accept/flags_not_inherited", flags_not_inherited),
    solo("accept/options_inherited", options_inherited),
    solo("accept/address", address),
    solo("accept/address_truncated", address_truncated),
    solo("accept/address_errors", address_errors),
    solo("accept/errors", errors),
    solo("accept/lowest_fd", lowest_fd),
    solo("accept/timeout", timeout),
    solo("accept/interrupted", interrupted),
    solo("accept/restarted", restarted),
    solo("accept/listener_dup", listener_dup),
    solo("accept/two_threads", two_threads),
    solo("accept/many", many),
];

fn nonblocking() {
    let (listening, addr) = listener();
    show("set O_NONBLOCK", set_nonblocking(listening, true));
    show("accept", accept(listening));
    show("accept4", accept4(listening, libc::SOCK_CLOEXEC));
    let client = dial(&addr);
    await_readable(listening);
    show_poll("listener", listening);
    show_fd("accept", accept(listening));
    show("accept", accept(listening));
    close(client);
}

fn blocking_waits() {
    let (listening, addr) = listener();
    let acceptor = thread::spawn(move || {
        let fd = accept(listening);
        send(fd.fd(), b"welcome", 0);
        fd.ok()
    });
    sleep(5);
    let client = dial(&addr);
    await_readable(client);
    show_recv("client", client, 16, 0);
    say!("accepted: {}", acceptor.join().unwrap_or(false));
}

fn accept4_flags() {
    let (listening, addr) = listener();
    for (label, flags) in [
        ("none", 0),
        ("NONBLOCK", libc::SOCK_NONBLOCK),
        ("CLOEXEC", libc::SOCK_CLOEXEC),
        ("both", libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC),
    ] {
        let client = dial(&addr);
        let fd = show_fd(label, accept4(listening, flags));
        say!("{label}: {} {}", status_flags(fd), descriptor_flags(fd));
        close(client);
    }
    let _client = dial(&addr);
    show("unknown flag 1", accept4(listening, 1));
    show("unknown flag", accept4(listening, 0x4000_0000));
    show_fd("the connection still waits", accept4(listening, 0));
}

fn flags_not_inherited() {
    let (listening, addr) = listener();
    set_nonblocking(listening, true);
    fcntl(listening, libc::F_SETFD, libc::FD_CLOEXEC);
    let _client = dial(&addr);
    let fd = show_fd("accept", accept(listening));
    say!("accepted: {} {}", status_flags(fd), descriptor_flags(fd));
}

fn options_inherited() {
    let (listening, addr) = listener();
    let (socket, tcp) = (libc::SOL_SOCKET, libc::IPPROTO_TCP);
    let options = [
        ("SO_KEEPALIVE", socket, libc::SO_KEEPALIVE, 1),
        ("SO_REUSEADDR", socket, libc::SO_REUSEADDR, 1),
        ("SO_OOBINLINE", socket, libc::SO_OOBINLINE, 1),
        ("SO_RCVLOWAT", socket, libc::SO_RCVLOWAT, 3),
        ("SO_PRIORITY", socket, libc::SO_PRIORITY, 4),
        ("TCP_NODELAY", tcp, libc::TCP_NODELAY, 1),
        ("TCP_KEEPIDLE", tcp, libc::TCP_KEEPIDLE, 77),
        ("TCP_KEEPINTVL", tcp, libc::TCP_KEEPINTVL, 11),
        ("TCP_KEEPCNT", tcp, libc::TCP_KEEPCNT, 5),
        ("TCP_USER_TIMEOUT", tcp, libc::TCP_USER_TIMEOUT, 9000),
        ("TCP_CORK", tcp, libc::TCP_CORK, 1),
        ("IP_TOS", libc::IPPROTO_IP, libc::IP_TOS, 0x10),
        ("IP_TTL", libc::IPPROTO_IP, libc::IP_TTL, 33),
    ];
    for (name, level, option, value) in options {
        show(&format!("set {name}"), set_int(listening, level, option, value));
    }
    set_linger(listening, 1, 5);
    set_timeout(listening, libc::SO_RCVTIMEO, 1500);
    let _client = dial(&addr);
    let fd = show_fd("accept", accept(listening));
    for (name, level, option, _) in options {
        show_option(name, fd, level, option);
    }
    let mut bytes = [0; 8];
    get_bytes(fd, socket, libc::SO_LINGER, &mut bytes);
    say!("SO_LINGER {bytes:?}");
    let mut bytes = [0; 16];
    get_bytes(fd, socket, libc::SO_RCVTIMEO, &mut bytes);
    say!("SO_RCVTIMEO inherited: {}", bytes != [0; 16]);
}

fn address() {
    let (listening, addr) = listener();
    let client = dial(&addr);
    label_port(getsockname(client).1.port(), "C");
    let (result, peer) = accept_addr(listening);
    show_addr("accept", "address", Ret { value: result.value.min(0), ..result }, peer);
    show_peername("server", result.fd());
    show_sockname("server", result.fd());
}

fn address_truncated() {
    let (listening, addr) = listener();
    for size in [0u32, 1, 2, 4, 8, 15, 16, 28, 128] {
        let client = dial(&addr);
        let mut peer = Addr::empty();
        // Bytes past the given size must stay as they are.
        let mut len = size;
        let result = accept_raw(listening, peer.ptr_mut(), &raw mut len);
        let own = getsockname(client).1;
        say!(
            "size {size}: accept ok {}, len {len}, family {}, port known {}",
            result.ok(),
            peer.family(),
            peer.port() == own.port()
        );
        close_all(&[client, result.fd()]);
    }
}

fn address_errors() {
    let (listening, addr) = listener();
    let _a = dial(&addr);
    let mut peer = Addr::empty();
    let mut negative = u32::MAX;
    let result = accept_raw(listening, peer.ptr_mut(), &raw mut negative);
    say!("length -1: {}", if result.ok() { "fd".to_owned() } else { result.to_string() });
    set_nonblocking(listening, true);
    show("is the connection lost", Ret { value: accept(listening).value.min(0), errno: libc::EAGAIN });
    let _b = dial(&addr);
    let result = accept_raw(listening, ptr::null_mut(), ptr::without_provenance_mut(8));
    show_fd("null address, bad length", result);
    let _c = dial(&addr);
    let result = accept_raw(listening, peer.ptr_mut(), ptr::null_mut());
    show_fd("address, null length", result);
}

fn errors() {
    let (read_end, _) = pipe(0);
    show("bad descriptor", accept(-1));
    show("closed descriptor", accept(999));
    show("pipe", accept(read_end));
    show("udp", accept(socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd()));
    show("fresh socket", accept(tcp()));
    let bound = tcp();
    bind(bound, &Addr::local(0));
    show("bound socket", accept(bound));
    let pair = connected();
    show("connected socket", accept(pair.client));
    show("accepted socket", accept(pair.server));
}

fn lowest_fd() {
    let (listening, addr) = listener();
    let hole = tcp();
    let _client = dial(&addr);
    close(hole);
    let fd = accept(listening).fd();
    say!("accept takes the hole: {}", fd == hole);
    let _client = dial(&addr);
    let free = lowest_free();
    say!("accept4 takes the lowest: {}", accept4(listening, libc::SOCK_NONBLOCK).fd() == free);
}

fn timeout() {
    let (listening, addr) = listener();
    show("set SO_RCVTIMEO", set_timeout(listening, libc::SO_RCVTIMEO, 20));
    show("accept", accept(listening));
    let _client = dial(&addr);
    show_fd("accept", accept(listening));
}

fn interrupted() {
    count_signal(libc::SIGUSR1, 0);
    let (listening, _) = listener();
    let pinger = Pinger::start();
    show("accept", accept(listening));
    show("accept4", accept4(listening, 0));
    drop(pinger);
    say!("signalled: {}", taken(libc::SIGUSR1) > 0);
}

fn restarted() {
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    let (listening, addr) = listener();
    let thread = ping_then(move || {
        dial(&addr);
    });
    show_fd("accept", accept(listening));
    let _ = thread.join();
    say!("signalled: {}", taken(libc::SIGUSR1) > 0);
}

fn listener_dup() {
    let (listening, addr) = listener();
    let twin = dup(listening).fd();
    let (_a, _b) = (dial(&addr), dial(&addr));
    show_fd("accept on the dup", accept(twin));
    close(listening);
    show_fd("accept after the original closed", accept(twin));
    show("connect", connect(tcp(), &addr));
    close(twin);
    show("connect after the dup closed", connect(tcp(), &addr));
}

fn two_threads() {
    let (listening, addr) = listener();
    let threads: Vec<_> = (0..2).map(|_| thread::spawn(move || accept(listening).ok())).collect();
    sleep(5);
    let _clients = [dial(&addr), dial(&addr)];
    let accepted = threads.into_iter().filter_map(|thread| thread.join().ok()).filter(|ok| *ok).count();
    say!("each thread accepted one: {}", accepted == 2);
}

fn many() {
    let (listening, addr) = listener_with(256);
    let clients: Vec<i32> = (0..200).map(|_| dial(&addr)).collect();
    let mut in_order = 0;
    let mut servers = Vec::new();
    for client in &clients {
        let (result, peer) = accept_addr(listening);
        in_order += i32::from(result.ok() && peer.port() == getsockname(*client).1.port());
        servers.push(result.fd());
    }
    say!("accepted in order: {in_order}");
    for (index, (client, server)) in clients.iter().zip(&servers).enumerate() {
        send(*server, &[index as u8], 0);
        let mut byte = [0];
        if recv(*client, &mut byte, 0).value != 1 || byte[0] != index as u8 {
            say!("pair {index} is mixed up");
        }
    }
}
