//! SYNC POINT: leaving. Fails without the fence of `Users::enter`, or without the leaver's.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use sd_ring::sync::reclaim::Users;

/// A call that changes numbers sees that the process leaves its family, or the leaver sees the call.
#[test]
fn no_call_changes_numbers_beside_a_leaver() {
    model(5, || {
        let shared = Arc::new((Users::new(), AtomicU32::new(0)));
        let call = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.0.enter();
                shared.1.load(Ordering::SeqCst) == 0
            })
        };
        shared.1.store(1, Ordering::SeqCst);
        sd_ring::fence_full();
        let is_alone = shared.0.is_unused();
        let goes_on = call.join().unwrap();
        assert!(!(is_alone && goes_on));
    });
}
