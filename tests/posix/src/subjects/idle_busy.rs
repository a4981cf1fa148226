//! Connections that idle in a process that is never idle itself: the layer below looks after their memory in between.

use std::thread;
use std::time::{Duration, Instant};

use super::idle::{arrives, bytes, connections, exchange, watch};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("idle_busy/used_again", used_again),
    solo("idle_busy/by_epoll", by_epoll),
    solo("idle_busy/memory_goes", memory_goes),
    solo("idle_busy/unread_stays", unread_stays),
    solo("idle_busy/threads_wait", threads_wait),
    solo("idle_busy/some_end", some_end),
];

/// More sockets than share any piece of memory.
const PAIRS: usize = 50;
/// Longer than anything is kept; three times that is less than a subject may take.
const BUSY: Duration = Duration::from_millis(2500);

/// A byte there and back again and again, by calls that wait.
fn ping_until(pair: &Connected, mut is_over: impl FnMut() -> bool) -> bool {
    let there = pair.server;
    let echo = thread::spawn(move || {
        let mut byte = [0];
        while recv(there, &mut byte, 0).count() == 1 && byte != [0] {
            send(there, &byte, 0);
        }
    });
    let mut good = true;
    while good && !is_over() {
        for _ in 0..100 {
            send(pair.client, b"x", 0);
            good &= recv(pair.client, &mut [0], 0).count() == 1;
        }
    }
    send(pair.client, &[0], 0);
    echo.join().is_ok() && good
}

fn busy(pair: &Connected) {
    let began = Instant::now();
    say!("busy: {}", ping_until(pair, || began.elapsed() > BUSY));
}

/// All of them, at many places of the rings, and some in between.
fn used_again() {
    let pairs = connections(PAIRS);
    let other = connected();
    for (round, len) in [900, 40_000].into_iter().enumerate() {
        say!("all, {len} bytes: {}", exchange(&pairs, round, len));
        busy(&other);
        say!("some: {}", exchange(&pairs[round * 7..round * 7 + 3], round, len));
    }
    busy(&other);
    say!("all: {}", exchange(&pairs, 9, 6000));
}

/// The same where both ends of the busy one are in a set of all.
fn by_epoll() {
    let mut pairs = connections(PAIRS);
    let ep = watch(&pairs);
    say!("{}", exchange(&pairs, 0, 40_000));
    let last = pairs.pop().expect("a pair");
    let began = Instant::now();
    let mut good = true;
    while good && began.elapsed() < BUSY {
        send(last.client, b"x", 0);
        good &= epoll_wait(ep, 4, 1000).1.first().is_some_and(|event| event.0 == 100 + pairs.len() as u64);
        good &= recv(last.server, &mut [0; 4], 0).count() == 1;
    }
    say!("busy: {good}");
    say!("{}", exchange(&pairs, 1, 40_000));
}

/// Bytes of this process's memory, of a kind that /proc knows.
pub(super) fn memory_of(kind: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'));
    value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok()).expect("a number") * 1024
}

/// That is shared, or was written.
pub(super) fn memory() -> u64 {
    memory_of("Pss_Anon") + memory_of("Pss_Shmem")
}

/// What many connections have used once is not kept.
fn memory_goes() {
    let pairs = connections(PAIRS);
    let other = connected();
    let before = memory();
    say!("{}", exchange(&pairs, 0, 40_000));
    let began = Instant::now();
    let is_little = || memory() < before + PAIRS as u64 * 12_000;
    let busy = ping_until(&other, || is_little() || began.elapsed() > Duration::from_secs(20));
    say!("busy: {busy}, little memory: {}", is_little());
    say!("{}", exchange(&pairs, 1, 40_000));
}

fn unread_stays() {
    let pairs = connections(PAIRS);
    let other = connected();
    say!("{}", exchange(&pairs, 0, 100));
    for index in [3, 20] {
        send(pairs[index].client, &bytes(index, 1, 200), 0);
        await_bytes(pairs[index].server, 200);
    }
    show_recv("a part", pairs[20].server, 5, 0);
    busy(&other);
    let mut got = [0; 200];
    show("recv", recv(pairs[3].server, &mut got, 0));
    say!("as sent: {}", got[..] == bytes(3, 1, 200));
    show("recv", recv(pairs[20].server, &mut got[..195], 0));
    say!("as sent: {}", got[..195] == bytes(20, 1, 200)[5..]);
    say!("{}", exchange(&pairs, 2, 700));
}

/// A thread for each connection waits for it, as servers do.
fn threads_wait() {
    let pairs = connections(8);
    let other = connected();
    let serve = |pair: &Connected| {
        let server = pair.server;
        thread::spawn(move || {
            let (mut buf, mut all) = (vec![0; 5000], 0);
            while let n @ 1.. = recv(server, &mut buf, 0).count() {
                all += n;
                send(server, &buf[..n], 0);
            }
            all
        })
    };
    let servers: Vec<_> = pairs.iter().map(serve).collect();
    for round in 0..3 {
        let good = pairs.iter().enumerate().all(|(index, pair)| {
            let sent = bytes(index, round, 3000);
            let mut got = vec![0; sent.len()];
            send(pair.client, &sent, 0);
            recv(pair.client, &mut got, libc::MSG_WAITALL).count() == sent.len() && got == sent
        });
        say!("answers: {good}");
        busy(&other);
    }
    pairs.iter().for_each(|pair| _ = shutdown(pair.client, libc::SHUT_WR));
    let all: Vec<usize> = servers.into_iter().map(|server| server.join().unwrap_or(0)).collect();
    say!("{all:?}");
}

/// Some are closed and made anew meanwhile.
fn some_end() {
    let mut pairs = connections(PAIRS);
    let other = connected();
    say!("{}", exchange(&pairs, 0, 500));
    let began = Instant::now();
    let mut round = 0;
    let good = ping_until(&other, || {
        round += 1;
        if round % 20 == 0 {
            let pair = &mut pairs[round / 20 * 7 % PAIRS];
            close(pair.client);
            close(pair.server);
            *pair = connected();
            arrives(pair.server, pair.client, b"fresh");
        }
        began.elapsed() > BUSY
    });
    say!("busy: {good}");
    say!("{}", exchange(&pairs, 1, 500));
}
