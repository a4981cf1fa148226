//! Whether membarrier(2) reaches this process: what lets a thread hold a token (ADR 18).
//!
//! A process that gets no socket of ours needs none of that. While there is one thread, asking for it costs a microsecond, with more of
//! them milliseconds: so it is asked for when there is a slab, or a second thread is about to begin, whichever comes first.

use core::sync::atomic::{AtomicBool, Ordering};

static IS_ASKED_FOR: AtomicBool = AtomicBool::new(false);
static REACHES: AtomicBool = AtomicBool::new(false);

/// Makes fences of the family's reach this process, from now on and in its children. Once is enough.
pub(crate) fn ask_for() {
    if !IS_ASKED_FOR.load(Ordering::Relaxed) {
        IS_ASKED_FOR.store(true, Ordering::Relaxed);
        REACHES.store(sd_sys::membarrier::register().is_ok(), Ordering::Release);
    }
}

/// Before a thread begins.
pub(crate) fn before_thread() {
    let is_first = !IS_ASKED_FOR.load(Ordering::Relaxed) && sd_sys::section::is_only_thread();
    if is_first && super::env::may_work() {
        ask_for();
    }
}

/// Whether they do.
pub(crate) fn reaches() -> bool {
    REACHES.load(Ordering::Acquire)
}
