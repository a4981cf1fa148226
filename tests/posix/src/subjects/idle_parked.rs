//! Many connections that idle at the same time, and everything that may be done to one of them then: the layer below
//! keeps a word of each cursor of theirs, and nothing else.

use std::thread;

use super::idle::{IDLE_MS, arrives, bytes, connections, exchange, watch};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("idle_parked/used_again", used_again),
    solo("idle_parked/looked_at", looked_at),
    solo("idle_parked/low_water", low_water),
    solo("idle_parked/urgent", urgent),
    solo("idle_parked/ended", ended),
    solo("idle_parked/child", child),
    solo("idle_parked/threads", threads),
    solo("idle_parked/killed", killed),
    solo("idle_parked/one_way", one_way),
];

/// Both ends of so many are more sockets than share any piece of memory.
const PAIRS: usize = 50;

fn pairs() -> Vec<Connected> {
    connections(PAIRS)
}

/// Something happens on the last of them, and then nothing on any.
fn idle(ep: i32, pairs: &[Connected]) {
    idle_for(ep, pairs, IDLE_MS);
}

fn idle_for(ep: i32, pairs: &[Connected], time: i32) {
    let Some(last) = pairs.last() else { return };
    send(last.server, b"x", 0);
    say!("an event: {}", epoll_wait(ep, 4, 1000).0);
    recv(last.client, &mut [0; 4], 0);
    say!("after a while: {}", epoll_wait(ep, 4, time).0);
}

/// All, then a few, then all of them, at many places of the rings.
fn used_again() {
    let pairs = pairs();
    let ep = watch(&pairs);
    for (round, len) in [1, 333].into_iter().enumerate() {
        say!("all, {len} bytes: {}", exchange(&pairs, round, len));
        idle(ep, &pairs);
        say!("some: {}", exchange(&pairs[round * 7..round * 7 + 3], round, len));
        idle(ep, &pairs);
    }
    say!("all: {}", exchange(&pairs, 9, 6000));
}

fn looked_at() {
    let pairs = pairs();
    let ep = watch(&pairs);
    say!("{}", exchange(&pairs, 0, 120));
    let (_, address) = getpeername(pairs[3].client);
    idle(ep, &pairs);
    show_poll("poll", pairs[1].client);
    say!("FIONREAD {}", fionread(pairs[2].server));
    say!("the same name: {}", getpeername(pairs[3].client).1.port() == address.port());
    show_option("SO_RCVLOWAT", pairs[4].client, libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    show_option("SO_ERROR", pairs[5].client, libc::SOL_SOCKET, libc::SO_ERROR);
    say!("SIOCATMARK {}", ioctl_int(pairs[6].client, 0x8905, -1).1);
    say!("TCP_INFO: state {}", tcp_info_state(pairs[7].client).1);
    show_recv("nothing", pairs[8].server, 4, libc::MSG_DONTWAIT);
    show_recv("nothing to peek at", pairs[9].server, 4, libc::MSG_DONTWAIT | libc::MSG_PEEK);
    let twin = dup(pairs[10].server).fd();
    close(pairs[10].server);
    say!("by a dup: {}", arrives(pairs[10].client, twin, &bytes(3, 0, 77)));
    idle(ep, &pairs);
    say!("{}", exchange(&pairs[11..], 1, 120));
}

fn low_water() {
    let pairs = pairs();
    let ep = watch(&pairs);
    say!("{}", exchange(&pairs, 0, 10));
    idle(ep, &pairs);
    set_int(pairs[20].server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 5);
    idle(ep, &pairs);
    send(pairs[20].client, b"abc", 0);
    await_bytes(pairs[20].server, 3);
    idle(ep, &pairs);
    send(pairs[20].client, b"de", 0);
    await_readable(pairs[20].server);
    show_recv("five", pairs[20].server, 9, 0);
    set_int(pairs[20].server, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
    idle(ep, &pairs);
    say!("{}", exchange(&pairs, 1, 10));
}

fn urgent() {
    let pairs = pairs();
    let ep = watch(&pairs);
    say!("{}", exchange(&pairs, 0, 64));
    idle(ep, &pairs);
    show_send("before", pairs[30].client, b"xy", 0);
    show_send("urgent", pairs[30].client, b"!", libc::MSG_OOB);
    await_events(pairs[30].server, libc::POLLPRI);
    say!("SIOCATMARK {}", ioctl_int(pairs[30].server, 0x8905, -1).1);
    show_recv("out of band", pairs[30].server, 1, libc::MSG_OOB);
    show_recv("up to the mark", pairs[30].server, 9, 0);
    say!("SIOCATMARK {}", ioctl_int(pairs[30].server, 0x8905, -1).1);
    idle(ep, &pairs);
    say!("{}", exchange(&pairs, 1, 64));
}

fn ended() {
    let pairs = pairs();
    let ep = watch(&pairs);
    say!("{}", exchange(&pairs, 0, 200));
    idle(ep, &pairs);
    show("shutdown", shutdown(pairs[1].client, libc::SHUT_WR));
    await_events(pairs[1].server, libc::POLLRDHUP);
    show_recv("the end", pairs[1].server, 4, 0);
    send(pairs[2].client, b"unread", 0);
    await_bytes(pairs[2].server, 6);
    close(pairs[2].server);
    await_events(pairs[2].client, libc::POLLHUP);
    show_recv("reset", pairs[2].client, 4, 0);
    close(pairs[3].server);
    await_events(pairs[3].client, libc::POLLRDHUP);
    show_recv("closed", pairs[3].client, 4, 0);
    abort(pairs[4].client);
    await_events(pairs[4].server, libc::POLLHUP);
    show_recv("aborted", pairs[4].server, 4, 0);
    for pair in &pairs[1..5] {
        epoll_del(ep, pair.client);
        epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, pair.server);
    }
    idle(ep, &pairs);
    say!("{}", exchange(&pairs[5..], 1, 200));
    pairs[5..].iter().for_each(|pair| _ = close(pair.client));
    say!("all end: {}", pairs[5..].iter().all(|pair| recv(pair.server, &mut [0; 4], 0).count() == 0));
}

/// A child of a process with idle connections goes on with some of them.
fn child() {
    let pairs = pairs();
    let ep = watch(&pairs);
    say!("{}", exchange(&pairs, 0, 90));
    idle(ep, &pairs);
    let child = fork_child(|| {
        say!("child: {}", exchange(&pairs[..10], 1, 90));
        0
    });
    say!("{}", wait_child(child));
    say!("parent: {}", exchange(&pairs, 2, 90));
    idle(ep, &pairs);
    say!("parent: {}", exchange(&pairs, 3, 90));
}

/// Threads block in recv while another one waits for all.
fn threads() {
    let pairs = pairs();
    let ep = epoll();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_add(ep, pair.client, libc::EPOLLIN, index as u64);
        if index >= 12 {
            epoll_add(ep, pair.server, libc::EPOLLIN, 100 + index as u64);
        }
    }
    say!("{}", exchange(&pairs, 0, 150));
    let serve = |fd: i32| {
        thread::spawn(move || {
            let (mut count, mut buffer) = (0, [0; 600]);
            loop {
                match recv(fd, &mut buffer, 0).count() {
                    0 => return count,
                    got => {
                        count += got;
                        send(fd, &buffer[..got], 0);
                    }
                }
            }
        })
    };
    let threads: Vec<_> = pairs[..12].iter().map(|pair| serve(pair.server)).collect();
    for (round, time) in [IDLE_MS, 3400].into_iter().enumerate() {
        idle_for(ep, &pairs, time);
        let back =
            |(index, pair): (usize, &Connected)| arrives(pair.client, pair.client, &bytes(index, round, 300));
        say!("answers: {}", pairs[..12].iter().enumerate().all(back));
        say!("others: {}", exchange(&pairs[12..], round, 60));
    }
    pairs[..12].iter().for_each(|pair| _ = shutdown(pair.client, libc::SHUT_WR));
    let counts: Vec<usize> = threads.into_iter().map(|thread| thread.join().expect("thread")).collect();
    say!("served {counts:?}");
}

/// A process dies with idle connections, of which one has something to read.
fn killed() {
    let (listening, addr) = listener();
    let child = fork_child(|| {
        let clients: Vec<i32> = (0..PAIRS).map(|_| dial(&addr)).collect();
        let ep = epoll();
        for (index, &fd) in clients.iter().enumerate() {
            send(fd, &bytes(index, 0, 30), 0);
            epoll_add(ep, fd, libc::EPOLLIN | libc::EPOLLET, index as u64);
        }
        loop {
            epoll_wait(ep, 4, -1);
        }
    });
    let servers: Vec<i32> = (0..PAIRS).map(|_| accept(listening).fd()).collect();
    let mut got = [0; 30];
    let whole = |fd: &i32| recv(*fd, &mut got, libc::MSG_WAITALL).count() == 30;
    say!("{}", servers.iter().all(whole));
    let ep = epoll();
    servers.iter().for_each(|fd| epoll_add(ep, *fd, libc::EPOLLIN, 0));
    say!("after a while: {}", epoll_wait(ep, 4, 2 * IDLE_MS).0);
    show_send("not read", servers[7], b"lost", 0);
    sleep(100);
    show("kill", kill(child, libc::SIGKILL));
    say!("{}", wait_child(child));
    await_events(servers[7], libc::POLLHUP);
    show_recv("reset", servers[7], 4, 0);
    let ends = |fd: &&i32| recv(**fd, &mut [0; 4], 0).count() == 0;
    say!("ends: {}", servers.iter().filter(|fd| **fd != servers[7]).filter(ends).count());
}

/// Those that never sent, or never received, anything.
fn one_way() {
    let pairs = pairs();
    let ep = watch(&pairs);
    let way = |seed: usize| {
        let odd = |(index, pair): (usize, &Connected)| match index % 3 {
            0 => true,
            1 => arrives(pair.client, pair.server, &bytes(index, seed, 45)),
            _ => arrives(pair.server, pair.client, &bytes(index, seed, 45)),
        };
        pairs.iter().enumerate().all(odd)
    };
    for round in 0..3 {
        say!("{}", way(round));
        idle(ep, &pairs);
    }
    say!("{}", exchange(&pairs, 0, 45));
}
