//! When the packets of a path get new keys because of their age. Which keys those are is the seal's ([`crate::seal::PHASE`]).

use crate::Nanos;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phase {
    is_odd: bool,
    /// When the keys that there are were used first, and the number of that packet.
    since: Option<Nanos>,
    from: u64,
}

impl Phase {
    /// The phase of the packet with this number, which is sent now. It is another one than before if the keys are `every` old, and the other engine
    /// has opened a packet that has them: so it never misses one.
    pub(super) fn of(&mut self, now: Nanos, number: u64, every: Nanos, acknowledged: Option<u64>) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_known = acknowledged.is_some_and(|largest| largest >= self.from);
        if every > 0 && is_known && now.saturating_sub(since) >= every {
            *self = Phase { is_odd: !self.is_odd, since: Some(now), from: number };
        }
        self.is_odd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_when_they_are_old_and_known() {
        let mut phase = Phase::default();
        assert!(!phase.of(1_000, 0, 100, None));
        assert!(!phase.of(1_100, 1, 100, None), "nobody has opened one");
        assert!(!phase.of(1_099, 2, 100, Some(0)), "not old enough");
        assert!(phase.of(1_100, 3, 100, Some(0)));
        assert!(phase.of(9_000, 4, 100, Some(2)), "none of the new ones was opened");
        assert!(!phase.of(9_000, 5, 100, Some(3)));
        assert!(!phase.of(90_000, 6, 0, Some(6)), "never");
    }
}
