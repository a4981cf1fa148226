//! epoll: a pool of threads on one set changes registrations all the time, while the connections go from one road to the other.

use std::thread::{self, JoinHandle};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] =
    &[solo("epoll_pools/armed_anew", armed_anew), solo("epoll_pools/added_anew", added_anew)];

const PAIRS: usize = 12;
const THREADS: usize = 4;
const ROUNDS: u8 = 60;
const IN: i32 = libc::EPOLLIN;
const ONESHOT: i32 = libc::EPOLLONESHOT;
/// What is registered so ends the threads.
const END: u64 = u64::MAX;

/// Threads that answer each byte; whoever is told of a socket is alone with it until `done` with it. How many waits ended for nothing.
fn pool(ep: i32, done: fn(i32, i32)) -> Vec<JoinHandle<usize>> {
    let work = move || {
        let mut in_vain = 0;
        loop {
            let (_, events) = epoll_wait(ep, 1, 4000);
            in_vain += usize::from(events.is_empty());
            for (number, _) in events {
                if number == END {
                    return in_vain;
                }
                let (fd, mut byte) = (number as i32, [0]);
                if recv(fd, &mut byte, libc::MSG_DONTWAIT).value == 1 {
                    send(fd, &byte, 0);
                }
                done(ep, fd);
            }
        }
    };
    (0..THREADS).map(|_| thread::spawn(work)).collect()
}

/// All clients ask at once and then wait for all answers.
fn ask(done: fn(i32, i32)) {
    let ((listening, addr), ep) = (listener(), epoll());
    let pairs: Vec<Connected> = (0..PAIRS).map(|_| connect_to(listening, &addr)).collect();
    for pair in &pairs {
        epoll_add(ep, pair.server, IN | ONESHOT, pair.server as u64);
    }
    let threads = pool(ep, done);
    let mut good = 0;
    for round in 0..ROUNDS {
        pairs.iter().for_each(|pair| _ = send(pair.client, &[round], 0));
        for pair in &pairs {
            let mut byte = [255];
            recv(pair.client, &mut byte, 0);
            good += usize::from(byte[0] == round);
        }
    }
    let (end, ends) = pipe(0);
    epoll_add(ep, end, IN, END);
    write(ends, b"!");
    let in_vain: usize = threads.into_iter().map(|thread| thread.join().unwrap_or(99)).sum();
    say!("good answers {good}, waits for nothing {in_vain}");
}

fn armed_anew() {
    ask(|ep, fd| epoll_mod(ep, fd, IN | ONESHOT, fd as u64));
}

fn added_anew() {
    ask(|ep, fd| {
        epoll_del(ep, fd);
        epoll_add(ep, fd, IN | ONESHOT, fd as u64);
    });
}
