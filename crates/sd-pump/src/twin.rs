//! Two channels, and the connections that are carried between them: that of a slot at the same slot of the other.
//!
//! | near (the client's) | far (the server's) |
//! |---|---|
//! | A: Syn, from `connect` | the pump, as A: Syn, the same generation, names, and listener |
//! | the pump, as B: Open | B: Open, from `accept` |
//! | the pump: Refused | B: Refused; or it is gone, or listens no more |
//! | A asks for its request ([`FLAG_TAKES_BACK`]) | the pump takes it back, and gives it to A; if B was faster, A is accepted |
//! | A takes its request back | the pump does; if B was faster, the connection is reset |
//! | Closed, by either | the same at the other end, behind all that was sent |
//!
//! A slot of the near channel is used again when both its sides are closed; so B's close is passed on last.

pub(crate) mod memory;

use crate::control::Control;
use crate::end::{End, RX_BITS, TX_BITS};
use crate::flow::{Flow, News};
use sd_ring::doorbell::{self, RX_EVENT, TX_EVENT};
use sd_shm::channel::{FLAG_RESET, FLAG_TAKES_BACK, SLOTS, Side, SlotSide, SlotState};
use std::sync::atomic::Ordering;

/// See the module.
pub(crate) struct Twin {
    pub(crate) near: End,
    pub(crate) far: End,
    slots: Vec<Option<Box<Carried>>>,
    /// A connection that was asked for waits until its slot is free at the far end.
    waits: Vec<bool>,
    /// Slots that are looked at again and again.
    hot: Vec<bool>,
    /// Something was found there since [`Twin::begins_to_idle`] said so.
    used: Vec<bool>,
    /// Slots whose memory is looked at later.
    awaited: Vec<bool>,
}

/// A connection.
struct Carried {
    generation: u32,
    from_a: Flow,
    from_b: Flow,
    /// B's answer was passed on.
    is_answered: bool,
    /// What A and B have closed was passed on.
    is_closed: [bool; 2],
    /// Nothing is carried any more: one end wrote what no correct one writes, or A has gone before B's answer came.
    is_broken: bool,
}

/// What a look has found.
#[derive(PartialEq, Eq)]
enum Found {
    Nothing,
    News,
    /// And there may be more.
    Cut,
}

impl Found {
    fn of(all: &[News]) -> Found {
        match all {
            _ if all.iter().any(|news| news.is_cut) => Found::Cut,
            _ if all.iter().any(|news| news.bits != 0) => Found::News,
            _ => Found::Nothing,
        }
    }
}

const ALL_BITS: u32 = RX_BITS | TX_BITS;

impl Twin {
    pub(crate) fn new(near: End, far: End) -> Twin {
        Twin {
            near,
            far,
            slots: (0..SLOTS).map(|_| None).collect(),
            waits: vec![false; SLOTS],
            hot: vec![false; SLOTS],
            used: vec![false; SLOTS],
            awaited: vec![false; SLOTS],
        }
    }

    /// Whether a slot was not hot.
    pub(crate) fn becomes_hot(&mut self, slot: usize) -> bool {
        !std::mem::replace(&mut self.hot[slot % SLOTS], true)
    }

    /// A slot is looked at when somebody rings.
    pub(crate) fn cools(&mut self, slot: usize) {
        self.hot[slot % SLOTS] = false;
    }

    /// Connections are carried.
    pub(crate) fn is_used(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Slots that may be in use.
    pub(crate) fn used(&self) -> usize {
        (self.near.map.header().used.load(Ordering::Acquire) as usize).min(SLOTS)
    }

    /// Looks at a slot: whether something was found there.
    pub(crate) fn visit(&mut self, slot: usize, control: &mut Control) -> bool {
        let slot = slot % SLOTS;
        let generation = self.near.theirs(slot).state().0;
        let is_other = |carried: &Carried| carried.generation != generation;
        let mut found = false;
        if self.slots[slot].as_deref().is_some_and(is_other) {
            // Its client has taken it back, and uses the slot again.
            self.withdraw(slot, control);
            self.finish(slot);
        }
        if self.slots[slot].is_none() {
            if self.near.map.waiting(slot).is_none() {
                self.waits[slot] = false;
                return false;
            }
            self.waits[slot] = !self.is_free(slot);
            if self.waits[slot] {
                return false;
            }
            self.begin(slot, generation, control);
            found = true;
        }
        found |= self.carry(slot, control);
        self.used[slot] |= found;
        found
    }

    /// The far end is done with the slot's last connection.
    fn is_free(&self, slot: usize) -> bool {
        let [a, b] = self.far.map.slot(slot).side.each_ref().map(|side| side.state());
        a.1 == SlotState::Free || a.0 == b.0 && matches!(b.1, SlotState::Closed | SlotState::Refused)
    }

    /// A connection is asked for at the far end as it was at the near one.
    fn begin(&mut self, slot: usize, generation: u32, control: &mut Control) {
        let words = self.far.map.slot(slot);
        words.side.iter().for_each(SlotSide::clear);
        self.clean_rings(slot);
        let (from, to) = (self.near.map.names(slot), self.far.map.names(slot));
        to.listener_gen.store(from.listener_gen.load(Ordering::Relaxed), Ordering::Relaxed);
        to.ports.store(from.ports.load(Ordering::Relaxed), Ordering::Relaxed);
        for (from, to) in from.local.iter().zip(&to.local).chain(from.remote.iter().zip(&to.remote)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let (asking, asked) = (self.near.theirs(slot), self.far.own(slot));
        let index = asking.listener.load(Ordering::Relaxed);
        asked.listener.store(index, Ordering::Relaxed);
        asked.announced.store(asking.announced.load(Ordering::Relaxed), Ordering::Relaxed);
        let used = &self.far.map.header().used;
        used.fetch_max(slot as u32 + 1, Ordering::AcqRel);
        asked.set_state(generation, SlotState::Syn);
        self.slots[slot] = Some(Box::new(Carried {
            generation,
            from_a: Flow::new(),
            from_b: Flow::new(),
            is_answered: false,
            is_closed: [false; 2],
            is_broken: false,
        }));
        self.far.request(slot, control);
        // Whoever ended the listener before may not have seen it (SYNC POINT: end of a listener, with `forget` in
        // crates/sd-socket/src/setup/listen.rs).
        sd_ring::fence_full();
        let is_there = self.far.listener_generation(index) == to.listener_gen.load(Ordering::Relaxed);
        if (!is_there || self.far.is_dead()) && self.take_back(slot, generation) {
            self.refuse(slot, generation, control);
        }
    }

    /// Takes a request back at the far end, unless it was answered.
    fn take_back(&self, slot: usize, generation: u32) -> bool {
        let answer = &self.far.theirs(slot).state;
        let old = answer.load(Ordering::Acquire);
        let closed = generation << 8 | SlotState::Closed as u32;
        let is_mine = old >> 8 != generation
            && answer.compare_exchange(old, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_mine {
            self.far.own(slot).set_state(generation, SlotState::Closed);
        }
        is_mine
    }

    /// Answers for the far end, if the client has not taken its request back.
    fn answer(&self, slot: usize, generation: u32, state: SlotState) -> bool {
        let answer = &self.near.own(slot).state;
        let old = answer.load(Ordering::Acquire);
        let new = generation << 8 | state as u32;
        old >> 8 != generation
            && answer.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn refuse(&mut self, slot: usize, generation: u32, control: &mut Control) {
        if self.answer(slot, generation, SlotState::Refused) {
            self.near.notify(slot, ALL_BITS, control);
            self.near.announce(slot, control);
        }
        self.finish(slot);
    }

    /// The client has taken its request back: so does the pump, or it resets what was accepted.
    fn withdraw(&mut self, slot: usize, control: &mut Control) {
        let Some(carried) = self.slots[slot].as_deref() else { return };
        let generation = carried.generation;
        if !self.take_back(slot, generation) {
            let own = self.far.own(slot);
            own.flags.fetch_or(FLAG_RESET, Ordering::AcqRel);
            own.set_state(generation, SlotState::Closed);
            self.far.notify(slot, ALL_BITS, control);
        }
    }

    /// The client wants its request back, and nobody has accepted it at the far end: so it has it, and goes elsewhere.
    fn gives_back(&mut self, slot: usize, generation: u32, control: &mut Control) -> bool {
        let wants = self.near.theirs(slot).flags.load(Ordering::Acquire) & FLAG_TAKES_BACK != 0;
        if !wants || !self.take_back(slot, generation) {
            return false;
        }
        self.near.own(slot).flags.fetch_or(FLAG_TAKES_BACK, Ordering::AcqRel);
        self.answer(slot, generation, SlotState::Closed);
        self.near.notify(slot, ALL_BITS, control);
        true
    }

    /// Both directions, then what has become of the connection.
    fn carry(&mut self, slot: usize, control: &mut Control) -> bool {
        let Some(mut carried) = self.slots[slot].take() else { return false };
        let generation = carried.generation;
        if !carried.is_answered && self.gives_back(slot, generation, control) {
            return true;
        }
        let [a, b] = [self.near.theirs(slot), self.far.theirs(slot)].map(|words| words.state());
        let has_answer = b.0 == generation;
        let mut found = false;
        if !carried.is_broken {
            match self.carry_both(slot, &mut carried, has_answer, control) {
                // The rest comes before what follows it.
                Some(Found::Cut) => {
                    self.slots[slot] = Some(carried);
                    return true;
                }
                Some(news) => found = news == Found::News,
                None => {
                    carried.is_broken = true;
                    self.reset(slot, control);
                    found = true;
                }
            }
        }
        if has_answer && !std::mem::replace(&mut carried.is_answered, true) {
            found = true;
            let state = if b.1 == SlotState::Refused { b.1 } else { SlotState::Open };
            // Of accept nobody is told: a TCP client is connected by the kernel's word.
            if !self.answer(slot, generation, state) {
                self.slots[slot] = Some(carried);
                self.withdraw(slot, control);
                self.finish(slot);
                return true;
            }
        }
        let is_withdrawn = !carried.is_answered && self.near.own(slot).state().0 == generation;
        if is_withdrawn {
            self.slots[slot] = Some(carried);
            self.withdraw(slot, control);
            self.finish(slot);
            return true;
        }
        if a.1 == SlotState::Closed && !std::mem::replace(&mut carried.is_closed[0], true) {
            found = true;
            self.far.own(slot).wait.store(0, Ordering::Relaxed);
            self.far.own(slot).set_state(generation, SlotState::Closed);
            self.far.notify(slot, ALL_BITS, control);
        }
        let is_over = matches!(b.1, SlotState::Closed | SlotState::Refused) && has_answer;
        if is_over && !carried.is_closed[1] {
            found = true;
            carried.is_closed[1] = true;
            if b.1 == SlotState::Closed {
                self.near.own(slot).wait.store(0, Ordering::Relaxed);
                self.near.own(slot).set_state(generation, SlotState::Closed);
            }
            self.near.notify(slot, ALL_BITS, control);
        }
        match carried.is_closed {
            [true, true] => self.trim(slot, &mut carried),
            _ => self.slots[slot] = Some(carried),
        }
        found
    }

    /// `None`: what an end wrote makes no sense.
    fn carry_both(
        &mut self,
        slot: usize,
        carried: &mut Carried,
        has_answer: bool,
        control: &mut Control,
    ) -> Option<Found> {
        let there = carried.from_a.carry((&self.near, &self.far), Side::A, slot).ok()?;
        self.tell(slot, Side::B, &there, control);
        if !has_answer {
            return Some(Found::of(&[there]));
        }
        let back = carried.from_b.carry((&self.far, &self.near), Side::B, slot).ok()?;
        self.tell(slot, Side::A, &back, control);
        Some(Found::of(&[there, back]))
    }

    fn tell(&mut self, slot: usize, who: Side, news: &News, control: &mut Control) {
        let end = if who == Side::A { &mut self.near } else { &mut self.far };
        if news.bits != 0 {
            end.notify(slot, news.bits, control);
        }
        if news.is_urgent {
            end.signal(slot, true, control);
        }
    }

    /// One end broke the protocol: both are reset.
    fn reset(&mut self, slot: usize, control: &mut Control) {
        for end in [&mut self.near, &mut self.far] {
            end.own(slot).flags.fetch_or(FLAG_RESET, Ordering::AcqRel);
            end.notify(slot, ALL_BITS, control);
        }
    }

    fn finish(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    /// Whoever has news of the slot rings. To be looked at once more afterwards.
    pub(crate) fn arm(&self, slot: usize) {
        let slot = slot % SLOTS;
        if self.slots[slot].is_some() || self.waits[slot] {
            doorbell::arm(&self.near.own(slot).wait, RX_EVENT | TX_EVENT);
            doorbell::arm(&self.far.own(slot).wait, RX_EVENT | TX_EVENT);
        }
    }
}
