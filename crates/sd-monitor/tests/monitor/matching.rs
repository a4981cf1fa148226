//! Which connections that the kernel has made are found to be one, and which not (ADR 82).

use crate::client::Client;
use crate::hostile::NOBODY;
use crate::offers::offer as request;
use crate::process::Process;
use crate::server::{Server, until};
use harness::network::Network;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use sd_proto::{ErrorCode, Ip, Reply, Request, Route};
use sd_shm::channel::{Side, SlotState};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// A role, as a client states it.
const CONNECTED: bool = true;
const ACCEPTED: bool = false;

/// What a client is told when the other end was found.
#[derive(Debug, PartialEq, Eq)]
struct Promoted {
    serial: u64,
    channel: u64,
    side: u32,
    ticket: u64,
    peer: u64,
}

impl Promoted {
    fn of(reply: &Reply) -> Option<Promoted> {
        match *reply {
            Reply::Promote { serial, channel, side, ticket, peer, .. } => {
                Some(Promoted { serial, channel, side, ticket, peer })
            }
            _ => None,
        }
    }
}

fn offer(client: &Client, serial: u64, connected: bool, socket: &impl AsRawFd) -> Reply {
    client.control.ask(request(serial, connected), &[socket.as_raw_fd()]).0
}

/// The descriptors, if the channel is new to the client.
fn told(client: &Client) -> (Promoted, Vec<OwnedFd>) {
    let (reply, fds) = client.control.receive().unwrap();
    (Promoted::of(&reply).unwrap_or_else(|| panic!("{reply:?}")), fds)
}

fn is_told_nothing(client: &Client) -> bool {
    client.control.status();
    matches!(client.control.receive_with(libc::MSG_DONTWAIT), Err(sd_sys::Errno::EAGAIN))
}

/// B offers the other end of what A has offered, and both are told of one channel.
fn is_found((a, serial_a): (&Client, u64), (b, serial_b): (&Client, u64), accepted: &TcpStream) {
    b.control.tell(request(serial_b, ACCEPTED), &[accepted.as_raw_fd()]);
    let at_b = b.take_channel();
    let (of_b, none) = told(b);
    assert!(none.is_empty(), "B has it already");
    assert_eq!(b.control.receive().unwrap().0, Reply::Ok);
    let (of_a, fds) = told(a);
    assert_eq!(fds.len(), 3);
    assert_eq!((of_a.serial, of_a.side, of_b.serial, of_b.side), (serial_a, 0, serial_b, 1));
    assert_eq!((of_a.channel, of_a.ticket), (at_b.id, of_b.ticket));
    assert_eq!(of_b.channel, at_b.id);
    assert!(of_a.ticket != 0 && of_a.peer != of_b.peer);
    let segment = nix::sys::stat::fstat(&fds[0]).unwrap();
    assert_eq!(segment.st_ino, at_b.inode());
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// A connection that is offered goes on as it was, whatever the monitor asks of its socket.
#[test]
fn what_is_offered_is_not_disturbed() {
    use std::io::{Read, Write};
    let server = Server::start_with_promotion("");
    let client = Client::register(&server);
    let (mut near, mut far) = pair();
    let reuse = sockopt::ReuseAddr;
    for round in 0..50u8 {
        setsockopt(&near, reuse, &(round % 2 == 0)).unwrap();
        near.write_all(&[round; 3000]).unwrap();
        far.write_all(&[!round; 500]).unwrap();
        assert_eq!(offer(&client, u64::from(round), CONNECTED, &near), Reply::Ok);
        assert_eq!(nix::sys::socket::getsockopt(&near, reuse).unwrap(), round % 2 == 0);
        let (mut there, mut here) = ([0; 3000], [0; 500]);
        far.read_exact(&mut there).unwrap();
        near.read_exact(&mut here).unwrap();
        assert!(there == [round; 3000] && here == [!round; 500]);
    }
    drop(far);
    assert_eq!(near.read(&mut [0]).unwrap(), 0);
}

/// Who always has bytes to send is found by its names, once the other end waits.
#[test]
fn a_sender_of_bulk_is_found() {
    use std::io::Write;
    let server = Server::start_with_promotion("");
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (near, mut far) = pair();
    far.set_nonblocking(true).unwrap();
    while far.write(&[0; 65_536]).is_ok() {}
    assert_eq!(b.control.refused(request(1, ACCEPTED), &[far.as_raw_fd()]), ErrorCode::InUse);
    assert_eq!(offer(&a, 2, CONNECTED, &near), Reply::Ok);
    is_found((&a, 2), (&b, 3), &far);
}

#[test]
fn the_policy_keeps_connections_with_the_kernel() {
    let (near, far) = pair();
    let port = far.local_addr().unwrap().port();
    let server = Server::start_with_promotion(&format!("stay port={port}"));
    let (a, b) = (Client::register(&server), Client::register(&server));
    assert_eq!(a.control.refused(request(1, CONNECTED), &[near.as_raw_fd()]), ErrorCode::Denied);
    assert_eq!(offer(&b, 2, ACCEPTED, &far), Reply::Ok);
    assert_eq!(a.control.refused(request(3, CONNECTED), &[near.as_raw_fd()]), ErrorCode::Denied);
    assert!(is_told_nothing(&b));
    let read = |policy: String| {
        let in_force = || a.slab.header().policy.load(Ordering::Acquire);
        let before = in_force();
        server.write_policy(&policy);
        server.signal(Signal::SIGHUP);
        until("the policy is read", || in_force() != before);
    };
    for policy in [format!("kernel port={port}"), format!("deny port={port}"), "default kernel".into()] {
        read(policy);
        assert_eq!(a.control.refused(request(4, CONNECTED), &[near.as_raw_fd()]), ErrorCode::Denied);
    }
    read(format!("stay port={}", port ^ 1));
    a.control.tell(request(5, CONNECTED), &[near.as_raw_fd()]);
    assert_eq!(told(&a).0.serial, 5, "what B has offered is there still");
}

#[test]
fn an_offer_ends_with_its_client() {
    let server = Server::start_with_promotion("");
    let (near, far) = pair();
    let mut process = Process::fork(|ready| {
        let a = Client::register(&server);
        assert_eq!(offer(&a, 1, CONNECTED, &near), Reply::Ok);
        ready();
        std::mem::forget(a);
        std::thread::sleep(std::time::Duration::from_secs(60));
    });
    process.wait_ready();
    process.kill();
    let b = Client::register(&server);
    until("its client is gone", || {
        b.control.status()["clients"].as_array().is_some_and(|all| all.len() == 1)
    });
    assert_eq!(offer(&b, 2, ACCEPTED, &far), Reply::Ok);
    assert!(is_told_nothing(&b));
}

/// A network namespace for each end of a connection, with these names.
struct Tenant {
    networks: [Network; 2],
    a: Client,
    b: Client,
    near: TcpStream,
    far: TcpStream,
    /// Another connection between the same addresses.
    other: (TcpStream, TcpStream),
}

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PORT: u16 = 7000;

/// A connection from this port.
fn connection(networks: &[Network; 2], listener: &TcpListener, from: u16) -> (TcpStream, TcpStream) {
    let near = networks[0].inside(|| {
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        let [a, b, c, d] = NEAR.octets();
        bind(fd.as_raw_fd(), &SockaddrIn::new(a, b, c, d, from))?;
        let [a, b, c, d] = FAR.octets();
        connect(fd.as_raw_fd(), &SockaddrIn::new(a, b, c, d, PORT))?;
        Ok(TcpStream::from(fd))
    });
    (near.unwrap(), listener.accept().unwrap().0)
}

fn tenant(server: &Server) -> Tenant {
    let networks = [Network::new().unwrap(), Network::new().unwrap()];
    Network::join([(&networks[0], NEAR), (&networks[1], FAR)]).unwrap();
    let listener = networks[1].inside(|| Ok(TcpListener::bind((FAR, PORT))?)).unwrap();
    let (near, far) = connection(&networks, &listener, 6000);
    let other = connection(&networks, &listener, 6001);
    let register = |at: usize| networks[at].inside(|| Ok(Client::register(server))).unwrap();
    let (a, b) = (register(0), register(1));
    Tenant { a, b, near, far, other, networks }
}

/// All four ends are offered, and what liars offer besides leads nobody astray.
#[test]
fn tenants_with_the_same_names_are_kept_apart() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let server = Server::start_with_promotion("");
    let (one, two) = (tenant(&server), tenant(&server));
    assert_eq!(one.near.local_addr().unwrap(), two.near.local_addr().unwrap());
    assert_eq!(one.far.peer_addr().unwrap(), two.far.peer_addr().unwrap());
    assert_eq!(offer(&one.a, 1, CONNECTED, &one.near), Reply::Ok);
    assert_eq!(offer(&two.a, 2, CONNECTED, &two.near), Reply::Ok);
    // Another connection than the one that is waited for, and the right one in a wrong role, or in two.
    let liar = Client::register(&server);
    assert_eq!(offer(&liar, 3, ACCEPTED, &two.other.1), Reply::Ok);
    assert_eq!(offer(&liar, 4, ACCEPTED, &two.other.0), Reply::Ok);
    assert_eq!(offer(&two.b, 5, CONNECTED, &two.far), Reply::Ok);
    let (near, far) = pair();
    assert_eq!(offer(&liar, 6, ACCEPTED, &near), Reply::Ok);
    assert_eq!(offer(&liar, 7, CONNECTED, &far), Reply::Ok);
    assert!([&one.a, &two.a, &two.b, &liar].into_iter().all(is_told_nothing));
    is_found((&two.a, 2), (&two.b, 8), &two.far);
    is_found((&one.a, 1), (&one.b, 9), &one.far);
    assert!([&one.a, &two.a, &one.b, &two.b, &liar].into_iter().all(is_told_nothing));
}

/// Networks may keep A from what else B listens to; a channel for a connection that was there is no way around.
#[test]
fn a_channel_between_networks_is_for_nothing_else() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let mut server = Server::start_with_promotion("");
    let Tenant { networks, mut a, mut b, near, far, .. } = tenant(&server);
    let listener = networks[1].inside(|| Ok(TcpListener::bind("127.0.0.1:0")?)).unwrap();
    b.listen_with(0, &listener);
    let rules = |client: &Client| client.slab.header().policy.load(Ordering::Acquire);
    let at = Ip::v4([127, 0, 0, 1]);
    let neighbour = networks[1].inside(|| Ok(Client::register(&server))).unwrap();
    let (route, _at_neighbour) = neighbour.connect(listener.local_addr().unwrap().port(), false);
    assert!(matches!(route, Route::Shm { .. }), "{route:?}");
    let known = b.take_channel();
    assert_eq!((rules(&a), rules(&b)), (0, 0));
    assert_eq!(offer(&a, 1, CONNECTED, &near), Reply::Ok);
    b.control.tell(request(2, ACCEPTED), &[far.as_raw_fd()]);
    let channel = b.take_channel();
    assert_ne!(rules(&b), 0, "accept asks");
    assert_eq!(rules(&a), 0);
    let (of_b, _) = told(&b);
    assert_eq!(b.control.receive().unwrap().0, Reply::Ok);
    let (_, fds) = told(&a);
    let admits =
        |b: &Client, channel: u64| b.control.ask(Request::Admits { channel, listener: 0, ip: at }, &[]).0;
    assert_eq!(of_b.channel, channel.id);
    assert_eq!(admits(&b, channel.id), Reply::Error { code: ErrorCode::Denied });
    assert_eq!(admits(&b, known.id), Reply::Ok);
    // A request there is nobody's to hand on.
    channel.map.header().used.store(1, Ordering::Release);
    channel.declare(0, Side::A, 1, SlotState::Syn);
    b.control.ask(Request::Unlisten { index: 0 }, &[]);
    assert_eq!(channel.state(0, Side::B).1, SlotState::Free);
    // Nor after a restart of the monitor.
    b.listen_with(0, &listener);
    server.kill();
    server.restart_with(|command| {
        command.env("SD_TEST_PROMOTE", "1");
    });
    b.register_again(&server);
    assert_ne!(rules(&b), 0);
    let bring = |side, peer_pid| Request::Channel { id: channel.id, side, peer_pid, adopter: 0 };
    b.control.tell(bring(1, channel.peer_pid), &[channel.segment.as_raw_fd()]);
    b.listen_with(0, &listener);
    assert_eq!(admits(&b, channel.id), Reply::Error { code: ErrorCode::Protocol }, "A is not known yet");
    a.register_again(&server);
    a.control.tell(bring(0, channel.peer_pid), &[fds[0].as_raw_fd()]);
    a.control.status();
    assert_eq!(admits(&b, channel.id), Reply::Error { code: ErrorCode::Denied });
}

/// Each user's offers are counted by themselves.
#[test]
fn the_offers_of_one_user_are_bounded() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let server = Server::start_with_promotion("");
    // Its ports are nobody else's.
    let network = Network::new().unwrap();
    let mut attacker = Process::fork(|ready| {
        network.enter().unwrap();
        nix::unistd::setresuid(NOBODY, NOBODY, NOBODY).unwrap();
        let client = Client::register(&server);
        let refused = (0..6000).find(|serial| {
            let (near, _far) = pair();
            offer(&client, *serial, CONNECTED, &near) != Reply::Ok
        });
        assert_eq!(refused, Some(4096));
        ready();
        std::mem::forget(client);
        std::thread::sleep(std::time::Duration::from_secs(60));
    });
    attacker.wait_ready();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (near, far) = pair();
    assert_eq!(offer(&a, 1, CONNECTED, &near), Reply::Ok);
    is_found((&a, 1), (&b, 2), &far);
    attacker.kill();
}
