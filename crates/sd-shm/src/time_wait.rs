//! Ports that a connection was closed on first: for about a minute nobody binds them who does not ask for reuse
//! (TIME-WAIT, RFC 9293 section 3.6.1; `inet_csk_get_port` in the kernel).
//!
//! A slab keeps one for each of [`PLACES`] classes of ports, the last; a process's client ports come in blocks of
//! neighbours, so they do not push each other out.

use crate::slab::Endpoint;
use core::sync::atomic::{AtomicU64, Ordering};

/// Ports that a slab remembers.
pub const PLACES: usize = 1024;

/// Time is counted in steps of so many ticks of the processor's clock, about a tenth of a second. How long a step
/// is, only the monitor knows, which judges ([`Now`]).
const STEP_BITS: u32 = sd_sys::arch::TENTH_OF_SECOND_BITS;
/// Bits of a time. It is ambiguous after two months.
const AT_BITS: u32 = 26;
const AT_MASK: u32 = (1 << AT_BITS) - 1;
/// How long it lasts if nothing else was said, and at most.
pub const SECONDS: u32 = 60;

/// A port in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWait {
    /// The port.
    pub port: u16,
    /// SO_REUSEADDR was set.
    pub reuse: bool,
    /// [`fold`] of the local address.
    pub address: u16,
    /// When it began, see [`step`].
    pub at: u32,
    /// How long it lasts: [`SECONDS`] at most.
    pub seconds: u32,
}

/// The time at so many ticks of the processor's clock.
pub fn step(ticks: u64) -> u32 {
    (ticks >> STEP_BITS) as u32 & AT_MASK
}

/// The time for who judges whether one is over.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    step: u32,
    steps_per_minute: u64,
}

impl Now {
    /// At so many ticks of the processor's clock, and with how long so many of them last.
    pub fn new(ticks: u64, ns_of_ticks: impl Fn(u64) -> u64) -> Now {
        let step_ns = ns_of_ticks(1 << STEP_BITS).max(1);
        Now { step: step(ticks), steps_per_minute: 60_000_000_000_u64.div_ceil(step_ns) }
    }
}

/// An address in 15 bits.
pub fn fold(address: [u64; 2]) -> u16 {
    let mixed = (address[0] ^ address[1]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 49) as u16
}

impl TimeWait {
    /// The end of a connection, at that address, that was closed at that time, see [`step`], and is remembered for so long.
    pub fn of(endpoint: &Endpoint, local: [u8; 16], at: u32, seconds: u32) -> TimeWait {
        let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
        let whole = u128::from_ne_bytes(local);
        let address = fold([whole as u64, (whole >> 64) as u64]);
        TimeWait { port, reuse: endpoint.reuses_address(), address, at, seconds: seconds.min(SECONDS) }
    }

    fn encode(self) -> u64 {
        let low = u64::from(self.port) << 16 | u64::from(self.address & 0x7fff) << 1 | u64::from(self.reuse);
        u64::from(self.at & AT_MASK | self.seconds.min(SECONDS) << AT_BITS) << 32 | low
    }

    fn decode(word: u64) -> Option<TimeWait> {
        let port = (word >> 16) as u16;
        let address = (word as u16) >> 1;
        let (reuse, time) = (word & 1 != 0, (word >> 32) as u32);
        (port != 0).then_some(TimeWait { port, address, reuse, at: time & AT_MASK, seconds: time >> AT_BITS })
    }

    /// It has passed.
    pub fn is_over(&self, now: Now) -> bool {
        let steps = (now.steps_per_minute * u64::from(self.seconds)).div_ceil(60);
        u64::from(now.step.wrapping_sub(self.at) & AT_MASK) > steps
    }
}

/// The places of a slab.
#[repr(transparent)]
pub struct TimeWaits([AtomicU64; PLACES]);

impl TimeWaits {
    /// Remembers a port.
    pub fn note(&self, new: TimeWait) {
        self.0[usize::from(new.port) % PLACES].store(new.encode(), Ordering::Relaxed);
    }

    /// What is remembered of a port.
    pub fn of(&self, port: u16) -> Option<TimeWait> {
        let word = self.0[usize::from(port) % PLACES].load(Ordering::Relaxed);
        TimeWait::decode(word).filter(|known| known.port == port)
    }

    /// All that are remembered.
    pub fn all(&self) -> impl Iterator<Item = TimeWait> {
        self.0.iter().filter_map(|word| TimeWait::decode(word.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many steps, ten of which are a second.
    fn at(step: u32) -> Now {
        Now::new(u64::from(step) << STEP_BITS, |_| 100_000_000)
    }

    #[test]
    fn remembered_for_a_minute() {
        let places = TimeWaits([const { AtomicU64::new(0) }; PLACES]);
        let one = TimeWait { port: 8080, reuse: true, address: 0x7fff, at: AT_MASK - 5, seconds: SECONDS };
        places.note(one);
        assert_eq!(places.of(8080), Some(one));
        assert_eq!(places.of(8080 + PLACES as u16), None, "the same place, another port");
        assert_eq!(places.all().collect::<Vec<_>>(), [one]);
        assert!(!one.is_over(at(one.at)) && !one.is_over(at(one.at + 600)));
        assert!(one.is_over(at(one.at + 601)));
    }

    #[test]
    fn some_last_for_seconds() {
        let places = TimeWaits([const { AtomicU64::new(0) }; PLACES]);
        places.note(TimeWait { port: 8080, reuse: true, address: 3, at: 1000, seconds: 2 });
        let one = places.of(8080).unwrap();
        assert_eq!((one.at, one.seconds), (1000, 2));
        assert!(!one.is_over(at(1000)) && !one.is_over(at(1020)) && one.is_over(at(1021)));
    }

    #[test]
    fn addresses_differ() {
        let v4 = |last: u8| [0, u64::from_ne_bytes([0, 0, 0xff, 0xff, 127, 0, 0, last])];
        assert_ne!(fold(v4(1)), fold(v4(2)));
        assert!(fold(v4(1)) < 1 << 15);
    }
}
