//! epoll: which news make an edge for whom, and ends of connections, level- and edge-triggered.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_edges/out_only", out_only),
    solo("epoll_edges/rdhup_only", rdhup_only),
    solo("epoll_edges/half_then_whole", half_then_whole),
    solo("epoll_edges/local_shutdown", local_shutdown),
    solo("epoll_edges/reset_after_end", reset_after_end),
    solo("epoll_edges/answer_to_closed", answer_to_closed),
    solo("epoll_edges/level_combinations", level_combinations),
    solo("epoll_edges/edge_combinations", edge_combinations),
    solo("epoll_edges/space_after_some", space_after_some),
    solo("epoll_edges/modify_to_more", modify_to_more),
    solo("epoll_edges/oneshot_end", oneshot_end),
    solo("epoll_edges/two_kinds_of_sets", two_kinds_of_sets),
    solo("epoll_edges/one_set_is_changed", one_set_is_changed),
    solo("epoll_edges/nothing_asked", nothing_asked),
    solo("epoll_edges/nothing_asked_waiting", nothing_asked_waiting),
];

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const RDHUP: i32 = libc::EPOLLRDHUP;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;

fn feed(pair: &Connected) {
    let before = fionread(pair.server);
    send(pair.client, b"x", 0);
    await_bytes(pair.server, before + 1);
}

/// Data make no edge for a registration that asks for room only.
fn out_only() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, OUT | ET, 1);
    show_epoll("when added", ep);
    feed(&pair);
    show_epoll("data came", ep);
    recv(pair.server, &mut [0; 8], 0);
    feed(&pair);
    show_epoll("more came", ep);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("the end came", ep);
    show_epoll("told already", ep);
}

fn rdhup_only() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, RDHUP | ET, 1);
    show_epoll("when added", ep);
    feed(&pair);
    show_epoll("data came", ep);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("the end came", ep);
    show_epoll("told already", ep);
    close(pair.client);
    sleep(5);
    show_epoll("closed", ep);
}

fn half_then_whole() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | OUT | RDHUP | ET, 1);
    show_epoll("when added", ep);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("half closed", ep);
    show_epoll("told already", ep);
    show_recv("server", pair.server, 8, 0);
    show_epoll("end taken", ep);
    close(pair.client);
    sleep(5);
    show_epoll("closed", ep);
}

/// Shutting down one's own end wakes one's own sets.
fn local_shutdown() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | OUT | RDHUP | ET, 1);
    show_epoll("when added", ep);
    shutdown(pair.server, libc::SHUT_RD);
    show_epoll("SHUT_RD", ep);
    shutdown(pair.server, libc::SHUT_WR);
    // The acknowledgement of the end would be another edge.
    show_tcp_state("SHUT_WR", pair.server, "FIN_WAIT2");
    show_epoll("SHUT_WR", ep);
    show_epoll("told already", ep);
}

fn reset_after_end() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | RDHUP | ET, 1);
    feed(&pair);
    show_epoll("data", ep);
    abort(pair.client);
    await_events(pair.server, libc::POLLERR);
    show_epoll("reset", ep);
    show_epoll("told already", ep);
    show_recv("server", pair.server, 8, 0);
    show_recv("server", pair.server, 8, 0);
    show_epoll("error taken", ep);
}

/// A write to a peer that has closed is answered by a reset.
fn answer_to_closed() {
    let pair = connected();
    let (level, edge) = (epoll(), epoll());
    epoll_add(level, pair.server, OUT, 1);
    epoll_add(edge, pair.server, OUT | ET, 2);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("level, closed", level);
    show_epoll("edge, closed", edge);
    show_send("server", pair.server, b"late", 0);
    await_events(pair.server, libc::POLLHUP);
    show_epoll("level, answered", level);
    show_epoll("edge, answered", edge);
    show_epoll("edge, told already", edge);
}

const COMBINATIONS: [i32; 7] = [0, IN, OUT, RDHUP, IN | OUT, IN | RDHUP, IN | OUT | RDHUP];

/// Every combination of what is asked for, in every state of a connection.
fn combinations(flags: i32) {
    let sets = |fd: i32| -> Vec<i32> {
        let set = |events: &i32| {
            let ep = epoll();
            epoll_add(ep, fd, events | flags, *events as u64);
            ep
        };
        COMBINATIONS.iter().map(set).collect()
    };
    let look = |state: &str, sets: &[i32]| {
        for (ep, events) in sets.iter().zip(COMBINATIONS) {
            show_epoll(&format!("{state}, asked {events:#x}"), *ep);
        }
    };
    let pair = connected();
    let all = sets(pair.server);
    look("idle", &all);
    feed(&pair);
    look("data", &all);
    recv(pair.server, &mut [0; 8], 0);
    look("taken", &all);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    look("end", &all);
    shutdown(pair.server, libc::SHUT_WR);
    await_events(pair.server, libc::POLLHUP);
    look("both ends", &all);
    let pair = connected();
    let all = sets(pair.server);
    look("idle", &all);
    abort(pair.client);
    await_events(pair.server, libc::POLLERR);
    look("reset", &all);
    recv(pair.server, &mut [0; 8], 0);
    look("error taken", &all);
}

fn level_combinations() {
    combinations(0);
}

fn edge_combinations() {
    combinations(ET);
}

/// Room makes an edge when there is enough of it again, once.
fn space_after_some() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.client, IN | OUT | ET, 1);
    show_epoll("when added", ep);
    send(pair.client, &[7; 2000], 0);
    recv(pair.server, &mut [0; 4000], 0);
    show_epoll("some sent and taken", ep);
    let mut sent = crate::bulk::fill(pair.client, 0);
    show_epoll("full", ep);
    for round in 0..3 {
        crate::bulk::receive_pattern(pair.server, sent, &[65_536]);
        await_events(pair.client, libc::POLLOUT);
        show_epoll_within(&format!("room {round}"), ep, 2000);
        show_epoll("told already", ep);
        sent = crate::bulk::fill(pair.client, 0);
        show_epoll("full again", ep);
    }
}

/// Nobody but the set asks whether there is room.
pub(super) fn show_edges_of_room(pair: &Connected, ep: i32) {
    for round in 0..3 {
        let sent = crate::bulk::fill(pair.client, 0);
        show_epoll("full", ep);
        crate::bulk::receive_pattern(pair.server, sent, &[65_536]);
        show_epoll_within(&format!("room {round}"), ep, 2000);
    }
}

fn modify_to_more() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, 0, 1);
    feed(&pair);
    show_epoll("asked for nothing", ep);
    epoll_mod(ep, pair.server, OUT | ET, 2);
    show_epoll("room", ep);
    epoll_mod(ep, pair.server, IN | ET, 3);
    show_epoll("data", ep);
    show_epoll("told already", ep);
    epoll_mod(ep, pair.server, 0, 4);
    show_epoll("nothing again", ep);
    feed(&pair);
    epoll_mod(ep, pair.server, IN | OUT, 5);
    show_epoll("all", ep);
}

/// A registration that has fired hears nothing, not even of the end.
fn oneshot_end() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | RDHUP | ONESHOT, 1);
    feed(&pair);
    show_epoll("data", ep);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("the end is not told", ep);
    epoll_mod(ep, pair.server, IN | RDHUP | ONESHOT, 2);
    show_epoll("re-armed", ep);
    show_epoll("once", ep);
}

/// A level-triggered, an edge-triggered and a one-shot set on one socket do not disturb each other.
fn two_kinds_of_sets() {
    let pair = connected();
    let (level, edge, once) = (epoll(), epoll(), epoll());
    epoll_add(level, pair.server, IN, 1);
    epoll_add(edge, pair.server, IN | ET, 2);
    epoll_add(once, pair.server, IN | ONESHOT, 3);
    for round in 0..3 {
        feed(&pair);
        show_epoll(&format!("level {round}"), level);
        show_epoll(&format!("edge {round}"), edge);
        show_epoll(&format!("once {round}"), once);
        show_epoll(&format!("level again {round}"), level);
        show_epoll(&format!("edge again {round}"), edge);
        if round == 1 {
            recv(pair.server, &mut [0; 8], 0);
            show_epoll("level, taken", level);
            show_epoll("edge, taken", edge);
        }
    }
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("level, end", level);
    show_epoll("edge, end", edge);
    show_epoll("once, end", once);
}

/// HUP and ERR are told whether asked for or not.
fn nothing_asked() {
    let (hung, broken) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, hung.server, 0, 1);
    epoll_add(ep, broken.server, 0, 2);
    feed(&hung);
    show_epoll("idle", ep);
    shutdown(hung.client, libc::SHUT_WR);
    await_events(hung.server, libc::POLLRDHUP);
    show_epoll("half closed", ep);
    shutdown(hung.server, libc::SHUT_WR);
    await_events(hung.server, libc::POLLHUP);
    show_epoll("closed both ways", ep);
    abort(broken.client);
    await_events(broken.server, libc::POLLERR);
    show_epoll("reset", ep);
}

/// The same for a thread that sleeps, woken by its own process' write to a closed peer.
fn nothing_asked_waiting() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, 0, 1);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    let server = pair.server;
    let writer = thread::spawn(move || {
        sleep(10);
        send(server, b"late", libc::MSG_NOSIGNAL);
    });
    show_epoll_within("woken", ep, 3000);
    let _ = writer.join();
}

/// Whoever looks at the socket in between takes no edge away from other sets.
fn one_set_is_changed() {
    let pair = connected();
    let (first, second, third) = (epoll(), epoll(), epoll());
    epoll_add(first, pair.server, IN | ET, 1);
    epoll_add(second, pair.server, IN | ET, 2);
    send(pair.client, b"x", 0);
    epoll_mod(second, pair.server, IN | ET, 2);
    show_epoll("modified elsewhere", first);
    show_epoll("modified", second);
    send(pair.client, b"x", 0);
    epoll_add(third, pair.server, IN | ET, 3);
    show_epoll("added elsewhere", first);
    show_epoll("added elsewhere", second);
    show_epoll("added", third);
    send(pair.client, b"x", 0);
    show_poll("polled", pair.server);
    for ep in [third, second, first] {
        show_epoll("polled", ep);
    }
    send(pair.client, b"x", 0);
    epoll_del(third, pair.server);
    for ep in [second, first, third] {
        show_epoll("deleted from another", ep);
    }
    crate::bulk::fill(pair.server, 0);
    epoll_mod(first, pair.server, OUT | ET, 1);
    epoll_mod(second, pair.server, OUT | ET, 2);
    crate::bulk::drain(pair.client);
    epoll_mod(second, pair.server, OUT | ET, 2);
    show_epoll("room, modified elsewhere", first);
    show_epoll("room, modified", second);
}
