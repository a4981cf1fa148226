//! The ring against a plain byte queue: random sends, receives, credits, growth and shrinking.
#![cfg(not(loom))]

use proptest::prelude::*;
use sd_ring::{Corrupt, Effort, Geometry, Next, RingMem, RxCursor, TxCursor};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

const GEOMETRY: Geometry = Geometry { small: 64, large_first: 128, large: 1024 };

/// Two regions in ordinary memory, filled with rubbish but for the first word.
struct Memory {
    regions: [RefCell<Vec<u8>>; 2],
    reads: Cell<usize>,
    large_reads: Cell<usize>,
}

impl Memory {
    fn new() -> Memory {
        let mut small = vec![0xA5; GEOMETRY.small as usize];
        small[..8].fill(0);
        Memory {
            regions: [RefCell::new(small), RefCell::new(vec![0xA5; GEOMETRY.large as usize])],
            reads: Cell::new(0),
            large_reads: Cell::new(0),
        }
    }
    fn put(&self, region: u32, off: u32, bytes: &[u8]) {
        self.regions[region as usize].borrow_mut()[off as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn get(&self, region: u32, off: u32, len: u32) -> Vec<u8> {
        self.regions[region as usize].borrow()[off as usize..][..len as usize].to_vec()
    }
}

impl RingMem for Memory {
    fn load(&self, region: u32, off: u32) -> u64 {
        self.reads.set(self.reads.get() + 1);
        self.large_reads.set(self.large_reads.get() + region as usize);
        u64::from_ne_bytes(self.get(region, off, 8).try_into().unwrap())
    }
    fn publish(&self, region: u32, off: u32, word: u64) {
        self.put(region, off, &word.to_ne_bytes());
    }
    fn store(&self, region: u32, off: u32, word: u64) {
        self.put(region, off, &word.to_ne_bytes());
    }
}

/// Sender, receiver, the credit word between them, and what should be in flight.
struct Pair {
    mem: Memory,
    tx: TxCursor,
    rx: RxCursor,
    credit: u64,
    model: VecDeque<u8>,
    next: u8,
    /// Positions of urgent bytes that were not received.
    urgent: VecDeque<u64>,
    /// The sender dies right after each message that it publishes, and another takes over.
    deadly: bool,
    wary: Wary,
}

/// How the receiver takes laps of the large region.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wary {
    No,
    /// It takes each for its own when it meets it.
    Joins,
    /// It never looks into them itself.
    Apart,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            mem: Memory::new(),
            tx: TxCursor::new(&GEOMETRY),
            rx: RxCursor::new(),
            credit: 0,
            model: VecDeque::new(),
            next: 0,
            urgent: VecDeque::new(),
            deadly: false,
            wary: Wary::No,
        }
    }

    fn send(&mut self, len: u32, effort: Effort) -> u32 {
        let cached = self.tx.reserve(&GEOMETRY, &self.mem, len, Effort::Cached);
        let grant = cached.or_else(|| {
            self.tx.credit(self.credit).unwrap();
            self.tx.reserve(&GEOMETRY, &self.mem, len, effort)
        });
        let Some(grant) = grant else { return 0 };
        assert!(grant.len >= 1 && grant.len <= len);
        let bytes: Vec<u8> = (0..grant.len).map(|i| self.next.wrapping_add(i as u8)).collect();
        self.next = self.next.wrapping_add(grant.len as u8);
        self.mem.put(grant.region, grant.off, &bytes);
        let before = self.tx;
        self.tx.commit(&self.mem, grant.len, u32::from(self.next));
        self.take_over(before);
        self.model.extend(&bytes);
        grant.len
    }

    fn send_urgent(&mut self) {
        self.tx.credit(self.credit).unwrap();
        let Some(grant) = self.tx.reserve(&GEOMETRY, &self.mem, 1, Effort::Grow) else { return };
        self.mem.put(grant.region, grant.off, &[self.next]);
        self.urgent.push_back(self.tx.position());
        let before = self.tx;
        self.tx.commit_urgent(&self.mem, 1);
        self.take_over(before);
        self.model.push_back(self.next);
        self.next = self.next.wrapping_add(1);
    }

    /// The sender that had the cursor `before` has published a message.
    fn take_over(&mut self, before: TxCursor) {
        if self.deadly {
            let after = std::mem::replace(&mut self.tx, before).position();
            self.tx.recover(&GEOMETRY, &self.mem).unwrap();
            assert_eq!(self.tx.position(), after);
            self.tx.recover(&GEOMETRY, &self.mem).unwrap();
            assert_eq!(self.tx.position(), after, "counted twice");
        }
    }

    fn next(&mut self) -> Result<Next, Corrupt> {
        if self.wary != Wary::No {
            self.rx.beware();
        }
        let before = self.mem.large_reads.get();
        let found = self.rx.next(&GEOMETRY, &self.mem);
        match self.wary {
            Wary::Apart => assert_eq!(self.mem.large_reads.get(), before, "looked into the large region"),
            Wary::No => assert!(!self.rx.is_apart()),
            Wary::Joins => {}
        }
        match found {
            Ok(Next::Apart) if self.wary == Wary::Joins => {
                self.rx.join();
                self.next()
            }
            Ok(Next::Apart) => {
                let found = self.rx.next_apart(&GEOMETRY, &self.mem);
                assert_eq!(self.rx.is_apart(), self.rx.is_large());
                found
            }
            found => found,
        }
    }

    fn receive(&mut self, max: u32) -> u32 {
        // Whoever goes on from there finds the same.
        let mut resumed = RxCursor::resumed(self.rx.position(), self.rx.standing());
        let found = resumed.next(&GEOMETRY, &self.mem);
        assert!(self.wary != Wary::No || found == { self.rx }.next(&GEOMETRY, &self.mem));
        let mut closed = self.rx;
        closed.close();
        assert_eq!((closed.next(&GEOMETRY, &self.mem), closed.credit_all()), (Err(sd_ring::Corrupt), None));
        match self.next().unwrap() {
            Next::Data { region, off, len } => {
                let n = len.min(max);
                let want: Vec<u8> = self.model.drain(..n as usize).collect();
                assert_eq!(self.mem.get(region, off, n), want);
                self.rx.advance(n);
                if let Some(credit) = self.rx.credit_due(&GEOMETRY) {
                    self.credit = credit;
                }
                n
            }
            Next::Urgent => {
                assert_eq!(self.urgent.pop_front(), Some(self.rx.position()));
                self.rx.admit_urgent();
                if self.deadly {
                    self.rx.recover();
                    assert_eq!(self.next(), Ok(Next::Urgent));
                    self.rx.admit_urgent();
                }
                self.receive(max)
            }
            Next::Empty => {
                assert!(self.model.is_empty(), "{} bytes lost", self.model.len());
                0
            }
            other => panic!("{other:?}: nobody finished"),
        }
    }

    /// As a blocking send of a program that lets the ring grow, but without a wait: bytes taken.
    fn send_as_one_that_waits(&mut self, len: u32) -> u32 {
        let mut effort = Effort::WillGrow;
        let mut sent = 0;
        while sent < len {
            match (self.send(len - sent, effort), effort) {
                (0, Effort::Grow) => break,
                (0, _) => effort = Effort::Grow,
                (n, _) => sent += n,
            }
        }
        sent
    }

    /// The sender gives the regions' memory back, if it may.
    fn give_back(&mut self) {
        self.tx.credit(self.credit).unwrap();
        if self.tx.memory_is_free() {
            self.mem.regions.iter().for_each(|region| region.borrow_mut().fill(0));
            self.tx.note_small_given_back();
            assert!(!self.tx.small_was_used());
            if !self.tx.is_large() {
                self.tx.note_large_given_back();
                assert!(!self.tx.large_was_used());
            }
        }
        self.park();
    }

    /// Both cursors' memory is given back too, if it may, and a word for each is all that is kept.
    fn park(&mut self) {
        if let Some(kept) = self.tx.parked(&GEOMETRY) {
            // SAFETY: a cursor is plain integers.
            self.tx = unsafe { std::mem::zeroed() };
            assert!(self.tx.is_parked() && self.tx.reserve_here(&GEOMETRY, 1).is_none());
            let before = self.tx.position();
            self.tx.unpark(&GEOMETRY, kept);
            assert!(before == 0 && self.tx.parked(&GEOMETRY) == Some(kept));
        }
        if let Some(kept) = self.rx.parked() {
            self.rx = RxCursor::unparked(kept);
            assert_eq!(self.rx.parked(), Some(kept));
        }
    }

    fn return_all(&mut self) {
        if let Some(credit) = self.rx.credit_all() {
            self.credit = credit;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32, Effort),
    SendUrgent,
    Receive(u32),
    ReturnAll,
    Shrink,
    GiveBack,
    ReceiverDies,
}

fn effort() -> impl Strategy<Value = Effort> {
    prop_oneof![Just(Effort::Fresh), Just(Effort::WillGrow), Just(Effort::Grow)]
}

fn wary() -> impl Strategy<Value = Wary> {
    prop_oneof![Just(Wary::No), Just(Wary::Joins), Just(Wary::Apart)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..200, effort()).prop_map(|(n, effort)| Step::Send(n, effort)),
        1 => Just(Step::SendUrgent),
        4 => (1u32..200).prop_map(Step::Receive),
        1 => Just(Step::ReturnAll),
        1 => Just(Step::Shrink),
        2 => Just(Step::GiveBack),
        1 => Just(Step::ReceiverDies),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 2000 }))]

    #[test]
    fn bytes_arrive_once_and_in_order(steps in proptest::collection::vec(step(), 1..200), deadly in any::<bool>(), wary in wary()) {
        let mut pair = Pair::new();
        (pair.deadly, pair.wary) = (deadly, wary);
        for step in steps {
            match step {
                Step::Send(len, effort) => { pair.send(len, effort); }
                Step::SendUrgent => pair.send_urgent(),
                Step::Receive(max) => { pair.receive(max); }
                Step::ReturnAll => pair.return_all(),
                Step::ReceiverDies => pair.rx.recover(),
                Step::GiveBack => pair.give_back(),
                Step::Shrink => {
                    pair.tx.credit(pair.credit).unwrap();
                    pair.tx.shrink(&GEOMETRY, &pair.mem);
                }
            }
        }
        while !pair.model.is_empty() {
            pair.receive(u32::MAX);
        }
        pair.return_all();
        // Whatever happened, an empty ring takes bytes again.
        prop_assert!(pair.send(8, Effort::Grow) > 0);
        pair.tx.finish(&pair.mem, 1);
        pair.receive(8);
        while !pair.model.is_empty() { pair.receive(8); }
        prop_assert_eq!(pair.next(), Ok(Next::Fin));
    }

    /// Who polled, and then writes half of what the large region has at first, need not wait for the receiver; and poll
    /// does not wait for credit that a receiver who has read everything keeps.
    #[test]
    fn what_poll_promises_a_send_keeps(steps in proptest::collection::vec((1u32..200, 0u32..200, any::<bool>()), 1..200)) {
        let mut pair = Pair::new();
        for (send, receive, returns) in steps {
            pair.tx.credit(pair.credit).unwrap();
            if pair.tx.is_roomy(&GEOMETRY, true, |_| true) {
                let send = send.min(GEOMETRY.large_first / 2 - 16);
                prop_assert_eq!(pair.send_as_one_that_waits(send), send);
            } else {
                prop_assert!(!pair.model.is_empty());
                pair.send_as_one_that_waits(send);
            }
            pair.receive(receive);
            if returns {
                pair.return_all();
            }
        }
    }

    /// A receiver never leaves its regions and never loops, whatever the ring holds.
    #[test]
    fn a_hostile_ring_is_corrupt_or_bounded(words in proptest::collection::vec(any::<u64>(), 136), kinds in proptest::collection::vec(0u64..7, 136)) {
        let mem = Memory::new();
        for (i, (word, kind)) in words.iter().zip(&kinds).enumerate() {
            let word = (kind << 32) | (word % 1100);
            let (region, at) = if i < 8 { (0, i) } else { (1, i - 8) };
            mem.put(region, at as u32 * 8, &word.to_ne_bytes());
        }
        let mut rx = RxCursor::new();
        for _ in 0..200 {
            match rx.next(&GEOMETRY, &mem) {
                Ok(Next::Data { region, off, len }) => {
                    let size = if region == 0 { GEOMETRY.small } else { GEOMETRY.large };
                    prop_assert!(off + len <= size);
                    rx.advance(len);
                }
                Ok(Next::Urgent) => rx.admit_urgent(),
                _ => break,
            }
        }
        prop_assert!(mem.reads.get() < 2000);
    }

    /// A sender believes no credit that it did not give.
    #[test]
    fn a_hostile_credit_is_corrupt(credit in any::<u64>()) {
        let mut pair = Pair::new();
        pair.send(16, Effort::Fresh);
        prop_assert_eq!(pair.tx.credit(credit), if credit <= 24 { Ok(()) } else { Err(Corrupt) });
    }
}

#[test]
fn a_full_ring_holds_most_of_the_large_region() {
    let mut pair = Pair::new();
    let mut total = 0;
    loop {
        match pair.send(40, Effort::Grow) {
            0 => break,
            n => total += n,
        }
    }
    assert!(total > GEOMETRY.large / 2, "{total}");
    assert!(!pair.tx.is_roomy(&GEOMETRY, true, |_| true));
    while !pair.model.is_empty() {
        pair.receive(7);
    }
}

#[test]
fn an_idle_ring_returns_to_the_small_region() {
    let mut pair = Pair::new();
    // It leaves where there is enough in front to come back to.
    loop {
        pair.send(50, Effort::Grow);
        while !pair.model.is_empty() {
            pair.receive(100);
        }
        pair.return_all();
        pair.tx.credit(pair.credit).unwrap();
        let at = pair.tx.shrink(&GEOMETRY, &pair.mem);
        if at.is_some_and(|at| at >= GEOMETRY.large_first / 4 * 3) {
            break;
        }
    }
    for _ in 0..100 {
        assert_eq!(pair.send(8, Effort::Fresh), 8);
        assert_eq!(pair.receive(8), 8);
    }
    assert!(!pair.tx.is_large());
    pair.return_all();
    pair.give_back();
    assert!(!pair.tx.large_was_used());
}

/// The receiver has read everything, but not that the sender left the large region: it may be busy with sending itself.
#[test]
fn a_ring_that_shrank_is_large_again_at_once() {
    let mut pair = Pair::new();
    for _ in 0..8 {
        pair.send(100, Effort::Grow);
        while !pair.model.is_empty() {
            pair.receive(100);
        }
        pair.return_all();
        pair.tx.credit(pair.credit).unwrap();
        let at = pair.tx.shrink(&GEOMETRY, &pair.mem).unwrap();
        assert_eq!(pair.tx.is_large(), at < GEOMETRY.large_first / 4 * 3);
        let sent: u32 = (0..20).map(|_| pair.send(16, Effort::Fresh)).sum();
        assert!(sent >= GEOMETRY.small, "only {sent} bytes");
        assert!(pair.tx.is_large());
        while !pair.model.is_empty() {
            pair.receive(40);
        }
        pair.return_all();
        pair.tx.credit(pair.credit).unwrap();
    }
}

#[test]
fn idle_regions_hold_nothing() {
    let mut pair = Pair::new();
    for round in 0..20 {
        pair.give_back();
        assert!(
            pair.mem.regions.iter().all(|region| region.borrow().iter().all(|byte| *byte == 0)),
            "round {round}"
        );
        pair.send(8, Effort::Fresh);
        assert!(pair.tx.small_was_used());
        pair.give_back();
        assert!(pair.tx.small_was_used(), "not read yet");
        pair.receive(8);
        pair.return_all();
    }
    pair.tx.credit(pair.credit).unwrap();
    pair.tx.finish(&pair.mem, 1);
    assert!(!pair.tx.memory_is_free(), "the end was not read yet");
}
