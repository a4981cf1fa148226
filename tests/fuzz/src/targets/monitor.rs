//! A live monitor, in a thread of this process, and clients that send it any messages with any descriptors.

use super::Bytes;
use sd_proto::{Carrier, Ip, MESSAGE_MAX, PeerState, Request, VERSION};
use sd_shm::slab::Slab;
use sd_sys::Errno;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A stranger is answered within so long.
const ANSWER_MAX: Duration = Duration::from_millis(10);
/// On a machine that does something else as well, one of so many answers has to be in time.
const ANSWERS: usize = 20;
const CLIENTS: usize = 3;

struct Stage {
    path: PathBuf,
    port: u16,
    /// A descriptor of each kind, the first four as for Hello.
    supply: Vec<OwnedFd>,
    witness: Control,
}

struct Control(OwnedFd);

impl Control {
    fn connect(path: &std::path::Path) -> Control {
        let fd = sd_sys::msg::connect_unix(path.as_os_str().as_encoded_bytes(), 5000)
            .expect("the monitor is there");
        Control(sd_monitor::std_fd(fd))
    }

    fn send(&self, bytes: &[u8], fds: &[i32]) {
        let _ = sd_sys::msg::send_with_fds(self.0.as_raw_fd(), bytes, fds, libc::MSG_DONTWAIT);
    }

    /// Reads what has come; false at the end.
    fn read_all(&self) -> bool {
        let mut buf = [0; MESSAGE_MAX];
        loop {
            match sd_sys::msg::recv_with_fds(self.0.as_raw_fd(), &mut buf, libc::MSG_DONTWAIT) {
                Ok(got) => {
                    if got.len == 0 {
                        return false;
                    }
                }
                Err(Errno::EAGAIN) => return true,
                Err(_) => return false,
            }
        }
    }

    /// A question that everybody may ask, and how long the answer took.
    fn question(&self) -> Duration {
        let start = Instant::now();
        self.send(Request::Status.encode(&mut [0; MESSAGE_MAX]), &[]);
        let timeout = 20_000;
        let found = sd_sys::fd::poll_one(self.0.as_raw_fd(), libc::POLLIN, timeout);
        assert!(found.is_ok_and(|events| events != 0), "the monitor does not answer");
        let took = start.elapsed();
        assert!(self.read_all(), "the monitor has hung up on a stranger");
        took
    }
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("sd-fuzz-{}", std::process::id()));
        let path = folder.join("monitor.sock");
        let socket = path.clone();
        let options = sd_monitor::Options {
            socket,
            policy: None,
            helper: None,
            pump: None,
            metrics: None,
            promote: sd_monitor::Promote::Earned,
            hosts: None,
            wander: None,
        };
        // SAFETY: nothing else runs yet.
        unsafe { std::env::set_var("SD_LOG", "off") };
        std::thread::spawn(move || sd_monitor::run(options).expect("the monitor runs"));
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it has one").port();
        let mut stage = Stage { witness: Control::connect(&path), supply: supply(listener), port, path };
        stage.witness.question();
        stage.supply.shrink_to_fit();
        stage
    })
}

fn supply(listener: TcpListener) -> Vec<OwnedFd> {
    let own =
        |fd: sd_sys::Result<sd_sys::fd::Owned>| sd_monitor::std_fd(fd.expect("descriptors can be made"));
    let (slab, _) = Slab::create(std::process::id()).expect("a slab");
    let (public, _) = sd_shm::public::create(std::process::id()).expect("a page");
    let (segment, _) = sd_shm::channel::Mapping::create(1, 1, 1).expect("a segment");
    let [monitors, childs] = sd_sys::msg::pair_with_credentials().expect("a pair");
    let stream = TcpStream::connect(listener.local_addr().expect("a name")).expect("a connection");
    let accepted = listener.accept().expect("its other end").0;
    let tcp = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    let datagram = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
    let mut all =
        vec![own(Ok(slab)), own(Ok(public)), own(sd_sys::fd::eventfd(libc::EFD_NONBLOCK)), own(tcp)];
    all.extend([listener.into(), own(sd_sys::fd::pidfd_open(std::process::id() as i32)), own(Ok(monitors))]);
    all.extend([own(Ok(childs)), own(Ok(segment)), stream.into(), own(datagram)]);
    all.push(own(sd_sys::fd::epoll_create()));
    // A witness.
    all.push(own(sd_sys::mem::memfd_sealed(c"sd-witness", 0)));
    all.push(accepted.into());
    all
}

/// Rows of [`request`]; there is one for each kind at least.
const KINDS: u8 = 32;

fn request(bytes: &mut Bytes, port: u16) -> Request {
    let kind = bytes.u8() % KINDS;
    let (a, b) = (bytes.number(), bytes.number());
    let (x, y, yes) = (a as u32, b as u32, b & 1 == 1);
    match kind {
        0 | 1 => Request::Hello { version: VERSION, again: yes },
        2 => Request::Listen { index: x, generation: y, backlog: 1, accepting: yes },
        3 => Request::Accepting { index: x, accepting: yes },
        4 => Request::Unlisten { index: x },
        5 => Request::Connect {
            ip: if a == 9 { Ip([b as u8; 16]) } else { ip(1) },
            port: if a == 8 { b as u16 } else { port },
            nth: x,
            want_ports: yes,
            want_channel: b & 2 != 0,
        },
        6 => Request::Fork { member: x, serial: y },
        7 => Request::Born { serial: y },
        8 => Request::Channel { id: a, side: y & 1, peer_pid: y >> 1, adopter: y >> 8 },
        9 => Request::Join { id: a, side: y },
        10 if b & 2 == 0 => Request::Share,
        10 => Request::Pump { again: yes },
        11 => Request::Stuck { channel: a },
        12 if b & 2 == 0 => Request::Idle { channel: a },
        12 => Request::Restored,
        13 if b & 2 != 0 => Request::GiveBack { channel: a, side: y & 1 },
        13 => Request::Adopter { channel: a, number: y },
        14 => Request::Leave { channel: a },
        15 if b & 2 == 0 => Request::Decline { channel: a },
        15 => Request::Finished { channel: a },
        16 => {
            Request::Bind { ip: Ip::v4([127, 0, 0, 1]), port: if yes { port } else { a as u16 }, reuse: yes }
        }
        17 if b & 2 == 0 => Request::Status,
        17 if yes => Request::Over { channel: a },
        17 => Request::Carries { near: a, far: b >> 2 },
        18 => Request::WakeTarget { channel: a, side: y & 1, client: b },
        19 => Request::ThreadWaker { number: x },
        22 => Request::WillListen { index: x },
        23 => Request::Memory { len: if yes { a << 12 } else { a } },
        24 if b & 2 != 0 => Request::Resume,
        24 => Request::Separate,
        25 => Request::CannotTake,
        26 => {
            Request::Tuple { ip: ip(a), port: if yes { port } else { y as u16 }, to_ip: ip(b), to_port: port }
        }
        27 => Request::Admits { channel: a, listener: y, ip: ip(b) },
        28 => Request::Listens { index: x, generation: y, backlog: 1 },
        29 => Request::Ring { channel: a, side: y & 1 },
        30 => Request::Bridge,
        31 if b & 2 == 0 => Request::Waiting { index: x },
        31 => of_promotion((a, b), (x, y), port),
        20 => Request::ThreadWakerOf { channel: a, side: y & 1, number: y >> 1 },
        _ => Request::Signal { channel: a, slot: y, side: y & 1, urgent: yes },
    }
}

/// What is said of a connection that the kernel has made; an engine's words too.
fn of_promotion((a, b): (u64, u64), (x, y): (u32, u32), port: u16) -> Request {
    let yes = b & 1 == 1;
    match b {
        b if b & 4 == 0 => Request::Offer {
            serial: a,
            connected: yes,
            restored: b & 8 != 0,
            sent: x,
            received: y,
            messages: x,
            bytes: b,
            asked_ms: if b & 16 == 0 { sd_sys::time::real_ms() } else { a },
        },
        b if b & 144 == 144 => Request::Stays { client: a, offer: u64::from(x), why: x % 24 },
        b if b & 128 != 0 => Request::Withdraw { serial: a },
        b if b & 112 != 0 => of_engine((a, b), (x, y), port),
        b if b & 8 != 0 => Request::Detach { pid: x, tell: yes },
        _ => {
            let (port, before_ns) = (if yes { port } else { 0 }, b >> 7);
            Request::Demote { pid: x, ip: ip(a), port, at_once: yes, before_ns }
        }
    }
}

/// What an engine says.
fn of_engine((a, b): (u64, u64), (x, y): (u32, u32), port: u16) -> Request {
    match b & 48 {
        0 => Request::Engine,
        16 if b & 72 == 72 => Request::Network {
            ip: ip(a),
            prefix: x,
            engine: ip(b),
            port,
            tenant: sd_proto::Name::of("a"),
            apart: x & 1 == 1,
        },
        16 if b & 64 != 0 => Request::Listed { mistaken: y & 1 != 0, line: x, names: y },
        16 => Request::Found {
            client: a,
            offer: u64::from(x),
            serial: b,
            behind: y,
            engine: ip(b),
            port,
            tenant: sd_proto::Name::of("a"),
        },
        48 => Request::Peer {
            ip: ip(a),
            port,
            state: PeerState::ALL[x as usize % PeerState::ALL.len()],
            errno: y,
            sealed: y & 1 != 0,
            carrier: Carrier::ALL[y as usize % Carrier::ALL.len()],
            since_ns: a,
            rtt_ns: b,
            connections: x,
            bytes_sent: a,
            bytes_received: b,
            packets_sent: a,
            packets_received: b,
            placed_sent: b,
            placed_received: a,
            said_again: a,
            retransmitted: b,
        },
        _ => Request::Sought {
            serial: a,
            local: ip(a),
            local_port: port,
            remote: ip(b),
            remote_port: port,
            told: y & 1 != 0,
            sent: x,
            received: y,
            sent_from: if y & 2 == 0 { x } else { y },
            received_from: y,
            engine: ip(a),
            port,
            tenant: sd_proto::Name::of(""),
        },
    }
}

fn ip(last: u64) -> Ip {
    Ip::v4([127, 0, 0, last as u8])
}

/// The numbers of the descriptors that a request should have.
fn fitting(request: &Request) -> &'static [usize] {
    match request {
        Request::Hello { .. } => &[0, 1, 2, 3, 12],
        Request::Listen { .. } | Request::WillListen { .. } | Request::CannotTake => &[4],
        Request::Fork { .. } | Request::Bridge => &[6],
        Request::Born { .. } => &[5],
        Request::Channel { .. } | Request::Join { .. } => &[8],
        // Both ends of one connection.
        Request::Offer { connected: true, .. } => &[9],
        Request::Offer { .. } => &[13],
        Request::Share => &[0],
        Request::ThreadWaker { .. } => &[2],
        _ => &[],
    }
}

pub(super) fn run(input: &[u8]) {
    let stage = stage();
    let mut bytes = Bytes(input);
    let mut clients: [Control; CLIENTS] = [(); CLIENTS].map(|()| Control::connect(&stage.path));
    for _ in 0..64 {
        if bytes.is_empty() {
            break;
        }
        let how = bytes.u8();
        let client = usize::from(how) % CLIENTS;
        let request = request(&mut bytes, stage.port);
        let mut places = fitting(&request).to_vec();
        if how & 0x40 != 0 {
            places = (0..bytes.u8() % 9).map(|_| usize::from(bytes.u8()) % stage.supply.len()).collect();
        }
        let fds: Vec<i32> = places.iter().map(|place| stage.supply[*place].as_raw_fd()).collect();
        let mut buf = [0; MESSAGE_MAX];
        let mut len = request.encode(&mut buf).len();
        if how & 0x80 != 0 {
            let at = usize::from(bytes.u8());
            buf[at] = bytes.u8();
            len = if at % 4 == 0 { at } else { len };
        }
        clients[client].send(&buf[..len], &fds);
        if how & 0x20 == 0 && !clients[client].read_all() {
            clients[client] = Control::connect(&stage.path);
        }
    }
    let slowest = (0..ANSWERS).map(|_| stage.witness.question()).find(|took| *took <= ANSWER_MAX);
    assert!(slowest.is_some(), "{ANSWERS} times a stranger had to wait for more than {ANSWER_MAX:?}");
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let hello = [0, 0, 0, 0, 1, 0, 0, 0];
    let listen = [0, 2, 0, 1];
    let mut seeds: Vec<Vec<u8>> = (0..KINDS).map(|kind| [&hello[..], &[0, kind, 1, 1]].concat()).collect();
    seeds.push([&hello[..], &listen, &[1, 5, 0, 0, 0, 11, 1, 0, 1, 13, 1, 1, 0, 15, 1, 0]].concat());
    seeds.push([&hello[..], &[0, 6, 1, 1, 0, 7, 0, 1, 0, 8, 1, 0, 1, 8, 1, 1, 1, 14, 1, 0]].concat());
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_request_has_a_row() {
        let rows: std::collections::BTreeSet<u8> = (0..KINDS)
            .flat_map(|kind| {
                [0, 2, 3, 6, 14, 22, 38, 54, 70, 86, 94, 134, 150]
                    .map(|b| request(&mut Bytes(&[kind, 0, b]), 1).kind())
            })
            .collect();
        let kinds = Request::examples().map(|request| request.kind()).collect();
        assert_eq!(rows, kinds);
    }
}
