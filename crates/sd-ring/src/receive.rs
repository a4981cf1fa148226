//! The receiver's cursor: follows what the sender's (see `ring.rs`) has written.

use crate::header::{self, Kind, SIZE, padded};
use crate::lap::Lap;
use crate::ring::{Corrupt, Geometry, Next, Region, RingMem, check_message, in_order, is_word};

/// The receiver's private state. Senseless values give senseless results, and nothing worse.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RxCursor {
    pub(crate) lap: Lap,
    /// Ring bytes used by messages that were taken whole, and by jumps.
    pub(crate) consumed: u64,
    pub(crate) published: u64,
    /// Bytes taken of the message at `consumed`, and above them the lower half of `consumed`: so it is
    /// invalid, which is as good as zero, as soon as `consumed` moves on.
    partial: u64,
    /// Payload size of the message that `next` found.
    len: u32,
    /// Not zero: each lap of the large region is apart at first, see [`RxCursor::beware`].
    wary: u32,
}

/// In the place of the bytes taken: the message under way is an urgent one, and is received like any other.
const ADMITTED: u32 = 1 << 31;
/// Jumps in a row after which a peer is called corrupt; a correct one makes two.
const JUMPS_MAX: u32 = 4;

impl RxCursor {
    /// A cursor at the start of the small region.
    pub const fn new() -> Self {
        let lap = Lap::new(0, Region::Small as u32);
        RxCursor { lap, consumed: 0, published: 0, partial: 0, len: 0, wary: 0 }
    }

    /// From now on each lap of the large region is *apart*: `next` does not look into it and says [`Next::Apart`], until the
    /// caller takes it for its own ([`RxCursor::join`]) or asks `next_apart`.
    pub fn beware(&mut self) {
        self.wary = 1;
    }

    /// As [`RxCursor::beware`]; the lap in which it stands may be one of the large region.
    pub fn beware_here(&mut self) {
        self.beware();
        self.lap = self.lap.set_apart(self.is_large());
    }

    /// Whether it stands in a lap that is apart.
    pub fn is_apart(&self) -> bool {
        self.lap.is_apart()
    }

    /// This lap is like any other.
    pub fn join(&mut self) {
        self.lap = self.lap.set_apart(false);
    }

    /// Whether it reads in the large region.
    pub fn is_large(&self) -> bool {
        self.lap.region() == Region::Large as u32
    }

    /// Ring bytes before the message that `next` found, or where it looked: the sender's position when it wrote it.
    pub fn position(&self) -> u64 {
        self.consumed
    }

    /// Bytes taken of the message under way.
    #[inline(always)]
    pub(crate) fn taken(&self) -> u32 {
        if self.partial >> 32 == self.consumed & 0xffff_ffff { self.partial as u32 } else { 0 }
    }

    /// So many bytes of the message are taken.
    pub(crate) fn take_over(&mut self, taken: u32) {
        if taken != 0 {
            self.partial = self.consumed << 32 | u64::from(taken);
        }
    }

    /// What comes next.
    #[inline(always)]
    pub fn next<M: RingMem>(&mut self, g: &Geometry, mem: &M) -> Result<Next, Corrupt> {
        let (region, pos) = (self.lap.region(), self.lap.offset(self.consumed));
        if !is_word(pos, g.size(region)) {
            return self.without_offset();
        }
        let word = mem.load(region, pos);
        if word == 0 {
            return Ok(Next::Empty);
        }
        match header::decode(word) {
            Some((Kind::Data, len)) => self.begin(g, (region, pos), len),
            _ => self.next_slow(g, mem, word),
        }
    }

    #[cold]
    fn without_offset(&self) -> Result<Next, Corrupt> {
        if self.is_apart() { Ok(Next::Apart) } else { Err(Corrupt) }
    }

    /// As `next`, in any lap: `mem` can read those that are apart as well. What it finds is `Data` there too.
    #[cold]
    pub fn next_apart<M: RingMem>(&mut self, g: &Geometry, mem: &M) -> Result<Next, Corrupt> {
        for _ in 0..JUMPS_MAX {
            let (region, pos) = self.place();
            if !is_word(pos, g.size(region)) {
                return Err(Corrupt);
            }
            match mem.load(region, pos) {
                0 => return Ok(Next::Empty),
                word => {
                    if let Some(found) = self.take_word(g, word)? {
                        return Ok(found);
                    }
                }
            }
        }
        Err(Corrupt)
    }

    /// Region, and offset there, of the next header, apart or not.
    #[inline(always)]
    pub(crate) fn place(&self) -> (u32, u32) {
        (self.lap.region(), self.consumed.wrapping_sub(self.lap.start()) as u32)
    }

    /// Whether data comes next, for a look that changes nothing; `None` when that takes `next`.
    #[inline(always)]
    pub fn is_at_data<M: RingMem>(&self, g: &Geometry, mem: &M) -> Option<bool> {
        let (region, pos) = (self.lap.region(), self.lap.offset(self.consumed));
        if !is_word(pos, g.size(region)) {
            return None;
        }
        match mem.load(region, pos) {
            0 => Some(false),
            word => matches!(header::decode(word), Some((Kind::Data, _))).then_some(true),
        }
    }

    /// When the message was sent that `next` has just found, in [`crate::stamp`]'s terms; zero when its sender did not say.
    pub fn stamp<M: RingMem>(&self, mem: &M) -> u32 {
        let (region, pos) = self.place();
        header::stamp(mem.load(region, pos))
    }

    /// Looks at a message whose length the peer states, again each time.
    #[inline(always)]
    fn begin(&mut self, g: &Geometry, (region, pos): (u32, u32), len: u32) -> Result<Next, Corrupt> {
        check_message(pos, len, g.size(region))?;
        let taken = self.taken();
        if taken >= len {
            return Err(Corrupt);
        }
        self.len = len;
        Ok(Next::Data { region, off: pos + SIZE + taken, len: len - taken })
    }

    #[cold]
    fn next_slow<M: RingMem>(&mut self, g: &Geometry, mem: &M, mut word: u64) -> Result<Next, Corrupt> {
        for _ in 0..JUMPS_MAX {
            if let Some(found) = self.take_word(g, word)? {
                return Ok(found);
            }
            if self.is_apart() {
                return Ok(Next::Apart);
            }
            word = mem.load(self.lap.region(), 0);
            if word == 0 {
                return Ok(Next::Empty);
            }
        }
        Err(Corrupt)
    }

    /// What a word says that is not zero; `None`: a jump, which was made.
    #[inline(always)]
    fn take_word(&mut self, g: &Geometry, word: u64) -> Result<Option<Next>, Corrupt> {
        let (kind, used) = match header::decode(word).ok_or(Corrupt)? {
            (Kind::Data, len) => return self.begin(g, self.place(), len).map(Some),
            (Kind::Fin, _) => return Ok(Some(Next::Fin)),
            (Kind::Urgent, len) => return self.next_urgent(g, len).map(Some),
            (Kind::Marker, _) => return Ok(Some(Next::Marker)),
            jump => jump,
        };
        if used < SIZE || used > g.size(self.lap.region()) || !used.is_multiple_of(SIZE) {
            return Err(Corrupt);
        }
        let to = if kind == Kind::ToLarge { Region::Large } else { Region::Small };
        let lap = Lap::new(self.consumed.wrapping_add(u64::from(used)), to as u32);
        self.lap = lap.set_apart(to == Region::Large && self.wary != 0);
        in_order();
        self.consumed = self.lap.start();
        Ok(None)
    }

    fn next_urgent(&mut self, g: &Geometry, len: u32) -> Result<Next, Corrupt> {
        let (region, pos) = self.place();
        check_message(pos, len, g.size(region))?;
        match (len, self.taken()) {
            (1, 0) => Ok(Next::Urgent),
            (1, ADMITTED) => {
                self.len = 1;
                Ok(Next::Data { region, off: pos + SIZE, len: 1 })
            }
            _ => Err(Corrupt),
        }
    }

    /// After `Next::Urgent`: `next` returns the byte as data from now on.
    pub fn admit_urgent(&mut self) {
        self.len = 1;
        self.partial = self.consumed << 32 | u64::from(ADMITTED);
    }

    /// Takes `n` bytes of what `next` has just returned.
    #[inline(always)]
    pub fn advance(&mut self, n: u32) {
        let taken = self.taken() + n;
        if taken >= self.len {
            self.consumed = self.consumed.wrapping_add(u64::from(SIZE + padded(self.len)));
            self.partial = 0;
        } else {
            self.partial = self.consumed << 32 | u64::from(taken);
        }
    }

    /// Takes over from a receiver that died anywhere: what it had not counted as taken is taken again.
    pub fn recover(&mut self) {
        self.consumed = self.consumed.max(self.lap.start());
        if matches!(self.taken(), 0 | ADMITTED) {
            self.partial = 0;
        }
    }

    /// The counter to publish to the sender, when enough has been consumed since the last time
    /// (§4.2: credits are returned lazily).
    #[inline(always)]
    pub fn credit_due(&mut self, g: &Geometry) -> Option<u64> {
        let threshold = if self.is_large() { g.large_first / 4 } else { g.small / 2 };
        if self.consumed.wrapping_sub(self.published) >= u64::from(threshold) {
            self.credit_all()
        } else {
            None
        }
    }

    /// Whether anything at all was consumed since the last time that the counter was published.
    pub fn owes_credit(&self) -> bool {
        self.consumed != self.published
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
