//! Nothing is allocated for a packet. One test alone: the count is of the whole process.

mod common;

use common::seals;
use sd_keys::{Cipher, Handshake, Sealed};
use sd_link::seal::{Seal, Session};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is the system allocator's; only a count is kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn moves<T: Send>(_: &T) {}

#[test]
fn packets_allocate_nothing() {
    let [mut a, mut b]: [Sealed; 2] = seals(Cipher::Aes128Gcm);
    moves(&a);
    let _: fn(&Handshake) = moves;
    let (one, two) = ([1, 2, 3, 4], [3, 4, 1, 2]);
    a.begin(&Session { send: one, receive: two });
    b.begin(&Session { send: two, receive: one });
    let mut packet = [3; 1400];
    let mut before = 0;
    for number in 0..1000 {
        a.seal(7, number, &mut packet, 24);
        assert!(b.open(7, number, &mut packet, 24));
        assert!(!b.open(7, number, &mut packet, 24));
        if number == 0 {
            before = COUNT.load(Relaxed);
        }
    }
    assert_eq!(COUNT.load(Relaxed), before);
}
