//! TCP_DEFER_ACCEPT: a listener that gives out connections only when they have sent something.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[solo("defer/waits", waits), solo("defer/epoll", epoll_tells)];

/// A listener that gives out connections that have sent something.
fn deferring() -> (i32, Addr) {
    let listening = tcp();
    set_int(listening, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 30);
    let addr = listen_on(listening, &Addr::local(0), 4);
    (listening, addr)
}

fn waits() {
    let (listening, addr) = deferring();
    let silent = dial(&addr);
    let writer = std::thread::spawn(move || {
        let (first, second) = (dial(&addr), dial(&addr));
        sleep(20);
        send(second, b"second", 0);
        sleep(20);
        send(first, b"first", 0);
        (first, second)
    });
    for _ in 0..2 {
        let server = show_fd("accept", accept(listening));
        show_recv("server", server, 8, libc::MSG_DONTWAIT);
    }
    say!("writer ended: {}", writer.join().is_ok());
    set_nonblocking(listening, true);
    show("the silent one waits", accept(listening));
    show_send("silent no more", silent, b"third", 0);
    await_readable(listening);
    let server = show_fd("accept", accept(listening));
    show_recv("server", server, 8, libc::MSG_DONTWAIT);
    show_option("TCP_DEFER_ACCEPT accepted", server, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
}

fn epoll_tells() {
    let (listening, addr) = deferring();
    let ep = epoll();
    epoll_add(ep, listening, libc::EPOLLIN, 1);
    let client = dial(&addr);
    show_epoll("no data yet", ep);
    let writer = std::thread::spawn(move || {
        sleep(20);
        send(client, b"data", 0).to_string()
    });
    show_epoll_within("data", ep, 2000);
    say!("writer: {}", writer.join().unwrap_or_default());
    let server = show_fd("accept", accept(listening));
    show_recv("server", server, 8, libc::MSG_DONTWAIT);
    let client = dial(&addr);
    shutdown(client, libc::SHUT_WR);
    show_epoll_within("the end only", ep, 2000);
}
