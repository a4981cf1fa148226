//! How long an engine looks in vain before it sleeps.
//!
//! Who is woken where the processor had nothing to do pays for that some tens of microseconds, and so does who wakes him. So what has come soon
//! after a sleep had begun would have been waited for better awake. Between looks the processor is offered to others (sched_yield(2)).
//!
//! Not beside a program that computes: that keeps what it is offered for a slice of milliseconds, and the kernel takes a slice off the engine for
//! the offer, so that it would always wait for its turn. Who sleeps instead runs soon after it is woken. Whether such a program is still there is tried
//! by an offer now and then, less often each time. One long absence says nothing: a virtual machine stands still now and then.

/// See the module.
pub(crate) struct Patience {
    /// Of the last sleeps: how many were short, at most [`MOST`].
    short: u32,
    /// Nothing was found since then.
    since: Option<u64>,
    /// Until then it sleeps at once, and offers nothing.
    kept_until: u64,
    /// How long that was, the last time.
    shy_ns: u64,
    /// What was lost to those who kept an offer for long lately, in nanoseconds; it is forgotten in four times its time.
    lost: u64,
    /// Up to then that was done.
    forgets_at: u64,
}

const MOST: u32 = 8;
/// In vain where waiting does not pay, and where it does.
const LEAST_NS: u64 = 5_000;
const LONG_NS: u64 = 200_000;
/// Who was offered the processor and had it for so long is none of those that wait for messages.
const KEPT_NS: u64 = 1_000_000;
/// There is one where so much is lost to him, by several offers: of one no more than a part of that counts.
const LOST_NS: u64 = 6_000_000;
const LOST_BY_ONE_NS: u64 = 3_000_000;
const FORGETS: u64 = 4;
/// For so long nothing is offered, at least and at most.
const SHY_NS: [u64; 2] = [100_000_000, 3_200_000_000];

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { short: MOST, since: None, kept_until: 0, shy_ns: 0, lost: 0, forgets_at: 0 }
    }

    /// Something was found.
    pub(crate) fn begin(&mut self) {
        self.since = None;
    }

    /// Nothing was found: whether it is time to sleep.
    pub(crate) fn is_over(&mut self, now: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        self.is_shy(now) || now - since >= if self.short >= MOST / 2 { LONG_NS } else { LEAST_NS }
    }

    /// The processor is not to be offered to others.
    pub(crate) fn is_shy(&self, now: u64) -> bool {
        now < self.kept_until
    }

    /// Others had the processor meanwhile.
    #[inline]
    pub(crate) fn offered(&mut self, before: u64, after: u64) {
        if self.lost != 0 || after - before > KEPT_NS {
            self.count_lost(before, after);
        }
    }

    #[cold]
    fn count_lost(&mut self, before: u64, after: u64) {
        self.lost = self.lost.saturating_sub(after.saturating_sub(self.forgets_at) / FORGETS);
        self.forgets_at = after;
        if self.lost == 0 {
            self.shy_ns = 0;
        }
        if after - before > KEPT_NS {
            self.lost += (after - before).min(LOST_BY_ONE_NS);
        }
        if self.lost >= LOST_NS {
            let [least, most] = SHY_NS;
            self.shy_ns = (2 * self.shy_ns).clamp(least, most);
            self.kept_until = after + self.shy_ns;
            // One more, soon after that, says that he is still there.
            (self.lost, self.forgets_at) = (LOST_NS - KEPT_NS, self.kept_until);
        }
    }

    pub(crate) fn slept(&mut self, ns: u64) {
        self.short = if ns < LONG_NS { (self.short + 2).min(MOST) } else { self.short.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(patience: &mut Patience, now: u64) -> u64 {
        patience.begin();
        let mut waited = 0;
        while !patience.is_over(now + waited) {
            waited += 1000;
        }
        waited
    }

    #[test]
    fn it_learns_whether_waiting_pays() {
        let mut patience = Patience::new();
        for _ in 0..MOST {
            patience.slept(10_000_000);
        }
        assert_eq!(waits(&mut patience, 0), LEAST_NS);
        patience.slept(50_000);
        patience.slept(50_000);
        assert_eq!(waits(&mut patience, 0), LONG_NS);
    }

    const TURN_NS: u64 = 3_000_000;

    /// Offers, each kept for so long, one directly behind the other; when they are over.
    fn offer(patience: &mut Patience, from: u64, kept: &[u64]) -> u64 {
        kept.iter().fold(from, |now, ns| {
            patience.offered(now, now + ns);
            now + ns
        })
    }

    #[test]
    fn beside_who_keeps_the_processor_it_sleeps() {
        let [least, _] = SHY_NS;
        let mut patience = Patience::new();
        // Others that wait for messages have it in between.
        let now = offer(&mut patience, 0, &[TURN_NS, 50_000, 50_000, TURN_NS, 50_000, TURN_NS]);
        assert_eq!(waits(&mut patience, now), 0);
        assert_eq!(waits(&mut patience, now + least), LONG_NS);
    }

    #[test]
    fn whether_he_is_still_there_is_tried_less_and_less_often() {
        let [least, most] = SHY_NS;
        let mut patience = Patience::new();
        offer(&mut patience, 0, &[TURN_NS; 3]);
        let mut tried = 0;
        while patience.kept_until < 20 * most {
            let again = patience.kept_until;
            let now = offer(&mut patience, again, &[20_000, TURN_NS]);
            assert!(patience.is_shy(now));
            tried += 1;
        }
        assert!(tried < 30, "{tried}");
        // And gone: the next one is a new one.
        let mut now = patience.kept_until;
        (0..1000).for_each(|_| now = offer(&mut patience, now, &[40_000]));
        let now = offer(&mut patience, now, &[TURN_NS; 3]);
        assert_eq!(patience.kept_until, now + least);
    }

    #[test]
    fn a_machine_that_stands_still_now_and_then_is_no_reason() {
        let mut patience = Patience::new();
        let mut now = 0;
        for stands_ns in [TURN_NS, 100_000_000, 5_000_000] {
            now = offer(&mut patience, now, &[stands_ns, 10_000, 10_000]);
            assert_eq!(waits(&mut patience, now), LONG_NS);
            now += 5 * TURN_NS;
        }
    }
}
