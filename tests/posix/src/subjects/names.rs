//! `getsockname()` and `getpeername()` in every state.

use std::ptr;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("names/connected", when_connected),
    solo("names/bound", bound),
    solo("names/wildcard_bound_client", wildcard_bound_client),
    solo("names/after_shutdown", after_shutdown),
    solo("names/after_peer_closed", after_peer_closed),
    solo("names/after_reset", after_reset),
    solo("names/length", length),
    solo("names/errors", errors),
    solo("names/ports_differ", ports_differ),
];

fn both(label: &str, fd: i32) {
    show_sockname(label, fd);
    show_peername(label, fd);
}

fn when_connected() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    both("client", pair.client);
    both("server", pair.server);
    both("listener", listening);
    both("dup of the client", dup(pair.client).fd());
}

fn bound() {
    let fd = tcp();
    both("fresh", fd);
    bind(fd, &Addr::any(0));
    label_port(getsockname(fd).1.port(), "P");
    both("bound", fd);
    listen(fd, 4);
    both("listening", fd);
    let _client = dial(&Addr::local(getsockname(fd).1.port()));
    both("with a pending connection", fd);
}

fn wildcard_bound_client() {
    let (listening, addr) = listener();
    let client = tcp();
    bind(client, &Addr::any(0));
    label_port(getsockname(client).1.port(), "C");
    show_sockname("before connect", client);
    show("connect", connect(client, &addr));
    both("after connect", client);
    let (_, peer) = accept_addr(listening);
    say!("peer {peer}");
}

fn after_shutdown() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    both("client after SHUT_WR", pair.client);
    both("server after the client's SHUT_WR", pair.server);
    shutdown(pair.server, libc::SHUT_RD);
    both("server after SHUT_RD", pair.server);
}

fn after_peer_closed() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    both("client after the server closed", pair.client);
    show_recv("client", pair.client, 8, 0);
    both("client after the end of the stream", pair.client);
}

fn after_reset() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    both("client after the reset", pair.client);
    show_recv("client", pair.client, 8, 0);
    both("client after it saw the reset", pair.client);
}

fn length() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    for size in [0u32, 1, 2, 4, 15, 16, 17, 128, 1000] {
        let mut own = Addr::empty();
        let mut own_len = size;
        let own_result = getsockname_raw(pair.client, own.ptr_mut(), &raw mut own_len);
        let mut peer = Addr::empty();
        let mut peer_len = size;
        let peer_result = getpeername_raw(pair.client, peer.ptr_mut(), &raw mut peer_len);
        say!("size {size}: own {own_result} len {own_len} {own}, peer {peer_result} len {peer_len} {peer}");
    }
}

fn errors() {
    let (fd, (read_end, _)) = (connected().client, pipe(0));
    show("getsockname of -1", getsockname(-1).0);
    show("getsockname of a closed one", getsockname(999).0);
    show("getsockname of a pipe", getsockname(read_end).0);
    show("getpeername of -1", getpeername(-1).0);
    show("getpeername of a pipe", getpeername(read_end).0);
    show("getpeername of a fresh socket", getpeername(tcp()).0);
    let mut addr = Addr::empty();
    let mut negative = u32::MAX;
    show("getsockname length -1", getsockname_raw(fd, addr.ptr_mut(), &raw mut negative));
    show("getpeername length -1", getpeername_raw(fd, addr.ptr_mut(), &raw mut negative));
    show("getsockname null address", getsockname_raw(fd, ptr::null_mut(), &raw mut addr.len));
    show("getsockname null length", getsockname_raw(fd, addr.ptr_mut(), ptr::null_mut()));
    show("getpeername null address", getpeername_raw(fd, ptr::null_mut(), &raw mut addr.len));
    show("getpeername null length", getpeername_raw(fd, addr.ptr_mut(), ptr::null_mut()));
}

fn ports_differ() {
    let (listening, addr) = listener_with(64);
    let clients: Vec<i32> = (0..50).map(|_| dial(&addr)).collect();
    let mut ports: Vec<u16> = clients.iter().map(|fd| getsockname(*fd).1.port()).collect();
    ports.sort_unstable();
    ports.dedup();
    say!("{} clients, {} ports", clients.len(), ports.len());
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let bounds: Vec<u16> = range.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    say!("all in the ephemeral range: {}", ports.iter().all(|port| (bounds[0]..=bounds[1]).contains(port)));
    close(listening);
}
