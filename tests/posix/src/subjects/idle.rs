//! Connections that are used, left alone for more than a second, and used again: what the layer below does with their
//! memory meanwhile must not be seen.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("idle/used_again", used_again),
    solo("idle/unread_stays", unread_stays),
    solo("idle/ends_stay", ends_stay),
    solo("idle/child_goes_on", child_goes_on),
    solo("idle/threads_receive", threads_receive),
    solo("idle/woken_in_between", woken_in_between),
];

/// More than a few that share something, and some that are left over.
const PAIRS: usize = 10;
pub(super) const IDLE_MS: i32 = 1300;

fn pairs() -> Vec<Connected> {
    connections(PAIRS)
}

pub(super) fn connections(count: usize) -> Vec<Connected> {
    let (fd, addr) = listener();
    let pairs = (0..count).map(|_| connect_to(fd, &addr)).collect();
    close(fd);
    pairs
}

/// A set of both ends of all.
pub(super) fn watch(pairs: &[Connected]) -> i32 {
    let ep = epoll();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_add(ep, pair.client, libc::EPOLLIN, index as u64);
        epoll_add(ep, pair.server, libc::EPOLLIN, 100 + index as u64);
    }
    ep
}

fn idle(ep: i32) {
    let (result, events) = epoll_wait(ep, 64, IDLE_MS);
    let mut events: Vec<String> =
        events.iter().map(|(data, events)| format!("{data}: {}", epoll_mask(*events))).collect();
    events.sort_unstable();
    say!("after a while: {result} {events:?}");
}

pub(super) fn bytes(index: usize, round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (index * 37 + round * 11 + at) as u8).collect()
}

/// Sends, and receives at the other end; whether all was as sent.
pub(super) fn arrives(from: i32, to: i32, sent: &[u8]) -> bool {
    let mut got = vec![0; sent.len()];
    let whole = send(from, sent, 0).count() == sent.len();
    whole && recv(to, &mut got, libc::MSG_WAITALL).count() == sent.len() && got == sent
}

/// The same there and back over each.
pub(super) fn exchange(pairs: &[Connected], round: usize, len: usize) -> bool {
    pairs.iter().enumerate().all(|(index, pair)| {
        arrives(pair.client, pair.server, &bytes(index, round, len))
            && arrives(pair.server, pair.client, &bytes(index, round + 1, len))
    })
}

/// Sends over each to somebody who sends it back; whether all was as sent.
fn ask_all(pairs: &[Connected], round: usize, len: usize) -> bool {
    pairs.iter().enumerate().all(|(index, pair)| {
        let sent = bytes(index, round, len);
        let mut got = vec![0; len];
        send(pair.client, &sent, 0);
        recv(pair.client, &mut got, libc::MSG_WAITALL).count() == len && got == sent
    })
}

fn used_again() {
    let pairs = pairs();
    let ep = watch(&pairs);
    for (round, len) in [8, 300, 5000, 1].into_iter().enumerate() {
        for part in 0..5 {
            say!("{len} bytes, part {part}: {}", exchange(&pairs, round * 5 + part, len));
        }
        idle(ep);
    }
}

/// One of them has something unread, one of them a part of something.
fn unread_stays() {
    let pairs = pairs();
    let ep = watch(&pairs);
    say!("{}", exchange(&pairs, 0, 100));
    send(pairs[1].client, &bytes(1, 1, 200), 0);
    send(pairs[6].server, &bytes(6, 1, 200), 0);
    await_bytes(pairs[1].server, 200);
    await_bytes(pairs[6].client, 200);
    show_recv("a part", pairs[6].client, 5, 0);
    for _ in 0..3 {
        idle(ep);
        sleep(400);
    }
    let mut got = [0; 200];
    show("recv", recv(pairs[1].server, &mut got, 0));
    say!("as sent: {}", got[..] == bytes(1, 1, 200));
    show("recv", recv(pairs[6].client, &mut got[..195], 0));
    say!("as sent: {}", got[..195] == bytes(6, 1, 200)[5..]);
    idle(ep);
    say!("{}", exchange(&pairs, 2, 700));
}

/// The end of one is there to be read, another is closed and made anew, one side of a third reads no more.
fn ends_stay() {
    let mut pairs = pairs();
    let ep = watch(&pairs);
    say!("{}", exchange(&pairs, 0, 100));
    show("shutdown", shutdown(pairs[2].client, libc::SHUT_WR));
    show("shutdown", shutdown(pairs[5].client, libc::SHUT_RD));
    await_events(pairs[2].server, libc::POLLRDHUP);
    epoll_del(ep, pairs[2].server);
    epoll_del(ep, pairs[5].client);
    close(pairs[8].client);
    close(pairs[8].server);
    idle(ep);
    show_recv("end", pairs[2].server, 8, 0);
    show_send("back", pairs[2].server, b"answer", 0);
    show_recv("back", pairs[2].client, 8, 0);
    let fresh = connected();
    epoll_add(ep, fresh.client, libc::EPOLLIN, 8);
    epoll_add(ep, fresh.server, libc::EPOLLIN, 108);
    pairs[8] = fresh;
    say!("{}", exchange(&pairs[6..], 1, 400));
    idle(ep);
    say!("{}", exchange(&pairs[6..], 2, 400));
}

/// A child has the servers' ends; both sides idle at the same time.
fn child_goes_on() {
    let pairs = pairs();
    say!("{}", exchange(&pairs, 0, 100));
    let echo = || {
        pairs.iter().for_each(|pair| _ = close(pair.client));
        let ep = epoll();
        for (index, pair) in pairs.iter().enumerate() {
            epoll_add(ep, pair.server, libc::EPOLLIN, index as u64);
        }
        let mut open = pairs.len();
        while open > 0 {
            for (index, _) in epoll_wait(ep, 64, -1).1 {
                let fd = pairs[index as usize].server;
                let mut buffer = [0; 1000];
                match recv(fd, &mut buffer, 0).count() {
                    0 => {
                        close(fd);
                        open -= 1;
                    }
                    got => _ = send(fd, &buffer[..got], 0),
                }
            }
        }
        0
    };
    let child = fork_child(echo);
    pairs.iter().for_each(|pair| _ = close(pair.server));
    let ep = epoll();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_add(ep, pair.client, libc::EPOLLIN, index as u64);
    }
    for round in 0..3 {
        say!("round {round}: {}", ask_all(&pairs, round, 200));
        idle(ep);
    }
    pairs.iter().for_each(|pair| _ = close(pair.client));
    say!("child: {}", wait_child(child));
}

/// Each connection has a thread that blocks in recv.
fn threads_receive() {
    let pairs = pairs();
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
    let threads: Vec<_> = pairs.iter().map(|pair| serve(pair.server)).collect();
    for round in 0..3 {
        say!("round {round}: {}", ask_all(&pairs, round, 500));
        sleep(IDLE_MS as u64);
    }
    pairs.iter().for_each(|pair| _ = shutdown(pair.client, libc::SHUT_WR));
    let counts: Vec<usize> = threads.into_iter().map(|thread| thread.join().expect("thread")).collect();
    say!("served {counts:?}");
}

/// A program that wakes up now and then has idle connections all the same.
fn woken_in_between() {
    let pairs = pairs();
    let ep = watch(&pairs);
    for round in 0..3 {
        say!("{}", exchange(&pairs, round, 350));
        for _ in 0..30 {
            epoll_wait(ep, 64, 50);
        }
    }
    say!("{}", exchange(&pairs, 3, 350));
}
