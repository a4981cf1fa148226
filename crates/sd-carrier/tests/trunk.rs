//! What only a trunk has: a connection that is not there yet, or never will be; how many calls many packets are.

mod common;

use common::{drain, packet, put, take, tcp, wait};
use sd_carrier::{Carrier, End, Flushed, Received, State, Trunk, TrunkConfig};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A socket that is connecting to this port of the loopback device.
fn connecting(port: u16) -> OwnedFd {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed; what it returns is a descriptor that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, kind, 0)) };
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_be(0x7f00_0001) },
        sin_zero: [0; 8],
    };
    let len = size_of_val(&address) as u32;
    // SAFETY: the pointer is to an address of ours, and its length is told.
    unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    socket
}

#[test]
fn what_is_sent_before_it_is_connected_comes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut here = Trunk::new(connecting(port), TrunkConfig::default()).unwrap();
    assert!(put(&mut here, b"early"));
    while here.flush() == Flushed::Blocked {
        wait(&[&here], -1);
    }
    let mut there = Trunk::new(listener.accept().unwrap().0, TrunkConfig::default()).unwrap();
    assert_eq!(take(&mut there, 1), [b"early"]);
}

#[test]
fn nobody_takes_the_connection() {
    // The port is ours, and nobody listens.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for is_sending in [false, true] {
        let mut here = Trunk::new(connecting(port), TrunkConfig::default()).unwrap();
        if is_sending && put(&mut here, b"lost") {
            here.flush();
        }
        while drain(&mut here, &mut Vec::new()) != Received::Ended {
            wait(&[&here], -1);
        }
        assert_eq!(here.state(), State::Ended(End::Broken(libc::ECONNREFUSED)));
    }
}

#[test]
fn many_packets_are_one_call() {
    let (here, there) = tcp();
    let mut here = Trunk::new(here, TrunkConfig::default()).unwrap();
    let mut there = Trunk::new(there, TrunkConfig::default()).unwrap();
    assert!((0..300).all(|number| put(&mut here, &packet(number, 300))));
    assert_eq!((here.waiting(), here.flush()), (300 * 302, Flushed::All));
    assert_eq!((here.waiting(), here.wants().write), (0, false));
    assert_eq!(take(&mut there, 300).len(), 300);
    assert_eq!((here.counters().packets_sent, here.counters().sends), (300, 1));
    assert!(there.counters().reads < 10, "{:?}", there.counters());
}

#[test]
fn other_sockets_are_refused() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(Trunk::new(socket, TrunkConfig::default()).is_err());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(sd_carrier::Datagram::new(stream, sd_carrier::DatagramConfig::default()).is_err());
}
