//! Ports that a connection was closed on first: for about a minute nobody binds them who does not ask for reuse
//! (TIME-WAIT, RFC 9293 section 3.6.1; `inet_csk_get_port` in the kernel).
//!
//! A slab keeps one for each of [`PLACES`] classes of ports, the last; a process's client ports come in blocks of
//! neighbours, so they do not push each other out.

use crate::slab::Endpoint;
use core::sync::atomic::{AtomicU64, Ordering};

/// Ports that a slab remembers.
pub const PLACES: usize = 1024;

/// Time is counted in steps of so many cycles of the time-stamp counter, some hundredths of a second.
const STEP_BITS: u32 = 27;
/// About a minute.
const STEPS: u32 = 900;

/// A port in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWait {
    /// The port.
    pub port: u16,
    /// SO_REUSEADDR was set.
    pub reuse: bool,
    /// [`fold`] of the local address.
    pub address: u16,
    /// When, see [`step`].
    pub at: u32,
}

/// The time for a value of the time-stamp counter.
pub fn step(tsc: u64) -> u32 {
    (tsc >> STEP_BITS) as u32
}

/// When a TimeWait that is to last for so many seconds from `now` on would have begun. A minute is the most.
pub fn begin_for(now: u32, seconds: u32) -> u32 {
    now.wrapping_sub(STEPS - STEPS / 60 * seconds.min(60))
}

/// An address in 15 bits.
pub fn fold(address: [u64; 2]) -> u16 {
    let mixed = (address[0] ^ address[1]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 49) as u16
}

impl TimeWait {
    /// The end of a connection, at that address, that was closed at that time, see [`step`].
    pub fn of(endpoint: &Endpoint, local: [u8; 16], at: u32) -> TimeWait {
        let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
        let whole = u128::from_ne_bytes(local);
        let address = fold([whole as u64, (whole >> 64) as u64]);
        TimeWait { port, reuse: endpoint.reuses_address(), address, at }
    }

    fn encode(self) -> u64 {
        let low = u64::from(self.port) << 16 | u64::from(self.address & 0x7fff) << 1 | u64::from(self.reuse);
        u64::from(self.at) << 32 | low
    }

    fn decode(word: u64) -> Option<TimeWait> {
        let port = (word >> 16) as u16;
        let address = (word as u16) >> 1;
        (port != 0).then_some(TimeWait { port, address, reuse: word & 1 != 0, at: (word >> 32) as u32 })
    }

    /// It has passed.
    pub fn is_over(&self, now: u32) -> bool {
        now.wrapping_sub(self.at) > STEPS
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

    #[test]
    fn remembered_for_a_minute() {
        let places = TimeWaits([const { AtomicU64::new(0) }; PLACES]);
        let one = TimeWait { port: 8080, reuse: true, address: 0x7fff, at: u32::MAX - 5 };
        places.note(one);
        assert_eq!(places.of(8080), Some(one));
        assert_eq!(places.of(8080 + PLACES as u16), None, "the same place, another port");
        assert_eq!(places.all().collect::<Vec<_>>(), [one]);
        assert!(!one.is_over(one.at) && !one.is_over(one.at.wrapping_add(STEPS)));
        assert!(one.is_over(one.at.wrapping_add(STEPS + 1)));
    }

    #[test]
    fn some_last_for_seconds() {
        let one = TimeWait { port: 8080, reuse: true, address: 0, at: begin_for(1000, 2) };
        assert!(!one.is_over(1000) && !one.is_over(1030) && one.is_over(1031));
        assert_eq!([begin_for(1000, 60), begin_for(1000, 600)], [1000, 1000]);
    }

    #[test]
    fn addresses_differ() {
        let v4 = |last: u8| [0, u64::from_ne_bytes([0, 0, 0xff, 0xff, 127, 0, 0, last])];
        assert_ne!(fold(v4(1)), fold(v4(2)));
        assert!(fold(v4(1)) < 1 << 15);
    }
}
