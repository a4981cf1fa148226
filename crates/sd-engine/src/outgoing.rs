//! From the ring that a local process writes to the stream.

use crate::laps::{HEADER, Laps};
use crate::placing::LEAST;
use sd_ring::copy::copy_shared;
use sd_ring::{Corrupt, RxCursor};
use sd_shm::channel::GEOMETRY;
use sd_shm::rings::Rings;
use std::collections::VecDeque;

/// Pieces that are looked at before somebody else has a turn.
const TURN: usize = 512;
/// More jumps than that in a row no sender makes.
const JUMPS_MAX: u32 = 8;
/// No sender that keeps to its credit has more in its ring than this.
const AHEAD_MAX: u64 = 3 << 20;

/// See the module.
pub(crate) struct Outgoing {
    cursor: RxCursor,
    laps: Laps,
    /// So much of the stream is known to be in the ring; and the other end has consumed so much.
    pub(crate) at: u64,
    consumed: u64,
    /// Pieces with payload, and bytes of that.
    pub(crate) messages: u64,
    pub(crate) payload: u64,
    has_ended: bool,
    jumps: u32,
    /// Payload that may be placed: where it begins and ends in the stream, and where it lies in the large region.
    bulk: VecDeque<(u64, u64, u32)>,
}

impl Outgoing {
    pub(crate) fn new() -> Outgoing {
        Outgoing {
            cursor: RxCursor::new(),
            laps: Laps::new(),
            at: 0,
            consumed: 0,
            messages: 0,
            payload: 0,
            has_ended: false,
            jumps: 0,
            bulk: VecDeque::new(),
        }
    }

    /// It is looked at soon.
    pub(crate) fn foresee(&self, here: &Rings) {
        let (region, at) = self.cursor.next_at();
        let place = here.at(region, at);
        sd_sys::mem::prefetch(place);
        sd_sys::mem::prefetch(place.wrapping_add(64));
    }

    /// Passes over what was published. True: there may be more.
    pub(crate) fn look(&mut self, here: &Rings) -> Result<bool, Corrupt> {
        if self.has_ended {
            return Ok(false);
        }
        for _ in 0..TURN {
            let Some(piece) = self.cursor.take(&GEOMETRY, here)? else { return Ok(false) };
            if piece.is_end() {
                (self.has_ended, self.at) = (true, self.at + HEADER);
                return Ok(false);
            }
            match piece.payload() {
                Some((region, off, len)) => {
                    if region == 1 && len >= LEAST {
                        let begin = self.at + HEADER;
                        self.bulk.push_back((begin, begin + u64::from(len), off));
                    }
                    (self.jumps, self.at) = (0, self.at + u64::from(piece.used()));
                    self.messages += 1;
                    self.payload += u64::from(piece.payload_bytes());
                }
                None => {
                    (self.jumps, self.at) = (self.jumps + 1, self.at + HEADER);
                    self.laps.begin(self.at, self.cursor.position(), self.cursor.is_large());
                }
            }
            if self.jumps > JUMPS_MAX || self.at - self.consumed > AHEAD_MAX {
                return Err(Corrupt);
            }
        }
        Ok(true)
    }

    /// Copies what lies there: the local process may change it meanwhile, which the other end finds out. What is sent again may begin with what the
    /// other end has consumed already, which nobody knows any more, and end with what it has not.
    pub(crate) fn read(&self, here: &Rings, position: u64, out: &mut [u8]) {
        let consumed = self.laps.known_from().saturating_sub(position).min(out.len() as u64) as usize;
        out.get_mut(..consumed).unwrap_or_default().fill(0);
        let mut done = consumed;
        while done < out.len() {
            let Some((region, off, together)) = self.laps.place(position + done as u64) else { break };
            let len = (out.len() - done).min(together.min(u64::from(u32::MAX)) as usize);
            let size = GEOMETRY.size(region);
            let Some(place) = out.get_mut(done..done + len) else { break };
            if u64::from(off) + len as u64 > u64::from(size) {
                break;
            }
            // SAFETY: checked just now to lie in the region, of a channel that stays mapped.
            unsafe { copy_shared(place.as_mut_ptr(), here.at(region, off), len) };
            done += len;
        }
        // Nothing that was announced lies elsewhere.
        out.get_mut(done..).unwrap_or_default().fill(0);
    }

    /// Of `len` bytes from a position on: where in the large region those of a large message lie, and how many, in whole words; or how many come before
    /// the next ones.
    pub(crate) fn place_of(&self, position: u64, len: usize) -> Result<(u32, usize), usize> {
        let next = self.bulk.partition_point(|(_, end, _)| *end <= position);
        let Some((begin, end, off)) = self.bulk.get(next) else { return Err(len) };
        let most = |end: u64| len.min(usize::try_from(end - position).unwrap_or(len));
        match position.checked_sub(*begin) {
            None => Err(most(*begin)),
            // A part of a word was copied.
            Some(within) if within % 8 != 0 => Err(most(position + 8 - within % 8)),
            Some(within) => Ok((off + within as u32, most(*end) & !7)),
        }
    }

    /// The other end has consumed so much of the stream: the ring bytes of that.
    pub(crate) fn consumed(&mut self, stream: u64) -> u64 {
        self.consumed = stream.clamp(self.consumed, self.at);
        let ring = self.laps.ring_at(self.consumed);
        self.laps.forget_before(self.consumed);
        while self.bulk.front().is_some_and(|(_, end, _)| *end <= self.consumed) {
            self.bulk.pop_front();
        }
        ring
    }

    /// Ring bytes passed over.
    pub(crate) fn written(&self) -> u64 {
        self.cursor.position()
    }
}
