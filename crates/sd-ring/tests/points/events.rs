//! SYNC POINT: events. Fails when `post` sets the summary before the leaf, or `take` takes the leaf before the summary.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use sd_ring::sync::events;

struct Set {
    summary: AtomicU64,
    leaves: [AtomicU64; 2],
    /// What was published before the slot of that number was announced.
    published: [AtomicU64; 2],
}

const SLOTS: [usize; 2] = [3, 67];

fn take(set: &Set) -> Vec<usize> {
    let mut taken = Vec::new();
    events::take(&set.summary, &set.leaves, |slot| {
        let at = SLOTS.iter().position(|known| *known == slot).unwrap();
        assert_eq!(set.published[at].load(Ordering::Relaxed), 1, "what is announced can be read");
        taken.push(slot);
    });
    taken
}

/// Two peers announce while two threads take: each slot is taken, at the latest by who looks when all is done.
#[test]
fn each_announcement_is_taken_once() {
    model(3, || {
        let zero = || AtomicU64::new(0);
        let set = Arc::new(Set { summary: zero(), leaves: [zero(), zero()], published: [zero(), zero()] });
        let peers = [0, 1].map(|at| {
            let set = set.clone();
            thread::spawn(move || {
                set.published[at].store(1, Ordering::Relaxed);
                events::post(&set.summary, &set.leaves, SLOTS[at]);
            })
        });
        let mut taken = take(&set);
        for peer in peers {
            peer.join().unwrap();
        }
        taken.extend(take(&set));
        taken.sort_unstable();
        assert_eq!(taken, SLOTS);
    });
}

/// One slot, announced again while it is taken: the second announcement is not lost.
#[test]
fn an_announcement_during_a_look_is_seen_by_this_or_the_next() {
    model(4, || {
        let zero = || AtomicU64::new(0);
        let set = Arc::new(Set { summary: zero(), leaves: [zero(), zero()], published: [zero(), zero()] });
        let peer = {
            let set = set.clone();
            thread::spawn(move || {
                for round in 1..=2 {
                    set.published[0].store(round, Ordering::Relaxed);
                    events::post(&set.summary, &set.leaves, SLOTS[0]);
                }
            })
        };
        let mut seen = 0;
        let mut look = || {
            events::take(&set.summary, &set.leaves, |_| seen = set.published[0].load(Ordering::Relaxed));
        };
        look();
        peer.join().unwrap();
        look();
        assert_eq!(seen, 2);
    });
}
