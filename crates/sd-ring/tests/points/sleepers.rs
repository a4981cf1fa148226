//! SYNC POINT: sleepers. Fails without the fence of `enter`, or without that of `whom_to_wake`.

use super::{EventFd, model};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use sd_ring::sync::{events, sleepers};

struct Process {
    summary: AtomicU64,
    leaves: [AtomicU64; 1],
    /// In its public page.
    sleepers: AtomicU64,
    event_fd: EventFd,
}

/// A thread looks for an announcement, sleeps, and is woken, however the peer's announcement comes between.
#[test]
fn who_sleeps_is_woken() {
    model(4, || {
        let process = Arc::new(Process {
            summary: AtomicU64::new(0),
            leaves: [AtomicU64::new(0)],
            sleepers: AtomicU64::new(0),
            event_fd: EventFd::new(),
        });
        let peer = {
            let process = process.clone();
            thread::spawn(move || {
                events::post(&process.summary, &process.leaves, 5);
                if sleepers::whom_to_wake(&process.sleepers, &AtomicU64::new(0)).is_some() {
                    process.event_fd.signal();
                }
            })
        };
        let mut found = None;
        while found.is_none() {
            let watched = process.event_fd.watch();
            sleepers::enter([&process.sleepers].into_iter());
            events::take(&process.summary, &process.leaves, |slot| found = Some(slot));
            if found.is_none() {
                process.event_fd.sleep(watched);
            }
            sleepers::leave([&process.sleepers].into_iter());
        }
        assert_eq!(found, Some(5));
        peer.join().unwrap();
    });
}
