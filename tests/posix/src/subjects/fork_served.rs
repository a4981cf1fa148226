//! A process for each connection, as PostgreSQL, sshd and FTP servers have: children that wait for what they have
//! inherited, together with descriptors of the kernel.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("fork_served/epoll_in_each_child", epoll_in_each_child),
    solo("fork_served/poll_in_each_child", poll_in_each_child),
    solo("fork_served/parent_keeps_a_copy", parent_keeps_a_copy),
    solo("fork_served/child_forks_again", child_forks_again),
    solo("fork_served/parent_killed", parent_killed),
    solo("fork_served/client_inherited", client_inherited),
    solo("fork_served/both_ends_inherited", both_ends_inherited),
    solo("fork_served/client_killed", client_killed),
    solo("fork_served/while_a_thread_waits", while_a_thread_waits),
    solo("fork_served/in_a_handler_of_a_wait", in_a_handler_of_a_wait),
];

/// Waits for a connection and a pipe, by epoll, and answers each byte with the next, until the end. How many.
fn serve_by_epoll(conn: i32, pipe: i32) -> i32 {
    let set = epoll();
    epoll_add(set, conn, libc::EPOLLIN, 0);
    epoll_add(set, pipe, libc::EPOLLIN, 1);
    let mut served = 0;
    loop {
        let (_, events) = epoll_wait(set, 4, 5000);
        if events.is_empty() || events.iter().any(|(number, _)| *number == 1) {
            return 250;
        }
        match answer(conn) {
            true => served += 1,
            false => return served,
        }
    }
}

fn serve_by_poll(conn: i32, pipe: i32) -> i32 {
    let mut served = 0;
    loop {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [entry(conn), entry(pipe)];
        let found = poll(&mut fds, 5000);
        if found.value != 1 || fds[1].revents != 0 {
            return 250;
        }
        match answer(conn) {
            true => served += 1,
            false => return served,
        }
    }
}

fn answer(conn: i32) -> bool {
    let mut byte = [0];
    if recv(conn, &mut byte, 0).value != 1 {
        return false;
    }
    byte[0] = byte[0].wrapping_add(1);
    send(conn, &byte, 0).value == 1
}

fn ask(conn: i32, byte: u8) -> bool {
    let mut answer = [0];
    send(conn, &[byte], 0).value == 1
        && recv(conn, &mut answer, 0).value == 1
        && answer[0] == byte.wrapping_add(1)
}

/// Connections, each with a child that serves it, and nobody else.
struct Served {
    clients: Vec<i32>,
    children: Vec<i32>,
}

fn served(count: usize, serve: fn(i32, i32) -> i32, keep: bool) -> Served {
    let (listening, addr) = listener();
    let pipe = pipe(0);
    let mut all = Served { clients: Vec::new(), children: Vec::new() };
    for _ in 0..count {
        let client = dial(&addr);
        let server = accept(listening).fd();
        let others = all.clients.clone();
        all.children.push(fork_child(|| {
            close(listening);
            close(client);
            close_all(&others);
            serve(server, pipe.0)
        }));
        if !keep {
            close(server);
        }
        all.clients.push(client);
    }
    close(listening);
    all
}

impl Served {
    /// Asks each in turn, so that the others sleep meanwhile. How many were answered well.
    fn rounds(&self, rounds: u8) -> usize {
        let mut good = 0;
        for round in 0..rounds {
            good += self.clients.iter().filter(|client| ask(**client, round)).count();
            if round % 16 == 0 {
                sleep(3);
            }
        }
        good
    }

    fn end(self) {
        close_all(&self.clients);
        let ends: Vec<String> = self.children.iter().map(|child| wait_child(*child)).collect();
        say!("children: {}", ends.join(", "));
    }
}

fn epoll_in_each_child() {
    let all = served(5, serve_by_epoll, false);
    say!("answered {}", all.rounds(100));
    all.end();
}

fn poll_in_each_child() {
    let all = served(5, serve_by_poll, false);
    say!("answered {}", all.rounds(100));
    all.end();
}

fn parent_keeps_a_copy() {
    let all = served(3, serve_by_epoll, true);
    say!("answered {}", all.rounds(60));
    for client in &all.clients {
        shutdown(*client, libc::SHUT_WR);
    }
    all.end();
}

/// While the one child waits, it forks: then both have the connection, and either answers.
fn serve_and_fork(conn: i32, pipe: i32) -> i32 {
    let set = epoll();
    epoll_add(set, conn, libc::EPOLLIN, 0);
    for _ in 0..10 {
        epoll_wait(set, 1, 5000);
        answer(conn);
    }
    let grandchild = fork_child(|| {
        let set = epoll();
        epoll_add(set, conn, libc::EPOLLIN, 0);
        for _ in 0..10 {
            epoll_wait(set, 1, 5000);
            answer(conn);
        }
        10
    });
    let end = wait_child(grandchild);
    let rest = serve_by_epoll(conn, pipe);
    if end == "exit 10" { rest } else { 251 }
}

fn child_forks_again() {
    let all = served(2, serve_and_fork, false);
    say!("answered {}", all.rounds(40));
    all.end();
}

fn parent_killed() {
    let (listening, addr) = listener();
    let pipe = pipe(0);
    let clients = [dial(&addr), dial(&addr)];
    let parent = fork_child(|| {
        for _ in 0..2 {
            let server = accept(listening).fd();
            fork_child(|| {
                close(listening);
                close_all(&clients);
                serve_by_epoll(server, pipe.0)
            });
            close(server);
        }
        sleep(10_000);
        0
    });
    close(listening);
    let both = |round: u8| clients.iter().filter(|client| ask(**client, round)).count();
    say!("answered {}", (0..20).map(both).sum::<usize>());
    sleep(5);
    kill(parent, libc::SIGKILL);
    say!("parent: {}", wait_child(parent));
    say!("answered {}", (0..20).map(both).sum::<usize>());
    close_all(&clients);
}

fn client_inherited() {
    let (listening, addr) = listener();
    let client = dial(&addr);
    let server = accept(listening).fd();
    let pipe = pipe(0);
    let child = fork_child(|| {
        close(server);
        serve_by_epoll(client, pipe.0)
    });
    close(client);
    let good = (0..60).filter(|round| {
        if round % 16 == 0 {
            sleep(3);
        }
        ask(server, *round)
    });
    say!("answered {}", good.count());
    close(server);
    say!("child: {}", wait_child(child));
}

fn both_ends_inherited() {
    let pair = connected();
    let pipe = pipe(0);
    let server = fork_child(|| {
        close(pair.client);
        serve_by_epoll(pair.server, pipe.0)
    });
    close(pair.server);
    let client = fork_child(|| {
        let set = epoll();
        epoll_add(set, pair.client, libc::EPOLLIN, 0);
        let mut good = 0;
        for round in 0..60 {
            send(pair.client, &[round], 0);
            epoll_wait(set, 1, 5000);
            let mut byte = [0];
            good += i32::from(recv(pair.client, &mut byte, libc::MSG_DONTWAIT).value == 1);
            if round % 16 == 0 {
                sleep(3);
            }
        }
        good
    });
    close(pair.client);
    say!("client: {}, server: {}", wait_child(client), wait_child(server));
}

fn client_killed() {
    let (listening, addr) = listener();
    let (pipe, done) = (pipe(0), pipe(0));
    let client = fork_child(|| {
        let conn = dial(&addr);
        let good = (0..10).filter(|round| ask(conn, *round)).count();
        write(done.1, &[good as u8]);
        sleep(10_000);
        0
    });
    let server = accept(listening).fd();
    let child = fork_child(|| {
        close(listening);
        serve_by_epoll(server, pipe.0)
    });
    close(server);
    close(listening);
    await_readable(done.0);
    kill(client, libc::SIGKILL);
    say!("client: {}, server: {}", wait_child(client), wait_child(child));
}

/// A handler forks while its thread waits: both go on waiting, and each has the number until it closes it.
fn in_a_handler_of_a_wait() {
    static CHILD: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn forks(_: libc::c_int) {
        if CHILD.load(Ordering::Relaxed) == -1 {
            // SAFETY: the child makes system calls only.
            CHILD.store(unsafe { libc::fork() }, Ordering::Relaxed);
        }
    }
    let pair = connected();
    handle(libc::SIGUSR1, forks, libc::SA_RESTART);
    let client = pair.client;
    let _ringer = ping_then(move || _ = send(client, b"ab", 0));
    let got = recv(pair.server, &mut [0; 1], 0).value;
    let child = CHILD.load(Ordering::Relaxed);
    if child == 0 {
        close(pair.client);
        send(pair.server, b"from the child", 0);
        exit_now(got as i32 - 1);
    }
    say!("child: {}", wait_child(child));
    say!("parent got {got}");
    show_send("still open", pair.server, b", from the parent", 0);
    sleep(50);
    show_recv("both", pair.client, 64, 0);
    close(pair.server);
    show_recv("the end", pair.client, 64, 0);
}

/// What another thread waits for belongs to the child by its number only: once that is closed, the child has nothing.
fn while_a_thread_waits() {
    for polls in [false, true] {
        let pair = connected();
        let server = pair.server;
        let waiter = std::thread::spawn(move || {
            if polls {
                poll_one(server, libc::POLLIN, -1);
            }
            recv(server, &mut [0; 8], 0).value
        });
        sleep(100);
        let child = fork_child(|| {
            close(pair.client);
            close(pair.server);
            sleep(1500);
            0
        });
        sleep(100);
        send(pair.client, b"x", 0);
        say!("polls {polls}, the thread got {}", waiter.join().expect("waiter"));
        close(pair.server);
        say!("the end is there before the child's: {}", poll_one(pair.client, libc::POLLIN, 700).0.value);
        say!("child: {}", wait_child(child));
        close(pair.client);
    }
}
