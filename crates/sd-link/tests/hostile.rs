//! Packets that no honest engine sends, with a good seal: the worst is the end of the session.

use proptest::prelude::*;
use sd_link::seal::{Checksum, Seal, Session};
use sd_link::wire::{Ack, HEADER, Header, Hello, PacketKind, RECORD, RecordKind, Records, packet_len, put};
use sd_link::{Cause, Config, Connection, Ends, Limits, Link, News, PathConfig, Taken};

/// A seal that anybody can make.
#[derive(Clone, Copy, Debug)]
struct Open;

impl Seal for Open {
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

#[derive(Default)]
struct Desk {
    offered: Vec<Connection>,
    written: Vec<(u64, u64)>,
}

impl Ends for Desk {
    fn read(&mut self, _: u64, _: u64, out: &mut [u8]) {
        out.fill(1);
    }
    fn write(&mut self, _: u64, position: u64, bytes: &[u8]) {
        self.written.push((position, position + bytes.len() as u64));
    }
    fn placed(&mut self, _: u64, position: u64, len: usize) {
        self.written.push((position, position + len as u64));
    }
    fn told(&mut self, connection: Connection, _: u64, news: News<'_>) {
        if let News::Offered { .. } = news {
            self.offered.push(connection);
        }
    }
}

const WINDOW: u32 = 1000;

/// A link that is up, and the tag of packets to it.
fn up() -> (Link, Desk, u64) {
    up_by(PathConfig { places: true, ..PathConfig::datagrams() })
}

fn up_by(path: PathConfig) -> (Link, Desk, u64) {
    let paths = [path];
    let mut links = [1, 2]
        .map(|epoch| Link::new(Config { connections_max: 64, ..Config::new(epoch, epoch) }, &paths, Open));
    let mut desks = [Desk::default(), Desk::default()];
    let mut tag = 0;
    for round in 0..6 {
        for from in 0..2 {
            links[from].tenant(0, 5, Limits { weight: 1, rate: None }).unwrap();
            links[from].tick(round * 1_000_000_000, &mut desks[from]);
            let mut out = [0; 1500];
            if from == 1 && links[1].is_up() {
                let _ = links[1].open(5, 1, WINDOW, b"words");
            }
            while let Some(len) = links[from].transmit(round * 1_000_000_000, 0, &mut out, &mut desks[from]) {
                let header = Header::decode(&out[..len]).unwrap();
                if from == 1 && header.kind == PacketKind::Records {
                    tag = header.tag;
                }
                links[1 - from].receive(
                    round * 1_000_000_000,
                    0,
                    &mut out[..len],
                    false,
                    &mut desks[1 - from],
                );
            }
        }
    }
    assert!(tag != 0 && links[0].is_up());
    let [link, _] = links;
    let [mut desk, _] = desks;
    let mut link = link;
    for connection in std::mem::take(&mut desk.offered) {
        let _ = link.accept(connection, 1, WINDOW, &[]);
    }
    (link, desk, tag)
}

fn packet(tag: u64, number: u64, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; HEADER];
    packet.extend_from_slice(body);
    let len = packet.len() as u16;
    let header =
        Header { kind: PacketKind::Records, path: 0, len, age: number as u16, tag, number, phase: false };
    header.encode(packet.first_chunk_mut().unwrap());
    packet
}

prop_compose! {
    fn record()(
        kind in 0u8..14, extra in any::<u8>(), connection in prop_oneof![Just(0u32), 0u32..4, any::<u32>()],
        position in prop_oneof![0u32..3000, any::<u32>()], body in prop::collection::vec(any::<u8>(), 0..40),
        keeps in any::<bool>(),
    ) -> Vec<u8> {
        let mut bytes = vec![0; RECORD];
        let has_body = matches!(kind, 1 | 3 | 4 | 6 | 13) == keeps;
        let mut body = if has_body { body } else { Vec::new() };
        if kind == RecordKind::Placed as u8 {
            body.truncate(2);
        }
        put(&mut bytes, RecordKind::Data, extra, body.len() as u16, connection, position);
        bytes[0] = kind;
        bytes.extend_from_slice(&body);
        bytes
    }
}

proptest! {
    #[test]
    fn any_records(packets in prop::collection::vec(prop::collection::vec(record(), 0..6), 1..12)) {
        let (mut link, mut desk, tag) = up();
        for (number, records) in packets.iter().enumerate() {
            let mut packet = packet(tag, 1000 + number as u64, &records.concat());
            let taken = link.receive(7_000_000_000, 0, &mut packet, number % 2 == 0, &mut desk);
            for (begin, end) in desk.written.drain(..) {
                prop_assert!(begin < end && end <= u64::from(WINDOW), "a write beyond the window");
            }
            if let Taken::Down(cause) = taken {
                prop_assert_eq!(cause, Cause::Violation);
                prop_assert_eq!(link.connections(), 0);
                break;
            }
            let mut out = [0; 1500];
            for _ in 0..20 {
                link.tick(7_100_000_000, &mut desk);
                link.transmit(7_100_000_000, 0, &mut out, &mut desk);
            }
        }
    }

    #[test]
    fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Header::decode(&bytes);
        let _ = Hello::decode(&bytes);
        let _ = packet_len(&bytes);
        for record in Records(&bytes).flatten() {
            if let Ok(ack) = Ack::decode(&record) {
                prop_assert!(ack.ranges().all(|(begin, end)| begin <= end));
            }
        }
        let (mut link, mut desk, tag) = up();
        prop_assert_eq!(link.receive(7_000_000_000, 0, &mut bytes.clone(), false, &mut desk), Taken::No);
        link.receive(7_000_000_000, 0, &mut packet(tag, 2000, &bytes), false, &mut desk);
        bytes.truncate(100);
        let mut sealed = packet(tag, 2001, &bytes);
        Checksum::default().sign(&mut sealed);
        link.receive(7_000_000_000, 0, &mut sealed, false, &mut desk);
    }
}

#[test]
fn more_than_the_window_ends_the_session() {
    for (len, is_down) in [(1000, false), (1001, true)] {
        let (mut link, mut desk, tag) = up();
        let mut body = vec![0; RECORD + len];
        put(&mut body, RecordKind::Data, 0, len as u16, 0, 0);
        let taken = link.receive(7_000_000_000, 0, &mut packet(tag, 1000, &body), false, &mut desk);
        assert_eq!(taken, if is_down { Taken::Down(Cause::Violation) } else { Taken::Yes }, "{len} bytes");
    }
}

#[test]
fn what_a_path_cannot_have_placed_ends_the_session() {
    for (places, len, is_violation) in [(true, 10_u16, false), (false, 10, true), (true, 0, true)] {
        let (mut link, mut desk, tag) = up_by(PathConfig { places, ..PathConfig::datagrams() });
        let mut record = vec![0; RECORD];
        put(&mut record, RecordKind::Placed, 0, 2, 0, 0);
        record.extend(len.to_le_bytes());
        let taken = link.receive(7_000_000_000, 0, &mut packet(tag, 1000, &record), false, &mut desk);
        assert_eq!(taken == Taken::Down(Cause::Violation), is_violation, "{places} {len}");
        assert_eq!(desk.written.contains(&(0, 10)), !is_violation);
    }
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_ends_the_session() {
    let (mut link, mut desk, tag) = up();
    let mut body = vec![0; 200];
    let len = Ack::encode([(0, 1 << 40)].into_iter().map(|(_, end)| (end, end)), 0, 0, &mut body);
    let taken = link.receive(7_000_000_000, 0, &mut packet(tag, 1000, &body[..len]), false, &mut desk);
    assert_eq!(taken, Taken::Down(Cause::Violation));
}
