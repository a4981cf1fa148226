//! No call on the way of packets allocates. A test of its own: it counts what this whole program allocates.

mod common;

use common::{Make, wait};
use sd_carrier::{DatagramConfig, TrunkConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: it does what the system's allocator does; the count is in memory that is there without allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are those that it wants.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: likewise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn packets_need_no_allocation() {
    for make in [
        Make::Trunk(TrunkConfig::default()),
        Make::Datagram("127.0.0.1:0", DatagramConfig::default()),
        Make::Refused,
    ] {
        let [mut here, mut there] = make.pair();
        for round in 0..50 {
            let (mut sent, mut came) = (0, 0);
            let before = COUNT.get();
            here.send(&mut |room| {
                sent += 1;
                room[0] = sent as u8;
                (sent <= 30).then_some(100 + sent)
            });
            let mut spent = COUNT.get() - before;
            while came < 30 {
                wait(&[&*here, &*there], -1);
                let before = COUNT.get();
                here.flush();
                there.receive(&mut |_, _| came += 1);
                spent += COUNT.get() - before;
            }
            assert_eq!(spent, 0, "in round {round}");
        }
    }
}
