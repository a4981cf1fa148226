//! A channel: one segment between a connecting process (side A) and a listening one (side B).
//!
//! ```text
//! 0           header
//! 0x1000      slots: 1024 x { A's words, B's words }
//! 0x11000     cold words: 1024 x { A's, B's }      of slots that have any
//! 0x21000     names: 1024 x { what A asked for }
//! 0x2b000     one page of events for A, for B, for adopters: who has something to look at; its place
//!             depends on the channel, see `events`
//! 0x100000    small rings: 1024 x A->B             pages appear when touched,
//! 0x400000    large rings: 1024 x A->B             and are given back when all in them are idle
//! 0x80500000, 0x80800000                           the same, B->A
//! ```
//! All offsets follow from a slot's number, so no peer can point anywhere. What an idle connection needs stands
//! together in the front; only one side writes to a page of rings. Channels are mapped at multiples of a MiB, so the place
//! of a small ring says where the large one is ([`large_of`]).
//!
//! A connection that B did not accept may be *adopted* by another process that listens on the same
//! port. It then acts as side B of that slot, and has a set of events of its own (ADR 14).

use crate::PAGE;
use crate::events::{self, EventSet};
use crate::promotion::PROMOTION;
pub use crate::slot::{
    ColdWords, FLAG_CANNOT_WAKE, FLAG_COLD, FLAG_DEAD, FLAG_FIN, FLAG_GIVES_BACK, FLAG_LENT, FLAG_MPTCP,
    FLAG_READS_NO_MORE, FLAG_RESET, FLAG_TAKES_BACK, FLAG_URGENT, FLAG_WANTS_STAMPS, LENT, Names, RINGS_NOT,
    Slot, SlotSide, SlotState, THREAD_WAKERS, ThreadWaker,
};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_proto::numbered;
use sd_ring::Geometry;
use sd_sys::Errno;

/// Connections that one channel carries; a pair of processes that needs more gets more channels.
pub const SLOTS: usize = 1024;
/// Processes that may adopt connections of one channel; they are numbered from 1 on, and no number
/// is given twice.
pub const ADOPTERS: usize = 14;
/// Sizes of every ring.
pub const GEOMETRY: Geometry = Geometry { small: SMALL, large_first: 64 << 10, large: LARGE };
const SMALL: u32 = 1024;
const LARGE: u32 = 2 << 20;
/// Where slots begin.
pub const SLOTS_OFFSET: usize = PAGE;
const COLD_OFFSET: usize = SLOTS_OFFSET + COLD_DISTANCE;
/// From a side's words of a slot to the rare ones.
pub(crate) const COLD_DISTANCE: usize = SLOTS * core::mem::size_of::<Slot>();
const NAMES_OFFSET: usize = COLD_OFFSET + SLOTS * core::mem::size_of::<[ColdWords; 2]>();
const EVENTS_OFFSET: usize = NAMES_OFFSET + SLOTS * core::mem::size_of::<Names>();
/// From the rings of one side to those of the other.
const SIDE_STEP: usize = LARGE_OFFSET + SLOTS * LARGE as usize;
const MIB: usize = 1 << 20;
const SMALL_OFFSET: usize = MIB;
const LARGE_OFFSET: usize = 4 * MIB;
/// Neighbours whose small rings share a page.
pub const SMALL_PER_PAGE: usize = PAGE / SMALL as usize;
/// Size of a channel's segment; almost all of it is never touched.
pub const SEGMENT_LEN: usize = 2 * SIDE_STEP;
/// First word of a channel.
pub const MAGIC: u64 = 0x5344_6368_616e_6e31;

numbered! {
/// Which side of a channel a process is on.
pub enum Side {
    /// The connecting process.
    A = 0,
    /// The listening process.
    B = 1,
}
or none
}

impl Side {
    /// The other side.
    pub fn other(self) -> Side {
        if self == Side::A { Side::B } else { Side::A }
    }
}

/// First page: written once by the monitor, for people and for checks.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Unique among the channels of this monitor's lifetime.
    pub id: AtomicU64,
    /// Process ids of A and B at the time.
    pub pid: [AtomicU32; 2],
    /// Set by the monitor when the process is gone that takes new connections and events on this side.
    pub dead: [AtomicU32; 2],
    /// A: no slot from this number on was ever used.
    pub used: AtomicU32,
    /// What stands behind A and behind B; see [`crate::link`]. Written by the monitor before anybody maps the channel.
    pub link: [AtomicU32; 2],
    /// How often a side has rung the other, and up to which of these the other has looked; see [`crate::link::Link::answers`].
    pub rung: [AtomicU32; 2],
    /// See `rung`; each is written by the other side.
    pub answered: [AtomicU32; 2],
}

/// The large ring that belongs to a small one, of a channel that is mapped at a multiple of a MiB, as those of
/// [`Mapping::map`] are.
#[inline(always)]
pub fn large_of(small: u64) -> u64 {
    let within = small & (MIB as u64 - 1);
    small - within + (LARGE_OFFSET - SMALL_OFFSET) as u64 + within * (LARGE / SMALL) as u64
}

const _: () = {
    assert!(core::mem::size_of::<SlotSide>() == 32);
    assert!(core::mem::size_of::<ColdWords>() == core::mem::size_of::<SlotSide>());
    assert!(core::mem::size_of::<Slot>() == 64);
    assert!(NAMES_OFFSET.is_multiple_of(core::mem::align_of::<Names>()));
    assert!(SMALL_OFFSET.is_multiple_of(MIB) && SIDE_STEP.is_multiple_of(MIB));
    assert!(SLOTS * SMALL as usize <= MIB && SMALL_OFFSET + MIB <= LARGE_OFFSET);
    // Distances from a slot to its small rings are kept in 32 bits.
    assert!(SIDE_STEP + LARGE_OFFSET <= u32::MAX as usize);
    assert!(SMALL_PER_PAGE == 4 && SLOTS.is_multiple_of(SMALL_PER_PAGE));
    assert!(core::mem::size_of::<Header>() <= SLOTS_OFFSET);
    assert!(EVENTS_OFFSET.is_multiple_of(PAGE) && EVENTS_OFFSET + events::PAGES * PAGE == SMALL_OFFSET);
    assert!(SLOTS <= 64 * 64);
};

/// A mapped channel segment. Copying it copies the address only.
#[derive(Clone, Copy)]
pub struct Mapping {
    base: *mut u8,
    /// By the header's identity, once: whatever a peer does to that, this process finds its own events again.
    events: events::Place,
}

// SAFETY: a mapping is an address of shared atomics; it may be used from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a segment after checking its length, and that it cannot shrink.
    pub fn map(fd: i32) -> sd_sys::Result<Mapping> {
        crate::check_segment(fd, SEGMENT_LEN)?;
        sd_sys::mem::map_apart(fd, SEGMENT_LEN).map(Mapping::at)
    }

    /// Maps a segment where another image of the process had it.
    pub fn map_at(fd: i32, base: usize) -> sd_sys::Result<Mapping> {
        crate::check_segment(fd, SEGMENT_LEN)?;
        let place = base.is_multiple_of(MIB).then_some(base).ok_or(Errno::EINVAL)?;
        sd_sys::mem::map_at(fd, SEGMENT_LEN, place).map(Mapping::at)
    }

    pub(crate) fn at(base: *mut u8) -> Mapping {
        let id = Mapping::named(base, 0).header().id.load(Ordering::Relaxed);
        Mapping::named(base, id)
    }

    /// One whose identity is known.
    pub(crate) fn named(base: *mut u8, id: u64) -> Mapping {
        Mapping { base, events: events::Place::of(id) }
    }

    /// Where it is mapped.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// Nothing may use the mapping, or a reference from it, afterwards.
    pub unsafe fn unmap(self) {
        // SAFETY: passed on to the caller.
        unsafe { sd_sys::mem::unmap(self.base, SEGMENT_LEN) };
    }

    /// The first page.
    pub fn header(&self) -> &'static Header {
        // SAFETY: the segment is mapped while a Mapping is in use (see `unmap`), page-aligned,
        // longer than a Header, and made of atomics.
        unsafe { &*(self.base as *const Header) }
    }

    /// The events for `side`.
    pub fn events(&self, side: Side) -> &'static EventSet {
        self.events_for(side, 0)
    }

    /// The events for whoever acts as `side`: for B the adopter of that number, if it is one.
    pub fn events_for(&self, side: Side, adopter: u32) -> &'static EventSet {
        let set = match adopter {
            1.. if side == Side::B && adopter <= ADOPTERS as u32 => 1 + adopter as usize,
            _ => side as usize,
        };
        let place = EVENTS_OFFSET + self.events.set(set);
        // SAFETY: as for `header`; all places of sets lie before the rings (proved above and there).
        unsafe { &*(self.base.add(place) as *const EventSet) }
    }

    /// The connection at a slot waits for accept: its generation.
    pub fn waiting(&self, index: usize) -> Option<u32> {
        let [a, b] = &self.slot(index).side;
        let (generation, state) = a.state();
        let asked = matches!(state, SlotState::Syn | SlotState::Closed) && generation != 0;
        let is_asked = asked && a.listener.load(Ordering::Relaxed) != PROMOTION;
        (is_asked && b.state().0 != generation).then_some(generation)
    }

    /// Slot number `index` (taken modulo the number of slots).
    #[inline]
    pub fn slot(&self, index: usize) -> &'static Slot {
        // SAFETY: as for `header`; the index is reduced, so the slot lies before LARGE_OFFSET.
        unsafe { &*(self.base.add(SLOTS_OFFSET) as *const Slot).add(index % SLOTS) }
    }

    /// Names of the connection at a slot.
    pub fn names(&self, index: usize) -> &'static Names {
        // SAFETY: as for `slot`; names end before the rings (proved above).
        unsafe { &*(self.base.add(NAMES_OFFSET) as *const Names).add(index % SLOTS) }
    }

    /// Start of the small ring that `from` sends into. Within its page B's is half a page away from A's: a processor
    /// takes a load for one of what it has just stored when the lowest twelve bits of the addresses are the same.
    pub fn small_ring(&self, index: usize, from: Side) -> *mut u8 {
        self.ring(index, from, SMALL_OFFSET, SMALL)
    }

    /// The page of the small ring that `from` sends into: it holds those of slots `index / SMALL_PER_PAGE *
    /// SMALL_PER_PAGE` to the next such number, and nothing else.
    pub fn small_page(&self, index: usize, from: Side) -> (*mut u8, usize) {
        let first = index % SLOTS / SMALL_PER_PAGE * PAGE;
        // SAFETY: as for `small_ring`.
        (unsafe { self.base.add(from as usize * SIDE_STEP + SMALL_OFFSET + first) }, PAGE)
    }

    /// Start of the large ring that `from` sends into.
    pub fn large_ring(&self, index: usize, from: Side) -> *mut u8 {
        self.ring(index, from, LARGE_OFFSET, LARGE)
    }

    fn ring(&self, index: usize, from: Side, first: usize, size: u32) -> *mut u8 {
        let number = (index % SLOTS) ^ (from as usize * SMALL_PER_PAGE / 2);
        // SAFETY: number < SLOTS, so the ring lies within the side's half of the segment (proved above).
        unsafe { self.base.add(from as usize * SIDE_STEP + first + number * size as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn four_small_rings_share_a_page_and_no_ring_overlaps_another() {
        let (fd, _) = Mapping::create(1, 1, 1).unwrap();
        let map = Mapping::map(fd.raw()).unwrap();
        let mut starts = Vec::new();
        for from in [Side::A, Side::B] {
            for slot in 0..SLOTS {
                let ring = map.small_ring(slot, from) as usize;
                let (page, len) = map.small_page(slot, from);
                assert!((page as usize..page as usize + len).contains(&ring));
                assert!((page as usize).is_multiple_of(PAGE) && map.small_page(slot / 4 * 4, from).0 == page);
                assert!(page as usize >= map.names(SLOTS - 1) as *const Names as usize + 40);
                let large = map.large_ring(slot, from) as usize;
                assert_eq!(large as u64, large_of(ring as u64));
                assert!(page as usize + len <= large && (large - map.base() as usize).is_multiple_of(PAGE));
                assert!(large + LARGE as usize <= map.base() as usize + SEGMENT_LEN);
                starts.push((ring, SMALL));
                starts.push((large, LARGE));
            }
            assert_ne!(
                map.small_ring(0, Side::A) as usize % PAGE,
                map.small_ring(0, Side::B) as usize % PAGE
            );
        }
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1].0 - pair[0].0 >= pair[0].1 as usize));
        // SAFETY: nothing uses the mapping any more.
        unsafe { map.unmap() };
    }
}

/// In memory of this process: Miri maps no files, and knows where references may point.
#[cfg(all(test, miri))]
mod layout {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed};

    #[test]
    fn everything_before_the_rings_lies_apart() {
        let Ok(layout) = Layout::from_size_align(SMALL_OFFSET, MIB) else { unreachable!("a whole MiB") };
        // SAFETY: not of no size; never freed.
        let map = Mapping::at(unsafe { alloc_zeroed(layout) });
        for index in [0, 1, SLOTS - 1] {
            let slot = map.slot(index);
            slot.side[0].set_state(index as u32 + 1, SlotState::Syn);
            assert_eq!(slot.side[0].other().state(), (0, SlotState::Free));
            assert!(slot.side[1].cold().is_none());
            slot.side[1].make_cold().wake_target.store(7, Ordering::Relaxed);
            slot.side[0].make_cold().wake_target.store(9, Ordering::Relaxed);
            assert_eq!(slot.side[1].cold().map(|cold| cold.wake_target.load(Ordering::Relaxed)), Some(7));
            map.names(index).ports.store(5, Ordering::Relaxed);
            assert_eq!(map.waiting(index), Some(index as u32 + 1));
            slot.side[0].cold().into_iter().for_each(ColdWords::clear);
        }
        for (side, adopter) in [(Side::A, 0), (Side::B, 0), (Side::B, 1), (Side::B, ADOPTERS as u32)] {
            map.events_for(side, adopter).post(1023);
            let mut seen = Vec::new();
            map.events_for(side, adopter).take(|slot| seen.push(slot));
            assert_eq!(seen, [1023]);
        }
        assert_eq!(map.header().used.load(Ordering::Relaxed), 0);
    }
}
