//! Clocks and yielding.

use crate::{Result, check, syscall};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Zero, or the time that it is for a process that may not read any clock.
static INVENTED: AtomicU64 = AtomicU64::new(0);
/// A look at that time takes so long.
const LOOK_NS: u64 = 200;

/// From now on no clock may be read, as in strict mode of seccomp(2), where the processor's is a SIGSEGV: time passes by looking.
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

/// The same, in milliseconds.
pub fn real_ms() -> u64 {
    let now = real();
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

/// The processor's clock, which is cheap, in units of its own: see [`Interval`] and [`ns_of_ticks`].
#[inline(always)]
pub fn ticks() -> u64 {
    if INVENTED.load(Ordering::Relaxed) != 0 {
        return 0;
    }
    crate::arch::ticks()
}

/// Both clocks at the begin of the measurement; zero before.
static FIRST_TICKS: AtomicU64 = AtomicU64::new(0);
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Ticks per second, once they are known well enough; zero before.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Until there is a measurement.
const ASSUMED_RATE: u64 = 2_500_000_000;
/// No processor's clock is slower or faster. A measurement that says so went wrong: the machine slept meanwhile.
const RATES: core::ops::Range<u64> = 1_000_000..10_000_000_000;
/// A measurement over less is no measurement, and one over so much is the last.
const MEASURED_NS: core::ops::Range<u64> = 1_000_000..100_000_000;

/// Begins to measure how fast [`ticks`] goes, once; to be called some time before the first question about it.
pub fn calibrate() {
    if FIRST_TICKS.load(Ordering::Acquire) == 0 {
        FIRST_NS.store(now_ns(), Ordering::Relaxed);
        FIRST_TICKS.store(ticks(), Ordering::Release);
    }
}

/// Ticks per second, and whether that stays the answer. Until a millisecond after [`calibrate`] it is an assumption.
fn rate() -> (u64, bool) {
    let known = RATE.load(Ordering::Relaxed);
    if known != 0 {
        return (known, true);
    }
    if let Some(said) = crate::arch::ticks_per_second() {
        RATE.store(said, Ordering::Relaxed);
        return (said, true);
    }
    calibrate();
    let counted = ticks().wrapping_sub(FIRST_TICKS.load(Ordering::Acquire));
    let ns = now_ns().wrapping_sub(FIRST_NS.load(Ordering::Relaxed));
    if ns < MEASURED_NS.start {
        return (ASSUMED_RATE, false);
    }
    let rate = u64::try_from(u128::from(counted) * 1_000_000_000 / u128::from(ns)).unwrap_or(u64::MAX);
    if !RATES.contains(&rate) {
        FIRST_TICKS.store(0, Ordering::Release);
        calibrate();
        return (ASSUMED_RATE, false);
    }
    let is_last = ns >= MEASURED_NS.end;
    if is_last {
        RATE.store(rate, Ordering::Relaxed);
    }
    (rate, is_last)
}

/// How long so many [`ticks`] last.
pub fn ns_of_ticks(ticks: u64) -> u64 {
    let (rate, _) = rate();
    u64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
}

/// The opposite of [`ns_of_ticks`].
pub fn ticks_of_ns(ns: u64) -> u64 {
    let (rate, _) = rate();
    u64::try_from(u128::from(ns) * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// A duration that is compared with a difference of [`ticks`], where reading a clock would cost too much: a load and a
/// comparison while it is not over.
#[derive(Debug)]
pub struct Interval {
    ns: u64,
    /// The same in ticks as far as it is known, never too much for long: too few are put right when they have passed.
    ticks: AtomicU64,
    is_settled: AtomicBool,
}

impl Interval {
    /// So many nanoseconds.
    pub const fn of_ns(ns: u64) -> Interval {
        Interval { ns, ticks: AtomicU64::new(0), is_settled: AtomicBool::new(false) }
    }

    /// Whether so many ticks are more than the interval.
    #[inline(always)]
    pub fn is_over(&self, ticks: u64) -> bool {
        ticks > self.ticks.load(Ordering::Relaxed)
            && (self.is_settled.load(Ordering::Relaxed) || self.is_really_over(ticks))
    }

    #[cold]
    #[inline(never)]
    fn is_really_over(&self, ticks: u64) -> bool {
        let (rate, is_last) = rate();
        let own = u64::try_from(u128::from(self.ns) * u128::from(rate) / 1_000_000_000).unwrap_or(u64::MAX);
        // A first measurement may be a little too high, so what is kept of it is a little less.
        self.ticks.store(if is_last { own } else { own / 2 }, Ordering::Relaxed);
        self.is_settled.store(is_last, Ordering::Relaxed);
        ticks > own
    }
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
    fn ticks_last_as_long_as_the_clock_says() {
        static FORTY_MS: Interval = Interval::of_ns(40_000_000);
        calibrate();
        for pause_ns in [2_000_000, 20_000_000, 120_000_000] {
            sleep_ns(pause_ns).unwrap();
            let (ticks_before, before) = (ticks(), now_ns());
            sleep_ns(50_000_000).unwrap();
            let (ticks, passed) = (ticks() - ticks_before, now_ns() - before);
            let counted = ns_of_ticks(ticks);
            assert!(counted.abs_diff(passed) < passed / 20, "{counted} instead of {passed}");
            assert!(FORTY_MS.is_over(ticks) && !FORTY_MS.is_over(ticks * 3 / 5 * 50_000_000 / passed));
        }
        assert!(FORTY_MS.is_settled.load(Ordering::Relaxed) && RATE.load(Ordering::Relaxed) != 0);
    }
}
