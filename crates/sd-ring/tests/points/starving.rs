//! SYNC POINT: starving. Fails without the fence of `tell`, without that of `sleepers::enter`, or without that of `sleepers::sleep_again`.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use loom::thread;
use sd_ring::sync::{sleepers, starving};

/// The monitor sees that the worker is idle, or the worker sees that connections wait.
#[test]
fn no_connection_waits_beside_an_idle_worker() {
    model(5, || {
        // The word in the worker's slab, and the sleepers in its public page.
        let words = Arc::new((AtomicU32::new(0), AtomicU64::new(0)));
        let worker = {
            let words = words.clone();
            thread::spawn(move || {
                let (starving, count) = &*words;
                sleepers::enter([count].into_iter());
                starving::has_heard(starving) && starving::take(starving)
            })
        };
        let (starving, count) = &*words;
        starving::tell([starving].into_iter());
        let offers = sleepers::are_there(count);
        let asks = worker.join().unwrap();
        assert!(offers || asks);
    });
}

/// The same for a worker that has stayed counted since its last sleep.
#[test]
fn no_connection_waits_beside_one_that_sleeps_again() {
    model(5, || {
        // The word in the worker's slab, and whether the worker runs.
        let words = Arc::new((AtomicU32::new(0), AtomicU32::new(1)));
        let worker = {
            let words = words.clone();
            thread::spawn(move || {
                let (starving, runs) = &*words;
                sleepers::sleep_again(runs);
                starving::has_heard(starving) && starving::take(starving)
            })
        };
        let (starving, runs) = &*words;
        starving::tell([starving].into_iter());
        let offers = sleepers::have_time(1, runs.load(Relaxed));
        let asks = worker.join().unwrap();
        assert!(offers || asks);
    });
}
