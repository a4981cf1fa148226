//! The flags of `send` and `recv`.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("flags/peek", peek),
    solo("flags/peek_waits", peek_waits),
    solo("flags/dontwait", dontwait),
    solo("flags/waitall_collects", waitall_collects),
    solo("flags/waitall_end", waitall_end),
    solo("flags/waitall_timeout", waitall_timeout),
    solo("flags/waitall_nonblocking", waitall_nonblocking),
    solo("flags/waitall_interrupted", waitall_interrupted),
    solo("flags/waitall_large", waitall_large),
    solo("flags/peek_waitall", peek_waitall),
    solo("flags/peek_large", peek_large),
    solo("flags/trunc", trunc),
    solo("flags/nosignal", nosignal),
    solo("flags/more", more),
    solo("flags/rcvlowat", rcvlowat),
    solo("flags/rcvlowat_blocking", rcvlowat_blocking),
];

fn peek() {
    let pair = connected();
    send(pair.client, b"abcdef", 0);
    await_bytes(pair.server, 6);
    show_recv("peek 3", pair.server, 3, libc::MSG_PEEK);
    show_recv("peek 64", pair.server, 64, libc::MSG_PEEK);
    show_poll("after a peek", pair.server);
    show_recv("recv 2", pair.server, 2, 0);
    show_recv("peek 64", pair.server, 64, libc::MSG_PEEK);
    send(pair.client, b"ghi", 0);
    await_bytes(pair.server, 7);
    show_recv("peek over two sends", pair.server, 64, libc::MSG_PEEK);
    show_recv("recv 64", pair.server, 64, 0);
    show_recv("peek of nothing", pair.server, 64, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    shutdown(pair.client, libc::SHUT_WR);
    await_readable(pair.server);
    show_recv("peek at the end", pair.server, 64, libc::MSG_PEEK);
}

fn peek_waits() {
    let pair = connected();
    let client = pair.client;
    let writer = thread::spawn(move || {
        sleep(5);
        send(client, b"late", 0);
    });
    show_recv("blocking peek", pair.server, 64, libc::MSG_PEEK);
    show_recv("recv", pair.server, 64, 0);
    let _ = writer.join();
}

fn dontwait() {
    let pair = connected();
    show_recv("nothing", pair.server, 8, libc::MSG_DONTWAIT);
    send(pair.client, b"something", 0);
    await_bytes(pair.server, 9);
    show_recv("something", pair.server, 4, libc::MSG_DONTWAIT);
    show_recv("the rest", pair.server, 64, libc::MSG_DONTWAIT);
    show_recv("nothing", pair.server, 8, libc::MSG_DONTWAIT);
    say!("still blocking: {}", status_flags(pair.server));
    let total = crate::bulk::fill(pair.client, 0);
    say!("filled: {}", total > 0);
    show_send("full", pair.client, b"x", libc::MSG_DONTWAIT);
}

/// Sends each part after a pause.
fn trickle(fd: i32, parts: &'static [&'static [u8]]) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for part in parts {
            sleep(4);
            send(fd, part, 0);
        }
    })
}

fn waitall_collects() {
    let pair = connected();
    let writer = trickle(pair.client, &[b"one", b"two", b"three", b"four"]);
    show_recv("8 of 15", pair.server, 8, libc::MSG_WAITALL);
    show_recv("7 of 7", pair.server, 7, libc::MSG_WAITALL);
    let _ = writer.join();
    let writer = trickle(pair.client, &[b"scat", b"tered"]);
    show_recvmsg("recvmsg", pair.server, &[3, 3, 3], libc::MSG_WAITALL);
    let _ = writer.join();
}

fn waitall_end() {
    let pair = connected();
    let client = pair.client;
    let writer = thread::spawn(move || {
        send(client, b"short", 0);
        sleep(4);
        shutdown(client, libc::SHUT_WR);
    });
    show_recv("server", pair.server, 64, libc::MSG_WAITALL);
    show_recv("server", pair.server, 64, libc::MSG_WAITALL);
    let _ = writer.join();
}

fn waitall_timeout() {
    let pair = connected();
    set_timeout(pair.server, libc::SO_RCVTIMEO, 30);
    send(pair.client, b"part", 0);
    await_bytes(pair.server, 4);
    show_recv("part came", pair.server, 64, libc::MSG_WAITALL);
    show_recv("nothing came", pair.server, 64, libc::MSG_WAITALL);
}

fn waitall_nonblocking() {
    let pair = connected();
    send(pair.client, b"part", 0);
    await_bytes(pair.server, 4);
    show_recv("with DONTWAIT", pair.server, 64, libc::MSG_WAITALL | libc::MSG_DONTWAIT);
    show_recv("with DONTWAIT", pair.server, 64, libc::MSG_WAITALL | libc::MSG_DONTWAIT);
    set_nonblocking(pair.server, true);
    send(pair.client, b"more", 0);
    await_bytes(pair.server, 4);
    show_recv("with O_NONBLOCK", pair.server, 64, libc::MSG_WAITALL);
}

fn waitall_interrupted() {
    count_signal(libc::SIGUSR1, 0);
    let pair = connected();
    send(pair.client, b"part", 0);
    await_bytes(pair.server, 4);
    let pinger = Pinger::start();
    show_recv("some bytes and a signal", pair.server, 64, libc::MSG_WAITALL);
    show_recv("no bytes and a signal", pair.server, 64, libc::MSG_WAITALL);
    drop(pinger);
    say!("signalled: {}", taken(libc::SIGUSR1) > 0);
}

fn waitall_large() {
    let pair = connected();
    let client = pair.client;
    let writer = thread::spawn(move || crate::bulk::send_pattern(client, 3_000_000, &[9_999, 70_001]));
    let mut buffer = vec![0; 3_000_000];
    let result = show("one recv of 3000000", recv(pair.server, &mut buffer, libc::MSG_WAITALL));
    say!("intact {}", crate::bulk::is_pattern(0, &buffer[..result.count()]));
    say!("sent {}", writer.join().unwrap_or(0));
}

fn peek_waitall() {
    let pair = connected();
    send(pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    show_recv("peek 10 at once", pair.server, 10, libc::MSG_PEEK | libc::MSG_WAITALL);
    let writer = trickle(pair.client, &[b"abc", b"def"]);
    show_recv("peek 16", pair.server, 16, libc::MSG_PEEK | libc::MSG_WAITALL);
    show_recv("recv", pair.server, 64, 0);
    let _ = writer.join();
}

fn peek_large() {
    let pair = connected();
    let sent = crate::bulk::send_pattern(pair.client, 40_000, &[7_001]);
    await_bytes(pair.server, sent as i32);
    let mut buffer = vec![0; 50_000];
    for label in ["peek", "peek again"] {
        let result = show(label, recv(pair.server, &mut buffer, libc::MSG_PEEK));
        say!("intact {}", crate::bulk::is_pattern(0, &buffer[..result.count()]));
    }
    recv(pair.server, &mut buffer[..12_345], libc::MSG_WAITALL);
    let result = show("peek further on", recv(pair.server, &mut buffer, libc::MSG_PEEK));
    say!("intact {}", crate::bulk::is_pattern(12_345, &buffer[..result.count()]));
}

/// tcp(7): MSG_TRUNC makes the received bytes be thrown away.
fn trunc() {
    let pair = connected();
    send(pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    let mut buffer = [b'.'; 4];
    show("recv TRUNC of 4", recv(pair.server, &mut buffer, libc::MSG_TRUNC));
    say!("buffer {}", text(&buffer));
    let result = call_trunc_null(pair.server, 3);
    show("recv TRUNC of 3 to null", result);
    show_recv("the rest", pair.server, 64, 0);
    show_recv("nothing", pair.server, 64, libc::MSG_TRUNC | libc::MSG_DONTWAIT);
}

fn call_trunc_null(fd: i32, len: usize) -> Ret {
    call!(libc::recv(fd, std::ptr::null_mut(), len, libc::MSG_TRUNC))
}

fn nosignal() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    shutdown(pair.client, libc::SHUT_WR);
    show_send("with NOSIGNAL", pair.client, b"x", libc::MSG_NOSIGNAL);
    show_taken(libc::SIGPIPE);
    show_send("without", pair.client, b"x", 0);
    show_taken(libc::SIGPIPE);
    show("write", write(pair.client, b"x"));
    show_taken(libc::SIGPIPE);
    show("writev", writev(pair.client, &[b"x", b"y"]));
    show_taken(libc::SIGPIPE);
    show("sendmsg", sendmsg(pair.client, &[b"x"], 0));
    show_taken(libc::SIGPIPE);
    show("sendmsg NOSIGNAL", sendmsg(pair.client, &[b"x"], libc::MSG_NOSIGNAL));
    show_taken(libc::SIGPIPE);
    show("sendto", sendto(pair.client, b"x", 0, None));
    show_taken(libc::SIGPIPE);
    signal(libc::SIGPIPE, libc::SIG_IGN);
    show_send("ignored", pair.client, b"x", 0);
    let child = fork_child(|| {
        signal(libc::SIGPIPE, libc::SIG_DFL);
        send(pair.client, b"x", 0);
        0
    });
    say!("with the default action: {}", wait_child(child));
}

fn more() {
    let pair = connected();
    show_send("MORE", pair.client, b"head ", libc::MSG_MORE);
    show_send("MORE", pair.client, b"body ", libc::MSG_MORE);
    show_send("flush", pair.client, b"tail", 0);
    await_bytes(pair.server, 14);
    show_recv("server", pair.server, 64, 0);
    show_send("MORE without an end", pair.client, b"held", libc::MSG_MORE);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 64, 0);
    show_recv("server", pair.server, 64, 0);
}

fn rcvlowat() {
    let pair = connected();
    show("set SO_RCVLOWAT", set_int(pair.server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 6));
    show_option("SO_RCVLOWAT", pair.server, libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    send(pair.client, b"abc", 0);
    await_bytes(pair.server, 3);
    show_poll("3 of 6", pair.server);
    show_recv("without blocking", pair.server, 1, libc::MSG_DONTWAIT);
    send(pair.client, b"defgh", 0);
    await_bytes(pair.server, 7);
    show_poll("7 of 6", pair.server);
    show_recv("server", pair.server, 64, 0);
    send(pair.client, b"z", 0);
    await_bytes(pair.server, 1);
    show_poll("1 of 6", pair.server);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_poll("1 of 6 and the end", pair.server);
    show("set to 0", set_int(pair.server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 0));
    show_option("SO_RCVLOWAT", pair.server, libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    show("set to -1", set_int(pair.server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, -1));
}

fn rcvlowat_blocking() {
    let pair = connected();
    set_int(pair.server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 6);
    let writer = trickle(pair.client, &[b"abc", b"defgh"]);
    show_recv("blocks for 6", pair.server, 64, 0);
    let _ = writer.join();
    set_int(pair.server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
    let writer = trickle(pair.client, &[b"xy"]);
    show_recv("blocks for 1", pair.server, 64, 0);
    let _ = writer.join();
}
