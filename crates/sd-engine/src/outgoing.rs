//! From the ring that a local process writes to the stream.

use crate::laps::{HEADER, Laps};
use sd_ring::copy::copy_shared;
use sd_ring::{Corrupt, RxCursor};
use sd_shm::channel::GEOMETRY;
use sd_shm::rings::Rings;

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
                Some(_) => {
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

    /// The other end has consumed so much of the stream: the ring bytes of that.
    pub(crate) fn consumed(&mut self, stream: u64) -> u64 {
        self.consumed = stream.clamp(self.consumed, self.at);
        let ring = self.laps.ring_at(self.consumed);
        self.laps.forget_before(self.consumed);
        ring
    }

    /// Ring bytes passed over.
    pub(crate) fn written(&self) -> u64 {
        self.cursor.position()
    }
}
