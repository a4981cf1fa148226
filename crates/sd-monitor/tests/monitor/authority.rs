//! Clients that would have the monitor do for them what the kernel would not let them do themselves.

use crate::client::{Channel, Client, Control, own, pair};
use crate::process::Process;
use crate::server::{Server, until};
use nix::unistd::{Uid, setresuid};
use sd_proto::{ErrorCode, Ip, Reply, Request, Route};
use sd_shm::channel::{FLAG_COLD, Side, SlotState};
use sd_shm::slab::{HAS_COLD, Reason};
use sd_sys::Errno;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) const MALLORY: Uid = Uid::from_raw(60_003);
pub(crate) const ALICE: Uid = Uid::from_raw(60_001);

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

pub(crate) fn become_user(user: Uid) {
    setresuid(user, user, user).unwrap();
}

/// A process of a user, that sleeps.
fn sleeper(user: Uid) -> Process {
    let mut process = Process::fork(|ready| {
        become_user(user);
        ready();
    });
    process.wait_ready();
    process
}

/// Asks that `victim` be made a child of the client, and that SIGKILL be sent to it over a channel to an accomplice. What
/// has to stay open.
fn ask_to_kill(server: &Server, client: &Client, victim: i32) -> (OwnedFd, Client) {
    let [monitors, childs] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
    let pidfd = own(sd_sys::fd::pidfd_open(victim).unwrap());
    client.control.tell(Request::Fork { member: 1, serial: 9 }, &[monitors.as_raw_fd()]);
    client.control.tell(Request::Born { serial: 9 }, &[pidfd.as_raw_fd()]);
    let (_listener, port) = client.listen(0);
    let accomplice = Client::register(server);
    let channel = accomplice.connect(port, false).1.unwrap();
    client.take_channel();
    let endpoint = client.attach(0, channel.id, Side::B, 0, 1);
    endpoint.flags.fetch_or(HAS_COLD, Ordering::Relaxed);
    let cold = client.slab.cold(0).unwrap();
    cold.owner.store(victim as u32, Ordering::Relaxed);
    cold.status.store(libc::O_ASYNC as u32, Ordering::Relaxed);
    cold.signal.store(libc::SIGKILL as u16, Ordering::Relaxed);
    let words = &channel.map.slot(0).side[Side::B as usize];
    words.make_cold().wants_signals.store(1, Ordering::Release);
    assert!(words.flags.load(Ordering::Relaxed) & FLAG_COLD != 0);
    accomplice.control.tell(Request::Signal { channel: channel.id, slot: 0, side: 0, urgent: false }, &[]);
    accomplice.control.status();
    (childs, accomplice)
}

/// Whether a process has ended, without waiting for it.
fn is_over(process: &Process) -> bool {
    let pidfd = own(sd_sys::fd::pidfd_open(process.pid()).unwrap());
    sd_sys::fd::poll_one(pidfd.as_raw_fd(), libc::POLLIN, 0).is_ok_and(|events| events != 0)
}

#[test]
fn others_processes_get_no_signal() {
    if !is_root() {
        return;
    }
    let server = Server::start();
    for victim in [sleeper(Uid::from_raw(0)), sleeper(ALICE)] {
        let mut mallory = Process::fork(|ready| {
            become_user(MALLORY);
            let client = Client::register(&server);
            let kept = ask_to_kill(&server, &client, victim.pid());
            ready();
            std::mem::forget((client, kept));
        });
        mallory.wait_ready();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!is_over(&victim), "the monitor has killed it");
    }
}

/// Nor does it get one that has been a child, and has become another user since.
#[test]
fn a_child_that_became_another_user_gets_no_signal() {
    if !is_root() {
        return;
    }
    let server = Server::start();
    let (_a, _b, ..) = pair(&server);
    let mut mallory = Process::fork(|ready| {
        // As a program with the set-user-id bit does, in an order that one process can go through.
        setresuid(MALLORY, MALLORY, Uid::from_raw(0)).unwrap();
        let client = Client::register(&server);
        let (go, mut wait) = std::io::pipe().map(|(r, w)| (w, r)).unwrap();
        let child = Process::fork(|ready| {
            use std::io::Read;
            wait.read_exact(&mut [0]).unwrap();
            become_user(Uid::from_raw(0));
            ready();
        });
        let mut child = child;
        let [monitors, childs] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
        let pidfd = own(sd_sys::fd::pidfd_open(child.pid()).unwrap());
        client.control.tell(Request::Fork { member: 1, serial: 9 }, &[monitors.as_raw_fd()]);
        client.control.tell(Request::Born { serial: 9 }, &[pidfd.as_raw_fd()]);
        client.control.status();
        std::io::Write::write_all(&mut { go }, &[1]).unwrap();
        child.wait_ready();
        become_user(MALLORY);
        let kept = ask_to_kill(&server, &client, child.pid());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!is_over(&child), "the monitor has killed it");
        ready();
        std::mem::forget((child, childs, client, kept));
    });
    mallory.wait_ready();
}

/// Its own child gets it, as F_SETOWN promises.
#[test]
fn ones_own_child_gets_the_signal() {
    let server = Server::start();
    let client = Client::register(&server);
    let child = Process::fork(|_| {});
    let _kept = ask_to_kill(&server, &client, child.pid());
    until("it is killed", || is_over(&child));
}

/// A connection of `client` that waits at a listener, as its library would request it.
fn request(channel: &Channel, slot: usize, listener: (u32, u32), port: u16) {
    let here = u64::from_ne_bytes([0, 0, 0xff, 0xff, 127, 0, 0, 1]);
    let names = channel.map.names(slot);
    for address in [&names.local, &names.remote] {
        address[0].store(0, Ordering::Relaxed);
        address[1].store(here, Ordering::Relaxed);
    }
    names.ports.store(40_000 << 16 | u32::from(port), Ordering::Relaxed);
    names.listener_gen.store(listener.1, Ordering::Relaxed);
    channel.map.slot(slot).side[Side::A as usize].listener.store(listener.0, Ordering::Relaxed);
    channel.map.header().used.fetch_max(slot as u32 + 1, Ordering::AcqRel);
    channel.declare(slot, Side::A, 1, SlotState::Syn);
}

/// Whether a sibling is offered what waits at a process of this user that dies; both have the kernel's listener.
fn is_offered_what_waits_at(user: Uid) -> bool {
    let server = Server::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut founder = Process::fork(|ready| {
        become_user(user);
        let founder = Client::register(&server);
        founder.listen_with(4, &listener);
        ready();
        founder.take_channel();
        std::mem::forget(founder);
    });
    founder.wait_ready();
    let client = Client::register(&server);
    let channel = client.connect(port, false).1.unwrap();
    let sibling = Client::register(&server);
    sibling.listen_with(0, &listener);
    request(&channel, 0, (4, 1), port);
    founder.kill();
    let witness = Control::connect(server.socket());
    until("it is gone", || witness.status()["clients"].as_array().unwrap().len() == 2);
    match sibling.control.receive_with(libc::MSG_DONTWAIT) {
        Ok(Some((Reply::Offer { .. }, _))) => true,
        Err(Errno::EAGAIN) => false,
        other => panic!("{:?}", other.map(|found| found.map(|(reply, _)| reply))),
    }
}

#[test]
fn channels_stay_with_the_user_they_were_made_for() {
    assert!(is_offered_what_waits_at(nix::unistd::geteuid()));
    assert!(!is_root() || !is_offered_what_waits_at(MALLORY));
}

/// A user registers a listener and closes the kernel's. Another one who listens there gets its connections.
#[test]
fn a_registration_ends_with_the_kernels_listener() {
    let server = Server::start();
    let mallory = Client::register(&server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    mallory.listen_with(0, &listener);
    let alice = Client::register(&server);
    assert!(matches!(alice.connect(port, false).0, Route::Shm { .. }));
    mallory.take_channel();
    drop(listener);
    let kernel = Route::Kernel { reason: Reason::NoListener as u32 };
    assert_eq!(alice.connect(port, false).0, kernel, "nobody listens");
    assert_eq!(server_listeners(&server), 0, "it is forgotten");
    // Bob's, which the kernel alone knows.
    let bob = TcpListener::bind(("127.0.0.1", port)).unwrap();
    assert_eq!(alice.connect(port, false).0, kernel);
    // And the accelerated one beside a registration that nobody has asked for since it was closed.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    mallory.listen_with(1, &other);
    drop((bob, other));
    let bob = Client::register(&server);
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    bob.listen_with(5, &listener);
    assert_eq!(server_listeners(&server), 1, "the new one has ended the old one");
    for nth in 0..3 {
        let (route, ..) = alice.connect_full(port, nth, false, false);
        assert!(matches!(route, Route::Shm { listener: 5, candidates: 1, .. }), "{route:?}");
    }
}

fn server_listeners(server: &Server) -> usize {
    Control::connect(server.socket()).status()["listeners"].as_array().unwrap().len()
}

/// One of a group of SO_REUSEPORT is closed: the others are found, it is not.
#[test]
fn one_of_several_sockets_at_an_address_is_gone() {
    let server = Server::start();
    let first = reuse_port(0);
    let port = first.local_addr().unwrap().port();
    let mut group = vec![first];
    group.extend((0..3).map(|_| reuse_port(port)));
    let clients: Vec<Client> = group
        .iter()
        .map(|listener| {
            let client = Client::register(&server);
            client.listen_with(0, listener);
            client
        })
        .collect();
    let alice = Client::register(&server);
    // Which of them there are, and how many the last answer says.
    let found = || {
        let of = |nth| match alice.connect_full(port, nth, false, false).0 {
            Route::Shm { peer, candidates, .. } => (peer, candidates),
            other => panic!("{other:?}"),
        };
        let peers: BTreeSet<u64> = (0..12).map(|nth| of(nth).0).collect();
        (peers.len(), of(0).1)
    };
    for left in [4, 3, 2, 1] {
        found();
        assert_eq!(found(), (left, left as u32));
        drop(group.remove(0));
    }
    let reason = Reason::NoListener as u32;
    assert_eq!(alice.connect(port, false).0, Route::Kernel { reason });
    drop(clients);
}

/// A listener of a group of SO_REUSEPORT.
fn reuse_port(port: u16) -> TcpListener {
    let fd = own(sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap());
    nix::sys::socket::setsockopt(&fd, nix::sys::socket::sockopt::ReusePort, &true).unwrap();
    let name = nix::sys::socket::SockaddrIn::new(127, 0, 0, 1, port);
    nix::sys::socket::bind(fd.as_raw_fd(), &name).unwrap();
    nix::sys::socket::listen(&fd, nix::sys::socket::Backlog::new(5).unwrap()).unwrap();
    TcpListener::from(fd)
}

#[test]
fn listeners_in_other_namespaces_are_asked_for_there() {
    if !is_root() {
        return;
    }
    let server = Server::start();
    let mut inside = Process::fork(|ready| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        up_loopback();
        let (mallory, alice) = (Client::register(&server), Client::register(&server));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        mallory.listen_with(0, &listener);
        assert!(matches!(alice.connect(port, false).0, Route::Shm { .. }));
        drop(listener);
        let after = alice.connect(port, false).0;
        assert_eq!(after, Route::Kernel { reason: Reason::NoListener as u32 });
        ready();
        std::mem::forget((mallory, alice));
    });
    inside.wait_ready();
}

fn up_loopback() {
    let status = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(status.unwrap().success());
}

/// Who drops his user is judged by the one he has, and by the effective one where he says so.
#[test]
fn who_asks_is_asked_with_each_message() {
    if !is_root() {
        return;
    }
    let server = Server::start_with_policy(Some(&format!("deny uid={MALLORY}")));
    let b = Client::register(&server);
    let (_listener, port) = b.listen(0);
    let mut process = Process::fork(|ready| {
        let daemon = Client::register(&server);
        let route = || daemon.connect(port, false).0;
        assert!(matches!(route(), Route::Shm { .. }));
        let epoch = daemon.epoch();
        let clients = || daemon.control.status()["clients"].as_array().unwrap().len();
        assert_eq!(clients(), 2);
        // As seteuid(2): the real user stays, and the library says which one counts.
        setresuid(Uid::from_raw(0), MALLORY, Uid::from_raw(0)).unwrap();
        let ip = Ip::v4([127, 0, 0, 1]);
        let request = Request::Connect { ip, port, nth: 0, want_ports: false, want_channel: false };
        let mut buf = [0; sd_proto::MESSAGE_MAX];
        let bytes = request.encode(&mut buf);
        sd_sys::msg::send_as_effective(daemon.control.socket.as_raw_fd(), bytes, &[], 0).unwrap();
        let (told, _) = daemon.control.receive().unwrap();
        assert!(
            matches!(told, Reply::Stranger { .. }),
            "those that it has channels with are strangers: {told:?}"
        );
        assert!(matches!(b.control.receive().unwrap().0, Reply::NewChannel { stranger: false, .. }));
        assert_eq!(b.control.receive().unwrap().0, told, "and it is one to them");
        let (reply, _) = daemon.control.receive().unwrap();
        assert!(matches!(reply, Reply::Route { route: Route::Denied, .. }), "{reply:?}");
        assert_ne!(daemon.epoch(), epoch, "known routes are invalid");
        setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).unwrap();
        assert!(matches!(route(), Route::Shm { .. }));
        become_user(MALLORY);
        assert_eq!(route(), Route::Denied);
        assert_eq!(clients(), 1, "it is shown its own only");
        ready();
        std::mem::forget(daemon);
    });
    process.wait_ready();
}

/// A process that has another's control socket, but not its user, cannot speak for it.
#[test]
fn nobody_speaks_for_another_user() {
    if !is_root() {
        return;
    }
    let server = Server::start();
    let client = Client::register(&server);
    let mut thief = Process::fork(|ready| {
        become_user(MALLORY);
        client.control.tell(Request::Status, &[]);
        ready();
    });
    thief.wait_ready();
    let answer = client.control.receive().unwrap().0;
    assert_eq!(answer, Reply::Error { code: sd_proto::ErrorCode::Protocol });
    client.control.status();
}

/// Says that a connection uses a port, and that others have left it a moment ago.
fn claim(client: &Client, port: u16) {
    let endpoint = client.attach(0, 1, Side::A, 0, 1);
    endpoint.ports.store(u32::from(port) << 16 | 9, Ordering::Relaxed);
}

/// Whether a process of a user may bind a port, while one of another user says that it uses it.
fn may_bind(server: &Server, user: Uid, port: u16) -> bool {
    let (mut told, mut tell) = std::io::pipe().unwrap();
    let mut process = Process::fork(|ready| {
        become_user(user);
        let client = Client::register(server);
        let ip = Ip::v4([127, 0, 0, 1]);
        let reply = client.control.ask(Request::Bind { ip, port, reuse: false }, &[]).0;
        std::io::Write::write_all(&mut tell, &[u8::from(reply == Reply::Ok)]).unwrap();
        ready();
        std::mem::forget(client);
    });
    process.wait_ready();
    let mut byte = [0];
    std::io::Read::read_exact(&mut told, &mut byte).unwrap();
    byte[0] == 1
}

#[test]
fn nobody_keeps_a_port_from_others_that_was_never_his() {
    if !is_root() {
        return;
    }
    let server = Server::start();
    // Alice has listened there, so that everybody's connections could have the port.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut alice = Process::fork(|ready| {
        become_user(ALICE);
        let alice = Client::register(&server);
        alice.listen_with(0, &listener);
        ready();
        std::mem::forget(alice);
    });
    alice.wait_ready();
    let mut mallory = Process::fork(|ready| {
        become_user(MALLORY);
        let mallory = Client::register(&server);
        claim(&mallory, port);
        ready();
        std::mem::forget(mallory);
    });
    mallory.wait_ready();
    assert!(may_bind(&server, ALICE, port), "Mallory's word is not believed");
    assert!(!may_bind(&server, MALLORY, port), "but by herself");
    let mut other = Process::fork(|ready| {
        become_user(ALICE);
        let other = Client::register(&server);
        claim(&other, port);
        ready();
        std::mem::forget(other);
    });
    other.wait_ready();
    assert!(!may_bind(&server, MALLORY, port), "it was Alice's");
}

/// Accept asks whether the other side of a channel may reach the listener that it names.
#[test]
fn rules_hold_for_each_listener_of_a_process() {
    let server = Server::start_with_policy(Some("deny port=1-1023"));
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_open, port) = b.listen(0);
    let (_closed, forbidden) = b.listen(1);
    let channel = a.connect(port, false).1.unwrap();
    b.take_channel();
    let ip = Ip::v4([127, 0, 0, 1]);
    let admits = |client: &Client, listener| {
        client.control.ask(Request::Admits { channel: channel.id, listener, ip }, &[]).0
    };
    let number = || b.slab.header().policy.load(Ordering::Acquire);
    let before = number();
    assert_ne!(before, 0, "there are rules");
    assert_eq!((admits(&b, 0), admits(&b, 1)), (Reply::Ok, Reply::Ok));
    server.write_policy(&format!("deny port={forbidden}"));
    server.signal(nix::sys::signal::Signal::SIGHUP);
    until("the slab says that there are other rules", || ![0, before].contains(&number()));
    assert_eq!(admits(&b, 0), Reply::Ok);
    assert_eq!(admits(&b, 1), Reply::Error { code: ErrorCode::Denied });
    assert_eq!(admits(&b, 2), Reply::Error { code: ErrorCode::Protocol }, "no such listener");
    assert_eq!(admits(&a, 0), Reply::Error { code: ErrorCode::Protocol }, "it is not on that side");
    server.write_policy("");
    server.signal(nix::sys::signal::Signal::SIGHUP);
    until("there are no rules", || number() == 0);
}

/// Rules hold for what is reached, whatever address is asked for.
#[test]
fn a_wildcard_listener_is_reached_by_every_address() {
    let server = Server::start_with_policy(Some("deny to=127.0.0.0/8 port=1-65535"));
    let (a, b) = (Client::register(&server), Client::register(&server));
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    b.listen_with(0, &listener);
    let route = |ip| {
        let request = Request::Connect { ip, port, nth: 0, want_ports: false, want_channel: false };
        match a.control.ask(request, &[]).0 {
            Reply::Route { route, .. } => route,
            other => panic!("{other:?}"),
        }
    };
    let kernel = |reason| Route::Kernel { reason: reason as u32 };
    assert_eq!(route(Ip::v4([127, 0, 0, 1])), Route::Denied);
    assert_eq!(route(Ip::v4([203, 0, 113, 9])), kernel(Reason::Policy));
    server.write_policy("");
    server.signal(nix::sys::signal::Signal::SIGHUP);
    until("all is allowed", || matches!(route(Ip::v4([127, 0, 0, 1])), Route::Shm { .. }));
    b.take_channel();
    assert_eq!(route(Ip::v4([203, 0, 113, 9])), kernel(Reason::Remote), "not this host's");
}
