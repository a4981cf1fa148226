//! The two libcs that the library can be loaded into: glibc and musl.
//!
//! | | glibc | musl |
//! |---|---|---|
//! | "is there only one thread?" | `__libc_single_threaded` (2.32) | the thread follows itself in the ring of all (1.2, x86-64) |
//! | lengths in `msghdr` and `cmsghdr` | words | half words, with padding that nobody writes |
//! | arguments of a constructor | argc, argv, environment | none |
//!
//! What only one of them has is a weak symbol of the library's ([`libc_names!`](crate::libc_names)).

use core::ffi::{c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use libc::cmsghdr;

/// Addresses of what not every libc has; null, or `None`, where it has not.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Names {
    /// `__libc_single_threaded`.
    pub single_threaded: *mut u8,
    /// `__register_atfork`, which pthread_atfork(3) is made of.
    pub register_atfork: Option<unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int>,
    /// sysconf(3) by a name that is not hooked: allocators ask before anything can be looked up.
    pub sysconf: Option<unsafe extern "C" fn(c_int) -> c_long>,
    /// gnu_get_libc_version(3).
    pub version: Option<unsafe extern "C" fn() -> *const c_char>,
}

/// What pthread_atfork(3) is given.
pub type Handler = Option<unsafe extern "C" fn()>;

/// glibc's flag; where the library is part of a program of ours, which says nothing, [`NEVER`]; for musl [`RING_KNOWS`].
static SINGLE_THREADED: AtomicPtr<i8> = AtomicPtr::new((&raw const NEVER).cast_mut());
/// Not the only thread, as far as is known.
static NEVER: i8 = 0;
/// musl's ring of threads says it.
static RING_KNOWS: i8 = -1;
static IS_MUSL: AtomicBool = AtomicBool::new(false);

/// Before anything else of the library runs.
///
/// # Safety
/// The names are those of the libc that is loaded.
pub unsafe fn begin(names: &Names) {
    let is_musl = names.version.is_none();
    let flag = if is_musl { (&raw const RING_KNOWS).cast_mut() } else { names.single_threaded.cast() };
    if !flag.is_null() {
        SINGLE_THREADED.store(flag, Ordering::Relaxed);
    }
    IS_MUSL.store(is_musl, Ordering::Relaxed);
}

/// The libc is not glibc.
#[inline(always)]
pub fn is_musl() -> bool {
    !cfg!(sd_freestanding) && IS_MUSL.load(Ordering::Relaxed)
}

/// A length in a `msghdr` or `cmsghdr` of the program's.
#[inline(always)]
pub fn length(word: usize) -> usize {
    if is_musl() { word & u32::MAX as usize } else { word }
}

/// The part of a message's control data that follows one, as CMSG_NXTHDR(3) finds it; the data ends at `end`.
///
/// # Safety
/// A header can be read there.
pub unsafe fn next_control(at: *mut cmsghdr, end: usize) -> *mut cmsghdr {
    const HEADER: usize = size_of::<cmsghdr>();
    // SAFETY: by contract.
    let len = length(unsafe { (*at).cmsg_len });
    let next =
        len.checked_next_multiple_of(align_of::<cmsghdr>()).and_then(|len| (at as usize).checked_add(len));
    match next {
        Some(next) if len >= HEADER && next.checked_add(HEADER).is_some_and(|behind| behind <= end) => {
            next as *mut cmsghdr
        }
        _ => core::ptr::null_mut(),
    }
}

/// The program has glibc in it.
#[cfg(sd_freestanding)]
static HAS_GLIBC: AtomicBool = AtomicBool::new(false);

/// Which libc is in the program: glibc, or another one.
#[cfg(sd_freestanding)]
pub fn set_glibc(is_it: bool) {
    HAS_GLIBC.store(is_it, Ordering::Relaxed);
}

/// The libc in the program is glibc. It keeps signals for itself: 32 for pthread_cancel(3), and 33 for setuid(2) and its like in all threads;
/// of musl's these are 33 and 34.
#[cfg(sd_freestanding)]
pub fn has_glibc() -> bool {
    HAS_GLIBC.load(Ordering::Relaxed)
}

/// Without libc: where the library sees each thread begin, and none has.
static IS_ONLY_THREAD: AtomicBool = AtomicBool::new(false);

/// The library sees each thread begin, and this is the only one; or another one is about to begin.
#[cfg(sd_freestanding)]
pub fn set_only_thread(is_only: bool) {
    IS_ONLY_THREAD.store(is_only, Ordering::Relaxed);
}

/// No second thread exists, as far as the libc tells. glibc clears its flag before a second thread starts. musl links a new thread into the
/// ring before pthread_create(3) returns, and until then lets no handler run in the thread that makes it; one of before 1.2 has zeros
/// there.
#[inline(always)]
pub fn is_only_thread() -> bool {
    if cfg!(sd_freestanding) {
        return IS_ONLY_THREAD.load(Ordering::Relaxed);
    }
    let flag = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: a plain byte that stays; glibc writes it (0 or 1) only while a single thread exists.
    let said = unsafe { flag.read_volatile() };
    said > 0 || said < 0 && crate::arch::follows_itself()
}
