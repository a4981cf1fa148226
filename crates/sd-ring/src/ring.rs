//! The ring protocol: its shape, and the sender's cursor. The receiver's is in `receive.rs`, when a ring grows in `growth.rs`.
//!
//! ```text
//!  small region            large region
//!  +--------------------+  +---------------------------------- - -+ - - - -
//!  |hdr|data|hdr|data|J |  |hdr|data ....... |hdr|data |J         | (unused
//!  +--------------------+  +---------------------------------- - -+  yet)
//!                     |     ^                           |         ^ limit
//!                     +-----+                           +-> start of either region
//! ```
//! A connection starts in the small region. When that is full the sender jumps to the large one,
//! whose `limit` it raises as traffic demands; when all is consumed it may jump back, and the
//! large region's memory is given back. The receiver just follows the jumps. All memory may be given back when all is
//! consumed: it then reads as zeros, and where the receiver looks that says "nothing yet".
//!
//! Before a header is published, the word after its message is set to zero: the receiver polls there next. So the
//! sender always keeps eight bytes in reserve.
//! A cursor survives its user: whoever takes over a half whose user died calls `recover`. One store each ends a message:
//! of the header's publication, and of the counter from which the position follows; only jumps change more, in an order
//! that can be repeated.

mod growth;

use crate::header::{self, Kind, SIZE, padded};
use crate::lap::Lap;
use core::ops::Range;
use core::sync::atomic::{Ordering, compiler_fence};

/// Messages of up to so many bytes go as a whole or not at all, unless a quarter of the ring is less.
const LEAST: u32 = 512;

/// Part of a ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Region {
    /// Always there; where a connection starts.
    Small = 0,
    /// Used while there is more traffic.
    Large = 1,
}

/// Sizes of the two regions, multiples of 8.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Bytes of the small region.
    pub small: u32,
    /// Bytes of the large region that are used at first.
    pub large_first: u32,
    /// Bytes of the large region.
    pub large: u32,
}

impl Geometry {
    #[inline(always)]
    pub fn size(&self, region: u32) -> u32 {
        if region == Region::Small as u32 { self.small } else { self.large }
    }
}

/// The memory under a ring. Offsets are within the region and were checked by the ring.
pub trait RingMem {
    /// Loads a header word (Acquire; SYNC POINT: header, with `publish` in crates/sd-ring/src/ring.rs).
    fn load(&self, region: u32, off: u32) -> u64;
    /// Publishes a header word (Release; SYNC POINT: header, with `load` in crates/sd-ring/src/ring.rs).
    fn publish(&self, region: u32, off: u32, word: u64);
    /// Stores a word that a later `publish` makes visible.
    fn store(&self, region: u32, off: u32, word: u64);
    /// Whether the ring may use these bytes of the large region, which it did not use before; asked each time.
    fn may_take(&self, _bytes: Range<u32>) -> bool {
        true
    }
    /// So many bytes of the large region are not used any more.
    fn give_back(&self, _bytes: u32) {}
    /// A message of `size` bytes with its header is complete: ends it by a zero and publishes the header at `pos`.
    #[inline(always)]
    fn complete(&self, region: u32, pos: u32, size: u32, word: u64) {
        self.store(region, pos + size, 0);
        self.publish(region, pos, word);
    }
}

/// The peer wrote something that no correct peer writes; the connection must be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// How far the sender goes to find room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Only what the credit known so far allows, without leaving the region.
    Cached,
    /// The credit was just read: the large region may be entered.
    Fresh,
    /// As `Fresh`, by a sender that comes back with `Grow`: while the large region can be extended, it is not left for
    /// a start that is short of room, since it cannot be extended from there.
    WillGrow,
    /// The sender would have to wait: the large region may be extended.
    Grow,
}

/// Room for one message's payload.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Region of the payload.
    pub region: u32,
    /// Offset of the payload.
    pub off: u32,
    /// Bytes that may be written there.
    pub len: u32,
}

/// What the receiver finds next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing yet.
    Empty,
    /// The sender has finished.
    Fin,
    /// `len` bytes at `off` of `region`.
    Data {
        /// Region of the payload.
        region: u32,
        /// Offset of the payload.
        off: u32,
        /// Bytes there.
        len: u32,
    },
    /// The next byte was sent as urgent; [`RxCursor::admit_urgent`](crate::RxCursor::admit_urgent) makes it `Data`.
    Urgent,
    /// To be asked of [`RxCursor::next_apart`](crate::RxCursor::next_apart).
    Apart,
    /// What follows goes through the kernel's connection, see [`crate::road`]. It stays where it is.
    Marker,
}

impl Next {
    /// Payload, or what has to be asked once more.
    pub fn may_be_data(self) -> bool {
        matches!(self, Next::Data { .. } | Next::Urgent | Next::Apart)
    }
}

/// Keeps the stores before and behind it in this order, for somebody who finds them after a crash.
#[inline(always)]
pub(crate) fn in_order() {
    compiler_fence(Ordering::SeqCst);
}

/// Whether a header can stand at `pos` of a region. One comparison: bits below the word size become the highest ones.
#[inline(always)]
pub(crate) fn is_word(pos: u32, size: u32) -> bool {
    pos.rotate_right(3) < size / SIZE
}

/// Whether a message can stand at `pos`, with a header behind it, in so many bytes.
#[inline(always)]
pub(crate) fn check_message(pos: u32, len: u32, size: u32) -> Result<(), Corrupt> {
    let end = u64::from(pos) + u64::from(SIZE) + ((u64::from(len) + 7) & !7) + u64::from(SIZE);
    if len == 0 || end > u64::from(size) { Err(Corrupt) } else { Ok(()) }
}

/// The sender's private state. Zero-initialised memory is not valid; see [`TxCursor::new`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TxCursor {
    pub(crate) lap: Lap,
    pub(crate) limit: u32,
    pub(crate) finished: u32,
    /// Ring bytes used since the start.
    pub(crate) written: u64,
    /// Ring bytes that the receiver has given back, as last checked.
    pub(crate) consumed: u64,
    /// `written` when the current region was entered (it was empty then).
    pub(crate) entered: u64,
    /// `written` when the large region was left: all of it is free once that much is consumed. Until then the
    /// receiver has still to read the word at `left_at`, which is not zero while that page is kept.
    pub(crate) large_left: u64,
    pub(crate) left_at: u32,
    /// The lower half of `written` when the small region's memory was given back last.
    pub(crate) given_back: u32,
}

impl TxCursor {
    /// A cursor for a ring whose first word of the small region is zero.
    pub const fn new(geometry: &Geometry) -> Self {
        TxCursor {
            lap: Lap::new(0, Region::Small as u32),
            limit: geometry.small,
            finished: 0,
            written: 0,
            consumed: 0,
            entered: 0,
            large_left: 0,
            left_at: 0,
            given_back: 0,
        }
    }

    /// Ring bytes before the next message; see [`RxCursor::position`](crate::RxCursor::position).
    pub fn position(&self) -> u64 {
        self.written
    }

    #[inline(always)]
    fn pos(&self) -> u32 {
        self.lap.offset(self.written)
    }

    #[inline(always)]
    fn region(&self) -> u32 {
        self.lap.region()
    }

    /// Takes note of the receiver's published counter.
    #[inline(always)]
    pub fn credit(&mut self, consumed: u64) -> Result<(), Corrupt> {
        if consumed < self.consumed || consumed > self.written {
            return Err(Corrupt);
        }
        self.consumed = consumed;
        Ok(())
    }

    /// The receiver's counter as last noted.
    #[inline(always)]
    pub fn credited(&self) -> u64 {
        self.consumed
    }

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        (self.written - self.consumed.max(self.entered)) as u32
    }

    /// Whether every byte has been consumed, as far as the sender knows.
    pub fn is_drained(&self) -> bool {
        self.consumed == self.written
    }

    /// Ring bytes not yet given back, as last checked; none of a cursor that makes no sense, as another process's may be.
    pub fn unread(&self) -> u64 {
        self.written.saturating_sub(self.consumed)
    }

    /// Whether the large region is in use.
    pub fn is_large(&self) -> bool {
        self.region() == Region::Large as u32
    }

    /// Whether both regions may be replaced by zeros: all was consumed, and what the receiver looks at next is zero.
    pub fn memory_is_free(&self) -> bool {
        self.is_drained() && self.finished == 0
    }

    /// Whether something was written since the small region's memory was given back.
    pub fn small_was_used(&self) -> bool {
        self.given_back != self.written as u32
    }

    /// That memory was given back: it reads as zeros.
    pub fn note_small_given_back(&mut self) {
        self.given_back = self.written as u32;
    }

    /// Whether the large region is in use, or was left with a jump that is still there.
    pub fn large_was_used(&self) -> bool {
        self.is_large() || self.left_at != 0
    }

    /// The large region's memory was given back, all of it, after it was left.
    pub fn note_large_given_back(&mut self) {
        self.left_at = 0;
    }

    /// Whether `finish` has been called.
    pub fn is_finished(&self) -> bool {
        self.finished != 0
    }

    /// Payload that fits right here.
    #[inline(always)]
    fn room(&self) -> u32 {
        let contiguous = self.limit - self.pos();
        let free = self.limit - self.in_flight();
        contiguous.min(free).saturating_sub(2 * SIZE)
    }

    /// Room for a message of up to `want` bytes (more than zero); fewer when the ring is tight.
    /// `None` when it is full as far as `effort` goes.
    #[inline(always)]
    pub fn reserve<M: RingMem>(&mut self, g: &Geometry, mem: &M, want: u32, effort: Effort) -> Option<Grant> {
        let room = self.room();
        if want <= room && want <= g.small {
            return Some(self.grant(want));
        }
        self.reserve_slow(g, mem, want, LEAST, effort)
    }

    /// Room for a sender that waits for it. With Linux' buffers, which take one more packet while there is any room, messages of
    /// up to 64 KiB go as a whole or not at all, and programs are careless about short counts; here up to a part of
    /// the ring.
    #[inline(always)]
    pub fn reserve_whole<M: RingMem>(
        &mut self,
        g: &Geometry,
        mem: &M,
        want: u32,
        effort: Effort,
    ) -> Option<Grant> {
        let room = self.room();
        if want <= room && want <= g.small {
            return Some(self.grant(want));
        }
        self.reserve_slow(g, mem, want, g.large / 32, effort)
    }

    /// Room for a message of exactly that size, if there is right here; nothing changes.
    #[inline(always)]
    pub fn reserve_here(&self, g: &Geometry, want: usize) -> Option<Grant> {
        let fits = want <= self.room() as usize && want <= g.small as usize;
        fits.then(|| self.grant(want as u32))
    }

    #[inline(always)]
    fn grant(&self, len: u32) -> Grant {
        Grant { region: self.region(), off: self.pos() + SIZE, len }
    }

    fn reserve_slow<M: RingMem>(
        &mut self,
        g: &Geometry,
        mem: &M,
        want: u32,
        least: u32,
        effort: Effort,
    ) -> Option<Grant> {
        if !self.is_large() {
            if want <= self.room() {
                return Some(self.grant(want));
            }
            if self.room_after_wrap() >= want {
                return self.reserve_wrapping(mem, want, want);
            }
            if effort == Effort::Cached {
                return None;
            }
            if !mem.may_take(0..self.large_limit(g)) {
                return self.reserve_part(mem, want);
            }
            self.jump(mem, Region::Large, self.limit - self.pos(), self.large_limit(g));
        }
        if self.limit < g.large_first && self.is_extensible(g) && mem.may_take(self.limit..g.large_first) {
            self.limit = g.large_first;
        }
        // One message takes at most a quarter of the ring, so that both sides work at once.
        let part = want.min(self.limit / 4);
        let least = part.min(least);
        if self.room() >= least {
            return Some(self.grant(part.min(self.room())));
        }
        // With headers for its parts.
        let tight = self.room_after_wrap() < want.min(g.large_first) + 8 * SIZE;
        match effort {
            Effort::Cached if tight => return None,
            Effort::WillGrow if tight && self.is_extensible(g) => return None,
            Effort::Grow if (tight || self.is_crowded()) && self.is_extensible(g) => {
                let steps = [self.next_step(g), g.large_first.min(g.large - self.limit)];
                if let Some(step) = steps.into_iter().find(|step| mem.may_take(self.limit..self.limit + step))
                {
                    self.limit += step;
                    return Some(self.grant(part.min(self.room())));
                }
            }
            _ => {}
        }
        self.reserve_wrapping(mem, part, least)
    }

    /// Payload that would fit at the start of the region.
    fn room_after_wrap(&self) -> u32 {
        let rest = self.limit - self.pos();
        (self.limit - self.in_flight()).saturating_sub(rest).saturating_sub(2 * SIZE)
    }

    /// Continues at the start of the region when that has more room than the rest of it.
    fn reserve_wrapping<M: RingMem>(&mut self, mem: &M, want: u32, least: u32) -> Option<Grant> {
        let here = self.room();
        let rest = self.limit - self.pos();
        if self.room_after_wrap() > here && here < want {
            let region = if self.is_large() { Region::Large } else { Region::Small };
            self.jump(mem, region, rest, self.limit);
        }
        let room = self.room();
        (room >= least).then(|| self.grant(room.min(want)))
    }

    fn jump<M: RingMem>(&mut self, mem: &M, to: Region, used: u32, limit: u32) {
        let kind = if to == Region::Large { Kind::ToLarge } else { Kind::ToSmall };
        mem.store(to as u32, 0, 0);
        mem.publish(self.region(), self.pos(), header::encode(kind, used, 0));
        self.follow_jump(to, used, limit);
    }

    /// What `jump` does once it has published. May be repeated from the start while `lap` is the old one;
    /// afterwards `written` follows from `lap`.
    fn follow_jump(&mut self, to: Region, used: u32, limit: u32) {
        let start = self.written + u64::from(used);
        if self.region() != to as u32 {
            if self.is_large() {
                self.left_at = self.pos();
                self.large_left = start;
            }
            self.entered = start;
        }
        self.limit = limit;
        in_order();
        self.lap = Lap::new(start, to as u32);
        in_order();
        self.written = start;
    }

    /// Publishes a message of `len` bytes (at most the grant's) that was copied into the grant. For `stamp` see
    /// [`crate::stamp`]; zero for none.
    #[inline(always)]
    pub fn commit<M: RingMem>(&mut self, mem: &M, len: u32, stamp: u32) {
        self.commit_as(mem, Kind::Data, len, stamp);
    }

    /// Publishes a message of a single byte that is urgent.
    pub fn commit_urgent<M: RingMem>(&mut self, mem: &M, stamp: u32) {
        self.commit_as(mem, Kind::Urgent, 1, stamp);
    }

    #[inline(always)]
    fn commit_as<M: RingMem>(&mut self, mem: &M, kind: Kind, len: u32, stamp: u32) {
        let size = SIZE + padded(len);
        let (region, pos) = (self.region(), self.pos());
        mem.complete(region, pos, size, header::encode(kind, len, stamp));
        in_order();
        self.written += u64::from(size);
    }

    /// Takes over from a sender that died anywhere: what it had published counts, nothing else.
    pub fn recover<M: RingMem>(&mut self, g: &Geometry, mem: &M) -> Result<(), Corrupt> {
        self.written = self.written.max(self.lap.start());
        let (region, pos) = (self.region(), self.pos());
        if !is_word(pos, g.size(region)) {
            return Err(Corrupt);
        }
        let word = mem.load(region, pos);
        if word == 0 {
            return Ok(());
        }
        // The word after what was published last is zero, unless that was never counted.
        match header::decode(word).ok_or(Corrupt)? {
            (Kind::Fin | Kind::Marker, _) => self.finished = 1,
            (Kind::Data | Kind::Urgent, len) => {
                check_message(pos, len, self.limit)?;
                self.check_room(SIZE + padded(len))?;
                self.written += u64::from(SIZE + padded(len));
            }
            (_, used) if !(SIZE..=self.limit).contains(&used) || !used.is_multiple_of(SIZE) => {
                return Err(Corrupt);
            }
            (kind, used) => {
                let to = if kind == Kind::ToLarge { Region::Large } else { Region::Small };
                if to as u32 == region {
                    self.check_room(used)?;
                }
                let limit = match to {
                    _ if to as u32 == region => self.limit,
                    Region::Large => self.large_limit(g),
                    Region::Small => g.small,
                };
                self.follow_jump(to, used, limit);
            }
        }
        Ok(())
    }

    /// No sender publishes what the receiver has left no room for.
    fn check_room(&self, size: u32) -> Result<(), Corrupt> {
        if self.in_flight().checked_add(size).is_some_and(|all| all <= self.limit) {
            Ok(())
        } else {
            Err(Corrupt)
        }
    }

    /// Announces the end of the stream; nothing may be sent afterwards. The reserved word always
    /// has room for it.
    pub fn finish<M: RingMem>(&mut self, mem: &M, stamp: u32) {
        if self.finished == 0 {
            mem.publish(self.region(), self.pos(), header::encode(Kind::Fin, 0, stamp));
            self.finished = 1;
        }
    }
}
