//! Descriptors held for the moment at which the monitor sends some.
//!
//! A channel comes with three descriptors. Linux completes a connection whether or not the listener's process has
//! numbers left, so one that has used them all up must be able to take a channel, or whoever connects over it waits for
//! ever. A process with a listener therefore holds three numbers, which are free while a message is received. Another
//! thread that opens something in that moment may take them: then the channel is lost, as it would be without.

use crate::fd::hidden::{Hidden, HiddenCell};
use core::sync::atomic::{AtomicBool, Ordering};

/// What a channel comes with.
const NEEDED: usize = 3;

/// Under the lock of the control path; -1: not held.
static SPARES: [HiddenCell; NEEDED] = [const { HiddenCell::empty() }; NEEDED];
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// The process listens.
pub(crate) fn want() {
    IS_WANTED.store(true, Ordering::Relaxed);
}

/// The program has closed them past libc.
pub(super) fn drop_lost() {
    SPARES.iter().for_each(HiddenCell::lose);
}

/// Lets go of the numbers, for as long as the value lives.
pub(crate) struct Free;

impl Free {
    pub(crate) fn now() -> Free {
        SPARES.iter().for_each(HiddenCell::close);
        Free
    }
}

impl Drop for Free {
    fn drop(&mut self) {
        let source = crate::process::waker::own_event_fd();
        if source < 0 || !IS_WANTED.load(Ordering::Relaxed) {
            return;
        }
        for spare in &SPARES {
            match sd_sys::fd::dup_above(source, 3) {
                Ok(fd) => spare.put(Hidden::of(fd)),
                Err(_) => return,
            }
        }
    }
}
