//! epoll: sets within sets, and sets under poll and select.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_nested/inner_ready", inner_ready),
    solo("epoll_nested/loops", loops),
    solo("epoll_nested/poll_of_epoll", poll_of_epoll),
    solo("epoll_nested/edge", nested_edge),
];

const IN: i32 = libc::EPOLLIN;
const ET: i32 = libc::EPOLLET;

fn inner_ready() {
    let pair = connected();
    let (outer, inner) = (epoll(), epoll());
    epoll_add(inner, pair.server, IN, 1);
    show("ADD of the inner one", epoll_ctl(outer, libc::EPOLL_CTL_ADD, inner, IN, 2));
    show_epoll("idle", outer);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("outer", outer);
    show_epoll("inner", inner);
    show_epoll("outer still", outer);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("outer", outer);
    let client = pair.client;
    let writer = thread::spawn(move || {
        sleep(5);
        send(client, b"y", 0);
    });
    show_epoll_within("outer, woken", outer, 5000);
    let _ = writer.join();
    close(inner);
    show_epoll("inner closed", outer);
}

fn loops() {
    let (a, b) = (epoll(), epoll());
    show("a in b", epoll_ctl(b, libc::EPOLL_CTL_ADD, a, IN, 1));
    show("b in a", epoll_ctl(a, libc::EPOLL_CTL_ADD, b, IN, 1));
    show("a in a", epoll_ctl(a, libc::EPOLL_CTL_ADD, a, IN, 1));
    let chain: Vec<i32> = (0..8).map(|_| epoll()).collect();
    for (index, two) in chain.windows(2).enumerate() {
        show(&format!("level {index}"), epoll_ctl(two[1], libc::EPOLL_CTL_ADD, two[0], IN, 1));
    }
}

fn poll_of_epoll() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    show_poll("idle", ep);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_poll("ready", ep);
    show_select("ready", &[("ep", ep)], 0);
    recv(pair.server, &mut [0; 8], 0);
    show_poll("idle", ep);
    let client = pair.client;
    let writer = thread::spawn(move || {
        sleep(5);
        send(client, b"y", 0);
    });
    show_poll_for("woken", ep, libc::POLLIN, 5000);
    let _ = writer.join();
}

fn nested_edge() {
    let pair = connected();
    let (outer, inner) = (epoll(), epoll());
    epoll_add(inner, pair.server, IN, 1);
    epoll_add(outer, inner, IN | ET, 2);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("outer", outer);
    show_epoll("outer, told already", outer);
    show_epoll("inner", inner);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("inner", inner);
    send(pair.client, b"y", 0);
    await_readable(pair.server);
    show_epoll("outer, new data", outer);
}
