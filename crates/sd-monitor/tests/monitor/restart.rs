//! A monitor that was killed, and its successor.

use crate::client::{Channel, Client, Control, listen, own, pair};
use crate::process::Process;
use crate::server::{Server, until};
use sd_proto::{Reply, Request, Route};
use sd_shm::channel::{FLAG_DEAD, Side, SlotState};
use sd_shm::slab::{Reason, State};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn announce(client: &Client, channel: &Channel, side: Side, peer_pid: u32) {
    let request = Request::Channel { id: channel.id, side: side as u32, peer_pid, adopter: 0 };
    client.control.tell(request, &[channel.segment.as_raw_fd()]);
}

/// A process id that nobody has.
fn dead_pid() -> u32 {
    let mut process = Process::fork(|_| {});
    let pid = process.pid() as u32;
    process.kill();
    pid
}

#[test]
fn clients_bring_everything_back() {
    let mut server = Server::start();
    let (mut a, mut b, _, at_a, at_b) = pair(&server);
    at_a.declare(0, Side::A, 1, SlotState::Syn);
    at_b.declare(0, Side::B, 1, SlotState::Open);
    a.attach(0, at_a.id, Side::A, 0, 1);
    server.kill();
    server.restart();
    let witness = Control::connect(server.socket());
    a.register_again(&server);
    announce(&a, &at_a, Side::A, at_a.peer_pid);
    b.register_again(&server);
    announce(&b, &at_b, Side::B, at_b.peer_pid);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(b.control.ask(listen(0), &[listener.as_raw_fd()]).0, Reply::Ok);
    let status = witness.status();
    assert_eq!((&status["channels"], &status["port_blocks"]), (&1.into(), &1.into()), "{status:#}");
    // New connections get a new channel with a new id.
    let (route, fresh) = a.connect(listener.local_addr().unwrap().port(), false);
    assert!(matches!(route, Route::Shm { fresh: true, .. }));
    assert!(fresh.unwrap().id > at_a.id);
    b.take_channel();
    drop(a);
    let mut dead = [b.control.receive(), b.control.receive()].map(|told| match told {
        Some((Reply::ChannelDead { id }, _)) => id,
        other => panic!("{:?}", other.map(|(reply, _)| reply)),
    });
    dead.sort();
    assert_eq!(dead[0], at_b.id);
    assert_eq!(at_b.state(0, Side::A), (1, SlotState::Closed, FLAG_DEAD));
}

#[test]
fn a_peer_that_died_meanwhile_is_found_out() {
    let mut server = Server::start();
    let (mut a, b, _, at_a, _) = pair(&server);
    at_a.declare(0, Side::B, 1, SlotState::Open);
    server.kill();
    // Two slabs in one process: it is not taken for a silent client.
    let _slab = b.slab_fd.try_clone();
    drop(b);
    server.restart();
    a.register_again(&server);
    let start = Instant::now();
    announce(&a, &at_a, Side::A, dead_pid());
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: at_a.id });
    assert!(start.elapsed() > Duration::from_millis(2900));
    assert_eq!(at_a.state(0, Side::B).1, SlotState::Closed);
    assert_eq!(at_a.map.header().dead[1].load(Ordering::Acquire), 1);
}

#[test]
fn a_peer_that_is_still_to_come_is_not_given_up() {
    let mut server = Server::start();
    let (mut a, mut b, _, at_a, at_b) = pair(&server);
    at_a.declare(0, Side::A, 1, SlotState::Open);
    at_b.declare(0, Side::B, 1, SlotState::Open);
    server.kill();
    server.restart();
    a.register_again(&server);
    announce(&a, &at_a, Side::A, at_a.peer_pid);
    // Whose listeners have changed looks at all its channels.
    assert_eq!(a.control.ask(Request::Unlisten { index: 7 }, &[]).0, Reply::Ok);
    assert_eq!(at_a.state(0, Side::B), (1, SlotState::Open, 0));
    b.register_again(&server);
    announce(&b, &at_b, Side::B, at_b.peer_pid);
    let status = b.control.status();
    assert_eq!(status["channels"], 1, "{status:#}");
    drop(b);
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: at_a.id });
}

#[test]
fn a_silent_peer_is_watched() {
    let mut server = Server::start();
    let (mut a, _b, _, at_a, _) = pair(&server);
    server.kill();
    server.restart();
    a.register_again(&server);
    let mut peer = Process::fork(|_| {});
    let before = server.holdings();
    announce(&a, &at_a, Side::A, peer.pid() as u32);
    until("its process is watched", || server.holdings().0 == before.0 + 2);
    let sleeps = server.sleeps();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(server.sleeps(), sleeps, "without any polling");
    assert_eq!(at_a.map.header().dead[1].load(Ordering::Acquire), 0);
    peer.kill();
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: at_a.id });
    until("nothing is held", || server.holdings() == before);
}

#[test]
fn strange_announcements_are_ignored() {
    let server = Server::start();
    let (a, b, _, at_a, _) = pair(&server);
    let stranger = Client::register(&server);
    // Not recovered, but of this monitor's making.
    announce(&stranger, &at_a, Side::A, 1);
    let request = |id, side| Request::Channel { id, side, peer_pid: 0, adopter: 0 };
    stranger.control.tell(request(1, 2), &[at_a.segment.as_raw_fd()]);
    stranger.control.tell(request(1, 0), &[]);
    stranger.control.tell(request(1, 0), &[stranger.public_fd.as_raw_fd()]);
    let short = own(sd_sys::mem::memfd_sealed(c"short", 4096).unwrap());
    stranger.control.tell(request(1, 0), &[short.as_raw_fd()]);
    let unsealed = nix::sys::memfd::memfd_create(c"unsealed", nix::sys::memfd::MFdFlags::empty()).unwrap();
    sd_sys::mem::ftruncate(unsealed.as_raw_fd(), sd_shm::channel::SEGMENT_LEN).unwrap();
    stranger.control.tell(request(1, 0), &[unsealed.as_raw_fd()]);
    assert_eq!(stranger.control.status()["channels"], 1);
    drop(stranger);
    until("it is gone", || a.control.status()["clients"].as_array().unwrap().len() == 2);
    assert_eq!(at_a.map.header().dead[0].load(Ordering::Acquire), 0);
    drop((a, b));
}

#[test]
fn listeners_that_slabs_tell_of_are_waited_for() {
    let mut server = Server::start();
    let (mut a, mut b) = (Client::register(&server), Client::register(&server));
    let (listener, port) = b.listen(0);
    let endpoint = b.attach(0, 0, Side::B, 0, 1);
    endpoint.ports.store(u32::from(port) << 16, Ordering::Relaxed);
    endpoint.state.store(State::Listen as u8, Ordering::Release);
    // In no slab.
    let (_other, other_port) = b.listen(1);
    server.kill();
    server.restart();
    a.register_again(&server);
    assert_eq!(a.connect(port, false).0, Route::Soon);
    assert_eq!(a.connect(other_port, false).0, Route::Kernel { reason: Reason::NoListener as u32 });
    b.register_again(&server);
    b.listen_with(0, &listener);
    assert!(matches!(a.connect(port, false).0, Route::Shm { .. }));
    server.kill();
    server.restart();
    a.register_again(&server);
    // Its slab is there for as long as it likes.
    until("nobody is expected", || matches!(a.connect(port, false).0, Route::Kernel { .. }));
}
