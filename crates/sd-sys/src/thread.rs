//! What the library keeps of the calling thread: one block of words, of two lines of cache. Nothing else of the library is thread-local.
//!
//! The block is in the thread's static storage (`arch` defines it), since the library is always loaded at the program's start:
//! so reading a word of it is no call, allocates nothing, and needs nothing at the thread's end. A word is read and written by
//! its thread only, and by handlers of signals that come on that thread.

use crate::fd;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Of a poll on two descriptors, and of a call of a handler in it.
const COUNTS: usize = 3;

/// The words of a thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Block {
    /// How many sections it is in, and one bit more; see `section`. First, so that its address is the block's.
    pub(crate) section: AtomicU32,
    /// Its id once it has been asked for, or zero.
    id: AtomicI32,
    /// The signal mask to go back to at the end of the sections.
    pub(crate) mask: AtomicU64,
    /// Bit n when a handler of signal n ran.
    pub(crate) handled: [AtomicU64; 2],
    /// Its record in its family's table.
    record: AtomicPtr<Record>,
    /// What it knows of the child that it is forking.
    child: AtomicU64,
    /// Two descriptors that it is in a poll of the kernel's on.
    polled: AtomicU64,
    /// The descriptor that its call is on, plus one; zero: none is known.
    called: AtomicI32,
    /// It is starting a program, or is the child in which that will run.
    starting: AtomicBool,
    /// See `section::is_in_a_call`.
    pub(crate) in_call: AtomicBool,
    /// On pthread_cancel(3): it is in a call in which it may be cancelled; it is to be.
    #[cfg(sd_freestanding)]
    cancel: [AtomicBool; 2],
    /// The top of the stack that the library runs on in this thread, where the program's is not to be used; or null.
    stack: AtomicPtr<u8>,
    /// Where it is itself.
    #[cfg(sd_freestanding)]
    own: AtomicPtr<Block>,
    /// Calls of the kernel's that it is in and that are counted: what counts each, and on which descriptor it is, plus one.
    counts: [AtomicU64; COUNTS],
    counted: [AtomicI32; COUNTS],
    /// What there is instead of libc's errno.
    #[cfg(sd_freestanding)]
    pub(crate) errno: core::cell::UnsafeCell<core::ffi::c_int>,
}

#[cfg(sd_freestanding)]
impl Block {
    /// That of a thread that begins.
    pub(crate) const fn new() -> Block {
        Block {
            section: AtomicU32::new(0),
            id: AtomicI32::new(0),
            mask: AtomicU64::new(0),
            handled: [const { AtomicU64::new(0) }; 2],
            record: AtomicPtr::new((&raw const NOBODY).cast_mut()),
            child: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            called: AtomicI32::new(0),
            starting: AtomicBool::new(false),
            in_call: AtomicBool::new(false),
            cancel: [const { AtomicBool::new(false) }; 2],
            stack: AtomicPtr::new(core::ptr::null_mut()),
            own: AtomicPtr::new(core::ptr::null_mut()),
            counts: [const { AtomicU64::new(0) }; COUNTS],
            counted: [const { AtomicI32::new(0) }; COUNTS],
            errno: core::cell::UnsafeCell::new(0),
        }
    }

    /// Notes where it is.
    pub(crate) fn set_own(&self, own: *mut Block) {
        self.own.store(own, Ordering::Relaxed);
    }
}

// SAFETY: `errno` is used by its thread only, as libc's is; the rest is atomics.
#[cfg(sd_freestanding)]
unsafe impl Sync for Block {}

/// Where words are in the block, for assembly.
pub const SECTION: usize = offset_of!(Block, section);
/// See [`SECTION`].
pub const HANDLED: usize = offset_of!(Block, handled);
/// See [`SECTION`].
pub const RECORD: usize = offset_of!(Block, record);
/// See [`SECTION`].
pub const STACK: usize = offset_of!(Block, stack);

/// See [`SECTION`].
#[cfg(sd_freestanding)]
pub const OWN: usize = offset_of!(Block, own);
/// See [`SECTION`].
#[cfg(sd_freestanding)]
pub const CANCEL: usize = offset_of!(Block, cancel);
/// What there is of two bytes when [`is_cancelled`].
#[cfg(sd_freestanding)]
pub const CANCELLED: u16 = 0x0101;

const _: () = assert!(size_of::<Block>() == 128 && size_of::<AtomicPtr<Record>>() == 8);

/// What others must know of a thread: a line of cache, whose words have meanings elsewhere (`sd_ring::token::Thread`).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Record([AtomicU64; 8]);

/// The words of the record that stands for that of a thread that has none; `sd-socket` proves that they are right.
pub const NOBODY_WORDS: [u64; 8] = [0, u64::MAX, u64::MAX, 0, 0, 0, 0, 0];
/// Stands for the record of a thread that has none. Each thread begins with it.
pub static NOBODY: Record = {
    let [a, b, c, d, e, f, g, h] = NOBODY_WORDS;
    Record([
        AtomicU64::new(a),
        AtomicU64::new(b),
        AtomicU64::new(c),
        AtomicU64::new(d),
        AtomicU64::new(e),
        AtomicU64::new(f),
        AtomicU64::new(g),
        AtomicU64::new(h),
    ])
};

/// The calling thread's block. The reference is good until the thread ends, so it is given to nobody who could keep it.
#[inline(always)]
pub(crate) fn block<'a>() -> &'a Block {
    // SAFETY: the block is there as long as the thread; all words of it are atomics.
    unsafe { &*crate::arch::block() }
}

/// The calling thread's record, or [`NOBODY`].
#[inline(always)]
pub fn record() -> *const Record {
    crate::arch::record()
}

/// Changes which record is the calling thread's.
pub fn set_record(record: *const Record) {
    crate::arch::set_record(record);
}

/// The calling thread's id, which the kernel is asked for once. It is not for fast paths, so it is not inlined.
#[inline(never)]
pub fn id() -> i32 {
    let known = &block().id;
    match known.load(Ordering::Relaxed) {
        0 => {
            let id = fd::gettid();
            known.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

/// Forgets the id: in the child of a fork.
pub fn forget_id() {
    block().id.store(0, Ordering::Relaxed);
}

/// What the thread knows of the child that it is forking: see [`set_child`].
pub fn child() -> Option<(u32, u32)> {
    let word = block().child.load(Ordering::Relaxed);
    (word >> 32).checked_sub(1).map(|number| (number as u32, word as u32))
}

/// Notes two numbers about the child that the thread is forking, the first of them below 2^32 - 1.
pub fn set_child(child: Option<(u32, u32)>) {
    let word = child.map_or(0, |(number, serial)| (u64::from(number) + 1) << 32 | u64::from(serial));
    block().child.store(word, Ordering::Relaxed);
}

/// The descriptors that [`set_polled`] noted, each plus one; zeros: none.
#[inline]
pub fn polled() -> [u32; 2] {
    let word = block().polled.load(Ordering::Relaxed);
    [word as u32, (word >> 32) as u32]
}

/// Notes one or two descriptors, each plus one, that the thread is in a poll of the kernel's on.
pub fn set_polled([first, second]: [u32; 2]) {
    block().polled.store(u64::from(second) << 32 | u64::from(first), Ordering::Relaxed);
}

/// The thread begins a call of the kernel's on a descriptor, which `what`, not zero, counts: [`uncount`] finds that. Of more than three calls within each
/// other, by handlers of signals, or left by longjmp, the first is forgotten.
#[inline]
pub fn count(fd: i32, what: u64) {
    let block = block();
    let is_free = |count: &AtomicU64| count.load(Ordering::Relaxed) == 0;
    let Some(at) = block.counts.iter().position(is_free) else { return count_instead(fd, what) };
    if let (Some(count), Some(counted)) = (block.counts.get(at), block.counted.get(at)) {
        counted.store(fd.wrapping_add(1), Ordering::Relaxed);
        // The last: a handler that comes before finds the place free, and leaves it so.
        count.store(what, Ordering::Relaxed);
    }
}

#[cold]
#[inline(never)]
fn count_instead(fd: i32, what: u64) {
    let block = block();
    for at in 1..COUNTS {
        if let (Some([to, from]), Some([number, next])) =
            (block.counts.get(at - 1..=at), block.counted.get(at - 1..=at))
        {
            number.store(next.load(Ordering::Relaxed), Ordering::Relaxed);
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            from.store(0, Ordering::Relaxed);
        }
    }
    count(fd, what);
}

/// The thread has come back from its call on a descriptor: what counts it, or zero.
#[inline]
pub fn uncount(fd: i32) -> u64 {
    let block = block();
    let is_it = |(count, counted): &(&AtomicU64, &AtomicI32)| {
        count.load(Ordering::Relaxed) != 0 && counted.load(Ordering::Relaxed) == fd.wrapping_add(1)
    };
    let found = block.counts.iter().zip(&block.counted).rev().find(is_it);
    found.map_or(0, |(count, _)| count.swap(0, Ordering::Relaxed))
}

/// What counts the calls that the thread is in is gone.
pub fn forget_counts() {
    block().counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

/// While it is there the thread's call is on a descriptor of the program's, which that does not close meanwhile: [`called`].
#[derive(Debug)]
pub struct Called {
    before: i32,
}

impl Called {
    /// Notes it; a call within another, by a handler of a signal, is on its own.
    #[inline]
    pub fn on(fd: i32) -> Called {
        let called = &block().called;
        let before = called.load(Ordering::Relaxed);
        called.store(fd.wrapping_add(1), Ordering::Relaxed);
        Called { before }
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        block().called.store(self.before, Ordering::Relaxed);
    }
}

/// The descriptor of the thread's call, if it is known; after a call that never returned (longjmp) what that was on.
#[inline]
pub fn called() -> Option<i32> {
    Some(block().called.load(Ordering::Relaxed).wrapping_sub(1)).filter(|fd| *fd >= 0)
}

/// Whether the thread is starting a program, or is the child in which that will run.
pub fn is_starting() -> bool {
    block().starting.load(Ordering::Relaxed)
}

/// See [`is_starting`].
pub fn set_starting(is_starting: bool) {
    block().starting.store(is_starting, Ordering::Relaxed);
}

/// Says that the thread may be cancelled now, or not any more; whether it was so before.
#[cfg(sd_freestanding)]
pub fn set_cancellable(is_so: bool) -> bool {
    let [cancellable, _] = &block().cancel;
    // A handler that comes in between leaves it as it was.
    let before = cancellable.load(Ordering::Relaxed);
    cancellable.store(is_so, Ordering::Relaxed);
    before
}

/// The thread is to be cancelled, in the next call in which it may be.
#[cfg(sd_freestanding)]
pub fn mark_cancelled() {
    let [_, is_marked] = &block().cancel;
    is_marked.store(true, Ordering::Relaxed);
}

/// Whether the thread was marked so: it is not any more.
#[cfg(sd_freestanding)]
#[inline]
pub fn take_mark() -> bool {
    let [_, is_marked] = &block().cancel;
    let before = is_marked.load(Ordering::Relaxed);
    if before {
        is_marked.store(false, Ordering::Relaxed);
    }
    before
}

/// The thread is in a call in which it may be cancelled.
#[cfg(sd_freestanding)]
pub fn is_cancellable() -> bool {
    let [cancellable, _] = &block().cancel;
    cancellable.load(Ordering::Relaxed)
}

/// The thread is in a call in which it may be cancelled, and is to be.
#[cfg(sd_freestanding)]
pub fn is_cancelled() -> bool {
    block().cancel.iter().all(|part| part.load(Ordering::Relaxed))
}

/// The top of the stack of the library's own that this thread has, or null.
pub fn stack() -> *mut u8 {
    block().stack.load(Ordering::Relaxed)
}

/// See [`stack`].
pub fn set_stack(top: *mut u8) {
    block().stack.store(top, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_by_its_descriptor() {
        assert_eq!(uncount(0), 0);
        count(0, 10);
        count(5, 15);
        // A handler, on the same descriptor, which leads elsewhere by now.
        count(5, 25);
        assert_eq!([uncount(5), uncount(0), uncount(5), uncount(5)], [25, 10, 15, 0]);
        // Some that never returned.
        (1..=COUNTS as i32 + 1).for_each(|fd| count(fd, fd as u64));
        assert_eq!((uncount(1), uncount(COUNTS as i32 + 1)), (0, COUNTS as u64 + 1));
        count(9, 9);
        assert_eq!([9, 2, 3].map(uncount), [9, 2, 3]);
        count(5, 15);
        forget_counts();
        assert_eq!(uncount(5), 0);
    }

    #[test]
    fn a_call_within_a_call_is_on_its_own_descriptor() {
        assert_eq!(called(), None);
        let outer = Called::on(0);
        assert_eq!(called(), Some(0));
        drop(Called::on(7));
        assert_eq!(called(), Some(0));
        drop(outer);
        assert_eq!(called(), None);
    }

    #[test]
    fn each_thread_has_its_own_block() {
        assert!(core::ptr::eq(record(), &NOBODY));
        set_record(core::ptr::null());
        set_child(Some((7, 9)));
        set_starting(true);
        let other = std::thread::spawn(|| {
            (record() == &raw const NOBODY, child(), is_starting(), id(), block() as *const Block as usize)
        });
        let (is_nobody, child_of_other, is_other_starting, other_id, other_block) = other.join().unwrap();
        assert!(is_nobody && !is_other_starting && child_of_other.is_none() && other_id != id());
        assert_ne!(other_block, block() as *const Block as usize);
        assert!(record().is_null() && is_starting() && child() == Some((7, 9)));
        assert_eq!((id(), id()), (fd::gettid(), fd::gettid()));
    }
}
