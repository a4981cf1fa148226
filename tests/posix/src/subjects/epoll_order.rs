//! epoll: the order of the ready list. Arrivals go to its end; a level-triggered descriptor that was told goes there too.

use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_order/rounds", rounds),
    solo("epoll_order/told_before_new", told_before_new),
    solo("epoll_order/one_at_a_time", one_at_a_time),
    solo("epoll_order/one_at_a_time_with_kernel", one_at_a_time_with_kernel),
    solo("epoll_order/added_when_ready", added_when_ready),
    solo("epoll_order/modified", modified),
    solo("epoll_order/edge", edge),
    solo("epoll_order/oneshot", oneshot),
    solo("epoll_order/ends", ends),
    solo("epoll_order/taken_and_new", taken_and_new),
    pair("epoll_order/while_waiting", waiting_server, ordered_client),
];

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const RDHUP: i32 = libc::EPOLLRDHUP;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;

/// So many connections in one set, with their numbers as data.
fn crowd(count: usize, events: i32) -> (i32, Vec<Connected>) {
    let (listening, addr) = listener();
    let pairs: Vec<Connected> = (0..count).map(|_| connect_to(listening, &addr)).collect();
    let ep = epoll();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_add(ep, pair.server, events, index as u64);
    }
    (ep, pairs)
}

/// One byte; it has arrived when this returns.
fn feed(pair: &Connected) {
    let before = fionread(pair.server);
    send(pair.client, b"x", 0);
    await_bytes(pair.server, before + 1);
}

fn drain(pair: &Connected) {
    recv(pair.server, &mut [0; 64], libc::MSG_DONTWAIT);
}

fn rounds() {
    let (ep, pairs) = crowd(40, IN);
    let mut seed = 7usize;
    for round in 0..12 {
        let mut fed = Vec::new();
        for _ in 0..1 + round % 5 {
            seed = (seed * 131 + 17) % 1009;
            feed(&pairs[seed % 40]);
            fed.push(seed % 40);
        }
        show_epoll_order(&format!("fed {fed:?}"), ep, 64);
        fed.iter().for_each(|index| drain(&pairs[*index]));
        if round % 3 == 0 {
            show_epoll_order("drained", ep, 64);
        }
    }
}

/// What was told and is still ready stands before what arrives afterwards.
fn told_before_new() {
    let (ep, pairs) = crowd(6, IN);
    feed(&pairs[4]);
    feed(&pairs[1]);
    show_epoll_order("two", ep, 64);
    feed(&pairs[0]);
    show_epoll_order("and one more", ep, 64);
    drain(&pairs[4]);
    feed(&pairs[5]);
    feed(&pairs[4]);
    show_epoll_order("the first again", ep, 64);
}

fn one_at_a_time() {
    let (ep, pairs) = crowd(5, IN);
    for index in [2, 0, 4, 1] {
        feed(&pairs[index]);
    }
    for round in 0..6 {
        show_epoll_order(&format!("round {round}"), ep, 1);
    }
    drain(&pairs[0]);
    feed(&pairs[3]);
    for round in 6..12 {
        show_epoll_order(&format!("round {round}"), ep, 1);
    }
}

/// Neither kind may starve the other. Which comes first is not compared.
fn one_at_a_time_with_kernel() {
    let (ep, pairs) = crowd(3, IN);
    pairs.iter().for_each(feed);
    let (read_end, write_end) = pipe(0);
    epoll_add(ep, read_end, IN, 3);
    write(write_end, b"x");
    let mut told = [0; 4];
    for _ in 0..40 {
        let (_, events) = epoll_wait(ep, 1, 0);
        events.iter().for_each(|(index, _)| told[*index as usize] += 1);
    }
    say!("each of them ten times: {told:?}");
}

fn added_when_ready() {
    let (ep, pairs) = crowd(4, IN);
    let late = connected();
    feed(&late);
    feed(&pairs[2]);
    epoll_add(ep, late.server, IN, 9);
    feed(&pairs[0]);
    show_epoll_order("in between", ep, 64);
    epoll_del(ep, late.server);
    epoll_add(ep, late.server, IN, 9);
    show_epoll_order("added anew", ep, 64);
}

fn modified() {
    let (ep, pairs) = crowd(4, IN);
    feed(&pairs[3]);
    feed(&pairs[1]);
    epoll_mod(ep, pairs[3].server, IN | OUT, 3);
    show_epoll_order("the ready one keeps its place", ep, 64);
    epoll_mod(ep, pairs[0].server, OUT, 0);
    feed(&pairs[2]);
    show_epoll_order("a new one goes to the end", ep, 64);
    epoll_mod(ep, pairs[1].server, OUT, 1);
    epoll_mod(ep, pairs[1].server, IN, 1);
    show_epoll_order("twice", ep, 64);
}

fn edge() {
    let (ep, pairs) = crowd(5, IN | ET);
    for index in [4, 2, 3] {
        feed(&pairs[index]);
    }
    show_epoll_order("first", ep, 2);
    feed(&pairs[4]);
    feed(&pairs[0]);
    show_epoll_order("the one left, and what came", ep, 64);
    show_epoll_order("nothing", ep, 64);
    feed(&pairs[2]);
    feed(&pairs[2]);
    feed(&pairs[1]);
    show_epoll_order("two came twice", ep, 64);
}

fn oneshot() {
    let (ep, pairs) = crowd(4, IN | ONESHOT);
    for index in [3, 0, 2] {
        feed(&pairs[index]);
    }
    show_epoll_order("first", ep, 64);
    feed(&pairs[1]);
    epoll_mod(ep, pairs[2].server, IN | ONESHOT, 2);
    epoll_mod(ep, pairs[3].server, IN | ONESHOT, 3);
    feed(&pairs[0]);
    show_epoll_order("one new, two re-armed", ep, 64);
}

fn ends() {
    let (ep, pairs) = crowd(6, IN | RDHUP);
    close(pairs[5].client);
    await_events(pairs[5].server, libc::POLLRDHUP);
    feed(&pairs[0]);
    shutdown(pairs[3].client, libc::SHUT_WR);
    await_events(pairs[3].server, libc::POLLRDHUP);
    abort(pairs[1].client);
    await_events(pairs[1].server, libc::POLLHUP);
    feed(&pairs[2]);
    show_epoll_order("all", ep, 64);
    show_epoll_order("all but two", ep, 4);
    show_epoll_order("the rest first", ep, 64);
}

/// A descriptor that is on the list keeps its place when it is read empty and gets new data.
fn taken_and_new() {
    let (ep, pairs) = crowd(4, IN);
    feed(&pairs[1]);
    feed(&pairs[3]);
    drain(&pairs[1]);
    feed(&pairs[2]);
    feed(&pairs[1]);
    show_epoll_order("before the first wait", ep, 64);
    pairs.iter().for_each(drain);
    feed(&pairs[0]);
    feed(&pairs[2]);
    show_epoll_order("after it", ep, 64);
    pairs.iter().for_each(drain);
    show_epoll_order("none", ep, 64);
    feed(&pairs[3]);
    feed(&pairs[0]);
    show_epoll_order("from an empty list", ep, 64);
}

const CROWD: usize = 14;
const ROUNDS: usize = 1500;
/// So many connections get a byte each in a round; the first three have just been in use.
const AT_ONCE: usize = 6;
const QUESTION: u8 = 0xff;
/// Before these, connections may be moved: then some are the kernel's, and some not.
const SETTLING: usize = 300;
/// On a busy machine Linux changes the order now and then, when the sender moves to another core.
const DISORDER_MAX: usize = 10;

/// The connection sends small messages without waiting for an acknowledgement of earlier ones.
fn at_once(fd: i32) -> i32 {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    fd
}

/// Sends on one connection after the other, while the server waits on all of them. It may still have the one on its list
/// that it answered last, so that one comes first.
fn ordered_client(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let fds: Vec<i32> = (0..CROWD).map(|_| at_once(dial(&addr))).collect();
    for round in 0..ROUNDS {
        let turn = |step: usize| fds[(round * 3 + step * 5) % CROWD];
        for step in [1, 2, 0] {
            send(turn(step), &[QUESTION], 0);
            recv(turn(step), &mut [0], 0);
        }
        (0..AT_ONCE).for_each(|step| _ = send(turn(step), &[step as u8], 0));
        recv(turn(0), &mut [0], 0);
    }
    close_all(&fds);
}

/// Reads each byte when it is told. In how many rounds do they come as they were sent?
fn waiting_server(role: &mut Role) {
    let (listening, addr) = listener_with(64);
    role.tell_port(&addr);
    let ep = epoll();
    let fds: Vec<i32> = (0..CROWD).map(|_| at_once(accept(listening).fd())).collect();
    fds.iter().for_each(|fd| epoll_add(ep, *fd, IN, *fd as u64));
    let (mut read, mut rounds, mut disorder) = (Vec::new(), 0, 0);
    while rounds < ROUNDS {
        let (_, events) = epoll_wait(ep, 64, 5000);
        for fd in events.iter().map(|(fd, _)| *fd as i32) {
            let mut byte = [0];
            match recv(fd, &mut byte, libc::MSG_DONTWAIT).value {
                1 if byte[0] == QUESTION => _ = send(fd, b"a", 0),
                1 => read.push((byte[0], fd)),
                _ => {}
            }
        }
        if read.len() == AT_ONCE {
            disorder += usize::from(rounds >= SETTLING && !read.is_sorted());
            rounds += 1;
            let first = read.iter().find(|(step, _)| *step == 0);
            first.inspect(|(_, fd)| _ = send(*fd, b"a", 0));
            read.clear();
        }
    }
    say!("in order: {}", disorder < DISORDER_MAX);
    close_all(&fds);
}
