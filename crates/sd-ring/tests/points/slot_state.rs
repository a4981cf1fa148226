//! SYNC POINT: slot state. Fails with a Relaxed store in `declare`, with a Relaxed load in `read`, and with `answer` as a plain store.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use sd_ring::doorbell::{self, RX_SLEEP};
use sd_ring::sync::slot_state;

const CLOSED: u32 = 3;
const FLAG_DEAD: u32 = 4;

/// Flags, state, and the word on which the other side sleeps.
type Words = [AtomicU32; 3];

/// A side is closed by the monitor while the other one waits for bytes: it finds the state, with its flags, and does not sleep on.
#[test]
fn flags_come_with_the_state_and_both_before_the_wake_up() {
    model(5, || {
        let words: Arc<Words> = Arc::new([0; 3].map(AtomicU32::new));
        let monitor = {
            let words = words.clone();
            thread::spawn(move || {
                let [flags, state, wait] = &*words;
                flags.fetch_or(FLAG_DEAD, Ordering::Relaxed);
                slot_state::declare(state, CLOSED);
                doorbell::ring(wait, RX_SLEEP)
            })
        };
        let [flags, state, wait] = &*words;
        doorbell::arm(wait, RX_SLEEP);
        let found = slot_state::read(state);
        if found == CLOSED {
            assert_eq!(flags.load(Ordering::Relaxed), FLAG_DEAD);
        }
        let woken = monitor.join().unwrap() != 0;
        assert!(woken || found == CLOSED, "asleep for ever");
    });
}

/// A request is accepted by one process, refused by another and withdrawn by its client, all at once: one of them answers.
#[test]
fn a_request_is_answered_once() {
    model(4, || {
        let state = Arc::new(AtomicU32::new(0));
        let others = [1, 2].map(|answer| {
            let state = state.clone();
            thread::spawn(move || slot_state::answer(&state, 0, answer))
        });
        let mut count = u32::from(slot_state::answer(&state, 0, CLOSED));
        for other in others {
            count += u32::from(other.join().unwrap());
        }
        assert_eq!(count, 1);
    });
}
