//! SYNC POINT: gone. Fails where `tell` changes no word, or where `enter` is relaxed.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use sd_ring::sync::gone;

/// Who hears that the other side is gone finds the slot bound, or who has bound it sees that the other side is gone.
#[test]
fn no_connection_stays_that_is_accepted_meanwhile() {
    model(5, || {
        // Gone, uses, and the cell of the slot.
        let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)));
        let accepts = {
            let words = words.clone();
            thread::spawn(move || {
                let (gone, uses, bound) = &*words;
                bound.store(1, Relaxed);
                gone::enter(uses);
                gone::is_told(gone)
            })
        };
        let (gone, uses, bound) = &*words;
        gone::tell(gone, uses);
        let marked = bound.load(Relaxed) == 1;
        assert!(accepts.join().unwrap() || marked);
    });
}
