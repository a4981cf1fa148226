//! SYNC POINT: caretaker. Fails without the fence at the head of `before_sleep`, without the one behind `leave`, and without the
//! second look at what was used.

use super::model;
use loom::sync::Arc;
use loom::thread;
use sd_ring::sync::caretaker::Care;

const NOW: u64 = 1000;
const PAUSE: u64 = 100;

/// The caretaker, woken early, finds its work done; another thread uses a connection, and sleeps. One of the two comes back for
/// that.
#[test]
fn what_is_used_is_looked_after() {
    model(5, || {
        let care = Arc::new(Care::new());
        let mut mine = 0;
        care.used();
        assert_eq!(care.before_sleep(&mut mine, NOW, || (), || Some(PAUSE)), Some(PAUSE), "the caretaker");
        let user = {
            let care = care.clone();
            thread::spawn(move || {
                care.used();
                care.before_sleep(&mut 0, NOW + 2, || (), || Some(PAUSE))
            })
        };
        // Whether there is something to be done.
        let begun = core::cell::Cell::new(false);
        let work = || begun.get().then_some(PAUSE);
        let stays = care.before_sleep(&mut mine, NOW + 1, || begun.set(true), work);
        let other = user.join().unwrap();
        assert!(stays.is_some() || other.is_some());
    });
}

/// Two at once, after a use: at least one comes back, and one that leaves leaves the other in its place.
#[test]
fn of_two_at_once_one_stays() {
    model(5, || {
        let care = Arc::new(Care::new());
        care.used();
        let other = {
            let care = care.clone();
            thread::spawn(move || care.before_sleep(&mut 0, NOW, || (), || Some(PAUSE)))
        };
        let mut mine = 0;
        let first = care.before_sleep(&mut mine, NOW + 1, || (), || Some(PAUSE));
        care.leave(&mut mine);
        assert_eq!(mine, 0);
        let again = care.before_sleep(&mut mine, NOW + 2, || (), || Some(PAUSE));
        let other = other.join().unwrap();
        assert!(first.is_some() || other.is_some());
        assert!(again.is_some() || other.is_some());
    });
}
