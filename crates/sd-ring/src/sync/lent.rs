//! A ring whose memory one side has lent to a device, and the other one would give back to the system while it is empty.
//!
//! ```text
//!  who lends                                   who gives back
//!  lend: says so; full fence                   begin_giving: says so; full fence
//!  the other one gives back? not now           lent? it stays
//!  the device has it                           gives it back; end_giving
//! ```
//! A device keeps the pages that it was lent. If they were no longer the ring's, it would read and write memory that nobody else sees.

use crate::facade::{AtomicU32, Ordering, fence_full};

/// Says `mark` in its own word, and looks for the other side's. Whether nothing stands against it: else nothing is said
/// (SYNC POINT: lent, with `leave_large` in crates/sd-socket/src/memory/idle.rs).
fn try_say(own: &AtomicU32, mark: u32, theirs: &AtomicU32, against: u32) -> bool {
    own.fetch_or(mark, Ordering::SeqCst);
    fence_full();
    let may = theirs.load(Ordering::Acquire) & against == 0;
    if !may {
        unsay(own, mark);
    }
    may
}

/// What was said before holds no more, nor what was done meanwhile.
fn unsay(own: &AtomicU32, mark: u32) {
    own.fetch_and(!mark, Ordering::Release);
}

/// The flags by which both sides tell each other.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    pub lent: u32,
    pub gives: u32,
}

impl Flags {
    /// Whether the memory may be lent now; if so, until [`Flags::take_back`].
    pub fn lend(self, own: &AtomicU32, theirs: &AtomicU32) -> bool {
        try_say(own, self.lent, theirs, self.gives)
    }

    /// The device has it no more.
    pub fn take_back(self, own: &AtomicU32) {
        unsay(own, self.lent);
    }

    /// Whether the memory may be given back now; if so, [`Flags::end_giving`] follows.
    pub fn begin_giving(self, own: &AtomicU32, theirs: &AtomicU32) -> bool {
        try_say(own, self.gives, theirs, self.lent)
    }

    pub fn end_giving(self, own: &AtomicU32) {
        unsay(own, self.gives);
    }
}
