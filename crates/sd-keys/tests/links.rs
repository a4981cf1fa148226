//! Two links over sealed packets: they find each other, bytes go through all changes of keys, and who listens in can do no harm.

mod common;

use common::{protections, seals};
use sd_keys::Cipher;
use sd_keys::sealed::GENERATION;
use sd_link::seal::Seal;
use sd_link::wire::{Header, PacketKind};
use sd_link::{Config, Connection, Ends, Limits, Link, News, PathConfig, Taken};

#[derive(Default)]
struct Desk {
    offered: Vec<Connection>,
    arrived: u64,
}

impl Ends for Desk {
    fn read(&mut self, _: u64, position: u64, out: &mut [u8]) {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = (position + at as u64) as u8;
        }
    }
    fn write(&mut self, _: u64, position: u64, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, (position + at as u64) as u8);
        }
    }
    fn told(&mut self, connection: Connection, _: u64, news: News<'_>) {
        match news {
            News::Offered { .. } => self.offered.push(connection),
            News::Arrived(to) => self.arrived = to,
            _ => {}
        }
    }
}

struct Pair {
    links: [Link; 2],
    desks: [Desk; 2],
    now: u64,
    /// All packets, with who sent them.
    seen: Vec<(usize, u8, Vec<u8>)>,
}

impl Pair {
    fn new(seals: [impl Seal + 'static; 2]) -> Pair {
        let [one, two] = seals;
        let paths = [PathConfig::datagrams(), PathConfig::datagrams()];
        let mut links =
            [Link::new(Config::new(1, 11), &paths, one), Link::new(Config::new(2, 22), &paths, two)];
        for link in &mut links {
            link.tenant(0, 0, Limits { weight: 1, rate: None }).unwrap();
        }
        Pair { links, desks: Default::default(), now: 0, seen: Vec::new() }
    }

    fn turn(&mut self) {
        self.now += 100_000;
        for from in 0..2 {
            self.links[from].tick(self.now, &mut self.desks[from]);
            for path in 0..2 {
                let mut out = [0; 1472];
                while let Some(len) =
                    self.links[from].transmit(self.now, path, &mut out, &mut self.desks[from])
                {
                    self.seen.push((from, path, out[..len].to_vec()));
                    let taken = self.links[1 - from].receive(
                        self.now,
                        path,
                        &mut out[..len],
                        false,
                        &mut self.desks[1 - from],
                    );
                    assert!(matches!(taken, Taken::Yes | Taken::Up), "{taken:?}");
                }
            }
        }
    }

    fn up(&mut self) {
        for _ in 0..1000 {
            self.turn();
        }
        assert!(self.links.iter().all(Link::is_up));
    }
}

fn forge(pair: &mut Pair, to: usize, path: u8, packet: &[u8]) {
    let Pair { links, desks, now, .. } = pair;
    let taken = links[to].receive(*now, path, &mut packet.to_vec(), false, &mut desks[to]);
    assert!(matches!(taken, Taken::No | Taken::Yes), "{taken:?}");
    assert!(links[to].is_up());
}

#[test]
fn bytes_go_through_changes_of_keys() {
    let mut pair = Pair::new(seals(Cipher::Aes128Gcm));
    pair.up();
    let window = 1 << 20;
    let ours = pair.links[0].open(0, 0, window, b"words").unwrap();
    pair.turn();
    let theirs = pair.desks[1].offered[0];
    pair.links[1].accept(theirs, 0, window, &[]).unwrap();
    for _ in 0..10 {
        pair.turn();
    }
    let (mut said, mut number) = (0, 0);
    while number < 2 * GENERATION {
        said += 60_000;
        pair.links[0].announce(ours, said).unwrap();
        while pair.desks[1].arrived < said {
            pair.turn();
            let numbers = pair.seen.drain(..).map(|(_, _, packet)| Header::decode(&packet).unwrap().number);
            number = numbers.max().unwrap_or(number);
        }
        pair.links[1].consumed(theirs, said).unwrap();
    }
    let forged: u64 = pair.links.iter().map(|link| link.counters().forged).sum();
    assert_eq!(forged, 0);
}

/// As `Pair::turn`, but some packets are lost and some come late, as chance says. How often the phase changed, in the order of numbers.
fn lossy_turn(
    pair: &mut Pair,
    dice: &mut u64,
    late: &mut Vec<(u64, usize, u8, Vec<u8>)>,
    phases: &mut [(bool, u32); 4],
) {
    let mut next = || {
        *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *dice >> 33
    };
    let Pair { links, desks, now, .. } = pair;
    *now += 100_000;
    for from in 0..2 {
        links[from].tick(*now, &mut desks[from]);
        for path in 0..2 {
            let mut out = [0; 1472];
            while let Some(len) = links[from].transmit(*now, path, &mut out, &mut desks[from]) {
                let phase = Header::decode(&out[..len]).unwrap().phase;
                let (before, count) = &mut phases[2 * from + usize::from(path)];
                *count += u32::from(std::mem::replace(before, phase) != phase);
                let delay = if next() % 8 == 0 { next() % 3_000_000 } else { 0 };
                if next() % 20 != 0 {
                    late.push((*now + delay, from, path, out[..len].to_vec()));
                }
            }
        }
    }
    let (due, rest) = std::mem::take(late).into_iter().partition(|(at, ..)| at <= now);
    *late = rest;
    for (_, from, path, mut packet) in due {
        let taken = links[1 - from].receive(*now, path, &mut packet, false, &mut desks[1 - from]);
        assert!(matches!(taken, Taken::Yes | Taken::No), "{taken:?}");
    }
}

/// Keys change each 20 ms and with numbers, while packets are lost and late: no byte is missing, and hardly a packet is refused. Seeded.
#[test]
fn keys_change_with_time() {
    for seed in 1..=8 {
        let mut pair = Pair::new(seals(Cipher::Aes128Gcm));
        pair.up();
        pair.links.iter_mut().for_each(|link| link.rekey_after(20_000_000));
        let ours = pair.links[0].open(0, 0, 1 << 20, b"words").unwrap();
        (0..10).for_each(|_| pair.turn());
        let theirs = pair.desks[1].offered[0];
        pair.links[1].accept(theirs, 0, 1 << 20, &[]).unwrap();
        (0..10).for_each(|_| pair.turn());
        let (mut dice, mut late, mut phases) = (seed, Vec::new(), [(false, 0); 4]);
        let mut said = 0;
        for _ in 0..200 {
            said += 30_000;
            pair.links[0].announce(ours, said).unwrap();
            let mut turns = 0;
            while pair.desks[1].arrived < said {
                lossy_turn(&mut pair, &mut dice, &mut late, &mut phases);
                turns += 1;
                assert!(turns < 100_000, "seed {seed}: {} of {said}", pair.desks[1].arrived);
            }
            pair.links[1].consumed(theirs, said).unwrap();
        }
        let changes: u32 = phases.iter().map(|(_, count)| count).sum();
        assert!(changes > 20, "seed {seed}: {changes} changes in {} ms", pair.now / 1_000_000);
        let counted = pair.links.each_ref().map(Link::counters);
        let (forged, taken) =
            (counted[0].forged + counted[1].forged, counted[0].packets_taken + counted[1].packets_taken);
        // Those that are later than two changes.
        assert!(forged * 20 < taken, "seed {seed}: {forged} of {taken} are refused");
    }
}

/// Who sees all and sends what he likes: his packets change nothing. A greeting that is old is answered, and no more.
#[test]
fn who_listens_in_can_end_nothing() {
    let mut pair = Pair::new(protections());
    pair.up();
    let ours = pair.links[0].open(0, 0, 1000, b"words").unwrap();
    for _ in 0..10 {
        pair.turn();
    }
    let theirs = pair.desks[1].offered[0];
    pair.links[1].accept(theirs, 0, 1000, &[]).unwrap();
    for _ in 0..10 {
        pair.turn();
    }
    let seen = std::mem::take(&mut pair.seen);
    assert!(seen.iter().any(|(_, _, packet)| Header::decode(packet).unwrap().kind == PacketKind::Hello));
    for (from, path, packet) in &seen {
        for to in 0..2 {
            forge(&mut pair, to, *path, packet);
            forge(&mut pair, to, 1 - path, packet);
        }
        for at in 0..packet.len() {
            let mut changed = packet.clone();
            changed[at] ^= 0x11;
            forge(&mut pair, 1 - from, *path, &changed);
        }
    }
    pair.links[0].announce(ours, 900).unwrap();
    for _ in 0..100 {
        pair.turn();
    }
    assert_eq!(
        (pair.desks[1].arrived, pair.links[0].connections(), pair.links[1].connections()),
        (900, 1, 1)
    );
}
