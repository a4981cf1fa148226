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
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

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

/// An honest client gives up after ten seconds ([`Control::connect`]); hostile ones hold on for a minute, or until the test ends.
fn is_served(server: &Server) {
    let (_a, _b, ..) = crate::client::pair(server);
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

/// The owner of an eventfd makes it blocking and its counter as large as may be, and lifts it by one more with
/// asynchronous I/O between the monitor's look and its write.
#[test]
fn an_eventfd_at_its_end_holds_nobody_up() {
    let server = Server::start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_listener, port) = b.listen(0);
    let (route, _channel) = a.connect(port, false);
    let sd_proto::Route::Shm { channel, peer, .. } = route else { panic!("{route:?}") };
    let eventfd = b.eventfd.as_raw_fd();
    sd_sys::fd::fcntl(eventfd, libc::F_SETFL, 0).unwrap();
    let (ended, answers) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let lifts = scope.spawn(|| {
            let ringer = sd_sys::ringer::Ringer::new().unwrap();
            while !ended.load(Ordering::Relaxed) {
                // Some room for what the monitor adds meanwhile: this must not block.
                let _ = sd_sys::fd::write(eventfd, &(u64::MAX - 8).to_ne_bytes());
                (0..9).for_each(|_| ringer.ring(eventfd).unwrap());
                // Who is blocked now stays so.
                let before = answers.load(Ordering::Relaxed);
                while answers.load(Ordering::Relaxed) == before && !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                let _ = sd_sys::fd::read(eventfd, &mut [0; 8]);
            }
        });
        for _ in 0..20_000 {
            let (reply, _) = a.control.ask(Request::WakeTarget { channel, side: 0, client: peer }, &[]);
            assert_eq!(reply, sd_proto::Reply::Adopter { stranger: false });
            answers.fetch_add(1, Ordering::Relaxed);
        }
        ended.store(true, Ordering::Relaxed);
        sd_sys::fd::fcntl(eventfd, libc::F_SETFL, libc::O_NONBLOCK as usize).unwrap();
        while !lifts.is_finished() {
            let _ = sd_sys::fd::read(eventfd, &mut [0; 8]);
        }
    });
}

/// Holds the lock of a file in memory: a write to it whose bytes lie in memory that nobody serves. What a file system
/// of its own (FUSE) is to an attacker, userfaultfd(2) is here.
struct LockedFile {
    faults: Option<OwnedFd>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl LockedFile {
    /// `None` where this process may not have such memory.
    fn of(file: OwnedFd) -> Option<LockedFile> {
        const PAGE: usize = 4096;
        const UFFDIO_API: u64 = 0xc018_aa3f;
        const UFFDIO_REGISTER: u64 = 0xc020_aa00;
        // SAFETY: plain system calls; the kernel reads and writes the arrays, whose sizes stand in the numbers above, and
        // the page is written to by nobody but the kernel.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            let faults = (fd >= 0).then(|| crate::client::own(sd_sys::fd::Owned::new(fd)))?;
            let mut api = [0xaau64, 0, 0];
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0) as u64;
            let mut register = [page, PAGE as u64, 1, 0];
            assert_eq!(libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr()), 0);
            assert_eq!(libc::ioctl(fd, UFFDIO_REGISTER, register.as_mut_ptr()), 0);
            let writer = std::thread::spawn(move || {
                libc::pwrite(file.as_raw_fd(), page as *const libc::c_void, 8, 0);
            });
            std::thread::sleep(Duration::from_millis(100));
            assert!(!writer.is_finished());
            Some(LockedFile { faults: Some(faults), writer: Some(writer) })
        }
    }
}

impl LockedFile {
    fn is_held(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| !writer.is_finished())
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Nobody waits for the page any more.
        self.faults = None;
        self.writer.take().into_iter().for_each(|writer| writer.join().unwrap());
    }
}

/// The monitor looks through slabs and channels: whoever has such a file can hold its lock for as long as it likes.
#[test]
fn a_file_that_is_locked_holds_nobody_up() {
    let server = Server::start();
    let (a, b) = (Client::register(&server), Client::register(&server));
    let (_listener, port) = b.listen(0);
    let (_, channel) = a.connect(port, true);
    let channel = channel.unwrap();
    let honest = Client::register(&server);
    let (Some(slab), Some(segment)) = (
        LockedFile::of(a.slab_fd.try_clone().unwrap()),
        LockedFile::of(channel.segment.try_clone().unwrap()),
    ) else {
        return;
    };
    let bind = Request::Bind { ip: sd_proto::Ip::v4([127, 0, 0, 1]), port: 1, reuse: false };
    assert_eq!(honest.control.ask(bind, &[]).0, sd_proto::Reply::Ok);
    honest.control.status();
    drop(a);
    is_served(&server);
    // All the while.
    assert!([&slab, &segment].iter().all(|file| file.is_held()));
    drop((slab, segment));
}
