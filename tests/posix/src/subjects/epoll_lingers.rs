//! epoll: a process with one thread whose waits something of the kernel's ends, again and again; then something of a socket's happens while the process
//! runs, not while it waits. And what may happen to such a process in between.

use std::sync::atomic::{AtomicI32, Ordering};

use super::epoll_turns::{CONNECTION, IN, TIMER, by_timer};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_lingers/answers_between", answers_between),
    solo("epoll_lingers/after_a_pause", after_a_pause),
    solo("epoll_lingers/interrupted", interrupted),
    solo("epoll_lingers/closed_by_handler", closed_by_handler),
    solo("epoll_lingers/another_set", another_set),
    solo("epoll_lingers/connects_between", connects_between),
    solo("epoll_lingers/busy_sibling", busy_sibling),
];

const LISTENER: u64 = 3;

/// A set with a timer and a connection; and the connection's other end.
fn set_with_connection() -> (i32, i32, i32, i32) {
    let pair = connected();
    let (set, timer) = (epoll(), timerfd(1000));
    epoll_add(set, pair.server, IN, CONNECTION);
    epoll_add(set, timer, IN, TIMER);
    (set, timer, pair.server, pair.client)
}

fn answers_between() {
    let (set, timer, server, client) = set_with_connection();
    for _ in 0..3 {
        say!("by the timer: {}", by_timer(set, timer, 12));
        let child = fork_child(|| send(client, b"x", 0).value as i32 - 1);
        say!("child: {}", wait_child(child));
        show_epoll("sent while it ran", set);
        recv(server, &mut [0; 4], 0);
        say!("by the timer: {}", by_timer(set, timer, 12));
        // In the same process.
        send(client, b"y", 0);
        show_epoll_within("sent by itself", set, 5000);
        recv(server, &mut [0; 4], 0);
        show_epoll("nothing left", set);
    }
    close(client);
    say!("by the timer: {}", by_timer(set, timer, 1));
    show_epoll_within("closed", set, 5000);
}

/// The process has nothing left to look after by then.
fn after_a_pause() {
    let (set, timer, server, client) = set_with_connection();
    say!("by the timer: {}", by_timer(set, timer, 12));
    sleep(13_000);
    say!("by the timer: {}", by_timer(set, timer, 12));
    let child = fork_child(|| {
        sleep(300);
        send(client, b"x", 0).value as i32 - 1
    });
    say!("by the timer: {}", by_timer(set, timer, 12));
    show_epoll_within("for ever", set, -1);
    show("got", recv(server, &mut [0; 4], 0));
    say!("child: {}", wait_child(child));
    say!("by the timer: {}", by_timer(set, timer, 12));
    show_epoll_within("not for ever", set, 50);
}

fn interrupted() {
    let (set, timer, server, client) = set_with_connection();
    count_signal(libc::SIGALRM, libc::SA_RESTART);
    for _ in 0..2 {
        say!("by the timer: {}", by_timer(set, timer, 12));
        alarm(1);
        show_epoll_within("interrupted", set, 5000);
        say!("signals: {}", taken(libc::SIGALRM));
    }
    say!("by the timer: {}", by_timer(set, timer, 12));
    send(client, b"x", 0);
    show_epoll_within("sent", set, 5000);
    show("got", recv(server, &mut [0; 4], 0));
}

static SET: AtomicI32 = AtomicI32::new(-1);

extern "C" fn close_set(_: i32) {
    close(SET.load(Ordering::Relaxed));
}

fn closed_by_handler() {
    let (set, timer, server, client) = set_with_connection();
    SET.store(set, Ordering::Relaxed);
    handle(libc::SIGALRM, close_set, 0);
    say!("by the timer: {}", by_timer(set, timer, 12));
    alarm(1);
    show_epoll_within("closed in a handler", set, 5000);
    show_epoll_within("no set any more", set, 10);
    let set = epoll();
    epoll_add(set, server, IN, CONNECTION);
    epoll_add(set, timer, IN, TIMER);
    say!("by the timer: {}", by_timer(set, timer, 12));
    send(client, b"x", 0);
    show_epoll_within("sent", set, 5000);
}

/// It waits in one set and then in another, and in poll.
fn another_set() {
    let (set, timer, server, client) = set_with_connection();
    let (other, other_timer, ..) = set_with_connection();
    for _ in 0..3 {
        say!("by the timers: {} {}", by_timer(set, timer, 12), by_timer(other, other_timer, 12));
        let child = fork_child(|| {
            sleep(30);
            send(client, b"x", 0).value as i32 - 1
        });
        show_poll_for("poll", server, libc::POLLIN, 5000);
        sleep(20);
        show_epoll("set", set);
        show_epoll("other set", other);
        recv(server, &mut [0; 4], 0);
        say!("child: {}", wait_child(child));
    }
}

/// Connections come while a server runs, and while it waits.
fn connects_between() {
    let (listening, addr) = listener();
    let (set, timer) = (epoll(), timerfd(1000));
    epoll_add(set, listening, IN, LISTENER);
    epoll_add(set, timer, IN, TIMER);
    for pause in [0, 30] {
        say!("by the timer: {}", by_timer(set, timer, 12));
        let child = fork_child(|| {
            sleep(pause);
            let client = dial(&addr);
            i32::from(recv(client, &mut [0; 4], 0).value != 1)
        });
        if pause == 0 {
            sleep(60);
        }
        show_epoll_within("connected", set, 5000);
        let server = accept(listening).fd();
        epoll_add(set, server, IN, CONNECTION);
        say!("by the timer: {}", by_timer(set, timer, 12));
        send(server, b"x", 0);
        show_epoll_within("its end", set, 5000);
        close(server);
        say!("child: {}", wait_child(child));
    }
}

/// One of two servers computes, after waits that a timer has ended: it has no time, and the other one gets what comes.
fn busy_sibling() {
    let (listening, addr) = listener();
    let (ready, is_ready) = pipe(0);
    let serve = |is_busy: bool| {
        fork_child(|| {
            let (set, timer) = (epoll(), timerfd(1000));
            epoll_add(set, listening, IN, LISTENER);
            epoll_add(set, timer, IN, TIMER);
            by_timer(set, timer, 40);
            write(is_ready, b"r");
            if is_busy {
                sleep(3000);
                return 0;
            }
            (0..8)
                .filter(|_| epoll_wait(set, 4, 2500).0.value == 1 && close(accept(listening).fd()).value == 0)
                .count() as i32
        })
    };
    let servers = [serve(true), serve(false)];
    read(ready, &mut [0]);
    read(ready, &mut [0]);
    sleep(20);
    for _ in 0..8 {
        let client = dial(&addr);
        recv(client, &mut [0; 4], 0);
        close(client);
    }
    say!("served by the other: {}", wait_child(servers[1]));
    say!("busy: {}", wait_child(servers[0]));
}
