//! SYNC POINT: starving. Fails without the fence of `tell`, or without that of `sleepers::enter`.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
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
