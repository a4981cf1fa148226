//! Large messages that are placed: what of a stream may be, and what another engine may say of it.

use super::*;

/// Of a large message's payload a position says where it lies; of what is before, how much that is.
#[test]
fn payload_that_may_be_placed() {
    let mut world = World::new(0);
    let mut put = |want: u32| {
        let at = world.tx.reserve(&GEOMETRY, &world.here, want, Effort::Grow).unwrap();
        assert!(at.len >= want, "{at:?} of {want}");
        world.tx.commit(&world.here, want, 0);
        (at.region, at.off)
    };
    let places = [100, 16_384, 24, 16_384].map(&mut put);
    while world.outgoing.look(&world.here).unwrap() {}
    let outgoing = &world.outgoing;
    assert!(places[1].0 == 1 && places[3].0 == 1, "{places:?}");
    // A message of 100 bytes, a jump, a header.
    let first = 8 + 104 + 8 + 8;
    assert_eq!(outgoing.place_of(0, 1_000), Err(first as usize));
    assert_eq!(outgoing.place_of(0, 50), Err(50));
    assert_eq!(outgoing.place_of(first, 1_003), Ok((places[1].1, 1_000)));
    assert_eq!(outgoing.place_of(first + 3, 1_000), Err(5), "to the next whole word");
    assert_eq!(outgoing.place_of(first + 16_376, 1_000), Ok((places[1].1 + 16_376, 8)));
    assert_eq!(outgoing.place_of(first + 16_384, 1_000), Err(8 + 24 + 8));
    assert_eq!(outgoing.place_of(first + 16_424, 1_000), Ok((places[3].1, 1_000)));
    assert_eq!(outgoing.place_of(outgoing.at, 1_000), Err(1_000));
}

/// Whatever another engine says that it has placed: only payload of a message in the large region is.
#[test]
fn what_was_not_placed() {
    let there = Rings::of(&channel(5), 0, Side::A);
    let mut incoming = Incoming::new();
    assert!(incoming.placed(&there, 0, 8, false).is_err(), "no message has begun");
    let header = (1_000_u64 | 1 << 32).to_ne_bytes();
    incoming.put(&there, 0, &header, false).unwrap();
    assert!(incoming.placed(&there, 8, 1_000, false).is_err(), "it is in the small region");
    let mut incoming = Incoming::new();
    let jump = (u64::from(GEOMETRY.small) | 3 << 32).to_ne_bytes();
    incoming.put(&there, 0, &[jump, header].concat(), false).unwrap();
    assert!(incoming.placed(&there, 16, 1_008, false).is_err(), "more than there is of it");
    assert!(incoming.placed(&there, 16, 12, false).is_err(), "not in whole words");
    assert_eq!(incoming.placed(&there, 8, 8, false), Ok(()), "known");
    assert_eq!(incoming.placed(&there, 16, 1_000, false), Ok(()));
    assert_eq!((incoming.at, incoming.messages, incoming.payload), (1_016, 1, 1_000));
}

/// Of what has come early nothing is forgotten for what says less.
#[test]
fn what_is_placed_early_hides_nothing() {
    let (there, jump) = (Rings::of(&channel(6), 0, Side::A), u64::from(GEOMETRY.small) | 3 << 32);
    let mut incoming = Incoming::new();
    incoming.put(&there, 16, &[1; 1_000], false).unwrap();
    incoming.placed(&there, 16, 8, false).unwrap();
    incoming.put(&there, 0, &[jump, 1_000 | 1 << 32].map(u64::to_ne_bytes).concat(), false).unwrap();
    assert_eq!((incoming.at, incoming.payload, incoming.early_bytes), (1_016, 1_000, 0));
}

/// What is said to be placed early is counted with all that comes early, and no longer when it is passed.
#[test]
fn what_is_placed_early_is_counted() {
    let mut desk = Desk::default();
    desk.seats.add(9, seat(9));
    let mut connection = Connection::new(0, true, u64::MAX);
    (connection.promise, connection.at) = (Some((0, 0)), Some(Slot { slot: 0, generation: 0 }));
    let id = desk.connections.add(connection);
    View::of(&mut desk, 0).placed(id, 16, 1_000);
    let connection = desk.connections.get(id).unwrap();
    assert!(std::mem::take(&mut connection.is_broken), "nothing was ever granted");
    connection.lent_rings.was_granted = true;
    View::of(&mut desk, 0).placed(id, 16, 1_000);
    let early = desk.connections.get(id).unwrap().early_bytes();
    assert!(early > 0 && !desk.is_too_early(0, [early, early]));
    let jump = u64::from(GEOMETRY.small) | 3 << 32;
    let words = [jump, 1_000 | 1 << 32].map(u64::to_ne_bytes).concat();
    View::of(&mut desk, 0).write(id, 0, &words);
    let connection = desk.connections.get(id).unwrap();
    assert_eq!((connection.early_bytes(), connection.is_broken, connection.load().bytes), (0, false, 1_016));
    // Nothing is left of it.
    assert!(!desk.is_too_early(0, [0, desk::EARLY_MAX]));
    assert!(desk.is_too_early(0, [0, 1]));
}

/// What a connection before has left in a ring is not shown to whoever says that he has placed something there.
#[test]
fn what_was_left_in_a_ring_is_cleared() {
    for is_stranger in [false, true] {
        let mut seat = seat(12);
        seat.end.is_stranger = is_stranger;
        let ring = seat.rings(5, true);
        for off in (0..GEOMETRY.large).step_by(8) {
            sd_ring::RingMem::store(&ring, 1, off, 7);
        }
        seat.clear_large(5, 10_008);
        let is_left = |off: &u32| sd_ring::RingMem::load(&ring, 1, *off) == 7;
        let left: Vec<u32> = (0..GEOMETRY.large).step_by(8).filter(is_left).collect();
        assert_eq!((left.len(), left.last()), (1_251, Some(&10_000)));
    }
}
