//! What the child of a posix_spawn(3) writes to memory that it would share with its parent: here it has memory of its own.
//!
//! glibc's (`spawni.c`) has a word on its stack for the errno of what has failed in the child, and looks at it when the child, for
//! which the kernel lets it wait (CLONE_VFORK), executes or has ended. So here the parent waits too; a child that ends says before which
//! words of that part of the stack it has changed, and the parent changes them.
//!
//! ```text
//! parent --fork--> child            notes the words
//! parent <--pipe-- child            number and value of each that is another one, when it ends
//! parent <--end of the pipe-- child it executes, or ends
//! ```
//! Tested by the subjects `spawn/*` (`cargo xtask posix --static-glibc`).

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sd_socket::{calls, spawn::Starting};
use sd_sys::user;

/// So many words from the stack pointer on: where glibc calls clone(2) it is less than half of that below its word.
const WORDS: usize = 128;
/// In the child: where they are; or zero.
static STACK: AtomicUsize = AtomicUsize::new(0);
/// What they were.
static BEFORE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Forks by `fork`, for a caller whose stack pointer this is, and waits until the child executes or has ended.
///
/// # Safety
/// The caller waits for the child, so nobody else writes to its stack.
pub(super) unsafe fn fork(stack: usize, fork: impl FnOnce() -> Option<c_int>) -> Option<c_int> {
    let len = WORDS * size_of::<u64>();
    let is_known = stack.is_multiple_of(align_of::<u64>()) && user::is_readable(stack as *const u8, len);
    let Some(starting) = is_known.then(|| calls::spawn_begin().ok()).flatten() else { return fork() };
    let pid = fork();
    if pid == Some(0) {
        // SAFETY: it can be read, and is a copy that is this thread's only.
        unsafe { note(stack) };
        core::mem::forget(starting);
        return pid;
    }
    starting.forked();
    let mut said = [0u8; 16];
    while pid.is_some_and(|pid| pid > 0) && starting.hear(&mut said) == said.len() {
        let [number, value] = words(&said);
        if number < WORDS as u64 {
            // SAFETY: by contract, and one of those that could be read; what the child would have written there.
            unsafe { (stack as *mut u64).add(number as usize).write(value) };
        }
    }
    pid
}

fn words(bytes: &[u8; 16]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    core::array::from_fn(|n| words.get(n).map_or(u64::MAX, |word| u64::from_ne_bytes(*word)))
}

/// # Safety
/// So many words can be read there.
unsafe fn note(stack: usize) {
    for (n, word) in BEFORE.iter().enumerate() {
        // SAFETY: by contract.
        word.store(unsafe { (stack as *const u64).add(n).read() }, Ordering::Relaxed);
    }
    STACK.store(stack, Ordering::Relaxed);
}

/// The process is about to end: tells a parent that waits what it has written.
pub(super) fn end() {
    let stack = STACK.load(Ordering::Relaxed);
    if stack == 0 {
        return;
    }
    for (n, before) in BEFORE.iter().enumerate() {
        // SAFETY: `note` has read it; this thread's.
        let now = unsafe { (stack as *const u64).add(n).read() };
        if now != before.load(Ordering::Relaxed) {
            let [number, value] = [n as u64, now].map(u64::to_ne_bytes);
            let mut said = [0u8; 16];
            said.iter_mut().zip(number.into_iter().chain(value)).for_each(|(place, byte)| *place = byte);
            Starting::tell(&said);
        }
    }
}
