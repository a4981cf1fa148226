//! A backlog holds one more than it was set to, whoever asks, and however many at the same time.

use std::sync::Barrier;
use std::thread;

use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("backlog/many_listeners", many_listeners),
    solo("backlog/asked_at_once", asked_at_once),
    solo("backlog/two_waves", two_waves),
    pair("backlog/taken_by_children", taken_by_children, comes_thrice),
];

/// A connect that is over within a moment has found room.
fn finds_room(addr: &Addr) -> (i32, bool) {
    let fd = tcp_nonblocking();
    connect(fd, addr);
    (fd, poll_one(fd, libc::POLLOUT, 10).1 & libc::POLLOUT != 0)
}

/// Threads with a listener each: one connection waits there, a second finds no room. Listeners end and begin meanwhile.
fn many_listeners() {
    const THREADS: usize = 100;
    const ROUNDS: usize = 3;
    let round = || {
        let listening = tcp();
        bind(listening, &Addr::local(0));
        listen(listening, 0);
        let addr = getsockname(listening).1;
        let first = tcp();
        let result = connect(first, &addr);
        let (second, has_room) = finds_room(&addr);
        [second, first, listening].into_iter().for_each(|fd| _ = close(fd));
        (result.ok(), has_room)
    };
    let (mut waiting, mut beyond) = (0, 0);
    for _ in 0..ROUNDS {
        let threads: Vec<_> = (0..THREADS).map(|_| thread::spawn(round)).collect();
        for thread in threads {
            let (first, second) = thread.join().unwrap_or((false, false));
            waiting += usize::from(first);
            beyond += usize::from(second);
        }
    }
    say!("{waiting} wait, {beyond} beyond the backlog");
}

/// Threads that ask for one listener in the same instant.
fn asked_at_once() {
    const THREADS: usize = 12;
    for backlog in [0, 3, 6] {
        let (listening, addr) = listener_with(backlog);
        set_nonblocking(listening, true);
        let barrier = Barrier::new(THREADS);
        let ask = || {
            barrier.wait();
            finds_room(&addr).0
        };
        let asking: Vec<i32> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let mut accepted = Vec::new();
        while let Some(fd) = Some(accept(listening)).filter(|result| result.ok()) {
            accepted.push(fd.fd());
        }
        say!("backlog {backlog}: {} accepted at once", accepted.len());
        asking.into_iter().chain(accepted).chain([listening]).for_each(abort);
    }
}

/// What was accepted makes room for as many.
fn two_waves() {
    let (listening, addr) = listener_with(2);
    set_nonblocking(listening, true);
    let mut kept = Vec::new();
    for wave in 0..3 {
        let room: Vec<bool> = (0..5)
            .map(|_| {
                let (fd, has_room) = finds_room(&addr);
                if has_room {
                    kept.push(fd);
                } else {
                    abort(fd);
                }
                has_room
            })
            .collect();
        let mut count = 0;
        while accept(listening).ok() {
            count += 1;
        }
        say!("wave {wave}: {room:?}, {count} accepted");
    }
}

/// The parent is told of connections and never accepts; a child for each does. They make room at once.
fn taken_by_children(role: &mut Role) {
    let (listening, addr) = listener_with(0);
    role.tell_port(&addr);
    let ep = epoll();
    epoll_add(ep, listening, libc::EPOLLIN | libc::EPOLLET, 1);
    for _ in 0..3 {
        let (_, events) = epoll_wait(ep, 4, 3000);
        say!("{} told", events.len());
        let child = fork_child(|| {
            let server = accept(listening).fd();
            recv(server, &mut [0; 1], 0);
            send(server, b"served", 0);
            0
        });
        role.expect("served");
        say!("child: {}", wait_child(child));
    }
}

fn comes_thrice(role: &mut Role) {
    let port = role.hear_port("L");
    for _ in 0..3 {
        let client = tcp();
        set_timeout(client, libc::SO_SNDTIMEO, 2000);
        set_timeout(client, libc::SO_RCVTIMEO, 4000);
        show("connect", connect(client, &Addr::local(port)));
        show_send("client", client, b"x", libc::MSG_NOSIGNAL);
        show_recv("client", client, 16, 0);
        // The parent sleeps again by then, and has not been told.
        sleep(20);
        role.tell("served");
        close(client);
    }
}
