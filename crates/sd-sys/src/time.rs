//! Clocks and yielding.

use crate::{Result, check, syscall};

/// Nanoseconds of CLOCK_MONOTONIC, through the vDSO.
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: libc's clock_gettime is not hooked and writes only `ts`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// The processor's time-stamp counter: a cheap clock for bounding spins, not for durations.
#[inline(always)]
pub fn tsc() -> u64 {
    // SAFETY: rdtsc has no preconditions in user space.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// `ns` nanoseconds as a timespec.
pub fn timespec_of(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// sched_yield(2).
#[inline]
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_sched_yield) };
}

/// Sleeps `ns` nanoseconds or until a signal.
pub fn sleep_ns(ns: u64) -> Result<()> {
    let ts = timespec_of(ns);
    // SAFETY: the kernel reads `ts`.
    check(unsafe { syscall!(libc::SYS_nanosleep, &ts as *const libc::timespec, 0) }).map(drop)
}
