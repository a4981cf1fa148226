//! epoll: a set whose waits end by a timer again and again, and then by a connection; and what others see of such a set.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_turns/timer_and_connection", timer_and_connection),
    solo("epoll_turns/for_ever", for_ever),
    solo("epoll_turns/one_at_a_time", one_at_a_time),
    solo("epoll_turns/nothing_in_time", nothing_in_time),
    solo("epoll_turns/other_lookers", other_lookers),
    solo("epoll_turns/set_within_set", set_within_set),
    solo("epoll_turns/duplicate_of_set", duplicate_of_set),
    solo("epoll_turns/thread_comes", thread_comes),
    solo("epoll_turns/child_waits_too", child_waits_too),
];

pub(super) const IN: i32 = libc::EPOLLIN;
pub(super) const TIMER: u64 = 1;
pub(super) const CONNECTION: u64 = 2;
const SLOWLY: &[u8; 1] = b"s";

/// Waits on a set that its timer ends; how many it was that did, alone.
pub(super) fn by_timer(set: i32, timer: i32, count: u32) -> u32 {
    let mut told = 0;
    for _ in 0..count {
        set_timer(timer, 2);
        let (_, events) = epoll_wait(set, 4, 5000);
        told += u32::from(events == [(TIMER, IN as u32)]);
        read(timer, &mut [0; 8]);
    }
    told
}

/// A set with a timer, and a connection to a child that answers each byte 5 ms later, or 3 s, where it is asked to take its time.
struct Turns {
    set: i32,
    timer: i32,
    connection: i32,
    child: i32,
}

impl Turns {
    fn begin() -> Turns {
        let pair = connected();
        let child = fork_child(|| {
            close(pair.server);
            let mut asked = [0];
            while recv(pair.client, &mut asked, 0).value == 1 {
                sleep(if asked == *SLOWLY { 3000 } else { 5 });
                send(pair.client, b"a", 0);
            }
            0
        });
        close(pair.client);
        let connection = pair.server;
        let (set, timer) = (epoll(), timerfd(1000));
        epoll_add(set, connection, IN, CONNECTION);
        epoll_add(set, timer, IN, TIMER);
        Turns { set, timer, connection, child }
    }

    /// Waits that the timer ends.
    fn by_timer(&self, count: u32) {
        say!("by the timer: {}", by_timer(self.set, self.timer, count));
    }

    fn ask(&self) {
        send(self.connection, b"q", 0);
    }

    fn take(&self) {
        show("answer", recv(self.connection, &mut [0; 4], libc::MSG_DONTWAIT));
    }

    /// Waits that the connection ends.
    fn by_connection(&self, count: u32) {
        let mut told = 0;
        for _ in 0..count {
            self.ask();
            let (_, events) = epoll_wait(self.set, 4, 5000);
            told += u32::from(events == [(CONNECTION, IN as u32)]);
            recv(self.connection, &mut [0; 4], 0);
        }
        say!("by the connection: {told}");
    }

    fn end(self) {
        shutdown(self.connection, libc::SHUT_WR);
        show_epoll_within("end", self.set, 5000);
        say!("child: {}", wait_child(self.child));
    }
}

fn timer_and_connection() {
    let turns = Turns::begin();
    for _ in 0..2 {
        turns.by_timer(20);
        turns.by_connection(12);
    }
    turns.by_timer(20);
    turns.ask();
    set_timer(turns.timer, 1);
    sleep(30);
    show_epoll("both", turns.set);
    read(turns.timer, &mut [0; 8]);
    turns.take();
    turns.end();
}

/// The process has nothing to do any more when the answer comes: only that can end the wait.
fn for_ever() {
    let turns = Turns::begin();
    turns.by_timer(20);
    send(turns.connection, SLOWLY, 0);
    show_epoll_within("answered", turns.set, -1);
    turns.take();
    turns.end();
}

/// There is room for one event, and both have one.
fn one_at_a_time() {
    let turns = Turns::begin();
    turns.by_timer(20);
    turns.ask();
    set_timer(turns.timer, 1);
    sleep(30);
    let mut told = [0; 3];
    for _ in 0..40 {
        let (_, events) = epoll_wait(turns.set, 1, 5000);
        events.iter().for_each(|(data, _)| told[*data as usize] += 1);
    }
    say!("both in turn: {}", told[1] > 0 && told[2] > 0 && told[1] + told[2] == 40);
    read(turns.timer, &mut [0; 8]);
    turns.take();
    turns.by_connection(2);
    turns.end();
}

fn nothing_in_time() {
    let turns = Turns::begin();
    turns.by_timer(20);
    show_epoll("at once", turns.set);
    show_epoll_within("within 20 ms", turns.set, 20);
    turns.by_connection(1);
    show_epoll("at once", turns.set);
    show_epoll_within("within 20 ms", turns.set, 20);
    turns.end();
}

fn other_lookers() {
    let turns = Turns::begin();
    turns.by_timer(20);
    show_poll("idle", turns.set);
    turns.ask();
    show_poll_for("answered", turns.set, libc::POLLIN, 5000);
    show_epoll("answered", turns.set);
    turns.take();
    show_poll("taken", turns.set);
    show_select("taken", &[("set", turns.set)], 0);
    turns.by_timer(20);
    turns.by_connection(2);
    turns.end();
}

fn set_within_set() {
    let turns = Turns::begin();
    turns.by_timer(20);
    let outer = epoll();
    epoll_add(outer, turns.set, IN, 7);
    show_epoll("outer, idle", outer);
    turns.ask();
    show_epoll_within("outer, answered", outer, 5000);
    show_epoll("inner, answered", turns.set);
    turns.take();
    show_epoll("outer, taken", outer);
    turns.by_timer(20);
    turns.by_connection(2);
    // And one that is nested there.
    let inner = epoll();
    epoll_add(turns.set, inner, IN, 8);
    turns.by_connection(2);
    turns.end();
}

fn duplicate_of_set() {
    let mut turns = Turns::begin();
    turns.by_timer(20);
    let other = dup(turns.set).fd();
    close(turns.set);
    turns.set = other;
    turns.by_connection(2);
    turns.by_timer(20);
    turns.by_connection(2);
    turns.end();
}

fn thread_comes() {
    let turns = Turns::begin();
    turns.by_timer(20);
    let connection = turns.connection;
    let asker = thread::spawn(move || {
        sleep(20);
        send(connection, b"q", 0);
    });
    show_epoll_within("asked by a thread", turns.set, 5000);
    let _ = asker.join();
    turns.take();
    turns.by_timer(20);
    turns.by_connection(2);
    turns.end();
}

/// The child has the set too, and is told of what comes then.
fn child_waits_too() {
    let turns = Turns::begin();
    turns.by_timer(20);
    let child = fork_child(|| {
        show_epoll_within("nothing for the child", turns.set, 20);
        turns.by_timer(12);
        turns.by_connection(4);
        0
    });
    say!("child: {}", wait_child(child));
    turns.by_timer(20);
    turns.by_connection(2);
    turns.end();
}
