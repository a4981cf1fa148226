//! `socket()`: arguments, flags and descriptor numbers.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("socket/lowest_fd", lowest_fd),
    solo("socket/flags", flags),
    solo("socket/arguments", arguments),
    solo("socket/type_domain_protocol", type_domain_protocol),
    solo("socket/fresh", fresh),
    solo("socket/emfile", emfile),
    solo("socket/many", many),
];

fn lowest_fd() {
    let (a, b, c) = (tcp(), tcp(), tcp());
    say!("ascending: {}", a < b && b < c);
    close(b);
    say!("closed number is the lowest free: {}", lowest_free() == b);
    let again = tcp();
    say!("reused: {}", again == b);
    close(c);
    close(a);
    let first = tcp();
    let (read_end, write_end) = pipe(0);
    say!("socket takes the lowest: {}", first == a);
    say!("pipe takes the next: {}", read_end == c && write_end > c);
    close(first);
    say!("eventfd takes a socket's number: {}", eventfd(0, 0) == a);
}

fn flags() {
    for (label, flags) in [
        ("none", 0),
        ("NONBLOCK", libc::SOCK_NONBLOCK),
        ("CLOEXEC", libc::SOCK_CLOEXEC),
        ("both", libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC),
    ] {
        let fd = show_fd(label, socket(libc::AF_INET, libc::SOCK_STREAM | flags, 0));
        say!("{label}: {} {}", status_flags(fd), descriptor_flags(fd));
    }
}

fn arguments() {
    let (stream, inet) = (libc::SOCK_STREAM, libc::AF_INET);
    show_fd("INET STREAM 0", socket(inet, stream, 0));
    show_fd("INET STREAM TCP", socket(inet, stream, libc::IPPROTO_TCP));
    show_fd("INET6 STREAM TCP", socket(libc::AF_INET6, stream, libc::IPPROTO_TCP));
    show_fd("INET STREAM UDP", socket(inet, stream, libc::IPPROTO_UDP));
    show_fd("INET DGRAM TCP", socket(inet, libc::SOCK_DGRAM, libc::IPPROTO_TCP));
    show_fd("INET SEQPACKET 0", socket(inet, libc::SOCK_SEQPACKET, 0));
    show_fd("INET type 0", socket(inet, 0, 0));
    show_fd("INET type 99", socket(inet, 99, 0));
    show_fd("INET type -1", socket(inet, -1, 0));
    show_fd("INET STREAM unknown flag", socket(inet, stream | 0x100, 0));
    show_fd("INET STREAM protocol 9999", socket(inet, stream, 9999));
    show_fd("INET STREAM protocol -1", socket(inet, stream, -1));
    show_fd("domain 99", socket(99, stream, 0));
    show_fd("domain -1", socket(-1, stream, 0));
    show_fd("UNSPEC", socket(libc::AF_UNSPEC, stream, 0));
}

fn type_domain_protocol() {
    let kinds = [
        ("tcp4", libc::AF_INET, libc::SOCK_STREAM),
        ("tcp6", libc::AF_INET6, libc::SOCK_STREAM),
        ("udp4", libc::AF_INET, libc::SOCK_DGRAM),
        ("unix", libc::AF_UNIX, libc::SOCK_STREAM),
    ];
    for (label, domain, kind) in kinds {
        let fd = show_fd(label, socket(domain, kind, 0));
        show_option("SO_TYPE", fd, libc::SOL_SOCKET, libc::SO_TYPE);
        show_option("SO_DOMAIN", fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
        show_option("SO_PROTOCOL", fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
        show_option("SO_ACCEPTCONN", fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    }
}

/// What each call says to a socket that was only made.
fn fresh() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let fd = tcp();
    show_sockname("fresh", fd);
    show_peername("fresh", fd);
    show_poll("fresh", fd);
    show_send("fresh", fd, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_send("fresh", fd, b"x", libc::MSG_NOSIGNAL);
    show("write", write(fd, b"x"));
    show_taken(libc::SIGPIPE);
    show_recv("fresh", fd, 8, 0);
    show_recv("fresh peek", fd, 8, libc::MSG_PEEK);
    show_read("fresh", fd, 8);
    show("shutdown RD", shutdown(fd, libc::SHUT_RD));
    show("shutdown WR", shutdown(fd, libc::SHUT_WR));
    show("accept", accept(fd));
    show_so_error("fresh", fd);
    show_tcp_state("fresh", fd, "CLOSE");
    let (result, pending) = ioctl_int(fd, libc::FIONREAD, -1);
    say!("FIONREAD = {result} {pending}");
}

fn emfile() {
    let (listening, addr) = listener();
    let client = dial(&addr);
    let next = tcp();
    let old = limit_descriptors(next as u64 + 1);
    show("socket at the limit", socket(libc::AF_INET, libc::SOCK_STREAM, 0));
    show("accept at the limit", accept(listening));
    show("dup at the limit", dup(client));
    close(next);
    let again = socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    say!("after a close, the same number: {}", again.fd() == next);
    limit_descriptors(old);
    let accepted = show_fd("the connection still waits: accept", accept(listening));
    show_send("client", client, b"ping", 0);
    await_readable(accepted);
    show_recv("server", accepted, 8, 0);
}

fn many() {
    let fds: Vec<i32> = (0..500).map(|_| tcp()).collect();
    say!("ascending: {}", fds.windows(2).all(|two| two[0] < two[1]));
    close_all(&fds);
    let again: Vec<i32> = (0..500).map(|_| tcp()).collect();
    say!("same numbers again: {}", fds == again);
    close_all(&again);
    say!("double close: {}", close(again[0]));
}
