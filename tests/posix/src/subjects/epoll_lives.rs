//! epoll: how long sets and registrations live, who is woken, and deeper nesting.

use std::ptr;
use std::thread;

use crate::setup::*;
use crate::sys::whole_libc as libc;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_lives/dup_of_set", dup_of_set),
    solo("epoll_lives/set_closed_while_waiting", set_closed_while_waiting),
    solo("epoll_lives/socket_closed_while_waiting", socket_closed_while_waiting),
    solo("epoll_lives/dup_closed_first", dup_closed_first),
    solo("epoll_lives/number_replaced", number_replaced),
    solo("epoll_lives/number_used_again", number_used_again),
    solo("epoll_lives/poll_list_closed", poll_list_closed),
    solo("epoll_lives/select_closed", select_closed),
    solo("epoll_lives/three_levels_under_poll", three_levels_under_poll),
    solo("epoll_lives/outer_edge_every_arrival", outer_edge_every_arrival),
    solo("epoll_lives/outer_edge_mixed", outer_edge_mixed),
    solo("epoll_lives/inner_edge", inner_edge),
    solo("epoll_lives/inner_oneshot", inner_oneshot),
    solo("epoll_lives/inner_deleted", inner_deleted),
    solo("epoll_lives/inner_dup", inner_dup),
    solo("epoll_lives/deep_waiting", deep_waiting),
    solo("epoll_lives/nested_errors", nested_errors),
    solo("epoll_lives/same_data", same_data),
    solo("epoll_lives/pwait2_times", pwait2_times),
    solo("epoll_lives/pwait2_mask", pwait2_mask),
];

const IN: i32 = libc::EPOLLIN;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;
const EXCLUSIVE: i32 = libc::EPOLLEXCLUSIVE;

fn feed(pair: &Connected) {
    let before = fionread(pair.server);
    send(pair.client, b"x", 0);
    await_bytes(pair.server, before + 1);
}

fn take(pair: &Connected) {
    recv(pair.server, &mut [0; 64], libc::MSG_DONTWAIT);
}

/// The set lives as long as one number leads to it, and is one set.
fn dup_of_set() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let twin = dup(ep).fd();
    epoll_add(twin, other.server, IN, 2);
    feed(&pair);
    feed(&other);
    show_epoll("original", ep);
    show_epoll("twin", twin);
    let number = ep;
    close(ep);
    show_epoll("twin alone", twin);
    let (read_end, write_end) = pipe(0);
    say!("the number is used again: {}", read_end == number);
    epoll_add(twin, read_end, IN, 3);
    write(write_end, b"x");
    epoll_del(twin, pair.server);
    show_epoll("a pipe as well", twin);
    take(&other);
    show_epoll("only the pipe", twin);
    show("wait on the pipe", epoll_wait(number, 1, 0).0);
}

fn set_closed_while_waiting() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let waiter = thread::spawn(move || epoll_wait(ep, 4, 60).0);
    sleep(20);
    close(ep);
    show("waiter", waiter.join().expect("waiter"));
    feed(&pair);
    show("closed", epoll_wait(ep, 4, 0).0);
}

/// A closed socket leaves the set without a word.
fn socket_closed_while_waiting() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    epoll_add(ep, other.server, IN, 2);
    let waiter = thread::spawn(move || epoll_wait(ep, 4, 2000));
    sleep(20);
    close(pair.server);
    sleep(20);
    feed(&other);
    let (result, events) = waiter.join().expect("waiter");
    say!("waiter: {result} {events:?}");
}

fn dup_closed_first() {
    let pair = connected();
    let twin = dup(pair.server).fd();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    epoll_add(ep, twin, IN | ET, 2);
    feed(&pair);
    show_epoll("both", ep);
    close(twin);
    feed(&pair);
    show_epoll("the twin is closed", ep);
    close(pair.server);
    show_epoll("all closed", ep);
}

/// dup2 over a registered number takes the old socket out of the set.
fn number_replaced() {
    let (pair, other) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    feed(&other);
    let number = pair.server;
    dup2(other.server, number);
    show_epoll("replaced", ep);
    show("DEL", epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, number));
    show("ADD", epoll_ctl(ep, libc::EPOLL_CTL_ADD, number, IN, 2));
    show_epoll("the new one", ep);
}

/// A registration belongs to a number and to what it led to: while that lives on by another number, the number can be
/// registered for something else.
fn number_used_again() {
    let (pair, other) = (connected(), connected());
    let twin = dup(pair.server).fd();
    let ep = epoll();
    let number = pair.server;
    epoll_add(ep, number, IN, 1);
    close(number);
    show("MOD of a closed number", epoll_ctl(ep, libc::EPOLL_CTL_MOD, number, IN, 1));
    dup2(other.server, number);
    show("MOD before ADD", epoll_ctl(ep, libc::EPOLL_CTL_MOD, number, IN, 2));
    show("ADD", epoll_ctl(ep, libc::EPOLL_CTL_ADD, number, IN, 2));
    show("ADD again", epoll_ctl(ep, libc::EPOLL_CTL_ADD, number, IN, 3));
    send(pair.client, b"x", 0);
    await_bytes(twin, 1);
    show_epoll("the old one", ep);
    feed(&other);
    show_epoll("both", ep);
    show("DEL", epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, number));
    show_epoll("the old one", ep);
    close(twin);
    show_epoll("none", ep);
}

/// What poll was given counts, whoever closes it meanwhile.
fn poll_list_closed() {
    let (pair, other) = (connected(), connected());
    let (one, two) = (pair.server, other.server);
    let poller = thread::spawn(move || {
        let mut fds = [pollfd(one, libc::POLLIN), pollfd(two, libc::POLLIN)];
        let result = poll(&mut fds, 2000);
        say!("poll = {result} {} {}", poll_mask(fds[0].revents), poll_mask(fds[1].revents));
    });
    sleep(20);
    close(one);
    sleep(20);
    send(other.client, b"x", 0);
    let _ = poller.join();
    show_poll("the closed one", one);
}

fn select_closed() {
    let (pair, other) = (connected(), connected());
    let (one, two) = (pair.server, other.server);
    let selecting = thread::spawn(move || {
        let mut set = FdSet::of(&[one, two]);
        let result = select_read(two.max(one) + 1, Some(&mut set), 2000);
        say!("select = {result} {} {}", set.has(one), set.has(two));
    });
    sleep(20);
    close(one);
    sleep(20);
    send(other.client, b"x", 0);
    let _ = selecting.join();
}

fn three_levels_under_poll() {
    let pair = connected();
    let sets = [epoll(), epoll(), epoll()];
    epoll_add(sets[0], pair.server, IN, 1);
    epoll_add(sets[1], sets[0], IN, 2);
    epoll_add(sets[2], sets[1], IN, 3);
    show_poll("idle", sets[2]);
    feed(&pair);
    show_poll("ready", sets[2]);
    show_epoll("outermost", sets[2]);
    show_epoll("middle", sets[1]);
    take(&pair);
    show_poll("taken", sets[2]);
    let client = pair.client;
    let writer = thread::spawn(move || {
        sleep(20);
        send(client, b"y", 0);
    });
    show_poll_for("woken", sets[2], libc::POLLIN, 3000);
    let _ = writer.join();
    show_select("ready", &[("outer", sets[2])], 0);
}

/// An edge-triggered outer set hears of every arrival, read or not.
fn outer_edge_every_arrival() {
    let (pair, other) = (connected(), connected());
    let (outer, inner) = (epoll(), epoll());
    epoll_add(inner, pair.server, IN, 1);
    epoll_add(inner, other.server, IN, 2);
    epoll_add(outer, inner, IN | ET, 9);
    show_epoll("idle", outer);
    for round in 0..3 {
        feed(&pair);
        show_epoll(&format!("arrival {round}"), outer);
        show_epoll("told already", outer);
    }
    feed(&other);
    show_epoll("another one", outer);
    show_epoll("inner", inner);
    take(&pair);
    show_epoll("one taken", outer);
    feed(&pair);
    show_epoll("new data", outer);
    epoll_mod(inner, other.server, IN, 3);
    show_epoll("inner changed", outer);
}

/// Kernel descriptors and sockets in one inner set.
fn outer_edge_mixed() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    let (outer, inner) = (epoll(), epoll());
    epoll_add(inner, pair.server, IN, 1);
    epoll_add(inner, read_end, IN, 2);
    epoll_add(outer, inner, IN | ET, 9);
    write(write_end, b"x");
    show_epoll("pipe", outer);
    show_epoll("told already", outer);
    feed(&pair);
    show_epoll("socket", outer);
    show_epoll("told already", outer);
    show_epoll("inner", inner);
    read(read_end, &mut [0; 4]);
    take(&pair);
    show_epoll("inner, taken", inner);
    feed(&pair);
    write(write_end, b"x");
    show_epoll("both at once", outer);
}

fn inner_edge() {
    let pair = connected();
    let (outer, inner) = (epoll(), epoll());
    epoll_add(inner, pair.server, IN | ET, 1);
    epoll_add(outer, inner, IN, 9);
    feed(&pair);
    show_epoll("outer", outer);
    show_epoll("outer still", outer);
    show_epoll("inner", inner);
    show_epoll("outer, the edge is gone", outer);
    feed(&pair);
    show_epoll("outer, new data", outer);
    take(&pair);
    show_epoll("outer, taken", outer);
    show_epoll("inner, taken", inner);
}

fn inner_oneshot() {
    let pair = connected();
    let (outer, inner) = (epoll(), epoll());
    epoll_add(inner, pair.server, IN | ONESHOT, 1);
    epoll_add(outer, inner, IN | ONESHOT, 9);
    feed(&pair);
    show_epoll("outer", outer);
    show_epoll("outer, fired", outer);
    show_epoll("inner", inner);
    show_epoll("inner, fired", inner);
    epoll_mod(outer, inner, IN | ONESHOT, 9);
    show_epoll("outer, re-armed, inner not", outer);
    epoll_mod(inner, pair.server, IN | ONESHOT, 1);
    show_epoll("both re-armed", outer);
}

fn inner_deleted() {
    let pair = connected();
    let (outer, inner) = (epoll(), epoll());
    epoll_add(inner, pair.server, IN, 1);
    epoll_add(outer, inner, IN, 9);
    feed(&pair);
    epoll_del(outer, inner);
    show_epoll("deleted", outer);
    epoll_add(outer, inner, IN, 8);
    show_epoll("added again", outer);
    epoll_del(inner, pair.server);
    show_epoll("inner is empty", outer);
    epoll_add(inner, pair.server, IN, 1);
    show_epoll("inner is full", outer);
    close(inner);
    show_epoll("inner is closed", outer);
}

fn inner_dup() {
    let pair = connected();
    let (outer, inner) = (epoll(), epoll());
    epoll_add(inner, pair.server, IN, 1);
    epoll_add(outer, inner, IN, 9);
    let twin = dup(inner).fd();
    close(inner);
    feed(&pair);
    show_epoll("the registered number is closed", outer);
    show_epoll("inner", twin);
    close(twin);
    show_epoll("inner is gone", outer);
}

/// A sleep on the outermost of four sets ends with what arrives at the innermost.
fn deep_waiting() {
    let pair = connected();
    let sets: Vec<i32> = (0..4).map(|_| epoll()).collect();
    for two in sets.windows(2) {
        epoll_add(two[1], two[0], IN, 7);
    }
    let (outermost, client) = (sets[3], pair.client);
    epoll_add(sets[0], pair.server, IN, 1);
    for _ in 0..3 {
        let writer = thread::spawn(move || {
            sleep(15);
            send(client, b"y", 0);
        });
        show_epoll_within("woken", outermost, 3000);
        let _ = writer.join();
        take(&pair);
        show_epoll("taken", outermost);
    }
    let (read_end, write_end) = pipe(0);
    epoll_add(sets[1], read_end, IN, 2);
    let writer = thread::spawn(move || {
        sleep(15);
        write(write_end, b"y");
    });
    show_epoll_within("woken by a pipe", outermost, 3000);
    let _ = writer.join();
}

fn nested_errors() {
    let pair = connected();
    let (a, b, c) = (epoll(), epoll(), epoll());
    epoll_add(a, pair.server, IN, 1);
    show("a in itself", epoll_ctl(a, libc::EPOLL_CTL_ADD, a, IN, 1));
    show("a in b", epoll_ctl(b, libc::EPOLL_CTL_ADD, a, IN, 1));
    show("a in b again", epoll_ctl(b, libc::EPOLL_CTL_ADD, a, IN, 1));
    show("b in c", epoll_ctl(c, libc::EPOLL_CTL_ADD, b, IN, 1));
    show("c in a: a loop", epoll_ctl(a, libc::EPOLL_CTL_ADD, c, IN, 1));
    show("exclusively", epoll_ctl(c, libc::EPOLL_CTL_ADD, a, IN | EXCLUSIVE, 1));
    show("MOD of a stranger", epoll_ctl(b, libc::EPOLL_CTL_MOD, c, IN, 1));
    show("DEL of a stranger", epoll_ctl_null(b, libc::EPOLL_CTL_DEL, c));
    show("a socket as set", epoll_ctl(pair.server, libc::EPOLL_CTL_ADD, a, IN, 1));
    show("wait on a socket", epoll_wait(pair.server, 1, 0).0);
    show("the loop is gone", epoll_ctl_null(c, libc::EPOLL_CTL_DEL, b));
    show("c in a", epoll_ctl(a, libc::EPOLL_CTL_ADD, c, IN, 1));
}

/// Registrations are told apart by their numbers, not by the program's data. Between two looks there is a pause, since
/// beside ready sockets of ours the kernel's descriptors are asked every ten microseconds only.
fn same_data() {
    let (listening, addr) = listener();
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    let inner = epoll();
    epoll_add(inner, pair.server, IN, 7);
    let ep = epoll();
    for fd in [listening, read_end, inner, pair.server] {
        epoll_add(ep, fd, IN, 7);
    }
    show_epoll("idle", ep);
    let _client = dial(&addr);
    show_epoll("a connection", ep);
    write(write_end, b"x");
    sleep(1);
    show_epoll("and a pipe", ep);
    feed(&pair);
    sleep(1);
    show_epoll("and a socket, in two sets", ep);
    accept(listening);
    read(read_end, &mut [0; 4]);
    show_epoll("socket and inner set", ep);
}

fn pwait2(ep: i32, seconds: i64, nanoseconds: i64, mask: Option<&libc::sigset_t>) -> Ret {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let mask = mask.map_or(ptr::null(), ptr::from_ref);
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    call!(libc::epoll_pwait2(ep, &raw mut event, 1, &raw const time, mask))
}

fn pwait2_times() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    show("none", pwait2(ep, 0, 0, None));
    show("a nanosecond", pwait2(ep, 0, 1, None));
    show("half a millisecond", pwait2(ep, 0, 500_000, None));
    show("too many nanoseconds", pwait2(ep, 0, 1_000_000_000, None));
    show("negative nanoseconds", pwait2(ep, 0, -1, None));
    show("negative seconds", pwait2(ep, -1, 0, None));
    feed(&pair);
    show("ready, none", pwait2(ep, 0, 0, None));
    show("ready, a second", pwait2(ep, 1, 0, None));
    show("ready, too many nanoseconds", pwait2(ep, 0, 1_000_000_000, None));
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    show("ready, for ever", call!(libc::epoll_pwait2(ep, &raw mut event, 1, ptr::null(), ptr::null())));
    show("no room", call!(libc::epoll_pwait2(ep, &raw mut event, 0, ptr::null(), ptr::null())));
}

/// The mask holds during the wait: a pending signal that it lets through ends it, if nothing is ready.
fn pwait2_mask() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    count_signal(libc::SIGUSR1, 0);
    block_signal(libc::SIGUSR1, true);
    kill(getpid(), libc::SIGUSR1);
    let (all, none) = (signal_set(&[libc::SIGUSR1]), signal_set(&[]));
    show("blocked", pwait2(ep, 0, 20_000_000, Some(&all)));
    show("no mask", pwait2(ep, 0, 20_000_000, None));
    show_taken(libc::SIGUSR1);
    show("let through, no wait", pwait2(ep, 0, 0, Some(&none)));
    show_taken(libc::SIGUSR1);
    show("let through", pwait2(ep, 1, 0, Some(&none)));
    show_taken(libc::SIGUSR1);
    kill(getpid(), libc::SIGUSR1);
    feed(&pair);
    show("let through, but ready", pwait2(ep, 1, 0, Some(&none)));
    show_taken(libc::SIGUSR1);
    take(&pair);
    show("let through", pwait2(ep, 1, 0, Some(&none)));
    show_taken(libc::SIGUSR1);
}
