//! What code an input has reached: a counter of eight bits at each edge, which the compiler adds
//! (`-Cpasses=sancov-module`, `-sanitizer-coverage-inline-8bit-counters`) and hands over at start-up.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static START: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);

/// The linker has put all counters together, so each part of the program says the same.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    START.store(start, Ordering::Relaxed);
    LEN.store(stop as usize - start as usize, Ordering::Relaxed);
}

/// Where each counter is, which nobody here asks.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_pcs_init(_start: *const usize, _stop: *const usize) {}

/// Edges that are counted; none in a build without coverage.
pub(crate) fn edges() -> usize {
    LEN.load(Ordering::Relaxed)
}

/// All counters, as they are now.
pub(crate) fn counters() -> *mut u8 {
    START.load(Ordering::Relaxed)
}

/// Forgets what was reached.
pub(crate) fn reset() {
    for at in 0..edges() {
        // SAFETY: a counter, which threads of the target may change at the same time: nobody minds.
        unsafe { counters().add(at).write_volatile(0) };
    }
}

/// Calls `each` with what was reached: an edge, and roughly how often.
pub(crate) fn features(mut each: impl FnMut(usize)) {
    for at in 0..edges() {
        // SAFETY: as above.
        let count = unsafe { counters().add(at).read_volatile() };
        if count != 0 {
            each(at * 8 + count.ilog2() as usize);
        }
    }
}
