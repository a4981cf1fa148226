//! For how long the memory of connections that are not used is kept.
//!
//! What was given back is made again by the next use, which takes microseconds. So where the machine has plenty of memory it
//! stays for ten seconds, and for one where it has not (ADR 42). `SD_IDLE_SECONDS` says otherwise.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sd_sys::mem::Memory;

const SECOND: u64 = 1_000_000_000;
const SHORT: u64 = SECOND;
const LONG: u64 = 10 * SECOND;
const LONGEST: u64 = 3600 * SECOND;

/// What SD_IDLE_SECONDS says; zero: nothing.
static WISHED: AtomicU64 = AtomicU64::new(0);

/// When memory was looked at last, and what was found.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
static IS_PLENTY: AtomicBool = AtomicBool::new(false);

/// At start-up: the value of SD_IDLE_SECONDS.
pub(crate) fn remember(value: &[u8]) {
    WISHED.store(wish(value).unwrap_or(0), Ordering::Relaxed);
}

fn wish(value: &[u8]) -> Option<u64> {
    let seconds: u64 = core::str::from_utf8(value).ok()?.parse().ok()?;
    Some(seconds.saturating_mul(SECOND).clamp(SHORT, LONGEST))
}

/// Nanoseconds.
pub(crate) fn now() -> u64 {
    match WISHED.load(Ordering::Relaxed) {
        0 if is_plenty_now() => LONG,
        0 => SHORT,
        wished => wished,
    }
}

/// Looked at once a second at most, as it takes three system calls.
fn is_plenty_now() -> bool {
    let now = sd_sys::time::now_ns();
    if now.saturating_sub(LOOKED_AT.load(Ordering::Relaxed)) >= SECOND {
        LOOKED_AT.store(now, Ordering::Relaxed);
        IS_PLENTY.store(sd_sys::mem::memory().is_some_and(is_plenty), Ordering::Relaxed);
    }
    IS_PLENTY.load(Ordering::Relaxed)
}

fn is_plenty(memory: Memory) -> bool {
    memory.available >= memory.total / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes() {
        assert_eq!(wish(b"1"), Some(SECOND));
        assert_eq!(wish(b"0"), Some(SECOND), "the shortest");
        assert_eq!(wish(b"99999999999999999"), Some(LONGEST));
        assert_eq!([wish(b""), wish(b"1.5"), wish(b"ten"), wish(b"\xff")], [None; 4]);
    }

    #[test]
    fn a_quarter_is_plenty() {
        assert!(is_plenty(Memory { total: 4000, available: 1000 }));
        assert!(!is_plenty(Memory { total: 4000, available: 999 }));
    }
}
