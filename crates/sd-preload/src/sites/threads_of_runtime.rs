//! The stacks of threads that the program's runtime has made: made at a thread's first call, with the thread's block above, and freed by the
//! call that ends the thread.

use core::sync::atomic::{AtomicBool, Ordering};
use sd_sys::arch::{STACK_LEN, TOP_AT, Top};
use sd_sys::{check, freestanding, syscall, thread};

/// Where a thread ends.
pub(super) fn exit_address() -> usize {
    exit_entry as *const () as usize
}

sd_sys::exit_entry!(exit_entry, ended: ended);

/// A thread of a program that is not Go's makes its first call: makes its block, and leaves it on the program's stack; false without memory.
pub(super) unsafe extern "C" fn begin_any() -> bool {
    let has_begun = begin_own();
    if has_begun {
        leave_stack();
    }
    has_begun
}

/// The calling thread is the child's only one, and begins on a stack that may be too small for the library: it has one of its own from now on.
pub(super) fn begin_on_small_stack() {
    thread::set_stack(own_top().cast());
}

/// What lies below the end of a stack is nobody's.
const GUARD_LEN: usize = 4096;

/// A thread has a new stack, and runs on it: makes its block, and notes the stack there.
///
/// # Safety
/// `entry`'s: `top` is at its place in a mapping of `STACK_LEN` bytes of zeros.
pub(super) unsafe extern "C" fn begin(top: *mut Top) {
    // SAFETY: by contract: the block's room is above; and the lowest page, of which nothing is used.
    unsafe {
        freestanding::begin_thread(top.add(1).cast());
        thread::set_stack(top.cast());
        syscall!(libc::SYS_mprotect, start(top), GUARD_LEN, libc::PROT_NONE);
    }
}

/// Where the mapping begins.
fn start(top: *mut Top) -> *mut u8 {
    top.cast::<u8>().wrapping_sub(TOP_AT)
}

/// The thread is about to end, and runs on its stack here.
unsafe extern "C" fn ended() -> *mut u8 {
    start(own_top())
}

/// The end of the calling thread's own stack: its block is behind it.
fn own_top() -> *mut Top {
    sd_sys::arch::block().cast_mut().cast::<Top>().wrapping_sub(1)
}

/// Makes the calling thread's; false without memory for it. All others inherit from the first one.
pub(crate) fn begin_own() -> bool {
    // As `entry` makes it: the end of the thread unmaps so much, and nothing counts it.
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
    );
    // SAFETY: where the kernel likes.
    let made = check(unsafe { syscall!(libc::SYS_mmap, 0, STACK_LEN, protection, flags, usize::MAX, 0) });
    let Ok(mapping) = made else { return false };
    // SAFETY: of zeros, so large, and nobody else's.
    unsafe { begin((mapping as *mut u8).wrapping_add(TOP_AT).cast()) };
    true
}

/// The program is Go's, and a libc makes its threads.
static KEEPS_STACKS: AtomicBool = AtomicBool::new(false);

/// Before [`leave_stack`]: each thread keeps its stack, as a goroutine may make calls in any.
pub(super) fn keep_stacks() {
    KEEPS_STACKS.store(true, Ordering::Relaxed);
}

/// The library runs on the program's stack in this thread: the program is not Go's.
pub(super) fn leave_stack() {
    if !KEEPS_STACKS.load(Ordering::Relaxed) {
        thread::set_stack(core::ptr::null_mut());
    }
}
