//! How long an engine looks in vain before it sleeps.
//!
//! Who is woken where the processor had nothing to do pays for that some tens of microseconds, and so does who wakes him. So what has come soon
//! after a sleep had begun would have been waited for better awake. Between looks the processor is offered to others (sched_yield(2)).

/// See the module.
pub(crate) struct Patience {
    /// Of the last sleeps: how many were short, at most [`MOST`].
    short: u32,
    /// Nothing was found since then.
    since: Option<u64>,
    /// Until then it sleeps soon.
    kept_until: u64,
}

const MOST: u32 = 8;
/// In vain where waiting does not pay, and where it does.
const LEAST_NS: u64 = 5_000;
const LONG_NS: u64 = 200_000;
/// Who was offered the processor and had it for so long is none of those that wait for messages. Who sleeps runs as soon as he is woken, so that is
/// better beside such a one.
const KEPT_NS: u64 = 1_000_000;
const SHY_NS: u64 = 100_000_000;

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { short: MOST, since: None, kept_until: 0 }
    }

    /// Something was found.
    pub(crate) fn begin(&mut self) {
        self.since = None;
    }

    /// Nothing was found: whether it is time to sleep.
    pub(crate) fn is_over(&mut self, now: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_long = self.short >= MOST / 2 && now >= self.kept_until;
        now - since >= if is_long { LONG_NS } else { LEAST_NS }
    }

    /// Others had the processor meanwhile.
    pub(crate) fn offered(&mut self, before: u64, after: u64) {
        if after - before > KEPT_NS {
            self.kept_until = after + SHY_NS;
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

    #[test]
    fn beside_who_keeps_the_processor_it_sleeps() {
        let mut patience = Patience::new();
        patience.offered(0, 5_000_000);
        assert_eq!(waits(&mut patience, 5_000_000), LEAST_NS);
        assert_eq!(waits(&mut patience, 5_000_000 + SHY_NS), LONG_NS);
    }
}
