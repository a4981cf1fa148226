//! Sockets in the states that subjects start from. Set-up prints nothing unless it fails, which ends the subject.

use crate::sys::*;

/// A connected pair: client's and server's socket.
pub(crate) struct Connected {
    pub(crate) client: i32,
    pub(crate) server: i32,
}

/// In a child: the server's end is its standard input and output, and it has neither number of the pair.
pub(crate) fn take_as_streams(pair: &Connected) {
    dup2(pair.server, 0);
    dup2(pair.server, 1);
    close(pair.client);
    close(pair.server);
}

fn must(what: &str, result: Ret) -> i32 {
    match result.ok() {
        true => result.fd(),
        false => give_up(&format!("{what} = {result}")),
    }
}

/// A fresh IPv4 TCP socket.
pub(crate) fn tcp() -> i32 {
    must("socket", socket(libc::AF_INET, libc::SOCK_STREAM, 0))
}

/// A fresh IPv6 TCP socket.
pub(crate) fn tcp6() -> i32 {
    must("socket", socket(libc::AF_INET6, libc::SOCK_STREAM, 0))
}

/// A fresh non-blocking IPv4 TCP socket.
pub(crate) fn tcp_nonblocking() -> i32 {
    must("socket", socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0))
}

/// Listens on any free port of the address; the port is called `L`, and the result is the full address.
pub(crate) fn listen_on(fd: i32, addr: &Addr, backlog: i32) -> Addr {
    must("setup bind", bind(fd, addr));
    must("setup listen", listen(fd, backlog));
    let (result, addr) = getsockname(fd);
    must("setup getsockname", result);
    label_port(addr.port(), "L");
    addr
}

/// A listener on 127.0.0.1.
pub(crate) fn listener() -> (i32, Addr) {
    listener_with(16)
}

pub(crate) fn listener_with(backlog: i32) -> (i32, Addr) {
    let fd = tcp();
    let addr = listen_on(fd, &Addr::local(0), backlog);
    (fd, addr)
}

/// Connects a fresh client to a listener of this process.
pub(crate) fn connect_to(listener: i32, addr: &Addr) -> Connected {
    let client = match addr.family() {
        libc::AF_INET6 => tcp6(),
        _ => tcp(),
    };
    must("setup connect", connect(client, addr));
    label_port(getsockname(client).1.port(), "C");
    let server = must("setup accept", accept(listener));
    Connected { client, server }
}

/// Connects a fresh client to an address, without an accept.
pub(crate) fn dial(addr: &Addr) -> i32 {
    let client = tcp();
    must("setup connect", connect(client, addr));
    client
}

/// A connected pair whose listener is gone.
pub(crate) fn connected() -> Connected {
    let (fd, addr) = listener();
    let pair = connect_to(fd, &addr);
    close(fd);
    pair
}

/// A port of 127.0.0.1 on which nobody listens: it was bound and freed again. It is called `F`.
pub(crate) fn free_port() -> u16 {
    let fd = tcp();
    must("setup bind", bind(fd, &Addr::local(0)));
    let port = getsockname(fd).1.port();
    close(fd);
    label_port(port, "F");
    port
}

/// A port that is free on every address of both families: a dual-stack wildcard socket was bound to it.
pub(crate) fn port_free_everywhere() -> u16 {
    let fd = tcp6();
    must("setup bind", bind(fd, &Addr::any6(0)));
    let port = getsockname(fd).1.port();
    close(fd);
    port
}

/// Connects to a listener with a full backlog, so that the socket stays in SYN-SENT. The descriptors in the list keep
/// the backlog full.
pub(crate) fn full_backlog() -> (i32, Addr, Vec<i32>) {
    let (fd, addr) = listener_with(1);
    let filler = vec![dial(&addr), dial(&addr)];
    (fd, addr, filler)
}

/// Waits up to two seconds for a TCP state, then prints the state there is.
pub(crate) fn show_tcp_state(label: &str, fd: i32, wanted: &str) {
    for _ in 0..2000 {
        let (result, state) = tcp_info_state(fd);
        if !result.ok() || tcp_state(state) == wanted {
            break;
        }
        pause(1);
    }
    let (result, state) = tcp_info_state(fd);
    match result.ok() {
        true => say!("{label}: tcpi_state {}", tcp_state(state)),
        false => say!("{label}: TCP_INFO = {result}"),
    }
}

/// Resets the connection of a socket: `SO_LINGER` with zero seconds, then close.
pub(crate) fn abort(fd: i32) {
    set_linger(fd, 1, 0);
    close(fd);
}

pub(crate) fn close_all(fds: &[i32]) {
    for fd in fds {
        close(*fd);
    }
}

/// The server's side ends first, and so its address is in TIME-WAIT. For one that was bound to it, with SO_REUSEADDR.
pub(crate) fn end_server_first(listening: i32, pair: &Connected) {
    close(listening);
    close(pair.server);
    await_readable(pair.client);
    show_recv("client", pair.client, 8, 0);
    close(pair.client);
    sleep(2);
}
