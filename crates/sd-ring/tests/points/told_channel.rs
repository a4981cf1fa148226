//! SYNC POINT: told channel. Fails without the fence of `any_sleeper`, and when nobody is woken for a channel that has become known.

use super::{EventFd, model};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use sd_ring::sync::sleepers;
use sd_ring::sync::wake_target::Watch;

struct Process {
    /// The table has the channel.
    is_known: AtomicBool,
    /// In the channel: the other side has sent something.
    news: AtomicU64,
    watch: Watch,
    /// In the process's page.
    sleepers: AtomicU64,
    event_fd: EventFd,
}

impl Process {
    /// As `dispatch::drain`, which looks at the channels that are known.
    fn has_news(&self) -> bool {
        self.is_known.load(Ordering::Acquire) && self.news.load(Ordering::Acquire) != 0
    }

    fn count(&self) -> impl Iterator<Item = &AtomicU64> {
        std::iter::once(&self.sleepers)
    }

    /// The other side, which the monitor has told of the channel as well.
    fn announce(&self) {
        self.news.store(1, Ordering::Release);
        if sleepers::whom_to_wake(&self.sleepers, &AtomicU64::new(0)).is_some() {
            self.event_fd.signal();
        }
    }

    /// As `told_channel`.
    fn learn(&self) {
        self.is_known.store(true, Ordering::Release);
        if self.watch.any_sleeper() {
            self.event_fd.signal();
        }
    }

    /// As `Sleeper` and what sleeps by it.
    fn wait(&self) {
        while !self.has_news() {
            self.watch.enter();
            let watched = self.event_fd.watch();
            sleepers::enter(self.count());
            if !self.has_news() {
                self.event_fd.sleep(watched);
            }
            sleepers::leave(self.count());
            self.watch.leave();
        }
    }
}

/// A thread that waits for something else takes in what the monitor says of the channel, while another one is woken for what has come there.
#[test]
fn who_was_rung_for_a_channel_not_known_yet_looks_again() {
    model(3, || {
        let process = Arc::new(Process {
            is_known: AtomicBool::new(false),
            news: AtomicU64::new(0),
            watch: Watch::new(),
            sleepers: AtomicU64::new(0),
            event_fd: EventFd::new(),
        });
        let peer = {
            let process = process.clone();
            thread::spawn(move || process.announce())
        };
        let taking = {
            let process = process.clone();
            thread::spawn(move || process.learn())
        };
        process.wait();
        taking.join().unwrap();
        peer.join().unwrap();
    });
}
