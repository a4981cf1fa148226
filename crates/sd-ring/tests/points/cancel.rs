//! SYNC POINT: cancel. What carries it are the changes of the word, which both sides make: fails when the sleeper looks before it
//! arms, and when the word is disarmed before the mark, and with a Relaxed `disarm` without the fence of `mark`.

use super::{EventFd, model};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use sd_ring::doorbell::{self, RX_SLEEP};
use sd_ring::sync::cancel::Marks;

struct Process {
    marks: Marks<2>,
    wait: AtomicU32,
    /// Those who sleep on the word.
    futex: EventFd,
}

const THREAD: usize = 77;

/// A cancelled thread that waits on a connection on which nothing happens finds out.
#[test]
fn a_cancelled_sleeper_finds_itself_marked() {
    model(5, || {
        let process =
            Arc::new(Process { marks: Marks::new(), wait: AtomicU32::new(0), futex: EventFd::new() });
        let canceller = {
            let process = process.clone();
            thread::spawn(move || {
                process.marks.mark(THREAD);
                doorbell::disarm(&process.wait, RX_SLEEP);
                process.futex.signal();
            })
        };
        loop {
            let armed = doorbell::arm(&process.wait, RX_SLEEP);
            if process.marks.are_any() && process.marks.is_marked(THREAD) {
                break;
            }
            // The kernel compares the word before it lets the thread sleep.
            let watched = process.futex.watch();
            if process.wait.load(Ordering::SeqCst) == armed {
                process.futex.sleep(watched);
            }
        }
        process.marks.clear(THREAD);
        assert!(!process.marks.is_marked(THREAD));
        canceller.join().unwrap();
    });
}
