//! SYNC POINT: rung. Fails without the fence of `leave`, without that of `enter` or of `whom_to_wake`, where `leave` does not change the word, and where
//! `taken` does not.

use super::model;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sd_ring::sync::{events, sleepers};

/// Two threads of a process, which sleep in one instance: a write of the eventfd ends the sleep of one of them, or the next.
struct Process {
    summary: AtomicU64,
    leaves: [AtomicU64; 1],
    sleepers: AtomicU64,
    is_written: Mutex<bool>,
    wake: Condvar,
    /// Slots that were taken.
    found: AtomicU32,
}

impl Process {
    fn new() -> Process {
        Process {
            summary: AtomicU64::new(0),
            leaves: [AtomicU64::new(0)],
            sleepers: AtomicU64::new(0),
            is_written: Mutex::new(false),
            wake: Condvar::new(),
            found: AtomicU32::new(0),
        }
    }

    fn write(&self) {
        *self.is_written.lock().unwrap() = true;
        self.wake.notify_all();
    }

    /// Slots that are announced now.
    fn take(&self, mut each: impl FnMut(u32)) {
        events::take(&self.summary, &self.leaves, |slot| {
            self.found.fetch_or(1 << slot, Ordering::AcqRel);
            each(1 << slot);
        });
    }

    fn look(&self) {
        // Whom it concerns is woken, by means of the process's own.
        self.take(|_| self.write());
    }

    fn has_found(&self, slots: u32) -> bool {
        self.found.load(Ordering::Acquire) & slots == slots
    }

    fn await_write(&self) {
        let mut is_written = self.is_written.lock().unwrap();
        while !*is_written {
            is_written = self.wake.wait(is_written).unwrap();
        }
        *is_written = false;
    }

    /// One sleep, unless there is something.
    fn sleep(&self, has_found: impl Fn() -> bool) {
        sleepers::enter([&self.sleepers].into_iter());
        self.look();
        if !has_found() {
            self.await_write();
        }
        sleepers::leave([&self.sleepers].into_iter());
        self.look();
    }
}

/// Announces two slots, and rings at most once for each sleep.
fn announces_twice(process: &Arc<Process>) -> thread::JoinHandle<()> {
    let process = process.clone();
    thread::spawn(move || {
        let rung = AtomicU64::new(0);
        for slot in [0, 1] {
            events::post(&process.summary, &process.leaves, slot);
            if let Some(word) = sleepers::whom_to_wake(&process.sleepers, &rung) {
                process.write();
                rung.store(word, Ordering::Relaxed);
            }
        }
    })
}

/// The only thread takes what the eventfd told before it sleeps, as what is slept on is kept for later sleeps. It waits for the second slot.
#[test]
fn what_was_taken_is_rung_for_again() {
    model(3, || {
        let process = Arc::new(Process::new());
        let peer = announces_twice(&process);
        while !process.has_found(2) {
            sleepers::enter([&process.sleepers].into_iter());
            *process.is_written.lock().unwrap() = false;
            sleepers::taken([&process.sleepers].into_iter());
            process.take(|_| ());
            if !process.has_found(2) {
                process.await_write();
            }
            sleepers::leave([&process.sleepers].into_iter());
            process.take(|_| ());
        }
        peer.join().unwrap();
    });
}

/// A thread sleeps once, and then computes for ever. The peer announces twice, and rings at most once for each sleep. The other thread gets both.
#[test]
fn what_was_not_rung_for_is_seen() {
    model(3, || {
        let process = Arc::new(Process::new());
        let peer = announces_twice(&process);
        let once = {
            let process = process.clone();
            thread::spawn(move || process.sleep(|| process.has_found(1) || process.has_found(2)))
        };
        while !process.has_found(3) {
            process.sleep(|| process.has_found(3));
        }
        // It has been in nobody's way; whoever waits still is let go.
        process.write();
        once.join().unwrap();
        peer.join().unwrap();
    });
}
