//! What one request may cost the others, however much its user has.

use crate::client::{Client, Control, attach};
use crate::holding::lingering;
use crate::hostile::{NOBODY, send_many};
use crate::process::Process;
use crate::server::{Server, until};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::Uid;
use sd_proto::{ErrorCode, Ip, Reply, Request, Route};
use sd_shm::channel::Side;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So many of them, or what a user may have.
const FAMILIES_MAX: usize = 1000;
/// What one question into all of them takes is several times as long.
const SOON: Duration = Duration::from_millis(50);
const LOCAL: Ip = Ip::v4([127, 0, 0, 1]);

/// Many processes of one user, as far as the monitor can tell, whose slabs claim to be large.
fn crowd(server: &Server) -> Vec<Client> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let share = (most as usize / 4).saturating_sub(100) / 5;
    let crowd: Vec<Client> = (0..share.min(FAMILIES_MAX)).map(|_| Client::register(server)).collect();
    crowd.iter().for_each(|client| client.slab.header().high.store(u32::MAX, Ordering::Relaxed));
    crowd
}

fn tuple(port: u16) -> Request {
    Request::Tuple { ip: LOCAL, port, to_ip: LOCAL, to_port: 80 }
}

/// All of them are looked at, for the right answer.
fn is_answered(crowd: &[Client], port: u16) {
    let (asks, bind) = (&crowd[0].control, Request::Bind { ip: LOCAL, port, reuse: false });
    assert_eq!(asks.ask(bind, &[]).0, Reply::Ok);
    assert_eq!(asks.ask(tuple(port), &[]).0, Reply::Ok);
    for client in [1, crowd.len() / 2, crowd.len() - 1].map(|number| &crowd[number]) {
        let endpoint = attach(&client.slab, 7, 1, Side::A, 0, 1);
        client.slab.header().high.store(u32::MAX, Ordering::Relaxed);
        endpoint.ports.store(u32::from(port) << 16 | 80, Ordering::Relaxed);
        assert_eq!(asks.refused(tuple(port), &[]), ErrorCode::InUse);
        assert_eq!(asks.refused(bind, &[]), ErrorCode::InUse);
        endpoint.state.store(0, Ordering::Relaxed);
    }
    // Questions that come before the answer to the one before keep their order.
    asks.tell(tuple(port), &[]);
    asks.tell(Request::Unlisten { index: 9 }, &[]);
    asks.tell(Request::Status, &[]);
    let answers = [(); 3].map(|()| asks.receive().unwrap().0);
    assert_eq!(answers, [Reply::Ok, Reply::Ok, Reply::Status]);
    let shown = asks.status();
    let count = shown["clients"].as_array().unwrap().len();
    assert_eq!((count, &shown["truncated"]), (crowd.len(), &false.into()));
}

#[test]
fn questions_into_a_thousand_slabs_hold_nobody_up() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let server = Server::start();
    let honest = Client::register(&server);
    let mut hostile = Process::fork(|ready| {
        nix::unistd::setresuid(NOBODY, NOBODY, NOBODY).unwrap();
        let crowd = crowd(&server);
        let (_listener, port) = crowd[0].listen(0);
        is_answered(&crowd, port);
        ready();
        let bind = Request::Bind { ip: LOCAL, port, reuse: false };
        for asks in crowd.iter().cycle() {
            for request in [tuple(port), bind, Request::Status] {
                let start = Instant::now();
                asks.control.ask(request, &[]);
                if std::env::var_os("SD_TEST_COSTS").is_some() {
                    eprintln!("{request:?}: {:?}", start.elapsed());
                }
            }
        }
    });
    hostile.wait_ready();
    let (end, mut waits) = (Instant::now() + Duration::from_secs(3), Vec::new());
    while Instant::now() < end {
        let start = Instant::now();
        assert_eq!(honest.control.ask(Request::Unlisten { index: 9 }, &[]).0, Reply::Ok);
        waits.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    waits.sort_unstable();
    if std::env::var_os("SD_TEST_COSTS").is_some() {
        eprintln!("the longest waits of another user: {:?}", waits.iter().rev().take(10));
    }
    // A busy machine has some as well. In one go there are four or more each second.
    let long = waits.iter().filter(|wait| **wait > SOON).count();
    assert!(long < 8, "{long} of {}", waits.len());
    // Who is asked for in the middle of a question is forgotten with it.
    hostile.kill();
    until("all are gone", || honest.control.status()["clients"].as_array().unwrap().len() == 1);
}

/// So many that all threads which the user may keep busy are.
const CLOSES: usize = 24;

#[test]
fn closes_that_block_delay_no_other_user() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let server = Server::start();
    let mut hostile = Process::fork(|ready| {
        nix::unistd::setresuid(NOBODY, NOBODY, Uid::from_raw(0)).unwrap();
        let client = Client::register(&server);
        let as_root = |signal| {
            nix::unistd::seteuid(Uid::from_raw(0)).unwrap();
            server.signal(signal);
            nix::unistd::seteuid(NOBODY).unwrap();
        };
        as_root(Signal::SIGSTOP);
        let (near, far): (Vec<_>, Vec<_>) = (0..CLOSES).map(|_| lingering()).unzip();
        let nears: Vec<i32> = near.iter().map(AsRawFd::as_raw_fd).collect();
        send_many(&client.control, &[99], &nears);
        // Each must be closed here first, and there last.
        drop(near);
        as_root(Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(100));
        ready();
        std::mem::forget((client, far));
    });
    hostile.wait_ready();
    let mut other = Process::fork(|ready| {
        let user = Uid::from_raw(65533);
        nix::unistd::setresuid(user, user, user).unwrap();
        let start = Instant::now();
        for _ in 0..20 {
            let (a, b) = (Client::register(&server), Client::register(&server));
            let (_listener, port) = b.listen(0);
            assert!(matches!(a.connect(port, false).0, Route::Shm { .. }));
        }
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        ready();
    });
    other.wait_ready();
}

/// Somebody sends what takes long to close over a connection that is refused, as the monitor has no descriptor left.
#[test]
fn a_refused_connection_holds_nobody_up() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let server = Server::start();
    let honest = Client::register(&server);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let may_have = |count: u64| {
        let limit = libc::rlimit { rlim_cur: count, rlim_max: most };
        // SAFETY: the kernel reads one limit.
        let set = unsafe { libc::prlimit(server.pid(), libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    };
    // What came with its message may be on its way out still.
    server.holdings();
    may_have(server.first_free());
    let mut hostile = Process::fork(|ready| {
        nix::unistd::setresuid(NOBODY, NOBODY, Uid::from_raw(0)).unwrap();
        let (near, far) = lingering();
        nix::unistd::seteuid(Uid::from_raw(0)).unwrap();
        server.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(50));
        nix::unistd::seteuid(NOBODY).unwrap();
        let control = Control::connect(server.socket());
        send_many(&control, &[99], &[near.as_raw_fd()]);
        drop(near);
        nix::unistd::seteuid(Uid::from_raw(0)).unwrap();
        server.signal(Signal::SIGCONT);
        assert!(control.receive().is_none(), "it was let in");
        ready();
        std::mem::forget(far);
    });
    hostile.wait_ready();
    let start = Instant::now();
    assert_eq!(honest.control.ask(Request::Unlisten { index: 9 }, &[]).0, Reply::Ok);
    // Refused in words of the kernel's, and not left waiting.
    let refused = Control::connect(server.socket());
    assert!(refused.receive().is_none());
    may_have(most);
    drop(Client::register(&server));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
