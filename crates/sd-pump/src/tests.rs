//! Two channels in this process, with hand-made ends.

mod memory;

use crate::control::Control;
use crate::end::End;
use crate::twin::Twin;
use sd_ring::copy::copy_shared;
use sd_ring::doorbell::{self, RX_EVENT, RX_NEWS, TX_EVENT};
use sd_ring::{Effort, Next, RxCursor, TxCursor};
use sd_shm::channel::{
    FLAG_FIN, FLAG_RESET, FLAG_TAKES_BACK, FLAG_URGENT, GEOMETRY, Mapping, SLOTS, Side, SlotSide, SlotState,
};
use sd_shm::public::Public;
use sd_shm::rings::Rings;
use std::sync::atomic::Ordering;

const SLOT: usize = 7;

/// A twin, and what the processes at its ends have.
struct World {
    twin: Twin,
    control: Control,
    near: Mapping,
    far: Mapping,
    server: &'static Public,
}

/// A process at an end of a connection.
struct Process<'a> {
    map: &'a Mapping,
    slot: usize,
    side: Side,
    tx: TxCursor,
    rx: RxCursor,
}

impl World {
    fn new() -> World {
        let mut pages = Vec::new();
        let mut end = |id, ours| {
            let (segment, map) = Mapping::create(id, 1, 2).unwrap();
            let (page, public) = sd_shm::public::create(1).unwrap();
            let eventfd = sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).unwrap();
            pages.push(public);
            (End::new(id, ours, false, [segment, page, eventfd]).unwrap(), map)
        };
        let (a, near) = end(10, Side::B);
        let (b, far) = end(11, Side::A);
        let server = pages[1];
        server.listeners[3].generation.store(5, Ordering::Release);
        World { twin: Twin::new(a, b), control: Control::deaf().unwrap(), near, far, server }
    }

    fn look(&mut self) {
        self.look_at(SLOT);
    }

    fn look_at(&mut self, slot: usize) {
        while self.twin.visit(slot, &mut self.control) {}
    }

    /// A asks for a connection.
    fn ask(&mut self, generation: u32) {
        self.ask_at(SLOT, generation);
    }

    fn ask_at(&mut self, slot: usize, generation: u32) {
        let words = &self.near.slot(slot).side[0];
        words.listener.store(3, Ordering::Relaxed);
        let names = self.near.names(slot);
        names.listener_gen.store(5, Ordering::Relaxed);
        names.ports.store(40_000 << 16 | 80, Ordering::Relaxed);
        names.remote[1].store(77, Ordering::Relaxed);
        self.near.header().used.fetch_max(slot as u32 + 1, Ordering::Release);
        words.set_state(generation, SlotState::Syn);
        self.look_at(slot);
    }

    fn accept(&mut self, generation: u32) {
        self.accept_at(SLOT, generation);
    }

    fn accept_at(&mut self, slot: usize, generation: u32) {
        self.far.slot(slot).side[1].set_state(generation, SlotState::Open);
        self.look_at(slot);
    }

    fn states(&self, side: Side) -> [(u32, SlotState); 2] {
        [&self.near, &self.far].map(|map| map.slot(SLOT).side[side as usize].state())
    }
}

impl Process<'_> {
    fn of(map: &Mapping, side: Side) -> Process<'_> {
        Process::at(map, SLOT, side)
    }

    fn at(map: &Mapping, slot: usize, side: Side) -> Process<'_> {
        Process { map, slot, side, tx: TxCursor::new(&GEOMETRY), rx: RxCursor::new() }
    }

    fn words(&self) -> &'static SlotSide {
        &self.map.slot(self.slot).side[self.side as usize]
    }

    fn rings(&self) -> [Rings; 2] {
        [self.side, self.side.other()].map(|from| Rings::of(self.map, self.slot, from))
    }

    /// As much as fits.
    fn send(&mut self, bytes: &[u8]) -> usize {
        let [mine, _] = self.rings();
        self.tx.credit(self.words().other().consumed.load(Ordering::Acquire)).unwrap();
        let Some(grant) = self.tx.reserve(&GEOMETRY, &mine, bytes.len() as u32, Effort::Grow) else {
            return 0;
        };
        // SAFETY: the grant is room in the ring.
        unsafe { copy_shared(mine.at(grant.region, grant.off), bytes.as_ptr(), grant.len as usize) };
        self.tx.commit(&mine, grant.len, 0);
        grant.len as usize
    }

    fn receive(&mut self) -> Vec<u8> {
        let [_, theirs] = self.rings();
        let mut got = Vec::new();
        while let Next::Data { region, off, len } = self.rx.next(&GEOMETRY, &theirs).unwrap() {
            let mut bytes = vec![0; len as usize];
            // SAFETY: the ring checked the place.
            unsafe { copy_shared(bytes.as_mut_ptr(), theirs.at(region, off), len as usize) };
            got.extend(bytes);
            self.rx.advance(len);
        }
        self.words().consumed.store(self.rx.position(), Ordering::Release);
        got
    }
}

#[test]
fn a_connection_is_carried_from_its_begin_to_its_end() {
    let mut world = World::new();
    for generation in [1, 2] {
        world.ask(generation);
        assert_eq!(world.states(Side::A), [(generation, SlotState::Syn); 2]);
        let names = world.far.names(SLOT);
        assert_eq!(names.ports.load(Ordering::Relaxed), 40_000 << 16 | 80);
        assert_eq!(names.remote[1].load(Ordering::Relaxed), 77);
        assert_eq!(world.far.slot(SLOT).side[0].listener.load(Ordering::Relaxed), 3);
        let (near, far) = (world.near, world.far);
        let (mut a, mut b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
        assert_eq!(a.send(b"before accept"), 13);
        world.accept(generation);
        assert_eq!(world.states(Side::B), [(generation, SlotState::Open); 2]);
        assert_eq!(b.receive(), b"before accept");
        assert_eq!(b.send(b"answer"), 6);
        world.look();
        assert_eq!(a.receive(), b"answer");
        let [mine, _] = a.rings();
        a.tx.finish(&mine, 0);
        a.words().flags.fetch_or(FLAG_FIN, Ordering::AcqRel);
        world.look();
        assert_eq!(far.slot(SLOT).side[0].flags.load(Ordering::Relaxed), FLAG_FIN);
        assert_eq!(b.rx.next(&GEOMETRY, &b.rings()[1]), Ok(Next::Fin));
        a.words().set_state(generation, SlotState::Closed);
        world.look();
        assert_eq!(world.states(Side::A), [(generation, SlotState::Closed); 2]);
        assert!(world.twin.is_used());
        b.words().set_state(generation, SlotState::Closed);
        world.look();
        assert_eq!(world.states(Side::B), [(generation, SlotState::Closed); 2]);
        assert!(!world.twin.is_used());
        // As A does before it uses the slot again.
        near.slot(SLOT).side.iter().for_each(|side| side.flags.store(0, Ordering::Relaxed));
        near.slot(SLOT).side.iter().for_each(|side| side.consumed.store(0, Ordering::Relaxed));
        for from in [Side::A, Side::B] {
            let first = near.small_ring(SLOT, from).cast::<u64>();
            // SAFETY: the first word of a ring.
            unsafe { first.write_volatile(0) };
        }
    }
}

/// What is under way is bounded by one ring: the credit is the reader's.
#[test]
fn a_reader_that_does_not_read_stops_the_writer() {
    let mut world = World::new();
    world.ask(1);
    world.accept(1);
    let (near, far) = (world.near, world.far);
    let (mut a, mut b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    let mut number = 0u8;
    for round in 0..3 {
        loop {
            let bytes = vec![number; 40_000];
            number = number.wrapping_add(1);
            let taken = a.send(&bytes);
            sent.extend(&bytes[..taken]);
            world.look();
            if taken == 0 {
                break;
            }
        }
        assert!(sent.len() - got.len() <= GEOMETRY.large as usize, "round {round}");
        got.extend(b.receive());
        assert!(got == sent);
        world.look();
        assert_eq!(near.slot(SLOT).side[1].consumed.load(Ordering::Relaxed), b.rx.position());
    }
    assert!(sent.len() > 3 << 20);
}

#[test]
fn whoever_waits_is_told() {
    let mut world = World::new();
    world.ask(1);
    world.accept(1);
    let (near, far) = (world.near, world.far);
    let (mut a, b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
    doorbell::arm(&b.words().wait, RX_EVENT | TX_EVENT);
    a.send(b"x");
    world.look();
    assert_eq!(doorbell::take_news(&b.words().wait), RX_NEWS);
    let mut told = Vec::new();
    far.events(Side::B).take(|slot| told.push(slot));
    assert_eq!(told, [SLOT]);
    world.twin.arm(SLOT);
    assert_eq!(far.slot(SLOT).side[0].wait.load(Ordering::Relaxed), RX_EVENT | TX_EVENT);
}

#[test]
fn an_urgent_byte_is_announced_before_it_is_in_the_ring() {
    let mut world = World::new();
    world.ask(1);
    world.accept(1);
    let (near, far) = (world.near, world.far);
    let a = Process::of(&near, Side::A);
    a.words().make_cold().urgent.store(0x1ff, Ordering::Release);
    a.words().flags.fetch_or(FLAG_URGENT, Ordering::AcqRel);
    world.look();
    let words = &far.slot(SLOT).side[0];
    assert_eq!(words.cold().map(|cold| cold.urgent.load(Ordering::Relaxed)), Some(0x1ff));
    assert!(words.flags.load(Ordering::Relaxed) & FLAG_URGENT != 0);
}

#[test]
fn a_listener_that_is_gone_refuses() {
    let mut world = World::new();
    world.server.listeners[3].generation.store(6, Ordering::Release);
    world.ask(1);
    assert_eq!(world.states(Side::B), [(1, SlotState::Refused), (1, SlotState::Closed)]);
    let flags = &world.near.slot(SLOT).side[1].flags;
    assert_eq!(flags.load(Ordering::Relaxed), 0, "the state says it alone");
    assert!(!world.twin.is_used());
}

#[test]
fn a_request_is_taken_back() {
    let mut world = World::new();
    world.ask(1);
    let closed = 1 << 8 | SlotState::Closed as u32;
    world.near.slot(SLOT).side[1].state.store(closed, Ordering::Release);
    world.near.slot(SLOT).side[0].set_state(1, SlotState::Closed);
    world.look();
    assert_eq!(world.far.waiting(SLOT), None);
    assert_eq!(world.states(Side::B), [(1, SlotState::Closed); 2]);
    assert!(!world.twin.is_used());
    // Somebody has accepted the next one in the same moment: it is reset, and the slot is used when he is done.
    world.ask(2);
    world.far.slot(SLOT).side[1].set_state(2, SlotState::Open);
    let closed = 2 << 8 | SlotState::Closed as u32;
    world.near.slot(SLOT).side[1].state.store(closed, Ordering::Release);
    world.near.slot(SLOT).side[0].set_state(2, SlotState::Closed);
    world.look();
    assert_eq!(world.states(Side::A)[1], (2, SlotState::Closed));
    assert!(world.far.slot(SLOT).side[0].flags.load(Ordering::Relaxed) & FLAG_RESET != 0);
    world.ask(3);
    assert_eq!(world.states(Side::A)[1], (2, SlotState::Closed), "it waits");
    world.far.slot(SLOT).side[1].set_state(2, SlotState::Closed);
    world.look();
    assert_eq!(world.states(Side::A), [(3, SlotState::Syn); 2]);
}

#[test]
fn a_request_is_given_back_where_nobody_was_faster() {
    let mut world = World::new();
    let asks = |world: &World| {
        world.near.slot(SLOT).side[0].flags.fetch_or(FLAG_TAKES_BACK, Ordering::AcqRel);
    };
    let has =
        |world: &World| world.near.slot(SLOT).side[1].flags.load(Ordering::Relaxed) & FLAG_TAKES_BACK != 0;
    world.ask(1);
    asks(&world);
    world.look();
    assert_eq!(world.states(Side::B), [(1, SlotState::Closed); 2]);
    assert!(has(&world) && world.far.waiting(SLOT).is_none() && !world.twin.is_used());
    world.near.slot(SLOT).side[0].set_state(1, SlotState::Closed);
    world.near.slot(SLOT).side.iter().for_each(SlotSide::clear);
    world.ask(2);
    world.far.slot(SLOT).side[1].set_state(2, SlotState::Open);
    asks(&world);
    world.look();
    assert_eq!(world.states(Side::B), [(2, SlotState::Open); 2]);
    assert!(!has(&world));
    let flags = world.far.slot(SLOT).side[0].flags.load(Ordering::Relaxed);
    assert_eq!(flags, 0, "it is accepted, and nothing else is said");
}

#[test]
fn nonsense_in_a_ring_resets_both_ends() {
    let mut world = World::new();
    world.ask(1);
    world.accept(1);
    let first = world.near.small_ring(SLOT, Side::A).cast::<u64>();
    // SAFETY: the first word of a ring.
    unsafe { first.write_volatile(u64::MAX) };
    world.look();
    for words in [&world.near.slot(SLOT).side[1], &world.far.slot(SLOT).side[0]] {
        assert!(words.flags.load(Ordering::Relaxed) & FLAG_RESET != 0);
    }
}

/// Ends that write anything anywhere: the pump goes on, and each look comes to an end.
#[test]
fn hostile_ends_are_survived() {
    let mut world = World::new();
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..20_000 {
        let map = if next() & 1 == 0 { world.near } else { world.far };
        let slot = map.slot(SLOT);
        let side = &slot.side[(next() & 1) as usize];
        match next() % 9 {
            0 => side.state.store((((next() % 4) << 8) | (next() % 6)) as u32, Ordering::Release),
            1 => side.flags.store(next() as u32 & 0xff, Ordering::Release),
            2 => side.consumed.store(next() % 5000, Ordering::Release),
            3 => side.wait.store(next() as u32, Ordering::Release),
            4 => side.listener.store(next() as u32, Ordering::Release),
            5 => side.make_cold().urgent.store(next(), Ordering::Release),
            6 => side.make_cold().wake_target.store(next() % 3, Ordering::Release),
            7 => map.header().dead[(next() & 1) as usize].store(next() as u32 & 1, Ordering::Release),
            _ => {
                let from = if next() & 1 == 0 { Side::A } else { Side::B };
                let region =
                    if next() & 3 == 0 { map.large_ring(SLOT, from) } else { map.small_ring(SLOT, from) };
                let kind = next() % 7;
                let word = (kind << 32) | (next() % 1100);
                // SAFETY: within a small ring, or the first KiB of a large one.
                unsafe { region.cast::<u64>().add((next() % 128) as usize).write_volatile(word) };
            }
        }
        for _ in 0..8 {
            if !world.twin.visit((SLOT + (round & SLOTS)) % SLOTS, &mut world.control) {
                break;
            }
        }
        world.twin.arm(SLOT);
        if round % 16 == 0 && world.twin.begins_to_idle(SLOT) {
            world.twin.has_waited(SLOT);
        }
    }
}
