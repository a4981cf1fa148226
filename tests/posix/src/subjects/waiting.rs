//! Time-outs and signals in blocking calls.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("waiting/receive_timeout", receive_timeout),
    solo("waiting/send_timeout", send_timeout),
    solo("waiting/timeout_values", timeout_values),
    solo("waiting/recv_interrupted", recv_interrupted),
    solo("waiting/recv_restarted", recv_restarted),
    solo("waiting/recv_timeout_not_restarted", recv_timeout_not_restarted),
    solo("waiting/send_interrupted", send_interrupted),
    solo("waiting/send_restarted", send_restarted),
    solo("waiting/send_beside_timer", send_beside_timer),
    solo("waiting/poll_interrupted", poll_interrupted),
    solo("waiting/epoll_interrupted", epoll_interrupted),
    solo("waiting/select_interrupted", select_interrupted),
    solo("waiting/ppoll_mask", ppoll_mask),
    solo("waiting/pselect_mask", pselect_mask),
    solo("waiting/epoll_pwait_mask", epoll_pwait_mask),
    solo("waiting/handler_writes", handler_writes),
];

fn signalled() {
    say!("signalled: {}", taken(libc::SIGUSR1) > 0);
}

fn receive_timeout() {
    let pair = connected();
    show("SO_RCVTIMEO", set_timeout(pair.server, libc::SO_RCVTIMEO, 20));
    show_recv("recv", pair.server, 8, 0);
    show_read("read", pair.server, 8);
    show_recvmsg("recvmsg", pair.server, &[8], 0);
    let mut parts = vec![vec![0; 4]];
    show("readv", readv(pair.server, &mut parts));
    send(pair.client, b"data", 0);
    show_recv("data in time", pair.server, 8, 0);
    show("SO_RCVTIMEO off", set_timeout(pair.server, libc::SO_RCVTIMEO, 0));
    close(pair.client);
    show_recv("recv", pair.server, 8, 0);
}

fn send_timeout() {
    let pair = connected();
    crate::bulk::fill(pair.client, 0);
    show("SO_SNDTIMEO", set_timeout(pair.client, libc::SO_SNDTIMEO, 20));
    show_send("send", pair.client, b"x", 0);
    show("write", write(pair.client, b"x"));
    show("sendmsg", sendmsg(pair.client, &[b"x"], 0));
    show("writev", writev(pair.client, &[b"x"]));
}

fn timeout_values() {
    let fd = tcp();
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let mut bytes = [0xff; 16];
        let (result, len) = get_bytes(fd, libc::SOL_SOCKET, name, &mut bytes);
        say!("default: {result} len {len} {bytes:?}");
        show("set 2.5 s", set_timeout(fd, name, 2500));
        let (result, len) = get_bytes(fd, libc::SOL_SOCKET, name, &mut bytes);
        let seconds = i64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"));
        let micros = i64::from_ne_bytes(bytes[8..].try_into().expect("eight bytes"));
        say!(
            "get: {result} len {len} {seconds} s, near half a second {}",
            (490_000..510_000).contains(&micros)
        );
        let million = [0i64.to_ne_bytes(), 1_000_000i64.to_ne_bytes()].concat();
        show("set 1000000 us", set_bytes(fd, libc::SOL_SOCKET, name, &million));
        let negative = [0i64.to_ne_bytes(), (-1i64).to_ne_bytes()].concat();
        show("set -1 us", set_bytes(fd, libc::SOL_SOCKET, name, &negative));
        let past = [(-1i64).to_ne_bytes(), 0i64.to_ne_bytes()].concat();
        show("set -1 s", set_bytes(fd, libc::SOL_SOCKET, name, &past));
        show("set 8 bytes", set_bytes(fd, libc::SOL_SOCKET, name, &[0; 8]));
        show("set 4 bytes", set_int(fd, libc::SOL_SOCKET, name, 1));
    }
}

fn recv_interrupted() {
    count_signal(libc::SIGUSR1, 0);
    let pair = connected();
    let pinger = Pinger::start();
    show_recv("recv", pair.server, 8, 0);
    show_read("read", pair.server, 8);
    show_recvmsg("recvmsg", pair.server, &[8], 0);
    show_recv("peek", pair.server, 8, libc::MSG_PEEK);
    let mut parts = vec![vec![0; 4]];
    show("readv", readv(pair.server, &mut parts));
    drop(pinger);
    signalled();
    send(pair.client, b"intact", 0);
    await_readable(pair.server);
    show_recv("afterwards", pair.server, 8, 0);
}

fn recv_restarted() {
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    for label in ["recv", "read", "recvmsg"] {
        let pair = connected();
        let client = pair.client;
        let thread = ping_then(move || {
            send(client, b"at last", 0);
        });
        match label {
            "recv" => show_recv(label, pair.server, 16, 0),
            "read" => show_read(label, pair.server, 16),
            _ => show_recvmsg(label, pair.server, &[7], 0),
        };
        let _ = thread.join();
        signalled();
    }
}

/// signal(7): a call with a time-out is not restarted, SA_RESTART or not.
fn recv_timeout_not_restarted() {
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    let pair = connected();
    set_timeout(pair.client, libc::SO_RCVTIMEO, 5000);
    crate::bulk::fill(pair.client, 0);
    let pinger = Pinger::start();
    show_recv("recv", pair.client, 8, 0);
    set_timeout(pair.client, libc::SO_SNDTIMEO, 5000);
    show_send("send", pair.client, b"x", 0);
    let (listening, _) = listener();
    set_timeout(listening, libc::SO_RCVTIMEO, 5000);
    show("accept", accept(listening));
    drop(pinger);
    signalled();
}

fn send_interrupted() {
    count_signal(libc::SIGUSR1, 0);
    let pair = connected();
    crate::bulk::fill(pair.client, 0);
    let pinger = Pinger::start();
    show_send("send", pair.client, b"x", 0);
    show("write", write(pair.client, b"x"));
    show("writev", writev(pair.client, &[b"x", b"y"]));
    drop(pinger);
    signalled();
}

fn send_restarted() {
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    let pair = connected();
    let sent = crate::bulk::fill(pair.client, 0);
    let server = pair.server;
    let thread = ping_then(move || {
        let tally = crate::bulk::receive_pattern(server, sent + 3, &[65_536]);
        say!("received all: {}, intact {}", tally.bytes == sent + 3, tally.intact);
    });
    let result = send(pair.client, &crate::bulk::pattern(sent, 3), 0);
    let _ = thread.join();
    show("send", result);
    signalled();
}

/// A buffer that takes all of it at once: nothing waits, so nothing is interrupted.
fn send_beside_timer() {
    count_signal(libc::SIGUSR1, 0);
    let pair = connected();
    every(libc::SIGUSR1, 100);
    let part = [7; 8192];
    let whole = (0..128).filter(|_| send(pair.client, &part, 0).value == part.len() as i64).count();
    say!("sent whole: {whole} of 128");
    signalled();
}

fn poll_interrupted() {
    for flags in [0, libc::SA_RESTART] {
        count_signal(libc::SIGUSR1, flags);
        let pair = connected();
        let pinger = Pinger::start();
        let (result, _) = poll_one(pair.server, libc::POLLIN, 5000);
        show("poll", result);
        let (result, _) = poll_one(pair.server, libc::POLLIN, -1);
        show("poll for ever", result);
        let (listening, _) = listener();
        show("poll of a listener", poll_one(listening, libc::POLLIN, -1).0);
        drop(pinger);
        signalled();
    }
}

fn epoll_interrupted() {
    for flags in [0, libc::SA_RESTART] {
        count_signal(libc::SIGUSR1, flags);
        let pair = connected();
        let ep = epoll();
        epoll_add(ep, pair.server, libc::EPOLLIN, 1);
        let pinger = Pinger::start();
        show("epoll_wait", epoll_wait(ep, 8, 5000).0);
        show("epoll_wait for ever", epoll_wait(ep, 8, -1).0);
        show("epoll_wait of an empty set", epoll_wait(epoll(), 8, -1).0);
        drop(pinger);
        signalled();
    }
}

fn select_interrupted() {
    for flags in [0, libc::SA_RESTART] {
        count_signal(libc::SIGUSR1, flags);
        let pair = connected();
        let pinger = Pinger::start();
        let mut set = FdSet::of(&[pair.server]);
        show("select", select_read(pair.server + 1, Some(&mut set), 5000));
        show("pselect", pselect_read(pair.server + 1, &mut set, 5000, &signal_set(&[])));
        drop(pinger);
        signalled();
    }
}

/// A signal that is blocked outside is taken inside, atomically.
fn ppoll_mask() {
    count_signal(libc::SIGUSR1, 0);
    let pair = connected();
    block_signal(libc::SIGUSR1, true);
    kill(getpid(), libc::SIGUSR1);
    say!("pending, not taken: {}", taken(libc::SIGUSR1) == 0);
    let mut fds = [pollfd(pair.server, libc::POLLIN)];
    show("ppoll, null mask", ppoll(&mut fds, 5, None));
    show("ppoll, empty mask", ppoll(&mut fds, 5000, Some(&signal_set(&[]))));
    show_taken(libc::SIGUSR1);
    kill(getpid(), libc::SIGUSR1);
    show("ppoll, mask blocks it", ppoll(&mut fds, 5, Some(&signal_set(&[libc::SIGUSR1]))));
    show_taken(libc::SIGUSR1);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show("ppoll, data and a signal", ppoll(&mut fds, 5000, Some(&signal_set(&[]))));
    show_taken(libc::SIGUSR1);
}

fn pselect_mask() {
    count_signal(libc::SIGUSR1, 0);
    let pair = connected();
    block_signal(libc::SIGUSR1, true);
    kill(getpid(), libc::SIGUSR1);
    let mut set = FdSet::of(&[pair.server]);
    let result = pselect_read(pair.server + 1, &mut set, 5, &signal_set(&[libc::SIGUSR1]));
    show("pselect, mask blocks it", result);
    let mut set = FdSet::of(&[pair.server]);
    show("pselect, empty mask", pselect_read(pair.server + 1, &mut set, 5000, &signal_set(&[])));
    show_taken(libc::SIGUSR1);
}

fn epoll_pwait_mask() {
    count_signal(libc::SIGUSR1, 0);
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, libc::EPOLLIN, 1);
    block_signal(libc::SIGUSR1, true);
    kill(getpid(), libc::SIGUSR1);
    show("epoll_pwait, mask blocks it", epoll_pwait(ep, 5, &signal_set(&[libc::SIGUSR1])));
    show_taken(libc::SIGUSR1);
    show("epoll_pwait, empty mask", epoll_pwait(ep, 5000, &signal_set(&[])));
    show_taken(libc::SIGUSR1);
    show("epoll_pwait, nothing pending", epoll_pwait(ep, 5, &signal_set(&[])));
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show("epoll_pwait, data", epoll_pwait(ep, 5000, &signal_set(&[])));
}

static HANDLER_FD: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);

extern "C" fn send_in_handler(_: i32) {
    send(HANDLER_FD.load(std::sync::atomic::Ordering::Relaxed), b"h", libc::MSG_NOSIGNAL);
}

/// send(2) is async-signal-safe: a handler may use the very socket that its thread waits on.
fn handler_writes() {
    let pair = connected();
    HANDLER_FD.store(pair.client, std::sync::atomic::Ordering::Relaxed);
    handle(libc::SIGUSR1, send_in_handler, libc::SA_RESTART);
    let thread = ping_then(|| {});
    for _ in 0..5 {
        show_recv("from the handler", pair.server, 1, 0);
    }
    let _ = thread.join();
    HANDLER_FD.store(pair.server, std::sync::atomic::Ordering::Relaxed);
    let thread = ping_then(|| {});
    let _ = thread.join();
    await_bytes(pair.client, 5);
    show_recv("the other way, same socket", pair.client, 64, 0);
}
