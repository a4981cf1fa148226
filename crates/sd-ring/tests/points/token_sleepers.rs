//! SYNC POINT: token sleepers. Fails without the fence of `unlock`, or without that of `sleep`.

use super::{EventFd, model};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use sd_ring::token::{Me, Thread, Token, Way, World};

/// Two threads, a token, and a futex on which nobody sleeps for a time only.
struct Family {
    token: Token,
    threads: [Thread; 2],
    futex: EventFd,
}

impl World for Family {
    fn fence_heavy(&self) {}
    fn may_hold(&self) -> bool {
        false
    }
    fn is_dead(&self, _id: u32) -> bool {
        false
    }
    fn threads(&self) -> u32 {
        2
    }
    fn thread(&self, number: u32) -> Option<&Thread> {
        self.threads.get((number as usize).checked_sub(1)?)
    }
    /// No yield, after which loom lets nobody read an old value again.
    fn relax(&self, _round: u32) {}
    fn sleep(&self, word: &AtomicU32, value: u32, _timeout_ns: u64) {
        // The kernel compares the word before it lets the thread sleep.
        let watched = self.futex.watch();
        if word.load(Ordering::SeqCst) == value {
            self.futex.sleep(watched);
        }
    }
    fn wake(&self, _word: &AtomicU32) {
        self.futex.signal();
    }
}

impl Family {
    fn use_once(&self, number: u32) {
        let me = Me { id: 100 + number, thread: self.thread(number) };
        self.token.lock(Way::Send, me, self);
        self.token.unlock(me, self);
    }
}

/// Who waits in line sleeps, and is woken when the lock is free.
#[test]
fn who_sleeps_in_line_is_woken() {
    model(4, || {
        let family = Family { token: Token::default(), threads: Default::default(), futex: EventFd::new() };
        for (number, thread) in (1u32..).zip(&family.threads) {
            thread.id.store(100 + number, Ordering::Relaxed);
            thread.number.store(number, Ordering::Relaxed);
        }
        let family = Arc::new(family);
        let other = {
            let family = family.clone();
            thread::spawn(move || family.use_once(2))
        };
        family.use_once(1);
        other.join().unwrap();
    });
}
