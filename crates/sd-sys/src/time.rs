//! Clocks and yielding.

use crate::{Result, check, syscall};
use core::sync::atomic::{AtomicU64, Ordering};

/// Zero, or the time that it is for a process that may not read any clock.
static INVENTED: AtomicU64 = AtomicU64::new(0);
/// A look at that time takes so long.
const LOOK_NS: u64 = 200;

/// From now on no clock may be read, as in strict mode of seccomp(2), where rdtsc is a SIGSEGV: time passes by looking.
pub fn forbid_clocks() {
    INVENTED.store(1, Ordering::Relaxed);
}

/// Nanoseconds of CLOCK_MONOTONIC, through the vDSO.
pub fn now_ns() -> u64 {
    if INVENTED.load(Ordering::Relaxed) != 0 {
        return INVENTED.fetch_add(LOOK_NS, Ordering::Relaxed);
    }
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: libc's clock_gettime is not hooked and writes only `ts`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// CLOCK_REALTIME, through the vDSO; zero where no clock may be read.
pub fn real() -> libc::timespec {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if INVENTED.load(Ordering::Relaxed) == 0 {
        // SAFETY: libc's clock_gettime is not hooked and writes only `ts`.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut ts) };
    }
    ts
}

/// The processor's time-stamp counter: a cheap clock for bounding spins, not for durations.
#[inline(always)]
pub fn tsc() -> u64 {
    if INVENTED.load(Ordering::Relaxed) != 0 {
        return 0;
    }
    crate::arch::ticks()
}

/// Time-stamp and time of [`calibrate`].
static FIRST_TSC: AtomicU64 = AtomicU64::new(0);
static FIRST_NS: AtomicU64 = AtomicU64::new(0);

/// Notes what both clocks say, once; to be called some time before the first question to [`ns_of_cycles`].
pub fn calibrate() {
    if FIRST_TSC.load(Ordering::Acquire) == 0 {
        FIRST_NS.store(now_ns(), Ordering::Relaxed);
        FIRST_TSC.store(tsc(), Ordering::Release);
    }
}

/// How long so many cycles of [`tsc`] last, by what both clocks have done since [`calibrate`]. In the first millisecond after it
/// the answer is for a processor of 2.5 GHz.
pub fn ns_of_cycles(cycles: u64) -> u64 {
    calibrate();
    let (at, now) = (tsc(), now_ns());
    let elapsed = at.wrapping_sub(FIRST_TSC.load(Ordering::Acquire));
    let ns = now.wrapping_sub(FIRST_NS.load(Ordering::Relaxed));
    if !(1_000_000..u64::MAX / 2).contains(&ns) || !(1..u64::MAX / 2).contains(&elapsed) {
        return cycles / 5 * 2;
    }
    u64::try_from(u128::from(cycles) * u128::from(ns) / u128::from(elapsed)).unwrap_or(u64::MAX)
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
    if !crate::confine::allows(libc::SYS_nanosleep) {
        // SAFETY: no mask.
        return unsafe { crate::confine::nap(&mut [], Some(ns), core::ptr::null()) }.map(drop);
    }
    let ts = timespec_of(ns);
    // SAFETY: the kernel reads `ts`.
    check(unsafe { syscall!(libc::SYS_nanosleep, &ts as *const libc::timespec, 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_last_as_long_as_the_clock_says() {
        calibrate();
        sleep_ns(20_000_000).unwrap();
        let (tsc_before, before) = (tsc(), now_ns());
        sleep_ns(50_000_000).unwrap();
        let (counted, passed) = (ns_of_cycles(tsc() - tsc_before), now_ns() - before);
        assert!(counted.abs_diff(passed) < passed / 20, "{counted} instead of {passed}");
    }
}
