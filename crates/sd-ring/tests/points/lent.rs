//! SYNC POINT: lent. Fails without the fence of `try_say`, or with a relaxed `unsay`.

use super::model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use sd_ring::sync::lent::Flags;

const FLAGS: Flags = Flags { lent: 1, gives: 2 };

/// Who lends pins pages, who gives back takes them away: never both at a time, and who is second sees what the first has done.
#[test]
fn what_is_lent_is_not_given_back() {
    model(5, || {
        let all = Arc::new(([0; 2].map(AtomicU32::new), UnsafeCell::new(0)));
        let other = {
            let all = all.clone();
            thread::spawn(move || {
                let ([lender, giver], pages) = &*all;
                if FLAGS.begin_giving(giver, lender) {
                    // SAFETY: loom finds who else is there.
                    pages.with_mut(|pages| unsafe { *pages += 1 });
                    FLAGS.end_giving(giver);
                }
            })
        };
        let ([lender, giver], pages) = &*all;
        for _ in 0..2 {
            if FLAGS.lend(lender, giver) {
                // SAFETY: as above.
                pages.with_mut(|pages| unsafe { *pages += 1 });
                FLAGS.take_back(lender);
            }
        }
        other.join().unwrap();
    });
}
