//! What one user can have of the monitor leaves enough for the others.

use crate::client::{Client, Control, own};
use crate::hostile::NOBODY;
use crate::process::Process;
use crate::server::{Server, until};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Uid;
use sd_proto::{MESSAGE_MAX, Reply, Request, Route, VERSION};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

/// Descriptors that the monitor can have: a user gets 512.
const LIMIT: u64 = 2048;
const SHARE: u64 = LIMIT / 4;

/// `None` for tests that need root.
fn small() -> Option<Server> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most).ok()?;
    let server = Server::start();
    let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
    // SAFETY: the kernel reads one limit.
    let done = unsafe { libc::prlimit(server.pid(), libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
    (done == 0).then_some(server)
}

fn become_user(uid: Uid) {
    nix::unistd::setresuid(uid, uid, uid).unwrap();
}

/// While an attack stands, another user is introduced to a server; afterwards all is given back.
fn withstands(attack: impl Fn(&Server, u16)) {
    let Some(server) = small() else { return };
    let serves = Client::register(&server);
    let (_, port) = serves.listen(0);
    let before = server.holdings();
    let mut attacker = Process::fork(|ready| {
        become_user(NOBODY);
        attack(&server, port);
        ready();
        std::thread::sleep(std::time::Duration::from_secs(60));
    });
    attacker.wait_ready();
    let held = server.holdings().0 as u64;
    assert!(held < before.0 as u64 + SHARE + SHARE / 4 + 16, "{held}");
    let mut other = Process::fork(|ready| {
        become_user(Uid::from_raw(65533));
        let client = Client::register(&server);
        let (route, ports, _) = client.connect_full(port, 0, true, false);
        assert!(matches!(route, Route::Shm { fresh: true, .. }), "{route:?}");
        assert_ne!(ports.1, 0);
        ready();
        std::mem::forget(client);
    });
    other.wait_ready();
    other.kill();
    attacker.kill();
    until("all is given back", || server.holdings() == before);
}

fn send(control: &Control, request: Request, fds: &[i32]) -> bool {
    control.send_bytes(request.encode(&mut [0; MESSAGE_MAX]), fds).is_ok()
}

/// A channel of an earlier monitor's time, that there never was.
fn invent(client: &Client, id: u64) -> bool {
    let segment = own(sd_sys::mem::memfd_sealed(c"sd-channel", sd_shm::channel::SEGMENT_LEN).unwrap());
    let request = Request::Channel { id, side: 0, peer_pid: 1, adopter: 0 };
    send(&client.control, request, &[segment.as_raw_fd()])
}

#[test]
fn channels_of_earlier_times() {
    withstands(|server, _| {
        let new = Client::register(server);
        assert!(invent(&new, 1));
        assert_eq!(new.control.status()["channels"], 0, "it is no old client");
        let old = Client::prepare(server);
        old.hello(true);
        assert!((0..3000).all(|id| invent(&old, id)));
        let channels = old.control.status()["channels"].as_u64().unwrap();
        assert!((SHARE / 4..SHARE / 2).contains(&channels), "{channels}");
        std::mem::forget((new, old));
    });
}

/// Announces children that never come, as long as the monitor listens; their sockets.
fn announce(client: &Client, count: u32) -> Vec<std::os::fd::OwnedFd> {
    let mut held = Vec::new();
    for serial in 0..count {
        let [monitors, childs] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
        if !send(&client.control, Request::Fork { member: 63, serial }, &[monitors.as_raw_fd()]) {
            break;
        }
        held.push(childs);
    }
    held
}

#[test]
fn children_that_never_come() {
    withstands(|server, _| {
        let client = Client::register(server);
        std::mem::forget((announce(&client, 3000), client));
    });
}

#[test]
fn as_many_clients_as_there_are() {
    withstands(|server, _| {
        let hello = Request::Hello { version: VERSION, again: false };
        let mut clients = Vec::new();
        for _ in 0..400 {
            let client = Client::prepare(server);
            let is_sent = send(&client.control, hello, &client.hello_fds());
            let answer = client.control.receive_with(0).ok().flatten();
            let welcome = is_sent && matches!(answer, Some((Reply::Welcome { .. }, _)));
            clients.push((client, welcome));
        }
        let count = clients.iter().filter(|(_, welcome)| *welcome).count() as u64;
        assert!((SHARE / 10..=SHARE / 5).contains(&count), "{count}");
        std::mem::forget(clients);
    });
}

#[test]
fn all_ports_that_there_are() {
    withstands(|server, port| {
        let client = Client::register(server);
        let counts = (0..2000).map(|_| client.connect_full(port, 0, true, false).1.1);
        let ports: u32 = counts.take_while(|count| *count != 0).map(u32::from).sum();
        assert!((1000..=65536 / 4).contains(&ports), "{ports}");
        std::mem::forget(client);
    });
}

/// A child whose connection was refused lives as long as it lives.
#[test]
fn a_child_beyond_the_quota_is_known_by_its_pidfd() {
    let Some(server) = small() else { return };
    let witness = Client::register(&server);
    let (mut said, mut say) = std::io::pipe().unwrap();
    let mut parent = Process::fork(|ready| {
        become_user(NOBODY);
        let client = Client::register(&server);
        let held = announce(&client, 258);
        let serial = 1000;
        let [monitors, childs] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
        assert!(send(&client.control, Request::Fork { member: 1, serial }, &[monitors.as_raw_fd()]));
        drop((monitors, childs));
        let mut child = Process::fork(|ready| {
            for fd in held.iter().map(AsRawFd::as_raw_fd).chain([client.control.socket.as_raw_fd()]) {
                sd_sys::fd::close(fd);
            }
            ready();
        });
        child.wait_ready();
        let pidfd = own(sd_sys::fd::pidfd_open(child.pid()).unwrap());
        assert!(send(&client.control, Request::Born { serial }, &[pidfd.as_raw_fd()]));
        client.control.status();
        say.write_all(&child.pid().to_ne_bytes()).unwrap();
        std::mem::forget((child, client, held));
        ready();
    });
    parent.wait_ready();
    let mut pid = [0; 4];
    said.read_exact(&mut pid).unwrap();
    assert!(witness.control.status()["processes"].as_u64().unwrap() > 250);
    parent.kill();
    until("its parent is gone", || witness.control.status()["processes"] == 2);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(witness.control.status()["clients"].as_array().unwrap().len(), 2, "the child has its slab");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::from_ne_bytes(pid)), nix::sys::signal::SIGKILL)
        .unwrap();
    until("the child is gone", || witness.control.status()["processes"] == 1);
}

/// Of a user who shares the monitor only so many endpoints are looked at, and the library is told.
#[test]
fn endpoints_that_are_looked_at_have_a_bound() {
    let Some(server) = small() else { return };
    let allowed = |client: &Client| client.slab.header().endpoints_allowed();
    assert_eq!(allowed(&Client::register(&server)), sd_shm::slab::ENDPOINTS);
    let mut stranger = Process::fork(|ready| {
        become_user(NOBODY);
        let client = Client::register(&server);
        assert_eq!(allowed(&client), 1 << 15);
        // What it says of itself changes nothing.
        client.slab.header().endpoints_max.store(0, std::sync::atomic::Ordering::Relaxed);
        for number in [0, (1 << 15) - 1, 1 << 15] {
            let endpoint = client.slab.endpoint(number).unwrap();
            endpoint.state.store(sd_shm::slab::State::Kernel as u8, std::sync::atomic::Ordering::Relaxed);
        }
        client.slab.header().high.store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
        let status = client.control.status();
        assert_eq!(status["connections"].as_array().unwrap().len(), 2);
        assert!(status["clients"][0]["memory_bytes"].as_u64().unwrap() >= 3 * 4096, "{status:#}");
        ready();
        std::mem::forget(client);
    });
    stranger.wait_ready();
}
