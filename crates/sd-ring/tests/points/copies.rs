//! SYNC POINT: copies. Fails without the fence of `turn`, or without that of `copy`, and where the copier counts after its store.

use super::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use sd_ring::sync::copies;

const KERNELS: u64 = 1;
const OURS: u64 = 2;

struct Table {
    words: [AtomicU64; 2],
    numbers: AtomicU32,
}

impl Table {
    fn turn(&self, from: u64, to: u64) {
        let known = self.words.iter().take(1);
        copies::turn(known, (from, to), || {
            (self.numbers.load(Ordering::Acquire) != 1).then(|| self.words.iter())
        });
    }

    fn value(&self, number: usize) -> u64 {
        self.words[number].load(Ordering::Acquire)
    }
}

fn model_of(turns: impl Fn(&Table) + Send + Sync + Copy + 'static) {
    model(5, move || {
        let words = [KERNELS, 0].map(AtomicU64::new);
        let table = Arc::new(Table { words, numbers: AtomicU32::new(1) });
        let copier = {
            let table = table.clone();
            thread::spawn(move || {
                let value = table.value(0);
                table.numbers.fetch_add(1, Ordering::AcqRel);
                let [old, new] = &table.words;
                copies::copy(old, new, value, |value| value != 0);
            })
        };
        turns(&table);
        copier.join().unwrap();
        assert_eq!(table.value(0), table.value(1));
    });
}

/// A connection moves to shared memory while another thread duplicates its number.
#[test]
fn a_copy_is_turned_too() {
    model_of(|table| table.turn(KERNELS, OURS));
}

/// It moves there and back meanwhile.
#[test]
fn a_copy_is_turned_there_and_back() {
    model_of(|table| {
        table.turn(KERNELS, OURS);
        table.turn(OURS, KERNELS);
    });
}
