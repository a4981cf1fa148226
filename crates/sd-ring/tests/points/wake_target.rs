//! SYNC POINT: wake target. Fails without the fence of `any_sleeper`, with a Relaxed `watch_from`, without the second look
//! at `first`, and when `settle` narrows what is watched before the wake target is written.

use super::{EventFds, model};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use sd_ring::sync::sleepers;
use sd_ring::sync::wake_target::Watch;

/// In `target`: this process alone.
const US: u64 = 7;

/// A process and what it watches: its parent's eventfd, which is the connection's, and its own.
struct Process {
    news: AtomicU64,
    target: AtomicU64,
    watch: Watch,
    /// In the pages of the parent and of the process.
    sleepers: [AtomicU64; 2],
    event_fds: EventFds<2>,
}

impl Process {
    fn new() -> Process {
        Process {
            news: AtomicU64::new(0),
            target: AtomicU64::new(0),
            watch: Watch::new(),
            sleepers: [AtomicU64::new(0), AtomicU64::new(0)],
            event_fds: EventFds::new(),
        }
    }

    fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire) != 0
    }

    /// The peer publishes, and wakes the wake target, or whoever has the connection.
    fn announce(&self) {
        self.news.store(1, Ordering::Release);
        sd_ring::fence_full();
        let who = usize::from(self.target.load(Ordering::Relaxed) == US);
        if sleepers::whom_to_wake(&self.sleepers[who], &AtomicU64::new(0)).is_some() {
            self.event_fds.signal_one(who);
        }
    }

    fn settle(&self) {
        self.target.store(US, Ordering::SeqCst);
        self.watch.watch_from(1);
    }

    fn leave(&self) {
        self.watch.watch_from(0);
        self.target.store(0, Ordering::SeqCst);
        if self.watch.any_sleeper() {
            sleepers::enter(self.sleepers.iter());
            self.event_fds.signal_one(1);
        }
    }

    /// As `Sleeper` and what sleeps by it.
    fn wait(&self) {
        while !self.has_news() {
            self.watch.enter();
            let first = self.watch.first();
            let watched = self.event_fds.watch();
            sleepers::enter(self.sleepers[first..].iter());
            if !self.has_news() && self.watch.first() == first {
                self.event_fds.sleep_on(first, watched);
            }
            sleepers::leave(self.sleepers[first..].iter());
            self.watch.leave();
        }
    }
}

/// While a thread settles, another one begins to sleep, and there is news.
#[test]
fn who_watches_the_own_eventfd_only_is_known_as_wake_target() {
    model(3, || {
        let process = Arc::new(Process::new());
        let peer = {
            let process = process.clone();
            thread::spawn(move || process.announce())
        };
        let settling = {
            let process = process.clone();
            thread::spawn(move || process.settle())
        };
        process.wait();
        settling.join().unwrap();
        peer.join().unwrap();
    });
}

/// While a thread leaves, as the process forks, another one begins to sleep, and there is news.
#[test]
fn who_begins_to_sleep_while_others_are_watched_again_is_woken() {
    model(3, || {
        let process = Process::new();
        process.settle();
        let process = Arc::new(process);
        let peer = {
            let process = process.clone();
            thread::spawn(move || process.announce())
        };
        let leaving = {
            let process = process.clone();
            thread::spawn(move || process.leave())
        };
        process.wait();
        leaving.join().unwrap();
        peer.join().unwrap();
    });
}
