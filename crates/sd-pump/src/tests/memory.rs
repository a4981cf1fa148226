//! What the pump keeps for connections that idle.

use super::*;
use crate::run::Idle;
use sd_shm::PAGE;
use sd_shm::channel::SMALL_PER_PAGE;

/// Four that share a page, `SLOT` among them.
const GROUP: std::ops::Range<usize> = SLOT / SMALL_PER_PAGE * SMALL_PER_PAGE..SLOT + 1;

/// Pages of a mapping that there are.
fn pages(start: *mut u8, len: usize) -> usize {
    let mut there = vec![0u8; len / PAGE];
    // SAFETY: room for a byte a page; the answer is about a mapping of the caller's.
    let done = unsafe { libc::mincore(start.cast(), len, there.as_mut_ptr()) };
    assert_eq!(done, 0);
    there.iter().filter(|page| **page & 1 != 0).count()
}

fn large(map: &Mapping, from: Side) -> usize {
    pages(map.large_ring(SLOT, from), GEOMETRY.large as usize)
}

fn small(map: &Mapping, from: Side) -> usize {
    let (page, len) = map.small_page(SLOT, from);
    pages(page, len)
}

/// What the pump has written.
fn copies(world: &World, count: fn(&Mapping, Side) -> usize) -> [usize; 2] {
    [count(&world.far, Side::A), count(&world.near, Side::B)]
}

/// The time passes in which the slot idles.
fn idle(world: &mut World, slot: usize) {
    assert!(world.twin.begins_to_idle(slot), "it was used");
    world.twin.has_waited(slot);
}

fn connect(world: &mut World, slots: impl IntoIterator<Item = usize>) {
    for slot in slots {
        world.ask_at(slot, 1);
        world.accept_at(slot, 1);
    }
}

fn carries(world: &mut World, from: &mut Process, to: &mut Process, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < len {
        sent += from.send(&bytes[sent..]);
        world.look_at(from.slot);
        got.extend(to.receive());
        world.look_at(from.slot);
    }
    assert!(got == bytes);
}

#[test]
fn a_large_copy_that_idles_is_given_back() {
    let mut world = World::new();
    connect(&mut world, [SLOT]);
    let (near, far) = (world.near, world.far);
    let (mut a, mut b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
    for len in [40_000, 7, 200_000] {
        carries(&mut world, &mut a, &mut b, len);
        carries(&mut world, &mut b, &mut a, len);
        assert!(copies(&world, large).iter().all(|pages| *pages > 0));
        idle(&mut world, SLOT);
        assert_eq!(copies(&world, large), [0, 0]);
    }
    carries(&mut world, &mut a, &mut b, 3000);
}

#[test]
fn what_is_not_read_stays() {
    let mut world = World::new();
    connect(&mut world, [SLOT]);
    let (near, far) = (world.near, world.far);
    let (mut a, mut b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
    let sent = [a.send(&[5; 700]), a.send(&[5; 4000])];
    world.look();
    idle(&mut world, SLOT);
    assert_eq!(b.receive(), vec![5; sent.iter().sum()]);
    world.look();
    let [mine, _] = a.rings();
    a.tx.finish(&mine, 0);
    world.look();
    idle(&mut world, SLOT);
    assert_eq!(b.rx.next(&GEOMETRY, &b.rings()[1]), Ok(Next::Fin));
}

#[test]
fn of_a_large_copy_that_was_left_the_jump_stays_until_it_is_read() {
    let mut world = World::new();
    connect(&mut world, [SLOT]);
    let (near, far) = (world.near, world.far);
    let (mut a, mut b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
    carries(&mut world, &mut a, &mut b, 60_000);
    let [mine, _] = a.rings();
    a.tx.credit(a.words().other().consumed.load(Ordering::Acquire)).unwrap();
    let at = a.tx.shrink(&GEOMETRY, &mine);
    assert!(at.is_some() && !a.tx.is_large());
    world.look();
    idle(&mut world, SLOT);
    assert_eq!(copies(&world, large), [1, 0]);
    assert_eq!(b.receive(), []);
    world.look();
    idle(&mut world, SLOT);
    assert_eq!(copies(&world, large), [0, 0]);
    carries(&mut world, &mut a, &mut b, 60_000);
}

#[test]
fn small_copies_are_given_back_when_all_in_a_page_idle() {
    let mut world = World::new();
    connect(&mut world, GROUP);
    let (near, far) = (world.near, world.far);
    let ends = |slot| (Process::at(&near, slot, Side::A), Process::at(&far, slot, Side::B));
    let mut all: Vec<_> = GROUP.map(ends).collect();
    for round in 0..3 {
        for (a, b) in &mut all {
            carries(&mut world, a, b, 100 + round);
            carries(&mut world, b, a, 300);
        }
        // One has something to read.
        let (a, b) = &mut all[1];
        a.send(b"stays");
        world.look_at(a.slot);
        for slot in GROUP {
            assert_eq!(copies(&world, small), [1, 1], "some were used just now");
            idle(&mut world, slot);
        }
        assert_eq!(copies(&world, small), [1, 0]);
        assert_eq!(b.receive(), b"stays");
        world.look_at(a.slot);
        idle(&mut world, a.slot);
        assert_eq!(copies(&world, small), [0, 0]);
    }
}

#[test]
fn a_slot_that_is_used_meanwhile_does_not_idle() {
    let mut world = World::new();
    connect(&mut world, [SLOT]);
    let (near, far) = (world.near, world.far);
    let (mut a, mut b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
    let mut queue = Idle::default();
    assert_eq!(queue.due_ms(), None);
    carries(&mut world, &mut a, &mut b, 5000);
    queue.add(&mut world.twin, (10, SLOT));
    queue.add(&mut world.twin, (10, SLOT));
    assert!(queue.due_ms().is_some());
    carries(&mut world, &mut a, &mut b, 5000);
    world.twin.has_waited(SLOT);
    assert!(large(&world.far, Side::A) > 0);
    let mut queue = Idle::default();
    queue.add(&mut world.twin, (10, SLOT));
    assert!(queue.due_ms().is_some(), "it waits again");
    world.twin.has_waited(SLOT);
    assert_eq!(large(&world.far, Side::A), 0);
    let mut queue = Idle::default();
    queue.add(&mut world.twin, (10, SLOT));
    assert_eq!(queue.due_ms(), None, "nothing is left to wake up for");
}

#[test]
fn a_look_makes_no_memory() {
    let mut world = World::new();
    connect(&mut world, GROUP);
    let (near, far) = (world.near, world.far);
    for map in [near, far] {
        assert_eq!([small(&map, Side::A), small(&map, Side::B)], [0, 0], "nothing was sent");
    }
    let (mut a, mut b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
    carries(&mut world, &mut a, &mut b, 40);
    let (page, len) = near.small_page(SLOT, Side::A);
    // The sender may have done so when nothing was sent for that long.
    std::thread::sleep(std::time::Duration::from_millis(120));
    // SAFETY: a page of a mapping of this test.
    assert!(unsafe { sd_sys::mem::punch(page, len) });
    world.look();
    assert_eq!(small(&near, Side::A), 0);
    carries(&mut world, &mut a, &mut b, 40);
}

/// Its process could hold the pump up meanwhile.
#[test]
fn what_is_shared_with_a_stranger_is_kept() {
    let mut world = World::new();
    connect(&mut world, [SLOT]);
    world.twin.far.is_stranger = true;
    let (near, far) = (world.near, world.far);
    let (mut a, mut b) = (Process::of(&near, Side::A), Process::of(&far, Side::B));
    carries(&mut world, &mut a, &mut b, 5000);
    carries(&mut world, &mut b, &mut a, 5000);
    idle(&mut world, SLOT);
    let [of_stranger, of_other] = copies(&world, large);
    assert!(of_stranger > 0 && of_other == 0);
}
