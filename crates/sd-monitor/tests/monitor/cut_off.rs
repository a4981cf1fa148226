//! A living client that closes its control connection past libc: it stays, and comes back over another one.

use crate::client::{Client, Control, listen, own, pair};
use crate::hostile::NOBODY;
use crate::process::Process;
use crate::server::{Server, until};
use sd_proto::{ErrorCode, Reply, Request, Route, VERSION};
use sd_shm::channel::{FLAG_DEAD, Side, SlotState};
use std::ffi::CString;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

const RESUME: Request = Request::Resume;

/// A lock as a witness of this process has it: on a file that others can look at, by a description that a mapping keeps.
pub(crate) struct Witness {
    to_look: OwnedFd,
    place: *mut libc::c_void,
}

impl Witness {
    fn new() -> Witness {
        Witness::on(own(sd_sys::mem::memfd_sealed(c"sd-witness", 0).unwrap()))
    }

    fn on(to_look: OwnedFd) -> Witness {
        let with_lock = lock(&to_look);
        // SAFETY: a mapping that nobody touches.
        let place = unsafe {
            let fd = with_lock.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(place, libc::MAP_FAILED);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::madvise(place, 4096, libc::MADV_DONTFORK) }, 0);
        Witness { to_look, place }
    }

    fn end(&self) {
        // SAFETY: nobody touches it.
        unsafe { libc::munmap(self.place, 4096) };
    }
}

/// Another description of a file, with the lock.
fn lock(file: &OwnedFd) -> OwnedFd {
    let anew = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::flock(anew.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }, 0);
    anew.into()
}

fn hello(client: &Client, witness: i32) -> Reply {
    let fds: Vec<i32> = client.hello_fds().into_iter().chain([witness]).collect();
    client.control.ask(Request::Hello { version: VERSION, again: false }, &fds).0
}

pub(crate) fn register(server: &Server) -> (Client, Witness) {
    let (client, witness) = (Client::prepare(server), Witness::new());
    assert!(matches!(hello(&client, witness.to_look.as_raw_fd()), Reply::Welcome { .. }));
    (client, witness)
}

/// What close_range(2) does to the connection.
fn close_control(client: &mut Client, server: &Server) {
    client.control = Control::connect(server.socket());
}

/// It does so, and the monitor has heard of it.
pub(crate) fn cut_off(client: &mut Client, server: &Server) {
    let mail = client.mail();
    close_control(client, server);
    until("it is told that something is wrong", || client.mail() > mail);
}

pub(crate) fn resume(client: &Client) {
    assert_eq!(client.control.ask(RESUME, &[]).0, Reply::Resumed);
    client.control.tell(Request::Restored, &[]);
}

/// What the monitor says while it has nobody to say it to is said again: that nobody will accept a connection here.
#[test]
fn a_withdrawal_that_was_lost_comes_again() {
    let server = Server::start();
    let ((mut a, _witness), b) = (register(&server), Client::register(&server));
    let (listener, port) = b.listen(0);
    let at_a = a.connect(port, false).1.unwrap();
    b.take_channel();
    at_a.request(9, port);
    cut_off(&mut a, &server);
    b.control.tell(Request::CannotTake, &[listener.as_raw_fd()]);
    b.control.status();
    resume(&a);
    let withdrawn = Reply::Withdraw { channel: at_a.id, slot: 9, generation: 1 };
    assert_eq!(a.control.receive().unwrap().0, withdrawn);
}

fn inode(fd: &OwnedFd) -> u64 {
    File::from(fd.try_clone().unwrap()).metadata().unwrap().ino()
}

/// A, and B with a witness; the port of B's listener, their channel with an open connection, and the listener.
fn with_witness(server: &Server) -> (Client, Client, Witness, u16, crate::client::Channel, TcpListener) {
    let a = Client::register(server);
    let (b, witness) = register(server);
    let (listener, port) = b.listen(0);
    let (_, channel) = a.connect(port, false);
    b.take_channel();
    let channel = channel.unwrap();
    [Side::A, Side::B].into_iter().for_each(|side| channel.declare(0, side, 1, SlotState::Open));
    b.attach(0, channel.id, Side::B, 0, 1);
    (a, b, witness, port, channel, listener)
}

fn is_open(channel: &crate::client::Channel) -> bool {
    channel.state(0, Side::B) == (1, SlotState::Open, 0)
}

#[test]
fn a_living_client_stays_and_resumes() {
    let server = Server::start();
    let (a, mut b, witness, port, channel, listener) = with_witness(&server);
    let before = server.holdings();
    let mail = b.mail();
    close_control(&mut b, &server);
    until("new connections go to the kernel", || matches!(a.connect(port, false).0, Route::Kernel { .. }));
    until("it is told that something is wrong", || b.mail() > mail);
    std::thread::sleep(Duration::from_millis(100));
    assert!(is_open(&channel));
    let (reply, fds) = b.control.ask(RESUME, &[]);
    assert_eq!((reply, fds.len()), (Reply::Resumed, 3));
    assert_eq!(inode(&fds[0]), inode(&b.slab_fd));
    assert_eq!(inode(&fds[1]), inode(&b.public_fd));
    let (reply, fds) = b.control.ask(Request::GiveBack { channel: channel.id, side: 1 }, &[]);
    assert_eq!((reply, fds.len()), (Reply::GivenBack { stranger: false }, 2));
    assert_eq!(inode(&fds[0]), channel.inode());
    for (channel, side) in [(channel.id, 0), (channel.id + 1, 1), (channel.id, 2)] {
        let refused = b.control.refused(Request::GiveBack { channel, side }, &[]);
        assert_eq!(refused, ErrorCode::Protocol);
    }
    b.listen_with(0, &listener);
    assert!(matches!(a.connect(port, false).0, Route::Shm { fresh: false, .. }));
    a.was_woken();
    b.control.tell(Request::Restored, &[]);
    until("its peers look around", || a.was_woken());
    assert!(is_open(&channel));
    drop(fds);
    assert_eq!(server.holdings(), before);
    // It ends as others do, and once more as others do that close their connection.
    close_control(&mut b, &server);
    assert_eq!(b.control.ask(RESUME, &[]).0, Reply::Resumed);
    witness.end();
    drop(b);
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
}

#[test]
fn a_connection_that_is_not_over_yet_is_replaced() {
    let server = Server::start();
    let (a, b, _witness, port, channel, listener) = with_witness(&server);
    // A child that was forked past libc has the socket still; what was said there is heard.
    let other = listen(1);
    let second = TcpListener::bind("127.0.0.1:0").unwrap();
    b.control.tell(other, &[second.as_raw_fd()]);
    let control = Control::connect(server.socket());
    assert_eq!(control.ask(RESUME, &[]).0, Reply::Resumed);
    // A listener is one of the process that has the connection.
    let request = Request::Accepting { index: 1, accepting: false };
    control.tell(request, &[]);
    let reply = control.ask(listen(0), &[listener.as_raw_fd()]).0;
    assert_eq!(reply, Reply::Ok);
    assert!(matches!(a.connect(port, false).0, Route::Shm { fresh: false, .. }));
    assert!(is_open(&channel));
}

#[test]
fn a_free_witness_is_the_end() {
    let server = Server::start();
    let (a, mut b, witness, _, channel, _listener) = with_witness(&server);
    witness.end();
    close_control(&mut b, &server);
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
    assert_eq!(channel.state(0, Side::B), (1, SlotState::Closed, FLAG_DEAD));
    assert_eq!(b.control.refused(RESUME, &[]), ErrorCode::Protocol);
}

#[test]
fn one_that_becomes_free_is_the_end_too() {
    let server = Server::start();
    let (a, mut b, witness, _, channel, _listener) = with_witness(&server);
    close_control(&mut b, &server);
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_open(&channel));
    witness.end();
    let start = Instant::now();
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
    assert!(start.elapsed() < Duration::from_secs(2));
}

/// A process with a witness and a listener, which does something when it is told to.
fn process(server: &Server, listener: &TcpListener, then: impl FnOnce(Client)) -> Process {
    Process::fork(|ready| {
        let (client, witness) = register(server);
        client.listen_with(0, listener);
        ready();
        let channel = client.take_channel();
        channel.declare(0, Side::B, 1, SlotState::Open);
        client.attach(0, channel.id, Side::B, 0, 1);
        std::mem::forget((channel, witness));
        then(client);
        ready();
    })
}

#[test]
fn exec_and_death_end_the_image() {
    let server = Server::start();
    let a = Client::register(&server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let told = |process: &mut Process, how: &dyn Fn(&mut Process)| {
        process.wait_ready();
        let (_, channel) = a.connect(port, false);
        let channel = channel.unwrap();
        channel.declare(0, Side::A, 1, SlotState::Open);
        how(process);
        let start = Instant::now();
        assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
        start.elapsed()
    };
    let sleep = CString::new("/bin/sleep").unwrap();
    let mut executes = process(&server, &listener, |client| {
        std::mem::forget(client);
        panic!("{}", Command::new(sleep.to_str().unwrap()).arg("60").exec());
    });
    let took = told(&mut executes, &|_| {});
    assert!(took < Duration::from_millis(500), "{took:?}");
    let mut dies = process(&server, &listener, |client| drop(client.control));
    let took = told(&mut dies, &|process| {
        process.wait_ready();
        std::thread::sleep(Duration::from_millis(300));
        process.kill();
    });
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn what_is_no_witness_is_refused() {
    let server = Server::start();
    let client = Client::prepare(&server);
    let before = server.holdings();
    let (pipe, _write) = nix::unistd::pipe().unwrap();
    // SAFETY: a name, and no pointers besides.
    let open = unsafe { libc::memfd_create(c"sd-witness".as_ptr(), libc::MFD_ALLOW_SEALING) };
    let open = own(sd_sys::fd::Owned::new(open));
    let long = own(sd_sys::mem::memfd_sealed(c"sd-witness", 4096).unwrap());
    let null: OwnedFd = File::open("/dev/null").unwrap().into();
    for other in [&pipe, &open, &long, &null, &client.eventfd, &client.slab_fd] {
        let fds: Vec<i32> = client.hello_fds().into_iter().chain([other.as_raw_fd()]).collect();
        let refused = client.control.refused(Request::Hello { version: VERSION, again: false }, &fds);
        assert_eq!(refused, ErrorCode::Descriptor);
    }
    until("they are closed", || server.holdings() == before);
    // A lease delays whoever opens the file: nobody does.
    let leased = own(sd_sys::mem::memfd_sealed(c"sd-witness", 0).unwrap());
    let reads: OwnedFd = File::open(format!("/proc/self/fd/{}", leased.as_raw_fd())).unwrap().into();
    // SAFETY: no pointers.
    unsafe { libc::fcntl(reads.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    assert!(matches!(hello(&client, leased.as_raw_fd()), Reply::Welcome { .. }));
}

#[test]
fn a_lock_of_somebody_elses_keeps_nobody_alive() {
    let server = Server::start();
    let a = Client::register(&server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let witness = own(sd_sys::mem::memfd_sealed(c"sd-witness", 0).unwrap());
    // Of another user, where there are others.
    let mut holder = Process::fork(|ready| {
        let held = lock(&witness);
        let _ = nix::unistd::setresuid(NOBODY, NOBODY, NOBODY);
        std::mem::forget(held);
        ready();
    });
    holder.wait_ready();
    let mut liar = Process::fork(|ready| {
        let client = Client::prepare(&server);
        assert!(matches!(hello(&client, witness.as_raw_fd()), Reply::Welcome { .. }));
        client.listen_with(0, &listener);
        ready();
        let channel = client.take_channel();
        let Client { control, .. } = client;
        drop(control);
        ready();
        std::mem::forget(channel);
    });
    liar.wait_ready();
    let (_, channel) = a.connect(listener.local_addr().unwrap().port(), false);
    liar.wait_ready();
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    liar.kill();
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: channel.unwrap().id });
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn nobody_else_resumes() {
    let server = Server::start();
    let (a, mut b, _witness, _, channel, _listener) = with_witness(&server);
    close_control(&mut b, &server);
    let mut others = Process::fork(|ready| {
        // Another process, of the same user and of another.
        assert_eq!(Control::connect(server.socket()).refused(RESUME, &[]), ErrorCode::Protocol);
        let is_another = nix::unistd::setresuid(NOBODY, NOBODY, NOBODY).is_ok();
        assert_eq!(Control::connect(server.socket()).refused(RESUME, &[]), ErrorCode::Protocol);
        assert!(is_another || !nix::unistd::geteuid().is_root());
        ready();
    });
    others.wait_ready();
    // Who is registered does not resume.
    assert_eq!(a.control.refused(RESUME, &[]), ErrorCode::Protocol);
    assert!(is_open(&channel));
    assert_eq!(b.control.ask(RESUME, &[]).0, Reply::Resumed);
}

#[test]
fn a_bounded_number_is_cut_off() {
    const MANY: usize = 64;
    let server = Server::start();
    let before = server.holdings();
    let a = Client::register(&server);
    let all: Vec<(Client, Witness)> = (0..MANY + 8).map(|_| register(&server)).collect();
    let (kept, witnesses): (Vec<_>, Vec<_>) = all
        .into_iter()
        .map(|(client, witness)| {
            drop(client.control);
            ((client.slab, client.slab_fd), witness)
        })
        .unzip();
    let clients = || a.control.status()["clients"].as_array().unwrap().len();
    until("so many are left", || clients() == MANY + 1);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(clients(), MANY + 1);
    witnesses.iter().for_each(Witness::end);
    until("all are gone", || clients() == 1);
    drop((kept, witnesses, a));
    until("all is given back", || server.holdings() == before);
}

#[test]
fn without_a_witness_all_is_as_it_was() {
    let server = Server::start();
    let (a, b, _, channel, _) = pair(&server);
    drop(b);
    assert_eq!(a.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
}
