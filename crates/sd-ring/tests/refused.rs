//! A sender that may not use the large region: what it sends goes through the small one, and a socket that is called
//! writable takes something.
#![cfg(not(loom))]

use sd_ring::{Effort, Geometry, Next, RingMem, RxCursor, TxCursor};
use std::cell::{Cell, RefCell};
use std::ops::Range;

const GEOMETRY: Geometry = Geometry { small: 1024, large_first: 4096, large: 16384 };

struct Memory {
    words: [RefCell<Vec<u64>>; 2],
    allowed: Cell<u32>,
}

impl RingMem for Memory {
    fn load(&self, region: u32, off: u32) -> u64 {
        self.words[region as usize].borrow()[off as usize / 8]
    }
    fn publish(&self, region: u32, off: u32, word: u64) {
        self.words[region as usize].borrow_mut()[off as usize / 8] = word;
    }
    fn store(&self, region: u32, off: u32, word: u64) {
        self.publish(region, off, word);
    }
    fn may_take(&self, bytes: Range<u32>) -> bool {
        let left = self.allowed.get().checked_sub(bytes.end - bytes.start);
        left.map(|left| self.allowed.set(left)).is_some()
    }
    fn give_back(&self, bytes: u32) {
        self.allowed.set(self.allowed.get() + bytes);
    }
}

struct Pair {
    mem: Memory,
    tx: TxCursor,
    rx: RxCursor,
    sent: u64,
    received: u64,
}

impl Pair {
    fn new(allowed: u32) -> Pair {
        let region = |len: u32| RefCell::new(vec![0; len as usize / 8]);
        let words = [region(GEOMETRY.small), region(GEOMETRY.large)];
        let mem = Memory { words, allowed: Cell::new(allowed) };
        Pair { mem, tx: TxCursor::new(&GEOMETRY), rx: RxCursor::new(), sent: 0, received: 0 }
    }

    fn send(&mut self, want: u32) -> u32 {
        let Some(grant) = self.tx.reserve(&GEOMETRY, &self.mem, want, Effort::Grow) else { return 0 };
        assert!((1..=want).contains(&grant.len));
        self.tx.commit(&self.mem, grant.len, 1);
        self.sent += u64::from(grant.len);
        grant.len
    }

    /// Takes up to `most` bytes, and tells the sender.
    fn receive(&mut self, mut most: u32) {
        while most > 0
            && let Ok(Next::Data { len, .. }) = self.rx.next(&GEOMETRY, &self.mem)
        {
            let len = len.min(most);
            self.rx.advance(len);
            self.received += u64::from(len);
            most -= len;
        }
        if let Some(consumed) = self.rx.credit_all() {
            self.tx.credit(consumed).unwrap();
        }
    }
}

/// A generator of numbers that need not be good.
fn numbers(seed: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(seed), |n| Some(n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)))
        .map(|n| n >> 8)
}

#[test]
fn what_is_called_writable_takes_something() {
    for (seed, allowed) in [(1, 0), (2, 0), (3, 4096), (4, 8192)] {
        let mut pair = Pair::new(allowed);
        let mut numbers = numbers(seed);
        for _ in 0..20_000 {
            let want = 1 + numbers.next().unwrap() % 3000;
            let room = pair.mem.allowed.get();
            if pair.tx.is_roomy(&GEOMETRY, true, |step| step.end - step.start <= room) {
                assert!(pair.send(want) > 0, "{want} bytes, {room} allowed");
            }
            assert!(allowed != 0 || !pair.tx.is_large());
            pair.receive(numbers.next().unwrap() % 2000);
        }
        pair.receive(u32::MAX);
        assert!(pair.send(5000) > 0);
        pair.receive(u32::MAX);
        assert_eq!(pair.sent, pair.received);
    }
}

#[test]
fn what_was_taken_is_given_back() {
    let mut pair = Pair::new(16_384);
    let mut shrunk = 0;
    for want in numbers(5).take(5000) {
        while pair.send(1 + want % 3000) > 0 && want % 3 != 0 {}
        pair.receive(u32::MAX);
        if pair.tx.shrink(&GEOMETRY, &pair.mem).is_some() {
            // Whether it leaves the large region or not.
            let kept = if pair.tx.is_large() { GEOMETRY.large_first } else { 0 };
            shrunk += 1;
            assert!(pair.mem.allowed.get() >= 16_384 - kept);
        }
    }
    assert!(shrunk > 10, "{shrunk}");
}
