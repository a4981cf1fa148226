//! Clients that sleep through the death of a monitor, and never register with its successor.

use crate::client::{Channel, Client, Control, own};
use crate::process::Process;
use crate::server::{Server, until};
use sd_proto::{MESSAGE_MAX, Reply, Request};
use sd_ring::doorbell;
use sd_shm::channel::{FLAG_DEAD, FLAG_RESET, Side, SlotState};
use sd_sys::futex::{Scope, wait};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Sleeps as recv(2) does until it is woken for good; then its peer must be dead.
fn sleep_until_told(channel: &Channel, side: Side, flags: u32, ready: &mut dyn FnMut()) {
    let word = &channel.map.slot(0).side[side as usize].wait;
    let armed = doorbell::arm(word, doorbell::RX_SLEEP);
    ready();
    while word.load(Ordering::SeqCst) & doorbell::RX_SLEEP != 0 {
        let _ = wait(word, armed, None, Scope::Shared);
    }
    assert_eq!(channel.state(0, side.other()), (1, SlotState::Closed, flags));
    let mut events = Vec::new();
    channel.map.events(side).take(|slot| events.push(slot));
    assert_eq!(events, [0]);
    let dead = &channel.map.header().dead[side.other() as usize];
    until("the side is dead", || dead.load(Ordering::Acquire) == 1);
    ready();
}

/// B: listens, and accepts one connection; then does `more`.
fn listening(
    server: &Server,
    listener: &TcpListener,
    more: impl FnOnce(Client, Channel, &mut dyn FnMut()),
) -> Process {
    let mut process = Process::fork(|ready| {
        let b = Client::register(server);
        b.listen_with(0, listener);
        ready();
        let channel = b.take_channel();
        channel.declare(0, Side::B, 1, SlotState::Open);
        b.attach(0, channel.id, Side::B, 0, 1);
        ready();
        more(b, channel, ready);
    });
    process.wait_ready();
    process
}

/// A: connects; then does `more`.
fn connecting(
    server: &Server,
    listener: &TcpListener,
    more: impl FnOnce(Client, Channel, &mut dyn FnMut()),
) -> Process {
    Process::fork(|ready| {
        let a = Client::register(server);
        let (_, channel) = a.connect(listener.local_addr().unwrap().port(), false);
        let channel = channel.unwrap();
        channel.declare(0, Side::A, 1, SlotState::Syn);
        a.attach(0, channel.id, Side::A, 0, 1);
        more(a, channel, ready);
    })
}

fn keep(client: Client, channel: Channel, ready: &mut dyn FnMut()) {
    std::mem::forget((client, channel));
    ready();
}

/// A, which sleeps until it learns that B is dead, and B, which does `more`.
fn sleeper_and(
    server: &Server,
    more: impl FnOnce(Client, Channel, &mut dyn FnMut()),
    flags: u32,
) -> (Process, Process) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut b = listening(server, &listener, more);
    let mut a = connecting(server, &listener, |client, channel, ready| {
        sleep_until_told(&channel, Side::A, flags, ready);
        keep(client, channel, ready);
    });
    a.wait_ready();
    b.wait_ready();
    (a, b)
}

fn clients(server: &Server) -> usize {
    Control::connect(server.socket()).status()["clients"].as_array().unwrap().len()
}

/// Descriptors and mappings of a monitor that knows nobody.
fn is_empty(server: &Server, empty: (usize, usize)) {
    until("nothing is held", || server.holdings() == empty);
    let status = Control::connect(server.socket()).status();
    assert_eq!((&status["channels"], &status["processes"]), (&0.into(), &0.into()));
}

#[test]
fn of_a_peer_that_died_without_a_monitor() {
    let mut server = Server::start();
    clients(&server);
    let empty = server.holdings();
    let (mut a, mut b) = sleeper_and(&server, keep, FLAG_DEAD);
    server.kill();
    b.kill();
    server.restart();
    a.wait_ready();
    a.kill();
    is_empty(&server, empty);
}

#[test]
fn of_a_peer_that_died_after_a_restart() {
    let mut server = Server::start();
    clients(&server);
    let empty = server.holdings();
    let (mut a, mut b) = sleeper_and(&server, keep, FLAG_DEAD);
    server.kill();
    server.restart();
    assert_eq!(clients(&server), 2);
    let sleeps = server.sleeps();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(server.sleeps(), sleeps, "without any polling");
    b.kill();
    a.wait_ready();
    a.kill();
    is_empty(&server, empty);
}

#[test]
fn of_another_monitor_are_left_alone() {
    let mut server = Server::start();
    let (mut a, mut b) = sleeper_and(&server, keep, FLAG_DEAD);
    b.wait_ready();
    server.kill();
    assert_eq!(clients(&server.start_another()), 0);
    server.restart();
    assert_eq!(clients(&server), 2);
    b.kill();
    a.wait_ready();
    a.kill();
}

#[test]
fn what_a_silent_peer_left_unread_resets() {
    let mut server = Server::start();
    let left_unread = |client: Client, channel: Channel, ready: &mut dyn FnMut()| {
        crate::death::write_message(&channel, 0, Side::A);
        keep(client, channel, ready);
    };
    let (mut a, mut b) = sleeper_and(&server, left_unread, FLAG_DEAD | FLAG_RESET);
    b.wait_ready();
    server.kill();
    server.restart();
    assert_eq!(clients(&server), 2);
    b.kill();
    a.wait_ready();
}

#[test]
fn a_listening_process_sleeps_as_well() {
    let mut server = Server::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut b = listening(&server, &listener, |client, channel, ready| {
        sleep_until_told(&channel, Side::B, FLAG_DEAD, ready);
        keep(client, channel, ready);
    });
    let mut a = connecting(&server, &listener, keep);
    a.wait_ready();
    b.wait_ready();
    b.wait_ready();
    server.kill();
    a.kill();
    server.restart();
    b.wait_ready();
}

/// Whether a monitor serves: one that is being killed may still be connected to.
fn answers(server: &Server) -> bool {
    let path = server.socket();
    let Ok(socket) = sd_sys::msg::connect_unix(path.as_os_str().as_encoded_bytes(), 10_000) else {
        return false;
    };
    let control = Control { socket: own(socket) };
    let mut buf = [0; MESSAGE_MAX];
    control.send_bytes(Request::Status.encode(&mut buf), &[]).is_ok()
        && matches!(control.receive_with(0), Ok(Some(_)))
}

/// Registers again with the next monitor, announces the channel, and waits for its end.
fn come_back(server: &Server, client: &mut Client, channel: &Channel, ready: &mut dyn FnMut()) {
    assert!(client.control.receive().is_none());
    until("there is another monitor", || answers(server));
    client.register_again(server);
    let request = Request::Channel { id: channel.id, side: 1, peer_pid: channel.peer_pid, adopter: 0 };
    client.control.tell(request, &[channel.segment.as_raw_fd()]);
    client.control.status();
    ready();
    assert_eq!(client.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
    assert_eq!(channel.state(0, Side::A), (1, SlotState::Closed, FLAG_DEAD));
    ready();
}

#[test]
fn one_that_speaks_later_is_the_same() {
    let mut server = Server::start();
    let (mut a, mut b) = sleeper_and(
        &server,
        |mut client, channel, ready| {
            come_back(&server, &mut client, &channel, ready);
            keep(client, channel, ready);
        },
        FLAG_DEAD,
    );
    server.kill();
    server.restart();
    b.wait_ready();
    let status = Control::connect(server.socket()).status();
    assert_eq!((&status["channels"], &status["processes"]), (&1.into(), &2.into()), "{status:#}");
    a.kill();
    b.wait_ready();
}

#[test]
fn a_silent_process_learns_of_one_that_has_spoken() {
    let mut server = Server::start();
    let (mut a, mut b) = sleeper_and(
        &server,
        |mut client, channel, ready| {
            come_back(&server, &mut client, &channel, ready);
        },
        FLAG_DEAD,
    );
    server.kill();
    server.restart();
    b.wait_ready();
    b.kill();
    a.wait_ready();
}

#[test]
fn channels_that_others_have_too_are_left_alone() {
    let mut server = Server::start();
    let (end, test) = nix::unistd::pipe().unwrap();
    let (mut a, mut b) = sleeper_and(
        &server,
        |client, channel, ready| {
            let mut heir = Process::fork(|ready| {
                sd_sys::fd::close(test.as_raw_fd());
                ready();
                // It outlives its parent, but not the test.
                let _ = sd_sys::fd::read(end.as_raw_fd(), &mut [0]);
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) }
            });
            heir.wait_ready();
            std::mem::forget(heir);
            keep(client, channel, ready);
        },
        FLAG_DEAD,
    );
    b.wait_ready();
    server.kill();
    b.kill();
    server.restart();
    assert_eq!(clients(&server), 0);
    assert!(a.is_asleep());
    a.kill();
}
