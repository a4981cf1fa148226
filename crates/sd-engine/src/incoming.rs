//! From the stream to the ring that a local process reads.
//!
//! A header is put into the ring when all of its payload is there. What comes early waits beside the ring.

use crate::laps::Laps;
use crate::placing::LEAST;
use sd_ring::copy::copy_shared;
use sd_ring::{Corrupt, Piece, RingMem, RxCursor, stamp};
use sd_shm::channel::GEOMETRY;
use sd_shm::rings::Rings;
use std::collections::BTreeMap;

/// Bytes of one connection that wait for others before them, with what the pieces cost. More than a full ring of a sender that keeps to its credit: where one
/// packet is lost, all that is in there may come before it is sent again.
pub(crate) const EARLY_MAX: usize = 4 << 20;
/// What each piece of those costs besides its bytes.
const EARLY_EACH: usize = 96;

/// See the module.
pub(crate) struct Incoming {
    cursor: RxCursor,
    laps: Laps,
    /// So much of the stream has come; and of that, what was put into the ring: all but a part of a word.
    pub(crate) at: u64,
    done: u64,
    /// The word that is coming, and how much of it is here.
    word: [u8; 8],
    have: usize,
    /// The message that is coming, where its payload lies, and how much of that is here.
    piece: Option<(Piece, (u32, u32), u32)>,
    has_ended: bool,
    /// By position; of bytes no two overlap.
    early: BTreeMap<u64, Early>,
    /// What waits early, with its costs.
    pub(crate) early_bytes: usize,
    /// Pieces with payload that were put into the ring, and bytes of that.
    pub(crate) messages: u64,
    pub(crate) payload: u64,
    /// The large region was written into; so much of it; and large messages have come there.
    pub(crate) is_large: bool,
    extent: u32,
    pub(crate) is_bulk: bool,
}

/// Bytes that have come early, or so many that are at their place.
enum Early {
    Bytes(Vec<u8>),
    Placed(usize),
}

impl Early {
    fn len(&self) -> usize {
        match self {
            Early::Bytes(bytes) => bytes.len(),
            Early::Placed(len) => *len,
        }
    }

    /// What they take, with their costs.
    fn cost(&self) -> usize {
        EARLY_EACH + if let Early::Bytes(bytes) = self { bytes.len() } else { 0 }
    }
}

/// One header, wherever it is looked for.
struct Header(u64);

impl RingMem for Header {
    fn load(&self, _: u32, _: u32) -> u64 {
        self.0
    }
    fn publish(&self, _: u32, _: u32, _: u64) {}
    fn store(&self, _: u32, _: u32, _: u64) {}
}

impl Incoming {
    pub(crate) fn new() -> Incoming {
        Incoming {
            cursor: RxCursor::new(),
            laps: Laps::new(),
            at: 0,
            done: 0,
            word: [0; 8],
            have: 0,
            piece: None,
            has_ended: false,
            early: BTreeMap::new(),
            early_bytes: 0,
            messages: 0,
            payload: 0,
            is_large: false,
            extent: 0,
            is_bulk: false,
        }
    }

    /// Takes bytes of the stream. `wants_time`: the reader asks when messages came.
    pub(crate) fn put(
        &mut self,
        there: &Rings,
        position: u64,
        bytes: &[u8],
        wants_time: bool,
    ) -> Result<(), Corrupt> {
        if position > self.at {
            self.keep(position, bytes);
            return if self.early_bytes > EARLY_MAX { Err(Corrupt) } else { Ok(()) };
        }
        self.feed_rest(there, position, bytes, wants_time)?;
        self.take_early(there, wants_time)
    }

    /// Takes note of bytes of the stream that were placed.
    pub(crate) fn placed(
        &mut self,
        there: &Rings,
        position: u64,
        len: usize,
        wants_time: bool,
    ) -> Result<(), Corrupt> {
        if position > self.at {
            let is_known = self.early.get(&position).is_some_and(|early| early.len() >= len);
            if !is_known {
                let early = Early::Placed(len);
                self.early_bytes += early.cost();
                self.early_bytes -= self.early.insert(position, early).map_or(0, |before| before.cost());
            }
            return if self.early_bytes > EARLY_MAX { Err(Corrupt) } else { Ok(()) };
        }
        self.pass(there, position, len, wants_time)?;
        self.take_early(there, wants_time)
    }

    /// Takes what has come early and is next now.
    fn take_early(&mut self, there: &Rings, wants_time: bool) -> Result<(), Corrupt> {
        while let Some(first) = self.early.first_entry().filter(|first| *first.key() <= self.at) {
            let (position, early) = first.remove_entry();
            self.early_bytes -= early.cost();
            match early {
                Early::Bytes(bytes) => self.feed_rest(there, position, &bytes, wants_time)?,
                Early::Placed(len) => self.pass(there, position, len, wants_time)?,
            }
        }
        Ok(())
    }

    /// The part of what was placed that has not come before: payload of the message that is coming.
    fn pass(&mut self, there: &Rings, position: u64, len: usize, wants_time: bool) -> Result<(), Corrupt> {
        let news = (position + len as u64).saturating_sub(self.at);
        let news = u32::try_from(news).map_err(|_| Corrupt)?;
        let Some((_, (region, off), left)) = &mut self.piece else {
            return if news == 0 { Ok(()) } else { Err(Corrupt) };
        };
        // Of a word that has come in part the rest is there, too.
        let words = news + self.have as u32;
        if news == 0 {
            return Ok(());
        }
        if words > *left || *region != 1 || !words.is_multiple_of(8) {
            return Err(Corrupt);
        }
        (*off, *left, self.have) = (*off + words, *left - words, 0);
        self.at += u64::from(news);
        self.done += u64::from(words);
        self.finish_if_whole(there, wants_time);
        Ok(())
    }

    /// So much of the large region is this connection's, in whole words.
    pub(crate) fn extent(&self) -> u32 {
        self.extent.next_multiple_of(8).min(GEOMETRY.large)
    }

    /// Keeps of this what is not there yet, behind what it continues.
    fn keep(&mut self, mut position: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let next = self.early.range(position.saturating_add(1)..).next().map(|(next, _)| *next);
            let before = self.early.range_mut(..=position).next_back();
            let end = before.as_ref().map_or(0, |(at, piece)| **at + piece.len() as u64);
            if end > position {
                let known = bytes.len().min((end - position) as usize);
                (position, bytes) = (end, bytes.get(known..).unwrap_or_default());
                continue;
            }
            let free = next.map_or(usize::MAX, |next| (next - position) as usize);
            let (now, rest) = bytes.split_at(bytes.len().min(free));
            self.early_bytes += now.len();
            match before.filter(|_| end == position) {
                Some((_, Early::Bytes(piece))) => piece.extend_from_slice(now),
                _ => {
                    self.early_bytes += EARLY_EACH;
                    self.early.insert(position, Early::Bytes(now.to_vec()));
                }
            }
            (position, bytes) = (position + now.len() as u64, rest);
        }
    }

    /// The part that has not come before.
    fn feed_rest(
        &mut self,
        there: &Rings,
        position: u64,
        bytes: &[u8],
        wants_time: bool,
    ) -> Result<(), Corrupt> {
        let known = usize::try_from(self.at - position).unwrap_or(usize::MAX);
        self.feed(there, bytes.get(known..).unwrap_or_default(), wants_time)
    }

    fn feed(&mut self, there: &Rings, mut bytes: &[u8], wants_time: bool) -> Result<(), Corrupt> {
        self.at += bytes.len() as u64;
        while !bytes.is_empty() {
            if let Some((_, (region, off), left)) = &mut self.piece
                && self.have == 0
                && bytes.len() >= 8
            {
                let len = (*left).min(bytes.len() as u32 & !7);
                let (now, rest) = bytes.split_at(len as usize);
                // SAFETY: a piece's payload lies in its region, of a channel that stays mapped.
                unsafe { copy_shared(there.at(*region, *off), now.as_ptr(), now.len()) };
                (*off, *left, bytes) = (*off + len, *left - len, rest);
                self.done += u64::from(len);
                self.finish_if_whole(there, wants_time);
                continue;
            }
            if let (0, None, Some((word, rest))) = (self.have, &self.piece, bytes.split_first_chunk()) {
                (self.word, bytes, self.done) = (*word, rest, self.done + 8);
                self.take_word(there, wants_time)?;
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(8 - self.have));
            self.word[self.have..self.have + now.len()].copy_from_slice(now);
            (self.have, bytes) = (self.have + now.len(), rest);
            if self.have == 8 {
                (self.have, self.done) = (0, self.done + 8);
                self.take_word(there, wants_time)?;
            }
        }
        Ok(())
    }

    fn take_word(&mut self, there: &Rings, wants_time: bool) -> Result<(), Corrupt> {
        if let Some((_, (region, off), left)) = &mut self.piece {
            // SAFETY: as in `feed`.
            unsafe { copy_shared(there.at(*region, *off), self.word.as_ptr(), 8) };
            (*off, *left) = (*off + 8, *left - 8);
            self.finish_if_whole(there, wants_time);
            return Ok(());
        }
        if self.has_ended {
            return Err(Corrupt);
        }
        // The other host's time says nothing here.
        let header = Header(stamp::without(u64::from_ne_bytes(self.word)));
        let piece = self.cursor.take(&GEOMETRY, &header)?.ok_or(Corrupt)?;
        if piece.touches()[1] {
            // Behind each message stands the word where the next one begins.
            let end = piece.payload().map_or(0, |(_, off, len)| off.saturating_add(len));
            (self.is_large, self.extent) = (true, self.extent.max(end.saturating_add(8)));
        }
        match piece.payload() {
            Some((region, off, len)) => {
                self.is_bulk |= region == 1 && len >= LEAST;
                self.piece = Some((piece, (region, off), len));
                self.finish_if_whole(there, wants_time);
            }
            None => {
                piece.put(there, 0);
                self.has_ended |= piece.is_end();
                if !piece.is_end() {
                    self.laps.begin(self.done, self.cursor.position(), self.cursor.is_large());
                }
            }
        }
        Ok(())
    }

    fn finish_if_whole(&mut self, there: &Rings, wants_time: bool) {
        if let Some((piece, _, 0)) = &self.piece {
            piece.put(there, if wants_time { stamp::of(sd_sys::time::ticks()) } else { 0 });
            self.payload += u64::from(piece.payload_bytes());
            self.piece = None;
            self.messages += 1;
        }
    }

    /// All that was put into the ring, which the reader will consume.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.cursor.position()
    }

    /// The reader has consumed so many ring bytes: so much of the stream.
    pub(crate) fn consumed(&mut self, ring: u64) -> u64 {
        let stream = self.laps.stream_at(ring.min(self.cursor.position()));
        self.laps.forget_before(stream.min(self.at));
        stream
    }
}
