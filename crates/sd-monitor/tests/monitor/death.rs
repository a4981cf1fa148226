//! What peers see when a process is gone.

use crate::client::{Channel, Client, Control, attach, own, pair};
use crate::process::Process;
use crate::server::{Server, until};
use sd_proto::{Reply, Request, Route};
use sd_ring::{TxCursor, doorbell};
use sd_shm::channel::{FLAG_DEAD, FLAG_RESET, GEOMETRY, Side, SlotState};
use sd_shm::rings::Rings;
use sd_shm::slab::State;
use sd_sys::Errno;
use sd_sys::futex::{Scope, wait};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) fn write_message(channel: &Channel, slot: usize, from: Side) {
    let ring = Rings::of(&channel.map, slot, from);
    let mut tx = TxCursor::new(&GEOMETRY);
    tx.reserve(&GEOMETRY, &ring, 8, sd_ring::Effort::Cached).unwrap();
    tx.commit(&ring, 8, 0);
}

/// A process that accepts what comes on slots 1 and 2 and listens on.
fn server_process(server: &Server, listener: &TcpListener) -> Process {
    Process::fork(|ready| {
        let b = Client::register(server);
        b.listen_with(0, listener);
        ready();
        let channel = b.take_channel();
        for slot in [1, 2] {
            channel.declare(slot, Side::B, 1, SlotState::Open);
            b.attach(slot, channel.id, Side::B, slot as u32, 1);
        }
        ready();
        std::mem::forget((b, channel));
    })
}

#[test]
fn kill_of_the_listening_process() {
    let server = Server::start();
    let a = Client::register(&server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut process = server_process(&server, &listener);
    process.wait_ready();
    let (route, channel) = a.connect(listener.local_addr().unwrap().port(), false);
    let channel = channel.unwrap();
    assert!(matches!(route, Route::Shm { peer_pid, .. } if peer_pid == process.pid() as u32));
    process.wait_ready();
    // 1: a reader sleeps. 2: the server did not read something. 3: waits in the backlog. 4: closed.
    (1..=4).for_each(|slot| channel.declare(slot, Side::A, 1, SlotState::Syn));
    channel.declare(4, Side::B, 1, SlotState::Closed);
    write_message(&channel, 2, Side::A);
    let word = &channel.map.slot(1).side[0].wait;
    let epoch = a.epoch();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let armed = doorbell::arm(word, doorbell::RX_SLEEP);
            while word.load(Ordering::SeqCst) & doorbell::RX_SLEEP != 0 {
                let _ = wait(word, armed, Some(5_000_000_000), Scope::Shared);
            }
        });
        until("the reader sleeps", || word.load(Ordering::SeqCst) != 0);
        process.kill();
        sleeper.join().unwrap();
    });
    let told = a.control.receive().unwrap().0;
    assert_eq!(told, Reply::ChannelDead { id: channel.id });
    assert_eq!(channel.state(1, Side::B), (1, SlotState::Closed, FLAG_DEAD));
    assert_eq!(channel.state(2, Side::B), (1, SlotState::Closed, FLAG_DEAD | FLAG_RESET));
    assert_eq!(channel.state(3, Side::B), (1, SlotState::Closed, FLAG_DEAD | FLAG_RESET));
    // What the dead say is theirs no more may be a lie: that side is marked too, but nothing is announced.
    assert_eq!(channel.state(4, Side::B), (1, SlotState::Closed, FLAG_DEAD));
    assert_eq!(channel.state(5, Side::B), (0, SlotState::Free, FLAG_DEAD));
    assert_eq!(channel.map.header().dead[1].load(Ordering::Acquire), 1);
    let mut events = Vec::new();
    channel.map.events(Side::A).take(|slot| events.push(slot));
    assert_eq!(events, [1, 2, 3]);
    until("it is told of its mail", || a.mail() == 1);
    until("it is woken", || a.was_woken());
    assert!(a.epoch() > epoch);
    // The kernel's listener is there still, and a child might accept.
    let route = || a.connect(listener.local_addr().unwrap().port(), false).0;
    assert_eq!(route(), Route::Soon);
    until("nobody is expected", || matches!(route(), Route::Kernel { .. }));
}

#[test]
fn end_of_the_connecting_process() {
    let server = Server::start();
    let (a, b, _, _, channel) = pair(&server);
    channel.declare(0, Side::A, 1, SlotState::Syn);
    channel.declare(0, Side::B, 1, SlotState::Open);
    a.attach(0, channel.id, Side::A, 0, 1);
    // Without an endpoint, as in the middle of connect.
    channel.declare(1, Side::A, 1, SlotState::Syn);
    // Of an earlier use of the slot.
    channel.declare(2, Side::A, 2, SlotState::Closed);
    a.attach(2, channel.id, Side::A, 2, 1);
    let mail = b.mail();
    drop(a);
    assert_eq!(b.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
    assert_eq!(channel.state(0, Side::A), (1, SlotState::Closed, FLAG_DEAD));
    assert_eq!(channel.state(1, Side::A), (1, SlotState::Closed, FLAG_DEAD));
    assert_eq!(channel.state(2, Side::A), (2, SlotState::Closed, FLAG_DEAD));
    assert_eq!(channel.map.header().dead[0].load(Ordering::Acquire), 1);
    until("it is told of its mail", || b.mail() > mail);
    until("it is woken", || b.was_woken());
}

#[test]
fn others_channels_cannot_be_closed() {
    let server = Server::start();
    let (_a, _b, _, channel, _) = pair(&server);
    (0..2).for_each(|side| channel.declare(0, [Side::A, Side::B][side], 1, SlotState::Open));
    let liar = Client::register(&server);
    liar.attach(0, channel.id, Side::A, 0, 1);
    liar.attach(1, channel.id, Side::B, 0, 1);
    let witness = Control::connect(server.socket());
    drop(liar);
    until("it is gone", || witness.status()["clients"].as_array().unwrap().len() == 2);
    assert_eq!(channel.state(0, Side::A), (1, SlotState::Open, 0));
    assert_eq!(channel.state(0, Side::B), (1, SlotState::Open, 0));
}

/// Forks a child that shares the slab of `parent` as member 1. Its work gets its control socket.
fn fork_child(parent: &Client, work: impl FnOnce(OwnedFd, &mut dyn FnMut())) -> Process {
    let [monitors, childs] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
    parent.control.tell(Request::Fork { member: 1, serial: 5 }, &[monitors.as_raw_fd()]);
    drop(monitors);
    let mut childs = Some(childs);
    let child = Process::fork(|ready| {
        sd_sys::fd::close(parent.control.socket.as_raw_fd());
        work(childs.take().unwrap(), ready);
    });
    let pidfd = own(sd_sys::fd::pidfd_open(child.pid()).unwrap());
    parent.control.tell(Request::Born { serial: 5 }, &[pidfd.as_raw_fd()]);
    child
}

/// The socket stays open until the end of the process.
fn does_nothing(socket: OwnedFd, _: &mut dyn FnMut()) {
    std::mem::forget(socket);
}

#[test]
fn connections_outlive_the_parent() {
    let server = Server::start();
    let (a, b, _, _, channel) = pair(&server);
    // Slot 0 is shared by both, slot 1 the parent's, slot 2 the child's.
    for (slot, holders) in [(0, 3), (1, 1), (2, 2)] {
        channel.declare(slot, Side::A, 1, SlotState::Syn);
        channel.declare(slot, Side::B, 1, SlotState::Open);
        a.attach(slot, channel.id, Side::A, slot as u32, holders);
    }
    let slab = a.slab;
    slab.header().members.store(3, Ordering::Relaxed);
    let mut child = fork_child(&a, does_nothing);
    drop(a);
    until("the parent's connection is closed", || channel.state(1, Side::A).1 == SlotState::Closed);
    until("the parent's share is gone", || slab.endpoint(0).unwrap().holders.load(Ordering::Acquire) == 2);
    assert_eq!(slab.endpoint(1).unwrap().state.load(Ordering::Acquire), State::Free as u8);
    assert_eq!(channel.state(0, Side::A).1, SlotState::Syn);
    assert_eq!(channel.state(2, Side::A).1, SlotState::Syn);
    assert_eq!(b.control.receive_with(libc::MSG_DONTWAIT).err(), Some(Errno::EAGAIN));
    child.kill();
    assert_eq!(b.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
    assert_eq!(channel.state(0, Side::A), (1, SlotState::Closed, FLAG_DEAD));
    assert_eq!(channel.state(2, Side::A), (1, SlotState::Closed, FLAG_DEAD));
}

#[test]
fn a_child_dies_and_its_number_is_free_again() {
    let server = Server::start();
    let (a, _b, _, _, channel) = pair(&server);
    channel.declare(0, Side::A, 1, SlotState::Syn);
    let endpoint = a.attach(0, channel.id, Side::A, 0, 3);
    for _ in 0..2 {
        endpoint.holders.fetch_or(2, Ordering::AcqRel);
        a.slab.header().members.store(3, Ordering::Relaxed);
        let mut child = fork_child(&a, does_nothing);
        child.kill();
        until("its number is free", || a.slab.header().members.load(Ordering::Acquire) == 1);
        assert_eq!(endpoint.holders.load(Ordering::Acquire), 1);
    }
    assert_eq!(channel.state(0, Side::A).1, SlotState::Syn);
}

#[test]
fn last_words_are_heard() {
    let server = Server::start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_listener, port) = b.listen(0);
    let (_, channel) = a.connect(port, false);
    let channel = channel.unwrap();
    channel.declare(0, Side::A, 1, SlotState::Syn);
    channel.declare(0, Side::B, 1, SlotState::Open);
    b.attach(0, channel.id, Side::B, 0, 3);
    let slab = b.slab;
    // It ends with mail unread, which gives the monitor an error before the message.
    let child = fork_child(&b, does_nothing);
    drop(b);
    until("its share is gone", || slab.endpoint(0).unwrap().holders.load(Ordering::Acquire) == 2);
    assert_eq!(channel.state(0, Side::B).1, SlotState::Open);
    drop(child);
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
}

#[test]
fn a_registered_child_uses_its_parents_channel() {
    let server = Server::start();
    let (a, b, _, _, channel) = pair(&server);
    channel.declare(0, Side::A, 1, SlotState::Syn);
    channel.declare(0, Side::B, 1, SlotState::Open);
    let mut child = fork_child(&a, |socket, ready| {
        let own_slab = Client::register_child(&server, socket);
        attach(&own_slab.slab, 0, channel.id, Side::A, 0, 1);
        ready();
        std::mem::forget(own_slab);
    });
    child.wait_ready();
    child.kill();
    until("its connection is closed", || channel.state(0, Side::A) == (1, SlotState::Closed, FLAG_DEAD));
    assert!(b.was_woken());
    assert_eq!(channel.map.header().dead[0].load(Ordering::Acquire), 0);
}

const HEIR_LIFE: Duration = Duration::from_secs(2);

#[test]
fn a_process_whose_control_socket_was_inherited_is_seen_to_die() {
    let server = Server::start();
    let witness = Control::connect(server.socket());
    let mut heir = None;
    let mut process = Process::fork(|ready| {
        std::mem::forget(Client::register(&server));
        heir = Some(Process::fork(|ready| {
            ready();
            std::thread::sleep(HEIR_LIFE);
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }));
        heir.as_mut().unwrap().wait_ready();
        ready();
    });
    process.wait_ready();
    assert_eq!(witness.status()["processes"], 1);
    let start = Instant::now();
    process.kill();
    until("it is seen", || witness.status()["processes"] == 0);
    assert!(start.elapsed() < HEIR_LIFE / 2, "by the end of the process, not of its heir");
}

#[test]
fn nothing_is_left_of_the_dead() {
    let server = Server::start();
    let witness = Control::connect(server.socket());
    witness.status();
    let before = server.holdings();
    for round in 0..3 {
        let (a, b, port, mut last, _) = pair(&server);
        for _ in 0..5 {
            last.fill();
            last = a.connect(port, true).1.unwrap();
        }
        drop(last);
        (0..5).for_each(|_| drop(b.take_channel()));
        let mut child = fork_child(&a, does_nothing);
        assert_eq!(witness.status()["channels"], 6);
        assert!(server.holdings() > before);
        if round == 1 {
            drop((b, a));
        } else {
            drop((a, b));
        }
        child.kill();
        until("all is gone", || server.holdings() == before);
        let status = witness.status();
        assert_eq!(
            (&status["channels"], &status["processes"], &status["port_blocks"]),
            (&0.into(), &0.into(), &0.into())
        );
    }
}

#[test]
fn a_listening_process_that_never_looks_is_not_waited_for() {
    let server = Server::start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_listener, port) = b.listen(0);
    let mut made = 0;
    let last = loop {
        match a.connect(port, true) {
            (Route::Shm { fresh: true, .. }, channel) => {
                channel.unwrap().fill();
                made += 1;
            }
            (other, _) => break other,
        }
        assert!(made < 2000);
    };
    assert!(matches!(last, Route::Kernel { reason: 6 }), "{last:?}");
    // All channels die at once; what it cannot be told now it is told later.
    drop(a);
    let mut dead = 0;
    for _ in 0..made {
        b.take_channel();
    }
    while dead < made {
        assert!(matches!(b.control.receive(), Some((Reply::ChannelDead { .. }, _))));
        dead += 1;
    }
    assert_eq!(b.control.status()["clients"].as_array().unwrap().len(), 1);
}

/// More ends than fit into a control socket: what is sent when there is room again is announced as well, or a process that
/// has read the first ones sleeps beside the rest, and keeps what it has of those channels.
#[test]
fn late_notices_are_announced() {
    const CLIENTS: usize = 20;
    let server = Server::start();
    let b = Client::register(&server);
    let (_listener, port) = b.listen(0);
    let mut made = 0;
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..CLIENTS {
        let a = Client::register(&server);
        while let (Route::Shm { fresh: true, .. }, Some(channel)) = a.connect(port, true) {
            channel.fill();
            drop(b.take_channel());
            made += 1;
            if made % 25 == 0 {
                break;
            }
        }
        clients.push(a);
    }
    let before = b.mail();
    drop(clients);
    until("all have ended", || b.mail() >= before + made);
    let (mut seen, mut ends) = (before, 0);
    until("all ends are told", || {
        if b.mail() != seen {
            seen = b.mail();
            while let Ok(Some((reply, _))) = b.control.receive_with(libc::MSG_DONTWAIT) {
                ends += u32::from(matches!(reply, Reply::ChannelDead { .. }));
            }
        }
        ends == made
    });
    println!("{made} channels");
}
