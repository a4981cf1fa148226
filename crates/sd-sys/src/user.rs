//! May the program's memory be read, or written? Asked before the library touches what a caller points to, where the kernel
//! would say EFAULT.
//!
//! Two system calls tell without doing anything: rt_sigprocmask(2) with a `how` that does not exist reads the new mask
//! first, and FUTEX_WAKE_OP adds no bit to a word. What lies a little above the stack pointer is the caller's frame and
//! needs no question. The answers with `seems` remember pages, for calls that are made often: memory that the program
//! takes away later faults in the program, as it does for buffers of data.
//!
//! Where a filter of the program's forbids these calls, the answer is yes.

use crate::{check, confine, syscall};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use libc::c_void;

/// What is asked about at once: a page, or a part of one.
const PAGE: usize = crate::mem::SMALLEST_PAGE;
/// Bytes above the stack pointer that are stack for certain enough.
const FRAMES: usize = 4 * PAGE;
/// Of longer memory only the ends are looked at.
const PAGES_MAX: usize = 16;

/// Pages that were found to be good, by hash.
struct Known([AtomicUsize; KNOWN]);

/// Threads of a program have their stacks and arrays in as many pages.
const KNOWN: usize = 256;

static READABLE: Known = Known([const { AtomicUsize::new(0) }; KNOWN]);
static WRITABLE: Known = Known([const { AtomicUsize::new(0) }; KNOWN]);

impl Known {
    #[inline]
    fn place(&self, page: usize) -> &AtomicUsize {
        let number = page / PAGE;
        let [first, ..] = &self.0;
        self.0.get((number ^ number >> 8 ^ number >> 16) % self.0.len()).unwrap_or(first)
    }

    #[inline]
    fn ask(&self, page: usize, probe: fn(usize) -> bool) -> bool {
        let place = self.place(page);
        if place.load(Ordering::Relaxed) == page {
            return true;
        }
        let is_good = probe(page);
        if is_good {
            place.store(page, Ordering::Relaxed);
        }
        is_good
    }
}

/// The memory can be read.
#[inline]
pub fn is_readable<T>(memory: *const T, len: usize) -> bool {
    is_on_stack(memory as usize, len) || pages(memory as usize, len, can_read)
}

/// The memory can be written; its content stays.
#[inline]
pub fn is_writable<T>(memory: *const T, len: usize) -> bool {
    is_on_stack(memory as usize, len) || pages(memory as usize, len, can_write)
}

/// The memory can be read, or could be a while ago.
#[inline]
pub fn seems_readable<T>(memory: *const T, len: usize) -> bool {
    is_on_stack(memory as usize, len) || pages(memory as usize, len, |page| READABLE.ask(page, can_read))
}

/// The memory can be written, or could be a while ago.
#[inline]
pub fn seems_writable<T>(memory: *const T, len: usize) -> bool {
    is_on_stack(memory as usize, len) || pages(memory as usize, len, |page| WRITABLE.ask(page, can_write))
}

#[inline(always)]
fn is_on_stack(start: usize, len: usize) -> bool {
    start.wrapping_sub(crate::arch::stack_pointer()) < FRAMES && len < FRAMES
}

/// Asks for each page of a piece of memory.
fn pages(start: usize, len: usize, is_good: impl Fn(usize) -> bool) -> bool {
    let Some(last) = len.checked_sub(1) else { return true };
    let Some(end) = start.checked_add(last) else { return false };
    let (first, last) = (start & !(PAGE - 1), end & !(PAGE - 1));
    if first == 0 {
        // A null pointer would say that there is nothing to read.
        return false;
    }
    match (last - first) / PAGE {
        0 => is_good(first),
        more if more <= PAGES_MAX => (first..=last).step_by(PAGE).all(is_good),
        _ => is_good(first) && is_good(last),
    }
}

#[cold]
fn can_read(page: usize) -> bool {
    const NO_SUCH_HOW: i32 = -1;
    const MASK_LEN: usize = 8;
    if !confine::allows(libc::SYS_rt_sigprocmask) {
        return true;
    }
    // SAFETY: the kernel reads the mask, if it can, and then refuses.
    let answer =
        unsafe { syscall!(libc::SYS_rt_sigprocmask, NO_SUCH_HOW, page as *const c_void, 0usize, MASK_LEN) };
    check(answer).err().is_none_or(|error| error.0 != libc::EFAULT)
}

#[cold]
fn can_write(page: usize) -> bool {
    /// Wakes those who wait here, which is nobody.
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    /// The word |= 0; those who wait there are woken if it is 0x7ff, which they survive.
    const NO_CHANGE: u32 = 2 << 28 | 0x7ff;
    if !confine::allows(libc::SYS_futex) {
        return true;
    }
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    let nobody = core::ptr::from_ref(&NOBODY);
    // SAFETY: the kernel looks whether it can write the word at the beginning of the page, and leaves it as it is.
    let answer = unsafe {
        syscall!(libc::SYS_futex, nobody, operation, 1usize, 0usize, page as *const c_void, NO_CHANGE)
    };
    check(answer).err().is_none_or(|error| error.0 != libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(protection: i32) -> usize {
        // SAFETY: a new mapping.
        unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                2 * PAGE,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            ) as usize
        }
    }

    #[test]
    fn tells_what_can_be_touched() {
        let (both, read, none) =
            (map(libc::PROT_READ | libc::PROT_WRITE), map(libc::PROT_READ), map(libc::PROT_NONE));
        for (at, can_read, can_write) in
            [(both, true, true), (read, true, false), (none, false, false), (8, false, false)]
        {
            let memory = at as *const u8;
            assert_eq!([is_readable(memory, 8), is_writable(memory, 8)], [can_read, can_write], "{at:#x}");
            assert_eq!(
                [seems_readable(memory, 8), seems_writable(memory, 8)],
                [can_read, can_write],
                "{at:#x}"
            );
            assert!(is_readable(memory, 0));
        }
        assert!(!is_readable(usize::MAX as *const u8, 8));
        let local = [7u8; 100];
        assert!(is_writable(local.as_ptr(), 100));
    }

    #[test]
    fn changes_nothing() {
        let word = Box::new([0xdead_beef_u32; 2048]);
        assert!(is_writable(word.as_ptr(), 8192));
        assert!(word.iter().all(|word| *word == 0xdead_beef));
    }
}
