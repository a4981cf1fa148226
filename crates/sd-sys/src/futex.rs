//! futex(2): sleeping on and waking a 32-bit word.

use crate::{Result, check, confine, syscall};
use core::sync::atomic::AtomicU32;

pub(crate) const SYS_FUTEX_WAITV: libc::c_long = 449;

/// Whether the word lies in memory shared between processes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Only threads of this process use the word.
    Private,
    /// Other processes map the word too.
    Shared,
}

fn op(op: i32, scope: Scope) -> i32 {
    match scope {
        Scope::Private => op | libc::FUTEX_PRIVATE_FLAG,
        Scope::Shared => op,
    }
}

/// Sleeps while `*word == expected`, at most `timeout_ns` nanoseconds.
///
/// Where a filter forbids futex(2) it naps, and the caller looks again (see `confine`).
///
/// Errors: `EAGAIN` (the word differed), `ETIMEDOUT`, `EINTR` (a handler ran; without a timeout the
/// kernel itself restarts the wait when the handler has SA_RESTART, as recv(2) would).
pub fn wait(word: *const AtomicU32, expected: u32, timeout_ns: Option<u64>, scope: Scope) -> Result<()> {
    if !confine::allows(libc::SYS_futex) {
        // SAFETY: no mask.
        return unsafe { confine::nap(&mut [], timeout_ns, core::ptr::null()) }.map(drop);
    }
    let ts = timeout_ns.map(crate::time::timespec_of);
    let ts_ptr = ts.as_ref().map_or(core::ptr::null(), |t| t as *const libc::timespec);
    // SAFETY: the kernel only reads the word and the timespec; a bad address gives EFAULT.
    check(unsafe { syscall!(libc::SYS_futex, word, op(libc::FUTEX_WAIT, scope), expected, ts_ptr) }).map(drop)
}

/// Sleeps while `*word == expected`, at most `timeout_ns` nanoseconds; the word may be shared. After a handler with
/// SA_RESTART the kernel goes on with what is left of the time, as `wait` only does without a timeout.
///
/// Errors: as for `wait`; `ENOSYS` before Linux 5.16.
pub fn wait_restarting(word: *const AtomicU32, expected: u32, timeout_ns: u64) -> Result<()> {
    /// struct futex_waitv.
    #[repr(C)]
    struct Waiter {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    const FUTEX_32: u32 = 2;
    let waiter = Waiter { value: u64::from(expected), address: word as u64, flags: FUTEX_32, reserved: 0 };
    let until = crate::time::timespec_of(crate::time::now_ns().saturating_add(timeout_ns));
    // SAFETY: the kernel reads one waiter, the word and the timespec; a bad address gives EFAULT.
    check(unsafe {
        syscall!(
            SYS_FUTEX_WAITV,
            &waiter as *const Waiter,
            1,
            0,
            &until as *const libc::timespec,
            libc::CLOCK_MONOTONIC
        )
    })
    .map(drop)
}

/// Wakes up to `count` sleepers; returns how many were woken.
pub fn wake(word: *const AtomicU32, count: i32, scope: Scope) -> usize {
    // SAFETY: FUTEX_WAKE does not touch memory; a bad address gives EFAULT.
    check(unsafe { syscall!(libc::SYS_futex, word, op(libc::FUTEX_WAKE, scope), count) }).unwrap_or_default()
}
