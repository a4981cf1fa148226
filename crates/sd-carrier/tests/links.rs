//! Two links over each carrier on the loopback device: thousands of messages on many connections both ways, every byte compared,
//! datagrams with loss. The links' time is counted by turns, so nothing here depends on how fast the machine is.

mod common;

use common::{Make, Random, SMALL, wait};
use sd_carrier::{Carrier, DatagramConfig, Flushed, Kind, Received, TrunkConfig};
use sd_link::seal::Checksum;
use sd_link::{Cause, Config, Connection, Ends, Limits, Link, News, PathConfig, Taken};

const CONNECTIONS: usize = 100;
const WINDOW: u32 = 8192;

/// What each byte must be: `side` is who sends it.
fn byte(side: usize, end: u64, position: u64) -> u8 {
    let x = end.wrapping_mul(0x1f3) ^ position.wrapping_mul(0x6d) ^ position >> 8;
    x as u8 ^ side as u8
}

#[derive(Clone, Default)]
struct End {
    connection: Option<Connection>,
    announced: u64,
    peer_consumed: u64,
    whole: u64,
    consumed: u64,
    written: Vec<bool>,
    has_fin: bool,
    got_fin: bool,
}

/// The ends of one side.
struct Desk {
    side: usize,
    total: u64,
    ends: Vec<End>,
    offered: Vec<(Connection, u64)>,
    closed: usize,
}

impl Ends for Desk {
    fn read(&mut self, end: u64, position: u64, out: &mut [u8]) {
        let at = &self.ends[end as usize];
        assert!(position >= at.peer_consumed && position + out.len() as u64 <= at.announced);
        for (index, place) in out.iter_mut().enumerate() {
            *place = byte(self.side, end, position + index as u64);
        }
    }
    fn write(&mut self, end: u64, position: u64, bytes: &[u8]) {
        let at = &mut self.ends[end as usize];
        assert!(position + bytes.len() as u64 <= at.consumed + u64::from(WINDOW));
        for (index, value) in bytes.iter().enumerate() {
            let position = position + index as u64;
            assert_eq!(*value, byte(1 - self.side, end, position), "connection {end}, byte {position}");
            at.written[position as usize] = true;
        }
    }
    fn told(&mut self, connection: Connection, end: u64, news: News<'_>) {
        let at = end as usize;
        match news {
            News::Offered { words, .. } => {
                self.offered.push((connection, u64::from_le_bytes(words.try_into().unwrap())));
            }
            News::Arrived(to) => {
                let end = &mut self.ends[at];
                assert!(end.written[end.whole as usize..to as usize].iter().all(|is_written| *is_written));
                end.whole = to;
            }
            News::Consumed(to) => self.ends[at].peer_consumed = to,
            News::Fin => {
                assert_eq!(self.ends[at].whole, self.total);
                self.ends[at].got_fin = true;
            }
            News::Closed => self.closed += 1,
            News::Opened(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

struct Side {
    link: Link,
    desk: Desk,
    carrier: Box<dyn Carrier>,
    packets: u64,
}

impl Side {
    fn new(side: usize, path: PathConfig, carrier: Box<dyn Carrier>, total: u64) -> Side {
        let mut link =
            Link::new(Config::new(side as u64 + 1, side as u64 + 77), &[path], Checksum::default());
        link.tenant(0, 0, Limits { weight: 1, rate: None }).unwrap();
        let ends = vec![End { written: vec![false; total as usize], ..End::default() }; CONNECTIONS];
        let desk = Desk { side, total, ends, offered: Vec::new(), closed: 0 };
        Side { link, desk, carrier, packets: 0 }
    }

    /// What programs do here: write messages of `message` bytes, read, end.
    fn programs(&mut self, message: u64, random: &mut Random) {
        for (connection, end) in std::mem::take(&mut self.desk.offered) {
            self.link.accept(connection, end, WINDOW, &[]).unwrap();
            self.desk.ends[end as usize].connection = Some(connection);
        }
        for end in &mut self.desk.ends {
            let Some(connection) = end.connection.filter(|_| !(end.has_fin && end.got_fin)) else { continue };
            if end.announced < self.desk.total && end.announced < end.peer_consumed + 4 * message {
                end.announced = (end.announced + message * (1 + random.below(3))).min(self.desk.total);
                self.link.announce(connection, end.announced).unwrap();
            } else if end.announced == self.desk.total && !end.has_fin {
                end.has_fin = true;
                self.link.fin(connection).unwrap();
            }
            if end.whole > end.consumed {
                end.consumed = end.whole;
                self.link.consumed(connection, end.whole).unwrap();
            }
        }
    }

    /// Sends what there is, but for each packet whose number is a multiple of `lost_each`; says whether anything happened.
    fn send(&mut self, now: u64, lost_each: u64) -> bool {
        let before = self.packets;
        self.link.tick(now, &mut self.desk);
        let Side { link, desk, carrier, packets } = self;
        let flushed = carrier.send(&mut |room| {
            loop {
                let len = link.transmit(now, 0, room, desk)?;
                *packets += 1;
                if lost_each == 0 || !packets.is_multiple_of(lost_each) {
                    return Some(len);
                }
            }
        });
        assert_ne!(flushed, Flushed::Ended);
        self.packets > before
    }

    fn receive(&mut self, now: u64) -> bool {
        let mut is_some = false;
        let Side { link, desk, carrier, .. } = self;
        let received = carrier.receive(&mut |packet, mark| {
            is_some = true;
            let taken = link.receive(now, 0, packet, mark.is_congested(), desk);
            assert!(!matches!(taken, Taken::Down(Cause::Violation)), "{taken:?}");
        });
        assert_ne!(received, Received::Ended);
        is_some
    }
}

/// Until all bytes of all connections have come both ways and each is closed.
fn run(make: Make, lost_each: u64, total: u64, message: u64) {
    let [here, there] = make.pair();
    let path = match here.kind() {
        Kind::Stream => PathConfig { packet_max: here.packet_max(), ..PathConfig::stream() },
        Kind::Datagrams => PathConfig { packet_max: here.packet_max(), ..PathConfig::datagrams() },
    };
    let mut sides = [Side::new(0, path, here, total), Side::new(1, path, there, total)];
    let (mut now, mut random, mut opened) = (0, Random(1), 0);
    while sides.iter().any(|side| side.desk.closed < CONNECTIONS) {
        now += 20_000;
        let Side { link, desk, .. } = &mut sides[0];
        while opened < CONNECTIONS as u64
            && let Ok(connection) = link.open(0, opened, WINDOW, &opened.to_le_bytes())
        {
            desk.ends[opened as usize].connection = Some(connection);
            opened += 1;
        }
        let mut is_busy = false;
        for side in &mut sides {
            side.programs(message, &mut random);
            is_busy |= side.send(now, lost_each);
        }
        for side in &mut sides {
            is_busy |= side.receive(now);
        }
        if !is_busy && wait(&[&*sides[0].carrier, &*sides[1].carrier], 1) == 0 {
            // Nothing is under way: what follows is said by time.
            now += 1_000_000;
        }
        assert!(now < 600_000_000_000, "it does not come to an end");
    }
    for side in &sides {
        assert_eq!(side.link.connections(), 0);
        assert!(side.desk.ends.iter().all(|end| end.whole == total && end.got_fin));
        let counters = side.link.counters();
        assert_eq!((counters.malformed, counters.forged), (0, 0), "the carrier changed a packet");
        // The kernel may lose datagrams of its own accord, where it has little memory.
        let is_lossless = side.carrier.kind() == Kind::Stream;
        assert!(lost_each == 0 || counters.lost_records > 0, "{counters:?}");
        assert!(!is_lossless || counters.lost_records == 0, "{counters:?}");
    }
}

#[test]
fn small_messages_on_a_trunk() {
    run(Make::Trunk(TrunkConfig::default()), 0, 20_000, 64);
}

#[test]
fn large_messages_on_a_trunk() {
    run(Make::Trunk(TrunkConfig::default()), 0, 50_000, 5000);
    run(Make::Trunk(SMALL), 0, 50_000, 5000);
}

#[test]
fn small_messages_in_datagrams() {
    run(Make::Datagram("127.0.0.1:0", DatagramConfig::default()), 0, 20_000, 64);
}

#[test]
fn large_messages_in_datagrams() {
    run(Make::Datagram("[::1]:0", DatagramConfig::default()), 0, 50_000, 5000);
}

#[test]
fn datagrams_with_loss() {
    for lost_each in [100, 23, 7] {
        run(Make::Datagram("127.0.0.1:0", DatagramConfig::default()), lost_each, 20_000, 200);
    }
}

#[test]
fn datagrams_that_the_kernel_does_not_cut_with_loss() {
    run(Make::Refused, 31, 20_000, 200);
}
