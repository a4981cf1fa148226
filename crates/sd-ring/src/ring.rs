//! The ring protocol: cursors of the sender and of the receiver.
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
//! large region's memory is given back. The receiver just follows the jumps.
//!
//! Before a header is published, the word after its message is set to zero: the receiver polls
//! there next. So the sender always keeps eight bytes in reserve.

use crate::header::{self, Kind, SIZE, padded};

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
    fn size(&self, region: u32) -> u32 {
        if region == Region::Small as u32 { self.small } else { self.large }
    }
}

/// The memory under a ring. Offsets are within the region and were checked by the ring.
pub trait RingMem {
    /// Loads a header word (Acquire; SYNC POINT: header).
    fn load(&self, region: u32, off: u32) -> u64;
    /// Publishes a header word (Release; SYNC POINT: header).
    fn publish(&self, region: u32, off: u32, word: u64);
    /// Stores a word that a later `publish` makes visible.
    fn store(&self, region: u32, off: u32, word: u64);
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
}

/// The sender's private state. Zero-initialised memory is not valid; see [`TxCursor::new`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TxCursor {
    pos: u32,
    region: u32,
    limit: u32,
    finished: u32,
    /// Ring bytes used since the start.
    written: u64,
    /// Ring bytes that the receiver has given back, as last checked.
    consumed: u64,
    /// `written` when the current region was entered (it was empty then).
    entered: u64,
    /// `written` when the large region was left: free again once that much is consumed.
    large_left: u64,
}

impl TxCursor {
    /// A cursor for a ring whose first word of the small region is zero.
    pub const fn new(geometry: &Geometry) -> Self {
        TxCursor {
            pos: 0,
            region: Region::Small as u32,
            limit: geometry.small,
            finished: 0,
            written: 0,
            consumed: 0,
            entered: 0,
            large_left: 0,
        }
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

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        (self.written - self.consumed.max(self.entered)) as u32
    }

    /// Whether every byte has been consumed, as far as the sender knows.
    pub fn is_drained(&self) -> bool {
        self.consumed == self.written
    }

    /// Ring bytes not yet given back, as last checked.
    pub fn unread(&self) -> u64 {
        self.written - self.consumed
    }

    /// Whether the large region is in use.
    pub fn is_large(&self) -> bool {
        self.region == Region::Large as u32
    }

    /// Whether the large region's memory may be given back.
    pub fn large_is_free(&self) -> bool {
        !self.is_large() && self.consumed >= self.large_left
    }

    /// Whether `finish` has been called.
    pub fn is_finished(&self) -> bool {
        self.finished != 0
    }

    /// Payload that fits right here.
    #[inline(always)]
    fn room(&self) -> u32 {
        let contiguous = self.limit - self.pos;
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
        self.reserve_slow(g, mem, want, effort)
    }

    #[inline(always)]
    fn grant(&self, len: u32) -> Grant {
        Grant { region: self.region, off: self.pos + SIZE, len }
    }

    fn reserve_slow<M: RingMem>(
        &mut self,
        g: &Geometry,
        mem: &M,
        want: u32,
        effort: Effort,
    ) -> Option<Grant> {
        if !self.is_large() {
            if want <= self.room() {
                return Some(self.grant(want));
            }
            if self.room_after_wrap() >= want || (effort != Effort::Cached && self.consumed < self.large_left)
            {
                return self.reserve_wrapping(mem, want);
            }
            if effort == Effort::Cached {
                return None;
            }
            self.jump(mem, Region::Large, self.limit - self.pos, g.large_first);
        }
        // One message takes at most a quarter of the ring, so that both sides work at once.
        let want = want.min(self.limit / 4);
        let enough = want.min(512);
        if self.room() >= enough {
            return Some(self.grant(want.min(self.room())));
        }
        let unwrapped = self.in_flight() <= self.pos;
        let crowded = self.limit - self.in_flight() < self.limit / 2;
        if effort == Effort::Grow && unwrapped && crowded && self.limit < g.large {
            self.limit = g.large.min(self.limit.saturating_mul(4));
            return Some(self.grant(want.min(self.room())));
        }
        self.reserve_wrapping(mem, want)
    }

    /// Payload that would fit at the start of the region.
    fn room_after_wrap(&self) -> u32 {
        let rest = self.limit - self.pos;
        (self.limit - self.in_flight()).saturating_sub(rest).saturating_sub(2 * SIZE)
    }

    /// Continues at the start of the region when that has more room than the rest of it.
    fn reserve_wrapping<M: RingMem>(&mut self, mem: &M, want: u32) -> Option<Grant> {
        let here = self.room();
        let rest = self.limit - self.pos;
        if self.room_after_wrap() > here && here < want {
            let region = if self.is_large() { Region::Large } else { Region::Small };
            self.jump(mem, region, rest, self.limit);
        }
        match self.room().min(want) {
            0 => None,
            len => Some(self.grant(len)),
        }
    }

    fn jump<M: RingMem>(&mut self, mem: &M, to: Region, used: u32, limit: u32) {
        let kind = if to == Region::Large { Kind::ToLarge } else { Kind::ToSmall };
        mem.store(to as u32, 0, 0);
        mem.publish(self.region, self.pos, header::encode(kind, used));
        self.written += u64::from(used);
        if self.region != to as u32 {
            if self.is_large() {
                self.large_left = self.written;
            }
            self.region = to as u32;
            self.entered = self.written;
        }
        self.pos = 0;
        self.limit = limit;
    }

    /// Publishes a message of `len` bytes (at most the grant's) that was copied into the grant.
    #[inline(always)]
    pub fn commit<M: RingMem>(&mut self, mem: &M, len: u32) {
        let size = SIZE + padded(len);
        mem.store(self.region, self.pos + size, 0);
        mem.publish(self.region, self.pos, header::encode(Kind::Data, len));
        self.pos += size;
        self.written += u64::from(size);
    }

    /// Announces the end of the stream; nothing may be sent afterwards. The reserved word always
    /// has room for it.
    pub fn finish<M: RingMem>(&mut self, mem: &M) {
        if self.finished == 0 {
            mem.publish(self.region, self.pos, header::encode(Kind::Fin, 0));
            self.finished = 1;
        }
    }

    /// Leaves a drained large region for the small one; returns the offset of the word that says
    /// so, which is in use until the receiver has read it.
    pub fn shrink<M: RingMem>(&mut self, g: &Geometry, mem: &M) -> Option<u32> {
        if !self.is_large() || !self.is_drained() || self.finished != 0 {
            return None;
        }
        let at = self.pos;
        self.jump(mem, Region::Small, SIZE, g.small);
        Some(at)
    }

    /// Whether a sender that waited for room should try again: about a third of the ring is free
    /// (as Linux judges a socket writable), allowing for credit that the receiver still holds back.
    pub fn is_roomy(&self, g: &Geometry, grows: bool) -> bool {
        let may_grow = !self.is_large() && self.consumed >= self.large_left
            || grows && self.is_large() && self.limit < g.large && self.in_flight() <= self.pos;
        may_grow || self.limit - self.in_flight() >= self.limit / 3
    }
}

/// The receiver's private state.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RxCursor {
    pos: u32,
    region: u32,
    /// Payload size of the message under way; zero when none is.
    len: u32,
    /// Bytes of it that were taken.
    taken: u32,
    consumed: u64,
    published: u64,
}

/// Jumps in a row after which a peer is called corrupt; a correct one makes two.
const JUMPS_MAX: u32 = 4;

impl RxCursor {
    /// A cursor at the start of the small region.
    pub const fn new() -> Self {
        RxCursor { pos: 0, region: Region::Small as u32, len: 0, taken: 0, consumed: 0, published: 0 }
    }

    /// Whether it reads in the large region.
    pub fn is_large(&self) -> bool {
        self.region == Region::Large as u32
    }

    /// What comes next.
    #[inline(always)]
    pub fn next<M: RingMem>(&mut self, g: &Geometry, mem: &M) -> Result<Next, Corrupt> {
        if self.len == 0 {
            let word = mem.load(self.region, self.pos);
            if word == 0 {
                return Ok(Next::Empty);
            }
            match header::decode(word) {
                Some((Kind::Data, len)) => self.begin(g, len)?,
                _ => return self.next_slow(g, mem, word),
            }
        }
        Ok(Next::Data { region: self.region, off: self.pos + SIZE + self.taken, len: self.len - self.taken })
    }

    /// Starts on a message whose length the peer states.
    #[inline(always)]
    fn begin(&mut self, g: &Geometry, len: u32) -> Result<(), Corrupt> {
        let end = u64::from(self.pos) + u64::from(SIZE) + ((u64::from(len) + 7) & !7) + u64::from(SIZE);
        if len == 0 || end > u64::from(g.size(self.region)) {
            return Err(Corrupt);
        }
        self.len = len;
        self.taken = 0;
        Ok(())
    }

    #[cold]
    fn next_slow<M: RingMem>(&mut self, g: &Geometry, mem: &M, mut word: u64) -> Result<Next, Corrupt> {
        for _ in 0..JUMPS_MAX {
            match header::decode(word).ok_or(Corrupt)? {
                (Kind::Data, len) => {
                    self.begin(g, len)?;
                    return Ok(Next::Data { region: self.region, off: self.pos + SIZE, len });
                }
                (Kind::Fin, _) => return Ok(Next::Fin),
                (kind, used) => {
                    if used < SIZE || used > g.size(self.region) {
                        return Err(Corrupt);
                    }
                    self.consumed += u64::from(used);
                    self.region =
                        if kind == Kind::ToLarge { Region::Large as u32 } else { Region::Small as u32 };
                    self.pos = 0;
                }
            }
            word = mem.load(self.region, self.pos);
            if word == 0 {
                return Ok(Next::Empty);
            }
        }
        Err(Corrupt)
    }

    /// Takes `n` bytes of what `next` returned.
    #[inline(always)]
    pub fn advance(&mut self, n: u32) {
        self.taken += n;
        if self.taken >= self.len {
            let size = SIZE + padded(self.len);
            self.pos += size;
            self.consumed += u64::from(size);
            self.len = 0;
        }
    }

    /// The counter to publish to the sender, when enough has been consumed since the last time
    /// (§4.2: credits are returned lazily).
    #[inline(always)]
    pub fn credit_due(&mut self, g: &Geometry) -> Option<u64> {
        let threshold = if self.region == Region::Small as u32 { g.small / 2 } else { g.large_first / 4 };
        if self.consumed - self.published >= u64::from(threshold) { self.credit_all() } else { None }
    }

    /// The counter to publish when anything at all was consumed since the last time.
    #[inline]
    pub fn credit_all(&mut self) -> Option<u64> {
        if self.consumed == self.published {
            return None;
        }
        self.published = self.consumed;
        Some(self.consumed)
    }
}

impl Default for RxCursor {
    fn default() -> Self {
        Self::new()
    }
}
