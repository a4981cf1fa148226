//! Source ports: which are given out, how long one is kept, and that no two connections have the same four numbers.

use std::collections::BTreeSet;

use crate::role::Role;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, pair, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("ports/not_again_at_once", not_again_at_once),
    solo("ports/orphan_seconds", orphan_seconds),
    solo("ports/orphan_seconds_inherited", orphan_seconds_inherited),
    solo("ports/orphan_not_earlier", orphan_not_earlier),
    solo("ports/orphan_never", orphan_never),
    solo("ports/same_four_numbers", same_four_numbers),
    solo("ports/same_four_numbers_bound_before", same_four_numbers_bound_before),
    solo("ports/same_four_numbers_in_children", same_four_numbers_in_children),
    pair("ports/same_four_numbers_of_two", listens, connects_twice),
];

/// Connections to several listeners, one after the other: the port of one is not the next one's.
fn not_again_at_once() {
    let mut ports = BTreeSet::new();
    for _ in 0..12 {
        let (listening, addr) = listener();
        let client = dial(&addr);
        ports.insert(getsockname(client).1.port());
        let server = accept(listening).fd();
        close_all(&[client, server, listening]);
    }
    say!("{} ports", ports.len());
}

/// When the address can be bound again after the connection was closed there, while the other side stays.
fn show_return(label: &str, addr: &Addr) {
    let first = try_bind(addr);
    let mut waited = 0;
    while waited < 4000 && !try_bind(addr).ok() {
        sleep(50);
        waited += 50;
    }
    say!("{label}: bind = {first}, then {}", try_bind(addr));
}

fn try_bind(addr: &Addr) -> Ret {
    let fd = tcp();
    let result = bind(fd, addr);
    close(fd);
    result
}

fn orphan_seconds() {
    let (listening, to) = listener();
    let (client, addr) = connected_from_unused_port(&to);
    let server = accept_from(listening, &addr);
    show("TCP_LINGER2", set_int(client, libc::IPPROTO_TCP, libc::TCP_LINGER2, 1));
    close(client);
    show_return("after a second", &addr);
    show_recv("server", server, 8, 0);
}

/// The connection from there; those from ports that were not unused are reset.
fn accept_from(listening: i32, from: &Addr) -> i32 {
    loop {
        let (accepted, addr) = accept_addr(listening);
        if addr.port() == from.port() {
            return accepted.fd();
        }
        close(accepted.fd());
    }
}

/// For as many seconds as were set, and not less.
fn orphan_not_earlier() {
    let ends = [1, 2].map(|seconds| {
        let pair = connected();
        let (_, addr) = getsockname(pair.client);
        set_int(pair.client, libc::IPPROTO_TCP, libc::TCP_LINGER2, seconds);
        (seconds, addr, close(pair.client), pair)
    });
    for (milliseconds, after) in [(0, "at once"), (900, "after 0.9 s"), (1000, "after 1.9 s")] {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        for (seconds, addr, ..) in &ends {
            if *seconds * 1000 > milliseconds as i32 {
                say!("{seconds} s, {after}: bind = {}", try_bind(addr));
            }
        }
    }
}

/// A negative value: the port is free at once, and what the other side still sends is answered by a reset.
fn orphan_never() {
    for ends_first in [false, true] {
        let (listening, to) = listener();
        let (client, addr) = connected_from_unused_port(&to);
        let pair = Connected { client, server: accept_from(listening, &addr) };
        show("TCP_LINGER2", set_int(pair.client, libc::IPPROTO_TCP, libc::TCP_LINGER2, -1));
        if ends_first {
            show("shutdown", shutdown(pair.client, libc::SHUT_WR));
            await_events(pair.server, libc::POLLRDHUP);
        }
        close(pair.client);
        sleep(2);
        // Once the other side's kernel has acknowledged the end.
        let mut tries = 0;
        while !try_bind(&addr).ok() && tries < 50 {
            sleep(1);
            tries += 1;
        }
        show("bind", try_bind(&addr));
        show_poll("server", pair.server);
        show_recv("server", pair.server, 8, 0);
        show_send("server", pair.server, b"x", libc::MSG_NOSIGNAL);
        sleep(2);
        show_poll("server", pair.server);
        show_send("server", pair.server, b"x", libc::MSG_NOSIGNAL);
        close(pair.server);
    }
}

fn orphan_seconds_inherited() {
    let listening = tcp();
    set_int(listening, libc::IPPROTO_TCP, libc::TCP_LINGER2, 1);
    let addr = listen_on(listening, &Addr::local(0), 4);
    let pair = connect_to(listening, &addr);
    show_option("TCP_LINGER2", pair.server, libc::IPPROTO_TCP, libc::TCP_LINGER2);
    close(listening);
    close(pair.server);
    show_return("after a second", &addr);
}

/// A fresh socket, bound to that address together with others.
fn bound_together(addr: &Addr) -> i32 {
    let fd = tcp();
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    show("bind", bind(fd, addr));
    fd
}

/// A connection from a port that the system chose, and which nothing else has had: one of TIME-WAIT could not be bound.
fn connected_from_unused_port(addr: &Addr) -> (i32, Addr) {
    for _ in 0..50 {
        let (fd, other) = (tcp(), tcp());
        set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        set_int(other, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        connect(fd, addr);
        let from = getsockname(fd).1;
        let is_unused = bind(other, &from).ok();
        close(other);
        if is_unused {
            label_port(from.port(), "C");
            return (fd, from);
        }
        abort(fd);
    }
    give_up("no port that is unused")
}

/// The second connection from the port of the first to the same place, and to another.
fn same_four_numbers() {
    let (listening, addr) = listener();
    let (elsewhere, other) = listener();
    let (first, from) = connected_from_unused_port(&addr);
    let second = bound_together(&from);
    show("second", connect(second, &addr));
    show("second, again", connect(second, &addr));
    show("second, elsewhere", connect(second, &other));
    show_peername("second", second);
    let third = bound_together(&from);
    abort(first);
    sleep(5);
    show("third, when the first is reset", connect(third, &addr));
    close_all(&[second, third, listening, elsewhere]);
}

/// All bind before one connects.
fn same_four_numbers_bound_before() {
    let (listening, addr) = listener();
    let first = bound_together(&Addr::local(0));
    let from = getsockname(first).1;
    let second = bound_together(&from);
    show("first", connect(first, &addr));
    set_nonblocking(second, true);
    show("second", connect(second, &addr));
    show_so_error("second", second);
    show_poll("listener", listening);
    close_all(&[first, second, listening]);
}

/// A child has one of the connections, and another child wants the same numbers.
fn same_four_numbers_in_children() {
    let (listening, addr) = listener();
    let from = Addr::local(free_port());
    let child = fork_child(|| {
        let fd = bound_together(&from);
        show("child", connect(fd, &addr));
        sleep(300);
        0
    });
    let server = accept(listening).fd();
    sleep(50);
    let other = fork_child(|| {
        let fd = bound_together(&from);
        show("other child", connect(fd, &addr));
        0
    });
    say!("other child: {}", wait_child(other));
    say!("child: {}", wait_child(child));
    close_all(&[server, listening]);
}

/// The server says where it listens, and waits until the client is done.
fn listens(role: &mut Role) {
    let (listening, addr) = listener();
    role.tell_port(&addr);
    for _ in 0..2 {
        await_readable(listening);
        accept(listening);
        role.tell("accepted");
        if role.hear() == "enough" {
            return;
        }
    }
}

fn connects_twice(role: &mut Role) {
    let addr = Addr::local(role.hear_port("L"));
    let from = Addr::local(free_port());
    let first = bound_together(&from);
    show("first", connect(first, &addr));
    role.expect("accepted");
    let second = bound_together(&from);
    show("second", connect(second, &addr));
    role.tell("enough");
    close_all(&[first, second]);
}
