//! What a slot says of a connection that the kernel has made, and that gets the slot besides (ADR 82).
//!
//! Bits of [`SlotSide::flags`] are what a side says of the roads. The place of the names, which the kernel's connection has already, holds
//! the ticket, and where each side has gone over.

use crate::channel::{Names, Side, SlotSide};
use core::sync::atomic::{AtomicU64, Ordering};
use sd_ring::road::RoadWord;
use sd_ring::sync::roads;

/// In [`SlotSide::listener`] of side A: the slot is for a connection that the kernel has made, which B knows by a ticket
/// ([`Names::ticket`]) and does not accept.
pub const PROMOTION: u32 = u32::MAX - 1;

/// The first bit of [`SlotSide::flags`] for [`RoadWord`], and all of them.
const SHIFT: u32 = 8;
const MASK: u32 = 0x1ff << SHIFT;

/// Bits of [`SlotSide::flags`]: the side wants the connection back in the kernel.
pub const FLAG_WANTS_KERNEL: u32 = RoadWord::WANTS_KERNEL.0 << SHIFT;
/// What it sends goes through the kernel for as long as the slot lives.
pub const FLAG_LEFT: u32 = RoadWord::LEFT.0 << SHIFT;
/// What it sent is to be sent again through the kernel.
pub const FLAG_RESUME: u32 = RoadWord::RESUME.0 << SHIFT;
/// All its waits look at both roads.
pub const FLAG_ATTACHED: u32 = RoadWord::ATTACHED.0 << SHIFT;
/// It has gone over to the ring.
pub const FLAG_SWITCHED: u32 = RoadWord::SWITCHED.0 << SHIFT;
/// The other host knows where the other side has gone over.
pub const FLAG_KNOWS: u32 = RoadWord::KNOWS.0 << SHIFT;
/// The other host knows that the other side is attached.
pub const FLAG_HEARD: u32 = RoadWord::HEARD.0 << SHIFT;
/// Nobody carries what lies in the rings to another host any more.
pub const FLAG_BROKEN: u32 = RoadWord::BROKEN.0 << SHIFT;
/// Any of what belongs to the way back.
pub const FLAGS_BACK: u32 =
    FLAG_WANTS_KERNEL | FLAG_LEFT | FLAG_BROKEN | (RoadWord::LEAVING.0 | RoadWord::RESUME.0) << SHIFT;

/// Why a side wants the connection back in the kernel, where it is an engine: beside [`FLAG_WANTS_KERNEL`]. For people, and for how long it is not
/// offered again; what is done is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Few connections between the two hosts are busy.
    Few,
    /// All it carries is bulk.
    Bulk,
    /// It carries a few messages a second.
    Sparse,
    /// Each message has to wake somebody at one of its ends, who waits for no other connection.
    Woken,
    /// The hosts file does not give its other end to that engine, or that tenant, any more.
    Unlisted,
    /// Connections to that service are slower by the engine than they were as the kernel's.
    Slower,
    /// The engine ends, and its successor may carry it on.
    Replaced,
}

/// The first bit of [`SlotSide::flags`] for [`Advice`], behind those of the roads.
const ADVICE_SHIFT: u32 = SHIFT + 9;

impl Advice {
    /// Two engines may say two things: the first of these counts.
    const ALL: [Advice; 7] = [
        Advice::Unlisted,
        Advice::Bulk,
        Advice::Slower,
        Advice::Woken,
        Advice::Few,
        Advice::Sparse,
        Advice::Replaced,
    ];

    /// Bits of [`SlotSide::flags`].
    pub fn flags(self) -> u32 {
        FLAG_WANTS_KERNEL | 1 << (ADVICE_SHIFT + self as u32)
    }

    /// What was advised, if that is said.
    pub fn of(flags: u32) -> Option<Advice> {
        Advice::ALL.into_iter().find(|advice| flags & advice.flags() == advice.flags())
    }
}

impl SlotSide {
    /// What the side says of the roads (SYNC POINT: roads, with `say` in crates/sd-shm/src/promotion.rs).
    #[inline]
    pub fn road(&self) -> RoadWord {
        RoadWord((roads::look(&self.flags) & MASK) >> SHIFT)
    }

    /// The side says one thing more. What belongs to it was written before (SYNC POINT: roads, with `road` in
    /// crates/sd-shm/src/promotion.rs).
    pub fn say(&self, more: RoadWord) {
        roads::say(&self.flags, more.0 << SHIFT & MASK);
    }

    /// The side says what `next` makes of what it has said so far; false: nothing (SYNC POINT: roads, with `road` in
    /// crates/sd-shm/src/promotion.rs).
    pub fn decide(&self, next: impl Fn(RoadWord) -> Option<RoadWord>) -> bool {
        let road = |flags: u32| RoadWord((flags & MASK) >> SHIFT);
        roads::decide(&self.flags, |flags| Some(flags | next(road(flags))?.0 << SHIFT & MASK))
    }
}

impl Names {
    /// What the monitor has told both sides. Written by A.
    pub fn ticket(&self) -> &AtomicU64 {
        &self.local[0]
    }

    /// Where a side stood when it stopped reading its ring ([`RoadWord::RESUME`]), beside its [`SlotSide::consumed`]. Written by that side.
    pub fn resume_at(&self, side: Side) -> u64 {
        match side {
            Side::A => self.local[1].load(Ordering::Relaxed),
            Side::B => {
                u64::from(self.ports.load(Ordering::Relaxed))
                    | u64::from(self.listener_gen.load(Ordering::Relaxed)) << 32
            }
        }
    }

    /// See [`Names::resume_at`].
    pub fn set_resume_at(&self, side: Side, standing: u64) {
        match side {
            Side::A => self.local[1].store(standing, Ordering::Relaxed),
            Side::B => {
                self.ports.store(standing as u32, Ordering::Relaxed);
                self.listener_gen.store((standing >> 32) as u32, Ordering::Relaxed);
            }
        }
    }

    /// The bytes that a side has sent over the kernel's connection before its first in the ring. Written by that side.
    pub fn switched_at(&self, side: Side) -> &AtomicU64 {
        &self.remote[side as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{FLAG_COLD, FLAG_FIN};

    #[test]
    fn advice_stands_beside_the_roads() {
        for advice in Advice::ALL {
            let flags = advice.flags();
            assert_eq!(flags & MASK, FLAG_WANTS_KERNEL);
            assert_eq!(Advice::of(flags | FLAG_FIN | FLAG_COLD), Some(advice));
            assert_eq!(Advice::of(flags & !FLAG_WANTS_KERNEL), None);
        }
        assert_eq!(Advice::of(Advice::Few.flags() | Advice::Bulk.flags()), Some(Advice::Bulk));
        assert_eq!(Advice::of(MASK), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn roads_stand_beside_the_other_flags() {
        let map = crate::channel::Mapping::create(1, 1, 2).unwrap().1;
        let [a, b] = &map.slot(3).side;
        a.flags.store(FLAG_FIN | FLAG_COLD, Ordering::Relaxed);
        a.say(RoadWord::ATTACHED);
        a.say(RoadWord::SWITCHED);
        assert_eq!(a.road(), RoadWord::ATTACHED | RoadWord::SWITCHED);
        assert_eq!(a.flags.load(Ordering::Relaxed) & !MASK, FLAG_FIN | FLAG_COLD);
        assert_eq!(b.road(), RoadWord::default());
        let all = 1 << 8;
        assert_eq!(RoadWord::BROKEN.0 << 1, all, "all bits of a word have a place");
        map.names(3).set_resume_at(Side::A, u64::MAX - 1);
        map.names(3).set_resume_at(Side::B, 1 << 45 | 7);
        let at = |side| map.names(3).resume_at(side);
        assert_eq!((at(Side::A), at(Side::B)), (u64::MAX - 1, 1 << 45 | 7));
        assert_eq!(map.names(3).ticket().load(Ordering::Relaxed), 0);
        map.names(3).switched_at(Side::B).store(7, Ordering::Relaxed);
        assert_eq!(map.names(3).switched_at(Side::A).load(Ordering::Relaxed), 0);
    }
}
