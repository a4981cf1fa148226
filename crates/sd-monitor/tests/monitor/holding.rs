//! Clients that try to hold the monitor up: what they send takes long to close, to ask about or to write to.

use crate::client::{Client, Control};
use crate::hostile::{NOBODY, send_many};
use crate::process::Process;
use crate::server::{Server, until};
use nix::sys::signal::Signal;
use sd_proto::{MESSAGE_MAX, Request, VERSION};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// What an honest client may wait, on a busy machine; hostile ones hold on for a minute.
const SOON: Duration = Duration::from_secs(2);

/// A connected socket whose last close waits for a minute, as nobody reads what was sent.
pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 65536]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: 60 };
    nix::sys::socket::setsockopt(&near, nix::sys::socket::sockopt::Linger, &linger).unwrap();
    (near.into(), far)
}

/// Sends `count` descriptors with these bytes, of which the last is the only one of a lingering socket.
fn send_lingering(control: &Control, bytes: &[u8], count: usize) -> TcpStream {
    let (near, far) = lingering();
    let mut fds = vec![0; count - 1];
    fds.push(near.as_raw_fd());
    send_many(control, bytes, &fds);
    far
}

fn is_served(server: &Server) {
    let start = Instant::now();
    let (_a, _b, ..) = crate::client::pair(server);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

/// Bytes and number of descriptors of messages that somebody might send.
fn messages() -> Vec<(Vec<u8>, usize)> {
    let encode = |request: Request| request.encode(&mut [0; MESSAGE_MAX]).to_vec();
    let hello = encode(Request::Hello { version: VERSION, again: false });
    let fork = encode(Request::Fork { member: 1, serial: 1 });
    let contents = [Vec::new(), hello, fork, encode(crate::client::listen(0)), vec![99]];
    let counts = [1, 4, 9, 17, 253];
    contents.iter().flat_map(|bytes| counts.map(|count| (bytes.clone(), count))).collect()
}

#[test]
fn descriptors_that_take_long_to_close_hold_nobody_up() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let server = Server::start();
    let mut hostile = Process::fork(|ready| {
        nix::unistd::setresuid(NOBODY, NOBODY, nix::unistd::Uid::from_raw(0)).unwrap();
        let strangers = messages().into_iter().map(|message| (Control::connect(server.socket()), message));
        let registered = messages().into_iter().map(|message| (Client::register(&server).control, message));
        let all: Vec<_> = strangers.chain(registered).collect();
        // Each must be closed here first, and there last.
        let as_root = |signal| {
            nix::unistd::seteuid(nix::unistd::Uid::from_raw(0)).unwrap();
            server.signal(signal);
            nix::unistd::seteuid(NOBODY).unwrap();
        };
        as_root(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(50));
        let far: Vec<_> = all.iter().map(|(to, (bytes, count))| send_lingering(to, bytes, *count)).collect();
        as_root(Signal::SIGCONT);
        ready();
        std::mem::forget((all, far));
    });
    hostile.wait_ready();
    for _ in 0..10 {
        is_served(&server);
    }
    drop(hostile);
    until("all are closed", || server.holdings().0 < 40);
}
