//! Source ports: which are given out, how long one is kept, and that no two connections have the same four numbers.

use std::collections::BTreeSet;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("ports/not_again_at_once", not_again_at_once),
    solo("ports/orphan_seconds", orphan_seconds),
    solo("ports/orphan_seconds_inherited", orphan_seconds_inherited),
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
    let pair = connected();
    let (_, addr) = getsockname(pair.client);
    show("TCP_LINGER2", set_int(pair.client, libc::IPPROTO_TCP, libc::TCP_LINGER2, 1));
    close(pair.client);
    show_return("after a second", &addr);
    show_recv("server", pair.server, 8, 0);
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
