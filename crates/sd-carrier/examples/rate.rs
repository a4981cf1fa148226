//! What carriers cost on the loopback device, beside plain kernel TCP with one send(2) for each record, in the same rounds.
//!
//! `cargo run --release -p sd-carrier --example rate [-- SIZE ...]`
//!
//! Both ends are in one thread, which sends some records and then reads them. Packets are filled with records as a link does it: a
//! header of 12 bytes before each piece, bytes copied out of one ring and into another. Times are of the processor, medians of rounds
//! that take turns.

use sd_carrier::{Carrier, Datagram, DatagramConfig, Trunk, TrunkConfig};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

const ROUNDS: usize = 5;
const HEADER: usize = 12;
const RING: usize = 1 << 20;
/// Bytes of records that one round moves, and that are sent before they are read.
const ROUND_BYTES: usize = 64 << 20;
const TURN_BYTES: usize = 128 << 10;
const RECORDS_MAX: usize = 400_000;

/// Processor time of this thread, so that whatever else runs counts less.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A ring that is read or written from its beginning to its end, and again.
struct Ring {
    bytes: Vec<u8>,
    at: usize,
}

impl Ring {
    fn new() -> Ring {
        Ring { bytes: vec![7; RING], at: 0 }
    }

    fn next(&mut self, len: usize) -> &mut [u8] {
        if self.at + len > RING {
            self.at = 0;
        }
        let at = self.at;
        self.at += len;
        &mut self.bytes[at..at + len]
    }
}

/// What moves records.
trait Road {
    /// Moves `count` records of `size` bytes; returns how many packets they were.
    fn turn(&mut self, size: usize, count: usize) -> u64;
}

struct Kernel {
    here: TcpStream,
    there: TcpStream,
    place: Vec<u8>,
    rings: [Ring; 2],
}

impl Road for Kernel {
    fn turn(&mut self, size: usize, count: usize) -> u64 {
        let (mut sent, mut come, mut part) = (0, 0, 0);
        while come < size * count {
            while sent < count {
                let record = self.rings[0].next(size);
                match self.here.write(&record[part..]) {
                    Ok(len) if part + len == size => (sent, part) = (sent + 1, 0),
                    Ok(len) => part += len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            match self.there.read(&mut self.place) {
                Ok(len) => {
                    self.rings[1].next(len).copy_from_slice(&self.place[..len]);
                    come += len;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        count as u64
    }
}

struct Carriers<C> {
    here: C,
    there: C,
    rings: [Ring; 2],
    /// Each record is a packet of its own.
    is_single: bool,
}

impl<C: Carrier> Road for Carriers<C> {
    fn turn(&mut self, size: usize, count: usize) -> u64 {
        let Carriers { here, there, rings: [from, into], is_single } = self;
        let (mut left, mut come, mut packets) = (size * count, 0, 0);
        while come < size * count {
            here.send(&mut |room| {
                let mut at = 0;
                while left > 0 && at + HEADER < room.len() && !(*is_single && at > 0) {
                    // The rest of a record that was begun, or the next one.
                    let rest = (left - 1) % size + 1;
                    let len = rest.min(room.len() - at - HEADER);
                    room[at..at + 8].copy_from_slice(&(len as u64).to_le_bytes());
                    room[at + HEADER..at + HEADER + len].copy_from_slice(from.next(len));
                    at += HEADER + len;
                    left -= len;
                }
                (at > 0).then_some(at)
            });
            there.receive(&mut |packet, _| {
                packets += 1;
                let mut rest = &packet[..];
                while let Some((header, behind)) = rest.split_first_chunk::<HEADER>() {
                    let len = header.first_chunk::<8>().map_or(0, |len| u64::from_le_bytes(*len)) as usize;
                    let (bytes, behind) = behind.split_at(len);
                    into.next(len).copy_from_slice(bytes);
                    come += len;
                    rest = behind;
                }
            });
        }
        packets
    }
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (here, listener.accept().unwrap().0)
}

fn kernel() -> Box<dyn Road> {
    let (here, there) = tcp();
    here.set_nodelay(true).unwrap();
    for socket in [&here, &there] {
        socket.set_nonblocking(true).unwrap();
    }
    Box::new(Kernel { here, there, place: vec![0; 256 << 10], rings: [Ring::new(), Ring::new()] })
}

fn trunk(is_single: bool, config: TrunkConfig) -> Box<dyn Road> {
    let (here, there) = tcp();
    let (here, there) = (Trunk::new(here, config).unwrap(), Trunk::new(there, config).unwrap());
    Box::new(Carriers { here, there, rings: [Ring::new(), Ring::new()], is_single })
}

fn datagram(is_single: bool, config: DatagramConfig) -> Box<dyn Road> {
    let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (here, there) = (bind(), bind());
    here.connect(there.local_addr().unwrap()).unwrap();
    there.connect(here.local_addr().unwrap()).unwrap();
    let (here, there) = (Datagram::new(here, config).unwrap(), Datagram::new(there, config).unwrap());
    Box::new(Carriers { here, there, rings: [Ring::new(), Ring::new()], is_single })
}

/// Processor time of a round, and how many packets it had.
fn round(road: &mut dyn Road, size: usize, turn: usize, turns: usize) -> (Duration, u64) {
    let begun = cpu_time();
    let packets = (0..turns).map(|_| road.turn(size, turn)).sum();
    (cpu_time() - begun, packets)
}

fn measure(roads: &mut [(&str, Box<dyn Road>)], size: usize, turn: usize) {
    let turns = ((ROUND_BYTES / size).min(RECORDS_MAX) / turn).clamp(1, 100_000);
    let mut rounds = vec![Vec::new(); roads.len()];
    for _ in 0..ROUNDS {
        for ((_, road), rounds) in roads.iter_mut().zip(&mut rounds) {
            rounds.push(round(&mut **road, size, turn, turns));
        }
    }
    println!("{size} bytes, {turn} at a time");
    for ((name, _), rounds) in roads.iter().zip(&mut rounds) {
        rounds.sort();
        let (spent, packets) = rounds[ROUNDS / 2];
        let (seconds, records) = (spent.as_secs_f64(), (turn * turns) as f64);
        println!(
            "  {name:28} {:8.0} ns a record  {:8.3} M records/s  {:8.3} M packets/s  {:7.3} GB/s",
            seconds * 1e9 / records,
            records / seconds / 1e6,
            packets as f64 / seconds / 1e6,
            records * size as f64 / seconds / 1e9
        );
    }
}

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![64, 256, 1024, 4096, 16 << 10, 64 << 10] } else { sizes };
    let (stream, datagrams) = (TrunkConfig::default(), DatagramConfig::default());
    let uncut = DatagramConfig { is_cut: false, is_joined: false, ..datagrams };
    let longest = DatagramConfig { packet_max: 64 << 10, ..datagrams };
    let mut roads = [
        ("kernel TCP", kernel()),
        ("trunk, filled packets", trunk(false, stream)),
        ("trunk, a packet each", trunk(true, stream)),
        ("datagrams, filled", datagram(false, datagrams)),
        ("datagrams, a packet each", datagram(true, datagrams)),
        ("the same, not cut or joined", datagram(true, uncut)),
        ("filled, not cut or joined", datagram(false, uncut)),
        ("filled, packets of 64 KiB", datagram(false, longest)),
    ];
    for size in sizes {
        measure(&mut roads, size, (TURN_BYTES / size).max(1));
    }
    measure(&mut roads, 64, 1);
}
