//! SYNC POINT: errand. Fails where `want` is relaxed, where what takes the wish away is, and where the end does not look for another
//! wish, or looks for it relaxed.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use sd_ring::sync::errand::Errand;

/// Two threads change something and want it to be seen: both are, whoever looks.
#[test]
fn nothing_that_was_wanted_is_left_undone() {
    model(5, || {
        let shared = Arc::new((Errand::new(), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)));
        // What is changed; what was seen of it.
        let go = |first: bool, shared: &(Errand, AtomicU32, AtomicU32, AtomicU32)| {
            let (errand, one, other, seen) = shared;
            if first { one } else { other }.store(1, Relaxed);
            errand.want();
            if errand.is_wanted() {
                errand.run(|| {
                    seen.store(seen.load(Relaxed) | one.load(Relaxed) | other.load(Relaxed) << 1, Relaxed)
                });
            }
        };
        let thread = {
            let shared = shared.clone();
            thread::spawn(move || go(true, &shared))
        };
        go(false, &shared);
        thread.join().unwrap();
        assert_eq!(shared.3.load(Relaxed), 3);
    });
}
