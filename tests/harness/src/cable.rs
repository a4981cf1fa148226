//! A cable between two networks that loses, delays, doubles and reorders packets, as a kernel with netem would.
//!
//! ```text
//!  eth0 (tun) of one network --read--> queue, by time --write--> eth0 (tun) of the other       a thread of the test moves them
//! ```
//! The kernel hands over packets of up to 64 KiB that it has not cut yet, with what a device would need to cut them (`IFF_VNET_HDR`); they are handed on
//! as they are. Where packets are lost, it cuts them itself first: otherwise forty would be lost at once.
//!
//! # Guarantees
//! * The same seed gives the same fate to the n-th packet of a direction.
//! * Packets of one direction keep their order, unless [`Faults::jitter`] says otherwise; what is cut is lost, not kept.
//!
//! # Not guaranteed
//! Delays are as exact as the sleep of a thread on a machine that may be busy: some tens of microseconds more.
//!
//! # Tests
//! Below: datagrams through a cable that loses, doubles, delays, and is cut.

use crate::network::{self, Network};
use crate::{Result, fail};
use nix::libc;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a cable does to packets, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Of a million packets so many are lost, and so many come twice.
    pub lost_ppm: u32,
    pub doubled_ppm: u32,
    pub delay: Duration,
    /// Up to so much more, another time for each packet: so they overtake each other.
    pub jitter: Duration,
    /// Nothing comes through.
    pub is_cut: bool,
}

/// Packets that were seen, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub taken: u64,
    pub lost: u64,
    pub doubled: u64,
}

/// See the module. Its devices go with it.
pub struct Cable {
    shared: Arc<Mutex<Shared>>,
    /// Closed to end the thread.
    end: Option<std::os::unix::net::UnixStream>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    faults: Faults,
    counts: Counts,
}

impl Cable {
    /// Joins two networks as [`Network::join`] does. `faults.lost_ppm` may be set later only where it is not zero now: it decides who cuts large packets.
    pub fn join(ends: [(&Network, Ipv4Addr); 2], faults: Faults, seed: u64) -> Result<Cable> {
        let is_whole = faults.lost_ppm == 0;
        let [here, there] = ends.map(|end| device(end, is_whole));
        let shared = Arc::new(Mutex::new(Shared { faults, counts: Counts::default() }));
        let (end, until) = std::os::unix::net::UnixStream::pair()?;
        let mut mover = Mover {
            devices: [here?, there?],
            until: until.into(),
            shared: Arc::clone(&shared),
            random: [seed, seed ^ 0x5bd1_e995],
            waiting: BinaryHeap::new(),
            last: 0,
        };
        let thread = std::thread::Builder::new().name("cable".to_owned()).spawn(move || mover.run())?;
        Ok(Cable { shared, end: Some(end), thread: Some(thread) })
    }

    /// From now on.
    pub fn set(&self, faults: Faults) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).faults = faults;
    }

    pub fn counts(&self) -> Counts {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).counts
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.end.take();
        self.thread.take().map(JoinHandle::join);
    }
}

const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
/// IFF_TUN, IFF_NO_PI, IFF_VNET_HDR.
const FLAGS: i16 = 0x1 | 0x1000 | 0x4000;
/// TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6; TUN_F_USO4 and TUN_F_USO6, which older kernels do not know.
const OFFLOADS: [libc::c_ulong; 2] = [0x67, 0x7];
/// `struct virtio_net_hdr`, and a packet.
const PACKET_MAX: usize = 10 + 65_536;

/// A device `eth0` with an address, as a file that does not block.
fn device((network, address): (&Network, Ipv4Addr), is_whole: bool) -> Result<File> {
    network.inside(|| {
        let file = File::options().read(true).write(true).open("/dev/net/tun")?;
        // SAFETY: an all-zero ifreq is valid; the kernel reads one, and writes one.
        let made = unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            for (to, from) in request.ifr_name.iter_mut().zip(b"eth0") {
                *to = *from as libc::c_char;
            }
            request.ifr_ifru.ifru_flags = FLAGS;
            libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request)
        };
        if made != 0 {
            fail!("a tun device: {}", std::io::Error::last_os_error());
        }
        if is_whole {
            // SAFETY: the kernel takes a number.
            let takes =
                |what: &libc::c_ulong| unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, *what) == 0 };
            OFFLOADS.iter().any(takes);
        }
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        network::configure(&format!("address add {address}/24 dev eth0\nlink set eth0 up\n"))?;
        Ok(file)
    })
}

/// A packet under way; the earliest is the greatest, and of two the one that came first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: std::cmp::Reverse<(Instant, u64)>,
    to: usize,
    bytes: Vec<u8>,
}

struct Mover {
    devices: [File; 2],
    until: std::os::fd::OwnedFd,
    shared: Arc<Mutex<Shared>>,
    /// Of each direction.
    random: [u64; 2],
    waiting: BinaryHeap<Waiting>,
    last: u64,
}

impl Mover {
    fn run(&mut self) {
        let mut room = vec![0; PACKET_MAX];
        loop {
            let left = self.waiting.peek().map(|next| next.due.0.0.saturating_duration_since(Instant::now()));
            let files = [self.devices[0].as_fd(), self.devices[1].as_fd(), self.until.as_fd()];
            let mut all = files.map(|file| PollFd::new(file, PollFlags::POLLIN));
            let _ = ppoll(&mut all, left.map(TimeSpec::from), None);
            if all[2].any() == Some(true) {
                return;
            }
            let has = [0, 1].map(|from| all[from].any() == Some(true));
            for from in [0, 1] {
                while has[from] && self.take(from, &mut room) {}
            }
            self.give();
        }
    }

    /// Reads a packet and decides what becomes of it.
    fn take(&mut self, from: usize, room: &mut [u8]) -> bool {
        let Ok(len @ 1..) = self.devices[from].read(room) else { return false };
        let [lost, doubled, late] = [(); 3].map(|()| next(&mut self.random[from]));
        let faults = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            let faults = shared.faults;
            let is_lost = faults.is_cut || is_hit(lost, faults.lost_ppm);
            let is_doubled = !is_lost && is_hit(doubled, faults.doubled_ppm);
            let counts = &mut shared.counts;
            (counts.taken, counts.lost) = (counts.taken + 1, counts.lost + u64::from(is_lost));
            counts.doubled += u64::from(is_doubled);
            (!is_lost).then_some((faults, is_doubled))
        };
        let Some((faults, is_doubled)) = faults else { return true };
        let to = 1 - from;
        if faults.delay.is_zero() && faults.jitter.is_zero() && self.waiting.is_empty() {
            for _ in 0..=u32::from(is_doubled) {
                let _ = self.devices[to].write(&room[..len]);
            }
            return true;
        }
        let jitter = u64::try_from(faults.jitter.as_nanos()).unwrap_or(0);
        let more = if jitter == 0 { 0 } else { late % jitter };
        let due = Instant::now() + faults.delay + Duration::from_nanos(more);
        for _ in 0..=u32::from(is_doubled) {
            self.last += 1;
            let bytes = room[..len].to_vec();
            self.waiting.push(Waiting { due: std::cmp::Reverse((due, self.last)), to, bytes });
        }
        true
    }

    /// Writes what is due. What the other network has no room for is lost, as on a cable.
    fn give(&mut self) {
        let now = Instant::now();
        while self.waiting.peek().is_some_and(|first| first.due.0.0 <= now) {
            let Some(first) = self.waiting.pop() else { return };
            let _ = self.devices[first.to].write(&first.bytes);
        }
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn is_hit(random: u64, ppm: u32) -> bool {
    random % 1_000_000 < u64::from(ppm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 78, 0, 1), Ipv4Addr::new(10, 78, 0, 2)];

    fn joined(faults: Faults) -> Option<([Network; 2], Cable)> {
        // Networks are root's to make.
        if !nix::unistd::geteuid().is_root() {
            return None;
        }
        let networks = [Network::new().unwrap(), Network::new().unwrap()];
        let cable = Cable::join([(&networks[0], ENDS[0]), (&networks[1], ENDS[1])], faults, 7).unwrap();
        Some((networks, cable))
    }

    fn datagrams(networks: &[Network; 2]) -> [UdpSocket; 2] {
        let bind = |end: usize| networks[end].inside(|| Ok(UdpSocket::bind((ENDS[end], 9000))?)).unwrap();
        let sockets = [bind(0), bind(1)];
        sockets[0].connect((ENDS[1], 9000)).unwrap();
        sockets[1].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        sockets
    }

    fn sent(sockets: &[UdpSocket; 2], count: u32) -> Vec<u32> {
        (0..count).for_each(|number| assert_eq!(sockets[0].send(&number.to_le_bytes()).unwrap(), 4));
        let mut word = [0; 4];
        std::iter::from_fn(|| sockets[1].recv(&mut word).ok().map(|_| u32::from_le_bytes(word))).collect()
    }

    #[test]
    fn what_is_lost_and_doubled_is_counted() {
        let faults = Faults { lost_ppm: 100_000, doubled_ppm: 50_000, ..Faults::default() };
        let Some((networks, cable)) = joined(faults) else { return };
        let come = sent(&datagrams(&networks), 100).len() as u64;
        let Counts { taken, lost, doubled } = cable.counts();
        assert!(lost > 0 && doubled > 0, "{lost} {doubled}");
        // The networks say a word of their own now and then.
        assert!(come <= taken - lost + doubled && come + 20 > 100 - lost + doubled, "{come} of {taken}");
    }

    #[test]
    fn jitter_reorders_and_delay_does_not() {
        let delay = Duration::from_millis(2);
        let Some((networks, cable)) = joined(Faults { delay, ..Faults::default() }) else { return };
        let sockets = datagrams(&networks);
        assert_eq!(sent(&sockets, 50), (0..50).collect::<Vec<_>>());
        cable.set(Faults { delay, jitter: Duration::from_millis(20), ..Faults::default() });
        let mut come = sent(&sockets, 50);
        assert_ne!(come, (0..50).collect::<Vec<_>>());
        come.sort_unstable();
        assert_eq!(come, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_cable_that_is_cut_carries_nothing_until_it_is_mended() {
        let Some((networks, cable)) = joined(Faults::default()) else { return };
        let sockets = datagrams(&networks);
        cable.set(Faults { is_cut: true, ..Faults::default() });
        assert_eq!(sent(&sockets, 5), Vec::<u32>::new());
        cable.set(Faults::default());
        assert_eq!(sent(&sockets, 5), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_stream_of_large_packets_comes_whole() {
        for lost_ppm in [0, 5_000] {
            let Some((networks, cable)) = joined(Faults { lost_ppm, ..Faults::default() }) else { return };
            let listener = networks[1].inside(|| Ok(TcpListener::bind((ENDS[1], 9001))?)).unwrap();
            let mut client = networks[0].inside(|| Ok(TcpStream::connect((ENDS[1], 9001))?)).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let bytes: Vec<u8> = (0..4_000_000_u32).map(|at| ((at * 31) >> 3) as u8).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    client.write_all(&bytes).unwrap();
                    client.shutdown(std::net::Shutdown::Write).unwrap();
                });
                let mut come = Vec::new();
                server.read_to_end(&mut come).unwrap();
                assert!(come == bytes);
            });
            assert_eq!(cable.counts().lost > 0, lost_ppm > 0);
        }
    }
}
