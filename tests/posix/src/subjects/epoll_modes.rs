//! epoll: edge-triggered, one-shot, exclusive and nested.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_edge/new_data", new_data),
    solo("epoll_edge/partial_read", partial_read),
    solo("epoll_edge/ready_when_added", ready_when_added),
    solo("epoll_edge/modify_rearms", modify_rearms),
    solo("epoll_edge/writable", writable),
    solo("epoll_edge/write_edge_after_drain", write_edge_after_drain),
    solo("epoll_edge/in_and_out", in_and_out),
    solo("epoll_edge/end_of_stream", end_of_stream),
    solo("epoll_edge/reset", reset),
    solo("epoll_edge/listener", of_a_listener),
    solo("epoll_edge/connecting", connecting),
    solo("epoll_edge/not_drained_then_more", not_drained_then_more),
    solo("epoll_edge/read_to_eagain", read_to_eagain),
    solo("epoll_edge/half_close_rdhup", half_close_rdhup),
    solo("epoll_edge/two_sets", two_sets),
    solo("epoll_edge/pump", pump),
    solo("epoll_oneshot/once", once),
    solo("epoll_oneshot/rearm", rearm),
    solo("epoll_oneshot/with_edge", with_edge),
    solo("epoll_oneshot/threads", oneshot_threads),
    solo("epoll_exclusive/rules", exclusive_rules),
    solo("epoll_ctl/del_ignores_the_event", del_ignores_the_event),
    solo("epoll_exclusive/delivers", exclusive_delivers),
];

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const RDHUP: i32 = libc::EPOLLRDHUP;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;

fn new_data() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET, 1);
    show_epoll("idle", ep);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("first data", ep);
    show_epoll("told already", ep);
    send(pair.client, b"y", 0);
    await_bytes(pair.server, 2);
    show_epoll("more data", ep);
    show_epoll("told already", ep);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("taken", ep);
    send(pair.client, b"z", 0);
    await_readable(pair.server);
    show_epoll("new data", ep);
}

fn partial_read() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET, 1);
    send(pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    show_epoll("data", ep);
    recv(pair.server, &mut [0; 4], 0);
    show_epoll("part taken, no event", ep);
    send(pair.client, b"more", 0);
    await_bytes(pair.server, 10);
    show_epoll("more came", ep);
    recv(pair.server, &mut [0; 64], 0);
    show_epoll("all taken", ep);
}

fn ready_when_added() {
    let pair = connected();
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET, 1);
    show_epoll("ready when added", ep);
    show_epoll("told already", ep);
    epoll_del(ep, pair.server);
    epoll_add(ep, pair.server, IN | ET, 2);
    show_epoll("added anew", ep);
    show_epoll("told already", ep);
}

fn modify_rearms() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET, 1);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("data", ep);
    show_epoll("told already", ep);
    epoll_mod(ep, pair.server, IN | ET, 2);
    show_epoll("modified", ep);
    show_epoll("told already", ep);
    epoll_mod(ep, pair.server, IN, 3);
    show_epoll("now level", ep);
    show_epoll("level", ep);
}

fn writable() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.client, OUT | ET, 1);
    show_epoll("writable when added", ep);
    show_epoll("told already", ep);
    send(pair.client, b"x", 0);
    show_epoll("after a small send", ep);
    await_readable(pair.server);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("after the peer took it", ep);
}

fn write_edge_after_drain() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.client, OUT | ET, 1);
    show_epoll("writable when added", ep);
    let sent = crate::bulk::fill(pair.client, 0);
    show_epoll("full", ep);
    crate::bulk::receive_pattern(pair.server, sent, &[65_536]);
    await_events(pair.client, libc::POLLOUT);
    show_epoll_within("drained", ep, 2000);
    show_epoll("told already", ep);
}

fn in_and_out() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | OUT | RDHUP | ET, 1);
    show_epoll("when added", ep);
    show_epoll("told already", ep);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("data: the whole state", ep);
    show_epoll("told already", ep);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("taken", ep);
}

fn end_of_stream() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | RDHUP | ET, 1);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("data", ep);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("the end", ep);
    show_epoll("told already", ep);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("data taken", ep);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("end taken", ep);
}

fn reset() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.client, IN | OUT | RDHUP | ET, 1);
    show_epoll("when added", ep);
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_epoll("reset", ep);
    show_epoll("told already", ep);
    recv(pair.client, &mut [0; 8], 0);
    show_epoll("error taken", ep);
}

fn of_a_listener() {
    let (listening, addr) = listener();
    set_nonblocking(listening, true);
    let ep = epoll();
    epoll_add(ep, listening, IN | ET, 1);
    show_epoll("idle", ep);
    let _a = dial(&addr);
    show_epoll("first", ep);
    show_epoll("told already", ep);
    let _b = dial(&addr);
    show_epoll("second", ep);
    accept(listening);
    show_epoll("one accepted, one left", ep);
    accept(listening);
    show("none left", accept(listening));
    let _c = dial(&addr);
    show_epoll("third", ep);
}

fn connecting() {
    let (listening, addr) = listener();
    let client = tcp_nonblocking();
    let ep = epoll();
    connect(client, &addr);
    epoll_add(ep, client, IN | OUT | RDHUP | ET, 1);
    show_epoll_within("established", ep, 2000);
    show_epoll("told already", ep);
    let server = accept(listening).fd();
    show_epoll("accepted", ep);
    send(server, b"x", 0);
    await_readable(client);
    show_epoll("data", ep);
}

fn not_drained_then_more() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET, 1);
    for round in 1..=4 {
        send(pair.client, b"0123456789", 0);
        await_bytes(pair.server, round * 9 + 1);
        show_epoll(&format!("round {round}"), ep);
        recv(pair.server, &mut [0; 1], 0);
    }
    show_epoll("no news", ep);
    say!("left {}", fionread(pair.server));
}

fn read_to_eagain() {
    let pair = connected();
    set_nonblocking(pair.server, true);
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET, 1);
    for round in 0..3 {
        send(pair.client, b"abcdef", 0);
        await_bytes(pair.server, 6);
        show_epoll(&format!("round {round}"), ep);
        show_recv("server", pair.server, 4, 0);
        show_recv("server", pair.server, 4, 0);
        show_recv("server", pair.server, 4, 0);
        show_epoll("nothing", ep);
    }
}

fn half_close_rdhup() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | OUT | RDHUP | ET, 1);
    show_epoll("when added", ep);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("half closed", ep);
    show_epoll("told already", ep);
    shutdown(pair.server, libc::SHUT_WR);
    await_events(pair.server, libc::POLLHUP);
    show_epoll("both closed", ep);
    show_epoll("told already", ep);
}

fn two_sets() {
    let pair = connected();
    let (edge, level) = (epoll(), epoll());
    epoll_add(edge, pair.server, IN | ET, 1);
    epoll_add(level, pair.server, IN, 2);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("edge", edge);
    show_epoll("level", level);
    show_epoll("edge", edge);
    show_epoll("level", level);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("level", level);
}

/// One thread moves 4 MiB with edge-triggered events only: a lost edge would stall it.
fn pump() {
    const TOTAL: usize = 4 << 20;
    let pair = connected();
    set_nonblocking(pair.client, true);
    set_nonblocking(pair.server, true);
    let ep = epoll();
    epoll_add(ep, pair.client, OUT | ET, 1);
    epoll_add(ep, pair.server, IN | ET, 2);
    let data = crate::bulk::pattern(0, TOTAL);
    let (mut sent, mut received) = (0, Vec::with_capacity(TOTAL));
    while received.len() < TOTAL {
        let (result, events) = epoll_wait(ep, 8, 2000);
        if result.value <= 0 {
            say!("stalled: sent {}, received {}", sent > 0, !received.is_empty());
            return;
        }
        for (number, _) in events {
            match number {
                1 => send_to_eagain(pair.client, &data, &mut sent),
                _ => receive_to_eagain(pair.server, &mut received),
            }
        }
    }
    say!("sent {sent}, received {}, intact {}", received.len(), received == data);
}

fn send_to_eagain(fd: i32, data: &[u8], sent: &mut usize) {
    while *sent < data.len() {
        let result = send(fd, &data[*sent..data.len().min(*sent + 100_003)], 0);
        if !result.ok() {
            return;
        }
        *sent += result.count();
    }
}

fn receive_to_eagain(fd: i32, received: &mut Vec<u8>) {
    let mut buffer = vec![0; 50_021];
    loop {
        let result = recv(fd, &mut buffer, 0);
        if result.value <= 0 {
            return;
        }
        received.extend_from_slice(&buffer[..result.count()]);
    }
}

fn once() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ONESHOT, 1);
    show_epoll("idle", ep);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("data", ep);
    show_epoll("disarmed", ep);
    send(pair.client, b"y", 0);
    await_bytes(pair.server, 2);
    show_epoll("more data", ep);
    show("ADD of a disarmed one", epoll_ctl(ep, libc::EPOLL_CTL_ADD, pair.server, IN, 2));
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("the end", ep);
    abort(pair.server);
    show_epoll("closed", ep);
}

fn rearm() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ONESHOT, 1);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("data", ep);
    epoll_mod(ep, pair.server, IN | ONESHOT, 2);
    show_epoll("armed, data still there", ep);
    show_epoll("disarmed", ep);
    recv(pair.server, &mut [0; 8], 0);
    epoll_mod(ep, pair.server, IN | ONESHOT, 3);
    show_epoll("armed, nothing there", ep);
    send(pair.client, b"y", 0);
    await_readable(pair.server);
    show_epoll("data", ep);
    epoll_mod(ep, pair.server, IN | OUT | ONESHOT, 4);
    show_epoll("armed for both", ep);
}

fn with_edge() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ET | ONESHOT, 1);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("data", ep);
    send(pair.client, b"y", 0);
    await_bytes(pair.server, 2);
    show_epoll("disarmed", ep);
    epoll_mod(ep, pair.server, IN | ET | ONESHOT, 2);
    show_epoll("armed", ep);
    show_epoll("disarmed", ep);
}

/// Four threads wait on one set; one-shot gives each message to exactly one of them.
fn oneshot_threads() {
    let pair = connected();
    let (ep, server) = (epoll(), pair.server);
    epoll_add(ep, server, IN | ONESHOT, 1);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                let mut taken = 0;
                loop {
                    if epoll_wait(ep, 1, 3000).0.value != 1 {
                        return taken;
                    }
                    let mut byte = [0];
                    let result = recv(server, &mut byte, libc::MSG_DONTWAIT);
                    taken += u32::from(result.value == 1);
                    epoll_mod(ep, server, IN | ONESHOT, 1);
                    if result.value == 0 {
                        return taken;
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        send(pair.client, b"x", 0);
    }
    close(pair.client);
    say!("taken {}", threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum::<u32>());
}

fn exclusive_rules() {
    let pair = connected();
    let (listening, _) = listener();
    let ep = epoll();
    let exclusive = libc::EPOLLEXCLUSIVE;
    show("ADD EXCLUSIVE", epoll_ctl(ep, libc::EPOLL_CTL_ADD, listening, IN | exclusive, 1));
    show("MOD of it", epoll_ctl(ep, libc::EPOLL_CTL_MOD, listening, IN, 1));
    show("MOD to EXCLUSIVE", epoll_ctl(ep, libc::EPOLL_CTL_MOD, listening, IN | exclusive, 1));
    show("DEL of it", epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, listening));
    show("with ONESHOT", epoll_ctl(ep, libc::EPOLL_CTL_ADD, listening, IN | exclusive | ONESHOT, 1));
    show("with RDHUP", epoll_ctl(ep, libc::EPOLL_CTL_ADD, listening, IN | exclusive | RDHUP, 1));
    show("with ET", epoll_ctl(ep, libc::EPOLL_CTL_ADD, listening, IN | exclusive | ET, 1));
    show("of a stream", epoll_ctl(ep, libc::EPOLL_CTL_ADD, pair.client, IN | OUT | exclusive, 2));
    show("of an epoll", epoll_ctl(ep, libc::EPOLL_CTL_ADD, epoll(), IN | exclusive, 3));
    show("ADD normal", epoll_ctl(ep, libc::EPOLL_CTL_ADD, pair.server, IN, 4));
    show("MOD normal to EXCLUSIVE", epoll_ctl(ep, libc::EPOLL_CTL_MOD, pair.server, IN | exclusive, 4));
}

/// Python passes whatever is on its stack.
fn del_ignores_the_event() {
    let (pair, (listening, _)) = (connected(), listener());
    let (ep, inner) = (epoll(), epoll());
    for (name, fd) in [("a stream", pair.server), ("a listener", listening), ("an instance", inner)] {
        for events in [libc::EPOLLEXCLUSIVE, libc::EPOLLEXCLUSIVE | ONESHOT, -1, 0] {
            epoll_add(ep, fd, IN, 1);
            say!("{name} {events:#x}");
            show("DEL", epoll_ctl(ep, libc::EPOLL_CTL_DEL, fd, events, u64::MAX));
            show("DEL again", epoll_ctl(ep, libc::EPOLL_CTL_DEL, fd, events, u64::MAX));
        }
    }
}

fn exclusive_delivers() {
    let (listening, addr) = listener();
    let ep = epoll();
    epoll_add(ep, listening, IN | libc::EPOLLEXCLUSIVE, 1);
    show_epoll("idle", ep);
    let _client = dial(&addr);
    show_epoll("pending", ep);
    show_epoll("level-triggered", ep);
    accept(listening);
    show_epoll("none", ep);
}
