//! How much memory large rings may take: a share of what this process's cgroups, and the machine, have left.
//!
//! ```text
//!  a ring would grow --take--> allowance, used up or old --look--> cgroup files, /proc/meminfo --> another allowance
//!  a ring is small again, or closed --give_back--> capacity
//! ```
//! Two rules. Who looks takes a small part of what is left above a reserve, and one ring a part of that: so several
//! processes in one group share it, large steps end first, and the first steps of many rings still fit. What was touched
//! shows in what is left at the next look. And all rings of the process together, touched or not, never have a larger
//! capacity than the group could hold beside its other memory and the reserve. Nobody looks but who sends more than fits into
//! a small ring, and then seldom. See ADR 48; tested below and by `cargo xtask sharing --only short-of-memory`.

use crate::cgroup::{self, Room};
use crate::{mem, time};
use core::sync::atomic::{AtomicU64, Ordering};

/// Granted to each process without a look: short programs never look.
const FIRST: u64 = 1 << 20;
/// An allowance is good for so long.
const FRESH_NS: u64 = 1_000_000_000;
/// After a look that did not help.
const PAUSE_NS: u64 = 10_000_000;
/// No more than this is kept back for the program's own use.
const RESERVE_MAX: u64 = 256 << 20;
/// Of what is left above the reserve, the part that one look grants, and of that the largest step.
const PARTS: u64 = 8;
const STEPS: u64 = 2;

/// What is left of the allowance, its largest step, and when it was made; zero: never.
static LEFT: AtomicU64 = AtomicU64::new(FIRST);
static STEP: AtomicU64 = AtomicU64::new(FIRST);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// Bytes of large rings that this process sends into, touched or not, and how many there may be.
static CAPACITY: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(u64::MAX);

/// Whether a ring may use so much more; then it is counted.
#[cold]
pub fn take(bytes: u32) -> bool {
    if !may_take(bytes) {
        return false;
    }
    let bytes = u64::from(bytes);
    // Another thread may have been faster: what is missing then is less than a step.
    let _ = LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(bytes)));
    CAPACITY.fetch_add(bytes, Ordering::Relaxed);
    true
}

/// Whether [`take`] would succeed now.
#[cold]
pub fn may_take(bytes: u32) -> bool {
    let bytes = u64::from(bytes);
    let is_possible = || {
        bytes <= STEP.load(Ordering::Relaxed)
            && CAPACITY.load(Ordering::Relaxed).saturating_add(bytes) <= MOST.load(Ordering::Relaxed)
    };
    let fits = || is_possible() && bytes <= LEFT.load(Ordering::Relaxed);
    let looked_at = LOOKED_AT.load(Ordering::Relaxed);
    if looked_at == 0 && fits() {
        return true;
    }
    let age = time::now_ns().saturating_sub(looked_at);
    let is_due = match fits() {
        true => age >= FRESH_NS,
        // An allowance that was used up is renewed at once, as long as it is worth something.
        false => is_possible() || age >= PAUSE_NS,
    };
    if is_due {
        look();
    }
    fits()
}

/// A large ring with so many bytes is not used any more.
#[cold]
pub fn give_back(bytes: u32) {
    let less = |capacity: u64| Some(capacity.saturating_sub(u64::from(bytes)));
    let _ = CAPACITY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// In the child of a fork, which uses few of its parent's rings, and may outlive them all.
pub fn forked() {
    CAPACITY.store(0, Ordering::Relaxed);
}

fn look() {
    LOOKED_AT.store(time::now_ns(), Ordering::Relaxed);
    let group = cgroup::room();
    // Of the machine a sixteenth is reserve enough.
    let machine =
        mem::memory().map(|of| Room { limit: of.total << 8, left: of.available << 10, shared: u64::MAX });
    let rooms = || [machine, group].into_iter().flatten();
    let allowed = rooms().map(allowance).min().unwrap_or(u64::MAX);
    MOST.store(rooms().map(capacity).min().unwrap_or(u64::MAX), Ordering::Relaxed);
    STEP.store(allowed / STEPS, Ordering::Relaxed);
    LEFT.store(allowed, Ordering::Relaxed);
}

fn reserve(room: Room) -> u64 {
    (room.limit / 8 * 3).min(RESERVE_MAX)
}

/// What one look grants.
fn allowance(room: Room) -> u64 {
    room.left.saturating_sub(reserve(room)) / PARTS
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
        assert_eq!(allowance(room(64, 64, 0)), 5 * MIB);
        assert_eq!(allowance(room(64, 24, 0)), 0);
        assert_eq!(allowance(room(64, 0, 0)), 0);
        assert_eq!(allowance(room(8192, 512, 0)), 32 * MIB);
        assert_eq!(capacity(room(64, 20, 30)), 26 * MIB, "14 of the 64 MiB are the program's");
    }

    #[test]
    fn grants_end_before_the_reserve() {
        let mut left = 50 * MIB;
        for _ in 0..1000 {
            left -= allowance(Room { limit: 64 * MIB, left, shared: 0 });
        }
        assert!((24 * MIB..25 * MIB).contains(&left), "{left}");
    }
}
