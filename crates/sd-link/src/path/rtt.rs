//! How long a packet and its acknowledgement take (RFC 6298 as RFC 9002 words it).

use crate::Nanos;

/// Estimates of the round-trip time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rtt {
    smoothed: Option<Nanos>,
    variation: Nanos,
    pub(crate) latest: Nanos,
    pub(crate) min: Nanos,
    initial: Nanos,
}

impl Rtt {
    pub(crate) fn new(initial: Nanos) -> Rtt {
        Rtt { smoothed: None, variation: initial / 2, latest: initial, min: Nanos::MAX, initial }
    }

    /// `measured` from the packet to its acknowledgement, `delay` of which the other engine says it waited.
    pub(crate) fn sample(&mut self, measured: Nanos, delay: Nanos) {
        self.min = self.min.min(measured);
        // What it says is believed as far as it is possible.
        self.latest = measured.saturating_sub(delay).max(self.min);
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(self.latest);
            self.variation = self.latest / 2;
            return;
        };
        self.variation = (3 * self.variation + smoothed.abs_diff(self.latest)) / 4;
        self.smoothed = Some((7 * smoothed + self.latest) / 8);
    }

    pub(crate) fn smoothed(&self) -> Nanos {
        self.smoothed.unwrap_or(self.initial)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.smoothed.is_some()
    }

    /// After which a packet without acknowledgement is asked about.
    pub(crate) fn patience(&self, least_variation: Nanos) -> Nanos {
        self.smoothed() + (4 * self.variation).max(least_variation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow() {
        let mut rtt = Rtt::new(100);
        rtt.sample(80, 0);
        assert_eq!((rtt.smoothed(), rtt.min), (80, 80));
        for _ in 0..100 {
            rtt.sample(1000, 900);
        }
        assert!((80..=101).contains(&rtt.smoothed()), "{rtt:?}");
        rtt.sample(50, 1_000_000);
        assert_eq!(rtt.latest, 50, "a delay longer than the round trip is a lie");
    }
}
