//! Which packets have come, and when the other engine is to be told.

use crate::Nanos;
use crate::seal::LATE_MAX;
use crate::wire::Ack;

/// So many numbers below the highest are known one by one; what is older counts as had.
const NUMBERS: u64 = LATE_MAX;
const WORDS: usize = (NUMBERS / 64) as usize;

/// When acknowledgements are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPolicy {
    /// At once after so many packets that want one.
    pub every: u32,
    /// So long after the first that wants one.
    pub delay: Nanos,
}

/// A received packet, as far as acknowledgements are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) number: u64,
    pub(crate) age: u16,
    pub(crate) at: Nanos,
    /// It wants an acknowledgement.
    pub(crate) is_asking: bool,
    /// The network has marked it.
    pub(crate) is_marked: bool,
}

/// What has come on a path.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// One more than the highest number.
    next: u64,
    /// The sender waits for nothing before this.
    floor: u64,
    bits: [u64; WORDS],
    newest_at: Nanos,
    marked: u32,
    /// Packets that ask and are not answered.
    asking: u32,
    due: Option<Nanos>,
}

impl Received {
    pub(crate) fn new() -> Received {
        Received { next: 0, floor: 0, bits: [0; WORDS], newest_at: 0, marked: 0, asking: 0, due: None }
    }

    /// Whether this number has not come yet, and is one that the sender still waits for.
    pub(crate) fn is_new(&self, number: u64) -> bool {
        number >= self.next || (number >= self.lowest() && self.bits[place(number)] & bit(number) == 0)
    }

    pub(crate) fn insert(&mut self, arrival: &Arrival, policy: &AckPolicy) {
        let Arrival { number, at, .. } = *arrival;
        let in_order = number == self.next;
        if number >= self.next {
            self.forget_from(number);
            self.next = number + 1;
            self.newest_at = at;
        }
        self.floor = self.floor.max(number.saturating_sub(u64::from(arrival.age)));
        self.bits[place(number)] |= bit(number);
        self.marked = self.marked.wrapping_add(u32::from(arrival.is_marked));
        if arrival.is_asking {
            self.asking += 1;
            let is_urgent = !in_order || arrival.is_marked || self.asking >= policy.every;
            let at = if is_urgent { at } else { at + policy.delay };
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
    }

    /// Clears what stood where the numbers up to `number` will stand.
    fn forget_from(&mut self, number: u64) {
        if number - self.next >= NUMBERS {
            self.bits = [0; WORDS];
            return;
        }
        let mut at = self.next;
        while at <= number {
            if at.is_multiple_of(64) && at + 63 <= number {
                self.bits[place(at)] = 0;
                at += 64;
            } else {
                self.bits[place(at)] &= !bit(at);
                at += 1;
            }
        }
    }

    /// When an acknowledgement is to be sent at the latest.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// Something came that was not acknowledged.
    pub(crate) fn is_asked(&self) -> bool {
        self.due.is_some()
    }

    /// Writes the acknowledgement; returns its length. It counts as sent only after [`Received::told`].
    pub(crate) fn encode(&self, now: Nanos, out: &mut [u8]) -> usize {
        let delay_us = (now.saturating_sub(self.newest_at) / 1000).min(u64::from(u32::MAX)) as u32;
        Ack::encode(self.ranges(), self.marked, delay_us, out)
    }

    pub(crate) fn told(&mut self) {
        self.asking = 0;
        self.due = None;
    }

    fn lowest(&self) -> u64 {
        self.floor.max(self.next.saturating_sub(NUMBERS))
    }

    /// First and last of each range, from the highest on.
    fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let lowest = self.lowest();
        let mut above = self.next;
        core::iter::from_fn(move || {
            above -= self.run(above, lowest, false);
            let len = self.run(above, lowest, true);
            let range = (above - len, above.wrapping_sub(1));
            above -= len;
            (len > 0).then_some(range)
        })
    }

    /// How many numbers right below `above`, and from `lowest` on, have come, or have not.
    fn run(&self, above: u64, lowest: u64, come: bool) -> u64 {
        let mut at = above;
        while at > lowest {
            let word = self.bits[place(at - 1)];
            let word = if come { word } else { !word };
            let there = (at - 1) % 64 + 1;
            let ones = u64::from((word << (64 - there)).leading_ones()).min(at - lowest);
            at -= ones;
            if ones < there {
                break;
            }
        }
        above - at
    }
}

fn place(number: u64) -> usize {
    (number / 64) as usize % WORDS
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const POLICY: AckPolicy = AckPolicy { every: 3, delay: 100 };

    fn arrival(number: u64) -> Arrival {
        Arrival { number, age: u16::MAX, at: 10, is_asking: true, is_marked: false }
    }

    #[test]
    fn ranges_over_words() {
        let mut received = Received::new();
        for number in (0..=70).chain(130..=200).chain([300]) {
            assert!(received.is_new(number));
            received.insert(&arrival(number), &POLICY);
            assert!(!received.is_new(number));
        }
        assert_eq!(received.ranges().collect::<Vec<_>>(), [(300, 300), (130, 200), (0, 70)]);
        received.insert(&Arrival { age: 150, ..arrival(301) }, &POLICY);
        assert_eq!(received.ranges().collect::<Vec<_>>(), [(300, 301), (151, 200)]);
        assert!(!received.is_new(120), "the sender has given it up");
        received.insert(&arrival(301 + NUMBERS), &POLICY);
        assert_eq!(received.ranges().count(), 1);
    }

    #[test]
    fn when_it_is_due() {
        let mut received = Received::new();
        received.insert(&arrival(0), &POLICY);
        assert_eq!(received.due(), Some(110));
        received.insert(&arrival(2), &POLICY);
        assert_eq!(received.due(), Some(10), "a gap is told at once");
        received.told();
        received.insert(&Arrival { is_asking: false, ..arrival(3) }, &POLICY);
        assert_eq!(received.due(), None, "an acknowledgement is not acknowledged");
    }
}
