//! `bind()`: addresses, conflicts, reuse, and clients with explicit addresses.

use std::ptr;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("bind/ephemeral", ephemeral),
    solo("bind/addr_in_use", addr_in_use),
    solo("bind/reuseaddr_restart", reuseaddr_restart),
    solo("bind/reuseaddr_pair", reuseaddr_pair),
    solo("bind/reuseport", reuseport),
    solo("bind/free_after_close", free_after_close),
    solo("bind/wildcard_and_specific", wildcard_and_specific),
    solo("bind/same_port_two_addresses", same_port_two_addresses),
    solo("bind/client_port", client_port),
    solo("bind/client_address", client_address),
    solo("bind/client_port_in_use", client_port_in_use),
    solo("bind/not_local", not_local),
    solo("bind/twice", twice),
    solo("bind/family", family),
    solo("bind/errors", errors),
    solo("bind/explicit_then_listen", explicit_then_listen),
    solo("bind/time_wait", time_wait),
    solo("bind/no_time_wait", no_time_wait),
    solo("bind/connection_lives", connection_lives),
    solo("bind/client_time_wait", client_time_wait),
    solo("bind/foreign_source", foreign_source),
    solo("bind/address_without_port", address_without_port),
    solo("bind/device", device),
    solo("bind/chosen_port_keeps_options", chosen_port_keeps_options),
];

fn on(name: i32) -> i32 {
    let fd = tcp();
    let result = set_int(fd, libc::SOL_SOCKET, name, 1);
    if !result.ok() {
        show("setsockopt", result);
    }
    fd
}

/// A port of 127.0.0.1 held by a socket that is bound and nothing else.
fn held() -> (i32, Addr) {
    let fd = tcp();
    bind(fd, &Addr::local(0));
    let (_, addr) = getsockname(fd);
    label_port(addr.port(), "H");
    (fd, addr)
}

fn ephemeral() {
    let fd = tcp();
    show_sockname("before", fd);
    show("bind", bind(fd, &Addr::local(0)));
    let (_, addr) = getsockname(fd);
    say!("got a port: {}", addr.port() != 0);
    label_port(addr.port(), "P");
    show_sockname("after", fd);
    let any = tcp();
    show("bind wildcard", bind(any, &Addr::any(0)));
    label_port(getsockname(any).1.port(), "Q");
    show_sockname("wildcard", any);
    say!("ports differ: {}", getsockname(any).1.port() != addr.port());
}

fn addr_in_use() {
    let (_, addr) = listener();
    show("bind to a listening port", bind(tcp(), &addr));
    let (_, addr) = held();
    show("bind to a bound port", bind(tcp(), &addr));
    let unbound = tcp();
    show("bind fails", bind(unbound, &addr));
    show_sockname("after the failure", unbound);
    show("bind elsewhere", bind(unbound, &Addr::local(0)));
}

/// What each server does when it is started again: its old connections must not keep it from its port.
fn reuseaddr_restart() {
    let first = on(libc::SO_REUSEADDR);
    let addr = listen_on(first, &Addr::local(0), 16);
    let pair = connect_to(first, &addr);
    close(first);
    let second = on(libc::SO_REUSEADDR);
    show("bind while a connection lives", bind(second, &addr));
    show("listen", listen(second, 16));
    let again = connect_to(second, &addr);
    show_send("new client", again.client, b"new", 0);
    await_readable(again.server);
    show_recv("new server", again.server, 8, 0);
    show_send("old client", pair.client, b"old", 0);
    await_readable(pair.server);
    show_recv("old server", pair.server, 8, 0);
    close_all(&[again.server, again.client, pair.server, pair.client, second]);
    let third = on(libc::SO_REUSEADDR);
    show("bind after all closed", bind(third, &addr));
    show("listen", listen(third, 16));
}

fn reuseaddr_pair() {
    let a = on(libc::SO_REUSEADDR);
    show("bind a", bind(a, &Addr::local(0)));
    let (_, addr) = getsockname(a);
    let b = on(libc::SO_REUSEADDR);
    show("bind b, nobody listens", bind(b, &addr));
    show("listen a", listen(a, 1));
    show("listen b", listen(b, 1));
    let c = on(libc::SO_REUSEADDR);
    show("bind c, somebody listens", bind(c, &addr));
    show("bind d without the option", bind(tcp(), &addr));
}

fn reuseport() {
    let a = on(libc::SO_REUSEPORT);
    let addr = listen_on(a, &Addr::local(0), 128);
    let b = on(libc::SO_REUSEPORT);
    show("bind b", bind(b, &addr));
    show("listen b", listen(b, 128));
    show("bind c without the option", bind(tcp(), &addr));
    set_nonblocking(a, true);
    set_nonblocking(b, true);
    let clients: Vec<i32> = (0..64).map(|_| dial(&addr)).collect();
    let (mut from_a, mut from_b) = (0, 0);
    while accept(a).ok() {
        from_a += 1;
    }
    while accept(b).ok() {
        from_b += 1;
    }
    say!("accepted together {}, each some: {}", from_a + from_b, from_a > 0 && from_b > 0);
    close(a);
    let more: Vec<i32> = (0..8).map(|_| dial(&addr)).collect();
    let taken = (0..8).filter(|_| accept(b).ok()).count();
    say!("after one listener closed, the other takes {taken}");
    close_all(&clients);
    close_all(&more);
}

fn free_after_close() {
    let (fd, addr) = listener();
    close(fd);
    let again = tcp();
    show("bind after close of an unused listener", bind(again, &addr));
    show("listen", listen(again, 1));
    close(again);
    let (fd, addr) = held();
    close(fd);
    show("bind after close of a bound socket", bind(tcp(), &addr));
}

fn wildcard_and_specific() {
    let any = tcp();
    let addr = listen_on(any, &Addr::any(0), 4);
    show("specific beside wildcard", bind(tcp(), &Addr::local(addr.port())));
    let (_, addr) = listener();
    show("wildcard beside specific", bind(tcp(), &Addr::any(addr.port())));
}

fn same_port_two_addresses() {
    let one = tcp();
    let addr = listen_on(one, &Addr::local(port_free_everywhere()), 4);
    let two = tcp();
    let second = Addr::v4([127, 0, 0, 2], addr.port());
    show("bind 127.0.0.2", bind(two, &second));
    show("listen", listen(two, 4));
    let client = tcp();
    show("connect 127.0.0.2", connect(client, &second));
    show_send("client", client, b"two", 0);
    set_nonblocking(one, true);
    show("accept on 127.0.0.1", accept(one));
    let accepted = show_fd("accept on 127.0.0.2", accept(two));
    await_readable(accepted);
    show_recv("server", accepted, 8, 0);
    show_sockname("accepted", accepted);
}

fn client_port() {
    let (listening, addr) = listener();
    let client = tcp();
    show("bind", bind(client, &Addr::local(0)));
    let own = getsockname(client).1;
    label_port(own.port(), "C");
    show("connect", connect(client, &addr));
    show_sockname("client", client);
    let (result, peer) = accept_addr(listening);
    show_fd("accept", result);
    say!("peer {peer}, the client's port: {}", peer.port() == own.port());
    show_peername("server", result.fd());
}

fn client_address() {
    let (listening, addr) = listener();
    let client = tcp();
    show("bind 127.0.0.5", bind(client, &Addr::v4([127, 0, 0, 5], 0)));
    show("connect", connect(client, &addr));
    label_port(getsockname(client).1.port(), "C");
    show_sockname("client", client);
    let (result, peer) = accept_addr(listening);
    show_fd("accept", result);
    say!("peer {peer}");
    show_peername("client", client);
    show_sockname("server", result.fd());
}

fn client_port_in_use() {
    let (listening, addr) = listener();
    let first = connect_to(listening, &addr);
    let own = getsockname(first.client).1;
    show("bind to the port of a connected client", bind(tcp(), &own));
    let reuse = on(libc::SO_REUSEADDR);
    show("the same with SO_REUSEADDR", bind(reuse, &own));
    let (_, addr) = held();
    show("bind to a bound client's port", bind(tcp(), &addr));
}

fn not_local() {
    show("bind 198.51.100.1", bind(tcp(), &Addr::v4([198, 51, 100, 1], 0)));
    show("bind 255.255.255.255", bind(tcp(), &Addr::v4([255, 255, 255, 255], 0)));
    show("bind 224.0.0.1", bind(tcp(), &Addr::v4([224, 0, 0, 1], 0)));
    show("bind 127.255.255.254", bind(tcp(), &Addr::v4([127, 255, 255, 254], 0)));
    let distant = "2001:db8::1".parse().expect("an address");
    show("bind 2001:db8::1", bind(tcp6(), &Addr::v6(distant, 0)));
}

fn twice() {
    let (fd, addr) = held();
    show("bind again, same address", bind(fd, &addr));
    show("bind again, other port", bind(fd, &Addr::local(0)));
    let (listening, addr) = listener();
    show("bind of a listener", bind(listening, &Addr::local(0)));
    let pair = connect_to(listening, &addr);
    show("bind of a connected client", bind(pair.client, &Addr::local(0)));
    show("bind of an accepted socket", bind(pair.server, &Addr::local(0)));
}

fn family() {
    let fd = tcp();
    show("INET6 address on INET", bind(fd, &Addr::local6(0)));
    show("UNIX family on INET", bind(fd, &Addr::local(0).with_family(libc::AF_UNIX)));
    show("UNSPEC 127.0.0.1", bind(fd, &Addr::local(0).with_family(libc::AF_UNSPEC)));
    show("UNSPEC 0.0.0.0", bind(fd, &Addr::any(0).with_family(libc::AF_UNSPEC)));
    let fd = tcp6();
    show("INET address on INET6", bind(fd, &Addr::local(0).with_len(28)));
    show("INET address of INET length on INET6", bind(fd, &Addr::local(0)));
}

fn errors() {
    let (fd, (read_end, _)) = (tcp(), pipe(0));
    let addr = Addr::local(0);
    show("bad descriptor", bind(-1, &addr));
    show("closed descriptor", bind(999, &addr));
    show("pipe", bind(read_end, &addr));
    show("regular file", bind(temporary_file(b""), &addr));
    show("epoll", bind(epoll(), &addr));
    show("null address", bind_raw(fd, ptr::null(), 16));
    show("bad address", bind_raw(fd, ptr::without_provenance(8), 16));
    show("length 0", bind(fd, &addr.with_len(0)));
    show("length 15", bind(fd, &addr.with_len(15)));
    show("length 17", bind(fd, &addr.with_len(17)));
    show("length -1", bind(tcp(), &addr.with_len(u32::MAX)));
    show("length 129", bind(tcp(), &addr.with_len(129)));
    show("length 128", bind(tcp(), &addr.with_len(128)));
    show("unix socket", bind(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd(), &addr));
}

fn explicit_then_listen() {
    let port = free_port();
    let fd = tcp();
    show("bind to an explicit port", bind(fd, &Addr::local(port)));
    show("listen", listen(fd, 4));
    show_sockname("listener", fd);
    let client = tcp();
    show("connect", connect(client, &Addr::local(port)));
    show_peername("client", client);
    show_fd("accept", accept(fd));
}

/// The side that closes first keeps the port busy for those who do not ask for reuse.
fn time_wait() {
    let listening = on(libc::SO_REUSEADDR);
    let addr = listen_on(listening, &Addr::local(0), 4);
    let pair = connect_to(listening, &addr);
    end_server_first(listening, &pair);
    show("bind without SO_REUSEADDR", bind(tcp(), &addr));
    show("bind with SO_REUSEADDR", bind(on(libc::SO_REUSEADDR), &addr));
}

/// The side that closes last leaves its port free, and so does a reset.
fn no_time_wait() {
    let listening = tcp();
    let addr = listen_on(listening, &Addr::local(0), 4);
    let pair = connect_to(listening, &addr);
    close(listening);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show("bind while the server's socket is open", bind(tcp(), &addr));
    close(pair.server);
    sleep(2);
    show("bind after it closed", bind(tcp(), &addr));
    let listening = tcp();
    let addr = listen_on(listening, &Addr::local(0), 4);
    let pair = connect_to(listening, &addr);
    close(listening);
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show("bind after a reset", bind(tcp(), &addr));
}

/// A listener is gone, a connection of it lives.
fn connection_lives() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    close(listening);
    show("bind", bind(tcp(), &addr));
    show("with SO_REUSEADDR now only", bind(on(libc::SO_REUSEADDR), &addr));
    show("the wildcard", bind(tcp(), &Addr::any(addr.port())));
    show("another address", bind(tcp(), &Addr::v4([127, 0, 0, 9], addr.port())));
    let failed = tcp();
    show("bind fails", bind(failed, &addr));
    show_sockname("after the failure", failed);
    show("bind elsewhere", bind(failed, &Addr::local(0)));
    show_send("the connection", pair.client, b"lives", 0);
}

fn client_time_wait() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    let own = getsockname(pair.client).1;
    close(pair.client);
    await_readable(pair.server);
    close(pair.server);
    sleep(2);
    show("bind to the port of the client that closed first", bind(tcp(), &own));
    show("with SO_REUSEADDR", bind(on(libc::SO_REUSEADDR), &own));
}

/// A source address that is not this host's: nobody answers.
fn foreign_source() {
    let (listening, addr) = listener();
    for option in [libc::IP_FREEBIND, libc::IP_TRANSPARENT] {
        let fd = tcp_nonblocking();
        show("option", set_int(fd, libc::IPPROTO_IP, option, 1));
        show("bind", bind(fd, &Addr::v4([192, 0, 2, 7], 0)));
        show("connect", connect(fd, &addr));
        show_poll_for("client", fd, libc::POLLOUT, 50);
        say!("{}", getsockname(fd).1.port() != 0);
        close(fd);
    }
    let fd = tcp();
    show("without", bind(fd, &Addr::v4([192, 0, 2, 7], 0)));
    show_poll_for("listener", listening, libc::POLLIN, 0);
}

fn address_without_port() {
    let (listening, addr) = listener();
    let fd = tcp();
    show("option", set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1));
    show("bind", bind(fd, &Addr::v4([127, 0, 0, 5], 0)));
    show_sockname("bound", fd);
    show("bind again", bind(fd, &Addr::v4([127, 0, 0, 6], 0)));
    show("connect", connect(fd, &addr));
    label_port(getsockname(fd).1.port(), "C");
    show_sockname("connected", fd);
    let (result, peer) = accept_addr(listening);
    say!("accept {} {peer}", result.ok());
    let fd = tcp();
    set_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    bind(fd, &Addr::v4([127, 0, 0, 5], 0));
    show("listen", listen(fd, 4));
    say!("has a port {}", getsockname(fd).1.port() != 0);
}

fn device() {
    let (_listening, addr) = listener();
    let fd = tcp();
    show("SO_BINDTODEVICE", set_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"lo\0"));
    show("connect", connect(fd, &addr));
    let mut name = [0; 16];
    let (result, len) = get_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &mut name);
    say!("{result} {len} {}", text(&name[..len.min(16)]));
    show("to none", set_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"\0"));
    show_option("SO_BINDTOIFINDEX", fd, libc::SOL_SOCKET, 62);
}

/// Some of the ports that the kernel may choose are those of connections that ended here just now. Whatever port a socket
/// gets, it keeps what was set on it.
fn chosen_port_keeps_options() {
    const LOCAL_PORT_RANGE: i32 = 51;
    const F_SETSIG: i32 = 10;
    const F_GETSIG: i32 = 11;
    let (listening, addr) = listener();
    let ended = (0..24).map(|_| {
        let pair = connect_to(listening, &addr);
        let port = u32::from(getsockname(pair.client).1.port());
        close_all(&[pair.client, pair.server]);
        port
    });
    let ended: Vec<u32> = ended.collect();
    let first = ended.iter().copied().min().unwrap_or(0);
    let last = ended.iter().map(|port| port + 96).max().unwrap_or(0).min(65_535);
    let options = [
        (libc::IPPROTO_IP, LOCAL_PORT_RANGE, (last << 16 | first) as i32),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 31),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 77),
        (libc::SOL_SOCKET, libc::SO_PRIORITY, 4),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 3),
    ];
    let (mut bound, mut kept) = (0, 0);
    for _ in 0..12 {
        let fd = tcp_nonblocking();
        for (level, name, value) in options {
            set_int(fd, level, name, value);
        }
        fcntl(fd, libc::F_SETOWN, getpid());
        fcntl(fd, F_SETSIG, libc::SIGUSR1);
        bound += i32::from(bind(fd, &Addr::local(0)).ok() && listen(fd, 4).ok());
        let same = |(level, name, value)| get_int(fd, level, name).1 == value;
        let owner = fcntl(fd, libc::F_GETOWN, 0).fd() == getpid();
        let signal = fcntl(fd, F_GETSIG, 0).fd() == libc::SIGUSR1;
        kept += i32::from(options.into_iter().all(same) && owner && signal);
    }
    say!("bound {bound}, kept {kept}");
}
