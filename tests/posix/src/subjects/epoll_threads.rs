//! epoll: several threads, with a set in common or one each, and who of them is woken.

use std::os::unix::thread::JoinHandleExt;
use std::thread::{self, JoinHandle};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_threads/exclusive_one_waiter", exclusive_one_waiter),
    solo("epoll_threads/exclusive_and_others", exclusive_and_others),
    solo("epoll_threads/exclusive_one_each", exclusive_one_each),
    solo("epoll_threads/exclusive_and_watched", exclusive_and_watched),
    solo("epoll_threads/edge_one_of_many_threads", edge_one_of_many_threads),
    solo("epoll_threads/own_set_per_thread", own_set_per_thread),
    solo("epoll_threads/churn_by_threads", churn_by_threads),
    solo("epoll_threads/added_while_all_wait", added_while_all_wait),
    solo("epoll_threads/pool_on_one_set", pool_on_one_set),
];

const IN: i32 = libc::EPOLLIN;
const ET: i32 = libc::EPOLLET;
const EXCLUSIVE: i32 = libc::EPOLLEXCLUSIVE;

fn feed(pair: &Connected) {
    let before = fionread(pair.server);
    send(pair.client, b"x", 0);
    await_bytes(pair.server, before + 1);
}

/// Threads that wait for one event, each in the set of that number.
fn waiters(sets: impl Iterator<Item = i32>) -> Vec<JoinHandle<bool>> {
    count_signal(libc::SIGUSR1, 0);
    let threads = sets.map(|ep| thread::spawn(move || epoll_wait(ep, 1, 5000).0.value == 1)).collect();
    sleep(50);
    threads
}

/// Which of them were told of something; the waits of the others are interrupted.
fn told(threads: Vec<JoinHandle<bool>>) -> Vec<usize> {
    sleep(50);
    for thread in &threads {
        // SAFETY: the thread has not been joined.
        unsafe { pthread_kill(thread.as_pthread_t() as ThreadId, libc::SIGUSR1) };
    }
    let told = threads.into_iter().map(|thread| thread.join().expect("waiter"));
    told.enumerate().filter_map(|(index, told)| told.then_some(index)).collect()
}

/// Which of the sets, with a thread in each, are told of a connection.
fn woken(sets: &[i32], addr: &Addr) -> Vec<usize> {
    let threads = waiters(sets.iter().copied());
    let client = dial(addr);
    let told = told(threads);
    close(client);
    told
}

fn exclusive_one_waiter() {
    let (listening, addr) = listener();
    let sets: Vec<i32> = (0..4).map(|_| epoll()).collect();
    for &ep in &sets {
        epoll_add(ep, listening, IN | EXCLUSIVE, 1);
    }
    say!("told: {}", woken(&sets, &addr).len());
    accept(listening);
    say!("told again: {}", woken(&sets, &addr).len());
}

fn exclusive_and_others() {
    let (listening, addr) = listener();
    let sets: Vec<i32> = (0..5).map(|_| epoll()).collect();
    for (index, &ep) in sets.iter().enumerate() {
        let exclusive = if index < 3 { EXCLUSIVE } else { 0 };
        epoll_add(ep, listening, IN | exclusive, 1);
    }
    let told = woken(&sets, &addr);
    say!("without the flag: {}", told.iter().filter(|index| **index >= 3).count());
    say!("with it: {}", told.iter().filter(|index| **index < 3).count());
}

/// One who was woken is not asked again before it waits again: each connection is told to another.
fn exclusive_one_each() {
    let (listening, addr) = listener();
    let sets: Vec<i32> = (0..4).map(|_| epoll()).collect();
    for &ep in &sets {
        epoll_add(ep, listening, IN | EXCLUSIVE, 1);
    }
    let threads = waiters(sets.iter().copied());
    let clients = [dial(&addr), dial(&addr), dial(&addr)];
    say!("told: {}", told(threads).len());
    clients.iter().for_each(|client| _ = close(*client));
}

/// Threads that sleep in instances around those that are registered: Linux wakes all of them, so EPOLLEXCLUSIVE is no promise that one is.
fn exclusive_and_watched() {
    let (listening, addr) = listener();
    let outers: Vec<i32> = (0..4)
        .map(|_| {
            let (inner, outer) = (epoll(), epoll());
            epoll_add(inner, listening, IN | EXCLUSIVE, 1);
            epoll_add(outer, inner, IN, 1);
            outer
        })
        .collect();
    say!("told: {}", woken(&outers, &addr).len());
}

/// Several threads in one set: an edge is told to one of them.
fn edge_one_of_many_threads() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET, 1);
    for _ in 0..3 {
        let threads = waiters([ep; 4].into_iter());
        send(pair.client, b"x", 0);
        say!("told {}", told(threads).len());
    }
}

/// As many sets as threads, each with its own connections, all talking to each other.
fn own_set_per_thread() {
    let (listening, addr) = listener();
    let threads: Vec<_> = (0..4u64)
        .map(|number| {
            let pairs: Vec<Connected> = (0..5).map(|_| connect_to(listening, &addr)).collect();
            thread::spawn(move || {
                let ep = epoll();
                for (index, pair) in pairs.iter().enumerate() {
                    epoll_add(ep, pair.server, IN, index as u64);
                    epoll_add(ep, pair.client, IN, 100 + index as u64);
                    send(pair.client, &[number as u8], 0);
                }
                let (mut turns, mut wrong) = (0, 0);
                while turns < 400 {
                    let (result, events) = epoll_wait(ep, 3, 3000);
                    if result.value < 1 {
                        return (turns, wrong + 1);
                    }
                    for (data, _) in events {
                        let pair = &pairs[data as usize % 100];
                        let fd = if data < 100 { pair.server } else { pair.client };
                        let mut byte = [0xff];
                        let got = recv(fd, &mut byte, libc::MSG_DONTWAIT);
                        wrong += usize::from(got.value != 1 || u64::from(byte[0]) != number);
                        send(fd, &byte, 0);
                        turns += 1;
                    }
                }
                (400, wrong)
            })
        })
        .collect();
    for thread in threads {
        let (turns, wrong) = thread.join().expect("thread");
        say!("turns {turns}, wrong {wrong}");
    }
}

/// Registrations are made, changed and removed by one thread while another waits and a third one sends.
fn churn_by_threads() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, other.server, IN, 2);
    let (server, client) = (pair.server, pair.client);
    let changing = thread::spawn(move || {
        for _ in 0..300 {
            epoll_add(ep, server, IN, 1);
            epoll_mod(ep, server, IN | ET, 1);
            epoll_del(ep, server);
        }
    });
    let sending = thread::spawn(move || {
        for _ in 0..300 {
            send(client, b"x", 0);
        }
    });
    let waiting = thread::spawn(move || {
        let mut strange = 0;
        loop {
            let (_, events) = epoll_wait(ep, 4, 3000);
            if events.iter().any(|(data, _)| *data == 2) {
                return strange;
            }
            strange += usize::from(events.is_empty() || events.iter().any(|event| *event != (1, IN as u32)));
        }
    });
    let _ = (changing.join(), sending.join());
    feed(&other);
    say!("strange results: {}", waiting.join().unwrap_or(99));
    epoll_add(ep, server, IN, 1);
    show_epoll("at the end", ep);
}

/// Threads wait in an empty set, or one of pipes; then a socket is added.
fn added_while_all_wait() {
    let pair = connected();
    let (read_end, _write_end) = pipe(0);
    let ep = epoll();
    epoll_add(ep, read_end, IN, 1);
    let threads: Vec<_> = (0..3).map(|_| thread::spawn(move || epoll_wait(ep, 1, 3000).0.value)).collect();
    sleep(50);
    epoll_add(ep, pair.server, IN, 2);
    sleep(50);
    feed(&pair);
    let told: i64 = threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
    say!("told {told}");
}

/// Level-triggered, several threads in one set: each arrival is taken by somebody, none twice.
fn pool_on_one_set() {
    let (listening, addr) = listener();
    let pairs: Vec<Connected> = (0..8).map(|_| connect_to(listening, &addr)).collect();
    let ep = epoll();
    for (index, pair) in pairs.iter().enumerate() {
        set_nonblocking(pair.server, true);
        epoll_add(ep, pair.server, IN | libc::EPOLLONESHOT, index as u64);
    }
    let servers: Vec<i32> = pairs.iter().map(|pair| pair.server).collect();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let servers = servers.clone();
            thread::spawn(move || {
                let mut taken = 0;
                loop {
                    let (_, events) = epoll_wait(ep, 2, 3000);
                    if events.is_empty() {
                        return taken;
                    }
                    for (index, _) in events {
                        let fd = servers[index as usize];
                        let got = recv(fd, &mut [0; 64], 0);
                        if got.value == 0 {
                            return taken;
                        }
                        taken += got.value.max(0);
                        epoll_mod(ep, fd, IN | libc::EPOLLONESHOT, index);
                    }
                }
            })
        })
        .collect();
    for round in 0..400 {
        send(pairs[round % 8].client, b"x", 0);
    }
    pairs.iter().for_each(await_taken);
    pairs.iter().take(4).for_each(|pair| _ = close(pair.client));
    let taken: i64 = threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum();
    say!("taken {taken}");
}

fn await_taken(pair: &Connected) {
    for _ in 0..2000 {
        if fionread(pair.server) == 0 {
            return;
        }
        sleep(1);
    }
    say!("NOT TAKEN");
}
