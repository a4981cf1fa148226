//! Sockets in the states of the matrix. Ports get no labels: a number may serve two roles in one run.
//!
//! All are of one family (`family.rs`), IPv4 unless something else is said.

use super::family::{local, tcp};
use crate::setup::abort;
use crate::sys::*;

/// A socket in some state, and what keeps it there.
pub(super) struct Made {
    pub(super) fd: i32,
    /// A listener that accepts new connections.
    pub(super) elsewhere: Addr,
    others: Vec<i32>,
    /// The first of the others is the other end of the connection.
    has_peer: bool,
}

impl Made {
    fn new(fd: i32, mut others: Vec<i32>) -> Made {
        let (listener, elsewhere) = listener();
        others.push(listener);
        Made { fd, elsewhere, others, has_peer: false }
    }

    /// One end of a connection, and the other.
    fn of_pair(fd: i32, peer: i32) -> Made {
        Made { has_peer: true, ..Made::new(fd, vec![peer]) }
    }

    /// The other end of the connection.
    pub(super) fn peer(&self) -> Option<i32> {
        self.others.first().copied().filter(|_| self.has_peer)
    }

    /// Closes all, and leaves no port in TIME-WAIT.
    pub(super) fn abort(self) {
        abort(self.fd);
        self.others.into_iter().for_each(abort);
    }

    pub(super) fn close(self) {
        close(self.fd);
        for fd in self.others {
            close(fd);
        }
    }
}

fn listener() -> (i32, Addr) {
    let fd = tcp();
    bind(fd, &local());
    listen(fd, 4);
    (fd, getsockname(fd).1)
}

fn dial(addr: &Addr) -> i32 {
    let fd = tcp();
    connect(fd, addr);
    fd
}

/// Both ends of a new connection.
pub(super) fn pair() -> (i32, i32) {
    let (listening, addr) = listener();
    let client = dial(&addr);
    let server = accept(listening).fd();
    close(listening);
    (client, server)
}

/// Bytes from one end, until they are at the other.
pub(super) fn give(from: i32, to: i32, data: &[u8]) {
    send(from, data, libc::MSG_NOSIGNAL);
    await_bytes(to, data.len() as i32);
}

/// Until an urgent byte is there.
pub(super) fn await_urgent(fd: i32) {
    await_events(fd, libc::POLLPRI);
}

pub(super) fn fresh() -> Made {
    Made::new(tcp(), Vec::new())
}

pub(super) fn bound() -> Made {
    let fd = tcp();
    bind(fd, &local());
    Made::new(fd, Vec::new())
}

pub(super) fn listening() -> Made {
    Made::new(listener().0, Vec::new())
}

pub(super) fn connection_waits() -> Made {
    let (fd, addr) = listener();
    let clients = vec![dial(&addr), dial(&addr)];
    await_readable(fd);
    Made::new(fd, clients)
}

pub(super) fn listener_shut() -> Made {
    let (fd, _) = listener();
    shutdown(fd, libc::SHUT_RDWR);
    Made::new(fd, Vec::new())
}

pub(super) fn listener_shut_and_again() -> Made {
    let (fd, addr) = listener();
    shutdown(fd, libc::SHUT_RD);
    listen(fd, 4);
    Made::new(fd, vec![dial(&addr)])
}

pub(super) fn connected() -> Made {
    let (client, server) = pair();
    Made::of_pair(client, server)
}

pub(super) fn accepted() -> Made {
    let (client, server) = pair();
    Made::of_pair(server, client)
}

/// The client has gone before accept, with bytes on the way.
pub(super) fn accepted_closed() -> Made {
    let (listening, addr) = listener();
    let client = dial(&addr);
    send(client, b"0123456789", 0);
    close(client);
    let server = accept(listening).fd();
    close(listening);
    await_events(server, libc::POLLRDHUP);
    Made::new(server, Vec::new())
}

/// The client has reset the connection before accept.
pub(super) fn accepted_reset() -> Made {
    let (listening, addr) = listener();
    let client = dial(&addr);
    send(client, b"0123456789", 0);
    abort(client);
    let server = accept(listening).fd();
    close(listening);
    await_events(server, libc::POLLHUP);
    Made::new(server, Vec::new())
}

/// Bytes went both ways, and were read.
pub(super) fn used() -> Made {
    let (client, server) = pair();
    for (from, to) in [(client, server), (server, client)] {
        give(from, to, b"0123456789");
        recv(to, &mut [0; 16], 0);
    }
    Made::of_pair(client, server)
}

/// Reset after all was read.
pub(super) fn reset_read() -> Made {
    let (client, server) = pair();
    give(server, client, b"0123456789");
    recv(client, &mut [0; 16], 0);
    abort(server);
    await_events(client, libc::POLLHUP);
    Made::new(client, Vec::new())
}

/// The peer has shut down both directions, with bytes on the way.
pub(super) fn peer_shut_both_data() -> Made {
    let (client, server) = pair();
    give(client, server, b"0123456789");
    shutdown(client, libc::SHUT_RDWR);
    await_events(server, libc::POLLRDHUP);
    Made::of_pair(server, client)
}

/// Shut down for both directions, with bytes that were not read.
pub(super) fn shut_both_data() -> Made {
    let (client, server) = pair();
    give(client, server, b"0123456789");
    shutdown(server, libc::SHUT_RDWR);
    await_events(client, libc::POLLRDHUP);
    Made::of_pair(server, client)
}

/// A listener that was made to stop.
pub(super) fn listener_disconnected() -> Made {
    let (fd, _) = listener();
    connect(fd, &Addr::unspec());
    Made::new(fd, Vec::new())
}

/// A socket that had a connection, was disconnected, and is connected again.
pub(super) fn connected_again() -> Made {
    let made = disconnected();
    let (listening, addr) = listener();
    connect(made.fd, &addr);
    let server = accept(listening).fd();
    close(listening);
    made.others.into_iter().for_each(|fd| _ = close(fd));
    Made::of_pair(made.fd, server)
}

pub(super) fn data_waiting() -> Made {
    let (client, server) = pair();
    give(client, server, b"0123456789");
    Made::of_pair(server, client)
}

/// Bytes, an urgent one, and bytes.
pub(super) fn urgent_waiting() -> Made {
    let (client, server) = pair();
    send(client, b"012", 0);
    send(client, b"3", libc::MSG_OOB);
    send(client, b"45", 0);
    await_urgent(server);
    sleep(1);
    Made::of_pair(server, client)
}

/// A connect that waits for room in the backlog.
pub(super) fn connecting() -> Made {
    let fd = tcp();
    bind(fd, &local());
    listen(fd, 0);
    let addr = getsockname(fd).1;
    let first = dial(&addr);
    await_readable(fd);
    let second = tcp();
    set_nonblocking(second, true);
    connect(second, &addr);
    Made::new(second, vec![fd, first])
}

pub(super) fn full() -> Made {
    let (client, server) = pair();
    set_int(client, libc::SOL_SOCKET, libc::SO_SNDBUF, 10_000);
    set_int(server, libc::SOL_SOCKET, libc::SO_RCVBUF, 10_000);
    let chunk = [b'f'; 8_192];
    let mut quiet = 0;
    while quiet < 3 {
        let sent =
            send(client, &chunk, libc::MSG_DONTWAIT).ok() || send(client, b"1", libc::MSG_DONTWAIT).ok();
        quiet = if sent { 0 } else { quiet + 1 };
        if !sent {
            sleep(3);
        }
    }
    Made::of_pair(client, server)
}

pub(super) fn shut_read() -> Made {
    let (client, server) = pair();
    shutdown(server, libc::SHUT_RD);
    Made::of_pair(server, client)
}

pub(super) fn shut_read_data() -> Made {
    let (client, server) = pair();
    shutdown(server, libc::SHUT_RD);
    give(client, server, b"0123456789");
    Made::of_pair(server, client)
}

pub(super) fn shut_write() -> Made {
    let (client, server) = pair();
    shutdown(client, libc::SHUT_WR);
    await_events(server, libc::POLLRDHUP);
    Made::of_pair(client, server)
}

pub(super) fn shut_both() -> Made {
    let (client, server) = pair();
    shutdown(client, libc::SHUT_RDWR);
    await_events(server, libc::POLLRDHUP);
    Made::of_pair(client, server)
}

pub(super) fn peer_shut() -> Made {
    let (client, server) = pair();
    shutdown(client, libc::SHUT_WR);
    await_events(server, libc::POLLRDHUP);
    Made::of_pair(server, client)
}

pub(super) fn peer_shut_data() -> Made {
    let (client, server) = pair();
    give(client, server, b"0123456789");
    shutdown(client, libc::SHUT_WR);
    await_events(server, libc::POLLRDHUP);
    Made::of_pair(server, client)
}

pub(super) fn both_shut() -> Made {
    let (client, server) = pair();
    shutdown(client, libc::SHUT_WR);
    await_events(server, libc::POLLRDHUP);
    shutdown(server, libc::SHUT_WR);
    await_events(server, libc::POLLHUP);
    Made::of_pair(server, client)
}

pub(super) fn peer_closed() -> Made {
    let (client, server) = pair();
    close(server);
    await_events(client, libc::POLLRDHUP);
    Made::new(client, Vec::new())
}

pub(super) fn peer_closed_data() -> Made {
    let (client, server) = pair();
    give(server, client, b"0123456789");
    close(server);
    await_events(client, libc::POLLRDHUP);
    Made::new(client, Vec::new())
}

/// What was sent to the closed peer has drawn a reset.
pub(super) fn peer_closed_and_sent() -> Made {
    let made = peer_closed();
    send(made.fd, b"x", libc::MSG_NOSIGNAL);
    await_events(made.fd, libc::POLLHUP);
    made
}

/// The peer closed with bytes that it had not read.
pub(super) fn peer_left_data() -> Made {
    let (client, server) = pair();
    give(client, server, b"unread");
    close(server);
    await_events(client, libc::POLLHUP);
    Made::new(client, Vec::new())
}

pub(super) fn reset() -> Made {
    let (client, server) = pair();
    abort(server);
    await_events(client, libc::POLLHUP);
    Made::new(client, Vec::new())
}

pub(super) fn reset_data() -> Made {
    let (client, server) = pair();
    give(server, client, b"0123456789");
    abort(server);
    await_events(client, libc::POLLHUP);
    Made::new(client, Vec::new())
}

/// A reset connection whose error somebody has taken.
pub(super) fn reset_told() -> Made {
    let made = reset();
    get_int(made.fd, libc::SOL_SOCKET, libc::SO_ERROR);
    made
}

fn nobody() -> Addr {
    let (fd, addr) = listener();
    close(fd);
    addr
}

pub(super) fn refused() -> Made {
    Made::new(dial(&nobody()), Vec::new())
}

/// Refused, and nobody has asked for the error yet.
pub(super) fn refused_untold() -> Made {
    let fd = tcp();
    set_nonblocking(fd, true);
    connect(fd, &nobody());
    await_events(fd, libc::POLLERR);
    Made::new(fd, Vec::new())
}

pub(super) fn disconnected() -> Made {
    let (client, server) = pair();
    connect(client, &Addr::unspec());
    Made::of_pair(client, server)
}

pub(super) fn disconnected_data() -> Made {
    let (client, server) = pair();
    give(server, client, b"0123456789");
    connect(client, &Addr::unspec());
    Made::of_pair(client, server)
}

/// A number that is closed; it is high, so that nothing else gets it.
pub(super) fn closed_number() -> Made {
    let (client, server) = pair();
    let high = dup2(client, 700).fd();
    close(client);
    close(high);
    Made::new(high, vec![server])
}

pub(super) fn no_number() -> Made {
    Made::new(-1, Vec::new())
}

pub(super) fn path_only() -> Made {
    Made::new(open_path(c"/", libc::O_PATH).fd(), Vec::new())
}

pub(super) fn regular_file() -> Made {
    Made::new(temporary_file(b"0123456789"), Vec::new())
}

pub(super) fn read_end() -> Made {
    let (read_end, write_end) = pipe(0);
    write(write_end, b"0123456789");
    Made::new(read_end, vec![write_end])
}

pub(super) fn event_counter() -> Made {
    Made::new(eventfd(1, 0), Vec::new())
}

pub(super) fn epoll_instance() -> Made {
    Made::new(epoll(), Vec::new())
}

pub(super) fn unix_pair() -> Made {
    let (_, [one, other]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    write(other, b"0123456789");
    Made::new(one, vec![other])
}

pub(super) fn udp() -> Made {
    Made::new(socket(libc::AF_INET, libc::SOCK_DGRAM, 0).fd(), Vec::new())
}

pub(super) fn fresh6() -> Made {
    Made::new(crate::setup::tcp6(), Vec::new())
}

pub(super) fn listening6() -> Made {
    let fd = crate::setup::tcp6();
    bind(fd, &Addr::any6(0));
    listen(fd, 4);
    let client = dial(&Addr::local(getsockname(fd).1.port()));
    await_readable(fd);
    Made::new(fd, vec![client])
}

pub(super) fn connected6() -> Made {
    let listening = crate::setup::tcp6();
    bind(listening, &Addr::local6(0));
    listen(listening, 4);
    let client = crate::setup::tcp6();
    connect(client, &getsockname(listening).1);
    let server = accept(listening).fd();
    close(listening);
    Made::of_pair(client, server)
}

/// An IPv6 socket with an IPv4 peer.
pub(super) fn mapped6() -> Made {
    let (listening, addr) = listener();
    let client = crate::setup::tcp6();
    connect(client, &Addr::mapped(addr.port()));
    let server = accept(listening).fd();
    close(listening);
    Made::of_pair(client, server)
}
