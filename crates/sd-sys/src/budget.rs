//! How much memory large rings may take: a share of what this process's cgroups, and the machine, have left.
//!
//! ```text
//!  a ring would grow --take--> allowance, used up or old --look--> cgroup files, /proc/meminfo --> another allowance
//!  a ring is small again, or closed --give_back--> capacity
//! ```
//! Three rules. Who looks takes a small part of what is left above a reserve, and one ring a part of that: so several
//! processes in one group share it, large steps end first, and the first steps of many rings still fit. Where little is left
//! (*tight*) a look is good for a moment only, and what a ring was granted is taken from the system at once ([`crate::mem::populate`]):
//! so everybody's next look sees it, and the grants of many processes add up. And all rings of the process together, touched
//! or not, never have a larger capacity than the group could hold beside its other memory and the reserve. Nobody looks but
//! who sends more than fits into a small ring, and then seldom. See ADR 48; tested below and by
//! `cargo xtask sharing --only memory`.

use crate::cgroup::{self, Room};
use crate::{check, mem, syscall, time};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Granted to each process without a look: short programs never look.
const FIRST: u64 = 256 << 10;
/// An allowance is good for so long; where little is left, for so long.
const FRESH_NS: u64 = 1_000_000_000;
const FRESH_TIGHT_NS: u64 = 1_000_000;
/// Less than this above the reserve is little.
const TIGHT: u64 = 1 << 30;
/// After a look that did not help.
const PAUSE_NS: u64 = 10_000_000;
/// No more of the time than this part goes into looks: a kernel that counts for many processors takes long to answer.
const TIME_PARTS: u64 = 20;
/// No more than this is kept back for the program's own use.
const RESERVE_MAX: u64 = 256 << 20;
/// Of what is left above the reserve, the part that one look grants, and of that the largest step. As many processes as
/// there are processors look at the same time.
const PARTS: u64 = 8;
const PARTS_EACH: u64 = 2;
const STEPS: u64 = 2;
/// After its first step a ring becomes no larger than this part of what is left: so who comes first leaves something.
const RING_PARTS: u64 = 64;

/// Of what is left, the part that others may lead one process to touch.
const LED_PARTS: u64 = 128;

/// What is left of the allowance, its largest step, how large a ring may become by a step that is not its first, and
/// when all this was found; zero: never.
static LEFT: AtomicU64 = AtomicU64::new(FIRST);
static STEP: AtomicU64 = AtomicU64::new(FIRST);
static RING: AtomicU64 = AtomicU64::new(0);
/// See [`led_max`].
static LED: AtomicU64 = AtomicU64::new(0);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
static TOOK_NS: AtomicU64 = AtomicU64::new(0);
static IS_TIGHT: AtomicBool = AtomicBool::new(false);
/// Bytes of large rings that this process sends into, touched or not, and how many there may be.
static CAPACITY: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(u64::MAX);

/// Whether a ring may use these bytes of its large region, which it did not use before; then they are counted.
#[cold]
pub fn take(bytes: Range<u32>) -> bool {
    if !may_take(bytes.clone()) {
        return false;
    }
    let bytes = u64::from(bytes.end - bytes.start);
    // Another thread may have been faster: what is missing then is less than a step.
    let _ = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(bytes)));
    CAPACITY.fetch_add(bytes, Ordering::Relaxed);
    true
}

/// Whether [`take`] would succeed now.
#[cold]
pub fn may_take(bytes: Range<u32>) -> bool {
    let (is_first, end) = (bytes.start == 0, u64::from(bytes.end));
    let bytes = u64::from(bytes.end - bytes.start);
    let is_possible = || {
        (is_first || end <= RING.load(Ordering::Relaxed))
            && bytes <= STEP.load(Ordering::Relaxed)
            && CAPACITY.load(Ordering::Relaxed).saturating_add(bytes) <= MOST.load(Ordering::Relaxed)
    };
    let fits = || is_possible() && bytes <= LEFT.load(Ordering::Relaxed);
    let looked_at = LOOKED_AT.load(Ordering::Relaxed);
    if looked_at == 0 && fits() {
        return true;
    }
    let age = time::now_ns().saturating_sub(looked_at);
    let is_due = match fits() {
        true => age >= if is_tight() { pause(FRESH_TIGHT_NS) } else { FRESH_NS },
        // An allowance that was used up is renewed at once, as long as it is worth something.
        false => is_possible() || age >= pause(PAUSE_NS),
    };
    if is_due {
        look();
    }
    fits()
}

fn pause(least: u64) -> u64 {
    least.max(TOOK_NS.load(Ordering::Relaxed).saturating_mul(TIME_PARTS))
}

/// A large ring with so many bytes is not used any more.
#[cold]
pub fn give_back(bytes: u32) {
    let less = |capacity: u64| Some(capacity.saturating_sub(u64::from(bytes)));
    let _ = CAPACITY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Whether what was granted is to be touched at once.
#[cold]
pub fn is_tight() -> bool {
    IS_TIGHT.load(Ordering::Relaxed)
}

/// How many bytes of rings that others fill this process may touch in all, since they say so: as far as was seen within the
/// last second. What they touch later nobody's look sees, so as many processes of a group as there are parts have
/// what is left together. Zero where that is little.
#[cold]
pub fn led_max() -> u64 {
    let looked_at = LOOKED_AT.load(Ordering::Relaxed);
    if looked_at == 0 || time::now_ns().saturating_sub(looked_at) >= pause(FRESH_NS) {
        look();
    }
    LED.load(Ordering::Relaxed)
}

/// In the child of a fork, which uses few of its parent's rings, and may outlive them all. What was allowed is the parent's.
pub fn forked() {
    CAPACITY.store(0, Ordering::Relaxed);
    LEFT.store(0, Ordering::Relaxed);
    // Long ago.
    LOOKED_AT.store(1, Ordering::Relaxed);
}

fn look() {
    let start = time::now_ns();
    LOOKED_AT.store(start, Ordering::Relaxed);
    let group = cgroup::room();
    // Of the machine a sixteenth is reserve enough.
    let machine =
        mem::memory().map(|of| Room { limit: of.total << 8, left: of.available << 10, shared: u64::MAX });
    let rooms = || [machine, group].into_iter().flatten();
    let above = rooms().map(above_reserve).min().unwrap_or(u64::MAX);
    let allowed = allowance(above);
    IS_TIGHT.store(above < TIGHT, Ordering::Relaxed);
    MOST.store(rooms().map(capacity).min().unwrap_or(u64::MAX), Ordering::Relaxed);
    STEP.store(allowed / STEPS, Ordering::Relaxed);
    RING.store(above / RING_PARTS, Ordering::Relaxed);
    LED.store(led(above), Ordering::Relaxed);
    LEFT.store(allowed, Ordering::Relaxed);
    TOOK_NS.store(time::now_ns().saturating_sub(start), Ordering::Relaxed);
}

/// Processors that this thread may use, as many as one number counts.
fn processors() -> u64 {
    let mut mask = [0u64; 16];
    // SAFETY: the kernel writes within the mask.
    let done = unsafe { syscall!(libc::SYS_sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) };
    check(done).map_or(1, |_| mask.iter().map(|word| u64::from(word.count_ones())).sum())
}

fn reserve(room: Room) -> u64 {
    (room.limit / 8 * 3).min(RESERVE_MAX)
}

fn above_reserve(room: Room) -> u64 {
    room.left.saturating_sub(reserve(room))
}

/// What one look grants.
fn allowance(above: u64) -> u64 {
    above / PARTS.max(PARTS_EACH * processors())
}

fn led(above: u64) -> u64 {
    if above < TIGHT { 0 } else { above / LED_PARTS }
}

/// What all rings may have together: most shared memory is theirs.
fn capacity(room: Room) -> u64 {
    room.left.saturating_add(room.shared).saturating_sub(reserve(room))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(limit: u64, left: u64, shared: u64) -> Room {
        Room { limit: limit * MIB, left: left * MIB, shared: shared * MIB }
    }

    #[test]
    fn a_reserve_is_kept() {
        assert_eq!(above_reserve(room(64, 64, 0)), 40 * MIB);
        assert_eq!(above_reserve(room(64, 24, 0)), 0);
        assert_eq!(above_reserve(room(64, 0, 0)), 0);
        assert_eq!(above_reserve(room(8192, 512, 0)), 256 * MIB);
        assert!(allowance(40 * MIB) <= 5 * MIB);
        assert_eq!(capacity(room(64, 20, 30)), 26 * MIB, "14 of the 64 MiB are the program's");
    }

    #[test]
    fn what_others_lead_a_process_to_touch_fits_many_times() {
        assert_eq!([led(TIGHT - 1), led(TIGHT), led(8 << 30)], [0, 8 * MIB, 64 * MIB]);
    }

    #[test]
    fn grants_end_before_the_reserve() {
        let mut left = 50 * MIB;
        for _ in 0..1000 {
            left -= allowance(above_reserve(Room { limit: 64 * MIB, left, shared: 0 }));
        }
        assert!((24 * MIB..25 * MIB).contains(&left), "{left}");
    }
}
