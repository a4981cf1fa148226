//! pthread_cancel(3): calls of ours that wait are cancellation points, as those of libc are.
//!
//! `pthread_cancel --list of threads, wake-up of all sleepers--> the cancelled thread finds itself in the list`
//!
//! libc marks the thread, but does not interrupt one that sleeps in our calls. So each sleeper is woken and looks
//! whether it is meant; that one returns [`CANCELLED`] through all our frames, which frees what they hold, and the
//! hook's edge lets libc act on the mark. A call that need not wait does not look.

use crate::process::PROCESS;
use crate::socket::endpoint::EndpointExt;
use libc::c_int;
use sd_ring::doorbell::{self, RX_SLEEP, TX_SLEEP};
use sd_ring::sync::cancel::Marks;
use sd_sys::Errno;
use sd_sys::futex::{self, Scope};

/// The calling thread is to end; no errno of Linux'.
pub const CANCELLED: Errno = Errno(4096);

/// The threads that were cancelled last (pthread_t). Most of them have ended long since.
static MARKS: Marks<64> = Marks::new();

const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// After libc has marked the thread (SYNC POINT: cancel, with `check` in crates/sd-socket/src/wait/cancel.rs).
pub(crate) fn requested(thread: usize) {
    MARKS.mark(thread);
    sd_sys::fd::eventfd_signal(crate::process::waker::own_event_fd());
    crate::socket::thread_waker::wake_all();
    for (_, endpoint) in PROCESS.connections() {
        let word = &endpoint.own_words().wait;
        doorbell::disarm(word, RX_SLEEP | TX_SLEEP);
        futex::wake(word, i32::MAX, Scope::Shared);
    }
}

/// The calling thread, a handler of whose libc's has found it to be cancelled: its sleep ends by that signal, or it has none; the next one
/// is none.
pub fn mark() {
    // SAFETY: no arguments.
    MARKS.mark(unsafe { libc::pthread_self() } as usize);
}

/// Before a sleep: an error when the calling thread is to end instead. It has armed the word that it sleeps on, or has said that
/// it sleeps (SYNC POINT: cancel, with `requested` in crates/sd-socket/src/wait/cancel.rs).
#[inline]
pub(crate) fn check() -> Result<(), Errno> {
    if MARKS.are_any() { check_slow() } else { Ok(()) }
}

#[cold]
fn check_slow() -> Result<(), Errno> {
    // SAFETY: no arguments.
    let me = unsafe { libc::pthread_self() } as usize;
    if !MARKS.is_marked(me) {
        return Ok(());
    }
    let mut state = PTHREAD_CANCEL_DISABLE;
    // SAFETY: libc writes the old state, which is put back at once.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut state);
        pthread_setcancelstate(state, core::ptr::null_mut());
    }
    if state == PTHREAD_CANCEL_ENABLE { Err(CANCELLED) } else { Ok(()) }
}

/// The calling thread acts on its mark now.
pub fn acted() {
    // SAFETY: no arguments.
    let me = unsafe { libc::pthread_self() } as usize;
    MARKS.clear(me);
}

/// In the child of a fork: only this thread exists.
pub(crate) fn forked() {
    MARKS.forked();
}
