//! When a message was sent, in the 28 bits that its header has left.
//!
//! A receiver that looks at several rings finds what came since its last look, but not in which order. Where it asks for
//! that, senders write the time into the header: the lower bits of the processor's clock, in steps of some ticks, so
//! that they come round after some seconds. Zero means that the sender was not asked. A peer that lies about the time
//! changes the order of its own messages among the others, no more.

const STEP_BITS: u32 = sd_sys::arch::STAMP_STEP_BITS;
const MASK: u64 = (1 << 28) - 1;
/// What is newer than now by less than this was sent just now, by a processor whose counter is ahead.
const AHEAD_MAX: u64 = MASK / 8;

/// The stamp for a time; zero only for zero, a time that is not known.
#[inline(always)]
pub fn of(time: u64) -> u32 {
    ((time >> STEP_BITS & MASK) as u32).max((time != 0).into())
}

/// A header without its time: one of another host, where time runs differently.
pub fn without(header: u64) -> u64 {
    header & !(MASK << (64 - MASK.count_ones()))
}

/// The time of a stamp that is not older than some seconds, and not after `now`. `None` for no stamp.
pub fn time(stamp: u32, now: u64) -> Option<u64> {
    if stamp == 0 {
        return None;
    }
    let age = (now >> STEP_BITS).wrapping_sub(u64::from(stamp)) & MASK;
    let is_ahead = age > MASK - AHEAD_MAX;
    Some(if is_ahead { now } else { now.saturating_sub(age << STEP_BITS) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_comes_back_in_steps() {
        // In so many ticks stamps come round; seven eighths of that are the past.
        const ROUND: u64 = (MASK + 1) << STEP_BITS;
        for sent in [0x1234_5678_9abc, ROUND - 1, ROUND, ROUND + 77] {
            for later in [0, 40, 1_000_000, ROUND / 8 * 7 - (1 << STEP_BITS)] {
                let time = time(of(sent), sent + later).unwrap();
                assert!(time.abs_diff(sent) < 2 << STEP_BITS, "{sent} {later} {time}");
            }
        }
    }

    #[test]
    fn order_is_kept_where_the_counter_comes_round() {
        const ROUND: u64 = (MASK + 1) << STEP_BITS;
        let (first, second) = (ROUND - 100, ROUND + 100);
        let now = second + 5000;
        assert!(time(of(first), now) < time(of(second), now));
    }

    #[test]
    fn nothing_is_from_the_future() {
        assert_eq!(time(of(5000 + (1 << 20)), 5000), Some(5000));
        assert_eq!(time(0, 5000), None);
    }
}
