//! Loom models of the SYNC POINTs: every interleaving of the two sides, by the code that the library runs (`sd_ring::sync`), and
//! what the processor may do to their loads and stores. Each file is one point, and says which weakening makes it fail.
//!
//! Loom takes a SeqCst access for AcqRel, so what a model shows is carried by fences, as the code's is.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sd-ring --release --test points`
#![cfg(loom)]

mod cancel;
mod caretaker;
mod copies;
mod errand;
mod events;
mod gone;
mod leaving;
mod lent;
mod loose_sleepers;
mod reclaim;
mod roads;
mod rung;
mod sleepers;
mod slot_state;
mod starving;
mod thread_waker;
mod token_sleepers;
mod told_channel;
mod uses;
mod wake_target;
mod will_listen;

use loom::sync::{Condvar, Mutex};

/// Eventfds that sleepers watch edge-triggered: a signal since a sleeper began to watch ends its sleep.
pub(crate) struct EventFds<const N: usize> {
    signals: Mutex<[u32; N]>,
    wake: Condvar,
}

pub(crate) type EventFd = EventFds<1>;

impl<const N: usize> EventFds<N> {
    pub(crate) fn new() -> EventFds<N> {
        EventFds { signals: Mutex::new([0; N]), wake: Condvar::new() }
    }

    pub(crate) fn signal_one(&self, which: usize) {
        self.signals.lock().unwrap()[which] += 1;
        self.wake.notify_all();
    }

    pub(crate) fn signal(&self) {
        self.signal_one(0);
    }

    /// What has come so far does not end a sleep from here on.
    pub(crate) fn watch(&self) -> [u32; N] {
        *self.signals.lock().unwrap()
    }

    /// Sleeps until something comes. Loom reports it when nothing can.
    pub(crate) fn sleep(&self, watched: [u32; N]) {
        self.sleep_on(0, watched);
    }

    /// As [`EventFds::sleep`], on those from `first` on.
    pub(crate) fn sleep_on(&self, first: usize, watched: [u32; N]) {
        let mut signals = self.signals.lock().unwrap();
        while signals[first..] == watched[first..] {
            signals = self.wake.wait(signals).unwrap();
        }
    }
}

/// Every interleaving with so many preemptions.
pub(crate) fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}
