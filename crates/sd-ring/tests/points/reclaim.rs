//! SYNC POINT: reclaim. Fails without the fence of `enter`, of `leave` or of `due`, and when `leave` does not look whether
//! something is due.

use super::model;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use sd_ring::sync::reclaim::Users;

/// A table of one record.
struct Table {
    users: Users,
    is_listed: AtomicU32,
    /// Records that are out of the table.
    graveyard: Mutex<u32>,
    /// Loom reports it when it is freed while somebody uses it.
    record: UnsafeCell<bool>,
    freed: AtomicU32,
}

impl Table {
    fn free(&self) {
        let mut graves = self.graveyard.lock().unwrap();
        if *graves == 0 || !self.users.is_unused() {
            return;
        }
        self.users.none_due();
        *graves = 0;
        // SAFETY: nobody uses it, as loom checks.
        self.record.with_mut(|record| unsafe { *record = false });
        self.freed.fetch_add(1, Ordering::Relaxed);
    }

    fn user(&self) {
        self.users.enter();
        if self.is_listed.load(Ordering::Acquire) != 0 {
            // SAFETY: it was in the table, and the thread is counted, as loom checks.
            self.record.with(|record| assert!(unsafe { *record }, "freed"));
        }
        if self.users.leave() {
            self.free();
        }
    }

    /// The record's connection is over. The caller is no user.
    fn take_out(&self) {
        let mut graves = self.graveyard.lock().unwrap();
        self.is_listed.store(0, Ordering::Release);
        *graves += 1;
        self.users.due(*graves);
        drop(graves);
        self.free();
    }
}

#[test]
fn a_record_is_freed_once_and_not_under_a_user() {
    model(4, || {
        let table = Arc::new(Table {
            users: Users::new(),
            is_listed: AtomicU32::new(1),
            graveyard: Mutex::new(0),
            record: UnsafeCell::new(true),
            freed: AtomicU32::new(0),
        });
        let user = {
            let table = table.clone();
            thread::spawn(move || table.user())
        };
        table.take_out();
        user.join().unwrap();
        assert_eq!(table.freed.load(Ordering::Relaxed), 1);
    });
}
