//! A channel and a slab whose words anybody may have written.

use super::Bytes;
use sd_shm::channel::{Mapping, SLOTS, Side, ThreadWaker};
use sd_shm::slab::{End, Slab};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

struct Stage {
    map: Mapping,
    slab: Slab,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let fault = "segments can be made";
        let (_, made) = Mapping::create(7, 1, 2).expect(fault);
        let (_, slab) = Slab::create(1).expect(fault);
        Stage { map: made, slab }
    })
}

/// Words at places near the front of what is looked at.
fn scribble(bytes: &mut Bytes, place: *mut u8, len: usize) {
    let at = bytes.number() as usize % (len / 8);
    // SAFETY: within the mapped part that the caller names, on purpose over whatever is there.
    unsafe { place.cast::<u64>().add(at).write_volatile(bytes.u64()) };
}

pub(super) fn run(input: &[u8]) {
    let Stage { map, slab } = stage();
    let mut bytes = Bytes(input);
    while !bytes.is_empty() {
        let index = bytes.number() as usize;
        match bytes.u8() % 7 {
            0 => scribble(&mut bytes, core::ptr::from_ref(map.slot(index)).cast_mut().cast(), 64),
            1 => scribble(&mut bytes, core::ptr::from_ref(map.names(index)).cast_mut().cast(), 40),
            2 => scribble(&mut bytes, core::ptr::from_ref(map.events(Side::B)).cast_mut().cast(), 256),
            3 => scribble(&mut bytes, core::ptr::from_ref(slab.header()).cast_mut().cast(), 512),
            4 => scribble(&mut bytes, core::ptr::from_ref(slab.time_waits()).cast_mut().cast(), 4096),
            5 => look_at_channel(map, index),
            _ => look_at_slab(slab, index, &mut bytes),
        }
    }
}

fn look_at_channel(map: &Mapping, index: usize) {
    let slot = map.slot(index);
    let _ = (map.waiting(index), slot.side[0].state(), slot.side[1].state());
    for side in &slot.side {
        if let Some(cold) = side.cold() {
            let _ = ThreadWaker::of(cold.wake_target.load(Ordering::Relaxed)).map(ThreadWaker::word);
        }
    }
    map.events(Side::B).take(|slot| assert!(slot < SLOTS));
}

fn look_at_slab(slab: &Slab, index: usize, bytes: &mut Bytes) {
    let index = index % 64;
    let Some(endpoint) = slab.endpoint(index) else { return };
    scribble(bytes, core::ptr::from_ref(endpoint).cast_mut().cast(), 64);
    for place in [
        slab.tx(index).map(|p| core::ptr::from_ref(p).cast::<u8>()),
        slab.rx(index).map(|p| core::ptr::from_ref(p).cast()),
    ] {
        place.into_iter().for_each(|place| scribble(bytes, place.cast_mut(), 64));
    }
    let _ = (
        slab.address(endpoint, End::Local),
        slab.address(endpoint, End::Remote),
        slab.cold_of(endpoint).is_some(),
    );
    let _ = (
        slab.sender(endpoint).map(|(tx, _)| (tx.unread(), tx.is_drained())),
        slab.receiver(endpoint).is_some(),
    );
    let _ = slab
        .time_waits()
        .all()
        .filter(|one| one.is_over(sd_shm::time_wait::Now::new(1 << 28, |c| c)))
        .count();
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    (0..7)
        .map(|kind| [vec![1, kind, 1], vec![255; 8], vec![1, 5, 1, 6, 2, 3, 0, 0, 0, 0, 0, 0, 0]].concat())
        .collect()
}
