//! What another host's engine sends, and what local processes write into the channels that they share with the engine: for fuzzing.
//!
//! The other engine has the keys, so what it sends is taken as it is: records of all kinds that its link makes of what it is told to say, by a
//! trunk and by datagrams, and packets that were changed, or come late. Each of two channels (the engine is side A of one, side B of the other)
//! has a local process that writes where it likes in its slots. A third engine does nothing: it has a connection in each channel.
//!
//! Whatever comes: what waits early keeps to its bounds; no slot has two connections; the third engine's are as they were, with their slots and
//! rings. The rest a build that checks for overflow finds by itself.

mod other;

use crate::carriers::{self, DATAGRAMS, RDMA, TRUNK};
use crate::connection::{Connection, WINDOW};
use crate::desk::{self, Desk, View};
use crate::incoming;
use crate::seat::{Process, Seat, Slot};
use crate::words::{Granting, Here, Question, Words};
use other::{Bytes, NoSeal, Other};
use sd_carrier::{Grant, Window};
use sd_link::congestion::Congestion;
use sd_link::{Config, Connection as Number, Limits, Link};
use sd_proto::Ip;
use sd_pump::control::Control;
use sd_ring::{Effort, TxCursor};
use sd_shm::channel::{GEOMETRY, Mapping, Side, Slot as Words2, SlotState};
use sd_shm::promotion::PROMOTION;
use sd_shm::rings::Rings;
use sd_sys::fd::Owned;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots that local processes write into, and connections with the other engine at most.
const USED: usize = 8;
const CONNECTIONS: usize = 24;
/// The slot of each channel that the third engine's connection has.
const THIRDS: [usize; 2] = [CONNECTIONS, USED];
/// What is written into rings of these.
const MARK: u64 = 0x5d5d_5d5d_5d5d_5d5d;
/// Bytes of a packet, at most.
const PACKET: usize = 16 << 10;
const STEP_NS: u64 = 10_000_000;

/// What becomes of the packets that the other engine sends.
#[derive(Default)]
struct Way {
    changes: usize,
    /// So many by each path come after the next ones.
    holds: usize,
    is_long: bool,
}

/// What lasts from input to input, as it is mapped for good.
struct Kept {
    control: Control,
    page: Owned,
}

struct World {
    now: u64,
    desk: Desk,
    links: [Link; 2],
    others: Link,
    other: Other,
    late: Vec<(u8, Vec<u8>)>,
    maps: [Mapping; 2],
    /// The third engine's connections, unless their local process is gone.
    thirds: [Option<(u64, Number)>; 2],
    senders: HashMap<(usize, usize), TxCursor>,
    tickets: u64,
}

const PATHS: [u8; 3] = [TRUNK, DATAGRAMS, RDMA];

fn link(seed: u64) -> Link {
    let mut link = Link::new(
        Config { connections_max: 256, ..Config::new(seed, seed + 1) },
        &carriers::paths(Congestion::Dctcp),
        NoSeal,
    );
    let _ = link.tenant(0, 0, Limits { weight: 1, rate: None });
    [DATAGRAMS, RDMA].into_iter().for_each(|path| link.carries(path, false));
    link
}

/// A channel, and the engine's side of it.
fn seat(at: usize, page: &Owned) -> Option<(Seat, Mapping)> {
    let (segment, made) = Mapping::create(at as u64 + 1, 1, 2).ok()?;
    let eventfd = sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).ok()?;
    let page = sd_sys::fd::dup(page.raw()).ok()?;
    let process = Process { pid: 1, is_stranger: false };
    Some((Seat::new((at as u64 + 1, [Side::A, Side::B][at]), process, [segment, page, eventfd])?, made))
}

/// Words of the third engine's rings in a channel.
fn marks(at: usize, map: &Mapping) -> impl Iterator<Item = &AtomicU64> {
    let ends = [(0, GEOMETRY.small), (1, GEOMETRY.large)];
    [Side::A, Side::B].into_iter().flat_map(move |from| {
        ends.into_iter().flat_map(move |(region, size)| {
            let rings = Rings::of(map, THIRDS[at], from);
            [0, size - 8].map(move |off| {
                // SAFETY: an aligned word of a ring of a channel that stays mapped.
                unsafe { &*rings.at(region, off).cast::<AtomicU64>() }
            })
        })
    })
}

/// Words of the engine's in the third engine's slot.
fn third_words(at: usize, map: &Mapping) -> (u32, SlotState, u32, u64) {
    let own = &map.slot(THIRDS[at]).side[at];
    let (generation, state) = own.state();
    (generation, state, own.flags.load(Ordering::Relaxed), own.consumed.load(Ordering::Relaxed))
}

impl World {
    fn new(kept: &Kept) -> Option<World> {
        let [(first, one), (second, two)] = [seat(0, &kept.page)?, seat(1, &kept.page)?];
        let mut desk = Desk::default();
        desk.seats.add(1, first);
        desk.seats.add(2, second);
        // The processes' own, which stay when the engine lets go of a channel.
        let maps = [one, two];
        let (links, others) = ([link(3), link(7)], link(5));
        let other = Other::default();
        let (late, senders, thirds) = (Vec::new(), HashMap::new(), [None; 2]);
        let mut world = World { now: 1, desk, links, others, other, late, maps, thirds, senders, tickets: 0 };
        world.add_thirds();
        Some(world)
    }

    /// Connections with the third engine, whose numbers are those of the other one's too.
    fn add_thirds(&mut self) {
        let (mut thirds, mut third) = (link(9), Other::default());
        let name = (Ip([1; 16]), 1);
        let question = Question { local: name, remote: name, here: Here::default(), streams: None }.encode();
        for _ in 0..6 {
            self.swap_roles(&mut thirds, &mut third);
            self.exchange(&mut Bytes(&[]), &Way::default(), 1);
            self.swap_roles(&mut thirds, &mut third);
            for end in thirds.connections() as u64..2 {
                let _ = thirds.open(0, end, WINDOW, &question);
            }
        }
        for (at, (peer, number, ..)) in std::mem::take(&mut self.desk.asked).into_iter().enumerate() {
            let place = Slot { slot: THIRDS[at], generation: 1 };
            let mut connection = Connection::new(peer, at == 1, u64::MAX);
            (connection.number, connection.promise, connection.at) =
                (Some(number), Some((at, 0)), Some(place));
            let id = self.desk.connections.add(connection);
            self.desk.seats.get(at).into_iter().for_each(|seat| seat.slots[place.slot] = Some(id));
            let _ = self.links[1].accept(number, id, WINDOW, &[]);
            let [a, b] = &self.maps[at].slot(place.slot).side;
            a.set_state(1, SlotState::Syn);
            b.set_state(1, SlotState::Open);
            marks(at, &self.maps[at]).for_each(|word| word.store(MARK, Ordering::Relaxed));
            self.thirds[at] = Some((id, number));
        }
    }

    /// The third engine takes the other one's place, or gives it back.
    fn swap_roles(&mut self, thirds: &mut Link, third: &mut Other) {
        std::mem::swap(&mut self.others, thirds);
        std::mem::swap(&mut self.other, third);
    }

    /// Packets go to and fro; with those that come happens what `way` says.
    fn exchange(&mut self, bytes: &mut Bytes<'_>, way: &Way, peer: usize) {
        self.now += STEP_NS;
        let now = self.now;
        let World { links, desk, .. } = self;
        links[peer].tick(now, &mut View::of(desk, peer));
        self.others.tick(now, &mut self.other);
        let mut room = vec![0; PACKET];
        for path in PATHS {
            let mut holds = way.holds;
            for _ in 0..if way.is_long { 200 } else { 8 } {
                let Some(len) = self.others.transmit(now, path, &mut room, &mut self.other) else { break };
                for _ in 0..way.changes {
                    room[bytes.number() as usize % len] = bytes.u8();
                }
                if holds > 0 {
                    holds -= 1;
                    self.late.push((path, room[..len].to_vec()));
                    continue;
                }
                self.comes((path, &mut room[..len]), peer);
            }
        }
        if way.holds == 0 {
            for (path, mut packet) in std::mem::take(&mut self.late) {
                self.comes((path, &mut packet), peer);
            }
        }
        // Who holds packets back does not hear what has come, or would send it again.
        let answers = if way.holds == 0 { 8 } else { 0 };
        for path in PATHS {
            for _ in 0..answers {
                let mut view = View::of(&mut self.desk, peer);
                let Some(len) = self.links[peer].transmit(now, path, &mut room, &mut view) else { break };
                self.others.receive(now, path, &mut room[..len], false, &mut self.other);
            }
        }
    }

    fn comes(&mut self, (path, packet): (u8, &mut [u8]), peer: usize) {
        let World { links, desk, now, .. } = self;
        crate::peer::take((peer, *now), path, packet, false, &mut links[peer], desk);
    }

    /// As the engine's loop does it.
    fn turn(&mut self, control: &mut Control) {
        let World { desk, links, now, .. } = self;
        desk.settle(links, control);
        while desk.take_events(links, control) || desk.has_events() {}
        desk.visit_hot(links, control);
        desk.take_strange(links, control);
        desk.leave_dead_seats(control);
        desk.ring(control);
        desk.lend((0, *now), None);
        desk.look_after_device();
        desk.unanswered.clear();
        desk.opened.clear();
        for (peer, number, tenant, question) in std::mem::take(&mut desk.asked) {
            if question.is_none() || tenant != 0 || self.desk.connections.count >= CONNECTIONS {
                let _ = self.links[peer].refuse(number, 1);
                continue;
            }
            let mut asked = Connection::new(peer, false, u64::MAX);
            asked.number = Some(number);
            let id = self.desk.connections.add(asked);
            match self.links[peer].accept(number, id, WINDOW, &[]) {
                Ok(()) => {
                    self.tickets += 1;
                    self.desk.promised(id, 1, self.tickets);
                }
                Err(_) => self.desk.give_up(id, &mut self.links),
            }
        }
    }

    /// Something that the other engine does.
    fn other_acts(&mut self, bytes: &mut Bytes<'_>) {
        let kind = bytes.u8() % 15;
        if kind == 0 {
            let name = (Ip([bytes.u8(); 16]), 1);
            let question =
                Question { local: name, remote: name, here: Here::default(), streams: None }.encode();
            let len = if bytes.u8() > 240 { bytes.below(question.len()) } else { question.len() };
            let end = self.other.numbers.len() as u64;
            if let Ok(number) = self.others.open(0, end, WINDOW, &question[..len]) {
                self.other.numbers.push((number, end));
            }
            return;
        }
        if kind == 1 {
            let Some(number) = self.other.offered.pop() else { return };
            let end = self.other.numbers.len() as u64;
            if self.others.accept(number, end, bytes.number() as u32, &[]).is_ok() {
                self.other.numbers.push((number, end));
            }
            return;
        }
        if kind >= 13 {
            return self.changes_ways(bytes);
        }
        let at = bytes.below(self.other.numbers.len());
        let Some((number, end)) = self.other.numbers.get(at).copied() else { return };
        let _ = match kind {
            2..=5 => {
                let stream = self.other.streams.entry(end).or_default();
                let (head, len) = (bytes.number() << 32 | bytes.number(), bytes.number() as usize);
                let len = (len % (1 << 16)) & !(usize::from(bytes.u8() < 250) * 7);
                if stream.bytes.len() as u64 == stream.len {
                    stream.bytes.extend(head.to_ne_bytes());
                    stream.bytes.resize(stream.bytes.len() + len, 7);
                }
                stream.len += 8 + len as u64;
                self.others.announce(number, stream.len)
            }
            6..=8 => {
                let words = Words {
                    at: bytes.number(),
                    flags: bytes.number() as u32,
                    state: bytes.u8() % 8,
                    urgent: bytes.number(),
                    switched_at: bytes.number(),
                    written: bytes.number(),
                    granting: granting(bytes),
                };
                let words = words.encode();
                let len = if bytes.u8() > 240 { bytes.below(words.len()) } else { words.len() };
                self.others.say(number, &words[..len])
            }
            9 => self.others.consumed(number, bytes.number()),
            10 => self.others.fin(number),
            // Much, of which the first word is no header.
            11 => {
                let stream = self.other.streams.entry(end).or_default();
                stream.len += 2 << 20;
                self.others.announce(number, stream.len)
            }
            _ => match bytes.u8() % 3 {
                0 => self.others.reset(number, 1, bytes.u8().is_multiple_of(2)),
                1 => self.others.stop(number),
                _ => self.others.urgent(number, bytes.number(), bytes.u8()),
            },
        };
    }

    /// A carrier is used or not, by either, or has broken.
    fn changes_ways(&mut self, bytes: &mut Bytes<'_>) {
        let (what, path) = (bytes.u8(), bytes.u8() % PATHS.len() as u8);
        let links = [&mut self.links[0], &mut self.others];
        let [ours, others] = links;
        match what % 9 {
            0 | 1 => others.carries(path, what.is_multiple_of(2)),
            2 | 3 => ours.carries(path, what.is_multiple_of(2)),
            4 => ours.path_broke(path),
            5 => others.path_broke(path),
            6 => ours.say_again(path),
            7 => ours.ask(path),
            _ => self.grants_all(),
        }
    }

    /// As if all rings had been granted to the other engine once.
    fn grants_all(&mut self) {
        for id in self.desk.connections.ids() {
            let connection = self.desk.connections.get(id);
            connection.into_iter().for_each(|connection| connection.lent_rings.was_granted = true);
        }
    }

    /// Something that a local process does.
    fn process_acts(&mut self, bytes: &mut Bytes<'_>) {
        let (at, slot) = (bytes.below(2), bytes.below(USED));
        let (map, from) = (self.maps[at], [Side::B, Side::A][at]);
        let words = map.slot(slot);
        let own = &words.side[from as usize];
        match bytes.u8() % 8 {
            // As it should.
            0 => {
                let other = &words.side[from.other() as usize];
                let generation = if from == Side::B { other.state().0 } else { own.state().0 + 1 };
                own.listener.store(PROMOTION, Ordering::Relaxed);
                map.names(slot).ticket().store(bytes.number(), Ordering::Relaxed);
                let state = if from == Side::B { SlotState::Open } else { SlotState::Syn };
                own.set_state(generation & 0x00ff_ffff, state);
                self.senders.remove(&(at, slot));
            }
            1 | 2 => {
                let rings = Rings::of(&map, slot, from);
                let tx = self.senders.entry((at, slot)).or_insert_with(|| TxCursor::new(&GEOMETRY));
                let want = (bytes.number() as u32).clamp(1, 1 << 20);
                if let Some(grant) = tx.reserve(&GEOMETRY, &rings, want, Effort::Grow) {
                    tx.commit(&rings, grant.len.min(want), 0);
                }
            }
            3 => own.consumed.store(bytes.number(), Ordering::Relaxed),
            4 => _ = own.flags.fetch_xor(bytes.number() as u32, Ordering::Relaxed),
            5 => own.set_state(own.state().0, SlotState::of_word(u32::from(bytes.u8() % 8))),
            // Anything, anywhere in its words.
            6 => {
                let place = bytes.number() as usize % (size_of::<Words2>() / 8);
                // SAFETY: an aligned word of the slot, of a channel that stays mapped.
                let word = unsafe { &*core::ptr::from_ref(words).cast::<AtomicU64>().add(place) };
                word.store(bytes.number(), Ordering::Relaxed);
            }
            _ => {
                let off = bytes.number() as u32 % (GEOMETRY.small / 8) * 8;
                // SAFETY: an aligned word of the small ring, of a channel that stays mapped.
                let word = unsafe { &*Rings::of(&map, slot, from).at(0, off).cast::<AtomicU64>() };
                word.store(bytes.number() << 32 | bytes.number(), Ordering::Relaxed);
            }
        }
        map.events(from.other()).post(slot);
    }

    /// What the monitor says.
    fn monitor_acts(&mut self, bytes: &mut Bytes<'_>, control: &mut Control) {
        match bytes.u8() % 32 {
            0 => {
                let at = bytes.below(2);
                self.thirds[at] = None;
                self.desk.gone(at as u64 + 1, &mut self.links, control);
            }
            1 => self.desk.give_up_unseated(&mut self.links),
            _ if self.desk.connections.count < CONNECTIONS => {
                let id = self.desk.connections.add(Connection::new(0, true, u64::MAX));
                let name = (Ip([1; 16]), 1);
                let question = Question { local: name, remote: name, here: Here::default(), streams: None };
                match self.links[0].open(0, id, WINDOW, &question.encode()) {
                    Ok(number) => {
                        self.desk.connections.get(id).into_iter().for_each(|it| it.number = Some(number));
                        self.desk.promised(id, 2, u64::from(bytes.u8()));
                    }
                    Err(_) => self.desk.forget(id),
                }
            }
            _ => {}
        }
    }

    fn check(&mut self) {
        let mut sum = 0;
        let mut slots = HashSet::new();
        for id in self.desk.connections.ids() {
            let Some(connection) = self.desk.connections.get(id) else { continue };
            let early = connection.early_bytes();
            assert!(early <= incoming::EARLY_MAX + PACKET + 96, "{early} bytes wait early");
            sum += early;
            let (Some(at), Some((seat, _))) = (connection.at, connection.promise) else { continue };
            assert!(slots.insert((seat, at.slot)), "two connections at {at:?}");
            let holder = self.desk.seats.get(seat).and_then(|seat| seat.slots[at.slot]);
            assert_eq!(holder, Some(id), "{at:?}");
        }
        assert!(sum <= desk::EARLY_MAX + CONNECTIONS * (PACKET + 96), "{sum} bytes wait early");
        for (at, map) in self.maps.iter().enumerate() {
            let Some((id, number)) = self.thirds[at] else { continue };
            let is_whole = |it: &&mut Connection| it.number == Some(number) && !it.is_broken && it.peer == 1;
            assert!(self.desk.connections.get(id).filter(is_whole).is_some(), "the third engine's is over");
            let state = [SlotState::Syn, SlotState::Open][at];
            assert_eq!(third_words(at, map), (1, state, 0, 0), "words of the third engine's");
            let is_left = marks(at, map).all(|word| word.load(Ordering::Relaxed) == MARK);
            assert!(is_left, "a ring of the third engine's was written");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: nobody has references to what these map.
        self.maps.into_iter().for_each(|map| unsafe { map.unmap() });
    }
}

/// See the module. An input is a list of what happens.
pub fn engine(input: &[u8]) {
    static KEPT: Mutex<Option<Kept>> = Mutex::new(None);
    let Ok(mut kept) = KEPT.lock() else { return };
    if kept.is_none() {
        let page = sd_shm::public::create(1).ok().map(|(page, _)| page);
        *kept = Control::deaf().zip(page).map(|(control, page)| Kept { control, page });
    }
    let Some(kept) = &mut *kept else { return };
    let Some(mut world) = World::new(kept) else { return };
    let mut bytes = Bytes(input);
    for _ in 0..4 {
        world.exchange(&mut bytes, &Way::default(), 0);
    }
    while !bytes.0.is_empty() {
        match bytes.u8() % 16 {
            0..=5 => world.other_acts(&mut bytes),
            6..=9 => world.process_acts(&mut bytes),
            10 => world.monitor_acts(&mut bytes, &mut kept.control),
            11 => {
                let way = Way { changes: bytes.below(6), ..Way::default() };
                world.exchange(&mut bytes, &way, 0);
            }
            12 => world.exchange(&mut bytes, &Way::default(), 0),
            13 => {
                let how = bytes.u8();
                let way = Way { holds: usize::from(how >> 1), is_long: how & 1 != 0, changes: 0 };
                world.exchange(&mut bytes, &way, 0);
            }
            _ => world.turn(&mut kept.control),
        }
        world.check();
    }
    world.exchange(&mut bytes, &Way::default(), 0);
    world.turn(&mut kept.control);
    world.check();
}

/// What the other engine may say of rings: mostly nothing.
fn granting(bytes: &mut Bytes<'_>) -> Granting {
    if bytes.u8() < 128 {
        return Granting::default();
    }
    let (count, done) = (bytes.u8().into(), bytes.u8().into());
    let window = Window { addr: bytes.number(), len: bytes.number(), key: bytes.number() as u32 };
    Granting { grant: Some(Grant { end: bytes.number() as u32, window }), count, done }
}
