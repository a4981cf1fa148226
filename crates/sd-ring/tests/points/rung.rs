//! SYNC POINT: rung. Fails without the fence of `leave`, without that of `enter` or of `whom_to_wake`, and where `leave` does not change the word.

use super::{EventFds, model};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use sd_ring::sync::{events, sleepers};

/// Two threads of a process, which sleep in instances of their own. One eventfd wakes both, as a write of it does.
struct Process {
    summary: AtomicU64,
    leaves: [AtomicU64; 1],
    sleepers: AtomicU64,
    event_fd: EventFds<1>,
    /// Slots that were taken.
    found: AtomicU32,
}

impl Process {
    fn look(&self) {
        events::take(&self.summary, &self.leaves, |slot| {
            self.found.fetch_or(1 << slot, Ordering::AcqRel);
            // Whom it concerns is woken, by means of the process's own.
            self.event_fd.signal();
        });
    }

    /// One sleep, unless there is something.
    fn sleep(&self, has_found: impl Fn() -> bool) {
        let watched = self.event_fd.watch();
        sleepers::enter([&self.sleepers].into_iter());
        self.look();
        if !has_found() {
            self.event_fd.sleep(watched);
        }
        sleepers::leave([&self.sleepers].into_iter());
        self.look();
    }

    fn has_found(&self, slots: u32) -> bool {
        self.found.load(Ordering::Acquire) & slots == slots
    }
}

/// A thread sleeps once, and then computes for ever. The peer announces twice, and rings at most once for each sleep. The other thread gets both.
#[test]
fn what_was_not_rung_for_is_seen() {
    model(3, || {
        let process = Arc::new(Process {
            summary: AtomicU64::new(0),
            leaves: [AtomicU64::new(0)],
            sleepers: AtomicU64::new(0),
            event_fd: EventFds::new(),
            found: AtomicU32::new(0),
        });
        let peer = {
            let process = process.clone();
            thread::spawn(move || {
                let rung = AtomicU64::new(0);
                for slot in [0, 1] {
                    events::post(&process.summary, &process.leaves, slot);
                    if let Some(word) = sleepers::whom_to_wake(&process.sleepers, &rung) {
                        process.event_fd.signal();
                        rung.store(word, Ordering::Relaxed);
                    }
                }
            })
        };
        let once = {
            let process = process.clone();
            thread::spawn(move || process.sleep(|| process.has_found(1) || process.has_found(2)))
        };
        while !process.has_found(3) {
            process.sleep(|| process.has_found(3));
        }
        once.join().unwrap();
        peer.join().unwrap();
    });
}
