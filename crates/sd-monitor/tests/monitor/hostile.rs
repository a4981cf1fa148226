//! Clients that do what no library of ours does.

use crate::client::{Client, Control, listen, own};
use crate::process::Process;
use crate::server::{Server, until};
use nix::sys::memfd::{MFdFlags, memfd_create};
use sd_proto::{ErrorCode, Ip, MESSAGE_MAX, Reply, Request, VERSION};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

const HELLO: Request = Request::Hello { version: VERSION, again: false };

#[test]
fn other_versions_are_told_so() {
    let server = Server::start();
    let client = Client::prepare(&server);
    let request = Request::Hello { version: VERSION + 1, again: false };
    assert_eq!(client.control.refused(request, &client.hello_fds()), ErrorCode::Version);
    // Even when their message is longer.
    let mut bytes = [0u8; 40];
    bytes[..5].copy_from_slice(&[1, VERSION as u8 + 1, 0, 0, 0]);
    client.control.send_bytes(&bytes, &client.hello_fds()).unwrap();
    let (reply, _) = client.control.receive().unwrap();
    assert_eq!(reply, Reply::Error { code: ErrorCode::Version });
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let server = Server::start();
    let honest = Client::register(&server);
    for garbage in [&[0u8][..], &[9], &[255; MESSAGE_MAX], &[2, 0], &[1, VERSION as u8, 0, 0, 0, 7], &[8, 8]]
    {
        let control = Control::connect(server.socket());
        control.send_bytes(garbage, &[0, 1, 2]).unwrap();
        let (reply, _) = control.receive().unwrap();
        assert_eq!(reply, Reply::Error { code: ErrorCode::Protocol });
        assert!(control.receive().is_none());
    }
    let control = Control::connect(server.socket());
    control.send_bytes(&[8; MESSAGE_MAX + 1], &[]).unwrap();
    control.send_bytes(&[], &[0]).unwrap();
    assert!(control.receive().is_none());
    honest.listen(0);
}

/// A memfd with these flags, length and seals.
fn memfd(flags: MFdFlags, len: usize, seals: i32) -> OwnedFd {
    let fd = memfd_create(c"hostile", flags | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    sd_sys::mem::ftruncate(fd.as_raw_fd(), len).unwrap();
    sd_sys::mem::add_seals(fd.as_raw_fd(), seals).unwrap();
    fd
}

#[test]
fn unfit_descriptors_are_refused() {
    let server = Server::start();
    let client = Client::prepare(&server);
    let good = client.hello_fds();
    let sealed = libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;
    let (pipe, _end) = nix::unistd::pipe().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let datagram = UdpSocket::bind("127.0.0.1:0").unwrap();
    let short = memfd(MFdFlags::empty(), 4096, sealed);
    let unsealed = memfd(MFdFlags::empty(), sd_shm::slab::LEN, 0);
    let mut unfit: Vec<(usize, i32)> = (0..4).map(|place| (place, pipe.as_raw_fd())).collect();
    unfit.extend([
        (0, short.as_raw_fd()),
        (1, short.as_raw_fd()),
        (0, unsealed.as_raw_fd()),
        (1, unsealed.as_raw_fd()),
    ]);
    unfit.extend([(1, good[0]), (2, good[3]), (3, good[2]), (3, datagram.as_raw_fd())]);
    let huge = memfd_create(c"huge", MFdFlags::MFD_HUGETLB | MFdFlags::MFD_ALLOW_SEALING).ok().filter(|fd| {
        let len = sd_shm::slab::LEN.next_multiple_of(2 << 20);
        sd_sys::mem::ftruncate(fd.as_raw_fd(), len).is_ok()
            && sd_sys::mem::add_seals(fd.as_raw_fd(), 2).is_ok()
    });
    unfit.extend(huge.as_ref().map(|fd| (0, fd.as_raw_fd())));
    for (place, fd) in unfit {
        let mut fds = good;
        fds[place] = fd;
        assert_eq!(client.control.refused(HELLO, &fds), ErrorCode::Descriptor, "place {place}");
    }
    for fds in [&[][..], &good[..3], &[good[0]; 8]] {
        assert_eq!(client.control.refused(HELLO, fds), ErrorCode::Descriptor);
    }
    assert!(matches!(client.control.ask(HELLO, &good).0, Reply::Welcome { .. }));
    let next_image = client.control.ask(HELLO, &good).0;
    assert!(matches!(next_image, Reply::Welcome { .. }), "{next_image:?}");
    for fd in [stream.as_raw_fd(), datagram.as_raw_fd(), pipe.as_raw_fd(), good[3]] {
        assert_eq!(client.control.refused(listen(0), &[fd]), ErrorCode::Descriptor);
    }
    assert_eq!(client.control.refused(listen(0), &[]), ErrorCode::Descriptor);
    assert_eq!(client.control.refused(listen(100_000), &[listener.as_raw_fd()]), ErrorCode::Protocol);
}

#[test]
fn refused_descriptors_are_closed() {
    let server = Server::start();
    let client = Client::register(&server);
    let before = server.holdings();
    for count in 0..=8 {
        client.control.refused(listen(0), &vec![0; count.max(2)]);
        client.control.tell(Request::Fork { member: 1, serial: 1 }, &vec![0; count]);
        client.control.tell(Request::Born { serial: 1 }, &vec![0; count]);
        client.control.tell(Request::Accepting { index: 0, accepting: true }, &vec![0; count]);
    }
    client.control.status();
    until("they are closed", || server.holdings() == before);
}

/// More than `send_with_fds` sends: as many as one message can carry.
pub(crate) fn send_many(control: &Control, bytes: &[u8], fds: &[i32]) {
    let message = [nix::sys::socket::ControlMessage::ScmRights(fds)];
    let iov = [std::io::IoSlice::new(bytes)];
    let flags = nix::sys::socket::MsgFlags::empty();
    nix::sys::socket::sendmsg::<()>(control.socket.as_raw_fd(), &iov, &message, flags, None).unwrap();
}

#[test]
fn too_many_descriptors_are_closed_too() {
    let server = Server::start();
    let client = Client::register(&server);
    let before = server.holdings();
    let mut buf = [0; MESSAGE_MAX];
    for count in [9, 10, 12, 13, 64, 253] {
        send_many(&client.control, listen(0).encode(&mut buf), &vec![0; count]);
        assert!(matches!(client.control.receive(), Some((Reply::Error { .. }, _))), "{count}");
        let request = Request::Fork { member: 1, serial: 1 };
        send_many(&client.control, request.encode(&mut buf), &vec![0; count]);
        client.control.status();
        until("they are closed", || server.holdings() == before);
    }
}

#[test]
fn more_descriptors_than_a_kind_brings_are_refused() {
    let server = Server::start();
    let client = Client::register(&server);
    let before = server.holdings();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for request in Request::examples().filter(|request| !matches!(request, Request::Hello { .. })) {
        let fds = vec![listener.as_raw_fd(); request.brings() + 1];
        match request.is_answered() {
            true => assert_eq!(client.control.refused(request, &fds), ErrorCode::Descriptor, "{request:?}"),
            false => client.control.tell(request, &fds),
        }
    }
    client.control.status();
    until("they are closed", || server.holdings() == before);
}

#[test]
fn a_client_that_does_not_read_is_dismissed() {
    let server = Server::start();
    let client = Client::register(&server);
    let ip = Ip::v4([127, 0, 0, 1]);
    let request = Request::Connect { ip, port: 1, nth: 0, want_ports: false, want_channel: false };
    let mut buf = [0; MESSAGE_MAX];
    let bytes = request.encode(&mut buf);
    until("it is dismissed", || (0..1000).any(|_| client.control.send_bytes(bytes, &[]).is_err()));
    Client::register(&server).listen(0);
}

#[test]
fn running_out_of_descriptors_is_survived() {
    let mut server = Server::start();
    server.end();
    server.restart_with(|command| {
        // SAFETY: between fork and exec only setrlimit(2) is called.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(command, || {
                Ok(nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 40, 40)?)
            });
        }
    });
    // Who is answered finds a monitor that has closed what it needed to start.
    let first = Client::register(&server);
    let before = server.holdings();
    let mut clients = Vec::new();
    for _ in 0..20 {
        let client = Client::prepare(&server);
        let sent = client.control.send_bytes(HELLO.encode(&mut [0; MESSAGE_MAX]), &client.hello_fds());
        let welcome = sent.is_ok() && matches!(client.control.receive(), Some((Reply::Welcome { .. }, _)));
        clients.push((client, welcome));
    }
    let registered = clients.iter().filter(|(_, welcome)| *welcome).count();
    assert!((1..7).contains(&registered), "{registered}");
    let waiting = server.sleeps();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(server.sleeps(), waiting, "it must not spin");
    drop(clients);
    until("all are gone", || server.holdings() == before);
    first.listen(0);
    Client::register(&server).listen(0);
}

#[test]
fn others_sockets_are_not_shown() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let server = Server::start();
    let (_a, _b, _, _, _) = crate::client::pair(&server);
    let mut process = Process::fork(|ready| {
        nix::unistd::setresuid(NOBODY, NOBODY, NOBODY).unwrap();
        let mine = Client::register(&server);
        mine.listen(0);
        let status = mine.control.status();
        let count = |key: &str| status[key].as_array().unwrap().len();
        assert_eq!((count("clients"), count("listeners"), count("connections")), (1, 1, 0));
        ready();
        std::mem::forget(mine);
    });
    process.wait_ready();
    let status = Control::connect(server.socket()).status();
    assert_eq!(status["clients"].as_array().unwrap().len(), 3);
}

pub(crate) const NOBODY: nix::unistd::Uid = nix::unistd::Uid::from_raw(65534);

#[test]
fn forks_of_strangers_do_no_harm() {
    let server = Server::start();
    let victim = Client::register(&server);
    let liar = Client::register(&server);
    let process = Process::fork(|_| {});
    let pidfd = own(sd_sys::fd::pidfd_open(process.pid()).unwrap());
    let mine = own(sd_sys::fd::pidfd_open(std::process::id() as i32).unwrap());
    for member in [0, 1, 1, 63, 64, u32::MAX] {
        let [monitors, childs] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
        for fd in [&pidfd, &mine, &liar.eventfd, &liar.tcp, &monitors] {
            liar.control.tell(Request::Fork { member, serial: member }, &[fd.as_raw_fd()]);
            liar.control.tell(Request::Born { serial: member }, &[fd.as_raw_fd()]);
        }
        drop(childs);
    }
    liar.control.status();
    drop(liar);
    drop(process);
    until("all are gone", || victim.control.status()["processes"] == 1);
    victim.listen(0);
}

#[test]
fn a_slab_full_of_nonsense_is_survived() {
    let server = Server::start();
    let (a, b, _, channel, _) = crate::client::pair(&server);
    let mut random = 88172645463325252u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let places = [
        core::ptr::from_ref(a.slab.endpoint(0).unwrap()).cast_mut().cast::<u64>(),
        core::ptr::from_ref(a.slab.rx(0).unwrap()).cast_mut().cast::<u64>(),
        core::ptr::from_ref(a.slab.tx(0).unwrap()).cast_mut().cast::<u64>(),
        core::ptr::from_ref(a.slab.kept(0).unwrap()).cast_mut().cast::<u64>(),
    ];
    for (word, place) in (0..40 * 64 / 8).flat_map(|word| places.map(|place| (word, place))) {
        // SAFETY: within those of the first 64 endpoints of a slab that nobody else in this process uses.
        unsafe { place.add(word).write_volatile(next()) };
    }
    for index in 64..192usize {
        a.attach(index, channel.id, sd_shm::channel::Side::A, (next() % 2048) as u32, 1);
        let cursor = a.slab.rx(index).unwrap().cursor.get().cast::<u64>();
        // SAFETY: the cursor is four words of the same slab.
        (0..4).for_each(|word| unsafe { cursor.add(word).write_volatile(next() & next()) });
    }
    a.slab.header().high.store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
    Control::connect(server.socket()).status();
    drop(a);
    assert!(matches!(b.control.receive(), Some((Reply::ChannelDead { .. }, _))));
    b.control.status();
}
