//! What tests of carriers share: pairs of each kind on the loopback device, waiting, numbers from a seed.
#![allow(dead_code, reason = "each test uses a part")]

use sd_carrier::{
    Carrier, Datagram, DatagramConfig, Flushed, Kind, Mark, Received, State, Trunk, TrunkConfig, Verbs,
    VerbsConfig, Wants,
};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

pub(crate) fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (here, listener.accept().unwrap().0)
}

pub(crate) fn udp(address: &str) -> (UdpSocket, UdpSocket) {
    let (here, there) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
    here.connect(there.local_addr().unwrap()).unwrap();
    there.connect(here.local_addr().unwrap()).unwrap();
    (here, there)
}

/// The kernel cannot cut messages of a socket whose datagrams have no checksum, and says so only when it is tried.
pub(crate) fn forbid_cutting(socket: &UdpSocket) {
    set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1);
}

pub(crate) fn set(socket: &impl AsRawFd, level: i32, name: i32, value: i32) {
    // SAFETY: the pointer is to an int of ours, and its length is told.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    assert_eq!(result, 0);
}

/// The plain socket of a peer that does as it likes.
pub(crate) enum Raw {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

/// One carrier under test, with what it is made of.
#[derive(Clone, Copy)]
pub(crate) enum Make {
    Trunk(TrunkConfig),
    Datagram(&'static str, DatagramConfig),
    /// The kernel refuses to cut when it is tried.
    Refused,
    /// Both ends are of the first device; they have the names of the IPv4 addresses that it has, the first two.
    Verbs(VerbsConfig),
}

pub(crate) const SMALL: TrunkConfig =
    TrunkConfig { packet_max: 3000, send_bytes: 0, receive_bytes: 0, unsent_bytes_max: 0 };
pub(crate) const PLAIN: DatagramConfig = DatagramConfig {
    packet_max: 1470,
    send_bytes: 0,
    kernel_bytes: 0,
    is_cut: false,
    is_joined: false,
    is_marking: false,
};

pub(crate) const NOT_JOINED: DatagramConfig =
    DatagramConfig { is_cut: true, send_bytes: 256 << 10, is_marking: true, ..PLAIN };
/// With as much of the kernel's memory as everybody may have.
pub(crate) const LONGEST: DatagramConfig =
    DatagramConfig { packet_max: usize::MAX, kernel_bytes: 212_992, is_joined: true, ..NOT_JOINED };

impl Make {
    fn udp(self) -> (UdpSocket, UdpSocket, DatagramConfig) {
        match self {
            Make::Datagram(address, config) => {
                let (here, there) = udp(address);
                (here, there, config)
            }
            _ => {
                let (here, there) = udp("127.0.0.1:0");
                forbid_cutting(&here);
                forbid_cutting(&there);
                (here, there, DatagramConfig::default())
            }
        }
    }

    pub(crate) fn pair(self) -> [Box<dyn Carrier>; 2] {
        if let Make::Trunk(config) = self {
            let (here, there) = tcp();
            if config == SMALL {
                // The kernel takes parts of packets.
                set(&here, libc::SOL_SOCKET, libc::SO_SNDBUF, 1);
                set(&there, libc::SOL_SOCKET, libc::SO_SNDBUF, 1);
            }
            return [
                Box::new(Trunk::new(here, config).unwrap()),
                Box::new(Trunk::new(there, config).unwrap()),
            ];
        }
        if let Make::Verbs(config) = self {
            return verbs(config).map(|end| Box::new(Looped(end)) as Box<dyn Carrier>);
        }
        let (here, there, config) = self.udp();
        [Box::new(Datagram::new(here, config).unwrap()), Box::new(Datagram::new(there, config).unwrap())]
    }

    pub(crate) fn with_raw(self) -> (Box<dyn Carrier>, Raw) {
        if let Make::Trunk(config) = self {
            let (here, there) = tcp();
            return (Box::new(Trunk::new(here, config).unwrap()), Raw::Tcp(there));
        }
        let (here, there, config) = self.udp();
        (Box::new(Datagram::new(here, config).unwrap()), Raw::Udp(there))
    }
}

/// As a loop has it that says [`Carrier::woken`] whenever it has found nothing, so that the descriptor is not ready for nothing.
struct Looped(Verbs);

impl AsFd for Looped {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Carrier for Looped {
    fn kind(&self) -> Kind {
        self.0.kind()
    }
    fn state(&self) -> State {
        self.0.state()
    }
    fn wants(&self) -> Wants {
        self.0.wants()
    }
    fn packet_max(&self) -> usize {
        self.0.packet_max()
    }
    fn room(&mut self) -> Option<&mut [u8]> {
        self.0.room()
    }
    fn commit(&mut self, len: usize) {
        self.0.commit(len);
    }
    fn flush(&mut self) -> Flushed {
        self.0.flush()
    }
    fn receive(&mut self, each: &mut dyn FnMut(&mut [u8], Mark)) -> Received {
        match self.0.receive(each) {
            Received::Drained => {
                self.0.woken();
                self.0.receive(each)
            }
            received => received,
        }
    }
}

fn verbs(config: VerbsConfig) -> [Verbs; 2] {
    let context = sd_verbs::Device::all().unwrap()[0].open().unwrap();
    let mut names = context.addresses(config.port).unwrap();
    names.retain(|(_, address)| address.is_ipv4());
    let end = |which: usize| {
        let (gid_index, _) = *names.get(which).unwrap_or(&names[0]);
        Verbs::new(&context.domain().unwrap(), VerbsConfig { gid_index, ..config }, 7).unwrap()
    };
    let mut ends = [end(0), end(1)];
    let told = [ends[0].end(), ends[1].end()];
    ends[0].connect(&told[1]).unwrap();
    ends[1].connect(&told[0]).unwrap();
    ends
}

/// Waits until one of the carriers has what it wants, or for so long; returns how many have. -1: until one has; that none ever will is
/// a fault, which is said after a minute rather than never.
pub(crate) fn wait(carriers: &[&dyn Carrier], milliseconds: i32) -> usize {
    let (milliseconds, is_sure) = if milliseconds < 0 { (60_000, true) } else { (milliseconds, false) };
    let of = |wants: Wants| {
        let read = if wants.read { libc::POLLIN } else { 0 };
        read | if wants.write { libc::POLLOUT } else { 0 }
    };
    let mut polls: Vec<libc::pollfd> = carriers
        .iter()
        .map(|carrier| libc::pollfd { fd: carrier.fd().as_raw_fd(), events: of(carrier.wants()), revents: 0 })
        .collect();
    // SAFETY: the pointer is to so many entries of ours.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, milliseconds) };
    assert!(ready >= 0 && (ready > 0 || !is_sure), "nothing comes");
    ready as usize
}

/// Bytes that follow from a number, and begin with it where there is place.
pub(crate) fn packet(number: u64, len: usize) -> Vec<u8> {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| {
        let mut random = Random(5);
        (0..16_384).flat_map(|_| random.next().to_le_bytes()).collect()
    });
    let at = Random(number).below(bytes.len() as u64 - 65_536) as usize;
    let mut packet = bytes[at..at + len].to_vec();
    if let Some(first) = packet.first_chunk_mut() {
        *first = number.to_le_bytes();
    }
    packet
}

/// Commits a packet; `false`: there is no room.
pub(crate) fn put(carrier: &mut dyn Carrier, packet: &[u8]) -> bool {
    let Some(room) = carrier.room() else { return false };
    // What an engine wrote there before and did not commit.
    let dirt = room.len().min(packet.len() + 100);
    room[..dirt].fill(0xdd);
    room[..packet.len()].copy_from_slice(packet);
    carrier.commit(packet.len());
    true
}

/// Reads what is there.
pub(crate) fn drain(carrier: &mut dyn Carrier, into: &mut Vec<Vec<u8>>) -> Received {
    loop {
        match carrier.receive(&mut |packet, _| into.push(packet.to_vec())) {
            Received::More => {}
            other => return other,
        }
    }
}

/// Reads until so many packets have come.
pub(crate) fn take(carrier: &mut dyn Carrier, count: usize) -> Vec<Vec<u8>> {
    let mut came = Vec::new();
    while came.len() < count {
        assert_eq!(carrier.state(), State::Open, "{} of {count} came", came.len());
        wait(&[carrier], -1);
        drain(carrier, &mut came);
    }
    assert_eq!(came.len(), count, "more came than were sent");
    came
}
