//! Each kind of request, with each kind of descriptor, about each thing of others' and of one's own. What must not come
//! back: a descriptor that the request has no claim to. What happens to others, `cargo xtask hostile` looks at.

use crate::client::{Client, Control, own};
use crate::knock::Way;
use sd_proto::{Ip, MESSAGE_MAX, Reply, Request};
use sd_shm::channel::SEGMENT_LEN;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

/// Numbers of channels and clients that are not mallory's, or nobody's.
struct Ids {
    own: u64,
    all: Vec<u64>,
}

/// Descriptors by name.
type Supply = Vec<(&'static str, Vec<OwnedFd>)>;

pub(crate) fn run(victims: &[i32], port: u16) -> io::Result<()> {
    let client = Client::register()?;
    let way = Way::ask(&client, port, false)?;
    let own_channel = way.as_ref().map_or(1, |way| way.channel.id);
    // Numbers go up: those before are others' and those behind are not given yet.
    let mut all: Vec<u64> = vec![0, 1, u64::MAX, own_channel];
    for step in [1, 2, 4095, 4096, 1 << 20] {
        all.extend([own_channel.wrapping_sub(step), own_channel.wrapping_add(step)]);
    }
    let ids = Ids { own: own_channel, all };
    let supply = supply(&client, victims)?;
    let mut sent = 0u64;
    let mut control = client.control;
    for (name, fds) in &supply {
        let numbers: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        for request in requests(&ids, port) {
            sent += 1;
            if !attempt(&control, request, name, &numbers, &ids) {
                control = fresh()?;
            }
        }
        // Whoever announces a channel has it, whatever its number: so these come last, and are forgotten again.
        for request in announcements(&ids) {
            sent += 1;
            attempt(&control, request, name, &numbers, &ids);
        }
        control = fresh()?;
    }
    println!("{sent} messages with {} kinds of descriptors", supply.len());
    println!("ready");
    Ok(())
}

/// The one before was hung up on, as it should be.
fn fresh() -> io::Result<Control> {
    for _ in 0..200 {
        if let Ok(client) = Client::register() {
            return Ok(client.control);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Client::register().map(|client| client.control)
}

/// Sends one and reads what it leads to; false when the monitor has hung up.
fn attempt(control: &Control, request: Request, name: &str, fds: &[i32], ids: &Ids) -> bool {
    let sent = control.send(request.encode(&mut [0; MESSAGE_MAX]), fds);
    if sent.and_then(|()| control.tell(Request::Status, &[])).is_err() {
        return false;
    }
    loop {
        match control.receive() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                println!("seen: {request:?} with {name}: no answer for ten seconds");
                return false;
            }
            Err(_) => return false,
            Ok((Reply::Status, _)) => return true,
            // Without descriptors: Status is refused, or the request was.
            Ok((Reply::Error { .. }, fds)) if fds.is_empty() => {}
            Ok((reply, fds)) if !fds.is_empty() && !may_have(&request, &reply, ids) => {
                println!("seen: {request:?} with {name}: {reply:?} with {} descriptors", fds.len());
            }
            Ok(_) => {}
        }
    }
}

/// What a request is answered with when it is about what the client may have.
fn may_have(request: &Request, reply: &Reply, ids: &Ids) -> bool {
    match (request, reply) {
        (Request::Hello { .. }, Reply::Welcome { .. }) | (_, Reply::Status) => true,
        // Bob's listener is for everybody.
        (Request::Connect { .. }, Reply::Route { .. }) => true,
        // To listeners of one's own.
        (_, Reply::NewChannel { .. } | Reply::Offer { .. }) => true,
        (
            Request::Adopter { channel, .. }
            | Request::BerthOf { channel, .. }
            | Request::Home { channel, .. },
            _,
        ) => *channel == ids.own,
        (Request::Memory { .. }, Reply::Memory) => true,
        _ => false,
    }
}

fn requests(ids: &Ids, port: u16) -> Vec<Request> {
    let mut all = vec![
        Request::Hello { version: crate::client::version(), again: false },
        Request::Hello { version: crate::client::version(), again: true },
        Request::Listen { index: 0, generation: 1, backlog: 1, accepting: true },
        Request::Listen { index: u32::MAX, generation: 1, backlog: u32::MAX, accepting: true },
        Request::Accepting { index: 0, accepting: true },
        Request::Unlisten { index: 0 },
        Request::WillListen { index: 0 },
        Request::Listens { index: 0, generation: 1, backlog: 1 },
        Request::Listens { index: u32::MAX, generation: 2, backlog: u32::MAX },
        Request::Separate,
        Request::Memory { len: 1 << 40 },
        Request::Memory { len: 4096 },
        Request::Idle,
        Request::Share,
        Request::Berth { number: 0 },
        Request::Berth { number: u32::MAX },
        Request::Bind { ip: Ip::v4([127, 0, 0, 1]), port, reuse: false },
        Request::Bind { ip: Ip::v4([0; 4]), port: 22, reuse: true },
    ];
    for (ip, port) in [([127, 0, 0, 1], port), ([0; 4], port), ([127, 0, 0, 1], 22), ([203, 0, 113, 9], port)]
    {
        let ip = Ip::v4(ip);
        all.push(Request::Connect { ip, port, nth: u32::MAX, want_ports: true, want_channel: true });
    }
    for member in [0, 1, 63, 64] {
        all.extend([Request::Fork { member, serial: member }, Request::Born { serial: member }]);
    }
    for channel in ids.all.iter().copied() {
        all.extend([Request::Stuck { channel }, Request::Leave { channel }, Request::Decline { channel }]);
        all.push(Request::Adopter { channel, number: 1 });
        for side in [0, 1] {
            all.push(Request::Join { id: channel, side });
            all.push(Request::Home { channel, side, client: channel });
            all.push(Request::BerthOf { channel, side, number: 0 });
            all.push(Request::Signal { channel, slot: 0, side, urgent: true });
        }
    }
    all
}

fn announcements(ids: &Ids) -> Vec<Request> {
    let announce = |id: u64, side| Request::Channel { id, side, peer_pid: 1, adopter: 0 };
    ids.all.iter().flat_map(|id| [announce(*id, 0), announce(*id, 1)]).collect()
}

fn supply(client: &Client, victims: &[i32]) -> io::Result<Supply> {
    let memfd = |name: &std::ffi::CStr, len: usize| own(sd_sys::mem::memfd_sealed(name, len));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let pair = sd_sys::msg::pair_with_credentials().map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let (read, write) = io::pipe()?;
    let mut all: Supply = vec![
        ("nothing", vec![]),
        ("what is expected", vec![client.slab_fd.try_clone()?]),
        ("a public page", vec![client.public_fd.try_clone()?]),
        ("an eventfd", vec![client.eventfd.try_clone()?]),
        ("a fresh socket", vec![client.tcp.try_clone()?]),
        ("a memfd that is too short", vec![memfd(c"short", 4096)?]),
        ("a memfd as a channel", vec![memfd(c"sd-channel", SEGMENT_LEN)?]),
        ("a memfd as a slab", vec![memfd(c"sd-slab", sd_shm::slab::LEN)?]),
        ("a memfd of a terabyte", vec![memfd(c"huge", 1 << 40)?]),
        ("a connection", vec![stream.into()]),
        ("a pair of sockets", vec![own(Ok(pair[0]))?, own(Ok(pair[1]))?]),
        ("a pipe", vec![read.into(), write.into()]),
        ("an epoll instance", vec![own(sd_sys::fd::epoll_create())?]),
        ("own memory", vec![File::open("/proc/self/mem")?.into()]),
        ("a directory", vec![File::open("/")?.into()]),
        ("hello's four", hello(client)?),
    ];
    for (name, path) in [("statistics", "/proc/stat"), ("a terminal", "/dev/tty"), ("FUSE", "/dev/fuse")] {
        all.extend(File::open(path).ok().map(|file| (name, vec![file.into()])));
    }
    for victim in victims {
        all.push(("a stranger's pidfd", vec![own(sd_sys::fd::pidfd_open(*victim))?]));
        let status = File::open(format!("/proc/{victim}/status"));
        all.extend(status.ok().map(|file| ("a stranger's status", vec![file.into()])));
    }
    all.push(("a listener", vec![listener.try_clone()?.into()]));
    all.push(("a datagram socket", vec![std::net::UdpSocket::bind("127.0.0.1:0")?.into()]));
    for (name, count) in [("nine", 9), ("seventy", 70), ("as many as can be", 253)] {
        let null = File::open("/dev/null")?;
        let many: io::Result<Vec<OwnedFd>> = (0..count).map(|_| Ok(null.try_clone()?.into())).collect();
        all.push((name, many?));
    }
    Ok(all)
}

fn hello(client: &Client) -> io::Result<Vec<OwnedFd>> {
    [&client.slab_fd, &client.public_fd, &client.eventfd, &client.tcp]
        .map(OwnedFd::try_clone)
        .into_iter()
        .collect()
}
