//! What ids become: a file of the library's that makes no calls.

#[path = "../src/body/ids.rs"]
mod ids;

use ids::{Ids, KEEP, ids_then, loses};

fn keeps(is_one: bool, now: Ids, wanted: Ids, is_able: bool, count: usize, then: Ids) {
    assert_eq!(ids_then(is_one, now, wanted, is_able, count), then);
}

#[test]
fn ids_become_what_the_kernel_makes_of_them() {
    keeps(true, [0, 0, 0], [33, 0, 0], true, 1, [33, 33, 33]);
    keeps(true, [33, 0, 0], [33, 0, 0], false, 1, [33, 33, 0]);
    keeps(false, [0, 0, 0], [KEEP, 33, 0], true, 2, [0, 33, 33]);
    keeps(false, [0, 33, 0], [KEEP, 0, 0], true, 2, [0, 0, 0]);
    keeps(false, [0, 33, 33], [33, 0, 0], true, 2, [33, 0, 0]);
    keeps(false, [0, 0, 0], [KEEP, 33, KEEP], true, 3, [0, 33, 0]);
    keeps(false, [0, 0, 0], [33, 33, 33], true, 3, [33, 33, 33]);
}

#[test]
fn what_is_put_aside_is_not_lost() {
    assert!(!loses([0, 0, 0], [0, 33, 0]) && !loses([0, 33, 0], [33, 0, 0]));
    assert!(
        loses([0, 0, 0], [33, 33, 33]) && loses([0, 33, 0], [33, 33, 33]) && loses([0, 33, 0], [0, 0, 0])
    );
}
