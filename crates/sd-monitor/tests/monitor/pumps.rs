//! Processes that carry the connections of others (ADR 72).

use crate::authority::{MALLORY, become_user, is_root};
use crate::client::{Client, attach};
use crate::process::Process;
use crate::server::{Server, until};
use sd_proto::{ErrorCode, Reply, Request, Route};
use sd_shm::channel::{FLAG_DEAD, FLAG_RESET, Mapping, Side, SlotState};
use sd_shm::link::Link;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// A pump, and what it has of two processes that were introduced.
struct Carried {
    pump: Client,
    a: Client,
    b: Client,
    near: (u64, Mapping),
    far: (u64, Mapping),
    /// As A and B have them.
    at_a: Mapping,
    at_b: Mapping,
    _fds: Vec<OwnedFd>,
}

fn pump(server: &Server) -> Client {
    let pump = Client::register(server);
    assert_eq!(pump.control.ask(Request::Pump, &[]).0, Reply::Ok);
    pump
}

fn carried(server: &Server) -> Carried {
    let (pump, a, b) = (pump(server), Client::register(server), Client::register(server));
    let (_, port) = b.listen(0);
    let (route, at_a) = a.connect(port, false);
    let (at_a, at_b) = (at_a.unwrap(), b.take_channel());
    let (reply, fds) = pump.control.receive().unwrap();
    let Reply::Twin { near, far, near_stranger: false, far_stranger: false } = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(fds.len(), 6);
    let map = |at: usize| Mapping::map(fds[at].as_raw_fd()).unwrap();
    let inode = |fd: &OwnedFd| sd_sys::fd::identity(fd.as_raw_fd()).unwrap();
    assert_eq!((near, at_a.inode()), (at_a.id, inode(&fds[0]).1));
    assert_eq!((far, at_b.inode()), (at_b.id, inode(&fds[3]).1));
    assert!(matches!(route, Route::Shm { channel, fresh: true, .. } if channel == near));
    let (near, far) = ((near, map(0)), (far, map(3)));
    Carried { pump, a, b, near, far, at_a: at_a.map, at_b: at_b.map, _fds: fds }
}

fn link(map: &Mapping, side: Side) -> Link {
    Link::of(map.header().link[side as usize].load(Ordering::Relaxed))
}

fn state(map: &Mapping, slot: usize, side: Side) -> (u32, SlotState, u32) {
    let words = &map.slot(slot).side[side as usize];
    let (generation, state) = words.state();
    (generation, state, words.flags.load(Ordering::Acquire))
}

#[test]
fn a_monitor_that_was_not_told_has_no_pump() {
    let server = Server::start();
    let liar = Client::register(&server);
    assert_eq!(liar.control.refused(Request::Pump, &[]), ErrorCode::Denied);
}

#[test]
fn a_pump_is_roots_or_the_monitors_and_alone() {
    let server = Server::start_with_pump();
    if is_root() {
        let mut mallory = Process::fork(|ready| {
            become_user(MALLORY);
            let client = Client::register(&server);
            assert_eq!(client.control.refused(Request::Pump, &[]), ErrorCode::Denied);
            ready();
        });
        mallory.wait_ready();
    }
    let first = pump(&server);
    let second = Client::register(&server);
    assert_eq!(second.control.refused(Request::Pump, &[]), ErrorCode::InUse);
    drop(first);
    until("the first is gone", || second.control.ask(Request::Pump, &[]).0 == Reply::Ok);
}

#[test]
fn who_connects_before_there_is_a_pump_asks_again() {
    let server = Server::start_with_pump();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_, port) = b.listen(0);
    assert_eq!(a.connect(port, false).0, Route::Soon);
    let epoch = a.epoch();
    let _pump = pump(&server);
    assert!(a.epoch() > epoch);
    assert!(matches!(a.connect(port, false).0, Route::Shm { fresh: true, .. }));
}

#[test]
fn a_pump_stands_between_two_processes() {
    let server = Server::start_with_pump();
    let it = carried(&server);
    assert_eq!(link(&it.at_a, Side::A), Link::LOCAL);
    assert_eq!(link(&it.at_a, Side::B), Link::PUMP);
    assert_eq!(link(&it.at_b, Side::A), Link::PUMP);
    assert_eq!(link(&it.at_b, Side::B), Link::LOCAL);
    it.at_a.slot(3).side[0].set_state(1, SlotState::Syn);
    assert_eq!(it.near.1.slot(3).side[0].state(), (1, SlotState::Syn));
    assert_eq!(it.at_b.slot(3).side[0].state(), (0, SlotState::Free), "the pump carries, nobody else");
}

#[test]
fn a_dead_pump_resets_what_it_carried() {
    let server = Server::start_with_pump();
    let it = carried(&server);
    for (map, side) in [(&it.at_a, Side::A), (&it.at_b, Side::A)] {
        map.header().used.store(2, Ordering::Release);
        map.slot(0).side[side as usize].set_state(1, SlotState::Syn);
        map.slot(0).side[Side::B as usize].set_state(1, SlotState::Open);
        // Nobody has accepted this one.
        map.slot(1).side[side as usize].set_state(1, SlotState::Syn);
    }
    let Carried { pump, a, b, near, far, at_a, at_b, .. } = it;
    drop(pump);
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: near.0 });
    assert_eq!(b.control.receive().unwrap().0, Reply::ChannelDead { id: far.0 });
    let lost = (1, SlotState::Closed, FLAG_DEAD | FLAG_RESET);
    for slot in [0, 1] {
        assert_eq!(state(&at_a, slot, Side::B), lost);
        assert_eq!(state(&at_b, slot, Side::A), lost);
    }
}

#[test]
fn the_end_of_an_end_is_told_when_all_was_carried() {
    let server = Server::start_with_pump();
    let it = carried(&server);
    let Carried { pump, a, b, near, far, at_b, .. } = it;
    drop(a);
    assert_eq!(pump.control.receive().unwrap().0, Reply::ChannelDead { id: near.0 });
    assert_eq!(at_b.header().dead[0].load(Ordering::Acquire), 0);
    // Nobody else can say so.
    b.control.tell(Request::Over { channel: far.0 }, &[]);
    b.control.status();
    assert_eq!(at_b.header().dead[0].load(Ordering::Acquire), 0);
    pump.control.tell(Request::Over { channel: far.0 }, &[]);
    assert_eq!(b.control.receive().unwrap().0, Reply::ChannelDead { id: far.0 });
    assert_eq!(at_b.header().dead[0].load(Ordering::Acquire), 1);
}

#[test]
fn a_carried_connection_is_shown_as_such() {
    let server = Server::start_with_pump();
    let it = carried(&server);
    for (map, side) in [(&it.at_a, Side::A), (&it.at_b, Side::B)] {
        map.slot(2).side[side as usize].set_state(1, SlotState::Open);
    }
    it.a.attach(0, it.near.0, Side::A, 2, 1);
    attach(&it.b.slab, 7, it.far.0, Side::B, 2, 1);
    it.a.slab.tx(0).unwrap().bytes.store(100, Ordering::Relaxed);
    let status = it.a.control.status();
    let connections = status["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 2, "{status:#}");
    for connection in connections {
        assert_eq!((&connection["path"], &connection["carrier"]), (&"engine".into(), &"loopback".into()));
        assert_eq!(connection["reason"], "the monitor was told to use a pump");
    }
    // The two ends are of one connection, though each has a channel of its own.
    let find = |key: &str| connections.iter().any(|c| c[key] == 100);
    assert!(find("tx_queue") && find("rx_queue"), "{status:#}");
}
