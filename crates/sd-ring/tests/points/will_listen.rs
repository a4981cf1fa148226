//! SYNC POINT: will listen. Fails without the fence of `note`, or without that of `is_noted`.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use sd_ring::sync::will_listen;

const PORT: u16 = 8080;

/// A client that was told that nobody listens sees that this is void, or whoever is about to listen sees the client.
#[test]
fn no_connect_slips_through_to_the_kernels_listener() {
    model(5, || {
        // In the client's slab: the epoch of its routes, and its notes.
        let words = Arc::new(([0; 1].map(AtomicU32::new), [0; 2].map(AtomicU32::new)));
        let learned = will_listen::epoch(&words.0[0]);
        let client = {
            let words = words.clone();
            thread::spawn(move || {
                let (epochs, notes) = &*words;
                will_listen::note(notes, PORT).is_some() && will_listen::epoch(&epochs[0]) == learned
            })
        };
        let (epochs, notes) = &*words;
        will_listen::void(&epochs[0]);
        let waits = will_listen::is_noted(notes.iter(), PORT);
        let goes_to_the_kernel = client.join().unwrap();
        assert!(!goes_to_the_kernel || waits);
    });
}

/// Two threads connect at once: each has a note of its own, and a port is there until its note goes.
#[test]
fn each_connect_has_its_note() {
    model(4, || {
        let notes = Arc::new([0; 2].map(AtomicU32::new));
        let other = {
            let notes = notes.clone();
            thread::spawn(move || {
                let note = will_listen::note(&*notes, PORT).unwrap();
                assert!(will_listen::is_noted(notes.iter(), PORT));
                will_listen::forget(note);
            })
        };
        let note = will_listen::note(&*notes, PORT + 1).unwrap();
        assert!(will_listen::is_noted(notes.iter(), PORT + 1));
        will_listen::forget(note);
        other.join().unwrap();
        assert!(!will_listen::is_noted(notes.iter(), PORT));
    });
}
