//! The library without libc, for programs that have none it could use (`--cfg sd_freestanding`): what stands in for the little that it
//! needs of libc, and for thread-local storage.
//!
//! | of libc | here |
//! |---|---|
//! | memcpy and its like, which the compiler calls | plain ones |
//! | errno | a word of the thread's [`Block`] |
//! | clock_gettime | the kernel's own, of the vDSO ([`set_clock`]); a system call where that is missing |
//! | getauxval, environ | what the kernel left on the stack ([`set_start`]) |
//! | threads: cancellation, "is there only one?" | a word of the thread's; see `libcs` |
//!
//! GS leads to a thread's block. A thread that has not called the library yet has [`BLANK`], which says that it has no stack of the
//! library's and is nowhere: nothing else of it is read, and nothing is written but which handlers ran, for nobody. The rest of the block comes with its first call.
//! Programs find none of these names: the library exports nothing, and nothing of theirs is linked to it.

use crate::arch;
use crate::thread::Block;
use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Stands for the block of a thread that has none yet.
pub static BLANK: Block = Block::new();

/// Makes the block at a place, of zeros until now, and leads the calling thread to it.
///
/// # Safety
/// So much memory, aligned as a block is, which is the thread's until it ends.
pub unsafe fn begin_thread(at: *mut Block) {
    // SAFETY: by contract.
    unsafe {
        at.write(Block::new());
        (*at).set_own(at);
        arch::set_block(at);
    }
}

/// The first bytes of what the kernel left on the stack for the program: argument count, arguments, environment, auxiliary vector
/// (`getauxval(3)`).
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The environment, which ends with a null.
    pub environment: *const *const c_char,
    /// Pairs of words, which end with one of AT_NULL.
    pub auxiliary: *const [usize; 2],
}

impl Start {
    /// # Safety
    /// The stack pointer that the program begins with, and nothing there has been changed.
    pub unsafe fn of(stack: *const usize) -> Start {
        // SAFETY: by contract: the count, so many arguments and a null, the environment and a null, the pairs.
        unsafe {
            let environment = stack.add(*stack + 2);
            let mut at = environment;
            while *at != 0 {
                at = at.add(1);
            }
            Start { environment: environment.cast(), auxiliary: at.add(1).cast() }
        }
    }

    /// What follows `NAME=` in the environment.
    ///
    /// # Safety
    /// The environment is as it was at the start.
    pub unsafe fn variable(&self, name: &[u8]) -> Option<&'static [u8]> {
        let mut at = self.environment;
        // SAFETY: by contract: C strings, which end with a null.
        unsafe {
            while !(*at).is_null() {
                if let Some(value) = CStr::from_ptr(*at).to_bytes().strip_prefix(name) {
                    return Some(value);
                }
                at = at.add(1);
            }
        }
        None
    }

    /// A value of the auxiliary vector.
    pub fn value(&self, key: c_ulong) -> Option<usize> {
        // SAFETY: a pair of the vector.
        self.pair(key).map(|at| unsafe { (*at)[1] })
    }

    /// Where it is there: a key, and its value.
    pub fn pair(&self, key: c_ulong) -> Option<*const [usize; 2]> {
        let mut at = self.auxiliary;
        loop {
            // SAFETY: the pair of AT_NULL has not come yet.
            let [found, _] = unsafe { at.read() };
            if found == key as usize {
                return Some(at);
            }
            if found == libc::AT_NULL as usize {
                return None;
            }
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
    }
}

static AUXILIARY: AtomicPtr<[usize; 2]> = AtomicPtr::new(core::ptr::null_mut());

/// libc's variable, as the program was started with it.
#[unsafe(no_mangle)]
static environ: AtomicPtr<*const c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Before anything else of the library runs.
pub fn set_start(start: &Start) {
    AUXILIARY.store(start.auxiliary.cast_mut(), Ordering::Relaxed);
    environ.store(start.environment.cast_mut(), Ordering::Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn getauxval(key: c_ulong) -> c_ulong {
    let auxiliary = AUXILIARY.load(Ordering::Relaxed);
    if auxiliary.is_null() {
        return 0;
    }
    let start = Start { environment: core::ptr::null(), auxiliary };
    start.value(key).unwrap_or(0) as c_ulong
}

type Clock = unsafe extern "C" fn(c_int, *mut libc::timespec) -> c_int;

static CLOCK: AtomicUsize = AtomicUsize::new(0);

/// What tells the time from now on.
///
/// # Safety
/// Zero, or the address of the vDSO's `__vdso_clock_gettime` (vdso(7)).
pub unsafe fn set_clock(address: usize) {
    CLOCK.store(address, Ordering::Relaxed);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut libc::timespec) -> c_int {
    match CLOCK.load(Ordering::Relaxed) {
        // SAFETY: the caller's contract.
        0 => (unsafe { crate::syscall!(libc::SYS_clock_gettime, clock, time) }) as c_int,
        address => {
            // SAFETY: what `set_clock` was told.
            let ask: Clock = unsafe { core::mem::transmute(address) };
            // SAFETY: the caller's contract.
            unsafe { ask(clock, time) }
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn __errno_location() -> *mut c_int {
    crate::thread::block().errno.get()
}

#[unsafe(no_mangle)]
extern "C" fn pthread_self() -> usize {
    arch::block() as usize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_setcancelstate(_: c_int, old: *mut c_int) -> c_int {
    const PTHREAD_CANCEL_ENABLE: c_int = 0;
    if crate::thread::is_cancelled() && !old.is_null() {
        // SAFETY: the caller's contract.
        unsafe { old.write(PTHREAD_CANCEL_ENABLE) };
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn pthread_testcancel() {}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { arch::copy_string(to.cast(), from.cast(), len) };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's contract; where the ranges overlap so that copying forwards would be wrong, backwards.
    unsafe {
        if (to as usize).wrapping_sub(from as usize) >= len {
            arch::copy_string(to.cast(), from.cast(), len);
        } else {
            arch::copy_string_backwards(to.cast(), from.cast(), len);
        }
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { arch::fill_string(to.cast(), byte as u8, len) };
    to
}

/// The difference of the first bytes that differ.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(first: *const c_void, second: *const c_void, len: usize) -> c_int {
    let (first, second) = (first.cast::<u8>(), second.cast::<u8>());
    let mut at = 0;
    while at < len {
        // SAFETY: the caller's contract.
        let (a, b) = unsafe { (first.add(at).read_volatile(), second.add(at).read_volatile()) };
        if a != b {
            return c_int::from(a) - c_int::from(b);
        }
        at += 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(first: *const c_void, second: *const c_void, len: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { memcmp(first, second, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const c_char) -> usize {
    let mut len = 0;
    // SAFETY: the caller's contract: it ends with a zero byte.
    while unsafe { text.add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}
