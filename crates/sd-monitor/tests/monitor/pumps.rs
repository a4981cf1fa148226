//! Processes that carry the connections of others (ADR 72).

use crate::authority::{MALLORY, become_user, is_root};
use crate::client::{Client, attach};
use crate::process::Process;
use crate::server::{Server, until};
use sd_proto::{ErrorCode, Ip, Reply, Request, Route};
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
    fds: Vec<OwnedFd>,
}

fn pump(server: &Server) -> Client {
    let pump = Client::register(server);
    assert_eq!(pump.control.ask(Request::Pump { again: false }, &[]).0, Reply::Ok);
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
    Carried { pump, a, b, near, far, at_a: at_a.map, at_b: at_b.map, fds }
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
    assert_eq!(liar.control.refused(Request::Pump { again: false }, &[]), ErrorCode::Denied);
}

#[test]
fn a_pump_is_roots_or_the_monitors_and_alone() {
    let server = Server::start_with_pump();
    if is_root() {
        let mut mallory = Process::fork(|ready| {
            become_user(MALLORY);
            let client = Client::register(&server);
            assert_eq!(client.control.refused(Request::Pump { again: false }, &[]), ErrorCode::Denied);
            ready();
        });
        mallory.wait_ready();
    }
    let first = pump(&server);
    let second = Client::register(&server);
    assert_eq!(second.control.refused(Request::Pump { again: false }, &[]), ErrorCode::InUse);
    drop(first);
    until("the first is gone", || second.control.ask(Request::Pump { again: false }, &[]).0 == Reply::Ok);
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

/// The monitor is another one, and all three have come back to it, the pump with what it carries.
fn come_back(server: &mut Server, it: &mut Carried) {
    server.kill();
    server.restart_with(|command| {
        command.env("SD_TEST_PUMP", "1");
    });
    it.a.register_again(server);
    bring(&it.a, it.near.0, Side::A, it.fds[0].as_raw_fd());
    it.pump.register_again(server);
    let again = Request::Pump { again: true };
    assert_eq!(it.pump.control.ask(again, &[]).0, Reply::Ok);
    bring(&it.pump, it.near.0, Side::B, it.fds[0].as_raw_fd());
    bring(&it.pump, it.far.0, Side::A, it.fds[3].as_raw_fd());
    it.pump.control.tell(Request::Carries { near: it.near.0, far: it.far.0 }, &[]);
    it.b.register_again(server);
    bring(&it.b, it.far.0, Side::B, it.fds[3].as_raw_fd());
    assert_eq!(it.b.control.status()["channels"], 2);
}

fn bring(client: &Client, id: u64, side: Side, segment: i32) {
    let peer_pid = std::process::id();
    client.control.tell(Request::Channel { id, side: side as u32, peer_pid, adopter: 0 }, &[segment]);
}

#[test]
fn what_a_pump_of_before_carries_is_known_again() {
    let mut server = Server::start_with_pump();
    let mut it = carried(&server);
    come_back(&mut server, &mut it);
    // New connections are another one's.
    let next = pump(&server);
    assert_eq!(next.control.refused(Request::Pump { again: true }, &[]), ErrorCode::InUse);
    it.a.attach(0, it.near.0, Side::A, 2, 1);
    assert_eq!(it.a.control.status()["connections"][0]["path"], "engine");
    // What nobody can take is the client's to withdraw, who knows it by the near channel; also after a complaint.
    let (listener, port) = it.b.listen(0);
    it.at_b.slot(9).side[0].set_state(1, SlotState::Syn);
    it.at_b.header().used.store(10, Ordering::Release);
    let names = it.at_b.names(9);
    names.ports.store(u32::from(port), Ordering::Relaxed);
    let words = Ip::v4([127, 0, 0, 1]).halves();
    names.remote.iter().zip(words).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
    it.b.control.tell(Request::CannotTake, &[listener.as_raw_fd()]);
    let withdrawn = Reply::Withdraw { channel: it.near.0, slot: 9, generation: 1 };
    assert_eq!(it.a.control.receive().unwrap().0, withdrawn);
    it.a.control.tell(Request::Stuck { channel: it.near.0 }, &[]);
    assert_eq!(it.a.control.receive().unwrap().0, withdrawn);
    // The end of an end.
    let Carried { pump, a, b, near, far, .. } = it;
    drop(a);
    assert_eq!(pump.control.receive().unwrap().0, Reply::ChannelDead { id: near.0 });
    pump.control.tell(Request::Over { channel: far.0 }, &[]);
    assert_eq!(b.control.receive().unwrap().0, Reply::ChannelDead { id: far.0 });
}

#[test]
fn a_pump_of_before_that_dies_resets_what_it_carried() {
    let mut server = Server::start_with_pump();
    let mut it = carried(&server);
    come_back(&mut server, &mut it);
    for (map, side) in [(&it.at_a, Side::B), (&it.at_b, Side::A)] {
        map.header().used.store(1, Ordering::Release);
        map.slot(0).side[side as usize].set_state(1, SlotState::Open);
    }
    let next = pump(&server);
    let Carried { pump, a, b, near, far, at_a, at_b, .. } = it;
    drop(pump);
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: near.0 });
    assert_eq!(b.control.receive().unwrap().0, Reply::ChannelDead { id: far.0 });
    let lost = (1, SlotState::Closed, FLAG_DEAD | FLAG_RESET);
    assert_eq!((state(&at_a, 0, Side::B), state(&at_b, 0, Side::A)), (lost, lost));
    let second = Client::register(&server);
    let first = Request::Pump { again: false };
    assert_eq!(second.control.refused(first, &[]), ErrorCode::InUse, "the new one is still there");
    drop(next);
}

/// The client tells of its server's process; what it has a channel to is the pump.
#[test]
fn a_pump_that_died_with_its_monitor_resets_what_it_carried() {
    let mut server = Server::start_with_pump();
    let mut it = carried(&server);
    it.at_a.header().used.store(1, Ordering::Release);
    it.at_a.slot(0).side[1].set_state(1, SlotState::Open);
    let mut dead = Process::fork(|_| {});
    it.at_a.header().pid[1].store(dead.pid() as u32, Ordering::Relaxed);
    dead.kill();
    server.kill();
    server.restart_with(|command| {
        command.env("SD_TEST_PUMP", "1");
    });
    it.a.register_again(&server);
    bring(&it.a, it.near.0, Side::A, it.fds[0].as_raw_fd());
    assert_eq!(it.a.control.receive().unwrap().0, Reply::ChannelDead { id: it.near.0 });
    assert_eq!(state(&it.at_a, 0, Side::B), (1, SlotState::Closed, FLAG_DEAD | FLAG_RESET));
}

#[test]
fn twins_are_of_who_announced_them_and_on_its_sides() {
    let mut server = Server::start_with_pump();
    let mut it = carried(&server);
    let carries = |near, far| Request::Carries { near, far };
    // Channels of this monitor's are twins already; nobody else speaks of them.
    it.pump.control.tell(carries(it.far.0, it.near.0), &[]);
    it.a.control.tell(carries(it.near.0, it.far.0), &[]);
    come_back(&mut server, &mut it);
    for (near, far) in [(it.far.0, it.near.0), (it.near.0, it.near.0), (it.near.0, 77)] {
        it.pump.control.tell(carries(near, far), &[]);
    }
    it.a.control.tell(carries(it.near.0, it.far.0), &[]);
    let Carried { pump, a, near, .. } = it;
    drop(a);
    assert_eq!(pump.control.receive().unwrap().0, Reply::ChannelDead { id: near.0 });
    if is_root() {
        let mut mallory = Process::fork(|ready| {
            become_user(MALLORY);
            let client = Client::register(&server);
            let again = Request::Pump { again: true };
            assert_eq!(client.control.refused(again, &[]), ErrorCode::Denied);
            ready();
        });
        mallory.wait_ready();
    }
}
