//! poll() by several threads, each for a pipe and connections: every one is told of its own, whoever else comes to wait
//! for the same, and whatever becomes of the process at the other end.

use std::thread::{self, JoinHandle};

use super::exec::{ask, exec_helper};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("poll_threads/each_its_own", each_its_own),
    solo("poll_threads/several_connections", several_connections),
    solo("poll_threads/two_for_one", two_for_one),
    solo("poll_threads/epoll_comes_to_it", epoll_comes_to_it),
    solo("poll_threads/child_comes_to_it", child_comes_to_it),
    solo("poll_threads/shut_down_by_a_thread", shut_down_by_a_thread),
    solo("poll_threads/interrupted", interrupted),
    solo("poll_threads/pipe_or_connection", pipe_or_connection),
    solo("poll_threads/peer_is_killed", peer_is_killed),
    solo("poll_threads/peer_forks", peer_forks),
    solo("poll_threads/peer_executes", peer_executes),
    solo("poll_threads/server_executes_in_vain", server_executes_in_vain),
];

/// Rounds after which a thread sleeps as it does for good.
const ROUNDS: usize = 6;

/// Waits for a pipe and for connections; what each of these has.
fn wait_for(pipe: i32, connections: &[i32], events: i16) -> String {
    let mut fds = vec![pollfd(pipe, libc::POLLIN)];
    fds.extend(connections.iter().map(|fd| pollfd(*fd, events)));
    let result = poll(&mut fds, 5000);
    let masks: Vec<String> = fds.iter().map(|entry| poll_mask(entry.revents)).collect();
    format!("poll = {result} {}", masks.join(", "))
}

/// Answers some messages, waiting for each in poll, then waits once more and says what for.
fn answering(fd: i32, rounds: usize) -> JoinHandle<String> {
    let (unwritten, _) = pipe(0);
    thread::spawn(move || {
        for _ in 0..rounds {
            let _ = wait_for(unwritten, &[fd], libc::POLLIN);
            let mut buffer = [0; 32];
            let got = recv(fd, &mut buffer, 0);
            send(fd, &buffer[..got.count()], 0);
        }
        wait_for(unwritten, &[fd], libc::POLLIN | libc::POLLRDHUP)
    })
}

/// A thread that sleeps in poll, after some rounds.
fn sleeping(pair: &Connected) -> JoinHandle<String> {
    let thread = answering(pair.server, ROUNDS);
    (0..ROUNDS).for_each(|_| {
        sleep(15);
        ask(pair.client, "round");
    });
    sleep(30);
    thread
}

fn told(thread: JoinHandle<String>) -> String {
    thread.join().expect("waiter")
}

fn each_its_own() {
    let pairs: Vec<Connected> = (0..6).map(|_| connected()).collect();
    let threads: Vec<_> = pairs.iter().map(|pair| answering(pair.server, 60)).collect();
    let mut right = 0;
    for round in 0..60 {
        for (index, pair) in pairs.iter().enumerate() {
            send(pair.client, format!("{round} {index}").as_bytes(), 0);
        }
        for (index, pair) in pairs.iter().enumerate() {
            let mut buffer = [0; 32];
            let got = recv(pair.client, &mut buffer, 0);
            right += usize::from(text(&buffer[..got.count()]) == format!("{round} {index}"));
        }
        sleep(round % 4);
    }
    say!("right answers: {right}");
    pairs.iter().for_each(|pair| _ = close(pair.client));
    threads.into_iter().for_each(|thread| say!("{}", told(thread)));
}

/// Of one thread, in turn.
fn several_connections() {
    let pairs = [connected(), connected(), connected()];
    let servers = pairs.each_ref().map(|pair| pair.server);
    let (unwritten, _) = pipe(0);
    let thread = thread::spawn(move || {
        let each = (0..24).map(|_| {
            let told = wait_for(unwritten, &servers, libc::POLLIN);
            servers.iter().for_each(|fd| _ = recv(*fd, &mut [0; 8], libc::MSG_DONTWAIT));
            told
        });
        each.collect::<Vec<_>>()
    });
    for round in 0..24 {
        sleep(12);
        send(pairs[round % 3].client, b"x", 0);
    }
    thread.join().expect("waiter").into_iter().for_each(|told| say!("{told}"));
}

fn two_for_one() {
    let pair = connected();
    let first = sleeping(&pair);
    let (unwritten, _) = pipe(0);
    let server = pair.server;
    let second = thread::spawn(move || wait_for(unwritten, &[server], libc::POLLIN));
    sleep(40);
    send(pair.client, b"for both", 0);
    say!("first: {}", told(first));
    say!("second: {}", told(second));
}

fn epoll_comes_to_it() {
    let pair = connected();
    let first = sleeping(&pair);
    let ep = epoll();
    epoll_add(ep, pair.server, libc::EPOLLIN | libc::EPOLLET, 7);
    let second = thread::spawn(move || epoll_wait(ep, 4, 5000));
    sleep(40);
    send(pair.client, b"for both", 0);
    say!("first: {}", told(first));
    let (result, events) = second.join().expect("waiter");
    say!("epoll_wait = {result} {events:?}");
}

fn child_comes_to_it() {
    let pair = connected();
    let first = sleeping(&pair);
    let child = fork_child(|| i32::from(poll_one(pair.server, libc::POLLIN, 5000).1));
    let (unwritten, _) = pipe(0);
    let other = fork_child(|| {
        let mut fds = [pollfd(unwritten, libc::POLLIN), pollfd(pair.server, libc::POLLIN)];
        poll(&mut fds, 5000);
        i32::from(fds[1].revents)
    });
    sleep(60);
    send(pair.client, b"for all", 0);
    say!("thread: {}", told(first));
    say!("children: {}, {}", wait_child(child), wait_child(other));
}

fn shut_down_by_a_thread() {
    let pair = connected();
    let first = sleeping(&pair);
    show("shutdown", shutdown(pair.server, libc::SHUT_RD));
    say!("{}", told(first));
}

fn interrupted() {
    let pair = connected();
    count_signal(libc::SIGUSR1, libc::SA_RESTART);
    let (report, id) = std::sync::mpsc::channel();
    let (unwritten, _) = pipe(0);
    let server = pair.server;
    let thread = thread::spawn(move || {
        // SAFETY: no arguments.
        let _ = report.send(unsafe { pthread_self() });
        for _ in 0..ROUNDS {
            let _ = wait_for(unwritten, &[server], libc::POLLIN);
            recv(server, &mut [0; 8], 0);
        }
        wait_for(unwritten, &[server], libc::POLLIN)
    });
    let id = id.recv().expect("the thread's id");
    for _ in 0..ROUNDS {
        sleep(15);
        send(pair.client, b"x", 0);
    }
    sleep(40);
    // SAFETY: the thread has not been joined.
    unsafe { pthread_kill(id, libc::SIGUSR1) };
    say!("{}", told(thread));
}

/// The other descriptor of the list ends the sleep as well.
fn pipe_or_connection() {
    let pair = connected();
    let (from, to) = pipe(0);
    let server = pair.server;
    let thread = thread::spawn(move || {
        let each = (0..16).map(|round| {
            let told = wait_for(from, &[server], libc::POLLIN);
            match round % 2 {
                0 => recv(server, &mut [0; 8], 0),
                _ => read(from, &mut [0; 8]),
            };
            told
        });
        each.collect::<Vec<_>>()
    });
    for round in 0..16 {
        sleep(15);
        match round % 2 {
            0 => send(pair.client, b"x", 0),
            _ => write(to, b"x"),
        };
    }
    thread.join().expect("waiter").into_iter().for_each(|told| say!("{told}"));
}

/// A process at the other end, which sends a word whenever it is told to, then does something else; and our end of the
/// connection, for which a thread sleeps after some words.
struct Peer {
    child: i32,
    order: i32,
    server: i32,
    thread: JoinHandle<String>,
}

fn peer(then: impl FnOnce(i32) -> i32) -> Peer {
    let (listening, addr) = listener();
    let (orders, order) = pipe(0);
    let child = fork_child(|| {
        close(listening);
        let client = dial(&addr);
        for _ in 0..ROUNDS {
            read(orders, &mut [0; 1]);
            ask(client, "word");
        }
        read(orders, &mut [0; 1]);
        then(client)
    });
    let server = accept(listening).fd();
    let thread = answering(server, ROUNDS);
    for _ in 0..ROUNDS {
        sleep(15);
        write(order, b"x");
    }
    sleep(60);
    Peer { child, order, server, thread }
}

fn peer_is_killed() {
    let peer = peer(|_| 0);
    kill(peer.child, libc::SIGKILL);
    say!("{}", told(peer.thread));
    say!("child: {}", wait_child(peer.child));
}

fn peer_forks() {
    let peer = peer(|client| {
        let child = fork_child(|| i32::from(!send(client, b"of the grandchild", 0).ok()));
        wait_child(child);
        sleep(100);
        0
    });
    write(peer.order, b"x");
    say!("{}", told(peer.thread));
    say!("child: {}", wait_child(peer.child));
}

/// The next program of the process answers a word.
fn peer_executes() {
    let peer = peer(|client| exec_helper("hold", &[client]));
    write(peer.order, b"x");
    sleep(150);
    send(peer.server, b"word", 0);
    say!("{}", told(peer.thread));
    show_recv("server", peer.server, 8, 0);
    kill(peer.child, libc::SIGKILL);
    say!("child: {}", wait_child(peer.child));
}

/// Threads go on as before.
fn server_executes_in_vain() {
    let pair = connected();
    let first = sleeping(&pair);
    let arguments = [c"nowhere".as_ptr(), std::ptr::null()];
    show("execv", call!(libc::execv(c"/nowhere".as_ptr(), arguments.as_ptr())));
    sleep(20);
    send(pair.client, b"still there", 0);
    say!("{}", told(first));
}
