//! What one of the two libcs lacks, or has by another type.

use std::ffi::{c_int, c_ulong};

/// A thread as pthread_self(3) names it: a number here, whatever its type is in C.
pub(crate) type ThreadId = c_ulong;

unsafe extern "C" {
    pub(crate) fn pthread_self() -> ThreadId;
    pub(crate) fn pthread_kill(thread: ThreadId, signal: c_int) -> c_int;
}

/// The crate, with what musl's has not.
pub(crate) mod whole_libc {
    pub(crate) use libc::*;

    #[cfg(target_env = "musl")]
    pub(crate) unsafe fn epoll_pwait2(
        set: c_int,
        events: *mut libc::epoll_event,
        count: c_int,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int {
        // SAFETY: the caller's pointers; the kernel's sets have eight bytes.
        unsafe { libc::syscall(libc::SYS_epoll_pwait2, set, events, count, timeout, mask, 8usize) as c_int }
    }
}

pub(super) unsafe fn closes_range(first: u32, last: u32, flags: c_int) -> c_int {
    #[cfg(not(target_env = "musl"))]
    // SAFETY: no pointers.
    return unsafe { libc::close_range(first, last, flags) };
    #[cfg(target_env = "musl")]
    // SAFETY: no pointers.
    return unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int };
}

/// All threads allocate from one place, so that they hold its lock often.
pub(crate) fn one_arena() {
    #[cfg(not(target_env = "musl"))]
    // SAFETY: no pointers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}
