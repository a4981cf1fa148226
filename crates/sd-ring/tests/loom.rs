//! The real cursors and the real doorbell under loom: every interleaving of one sender and one
//! receiver on a ring so small that it wraps.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sd-ring --release --test loom`
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sd_ring::sync::slot_state;
use sd_ring::token::{Before, Me, Thread, Token, Way, World};
use sd_ring::{Effort, Geometry, Next, RingMem, RxCursor, TxCursor, doorbell};

const GEOMETRY: Geometry = Geometry { small: 40, large_first: 40, large: 40 };

/// Both regions as words; payload travels with Relaxed order, as plain memory would.
struct Shared {
    words: [Vec<AtomicU64>; 2],
    credit: AtomicU64,
    wait: AtomicU32,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Shared {
    fn new() -> Shared {
        let words = || (0..5).map(|_| AtomicU64::new(0)).collect();
        Shared {
            words: [words(), words()],
            credit: AtomicU64::new(0),
            wait: AtomicU32::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// futex(FUTEX_WAIT): sleeps only while the word has the value.
    fn futex_wait(&self, value: u32) {
        let mut guard = self.sleep.lock().unwrap();
        while self.wait.load(Ordering::SeqCst) == value {
            guard = self.wake.wait(guard).unwrap();
        }
    }

    fn futex_wake(&self) {
        let _guard = self.sleep.lock().unwrap();
        self.wake.notify_all();
    }
}

impl RingMem for Shared {
    fn load(&self, region: u32, off: u32) -> u64 {
        self.words[region as usize][off as usize / 8].load(Ordering::Acquire)
    }
    fn publish(&self, region: u32, off: u32, word: u64) {
        self.words[region as usize][off as usize / 8].store(word, Ordering::Release);
    }
    fn store(&self, region: u32, off: u32, word: u64) {
        self.words[region as usize][off as usize / 8].store(word, Ordering::Relaxed);
    }
}

fn push(shared: &Shared, tx: &mut TxCursor, value: u64) -> bool {
    tx.credit(shared.credit.load(Ordering::Acquire)).unwrap();
    let Some(grant) = tx.reserve(&GEOMETRY, shared, 8, Effort::Fresh) else { return false };
    assert_eq!(grant.len, 8);
    shared.store(grant.region, grant.off, value);
    tx.commit(shared, 8, 0);
    if doorbell::ring(&shared.wait, doorbell::RX_SLEEP) != 0 {
        shared.futex_wake();
    }
    true
}

fn pop(shared: &Shared, rx: &mut RxCursor) -> Option<u64> {
    match rx.next(&GEOMETRY, shared).unwrap() {
        Next::Data { region, off, len } => {
            assert_eq!(len, 8);
            let value = shared.words[region as usize][off as usize / 8].load(Ordering::Relaxed);
            rx.advance(8);
            if let Some(credit) = rx.credit_all() {
                shared.credit.store(credit, Ordering::Release);
            }
            Some(value)
        }
        Next::Empty => None,
        other => panic!("{other:?} was not sent"),
    }
}

/// Sends `count` values, calling `after` for each.
fn sender(
    shared: &Arc<Shared>,
    count: u64,
    after: impl Fn(&Shared, &mut TxCursor) + Send + 'static,
) -> thread::JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || {
        let mut tx = TxCursor::new(&GEOMETRY);
        for value in 1..=count {
            while !push(&shared, &mut tx, value) {
                thread::yield_now();
            }
            after(&shared, &mut tx);
        }
    })
}

/// SYNC POINT: header. Every value arrives, once, in order, with wrap-around and jumps, and the receiver that sleeps
/// is always woken (loom reports a deadlock otherwise).
#[test]
fn sleeping_receiver_gets_everything() {
    const COUNT: u64 = 3;
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = Arc::new(Shared::new());
        let sender = sender(&shared, COUNT, |_, _| ());
        let mut rx = RxCursor::new();
        for expected in 1..=COUNT {
            let value = loop {
                if let Some(value) = pop(&shared, &mut rx) {
                    break value;
                }
                let word = doorbell::arm(&shared.wait, doorbell::RX_SLEEP);
                if let Some(value) = pop(&shared, &mut rx) {
                    break value;
                }
                shared.futex_wait(word);
            };
            assert_eq!(value, expected);
        }
        sender.join().unwrap();
    });
}

/// A sender that knows all to be consumed gives the memory back, while the receiver looks: every value arrives.
#[test]
fn memory_that_is_given_back_takes_nothing_along() {
    const COUNT: u64 = 3;
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(|| {
        let shared = Arc::new(Shared::new());
        let sender = sender(&shared, COUNT, |shared, tx| {
            tx.credit(shared.credit.load(Ordering::Acquire)).unwrap();
            if tx.memory_is_free() {
                shared.words.iter().flatten().for_each(|word| word.store(0, Ordering::Relaxed));
                tx.note_small_given_back();
            }
        });
        let mut rx = RxCursor::new();
        for expected in 1..=COUNT {
            let value = loop {
                match pop(&shared, &mut rx) {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
        }
        sender.join().unwrap();
    });
}

/// SYNC POINT: doorbell. The doorbell alone, without a bound: a publication and an announcement never miss each other.
#[test]
fn doorbell_never_misses() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        let notifier = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.publish(0, 0, 1);
                if doorbell::ring(&shared.wait, doorbell::RX_SLEEP) != 0 {
                    shared.futex_wake();
                }
            })
        };
        if shared.load(0, 0) == 0 {
            let word = doorbell::arm(&shared.wait, doorbell::RX_SLEEP);
            if shared.load(0, 0) == 0 {
                shared.futex_wait(word);
                assert_eq!(shared.load(0, 0), 1);
            }
        }
        notifier.join().unwrap();
    });
}

/// Three threads, a token, and what it guards; loom reports two users at once.
struct Family {
    token: Token,
    threads: [Thread; 3],
    guarded: UnsafeCell<u32>,
}

impl World for Family {
    fn fence_heavy(&self) {
        // membarrier runs a full fence in every thread, this one included. Loom has none that reaches
        // other threads, so the light fence is a full one too (see the facade): what the model shows is
        // that a full fence in those two places is enough.
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
    fn may_hold(&self) -> bool {
        true
    }
    fn is_dead(&self, _id: u32) -> bool {
        false
    }
    fn threads(&self) -> u32 {
        self.threads.len() as u32
    }
    fn thread(&self, number: u32) -> Option<&Thread> {
        self.threads.get(number as usize - 1)
    }
    fn relax(&self, _round: u32) {
        thread::yield_now();
    }
    fn sleep(&self, _word: &AtomicU32, _value: u32, _timeout_ns: u64) {
        thread::yield_now();
    }
    fn wake(&self, _word: &AtomicU32) {}
}

impl Family {
    fn new() -> Family {
        let family =
            Family { token: Token::default(), threads: Default::default(), guarded: UnsafeCell::new(0) };
        for (number, thread) in (1u32..).zip(&family.threads) {
            thread.id.store(100 + number, Ordering::Relaxed);
            thread.number.store(number, Ordering::Relaxed);
        }
        family
    }

    /// One use by thread `number`, as `sd_socket::token::Half` does it; true when it was the holder's.
    fn use_once(&self, number: u32) -> bool {
        let mine = &self.threads[number as usize - 1];
        // SAFETY: the token keeps others away; loom checks that.
        let add = || self.guarded.with_mut(|value| unsafe { *value += 1 });
        if self.token.enter(Way::Send, mine) {
            add();
            mine.leave(Way::Send);
            return true;
        }
        let me = Me { id: 100 + number, thread: Some(mine) };
        assert_eq!(self.token.lock(Way::Send, me, self), Before::Left);
        add();
        self.token.unlock(me, self);
        false
    }

    fn uses(&self) -> u32 {
        // SAFETY: all other threads have ended.
        self.guarded.with(|value| unsafe { *value })
    }

    fn with_holder() -> (Arc<Family>, u32) {
        let family = Family::new();
        let uses = (1..).find(|_| family.use_once(1)).unwrap();
        (Arc::new(family), uses)
    }
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

/// SYNC POINT: token. The holder goes on without the lock while another thread takes the token away.
#[test]
fn a_holder_and_a_revoker_are_never_inside_together() {
    model(4, || {
        let (family, before) = Family::with_holder();
        let holder = {
            let family = family.clone();
            thread::spawn(move || (0..2).filter(|_| family.use_once(1)).count())
        };
        family.use_once(2);
        holder.join().unwrap();
        assert_eq!(family.uses(), before + 3);
    });
}

/// The holder does something else; two others take the token from it, one after the other.
#[test]
fn two_in_line_are_never_inside_together() {
    model(3, || {
        let (family, before) = Family::with_holder();
        let other = {
            let family = family.clone();
            thread::spawn(move || assert!(!family.use_once(2)))
        };
        family.use_once(3);
        other.join().unwrap();
        assert_eq!(family.uses(), before + 2);
    });
}

/// SYNC POINT: end of a listener. A request for a connection meets it (ADR 14): the client withdraws, or who ended
/// the listener finds the request; and when both happen, one of them answers it.
#[test]
fn no_request_falls_behind_the_end_of_a_listener() {
    loom::model(|| {
        // The slot's words of A and of B, and the listener's end in page or channel header.
        let words = Arc::new([0; 3].map(AtomicU32::new));
        let client = {
            let words = words.clone();
            thread::spawn(move || {
                let [a, b, ended] = &*words;
                slot_state::declare(a, 1);
                sd_ring::fence_full();
                ended.load(Ordering::Relaxed) == 1 && slot_state::answer(b, 0, 1)
            })
        };
        let [a, b, ended] = &*words;
        ended.store(1, Ordering::Release);
        sd_ring::fence_full();
        let offered = slot_state::read(a) == 1 && slot_state::answer(b, 0, 2);
        let withdrawn = client.join().unwrap();
        assert!(offered != withdrawn, "answered once: offered {offered}, withdrawn {withdrawn}");
    });
}

/// The founder and an adopter both accept; one of them does. Whoever wakes it afterwards knows which.
#[test]
fn an_adopter_is_known_when_it_has_to_be_woken() {
    loom::model(|| {
        let shared = Arc::new(Shared::new());
        // B's state word, and the number of who has accepted.
        let words = Arc::new([0; 2].map(AtomicU32::new));
        let accept = |number: u32, shared: &Shared, [state, accepted_by]: &[AtomicU32; 2]| {
            if !slot_state::answer(state, 0, 1) {
                return false;
            }
            accepted_by.store(number, Ordering::Release);
            doorbell::arm(&shared.wait, doorbell::RX_EVENT);
            true
        };
        let adopter = {
            let (shared, words) = (shared.clone(), words.clone());
            thread::spawn(move || accept(7, &shared, &words))
        };
        let founder = {
            let (shared, words) = (shared.clone(), words.clone());
            thread::spawn(move || accept(9, &shared, &words))
        };
        shared.publish(0, 0, 1);
        let fired = doorbell::ring(&shared.wait, doorbell::RX_EVENT) != 0;
        let told = words[1].load(Ordering::Relaxed);
        let (adopted, founded) = (adopter.join().unwrap(), founder.join().unwrap());
        assert!(adopted != founded, "one accepts");
        if fired {
            assert_eq!(told, if adopted { 7 } else { 9 });
        }
    });
}
