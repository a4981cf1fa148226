//! SYNC POINT: uses. Fails where `next` leaves the word as it was at the use before, where `claim` asks whether the record is free before it reads the
//! word, where `count` asks so where the number leads, and with a Relaxed `next`.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use sd_ring::sync::uses::{self, Counted, INSIDE};

/// Where a number leads.
const RECORD: u32 = 1;
const ENDPOINT: u32 = 2;

#[derive(Default)]
struct Table {
    word: AtomicU32,
    /// The number that led to the record last.
    number: AtomicU32,
    leads: [AtomicU32; 2],
    /// Who is in a call on the endpoint, to which numbers lead that have left the record.
    of_endpoint: AtomicU32,
}

impl Table {
    fn leads_to_record(&self, number: usize) -> bool {
        self.leads[number].load(Ordering::Acquire) == RECORD
    }

    fn begin(&self, number: usize) -> bool {
        let is_free = || !self.leads_to_record(self.number.load(Ordering::Relaxed) as usize);
        let is_claimed = uses::claim(&self.word, is_free);
        if is_claimed {
            self.number.store(number as u32, Ordering::Relaxed);
            self.leads[number].store(RECORD, Ordering::Release);
            uses::next(&self.word);
        }
        is_claimed
    }

    fn take_up(&self, number: usize) {
        let before = uses::close(&self.word, 0).unwrap();
        self.of_endpoint.fetch_add(before & INSIDE, Ordering::AcqRel);
        self.leads[number].store(ENDPOINT, Ordering::Release);
        uses::next(&self.word);
    }

    /// `by` counts in the record, or says that the number leads elsewhere.
    fn counts(&self, by: impl Fn() -> Counted) -> bool {
        loop {
            match by() {
                Counted::Done => return true,
                Counted::Closed => thread::yield_now(),
                Counted::Elsewhere => return false,
            }
        }
    }

    fn call(&self, number: usize) {
        if !self.counts(|| uses::enter(&self.word, 0, || self.leads_to_record(number))) {
            self.of_endpoint.fetch_add(1, Ordering::AcqRel);
        }
        if !self.counts(|| uses::leave(&self.word, || self.leads_to_record(number))) {
            let before = self.of_endpoint.fetch_sub(1, Ordering::AcqRel);
            assert_ne!(before, 0, "nobody is there");
        }
    }
}

fn table() -> Arc<Table> {
    Arc::new(Table::default())
}

/// Two threads want the record at once: one of them gets it.
#[test]
fn a_record_is_one_numbers() {
    model(5, || {
        let shared = table();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.begin(0))
        };
        let is_own = shared.begin(1);
        assert_ne!(is_own, other.join().unwrap());
    });
}

/// A connection gets an endpoint while another thread is in a call on it: that one is counted as long as it is there, and not for longer.
#[test]
fn who_is_in_a_call_is_counted_once() {
    model(4, || {
        let shared = table();
        assert!(shared.begin(0));
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.call(0))
        };
        shared.take_up(0);
        // The record is for another number then, if nobody is left in it.
        let is_again = shared.begin(1);
        other.join().unwrap();
        assert_eq!(shared.of_endpoint.load(Ordering::Relaxed), 0);
        assert!(is_again, "somebody is left in it");
        assert!(uses::close(&shared.word, 0).is_some_and(|word| word & INSIDE == 0));
    });
}
