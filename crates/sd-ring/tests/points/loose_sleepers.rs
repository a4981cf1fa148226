//! SYNC POINT: loose sleepers. Fails without the fence of `enter`, or without that of `any`.

use super::{EventFd, model};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use sd_ring::sync::events;
use sd_ring::sync::loose_sleepers::Loose;

struct Process {
    summary: AtomicU64,
    leaves: [AtomicU64; 1],
    /// A listener's queue: what was taken in.
    queued: AtomicU32,
    loose: Loose,
    event_fd: EventFd,
}

impl Process {
    /// What a thread does that waits for something else: takes in what there is, and wakes whoever it may be for.
    fn take_in(&self) {
        events::take(&self.summary, &self.leaves, |_| {
            self.queued.store(1, Ordering::Release);
            if self.loose.any() {
                self.event_fd.signal();
            }
        });
    }
}

/// A connection is announced. One thread takes the announcement; another one, in accept, gets the connection.
#[test]
fn what_another_thread_takes_in_is_seen() {
    model(4, || {
        let process = Arc::new(Process {
            summary: AtomicU64::new(0),
            leaves: [AtomicU64::new(0)],
            queued: AtomicU32::new(0),
            loose: Loose::new(),
            event_fd: EventFd::new(),
        });
        events::post(&process.summary, &process.leaves, 5);
        let other = {
            let process = process.clone();
            thread::spawn(move || process.take_in())
        };
        let has_pending = || process.queued.load(Ordering::Acquire) != 0;
        while !has_pending() {
            let watched = process.event_fd.watch();
            process.loose.enter();
            process.take_in();
            if !has_pending() {
                process.event_fd.sleep(watched);
            }
            process.loose.leave();
        }
        other.join().unwrap();
    });
}
