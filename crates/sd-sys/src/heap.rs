//! The library's allocator: libc's, until a process can no longer rely on that.
//!
//! The child of a bare clone(2) has copies of the locks of libc's malloc, and of any allocator that stands in for it, as
//! they were at that moment: what another thread held then stays held for ever. fork(3) knows and waits for them; clone
//! does not. Such a child calls [`leave_libc`] first, and from then on the library allocates from a private mapping of its own,
//! by powers of two. What libc had given before is not given back: libc's lists may be locked, or half changed.
//!
//! Guarantees: in any other process nothing but one load and a branch is added to an allocation. Memory of the own heap
//! is used again, but never returned to the system. Tests: below; `pass/hot-allocator` of `tests/posix`.

use crate::lock::Lock;
use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};

/// libc's malloc(3) and its like; the program may have brought others.
#[cfg(not(sd_freestanding))]
struct System;

/// malloc aligns to this.
#[cfg(not(sd_freestanding))]
const ALIGNED: usize = 16;

// SAFETY: as large as asked for, and aligned: malloc aligns to 16 bytes, posix_memalign to what it is told.
#[cfg(not(sd_freestanding))]
unsafe impl GlobalAlloc for System {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: no pointers.
            return unsafe { libc::malloc(layout.size()) }.cast();
        }
        let mut block = core::ptr::null_mut();
        // SAFETY: writes one pointer; the alignment is a power of two, and a multiple of a pointer's size.
        unsafe { libc::posix_memalign(&mut block, layout.align(), layout.size()) };
        block.cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: no pointers.
            return unsafe { libc::calloc(layout.size(), 1) }.cast();
        }
        // SAFETY: the caller's contract.
        unsafe { zeroed(self, layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, _: Layout) {
        // SAFETY: the caller's contract: a block of libc's.
        unsafe { libc::free(ptr.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: the caller's contract: a block of libc's.
            return unsafe { libc::realloc(ptr.cast(), size) }.cast();
        }
        // SAFETY: the caller's contract.
        unsafe { moved(self, ptr, layout, size) }
    }
}

/// Where there is no libc, [`leave_libc`] comes before all others.
#[cfg(sd_freestanding)]
struct System;

// SAFETY: gives nothing.
#[cfg(sd_freestanding)]
unsafe impl GlobalAlloc for System {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

/// Address space of the own heap; memory is touched lazily.
const LEN: usize = if cfg!(sd_freestanding) { 256 << 20 } else { 64 << 20 };
/// The smallest block, as a power of two.
const SMALLEST: u32 = 4;
/// The largest: a quarter of the heap.
const LARGEST: u32 = 24;
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;

/// Start of the own heap; zero while libc's is used.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Free blocks of each size, as lists through their first words, and where unused memory begins.
struct Blocks {
    free: [usize; CLASSES],
    next: usize,
    end: usize,
}

static BLOCKS: Lock<Blocks> = Lock::new(Blocks { free: [0; CLASSES], next: 0, end: 0 });

/// See the module.
pub struct Heap;

/// From now on this process's library has a heap of its own; without memory for one it stays with libc's, and false is returned. For the
/// child of a clone, and where there is no libc, before anything is allocated or freed.
pub fn leave_libc() -> bool {
    if BASE.load(Ordering::Relaxed) == 0
        && let Ok(base) = crate::mem::reserve_private(LEN)
    {
        let mut blocks = BLOCKS.lock();
        (blocks.next, blocks.end) = (base as usize, base as usize + LEN);
        BASE.store(base as usize, Ordering::Release);
    }
    BASE.load(Ordering::Relaxed) != 0
}

/// Keeps the own heap as it is across a fork; [`unlock`] follows in parent and child.
pub fn keep_lock() {
    BLOCKS.lock_and_keep();
}

/// Ends [`keep_lock`].
///
/// # Safety
/// The calling thread (or the one it is a copy of) called `keep_lock`.
pub unsafe fn unlock() {
    // SAFETY: promised by the caller.
    unsafe { BLOCKS.unlock() };
}

/// The number of a layout's class, and the size of its blocks; `None` when it is too large.
fn class_of(layout: &Layout) -> Option<(usize, usize)> {
    let wanted = layout.size().max(layout.align()).max(1 << SMALLEST);
    let bits = wanted.checked_next_power_of_two()?.trailing_zeros();
    (bits <= LARGEST).then_some(((bits - SMALLEST) as usize, 1 << bits))
}

fn is_own(base: usize, ptr: *mut u8) -> bool {
    (base..base + LEN).contains(&(ptr as usize))
}

impl Blocks {
    fn take(&mut self, layout: &Layout) -> Option<*mut u8> {
        let (class, size) = class_of(layout)?;
        let first = self.free.get_mut(class)?;
        if *first != 0 {
            let block = *first as *mut usize;
            // SAFETY: a free block of ours, whose first word leads to the next one.
            *first = unsafe { block.read() };
            return Some(block.cast());
        }
        let at = self.next.checked_next_multiple_of(size)?;
        if at + size > self.end {
            return None;
        }
        self.next = at + size;
        Some(at as *mut u8)
    }

    fn give_back(&mut self, ptr: *mut u8, layout: &Layout) {
        if let Some(first) = class_of(layout).and_then(|(class, _)| self.free.get_mut(class)) {
            // SAFETY: a block of ours that nobody uses any more, of 16 bytes at least.
            unsafe { ptr.cast::<usize>().write(*first) };
            *first = ptr as usize;
        }
    }
}

// SAFETY: blocks are as large and as well aligned as asked for, and nobody has one twice: the lock sees to that.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if BASE.load(Ordering::Relaxed) == 0 {
            // SAFETY: the caller's contract.
            return unsafe { System.alloc(layout) };
        }
        BLOCKS.lock().take(&layout).unwrap_or(core::ptr::null_mut())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if BASE.load(Ordering::Relaxed) == 0 {
            // SAFETY: the caller's contract.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's contract.
        unsafe { zeroed(self, layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        match BASE.load(Ordering::Relaxed) {
            // SAFETY: the caller's contract.
            0 => unsafe { System.dealloc(ptr, layout) },
            base if is_own(base, ptr) => BLOCKS.lock().give_back(ptr, &layout),
            _ => {}
        }
    }

    #[inline]
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if BASE.load(Ordering::Relaxed) == 0 {
            // SAFETY: the caller's contract.
            return unsafe { System.realloc(ptr, layout, size) };
        }
        // SAFETY: the caller's contract.
        unsafe { moved(self, ptr, layout, size) }
    }
}

/// A block of zeros.
///
/// # Safety
/// As `GlobalAlloc::alloc`.
#[inline]
unsafe fn zeroed(heap: &impl GlobalAlloc, layout: Layout) -> *mut u8 {
    // SAFETY: by contract; a block has the size of its layout at least.
    unsafe {
        let block = heap.alloc(layout);
        if !block.is_null() {
            block.write_bytes(0, layout.size());
        }
        block
    }
}

/// A block of another size, to which a block of an allocator goes.
///
/// # Safety
/// As `GlobalAlloc::realloc`: `size`, rounded up, is no overflow.
#[inline(never)]
unsafe fn moved(heap: &impl GlobalAlloc, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    // SAFETY: by contract; both blocks hold the bytes copied.
    unsafe {
        let new = heap.alloc(Layout::from_size_align_unchecked(size, layout.align()));
        if !new.is_null() {
            new.copy_from_nonoverlapping(ptr, size.min(layout.size()));
            heap.dealloc(ptr, layout);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    fn blocks(memory: &mut [u64]) -> Blocks {
        let next = memory.as_mut_ptr() as usize;
        Blocks { free: [0; CLASSES], next, end: next + size_of_val(memory) }
    }

    #[test]
    fn blocks_do_not_overlap_and_are_used_again() {
        // Large blocks are aligned, wherever this begins.
        let mut memory = vec![0u64; 1 << 18];
        let mut blocks = blocks(&mut memory);
        let mut taken = Vec::new();
        for (i, size) in [1, 16, 17, 100, 4096, 70_000].into_iter().enumerate() {
            for align in [1, 8, 64] {
                let layout = layout(size, align);
                let ptr = blocks.take(&layout).unwrap();
                assert_eq!(ptr as usize % align, 0);
                // SAFETY: the block has that size.
                unsafe { ptr.write_bytes(i as u8 + 1, size) };
                taken.push((ptr, layout, i as u8 + 1));
            }
        }
        for (ptr, layout, byte) in &taken {
            // SAFETY: the block has that size, and was written.
            let bytes = unsafe { core::slice::from_raw_parts(*ptr, layout.size()) };
            assert!(bytes.iter().all(|b| b == byte));
            blocks.give_back(*ptr, layout);
        }
        let end = blocks.next;
        taken.iter().for_each(|(_, layout, _)| assert!(blocks.take(layout).is_some()));
        assert_eq!(blocks.next, end, "the second time takes what was given back");
    }

    #[test]
    fn too_much_is_refused() {
        let mut memory = vec![0u64; 64];
        let mut blocks = blocks(&mut memory);
        assert!(blocks.take(&layout(1024, 8)).is_none());
        assert!(class_of(&layout(usize::MAX / 4, 8)).is_none());
        assert!(blocks.take(&layout(16, 8)).is_some());
    }

    #[test]
    fn a_child_of_clone_leaves_libcs_heap() {
        let kept = Box::into_raw(Box::new(7u64));
        // SAFETY: a child that only uses what is tested here, and ends; then a plain wait.
        unsafe {
            let child = crate::syscall!(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0, 0);
            if child == 0 {
                leave_libc();
                let layout = layout(100, 8);
                let ptr = Heap.alloc(layout);
                let fine = is_own(BASE.load(Ordering::Relaxed), ptr);
                let larger = Heap.realloc(ptr, layout, 5000);
                // Not ours: nothing happens.
                Heap.dealloc(kept.cast(), Layout::new::<u64>());
                libc::_exit(i32::from(!(fine && *kept == 7 && !larger.is_null())));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child as i32, &mut status, 0), child as i32);
            assert_eq!(status, 0);
            drop(Box::from_raw(kept));
        }
    }
}
