//! The stream between engines, with hand-made ends.

mod placing;

use crate::connection::Connection;
use crate::desk::{self, Desk, View};
use crate::hosts::Hosts;
use crate::incoming::Incoming;
use crate::laps::Laps;
use crate::outgoing::Outgoing;
use crate::policy::Woken;
use crate::seat::{Process, Seat, Seats, Slot};
use crate::words::{self, Granting, Here, Question, Streams, Words};
use sd_carrier::{Grant, Window};
use sd_link::Ends;
use sd_proto::Ip;
use sd_ring::copy::copy_shared;
use sd_ring::road::RoadWord;
use sd_ring::{Effort, Next, RxCursor, TxCursor};
use sd_shm::channel::{GEOMETRY, Mapping, Side};
use sd_shm::rings::Rings;

/// As splitmix64 does it.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}

fn channel(id: u64) -> Mapping {
    Mapping::create(id, 1, 2).unwrap().1
}

/// A sender's ring here, and the copy of it there.
struct World {
    here: Rings,
    there: Rings,
    tx: TxCursor,
    rx: RxCursor,
    outgoing: Outgoing,
    incoming: Incoming,
    sent: u64,
    got: u64,
    placed: u64,
    random: Random,
}

fn byte(position: u64) -> u8 {
    (position.wrapping_mul(0x1f3) ^ position >> 9) as u8
}

impl World {
    fn new(seed: u64) -> World {
        let [here, there] = [channel(1), channel(2)].map(|map| Rings::of(&map, 3, Side::A));
        World {
            here,
            there,
            tx: TxCursor::new(&GEOMETRY),
            rx: RxCursor::new(),
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
            sent: 0,
            got: 0,
            placed: 0,
            random: Random(seed),
        }
    }

    /// The local process sends a message.
    fn send(&mut self) {
        let most = [40, 300, 5_000, 200_000][self.random.below(4) as usize];
        let want = 1 + self.random.below(most) as u32;
        let Some(grant) = self.tx.reserve(&GEOMETRY, &self.here, want, Effort::Grow) else { return };
        let len = grant.len.min(want);
        let bytes: Vec<u8> = (0..u64::from(len)).map(|at| byte(self.sent + at)).collect();
        // SAFETY: the ring has granted that place.
        unsafe { copy_shared(self.here.at(grant.region, grant.off), bytes.as_ptr(), bytes.len()) };
        self.tx.commit(&self.here, len, 0);
        self.sent += u64::from(len);
    }

    /// Bytes go from engine to engine, in pieces of any size, of which one may come before the other.
    fn carry(&mut self) {
        while self.outgoing.look(&self.here).unwrap() {}
        while self.incoming.at < self.outgoing.at {
            let left = self.outgoing.at - self.incoming.at;
            let lens = [0; 2].map(|_| 1 + self.random.below(3_000));
            let first = lens[0].min(left);
            let second = lens[1].min(left - first);
            let at = self.incoming.at;
            if self.random.below(2) == 0 && self.place(at) {
                continue;
            }
            let mut parts = vec![(at, first), (at + first, second)];
            parts.retain(|part| part.1 > 0);
            if self.random.below(4) == 0 {
                parts.reverse();
                // What was sent again is cut otherwise.
                let (position, len) = parts[0];
                parts.insert(1, (position + len / 3, len - len / 3));
            }
            // It may begin with what was consumed meanwhile.
            if self.random.below(4) == 0 {
                let known = self.random.below(5_000).min(at);
                parts[0] = (parts[0].0 - known, parts[0].1 + known);
            }
            for (position, len) in parts {
                let mut bytes = vec![0; len as usize];
                self.outgoing.read(&self.here, position, &mut bytes);
                self.incoming.put(&self.there, position, &bytes, false).unwrap();
            }
        }
    }

    /// What comes next is placed, if it is payload of a large message: in two pieces, of which one may be said before the other; and some of it may come
    /// in a record before.
    fn place(&mut self, at: u64) -> bool {
        let Ok((off, len)) = self.outgoing.place_of(at, 60_000) else { return false };
        if len < 16 {
            return false;
        }
        // SAFETY: payload of a message that was passed over, in rings of one size.
        unsafe { copy_shared(self.there.at(1, off), self.here.at(1, off), len) };
        let copied = [0, 0, 3, 8, 11][self.random.below(5) as usize];
        let mut bytes = vec![0; copied];
        self.outgoing.read(&self.here, at, &mut bytes);
        if copied > 0 {
            self.incoming.put(&self.there, at, &bytes, false).unwrap();
        }
        let first = 8 * (1 + self.random.below(len as u64 / 8 - 1) as usize);
        let mut parts = [(at, first), (at + first as u64, len - first)];
        if self.random.below(2) == 0 {
            parts.reverse();
        }
        for (position, len) in parts.into_iter().filter(|part| part.1 > 0) {
            self.incoming.placed(&self.there, position, len, false).unwrap();
        }
        assert_eq!(self.incoming.at, at + len as u64);
        self.placed += len as u64;
        true
    }

    fn receive(&mut self) {
        loop {
            match self.rx.next(&GEOMETRY, &self.there).unwrap() {
                Next::Data { region, off, len } => {
                    let mut bytes = vec![0; len as usize];
                    // SAFETY: the ring checked region, offset and length.
                    unsafe { copy_shared(bytes.as_mut_ptr(), self.there.at(region, off), bytes.len()) };
                    let wanted = (0..u64::from(len)).map(|at| byte(self.got + at));
                    assert!(bytes.into_iter().eq(wanted), "behind {}", self.got);
                    self.got += u64::from(len);
                    self.rx.advance(len);
                }
                Next::Empty => break,
                other => panic!("{other:?}"),
            }
        }
        let stream = self.incoming.consumed(self.rx.position());
        let ring = self.outgoing.consumed(stream);
        assert_eq!(ring, self.rx.position(), "a credit is the same at both ends");
        self.tx.credit(ring).unwrap();
    }
}

#[test]
fn what_is_sent_here_is_received_there() {
    for seed in 0..3 {
        let mut world = World::new(seed);
        for _ in 0..250 {
            for _ in 0..world.random.below(4) {
                world.send();
            }
            world.carry();
            if world.random.below(3) == 0 {
                world.receive();
            }
        }
        world.receive();
        assert_eq!((world.got, world.got > 1 << 20), (world.sent, true));
        assert!(world.placed > 1 << 19, "{} of {}", world.placed, world.sent);
        assert_eq!(world.rx.position(), world.tx.position());
        world.tx.finish(&world.here, 0);
        world.carry();
        assert_eq!(world.rx.next(&GEOMETRY, &world.there), Ok(Next::Fin));
    }
}

/// Whatever another engine sends: it is refused, or lands in the ring.
#[test]
fn a_hostile_stream_stays_in_the_ring() {
    let mut random = Random(7);
    let there = Rings::of(&channel(4), 1023, Side::B);
    for _ in 0..3_000 {
        let mut incoming = Incoming::new();
        for _ in 0..random.below(40) {
            let kind = random.below(9);
            let len = [random.below(64), random.below(1 << 22), 8 * random.below(200), u64::MAX >> 36];
            let word = len[random.below(4) as usize] | kind << 32;
            let mut bytes = word.to_ne_bytes().to_vec();
            bytes.resize(8 + random.below(4_000) as usize, 1);
            let at = incoming.at + random.below(20).saturating_sub(17);
            if incoming.put(&there, at, &bytes, true).is_err() {
                break;
            }
            let _ = incoming.consumed(random.below(1 << 40));
        }
    }
}

/// One packet is lost, and all others of a full ring come before it is sent again, in any order and cut in any way.
#[test]
fn a_full_ring_may_come_early() {
    let mut world = World::new(11);
    while world.outgoing.at < 2 << 20 {
        let before = world.outgoing.at;
        (0..20).for_each(|_| world.send());
        while world.outgoing.look(&world.here).unwrap() {}
        if world.outgoing.at == before {
            break;
        }
    }
    let mut parts: Vec<(u64, u64)> = (1..world.outgoing.at / 1_400).map(|at| (at * 1_400, 1_400)).collect();
    let again: Vec<(u64, u64)> = parts.iter().map(|(at, len)| (at + 700, *len)).collect();
    parts.extend(again);
    for last in (1..parts.len()).rev() {
        let other = world.random.below(last as u64 + 1) as usize;
        parts.swap(last, other);
    }
    parts.push((0, 1_400));
    for (position, len) in parts {
        let mut bytes = vec![0; len.min(world.outgoing.at - position) as usize];
        world.outgoing.read(&world.here, position, &mut bytes);
        world.incoming.put(&world.there, position, &bytes, false).unwrap();
    }
    assert!(world.incoming.early_bytes == 0 && world.outgoing.at > 1 << 20, "{}", world.outgoing.at);
    world.carry();
    world.receive();
    assert_eq!(world.got, world.sent);
}

fn seat(id: u64) -> Seat {
    seat_of(1, id)
}

fn seat_of(pid: u32, id: u64) -> Seat {
    let eventfd = sd_sys::fd::eventfd(libc::EFD_CLOEXEC).unwrap();
    let fds = [Mapping::create(id, 1, 2).unwrap().0, sd_shm::public::create(1).unwrap().0, eventfd];
    Seat::new((id, Side::A), Process { pid, is_stranger: false }, fds).unwrap()
}

/// A channel has a thousand connections; the next one's alone would seem to have all the wakes of the process.
#[test]
fn a_process_is_woken_for_all_its_channels() {
    let mut seats = Seats::default();
    for (id, pid, messages, wakes) in [(1, 7, 50_000, 900), (2, 8, 300, 300), (3, 7, 200, 190)] {
        let mut seat = seat_of(pid, id);
        seat.woken = Woken { messages, wakes: 0, joined: 0 };
        seat.judged = id as usize;
        seat.end.wakes.set(wakes);
        seats.add(id, seat);
    }
    let found = seats.take_woken();
    let woken = |messages, wakes| Woken { messages, wakes, joined: 0 };
    assert_eq!(found, [(vec![0, 2], woken(50_200, 1_090), 4), (vec![1], woken(300, 300), 2)]);
    assert!(!found[0].1.is_each() && found[1].1.is_each());
    assert!(seats.take_woken().iter().all(|(_, woken, judged)| *woken == Woken::default() && *judged == 0));
}

#[test]
fn that_one_of_two_ends_has_begun_to_go_back_is_seen() {
    let seat = seat(9);
    let mut connection = Connection::new(0, true, u64::MAX);
    assert!(!connection.goes_back(&seat), "it has no slot");
    let words = [RoadWord::LEAVING, RoadWord::LEFT, RoadWord::RESUME];
    for (at, word) in words.into_iter().enumerate() {
        for (side, slot) in [(0, 2 * at), (1, 2 * at + 1)] {
            connection.at = Some(Slot { slot, generation: 0 });
            let words = &seat.end.map.slot(slot).side[side];
            words.say(RoadWord::ATTACHED | RoadWord::SWITCHED | RoadWord::WANTS_KERNEL);
            assert!(!connection.goes_back(&seat), "it was only advised");
            words.say(word);
            assert!(connection.goes_back(&seat), "{word:?} of side {side}");
        }
    }
}

/// However many connections it uses for that.
#[test]
fn what_comes_early_is_bounded_for_a_peer() {
    let mut desk = Desk::default();
    desk.seats.add(9, seat(9));
    let open = |desk: &mut Desk, peer, slot| {
        let mut connection = Connection::new(peer, true, u64::MAX);
        (connection.promise, connection.at) = (Some((0, 0)), Some(Slot { slot, generation: 0 }));
        desk.connections.add(connection)
    };
    let ids: Vec<u64> = (0..40).map(|slot| open(&mut desk, 0, slot)).collect();
    let other = open(&mut desk, 1, 40);
    let early = |desk: &mut Desk, id: u64| {
        let connection = desk.connections.get(id).unwrap();
        (connection.early_bytes(), connection.is_broken)
    };
    let put = |desk: &mut Desk, peer, id| {
        (1..=200).for_each(|at| View::of(desk, peer).write(id, at * 10_000, &[0; 9_000]));
    };
    ids.iter().for_each(|id| put(&mut desk, 0, *id));
    put(&mut desk, 1, other);
    let all: Vec<(usize, bool)> = ids.iter().map(|id| early(&mut desk, *id)).collect();
    let sum: usize = all.iter().map(|(bytes, _)| bytes).sum();
    // What breaks them is kept until they are forgotten, and no more of them is taken.
    assert!((desk::EARLY_MAX..desk::EARLY_MAX + 40 * 10_000).contains(&sum), "{sum}");
    assert!(all[..10].iter().all(|(_, is_broken)| !is_broken) && all.last().unwrap().1);
    assert!(!early(&mut desk, other).1);
    ids.iter().for_each(|id| desk.forget(*id));
    let next = open(&mut desk, 0, 41);
    put(&mut desk, 0, next);
    assert!(!early(&mut desk, next).1);
}

/// A sender that has no credit, or changes what it has sent, breaks its own connection.
#[test]
fn a_hostile_sender_is_found_out() {
    let mut world = World::new(3);
    let mut is_corrupt = false;
    for _ in 0..400 {
        let mut tx = TxCursor::new(&GEOMETRY);
        std::mem::swap(&mut tx, &mut world.tx);
        // It takes what was never consumed for consumed.
        let _ = tx.credit(tx.position());
        world.tx = tx;
        for _ in 0..8 {
            world.send();
        }
        loop {
            match world.outgoing.look(&world.here) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    is_corrupt = true;
                    break;
                }
            }
        }
        if is_corrupt {
            break;
        }
    }
    assert!(is_corrupt);
}

#[test]
fn places_of_laps_are_found_both_ways() {
    let mut laps = Laps::new();
    laps.begin(108, 1024, true);
    laps.begin(208, 2 << 20, false);
    assert_eq!(laps.place(0), Some((0, 0, 108)));
    assert_eq!(laps.place(110), Some((1, 2, 98)));
    assert_eq!(laps.place(208).map(|place| (place.0, place.1)), Some((0, 0)));
    for (stream, ring) in
        [(0, 0), (100, 100), (108, 1024), (150, 1066), (208, 2 << 20), (300, (2 << 20) + 92)]
    {
        assert_eq!((laps.ring_at(stream), laps.stream_at(ring)), (ring, stream));
    }
    // Who stands in what a jump passes over stands in front of the jump.
    assert_eq!((laps.stream_at(1000), laps.stream_at(1 << 20)), (100, 200));
    laps.forget_before(108);
    assert_eq!((laps.place(50), laps.ring_at(108)), (None, 1024));
}

#[test]
fn words_and_questions_are_read_as_they_were_written() {
    for behind in [0, 1, u32::MAX] {
        assert_eq!(words::answered(&words::answer(behind)), behind);
    }
    assert_eq!(words::answered(&[1; 5]), 0, "no answer of ours");
    let words =
        Words { at: 1, flags: 2, state: 3, urgent: 4, switched_at: 5, written: u64::MAX, ..Words::default() };
    assert_eq!(Words::decode(&words.encode()), Some(words));
    let window = Window { addr: u64::MAX - 5, len: 6, key: 7 };
    for (grant, count, done) in [(Some(Grant { end: 8, window }), 9, 10), (None, 1, 0), (None, 0, 1)] {
        let said = Words { granting: Granting { grant, count, done }, ..words };
        assert_eq!(Words::decode(&said.encode()), Some(said));
    }
    let question = Question {
        local: (Ip::v4([10, 0, 0, 1]), 40_000),
        remote: (Ip([9; 16]), 80),
        here: Here::default(),
        streams: Some(Streams { began: (u32::MAX, 7), counted: (u32::MAX, 7) }),
    };
    let bytes = question.encode();
    assert_eq!(Question::decode(&bytes), Some(question));
    let here = Here { names: Some([question.remote, question.local]), netns: 7, owner: 8 };
    assert_eq!(Question { here, ..question }.encode(), bytes, "nobody else is told");
    let untold = Question { streams: None, ..question };
    assert_eq!(Question::decode(&untold.encode()).map(|it| it.streams), Some(None));
    let streams = Some(Streams { began: (u32::MAX, 7), counted: (9, u32::MAX - 1) });
    let restored = Question { streams, ..question };
    let longer = restored.encode();
    assert_eq!(Question::decode(&longer), Some(restored));
    for end in 0..longer.len() {
        assert_eq!(Question::decode(&longer[..end]), None);
    }
    for end in 0..bytes.len() {
        assert_eq!(Question::decode(&bytes[..end]), None);
        assert_eq!(Words::decode(&words.encode()[..end.min(crate::words::WORDS_LEN - 1)]), None);
    }
}

#[test]
fn a_file_names_hosts_by_networks() {
    let text = "listen 10.0.0.1:7 # us\n\nhost 10.0.0.2 10.0.0.2:7 plain\nhost 10.1.0.0/16 10.0.0.3:7 plain\n\
                host 10.1.2.0/24 10.0.0.2:7 plain\nleast 9\n";
    let parse = |text| Hosts::parse(text, std::path::Path::new("/nowhere"));
    let hosts = parse(text).unwrap();
    assert_eq!((hosts.engines.len(), hosts.least, hosts.listen.port()), (2, 9, 7));
    let engine = |ip| hosts.engine_of(0, Ip::v4(ip)).map(|(at, _)| hosts.engines[at].address.to_string());
    assert_eq!(engine([10, 0, 0, 2]).as_deref(), Some("10.0.0.2:7"));
    assert_eq!(engine([10, 1, 9, 9]).as_deref(), Some("10.0.0.3:7"));
    assert_eq!(engine([10, 1, 2, 9]).as_deref(), Some("10.0.0.2:7"));
    assert_eq!(engine([10, 0, 0, 1]), None);
    assert_eq!(engine([127, 0, 0, 1]), None);
    for (text, mistake) in [
        ("host 10.0.0.2 10.0.0.2:7 plain", "there is no line `listen ADDRESS:PORT`"),
        ("listen", "line 1: one word is wanted behind the first"),
        ("listen 10.0.0.1:7\nhost 10.0.0.2 10.0.0.2:7", "line 2: how the engine is known has to be said"),
        ("listen 10.0.0.1:7\nkey here", "/nowhere/here"),
    ] {
        let found = parse(text).map_err(|error| error.to_string()).unwrap_err();
        assert!(found.starts_with(mistake), "{text}: {found}");
    }
}
