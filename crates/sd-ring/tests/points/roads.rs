//! SYNC POINT: roads. Fails with a Relaxed `say`, with a Relaxed load in `look`, and with `decide` as a load and a store.
//!
//! The words are the library's: P beside the word of the side that switches, the marker in its ring, and the word on which the other side sleeps.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use sd_ring::doorbell::{self, RX_SLEEP};
use sd_ring::road::{Position, Receive, RoadWord, Send, leaving, receive, resuming, send};
use sd_ring::sync::roads;

const P: u64 = 7;
const MARKER: u32 = 1;

#[derive(Default)]
struct Slot {
    word: AtomicU32,
    switched_at: AtomicU64,
    /// The ring's first header; zero: nothing is there.
    ring: AtomicU32,
    wait: AtomicU32,
}

fn position(slot: &Slot) -> Position {
    Position {
        waiting: 0,
        read: P,
        switched_at: slot.switched_at.load(Ordering::Relaxed),
        marker: false,
        ended: false,
    }
}

/// A sender goes to the ring and back, while the receiver has read all that went through the kernel: it never takes a P that is not there for one,
/// finds the marker where LEFT was said, and does not sleep on.
#[test]
fn what_belongs_to_a_word_comes_with_it() {
    model(3, || {
        let slot = Arc::new(Slot::default());
        let attached = RoadWord::ATTACHED;
        roads::say(&slot.word, attached.0);
        let sender = {
            let slot = slot.clone();
            thread::spawn(move || {
                let peer = attached | RoadWord::WANTS_KERNEL;
                assert_eq!(send(RoadWord(roads::look(&slot.word)), attached, true), Send::Switch);
                slot.switched_at.store(P, Ordering::Relaxed);
                roads::say(&slot.word, RoadWord::SWITCHED.0);
                let mut rung = doorbell::ring(&slot.wait, RX_SLEEP);
                assert_eq!(send(RoadWord(roads::look(&slot.word)), peer, true), Send::Leave);
                assert!(roads::decide(&slot.word, |word| leaving(RoadWord(word)).map(|word| word.0)));
                assert_eq!(send(RoadWord(roads::look(&slot.word)), peer, true), Send::Mark);
                slot.ring.store(MARKER, Ordering::Release);
                roads::say(&slot.word, RoadWord::LEFT.0);
                rung |= doorbell::ring(&slot.wait, RX_SLEEP);
                rung
            })
        };
        doorbell::arm(&slot.wait, RX_SLEEP);
        let said = RoadWord(roads::look(&slot.word));
        let next = receive(said, position(&slot));
        assert!(matches!(next, Receive::Ring | Receive::Kernel(0)), "{said:?}: {next:?}");
        if said.has(RoadWord::LEFT) {
            assert_eq!(slot.ring.load(Ordering::Relaxed), MARKER, "LEFT, and no marker");
        }
        let woken = sender.join().unwrap() != 0;
        assert!(woken || said.has(RoadWord::LEFT), "asleep for ever");
    });
}

/// The sender leaves while the receiver wants to read no more: one of them says how the ring ends, and both know which.
#[test]
fn a_ring_ends_in_one_way() {
    model(4, || {
        let word = Arc::new(AtomicU32::new((RoadWord::ATTACHED | RoadWord::SWITCHED).0));
        let receiver = {
            let word = word.clone();
            thread::spawn(move || roads::decide(&word, |word| resuming(RoadWord(word)).map(|word| word.0)))
        };
        let leaves = roads::decide(&word, |word| leaving(RoadWord(word)).map(|word| word.0));
        let resumes = receiver.join().unwrap();
        assert!(leaves != resumes, "both, or neither");
        let said = RoadWord(roads::look(&word));
        assert_eq!((said.has(RoadWord::LEAVING), said.has(RoadWord::RESUME)), (leaves, resumes));
    });
}
