//! What a record of 64 bytes costs each side: two links, 1,000 connections, packets handed over in memory.
//!
//! `cargo run --release -p sd-link --example cost`

use sd_link::seal::{Checksum, Seal, Session};
use sd_link::{Config, Connection, Ends, Limits, Link, News, PathConfig};
use std::time::Duration;

const CONNECTIONS: u64 = 1000;
const MESSAGE: u64 = 64;
const RING: usize = 4096;
const ROUNDS: u64 = 300;

/// Rings of all connections.
#[derive(Default)]
struct Desk {
    rings: Vec<[u8; RING]>,
    offered: Vec<(Connection, u64)>,
    arrived: Vec<(Connection, u64)>,
    messages: u64,
}

impl Ends for Desk {
    fn read(&mut self, end: u64, position: u64, out: &mut [u8]) {
        let at = position as usize % RING;
        out.copy_from_slice(&self.rings[end as usize][at..at + out.len()]);
    }
    fn write(&mut self, end: u64, position: u64, bytes: &[u8]) {
        let at = position as usize % RING;
        self.rings[end as usize][at..at + bytes.len()].copy_from_slice(bytes);
    }
    fn told(&mut self, connection: Connection, _: u64, news: News<'_>) {
        match news {
            News::Offered { words, .. } => {
                self.offered.push((connection, u64::from_le_bytes(words.try_into().unwrap())))
            }
            News::Arrived(to) => {
                self.messages += 1;
                self.arrived.push((connection, to));
            }
            _ => {}
        }
    }
}

/// No seal at all, to see what the checksum costs.
#[derive(Debug)]
struct Bare;

impl Seal for Bare {
    fn begin(&mut self, _: &Session) {}
    fn overhead(&self) -> usize {
        0
    }
    fn seal(&mut self, _: u8, _: u64, _: &mut [u8], _: usize) {}
    fn open(&mut self, _: u8, _: u64, _: &mut [u8], _: usize) -> bool {
        true
    }
    fn sign(&mut self, _: &mut [u8]) {}
    fn is_signed(&mut self, _: &[u8]) -> bool {
        true
    }
}

type MakeSeal = fn() -> Box<dyn Seal>;

struct Pair {
    links: [Link; 2],
    desks: [Desk; 2],
    packets: Vec<(Vec<u8>, usize)>,
    now: u64,
    spent: [Duration; 2],
    connections: Vec<Connection>,
}

impl Pair {
    fn new(path: PathConfig, seal: MakeSeal) -> Pair {
        let link = |epoch| Link::new(Config::new(epoch, epoch), &[path], Boxed(seal()));
        let desk = || Desk { rings: vec![[7; RING]; CONNECTIONS as usize], ..Desk::default() };
        let links = [link(1), link(2)];
        let (packets, connections, spent) = Default::default();
        let mut pair = Pair { links, desks: [desk(), desk()], packets, now: 0, spent, connections };
        for link in &mut pair.links {
            link.tenant(0, 0, Limits { weight: 1, rate: None }).unwrap();
        }
        (0..10).for_each(|_| pair.both_ways());
        for id in 0..CONNECTIONS {
            let connection = pair.links[0].open(0, id, RING as u32, &id.to_le_bytes()).unwrap();
            pair.connections.push(connection);
        }
        (0..10).for_each(|_| pair.both_ways());
        for (connection, id) in std::mem::take(&mut pair.desks[1].offered) {
            pair.links[1].accept(connection, id, RING as u32, &[]).unwrap();
        }
        (0..10).for_each(|_| pair.both_ways());
        pair
    }

    fn both_ways(&mut self) {
        self.now += 100_000;
        self.carry(0);
        self.carry(1);
    }

    /// All that one link has to send goes to the other.
    fn carry(&mut self, from: usize) {
        self.links[from].tick(self.now, &mut self.desks[from]);
        loop {
            let begun = cpu_time();
            let mut count = 0;
            while count < 64 {
                if self.packets.len() == count {
                    self.packets.push((vec![0; 1 << 16], 0));
                }
                let (packet, len) = &mut self.packets[count];
                let Some(written) = self.links[from].transmit(self.now, 0, packet, &mut self.desks[from])
                else {
                    break;
                };
                *len = written;
                count += 1;
            }
            self.spent[0] += cpu_time() - begun;
            if count == 0 {
                return;
            }
            let begun = cpu_time();
            for (packet, len) in &mut self.packets[..count] {
                self.links[1 - from].receive(
                    self.now,
                    0,
                    &mut packet[..*len],
                    false,
                    &mut self.desks[1 - from],
                );
            }
            self.spent[1] += cpu_time() - begun;
        }
    }
}

struct Boxed(Box<dyn Seal>);

impl Seal for Boxed {
    fn begin(&mut self, session: &Session) {
        self.0.begin(session);
    }
    fn overhead(&self) -> usize {
        self.0.overhead()
    }
    fn seal(&mut self, path: u8, number: u64, packet: &mut [u8], header: usize) {
        self.0.seal(path, number, packet, header);
    }
    fn open(&mut self, path: u8, number: u64, packet: &mut [u8], header: usize) -> bool {
        self.0.open(path, number, packet, header)
    }
    fn sign(&mut self, packet: &mut [u8]) {
        self.0.sign(packet);
    }
    fn is_signed(&mut self, packet: &[u8]) -> bool {
        self.0.is_signed(packet)
    }
}

/// Processor time of this thread, so that whatever else runs counts less.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of the sender and of the receiver for each message, acknowledgements and credits included.
fn measure(path: PathConfig, seal: MakeSeal) -> [f64; 2] {
    let mut pair = Pair::new(path, seal);
    let connections = std::mem::take(&mut pair.connections);
    pair.spent = Default::default();
    pair.desks[1].messages = 0;
    let mut announcing = Duration::ZERO;
    for round in 1..=ROUNDS {
        let begun = cpu_time();
        for connection in &connections {
            pair.links[0].announce(*connection, round * MESSAGE).unwrap();
        }
        announcing += cpu_time() - begun;
        while pair.desks[1].messages < round * CONNECTIONS {
            pair.both_ways();
        }
        // Credit once for each half of a ring, as a reader does.
        let arrived = std::mem::take(&mut pair.desks[1].arrived);
        if round % (RING as u64 / MESSAGE / 2) == 0 {
            for (connection, to) in arrived {
                pair.links[1].consumed(connection, to).unwrap();
            }
        }
    }
    let messages = (ROUNDS * CONNECTIONS) as f64;
    let ns = |spent: Duration| spent.as_nanos() as f64 / messages;
    [ns(pair.spent[0] + announcing), ns(pair.spent[1])]
}

fn main() {
    let seals: [(&str, MakeSeal); 2] =
        [("checksum", || Box::new(Checksum::default())), ("no seal", || Box::new(Bare))];
    for (carrier, path) in [("datagrams", PathConfig::datagrams()), ("stream", PathConfig::stream())] {
        for (name, seal) in seals {
            let mut rounds: Vec<[f64; 2]> = (0..5).map(|_| measure(path, seal)).collect();
            rounds.sort_by(|a, b| (a[0] + a[1]).total_cmp(&(b[0] + b[1])));
            let [send, receive] = rounds[2];
            println!(
                "{carrier}, {name}: {send:.0} ns to send, {receive:.0} ns to take, of 5 rounds the median"
            );
        }
    }
}
