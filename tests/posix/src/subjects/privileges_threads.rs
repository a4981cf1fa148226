//! Processes with several threads that give rights up, in the middle of whatever the others do.

use super::privileges::{NOBODY, drop_rights, give_up_capabilities, receive_all, segments};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("privileges/threads_asleep", threads_asleep),
    solo("privileges/threads_each_call", threads_each_call),
    solo("privileges/threads_busy", threads_busy),
    solo("privileges/threads_bulk", threads_bulk),
    solo("privileges/threads_nothing_is_left", threads_nothing_is_left),
    solo("privileges/threads_twice", threads_twice),
    solo("privileges/threads_of_a_parent", threads_of_a_parent),
    solo("privileges/threads_connecting", threads_connecting),
    solo("privileges/threads_at_the_end", threads_at_the_end),
    solo("privileges/threads_names", threads_names),
];

/// A call that a signal of libc's own may end is made again.
fn again(mut call: impl FnMut() -> Ret) -> Ret {
    loop {
        let done = call();
        if done.errno != libc::EINTR {
            return done;
        }
    }
}

/// What it came to is shown, or is no matter.
fn only(_: Ret) {}

/// Says what one call of recv has got.
fn recv_and_say(name: &'static str, fd: i32) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 32];
        let got = again(|| recv(fd, &mut buffer, 0));
        send(fd, format!("{name} {}", String::from_utf8_lossy(&buffer[..got.count()])).as_bytes(), 0);
    })
}

fn wait_all(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

struct Asleep {
    received: Connected,
    polled: Connected,
    watched: Connected,
    full: Connected,
    listening: i32,
    addr: Addr,
}

/// More than a connection holds.
const MUCH: usize = 12 << 20;

impl Asleep {
    fn new() -> Asleep {
        let (listening, addr) = listener();
        Asleep {
            received: connected(),
            polled: connected(),
            watched: connected(),
            full: connected(),
            listening,
            addr,
        }
    }

    /// The child's threads: in recv, poll, epoll_wait, accept and send.
    fn threads(&self) -> Vec<JoinHandle<()>> {
        let (received, polled, watched) = (self.received.server, self.polled.server, self.watched.server);
        let (full, listening) = (self.full.server, self.listening);
        vec![
            recv_and_say("received", received),
            thread::spawn(move || {
                let mut fds = [libc::pollfd { fd: polled, events: libc::POLLIN, revents: 0 }];
                again(|| call!(libc::poll(fds.as_mut_ptr(), 1, -1)));
                let text = format!("polled {:#x} {:?}", fds[0].revents, receive_all(polled, 5));
                send(polled, text.as_bytes(), 0);
            }),
            thread::spawn(move || {
                let ep = call!(libc::epoll_create1(0)).value as i32;
                epoll_add(ep, watched, libc::EPOLLIN, 7);
                let mut event = [libc::epoll_event { events: 0, u64: 0 }; 4];
                again(|| call!(libc::epoll_wait(ep, event.as_mut_ptr(), 4, -1)));
                let data = { event[0].u64 };
                let text = format!("watched {data} {:?}", receive_all(watched, 5));
                send(watched, text.as_bytes(), 0);
            }),
            thread::spawn(move || {
                let accepted =
                    again(|| call!(libc::accept(listening, std::ptr::null_mut(), std::ptr::null_mut())));
                send(accepted.value as i32, b"accepted", 0);
            }),
            thread::spawn(move || {
                let pattern: Vec<u8> = (0..MUCH).map(|at| (at / 7) as u8).collect();
                let mut at = 0;
                while at < MUCH {
                    let sent = again(|| send(full, &pattern[at..], 0));
                    if sent.value <= 0 {
                        return;
                    }
                    at += sent.count();
                }
            }),
        ]
    }

    /// The parent talks to each.
    fn talk(&self) {
        for pair in [&self.received, &self.polled, &self.watched] {
            write(pair.client, b"hello");
            show_recv("answer", pair.client, 64, 0);
        }
        let client = dial(&self.addr);
        show_recv("answer", client, 64, 0);
        close(client);
        let all = receive_all(self.full.client, MUCH);
        let is_right = all.iter().enumerate().all(|(at, byte)| *byte == (at / 7) as u8);
        say!("all {} right {is_right}", all.len());
    }

    fn close(&self) {
        for pair in [&self.received, &self.polled, &self.watched, &self.full] {
            close_all(&[pair.client, pair.server]);
        }
        close(self.listening);
    }
}

/// A child's threads sleep while it makes the call, or are just about to.
fn asleep_while(pause_ms: u64, drop: impl FnOnce()) {
    let asleep = Asleep::new();
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        let threads = asleep.threads();
        pause(pause_ms);
        drop();
        write(there, b"x");
        wait_all(threads);
        0
    });
    read(here, &mut [0]);
    asleep.talk();
    say!("child: {}", wait_child(child));
    asleep.close();
}

fn threads_asleep() {
    for pause_ms in [60, 0, 1, 2] {
        asleep_while(pause_ms, drop_rights);
    }
}

fn threads_each_call() {
    asleep_while(30, || only(show("setgid", call!(libc::setgid(NOBODY)))));
    asleep_while(30, || only(show("setuid", call!(libc::setuid(NOBODY)))));
    asleep_while(30, || only(show("capset", give_up_capabilities(!0))));
    asleep_while(30, || only(show("prctl", call!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))));
    asleep_while(30, || {
        // Everything is allowed, for all threads.
        let allow = libc::sock_filter { code: 6, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
        let mut filter = [allow];
        let program = libc::sock_fprog { len: 1, filter: filter.as_mut_ptr() };
        call!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        show(
            "seccomp",
            call!(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program)),
        );
    });
}

/// Threads that echo all the time do so to the end.
fn threads_busy() {
    const THREADS: usize = 4;
    const ROUNDS: u32 = 3000;
    let pairs: Vec<Connected> = (0..THREADS).map(|_| connected()).collect();
    let child = fork_child(|| {
        let echo = |fd| {
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                loop {
                    let got = again(|| recv(fd, &mut buffer, 0));
                    if got.value <= 0 {
                        return;
                    }
                    send(fd, &buffer[..got.count()], 0);
                }
            })
        };
        let threads: Vec<_> = pairs.iter().map(|pair| echo(pair.server)).collect();
        pairs.iter().for_each(|pair| only(close(pair.client)));
        pause(20);
        drop_rights();
        wait_all(threads);
        0
    });
    pairs.iter().for_each(|pair| only(close(pair.server)));
    let asks: Vec<_> = pairs
        .iter()
        .map(|pair| {
            let fd = pair.client;
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let data = vec![round as u8; 1 + (round as usize * 37) % 3000];
                    send(fd, &data, 0);
                    if receive_all(fd, data.len()) != data {
                        return round;
                    }
                }
                ROUNDS
            })
        })
        .collect();
    for asks in asks {
        say!("rounds {}", asks.join().unwrap());
    }
    pairs.iter().for_each(|pair| only(close(pair.client)));
    say!("child: {}", wait_child(child));
}

/// Streams in both directions.
fn threads_bulk() {
    for pause_ms in [1, 5, 11] {
        let (up, down) = (connected(), connected());
        let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
        let child = fork_child(|| {
            close_all(&[up.client, down.client]);
            let (from, to) = (up.server, down.server);
            let threads = vec![
                thread::spawn(move || {
                    crate::bulk::send_pattern(to, 8_000_000, &[70_000]);
                }),
                thread::spawn(move || {
                    let all = crate::bulk::receive_pattern(from, 8_000_000, &[65_536]);
                    // Told when the parent has told what it has.
                    read(there, &mut [0]);
                    say!("child: {} bytes, intact {}", all.bytes, all.intact);
                }),
            ];
            pause(pause_ms);
            drop_rights();
            wait_all(threads);
            0
        });
        close_all(&[up.server, down.server]);
        let to = up.client;
        let sender = thread::spawn(move || crate::bulk::send_pattern(to, 8_000_000, &[50_000]));
        let all = crate::bulk::receive_pattern(down.client, 8_000_000, &[65_536]);
        say!("parent: {} bytes, intact {}", all.bytes, all.intact);
        say!("sent {}", sender.join().unwrap());
        write(here, b"x");
        close_all(&[up.client, down.client, here, there]);
        say!("child: {}", wait_child(child));
    }
}

/// Of the parent's memory and files for sockets the child has none, whatever its threads do.
fn threads_nothing_is_left() {
    let (pair, other) = (connected(), connected());
    write(other.client, b"a secret");
    let before = segments();
    let child = fork_child(|| {
        close_all(&[pair.client, other.client, other.server]);
        let threads = vec![recv_and_say("child", pair.server)];
        pause(20);
        drop_rights();
        // SAFETY: no arguments.
        let is_other = unsafe { libc::getuid() } == NOBODY;
        say!("left: {:?}", if is_other { before.intersection(&segments()).count() } else { 0 });
        write(pair.server, b"dropped");
        wait_all(threads);
        0
    });
    show_recv("client", pair.client, 32, 0);
    write(pair.client, b"hello");
    show_recv("client", pair.client, 32, 0);
    show_recv("other", other.server, 32, 0);
    say!("child: {}", wait_child(child));
    write(other.client, b"after it");
    show_recv("other", other.server, 32, 0);
}

/// Two threads do it at the same time; and new sockets, children and programs after it.
fn threads_twice() {
    let pair = connected();
    let (listening, addr) = listener();
    let child = fork_child(|| {
        // The program after it would wait for the end of its own copy.
        close(pair.client);
        let one = thread::spawn(|| only(call!(libc::setresgid(NOBODY, NOBODY, NOBODY))));
        drop_rights();
        one.join().unwrap();
        drop_rights();
        let client = dial(&addr);
        send(client, b"new", 0);
        let inner = fork_child(|| {
            drop_rights();
            write(client, b" and of a child");
            0
        });
        say!("inner: {}", wait_child(inner));
        write(pair.server, b"done");
        super::exec::exec_helper("upper", &[pair.server])
    });
    show_recv("client", pair.client, 32, 0);
    let accepted = call!(libc::accept(listening, std::ptr::null_mut(), std::ptr::null_mut())).value as i32;
    say!("{:?}", String::from_utf8_lossy(&receive_all(accepted, 18)));
    close(pair.server);
    let answer = super::exec::ask(pair.client, "by another program");
    close(pair.client);
    say!("child: {}", wait_child(child));
    say!("answer {answer}");
}

/// The parent has the threads, and its child goes on as it was.
fn threads_of_a_parent() {
    let (pair, own) = (connected(), connected());
    let child = fork_child(|| {
        close_all(&[pair.client, own.client, own.server]);
        let mut buffer = [0; 64];
        loop {
            let got = read(pair.server, &mut buffer);
            if got.value <= 0 {
                return got.value as i32;
            }
            write(pair.server, &buffer[..got.count()]);
        }
    });
    close(pair.server);
    let threads = vec![recv_and_say("parent", own.server)];
    pause(20);
    drop_rights();
    for round in 0..20u8 {
        write(pair.client, &[round; 50]);
        say!("same {}", receive_all(pair.client, 50) == [round; 50]);
    }
    write(own.client, b"hello");
    show_recv("own", own.client, 32, 0);
    wait_all(threads);
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
}

/// Connections that are made and accepted meanwhile.
fn threads_connecting() {
    let (listening, addr) = listener();
    let child = fork_child(|| {
        let one = || {
            let client = dial(&addr);
            send(client, b"ping", 0);
            let is_right = receive_all(client, 4) == b"ping";
            close(client);
            is_right
        };
        let right = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..3).map(|_| scope.spawn(|| (0..150).filter(|_| one()).count())).collect();
            pause(10);
            drop_rights();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        say!("right {right}");
        0
    });
    for _ in 0..450 {
        let accepted =
            again(|| call!(libc::accept(listening, std::ptr::null_mut(), std::ptr::null_mut()))).value as i32;
        write(accepted, &receive_all(accepted, 4));
        close(accepted);
    }
    say!("child: {}", wait_child(child));
}

/// Sends what came back, on all connections, until nobody has the other ends.
fn echo_all(listening: i32) {
    let echo = |fd| {
        let mut buffer = [0; 64];
        while let Some(got) =
            usize::try_from(again(|| recv(fd, &mut buffer, 0)).value).ok().filter(|got| *got > 0)
        {
            send(fd, &buffer[..got], libc::MSG_NOSIGNAL);
        }
        close(fd);
    };
    loop {
        let accepted = again(|| call!(libc::accept(listening, std::ptr::null_mut(), std::ptr::null_mut())));
        if accepted.value < 0 {
            return;
        }
        thread::spawn(move || echo(accepted.value as i32));
    }
}

/// Whether an echo comes back whole.
fn is_answered(fd: i32, text: &[u8; 4]) -> bool {
    send(fd, text, libc::MSG_NOSIGNAL);
    receive_all(fd, 4) == text
}

/// Threads connect up to the last microsecond of a drop, and keep what they have made: each connection goes on afterwards,
/// and nothing of the parent's memory is left.
fn threads_at_the_end() {
    const ROUNDS: u64 = 5;
    const THREADS: usize = 3;
    const KEPT: usize = 2;
    let (listening, addr) = listener_with(128);
    let echoes = thread::spawn(move || echo_all(listening));
    let (mut lost, mut left) = (0, 0);
    for round in 0..ROUNDS {
        let before = segments();
        let child = fork_child(|| {
            let is_over = AtomicBool::new(false);
            let connect = || {
                let mut kept = VecDeque::new();
                let mut wrong = 0;
                let mut more = 2;
                while more > 0 {
                    // Two begin after the drop has ended.
                    more -= i32::from(is_over.load(Ordering::Relaxed));
                    let fd = dial(&addr);
                    // In every other round one that has not been used yet may be what is handed over.
                    let asked = if round % 2 == 0 { Some(fd) } else { kept.back().copied() };
                    wrong += u8::from(asked.is_some_and(|fd| !is_answered(fd, b"ping")));
                    kept.push_back(fd);
                    if kept.len() > KEPT {
                        kept.pop_front().into_iter().for_each(|fd| only(close(fd)));
                    }
                }
                wrong += kept.iter().filter(|fd| !is_answered(**fd, b"pong")).count() as u8;
                kept.into_iter().for_each(|fd| only(close(fd)));
                wrong
            };
            thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(connect)).collect();
                let end = Instant::now() + Duration::from_micros(300 + round * 1013 % 2900);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                drop_rights();
                // SAFETY: no arguments.
                let is_other = unsafe { libc::getuid() } == NOBODY;
                let left = if is_other { before.intersection(&segments()).count() } else { 0 };
                is_over.store(true, Ordering::Relaxed);
                let wrong: u8 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
                i32::from(wrong) + if left > 0 { 100 } else { 0 }
            })
        });
        let said = wait_child(child);
        match said.strip_prefix("exit ").and_then(|code| code.parse::<i32>().ok()) {
            Some(code) => (lost, left) = (lost + code % 100, left + code / 100),
            None => say!("child: {said}"),
        }
    }
    shutdown(listening, libc::SHUT_RDWR);
    echoes.join().unwrap();
    say!("lost {lost}, left {left}");
}

/// Names, flags and options of what is kept.
fn threads_names() {
    let pair = connected();
    let (own, peer) = (getsockname(pair.server).1.port(), getpeername(pair.server).1.port());
    let child = fork_child(|| {
        close(pair.client);
        set_nonblocking(pair.server, true);
        let copy = call!(libc::fcntl(pair.server, libc::F_DUPFD_CLOEXEC, 40)).value as i32;
        let sleeper = thread::spawn(|| pause(200));
        drop_rights();
        let now = |fd| (getsockname(fd).1.port(), getpeername(fd).1.port());
        say!("same names: {} {}", now(pair.server) == (own, peer), now(copy) == (own, peer));
        show("flags", call!(libc::fcntl(copy, libc::F_GETFL)));
        show("number's flags", call!(libc::fcntl(copy, libc::F_GETFD)));
        show("nothing yet", recv(pair.server, &mut [0], 0));
        send(copy, b"by the copy", 0);
        close(copy);
        sleeper.join().unwrap();
        0
    });
    show_recv("client", pair.client, 32, 0);
    say!("child: {}", wait_child(child));
}
