//! One direction: what one side of a slot says, at one end, is said at the other.
//!
//! The order is the one in which a sender of ours writes: payload, header, credit, flags, state; and each is read before what
//! stands in front of it there. So who sees a flag or a state at the other end finds all that was sent before it. Of an urgent
//! byte the word comes first.
//!
//! A sender gives the memory of an empty ring back while it idles, and a load from there would make a page of zeros. So where
//! nothing was sent for a while the next header is looked for through the file, which makes none.

use crate::end::{End, RX_BITS, TX_BITS};
use crate::twin::memory::Used;
use sd_ring::copy::copy_shared;
use sd_ring::{Corrupt, Piece, RxCursor, stamp};
use sd_shm::channel::{
    FLAG_CANNOT_WAKE, FLAG_COLD, FLAG_DEAD, FLAG_FIN, FLAG_GIVES_BACK, FLAG_RESET, FLAG_TAKES_BACK,
    FLAG_URGENT, FLAG_WANTS_STAMPS, GEOMETRY, Side, SlotSide,
};
use sd_shm::rings::Rings;
use sd_sys::time::{Interval, ticks};
use std::sync::atomic::Ordering;

/// Flags that concern the two at a channel, and not the ends of the connection.
const LOCAL_FLAGS: u32 = FLAG_CANNOT_WAKE | FLAG_COLD | FLAG_TAKES_BACK | FLAG_GIVES_BACK;
/// Pieces that are copied before somebody else has a turn.
const TURN: usize = 256;
/// More jumps than that in a row no sender makes.
const JUMPS_MAX: u32 = 8;
/// A sender that has sent nothing for so long may have given memory back.
static SILENCE: Interval = Interval::of_ns(100_000_000);

/// What was said so far.
pub(crate) struct Flow {
    cursor: RxCursor,
    flags: u32,
    consumed: u64,
    urgent: u64,
    has_ended: bool,
    jumps: u32,
    /// When something was found last, in ticks; zero: nothing ever was.
    found_at: u64,
    /// What was written of the ring at the other end.
    pub(crate) used: Used,
}

/// What has come of a look.
#[derive(Default)]
pub(crate) struct News {
    /// Of the other end's doorbell.
    pub(crate) bits: u32,
    pub(crate) is_urgent: bool,
    /// There may be more.
    pub(crate) is_cut: bool,
}

impl Flow {
    pub(crate) fn new() -> Flow {
        Flow {
            cursor: RxCursor::new(),
            flags: 0,
            consumed: 0,
            urgent: 0,
            has_ended: false,
            jumps: 0,
            found_at: 0,
            used: Used::default(),
        }
    }

    /// Whether a receiver at the other end that has consumed so many ring bytes needs nothing of the ring any more: where it looks
    /// next there is a zero.
    pub(crate) fn is_drained(&self, consumed: u64) -> bool {
        !self.has_ended && consumed == self.cursor.position()
    }

    /// Says at `to` what `side` has said at `from`. All but the state.
    pub(crate) fn carry(
        &mut self,
        (from, to): (&End, &End),
        side: Side,
        slot: usize,
    ) -> Result<News, Corrupt> {
        let [source, sink] = [from, to].map(|end| &end.map.slot(slot).side[side as usize]);
        let flags = source.flags.load(Ordering::Acquire) & !LOCAL_FLAGS;
        let mut news = News::default();
        if flags & FLAG_URGENT != 0 {
            self.announce_urgent((source, sink), &mut news);
        }
        let rings = [from, to].map(|end| Rings::of(&end.map, slot, side));
        if !self.is_silent(from, &rings[0])? {
            self.copy(&rings, (source, sink), &mut news)?;
        }
        let consumed = source.consumed.load(Ordering::Acquire);
        if consumed != self.consumed {
            self.consumed = consumed;
            sink.consumed.store(consumed, Ordering::Release);
            news.bits |= TX_BITS;
        }
        if !news.is_cut {
            self.set_flags(flags, sink, &mut news);
        }
        Ok(news)
    }

    /// Nothing was sent for a while, and nothing is there now. Makes no page.
    fn is_silent(&self, from: &End, here: &Rings) -> Result<bool, Corrupt> {
        if !SILENCE.is_over(ticks().wrapping_sub(self.found_at)) {
            return Ok(false);
        }
        let mut ahead = self.cursor;
        Ok(ahead.take(&GEOMETRY, &from.through_file(here))?.is_none())
    }

    fn copy(
        &mut self,
        rings: &[Rings; 2],
        words: (&SlotSide, &SlotSide),
        news: &mut News,
    ) -> Result<(), Corrupt> {
        let [here, there] = rings;
        for _ in 0..TURN {
            let before = self.cursor.position();
            let Some(piece) = self.cursor.take(&GEOMETRY, here)? else { return Ok(()) };
            self.used.note(&piece, before);
            if piece.is_end() {
                if !std::mem::replace(&mut self.has_ended, true) {
                    piece.put(there, 0);
                    news.bits |= RX_BITS;
                }
                return Ok(());
            }
            self.check_jumps(&piece)?;
            self.found_at = ticks();
            if piece.is_urgent() {
                self.announce_urgent(words, news);
            }
            if let Some((region, off, len)) = piece.payload() {
                // SAFETY: a piece's payload lies in its region, of both rings, which are of channels that stay mapped.
                unsafe { copy_shared(there.at(region, off), here.at(region, off), len as usize) };
                news.bits |= RX_BITS;
            }
            piece.put(there, time_for(words.1));
        }
        news.is_cut = true;
        Ok(())
    }

    fn check_jumps(&mut self, piece: &Piece) -> Result<(), Corrupt> {
        self.jumps = if piece.payload().is_some() { 0 } else { self.jumps + 1 };
        if self.jumps > JUMPS_MAX { Err(Corrupt) } else { Ok(()) }
    }

    /// Says where the last urgent byte is, if that is new.
    fn announce_urgent(&mut self, (source, sink): (&SlotSide, &SlotSide), news: &mut News) {
        let urgent = source.cold().map_or(0, |words| words.urgent.load(Ordering::Acquire));
        if urgent != self.urgent {
            self.urgent = urgent;
            sink.make_cold().urgent.store(urgent, Ordering::Release);
            sink.flags.fetch_or(FLAG_URGENT, Ordering::AcqRel);
            self.flags |= FLAG_URGENT;
            news.is_urgent = true;
            news.bits |= RX_BITS;
        }
    }

    fn set_flags(&mut self, flags: u32, sink: &SlotSide, news: &mut News) {
        let (new, gone) = (flags & !self.flags, self.flags & !flags);
        if new | gone == 0 {
            return;
        }
        self.flags = flags;
        sink.flags.fetch_or(new, Ordering::AcqRel);
        sink.flags.fetch_and(!gone, Ordering::AcqRel);
        if new & FLAG_FIN != 0 {
            news.bits |= RX_BITS;
        }
        if new & (FLAG_RESET | FLAG_DEAD) != 0 {
            news.bits |= RX_BITS | TX_BITS;
        }
    }
}

/// When, for a receiver who asks for that: its sender may not have heard of it yet.
fn time_for(sink: &SlotSide) -> u32 {
    let wants = sink.other().flags.load(Ordering::Relaxed) & FLAG_WANTS_STAMPS != 0;
    if wants { stamp::of(sd_sys::time::ticks()) } else { 0 }
}
