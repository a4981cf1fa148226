//! Introductions, policy, ports, status.

use crate::client::{Client, Control, attach, listen, pair};
use crate::server::{Server, until};
use nix::sys::signal::Signal;
use sd_proto::{ErrorCode, Ip, Reply, Request, Route, Socket};
use sd_shm::channel::{FLAG_DEAD, FLAG_RESET, Side, SlotState};
use sd_shm::directory::Listing;
use sd_shm::slab::{Reason, State};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

fn kernel(reason: Reason) -> Route {
    Route::Kernel { reason: reason as u32 }
}

/// A listener of this process's at 127.0.0.1.
fn socket_of(listener: &TcpListener) -> Socket {
    let cookie = sd_sys::fd::getsockopt_u64(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).unwrap();
    Socket { user: nix::unistd::geteuid().as_raw(), cookie, ip: Ip::v4([127, 0, 0, 1]) }
}

#[test]
fn two_processes_are_introduced() {
    let server = Server::start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_listener, port) = b.listen(3);
    let mail = b.mail();
    let (route, at_a) = a.connect(port, false);
    let (at_a, at_b) = (at_a.unwrap(), b.take_channel());
    assert_eq!((at_a.id, at_a.inode()), (at_b.id, at_b.inode()));
    let pid = std::process::id();
    let Route::Shm { peer, socket, .. } = route else { panic!("{route:?}") };
    assert_eq!(socket, socket_of(&_listener));
    let expected = Route::Shm {
        channel: at_a.id,
        fresh: true,
        listener: 3,
        generation: 1,
        candidates: 1,
        peer_pid: pid,
        peer,
        stranger: false,
        socket,
    };
    assert_eq!(route, expected);
    assert_eq!(at_b.peer_pid, pid);
    assert_eq!(b.mail(), mail + 1);
    assert!(b.was_woken() && !a.was_woken());
    at_a.declare(9, Side::A, 1, SlotState::Syn);
    assert_eq!(at_b.state(9, Side::A), (1, SlotState::Syn, 0));
    // The channel is used again, unless it is full.
    let (again, none) = a.connect(port, false);
    assert!(
        none.is_none() && matches!(again, Route::Shm { fresh: false, channel, .. } if channel == at_a.id)
    );
    // Whoever says that it is full is not believed.
    assert!(matches!(a.connect(port, true).0, Route::Shm { fresh: false, .. }));
    at_a.fill();
    let (_, another) = a.connect(port, true);
    assert_ne!(another.unwrap().id, at_a.id);
    b.take_channel();
}

/// Who asks between the announcement and the kernel's listen is told to ask again, and who is on the way to the kernel is
/// waited for.
#[test]
fn a_listener_is_announced_before_it_listens() {
    let server = Server::start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let socket = crate::client::own(sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap());
    let any = nix::sys::socket::SockaddrIn::new(127, 0, 0, 1, 0);
    nix::sys::socket::bind(socket.as_raw_fd(), &any).unwrap();
    let name: nix::sys::socket::SockaddrIn = nix::sys::socket::getsockname(socket.as_raw_fd()).unwrap();
    let port = name.port();
    let soon = |index| b.control.ask(Request::WillListen { index }, &[socket.as_raw_fd()]).0;
    assert_eq!(a.connect(port, false).0, kernel(Reason::NoListener));
    a.slab.header().kernel_connects[3].store(u32::from(port), Ordering::SeqCst);
    assert_eq!(soon(4), Reply::Error { code: ErrorCode::InUse });
    assert_eq!(a.connect(port, false).0, Route::Soon);
    a.slab.header().kernel_connects[3].store(0, Ordering::SeqCst);
    assert_eq!(soon(4), Reply::Ok);
    assert_eq!(a.connect(port, false).0, Route::Soon);
    assert_eq!(a.connect(port ^ 1, false).0, kernel(Reason::NoListener));
    // The kernel has refused.
    assert_eq!(b.control.ask(Request::Unlisten { index: 4 }, &[]).0, Reply::Ok);
    assert_eq!(a.connect(port, false).0, kernel(Reason::NoListener));
    // Who announces and does nothing is not believed for long.
    assert_eq!(soon(4), Reply::Ok);
    until("it is not believed", || a.connect(port, false).0 == kernel(Reason::NoListener));
    // It listens.
    assert_eq!(soon(4), Reply::Ok);
    nix::sys::socket::listen(&socket, nix::sys::socket::Backlog::new(5).unwrap()).unwrap();
    let listen = Request::Listen { index: 4, generation: 1, backlog: 5, accepting: true };
    assert_eq!(b.control.ask(listen, &[socket.as_raw_fd()]).0, Reply::Ok);
    assert!(matches!(a.connect(port, false).0, Route::Shm { listener: 4, .. }));
    b.take_channel();
    b.control.ask(Request::Unlisten { index: 4 }, &[]);
    // It says so without its descriptor, and is not waited for.
    let listens = |index| Request::Listens { index, generation: 3, backlog: 5 };
    assert_eq!(soon(6), Reply::Ok);
    b.control.tell(listens(6), &[]);
    b.control.status();
    assert!(matches!(a.connect(port, false).0, Route::Shm { listener: 6, generation: 3, .. }));
    // Nor is it believed: of a socket that was not announced, or does not listen.
    b.control.tell(listens(7), &[]);
    b.control.ask(Request::Unlisten { index: 6 }, &[]);
    assert_eq!(a.connect(port, false).0, kernel(Reason::NoListener));
    let other = crate::client::own(sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap());
    nix::sys::socket::bind(other.as_raw_fd(), &any).unwrap();
    let name: nix::sys::socket::SockaddrIn = nix::sys::socket::getsockname(other.as_raw_fd()).unwrap();
    let idle = Request::WillListen { index: 8 };
    assert_eq!(b.control.ask(idle, &[other.as_raw_fd()]).0, Reply::Ok);
    b.control.tell(listens(8), &[]);
    b.control.status();
    assert_eq!(a.connect(name.port(), false).0, kernel(Reason::NoListener));
    // Not for sockets that have no address, or are connected.
    let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    for fd in [stream.as_raw_fd(), a.tcp.as_raw_fd(), a.eventfd.as_raw_fd()] {
        let code = b.control.refused(Request::WillListen { index: 5 }, &[fd]);
        assert!(matches!(code, ErrorCode::Descriptor | ErrorCode::Protocol));
    }
}

/// Who accepts but can take no channel gets what waits, and what comes, over the kernel.
#[test]
fn what_cannot_be_taken_is_withdrawn() {
    let server = Server::start();
    let (a, b, other) = (Client::register(&server), Client::register(&server), Client::register(&server));
    let (listener, port) = b.listen(0);
    let at_a = a.connect(port, false).1.unwrap();
    b.take_channel();
    at_a.request(9, port);
    // Not by who has nothing to do with it.
    other.control.tell(Request::CannotTake, &[listener.as_raw_fd()]);
    other.control.tell(Request::CannotTake, &[other.eventfd.as_raw_fd()]);
    assert_eq!(other.control.ask(Request::Unlisten { index: 9 }, &[]).0, Reply::Ok);
    assert!(matches!(a.connect(port, false).0, Route::Shm { .. }));
    b.control.tell(Request::CannotTake, &[listener.as_raw_fd()]);
    let withdrawn = Reply::Withdraw { channel: at_a.id, slot: 9, generation: 1 };
    assert_eq!(a.control.receive().unwrap().0, withdrawn);
    assert_eq!(a.connect(port, false).0, kernel(Reason::NotAccepting));
    // What was asked for before the route said otherwise follows when its client complains.
    a.control.tell(Request::Stuck { channel: at_a.id }, &[]);
    assert_eq!(a.control.receive().unwrap().0, withdrawn);
    // Somebody accepts there after all.
    b.control.tell(Request::Accepting { index: 0, accepting: true }, &[]);
    assert_eq!(b.control.ask(Request::Unlisten { index: 9 }, &[]).0, Reply::Ok);
    assert!(matches!(a.connect(port, false).0, Route::Shm { .. }));
}

/// Who can take no channel at one address says nothing of another one.
#[test]
fn what_cannot_be_taken_here_is_expected_there() {
    let server = Server::start();
    let (a, b, c) = (Client::register(&server), Client::register(&server), Client::register(&server));
    let (_here, port) = b.listen(0);
    let Ok(there) = std::net::TcpListener::bind(("127.0.0.2", port)) else { return };
    c.listen_with(0, &there);
    c.control.tell(Request::CannotTake, &[there.as_raw_fd()]);
    assert_eq!(c.control.ask(Request::Unlisten { index: 9 }, &[]).0, Reply::Ok);
    b.control.tell(Request::Accepting { index: 0, accepting: false }, &[]);
    assert_eq!(b.control.ask(Request::Unlisten { index: 9 }, &[]).0, Reply::Ok);
    // A child of its might accept.
    assert_eq!(a.connect(port, false).0, Route::Soon);
}

/// What waits on a channel that a listener could not take is reset, and the next connection goes to the kernel.
#[test]
fn a_channel_is_declined() {
    let server = Server::start();
    let (a, b, port, at_a, at_b) = pair(&server);
    at_a.declare(9, Side::A, 1, SlotState::Syn);
    b.control.tell(Request::Decline { channel: at_b.id }, &[]);
    let closed = || at_a.state(9, Side::B);
    until("it is reset", || closed() == (1, SlotState::Closed, FLAG_DEAD | FLAG_RESET));
    assert!(matches!(a.control.receive(), Some((Reply::ChannelDead { id }, _)) if id == at_a.id));
    assert_eq!(a.connect(port, false).0, kernel(Reason::Exhausted));
    // And the other way round.
    let (_listener, port) = a.listen(0);
    let (_, at_b) = b.connect(port, false);
    b.control.tell(Request::Decline { channel: at_b.unwrap().id }, &[]);
    assert!(matches!(b.connect(port, false).0, Route::Shm { fresh: true, .. }));
    // Senseless ones do no harm.
    [0, at_a.id, u64::MAX].into_iter().for_each(|channel| b.control.tell(Request::Decline { channel }, &[]));
    assert!(matches!(b.connect(port, false).0, Route::Shm { fresh: false, .. }));
}

#[test]
fn a_process_connects_to_itself() {
    let server = Server::start();
    let a = Client::register(&server);
    let (_listener, port) = a.listen(0);
    a.control.tell(
        Request::Connect {
            ip: sd_proto::Ip::v4([127, 0, 0, 1]),
            port,
            nth: 0,
            want_ports: false,
            want_channel: false,
        },
        &[],
    );
    let at_b = a.take_channel();
    let (reply, fds) = a.control.receive().unwrap();
    assert!(
        matches!(reply, Reply::Route { route: Route::Shm { channel, fresh: true, .. }, .. } if channel == at_b.id)
    );
    assert_eq!(fds.len(), 3);
}

#[test]
fn the_monitor_keeps_no_port() {
    let server = Server::start();
    let b = Client::register(&server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    b.listen_with(0, &listener);
    drop(listener);
    TcpListener::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn listeners_come_and_go() {
    let server = Server::start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let epoch = a.epoch();
    let (_listener, port) = b.listen(0);
    assert_eq!(a.epoch(), epoch + 1);
    b.control.tell(Request::Accepting { index: 0, accepting: false }, &[]);
    until("the epoch moves", || a.epoch() == epoch + 2);
    // A child of its might accept, but none comes.
    assert_eq!(a.connect(port, false).0, Route::Soon);
    assert_eq!(b.connect(port, false).0, kernel(Reason::NotAccepting), "it does not wait for itself");
    until("nobody is expected", || a.connect(port, false).0 == kernel(Reason::NotAccepting));
    until("the epoch moves", || a.epoch() == epoch + 3);
    assert_eq!(b.control.ask(Request::Unlisten { index: 0 }, &[]).0, Reply::Ok);
    until("the epoch moves", || a.epoch() == epoch + 4);
    assert_eq!(a.connect(port, false).0, kernel(Reason::NoListener));
    // Senseless ones do no harm.
    assert_eq!(b.control.ask(Request::Unlisten { index: 7 }, &[]).0, Reply::Ok);
    b.control.tell(Request::Accepting { index: u32::MAX, accepting: true }, &[]);
    let (listener, port) = b.listen(0);
    drop(b);
    until("its listeners are gone", || a.connect(port, false).0 == kernel(Reason::NoListener));
    drop(listener);
}

#[test]
fn connections_are_dealt_round() {
    let server = Server::start();
    let clients: Vec<Client> = (0..4).map(|_| Client::register(&server)).collect();
    let (a, workers) = clients.split_first().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    workers.iter().for_each(|worker| worker.listen_with(0, &listener));
    let port = listener.local_addr().unwrap().port();
    let channels: Vec<u64> = (0..6)
        .map(|nth| match a.connect_full(port, nth, false, false).0 {
            Route::Shm { channel, candidates: 3, .. } => channel,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(channels[..3], channels[3..]);
    assert!(channels[0] != channels[1] && channels[1] != channels[2] && channels[0] != channels[2]);
}

#[test]
fn ports_are_lent_until_the_family_is_gone() {
    let server = Server::start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_listener, port) = b.listen(0);
    let (_, first, _) = a.connect_full(port, 0, true, false);
    let (_, second, _) = a.connect_full(port, 0, true, false);
    assert_eq!((first.1, second.1), (64, 64));
    assert!(first.0.abs_diff(second.0) >= 64);
    let control = Control::connect(server.socket());
    assert_eq!(control.status()["port_blocks"], 2);
    drop(a);
    until("they are returned", || control.status()["port_blocks"] == 0);
}

#[test]
fn policy_is_obeyed_and_reloaded() {
    let mut server = Server::start_with_policy(Some("default allow # at first\n"));
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_listener, port) = b.listen(0);
    assert!(matches!(a.connect(port, false).0, Route::Shm { .. }));
    b.take_channel();
    let expect = |policy: &str, route: Route| {
        server.write_policy(policy);
        let epoch = a.epoch();
        server.signal(Signal::SIGHUP);
        until("the policy is read", || a.epoch() != epoch);
        assert_eq!(a.connect(port, false).0, route);
    };
    expect(&format!("deny port={port}"), Route::Denied);
    expect("kernel to=127.0.0.0/8", kernel(Reason::Policy));
    server.write_policy("deny port=x");
    let epoch = a.epoch();
    server.signal(Signal::SIGHUP);
    assert_eq!(a.connect(port, false).0, kernel(Reason::Policy));
    assert_eq!(a.epoch(), epoch);
    server.write_policy("");
    server.kill();
    server.restart();
}

#[test]
fn questions_before_registration_are_refused() {
    let server = Server::start();
    let stranger = Control::connect(server.socket());
    assert_eq!(stranger.refused(listen(0), &[0]), ErrorCode::Protocol);
    assert_eq!(stranger.refused(Request::Unlisten { index: 0 }, &[]), ErrorCode::Protocol);
    assert!(stranger.status()["clients"].as_array().unwrap().is_empty());
}

#[test]
fn status_shows_connections() {
    let server = Server::start();
    let (a, b, port, at_a, at_b) = pair(&server);
    at_a.declare(2, Side::A, 1, SlotState::Syn);
    at_b.declare(2, Side::B, 1, SlotState::Open);
    a.attach(0, at_a.id, Side::A, 2, 1);
    attach(&b.slab, 7, at_b.id, Side::B, 2, 1);
    a.slab.tx(0).unwrap().bytes.store(100, Ordering::Relaxed);
    let other = b.attach(8, 0, Side::A, 0, 1);
    other.reason.store(Reason::RegularPeer as u8, Ordering::Relaxed);
    other.state.store(State::Kernel as u8, Ordering::Relaxed);
    let status = Control::connect(server.socket()).status();
    let connections = status["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 3, "{status:#}");
    let find = |key: &str, value: u64| connections.iter().find(|c| c[key] == value).unwrap();
    let at_sender = find("tx_queue", 100);
    assert_eq!(at_sender["path"], "shm");
    assert_eq!(at_sender["state"], "ESTABLISHED");
    assert_eq!(at_sender["local"], "127.0.0.1:40000");
    assert_eq!(
        (&at_sender["reason"], &at_sender["carrier"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(at_sender["pid"], std::process::id());
    assert_eq!(find("rx_queue", 100)["path"], "shm");
    let by_kernel = connections.iter().find(|c| c["path"] == "kernel").unwrap();
    assert_eq!(by_kernel["reason"], Reason::RegularPeer.text());
    assert_eq!(status["listeners"][0]["local"], format!("127.0.0.1:{port}"));
    assert_eq!(status["channels"], 1);
    at_b.declare(2, Side::B, 1, SlotState::Closed);
    let status = Control::connect(server.socket()).status();
    let state = status["connections"].as_array().unwrap().iter().find(|c| c["tx_queue"] == 100).unwrap();
    assert_eq!(state["state"], "CLOSE_WAIT");
}

#[test]
fn namespaces_are_apart() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let server = Server::start();
    let a = Client::register(&server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let epoch = a.epoch();
    // A thread can have a namespace of its own.
    let _elsewhere = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let b = Client::register(&server);
            assert_eq!(b.control.refused(listen(0), &[listener.as_raw_fd()]), ErrorCode::Protocol);
            let unreachable = TcpListener::bind(("0.0.0.0", port)).unwrap();
            b.listen_with(0, &unreachable);
            b
        });
        thread.join().unwrap()
    });
    assert_eq!(a.connect(port, false).0, kernel(Reason::NoListener));
    assert_eq!(a.epoch(), epoch);
}

#[test]
fn who_listens_is_published() {
    let server = Server::start_with_policy(Some(""));
    let a = Client::prepare(&server);
    let directory = a.hello(false);
    let b = Client::register(&server);
    let (_listener, port) = b.listen(3);
    let mut found = [Listing::NONE; 2];
    assert_eq!(directory.find(port, &mut found), Some(1));
    let Route::Shm { peer, .. } = a.connect(port, false).0 else { panic!("no route") };
    let (ip, socket) = (Ip::v4([127, 0, 0, 1]).halves(), socket_of(&_listener));
    let expected = Listing {
        client: peer,
        ip,
        port,
        v6only: false,
        accepting: true,
        soon: false,
        user: socket.user,
        cookie: socket.cookie,
        index: 3,
        generation: 1,
    };
    assert_eq!(found[0], expected);
    b.control.tell(Request::Accepting { index: 3, accepting: false }, &[]);
    until("it is told", || directory.find(port, &mut found) == Some(1) && !found[0].accepting);
    // What depends on who asks is not.
    server.write_policy("deny port=1");
    server.signal(Signal::SIGHUP);
    until("the policy is read", || directory.find(port, &mut found).is_none());
    server.write_policy("");
    server.signal(Signal::SIGHUP);
    until("the policy is read", || directory.find(port, &mut found) == Some(1));
    drop(b);
    until("it is gone", || directory.find(port, &mut found) == Some(0));
}
