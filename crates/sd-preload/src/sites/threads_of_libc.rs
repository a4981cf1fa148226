//! The stacks of threads that libc has made: made at a thread's first call, and freed by a key of pthread's at its end.

use crate::edge;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_sys::arch::{STACK_LEN, Top};
use sd_sys::{mem, syscall, thread};

/// Ends stacks with their threads.
static KEY: AtomicU32 = AtomicU32::new(0);

/// In the constructor: whether threads can have stacks.
pub(super) fn is_ready() -> bool {
    let mut key = 0;
    // SAFETY: `end` is a function of this library, which is never unloaded.
    let made = unsafe { libc::pthread_key_create(&mut key, Some(end)) } == 0;
    KEY.store(key, Ordering::Relaxed);
    made
}

/// What lies below the end of a stack is nobody's.
const GUARD_LEN: usize = 4096;

/// A thread has a new stack, and runs on it: notes it.
///
/// # Safety
/// `entry`'s: `top` is at the end of a mapping of `STACK_LEN`.
pub(super) unsafe extern "C" fn begin(top: *mut Top) {
    thread::set_stack(top.cast());
    edge::keeping_errno(|| {
        // SAFETY: the lowest page, of which nothing is used; and a key that was made in the constructor.
        unsafe {
            syscall!(libc::SYS_mprotect, start(top.cast()), GUARD_LEN, libc::PROT_NONE);
            libc::pthread_setspecific(KEY.load(Ordering::Relaxed), top.cast());
        }
    });
}

/// Where the mapping begins.
fn start(top: *mut u8) -> *mut u8 {
    top.wrapping_add(size_of::<Top>()).wrapping_sub(STACK_LEN)
}

/// At the end of a thread, on its own stack: frees the other one. Should Go be called once more, by another such function, it gets
/// a new one.
///
/// # Safety
/// libc's contract: what `begin` has noted.
unsafe extern "C" fn end(top: *mut c_void) {
    thread::set_stack(core::ptr::null_mut());
    // SAFETY: the thread's own mapping, on which it is not now, since no call is under way at the end of a thread.
    unsafe { mem::unmap(start(top.cast()), STACK_LEN) };
}
