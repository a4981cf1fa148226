//! Two engines and the network between them. Everything follows from a seed.

use crate::desk::{Desk, answer, byte, total};
use sd_link::congestion::Congestion;
use sd_link::seal::Checksum;
use sd_link::{Cause, Config, Limits, Link, PathConfig, Taken};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const MILLI: u64 = 1_000_000;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
    fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

/// What goes wrong: each once in so many packets; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    loss: u64,
    twice: u64,
    corrupt: u64,
    delay: u64,
    jitter: u64,
}

struct Side {
    link: Link,
    desk: Desk,
}

type Flight = Reverse<(u64, u64, usize, u8, bool, Vec<u8>)>;

pub(crate) struct World {
    random: Random,
    now: u64,
    sides: [Side; 2],
    paths: Vec<PathConfig>,
    faults: Faults,
    is_cut: bool,
    flights: BinaryHeap<Flight>,
    order: u64,
    /// When the wire of a path and direction is free, and when the last packet of a stream arrives.
    busy: [[u64; 2]; 2],
    last: [[u64; 2]; 2],
    per_byte: u64,
    next_id: u64,
    to_open: u64,
    epoch: u64,
    sent: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let congestion = match random.below(3) {
            0 => Congestion::NewReno,
            1 => Congestion::Dctcp,
            _ => Congestion::Swift(MILLI),
        };
        let datagrams =
            PathConfig { congestion, packets_max: 256, records_max: 2048, ..PathConfig::datagrams() };
        let stream = PathConfig { places: random.below(2) == 0, ..PathConfig::stream() };
        let paths = match random.below(4) {
            0 => vec![stream],
            1 => vec![datagrams, stream],
            _ => vec![datagrams],
        };
        let base = random.below(300_000) + 5_000;
        let rare = [0, 200, 20, 6];
        let faults = Faults {
            loss: rare[random.below(4) as usize],
            twice: rare[random.below(3) as usize],
            corrupt: rare[random.below(3) as usize],
            delay: base,
            jitter: [0, base / 10, base * 2][random.below(3) as usize],
        };
        let to_open = match random.below(20) {
            0 => 2000,
            1..5 => 200,
            _ => 1 + random.below(30),
        };
        let sides = [1, 2].map(|side| side_of(&paths, side, random.next()));
        let per_byte = [0, 1, 8][random.below(3) as usize];
        let (busy, last) = ([[0; 2]; 2], [[0; 2]; 2]);
        let (flights, next_id) = (BinaryHeap::new(), 1);
        let (now, order, is_cut, epoch, sent) = (0, 0, false, 10, 0);
        World {
            random,
            now,
            sides,
            paths,
            faults,
            is_cut,
            flights,
            order,
            busy,
            last,
            per_byte,
            next_id,
            to_open,
            epoch,
            sent,
        }
    }

    /// Traffic with faults, then without; all must come to its end.
    pub(crate) fn run(&mut self) {
        let until = self.now + 30 * MILLI;
        let (restarts, cuts, breaks) =
            (self.random.one_in(4), self.random.one_in(4), self.random.one_in(3) && self.paths.len() > 1);
        let switches = self.paths.len() > 1 && self.random.one_in(2);
        while self.now < until {
            if switches && self.random.one_in(20) {
                self.switch();
            }
            if restarts && self.random.one_in(60) {
                self.restart();
            }
            if cuts && self.random.one_in(60) {
                self.is_cut = !self.is_cut;
            }
            if breaks && self.random.one_in(60) {
                self.break_stream();
            }
            self.programs(false);
            self.advance(self.now + 200_000);
        }
        self.is_cut = false;
        let delay = self.faults.delay;
        self.faults = Faults { delay, ..Faults::default() };
        self.settle(|world| world.is_only_stalled() && world.is_all_heard());
        assert!(self.sides.iter().all(|side| side.link.is_up()), "no session: {self:?}");
        for side in &mut self.sides {
            side.desk.ends.values_mut().for_each(|end| end.is_stalled = false);
        }
        self.settle(|world| world.sides.iter().all(|side| side.link.connections() == 0));
        assert!(self.sides.iter().all(|side| side.desk.ends.is_empty()), "{self:?}");
        // Greetings that crossed may need some times of silence until both ends have the same session.
        self.advance(self.now + 60_000 * MILLI);
        let sent = self.sent;
        self.advance(self.now + 100_000 * MILLI);
        assert_eq!(self.sent, sent, "an idle link is silent");
    }

    /// How much has happened at the engines that there are at the end.
    pub(crate) fn counts(&self) -> [u64; 7] {
        let of = |side: &Side| {
            let counters = side.link.counters();
            let Desk { bytes, closed, lost, placed, .. } = side.desk;
            [bytes, closed, lost, counters.lost_records, counters.forged, counters.again, placed]
        };
        let [a, b] = [0, 1].map(|at| of(&self.sides[at]));
        std::array::from_fn(|at| a[at] + b[at])
    }

    fn settle(&mut self, is_done: impl Fn(&World) -> bool) {
        let until = self.now + 60_000 * MILLI;
        while !is_done(self) {
            assert!(self.now < until, "it does not come to an end: {self:?}");
            self.programs(true);
            self.advance(self.now + 300_000);
        }
    }

    /// All connections are over, but for those whose reader stands still, and both ends have them.
    fn is_only_stalled(&self) -> bool {
        let [a, b] = &self.sides;
        let is_left = |id: &u64| {
            let stalled = |side: &Side| side.desk.ends.get(id).is_some_and(|end| end.is_stalled);
            stalled(a) || stalled(b)
        };
        let is_same = a.desk.ends.keys().eq(b.desk.ends.keys());
        self.to_open == 0 && is_same && a.desk.ends.keys().all(is_left) && a.link.is_up() && b.link.is_up()
    }

    /// Of what was said of connections that are left, the last has come.
    fn is_all_heard(&self) -> bool {
        let [a, b] = &self.sides;
        let is_heard = |(id, end): (&u64, &crate::desk::End)| {
            b.desk.ends.get(id).is_some_and(|other| (end.said, end.heard) == (other.heard, other.said))
        };
        a.desk.ends.iter().all(is_heard)
    }

    /// What programs do: open, write, read, close.
    fn programs(&mut self, is_late: bool) {
        for at in 0..2 {
            let opening = self.random.below(64).min(self.to_open);
            for _ in 0..opening {
                self.open(at);
            }
            let Side { link, desk } = &mut self.sides[at];
            for (connection, id) in std::mem::take(&mut desk.offered) {
                if self.random.one_in(30) {
                    let _ = link.refuse(connection, 7);
                } else if link.accept(connection, id, 4096, &answer(id)).is_ok() {
                    desk.add(id, connection, false, 4096);
                    desk.ends.get_mut(&id).unwrap().is_stalled = !is_late && self.random.one_in(20);
                }
            }
            for (id, end) in desk.ends.iter_mut().filter(|(_, end)| !end.was_reset) {
                let all = total(*id, end.is_opener);
                if end.announced < all {
                    let more = 1 + self.random.below(5000);
                    end.announced = (end.announced + more).min(all);
                    link.announce(end.connection, end.announced).unwrap();
                    if self.random.one_in(9) {
                        let at = end.announced;
                        link.urgent(end.connection, at, byte(*id, end.is_opener, at)).unwrap();
                    }
                } else if !end.has_fin {
                    end.has_fin = true;
                    link.fin(end.connection).unwrap();
                }
                if !is_late && end.is_open && self.random.one_in(5) {
                    end.said += 1;
                    link.say(end.connection, &end.said.to_le_bytes()).unwrap();
                }
                if !end.is_stalled && end.whole > end.consumed {
                    end.consumed = end.whole;
                    link.consumed(end.connection, end.whole).unwrap();
                }
                let rarely = if end.is_open { 900 } else { 60 };
                if !is_late && self.random.one_in(rarely) {
                    end.was_reset = true;
                    link.reset(end.connection, 3, self.random.one_in(2)).unwrap();
                }
            }
        }
    }

    fn open(&mut self, at: usize) {
        let Side { link, desk } = &mut self.sides[at];
        let tenant = (self.next_id % 3) as u32;
        if let Ok(connection) = link.open(tenant, self.next_id, 2048, &self.next_id.to_le_bytes()) {
            desk.add(self.next_id, connection, true, 2048);
            self.next_id += 1;
            self.to_open -= 1;
        }
    }

    /// One of the engines is killed and started anew.
    fn restart(&mut self) {
        let at = self.random.below(2) as usize;
        self.epoch += 1;
        self.sides[at] = side_of(&self.paths, self.epoch, self.random.next());
    }

    /// The stream breaks and is made anew, with what was under way on it gone.
    fn break_stream(&mut self) {
        self.flights.retain(|Reverse(flight)| flight.3 != 1);
        for side in &mut self.sides {
            side.link.path_broke(1);
        }
    }

    /// One of the engines sends by the other path only, or by both; sometimes at once, with what is under way sent again there.
    fn switch(&mut self) {
        let link = &mut self.sides[self.random.below(2) as usize].link;
        let only = self.random.below(3) as u8;
        for path in [0, 1] {
            link.carries(path, only == 2 || path == only);
        }
        if only < 2 && self.random.one_in(2) {
            link.say_again(1 - only);
        }
        link.ask(self.random.below(2) as u8);
    }

    fn advance(&mut self, until: u64) {
        loop {
            self.send();
            let arrival = self.flights.peek().map(|Reverse(flight)| flight.0);
            let timers = self.sides.iter().filter_map(|side| side.link.next_time());
            let next = timers.chain(arrival).min().unwrap_or(u64::MAX).max(self.now);
            if next > until {
                self.now = until;
                return;
            }
            self.now = next;
            for side in &mut self.sides {
                if side.link.next_time().is_some_and(|at| at <= self.now) {
                    side.link.tick(self.now, &mut side.desk);
                }
            }
            while self.flights.peek().is_some_and(|Reverse(flight)| flight.0 <= self.now) {
                let Some(Reverse((_, _, to, path, marked, mut packet))) = self.flights.pop() else { break };
                let Side { link, desk } = &mut self.sides[to];
                let taken = link.receive(self.now, path, &mut packet, marked, desk);
                assert_ne!(taken, Taken::Down(Cause::Violation), "an honest engine was taken for another");
            }
        }
    }

    fn send(&mut self) {
        let mut out = [0; 1 << 14];
        for from in 0..2 {
            for path in 0..self.paths.len() {
                for _ in 0..10_000 {
                    let Side { link, desk } = &mut self.sides[from];
                    let Some(len) = link.transmit(self.now, path as u8, &mut out, desk) else { break };
                    self.sent += 1;
                    self.carry(from, path, &out[..len]);
                }
            }
        }
    }

    fn carry(&mut self, from: usize, path: usize, packet: &[u8]) {
        let is_stream = self.paths[path].recovery.is_none();
        let Faults { loss, twice, corrupt, delay, jitter } = self.faults;
        let busy = &mut self.busy[from][path];
        let queue = busy.saturating_sub(self.now);
        *busy = self.now.max(*busy) + packet.len() as u64 * self.per_byte;
        let at = *busy + delay;
        if is_stream {
            let at = (at + self.random.below(jitter + 1)).max(self.last[from][path]);
            self.last[from][path] = at;
            self.put(at, 1 - from, path, false, packet.to_vec());
            return;
        }
        if self.is_cut || self.random.one_in(loss) || queue > 3 * MILLI {
            return;
        }
        let copies = 1 + usize::from(self.random.one_in(twice));
        for _ in 0..copies {
            let mut packet = packet.to_vec();
            if self.random.one_in(corrupt) {
                let bit = self.random.below(packet.len() as u64 * 8);
                packet[bit as usize / 8] ^= 1 << (bit % 8);
            }
            let at = at + self.random.below(jitter + 1);
            self.put(at, 1 - from, path, queue > MILLI / 2, packet);
        }
    }

    fn put(&mut self, at: u64, to: usize, path: usize, marked: bool, packet: Vec<u8>) {
        self.order += 1;
        self.flights.push(Reverse((at, self.order, to, path as u8, marked, packet)));
    }
}

fn side_of(paths: &[PathConfig], epoch: u64, seed: u64) -> Side {
    let mut link = Link::new(Config::new(epoch, seed), paths, Checksum::default());
    for tenant in 0..3 {
        let rate = (tenant == 1).then_some((20_000_000, 20_000));
        link.tenant(0, tenant, Limits { weight: 1 + tenant, rate }).unwrap();
    }
    Side { link, desk: Desk::default() }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} ms, {:?}, {} to open", self.now / MILLI, self.faults, self.to_open)?;
        for side in &self.sides {
            let ids: Vec<_> =
                side.desk.ends.iter().take(5).map(|(id, end)| (id, end.whole, end.got_fin)).collect();
            writeln!(f, "{} {ids:?} {:?}", side.link.connections(), side.link.counters())?;
        }
        Ok(())
    }
}
