//! One connection: half of a pump's twin, whose other half another engine has.
//!
//! The order is the pump's (`sd_pump`): each word is read before what its sender has written in front of it, and is said behind that. So who sees
//! a flag or a state at the other host finds all that was sent before it.

use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::placing::LentRings;
use crate::policy::{Habit, Load};
use crate::seat::{ALL_BITS, Seat, Slot};
use crate::words::{Question, Words};
use crate::worth::Service;
use sd_link::{Connection as Number, Link};
use sd_proto::Ip;
use sd_pump::control::Control;
use sd_pump::end::{RX_BITS, TX_BITS};
use sd_ring::Corrupt;
use sd_ring::doorbell::{RX_EVENT, TX_EVENT};
use sd_ring::road::RoadWord;
use sd_shm::channel::{
    FLAG_CANNOT_WAKE, FLAG_COLD, FLAG_DEAD, FLAG_GIVES_BACK, FLAG_LENT, FLAG_RESET, FLAG_URGENT,
    FLAG_WANTS_STAMPS, GEOMETRY, SlotState,
};
use sd_shm::promotion::{
    Advice, FLAG_ATTACHED, FLAG_BROKEN, FLAG_HEARD, FLAG_KNOWS, FLAG_RESUME, FLAG_SWITCHED, FLAG_WANTS_KERNEL,
};
use sd_shm::rings::Rings;
use std::sync::atomic::Ordering;

/// Flags that concern the two at a channel, and not the ends of the connection.
const LOCAL_FLAGS: u32 = FLAG_CANNOT_WAKE
    | FLAG_COLD
    | FLAG_WANTS_STAMPS
    | FLAG_RESUME
    | FLAG_BROKEN
    | FLAG_LENT
    | FLAG_GIVES_BACK;
/// A sender can go on without knowing of so many bytes that were read: a quarter of the smallest ring. Of fewer it is told when nothing else happens.
const TELL_AT: u64 = SMALL as u64 / 4;
/// Of a ring in which so much may not have been read the sender may wait for room.
const WAITS_AT: u64 = SMALL as u64 / 2;
const SMALL: u32 = GEOMETRY.small;
/// What an engine may have of a connection's stream that is not consumed: more than a ring holds.
pub(crate) const WINDOW: u32 = 4 << 20;

/// See the module.
pub(crate) struct Connection {
    /// The other engine, and the connection's number in the link with it, while there is one.
    pub(crate) peer: usize,
    pub(crate) number: Option<Number>,
    /// The local process has connected.
    pub(crate) is_opener: bool,
    /// The offer that the monitor has asked about.
    pub(crate) offer: (u64, u64),
    /// Whose it is (`hosts`).
    pub(crate) tenant: u32,
    /// The end at the other host, and its port.
    pub(crate) far: (Ip, u16),
    /// The monitor knows that it stays the kernel's for now.
    pub(crate) is_told_of: bool,
    /// What the other engine is asked, as long as it has not answered.
    pub(crate) question: Option<Question>,
    /// What the monitor has promised: a seat, and the ticket.
    pub(crate) promise: Option<(usize, u64)>,
    pub(crate) at: Option<Slot>,
    /// Without a slot it is given up then.
    pub(crate) until_ns: u64,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) lent_rings: LentRings,
    said: Option<Words>,
    /// Ring bytes that the local process has consumed, as far as the other engine was told.
    told: u64,
    /// What is to be done when all before it has come.
    heard: Option<Words>,
    flags: u32,
    urgent: u64,
    /// Of the local process' doorbell.
    bits: u32,
    is_urgent: bool,
    pub(crate) is_broken: bool,
    /// The session with the other engine is over, and neither end has done anything wrong.
    pub(crate) is_lost: bool,
    /// Nothing is written into the slot any more, but that it is closed, and what the engine is to be rung for.
    has_let_go: bool,
    /// The local process has closed it, and that was said; the other one has.
    closed: [bool; 2],
    has_fin: bool,
    pub(crate) habit: Habit,
    counted: u64,
    /// [`Advice::flags`] that both ends were told.
    advice: u32,
    /// The last look was ended before it had seen all.
    is_cut: bool,
    /// The other end waits for a word that no process here rings for: that it is known that it is there, or where it has gone over.
    pub(crate) owes_word: bool,
    pub(crate) is_touched: bool,
    pub(crate) is_hot: bool,
    pub(crate) quiet: u32,
}

/// What a look has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    News,
}

impl Connection {
    pub(crate) fn new(peer: usize, is_opener: bool, until_ns: u64) -> Connection {
        Connection {
            peer,
            number: None,
            is_opener,
            offer: (0, 0),
            tenant: 0,
            far: (Ip([0; 16]), 0),
            is_told_of: false,
            question: None,
            promise: None,
            at: None,
            until_ns,
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
            lent_rings: LentRings::default(),
            said: None,
            told: 0,
            heard: None,
            flags: 0,
            urgent: 0,
            bits: 0,
            is_urgent: false,
            is_broken: false,
            is_lost: false,
            has_let_go: false,
            closed: [false; 2],
            has_fin: false,
            habit: Habit::default(),
            counted: 0,
            advice: 0,
            is_cut: false,
            owes_word: false,
            is_touched: false,
            is_hot: false,
            quiet: 0,
        }
    }

    /// What the local process has written is looked at soon.
    pub(crate) fn foresee(&self, seat: &Seat) {
        if let Some(at) = self.at {
            self.outgoing.foresee(&seat.rings(at.slot, false));
        }
    }

    /// Its link carries it no more; its number, if it had one, by which the other engine is to be told.
    pub(crate) fn lose(&mut self) -> Option<Number> {
        let number = self.number.take();
        self.is_lost |= number.is_some();
        number
    }

    // What comes by the link.

    pub(crate) fn read(&self, seat: &Seat, position: u64, out: &mut [u8]) {
        match self.at {
            Some(at) => self.outgoing.read(&seat.rings(at.slot, false), position, out),
            None => out.fill(0),
        }
    }

    pub(crate) fn write(&mut self, seat: &Seat, position: u64, bytes: &[u8]) {
        self.put(seat, |incoming, rings, wants_time| incoming.put(rings, position, bytes, wants_time));
    }

    /// What has come goes to the local process' ring.
    pub(crate) fn put(
        &mut self,
        seat: &Seat,
        put: impl FnOnce(&mut Incoming, &Rings, bool) -> Result<(), Corrupt>,
    ) {
        let Some(at) = self.at.filter(|_| self.is_carried()) else { return };
        let wants_time = seat.end.theirs(at.slot).flags.load(Ordering::Relaxed) & FLAG_WANTS_STAMPS != 0;
        let put = put(&mut self.incoming, &seat.rings(at.slot, true), wants_time);
        self.is_broken |= put.is_err();
        self.bits |= RX_BITS;
    }

    /// Neither end has broken the rules, and the engine has not let go of it.
    pub(crate) fn is_carried(&self) -> bool {
        !self.is_broken && !self.has_let_go
    }

    /// The other end is through with it, or the engine.
    pub(crate) fn is_ending(&self) -> bool {
        !self.is_carried() || self.closed[1] || self.heard.is_some_and(|words| words.is_end())
    }

    /// Of what has come, what waits for bytes before it.
    pub(crate) fn early_bytes(&self) -> usize {
        self.incoming.early_bytes
    }

    pub(crate) fn credit(&mut self, seat: &Seat, stream: u64) {
        let ring = self.outgoing.consumed(stream);
        // Who has closed reads no more, and the slot may be another connection's by now.
        if let Some(at) = self.at.filter(|_| !self.has_let_go && !self.closed[1]) {
            seat.end.own(at.slot).consumed.store(ring, Ordering::Release);
            self.bits |= TX_BITS;
        }
    }

    /// The other engine's words; those that came before are of no use any more, as they say nothing that these do not.
    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        match Words::decode(bytes) {
            Some(words) => self.heard = Some(words),
            None => self.is_broken = true,
        }
    }

    // What was heard is done at the local end.

    /// Whether the other end asks for a slot here.
    pub(crate) fn asks(&self) -> bool {
        !self.is_opener
            && self.at.is_none()
            && self.heard.is_some_and(|words| words.state == SlotState::Syn as u8)
    }

    /// Both ends have closed it, and each engine knows that.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed == [true; 2]
    }

    /// Its local process rings for what it writes; what it reads is looked for, unless all of that is known. A look that was cut, or ended by both, is
    /// followed by another. So is the other end's close, by which the slot's bell was taken down (`Seat::close`): this one's may come any time.
    pub(crate) fn wants_looks(&self) -> bool {
        self.is_cut || self.closed[1] && !self.has_fin || self.untold() != 0
    }

    fn untold(&self) -> u64 {
        self.incoming.ring_bytes().wrapping_sub(self.told)
    }

    /// What the local process is to ring for: that it has read, only where the sender may soon wait for that.
    pub(crate) fn rings(&self) -> u32 {
        if self.untold() < WAITS_AT { RX_EVENT } else { RX_EVENT | TX_EVENT }
    }

    /// A look is due though nothing has happened here.
    pub(crate) fn owes_word(&mut self) -> bool {
        std::mem::take(&mut self.owes_word)
    }

    pub(crate) fn has_large(&self) -> bool {
        self.incoming.is_large
    }

    /// Does what was heard, as far as what belongs before it has come; then wakes who waits. Whether the other engine has sent it back.
    pub(crate) fn settle(&mut self, seat: &mut Seat, control: &mut Control) -> bool {
        let Some(at) = self.at.filter(|_| !self.has_let_go) else { return false };
        let before = self.flags;
        if let Some(words) = self.heard {
            self.tell_urgent(&words, at, seat);
            if self.incoming.at >= words.at && !self.ends_later() {
                self.heard = None;
                self.apply(&words, at, seat, control);
            }
        }
        if self.bits != 0 {
            seat.end.notify(at.slot, self.bits, control);
            self.bits = 0;
        }
        if std::mem::take(&mut self.is_urgent) {
            seat.end.signal(at.slot, true, control);
        }
        self.flags & !before & FLAG_WANTS_KERNEL != 0
    }

    /// Nothing is in front of it.
    fn tell_urgent(&mut self, words: &Words, at: Slot, seat: &Seat) {
        if words.flags & FLAG_URGENT == 0 || words.urgent == self.urgent {
            return;
        }
        self.urgent = words.urgent;
        let own = seat.end.own(at.slot);
        own.make_cold().urgent.store(words.urgent, Ordering::Release);
        own.flags.fetch_or(FLAG_URGENT, Ordering::AcqRel);
        self.flags |= FLAG_URGENT;
        self.is_urgent = true;
        self.bits |= RX_BITS;
    }

    fn apply(&mut self, words: &Words, at: Slot, seat: &mut Seat, control: &mut Control) {
        let (own, names) = (seat.end.own(at.slot), seat.end.map.names(at.slot));
        names.switched_at(seat.end.ours).store(words.switched_at, Ordering::Relaxed);
        self.hear_granting(words);
        let flags = words.flags & !LOCAL_FLAGS & !(FLAG_URGENT & !self.flags);
        let (new, gone) = (flags & !self.flags, self.flags & !flags);
        self.flags = flags;
        self.owes_word |= new & (FLAG_ATTACHED | FLAG_SWITCHED) != 0;
        if new | gone != 0 {
            own.flags.fetch_or(new, Ordering::AcqRel);
            own.flags.fetch_and(!gone, Ordering::AcqRel);
            self.bits |= ALL_BITS;
            if new & (FLAG_RESET | FLAG_DEAD) == 0 {
                // Whoever has the slot looks at the roads.
                seat.end.announce(at.slot, control);
            }
        }
        let was_there = own.road().has(RoadWord::ATTACHED);
        match SlotState::of_word(words.state.into()) {
            SlotState::Open if self.is_opener => _ = seat.answer(at, SlotState::Open, control),
            SlotState::Refused if self.is_opener && !self.closed[1] => {
                self.closed[1] = true;
                self.take_back_rings(seat);
                seat.answer(at, SlotState::Refused, control);
            }
            SlotState::Closed if !self.closed[1] => {
                self.closed[1] = true;
                self.take_back_rings(seat);
                // If it was not answered the local process' side is closed too by that, which a look will find. An end that has been there
                // and has gone meanwhile has not refused: it may have sent something.
                if !self.is_opener {
                    seat.take_back(at);
                } else if was_there {
                    seat.answer(at, SlotState::Open, control);
                }
                seat.close(at, control);
            }
            _ => {}
        }
    }

    /// The other engine is not there any more, or one of the two ends has broken the rules. Where it is only the road that is gone, this is the
    /// last word: from here on the slot is the local process's, which goes on over the kernel (ADR 101).
    pub(crate) fn reset(&mut self, seat: &mut Seat, control: &mut Control) {
        self.take_back_rings(seat);
        self.let_go(seat, control);
    }

    /// The same, while the other engine may still write into the ring.
    pub(crate) fn let_go(&mut self, seat: &mut Seat, control: &mut Control) {
        self.has_let_go = true;
        if let Some(at) = self.at {
            let how = if self.is_lost && seat.is_open(at) { FLAG_BROKEN } else { FLAG_RESET };
            seat.end.own(at.slot).flags.fetch_or(how, Ordering::AcqRel);
            seat.end.notify(at.slot, ALL_BITS, control);
            seat.end.announce(at.slot, control);
        }
    }

    /// The other engine is not there: whether the local process has done its part, too.
    pub(crate) fn is_left(&self, seat: &mut Seat, control: &mut Control) -> bool {
        let Some(at) = self.at else { return true };
        let is_over = matches!(seat.state(at), SlotState::Closed | SlotState::Refused);
        if is_over || !self.is_opener && seat.take_back(at) {
            seat.close(at, control);
            return true;
        }
        false
    }

    // What the local end says.

    /// Looks at what the local process has written, and says it to the other engine. What it has read is said where that is much, or if `says_all`.
    pub(crate) fn look(&mut self, seat: &Seat, link: &mut Link, says_all: bool) -> Result<Look, Corrupt> {
        let (Some(at), Some(number)) = (self.at, self.number) else { return Ok(Look::Nothing) };
        if self.has_let_go {
            return Ok(Look::Nothing);
        }
        let state = seat.state(at);
        if state == SlotState::Free || self.closed[0] {
            return Ok(self.finish(link));
        }
        let theirs = seat.end.theirs(at.slot);
        let flags = theirs.flags.load(Ordering::Acquire);
        let before = self.outgoing.at;
        self.is_cut = self.outgoing.look(&seat.rings(at.slot, false))?;
        let mut found = self.outgoing.at != before;
        if found {
            link.announce(number, self.outgoing.at).map_err(|_| Corrupt)?;
        }
        let consumed = theirs.consumed.load(Ordering::Acquire);
        let news = consumed.wrapping_sub(self.told);
        if news >= TELL_AT || says_all && news != 0 {
            (self.told, found) = (consumed, true);
            let stream = self.incoming.consumed(consumed);
            link.consumed(number, stream).map_err(|_| Corrupt)?;
        }
        if self.is_cut {
            return Ok(Look::News);
        }
        let names = seat.end.map.names(at.slot);
        let side = seat.end.ours.other();
        if seat.end.own(at.slot).road().has(RoadWord::RESUME) {
            // It was told that this cannot be asked for.
            return Err(Corrupt);
        }
        let known = |flag, says| if self.flags & flag == 0 { 0 } else { says };
        let knows = known(FLAG_SWITCHED, FLAG_KNOWS) | known(FLAG_ATTACHED, FLAG_HEARD);
        let urgent = if flags & FLAG_URGENT == 0 { None } else { theirs.cold() };
        let words = Words {
            at: self.outgoing.at,
            flags: flags & !(LOCAL_FLAGS | FLAG_KNOWS | FLAG_HEARD) | knows | self.advice,
            state: state as u8,
            urgent: urgent.map_or(0, |cold| cold.urgent.load(Ordering::Acquire)),
            switched_at: names.switched_at(side).load(Ordering::Relaxed),
            written: 0,
            granting: self.granting(seat),
        };
        let is_same = |said: Words| Words { at: 0, ..said } == Words { at: 0, ..words };
        if !self.said.is_some_and(is_same) {
            found = true;
            self.said = Some(words);
            let words = Words { written: self.outgoing.written(), ..words };
            link.say(number, &words.encode()).map_err(|_| Corrupt)?;
            self.closed[0] |= matches!(state, SlotState::Closed | SlotState::Refused);
        }
        let ended = self.finish(link);
        Ok(if found { Look::News } else { ended })
    }

    /// The local process has closed it without a word (0), or is gone ([`FLAG_DEAD`]). What it has written is still read.
    pub(crate) fn end(&mut self, how: u32, link: &mut Link) {
        if let Some(number) = self.number.filter(|_| !self.closed[0]) {
            let state = SlotState::Closed as u8;
            let flags = self.said.map_or(0, |said| said.flags) | how;
            let words = Words { at: self.outgoing.at, flags, state, ..self.said.unwrap_or_default() };
            let _ = link.say(number, &words.encode());
            self.closed[0] = true;
        }
        self.finish(link);
    }

    /// It is carried, so that its habits say something, and was not advised.
    pub(crate) fn is_judged(&self) -> bool {
        self.at.is_some() && self.number.is_some() && self.advice == 0 && self.closed == [false; 2]
    }

    /// Both ends were told that by one of the two engines.
    pub(crate) fn was_advised(&self, advice: Advice) -> bool {
        Advice::of(self.advice | self.flags) == Some(advice)
    }

    /// What it has carried in both directions.
    pub(crate) fn load(&self) -> Load {
        Load {
            messages: self.outgoing.messages + self.incoming.messages,
            bytes: self.outgoing.at + self.incoming.at,
        }
    }

    /// Bytes of payload in both directions.
    pub(crate) fn payload(&self) -> u64 {
        self.outgoing.payload + self.incoming.payload
    }

    /// What the local process has connected to.
    pub(crate) fn service(&self) -> Option<Service> {
        self.is_opener.then_some((self.peer, self.tenant, self.far.0, self.far.1))
    }

    /// Messages that have come since this was asked last.
    pub(crate) fn come(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.counted, self.incoming.messages);
        self.incoming.messages - before
    }

    /// It is better left to the kernel: each end is told that the other one wishes that, here at once, there by the next look. They do the rest by
    /// themselves, as after `sd demote` (ADR 83).
    pub(crate) fn advise(&mut self, advice: Advice, seat: &mut Seat, control: &mut Control) {
        let may = self.is_judged() && !self.has_let_go;
        let Some(at) = self.at.filter(|at| may && seat.is_open(*at)) else { return };
        self.advice = advice.flags();
        seat.end.own(at.slot).flags.fetch_or(self.advice, Ordering::AcqRel);
        seat.end.notify(at.slot, ALL_BITS, control);
        seat.end.announce(at.slot, control);
    }

    /// Without a slot: if the other end has closed it, so does this one.
    pub(crate) fn hear_the_end(&mut self, link: &mut Link) {
        if self.heard.is_some_and(|words| words.is_end()) {
            self.closed[1] = true;
            self.end(0, link);
        }
    }

    /// Both have closed it, and both engines know: nothing follows.
    fn finish(&mut self, link: &mut Link) -> Look {
        let Some(number) = self.number.filter(|_| self.is_closed() && !self.has_fin) else {
            return Look::Nothing;
        };
        self.has_fin = link.fin(number).is_ok();
        Look::News
    }
}
