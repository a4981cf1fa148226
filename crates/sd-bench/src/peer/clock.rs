//! Time by the processor's counter: a reading costs a few nanoseconds, so that single round trips can
//! be timed. The scale is taken from CLOCK_MONOTONIC over the very interval that is measured.

use std::time::{Duration, Instant};

/// A running measurement.
pub(crate) struct Clock {
    began: Instant,
    ticks_began: u64,
    end_ticks: u64,
}

/// The counter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    sd_sys::time::ticks()
}

impl Clock {
    /// Begins an interval of about this length.
    pub(crate) fn start(duration: Duration) -> Clock {
        let per_ns = ticks_per_ns();
        let ticks_began = ticks();
        let end_ticks = ticks_began + (duration.as_nanos() as f64 * per_ns) as u64;
        Clock { began: Instant::now(), ticks_began, end_ticks }
    }

    /// Whether the interval was over at that reading of the counter.
    #[inline(always)]
    pub(crate) fn is_over(&self, now: u64) -> bool {
        now >= self.end_ticks
    }

    /// Nanoseconds since the start.
    pub(crate) fn elapsed_ns(&self) -> f64 {
        self.began.elapsed().as_nanos() as f64
    }

    /// Nanoseconds per tick, as seen since the start.
    pub(crate) fn ns_per_tick(&self) -> f64 {
        self.elapsed_ns() / (ticks() - self.ticks_began).max(1) as f64
    }
}

/// A first guess, good enough to know when to stop.
fn ticks_per_ns() -> f64 {
    let (began, first) = (Instant::now(), ticks());
    while began.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
    (ticks() - first) as f64 / began.elapsed().as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_turns_ticks_into_real_time() {
        let clock = Clock::start(Duration::from_millis(5));
        let before = ticks();
        std::thread::sleep(Duration::from_millis(20));
        let after = ticks();
        let ns = (after - before) as f64 * clock.ns_per_tick();
        assert!((19e6..2e9).contains(&ns), "{ns}");
        assert!(clock.is_over(after));
    }
}
