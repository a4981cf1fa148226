//! A channel with a local process, on which the engine is the other side of promoted connections.

use crate::policy::{Wakes, Woken};
use sd_proto::{Reply, Request};
use sd_pump::control::Control;
use sd_pump::end::{End, RX_BITS, TX_BITS};
use sd_ring::doorbell;
use sd_ring::road::RoadWord;
use sd_shm::channel::{GEOMETRY, SLOTS, Side, SlotSide, SlotState};
use sd_shm::promotion::PROMOTION;
use sd_shm::rings::Rings;
use sd_sys::fd::Owned;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const ALL_BITS: u32 = RX_BITS | TX_BITS;

/// See the module.
pub(crate) struct Seat {
    pub(crate) end: End,
    /// The local process, as the monitor says.
    pid: u32,
    /// Connections by slot.
    pub(crate) slots: Vec<Option<u64>>,
    /// As side A: slots that were used, and are free.
    free: Vec<usize>,
    /// The local process is gone.
    pub(crate) is_dead: bool,
    pub(crate) wakes: Wakes,
    /// What came since it was judged last; `end` counts the wakes.
    pub(crate) woken: Woken,
    /// Connections that are judged.
    pub(crate) judged: usize,
    used: usize,
}

/// All of them: by a number that is used again, and by channel.
#[derive(Default)]
pub(crate) struct Seats {
    all: Vec<Option<Seat>>,
    by_channel: HashMap<u64, usize>,
}

impl Seats {
    pub(crate) fn add(&mut self, channel: u64, seat: Seat) {
        let at = self.all.iter().position(Option::is_none).unwrap_or(self.all.len());
        if at == self.all.len() {
            self.all.push(None);
        }
        self.all[at] = Some(seat);
        self.by_channel.insert(channel, at);
    }

    pub(crate) fn get(&mut self, at: usize) -> Option<&mut Seat> {
        self.all.get_mut(at)?.as_mut()
    }

    /// A slot that was announced, if a connection has it.
    pub(crate) fn at_slot(&self, seat: usize, slot: usize) -> Option<(&Seat, usize, u64)> {
        let seat = self.all.get(seat)?.as_ref()?;
        let slot = slot % SLOTS;
        Some((seat, slot, seat.slots[slot]?))
    }

    pub(crate) fn of(&self, channel: u64) -> Option<usize> {
        self.by_channel.get(&channel).copied()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &Seat)> {
        self.all.iter().enumerate().filter_map(|(at, seat)| Some((at, seat.as_ref()?)))
    }

    /// Connections there.
    pub(crate) fn connections(&self, at: usize) -> impl Iterator<Item = u64> {
        self.all.get(at).into_iter().flatten().flat_map(|seat| seat.slots.iter().flatten().copied())
    }

    /// For each local process, its channels: what came for it and what it was woken for, since this was asked last; of its connections those that are judged.
    pub(crate) fn take_woken(&mut self) -> Vec<(Vec<usize>, Woken, usize)> {
        let mut processes = BTreeMap::<u32, (Vec<usize>, Woken, usize)>::new();
        for (at, seat) in self.all.iter_mut().enumerate() {
            let Some(seat) = seat else { continue };
            let (seats, part, judged) = processes.entry(seat.pid).or_default();
            seats.push(at);
            *part += Woken { wakes: seat.end.wakes.take(), ..std::mem::take(&mut seat.woken) };
            *judged += std::mem::take(&mut seat.judged);
        }
        processes.into_values().collect()
    }

    /// Channels whose local process has ended, as the kernel says, and nobody has told.
    pub(crate) fn ended(&self) -> Vec<u64> {
        let is_over = |seat: &&Seat| !seat.is_dead && sd_sys::fd::task_is_dead(seat.end.pid() as i32);
        self.all.iter().flatten().filter(is_over).map(|seat| seat.end.id).collect()
    }

    /// Lets go of those that are over, and not needed; whether others are over.
    pub(crate) fn leave_dead(&mut self, control: &mut Control) -> bool {
        let mut is_left = false;
        for place in &mut self.all {
            let Some(seat) = place.as_ref().filter(|seat| seat.is_dead) else { continue };
            if seat.slots.iter().any(Option::is_some) {
                is_left = true;
                continue;
            }
            let channel = seat.end.id;
            if seat.end.is_stranger {
                control.tell(&Request::Finished { channel });
            }
            self.by_channel.remove(&channel);
            *place = None;
        }
        is_left
    }
}

/// Who is at the other side of a channel, as the monitor says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// It is another user's.
    pub(crate) is_stranger: bool,
}

/// A slot, and which life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) slot: usize,
    pub(crate) generation: u32,
}

impl Seat {
    pub(crate) fn new((id, ours): (u64, Side), process: Process, fds: [Owned; 3]) -> Option<Seat> {
        let mut end = End::new(id, ours, process.is_stranger, fds)?;
        end.gathers = true;
        Some(Seat {
            end,
            pid: process.pid,
            slots: vec![None; SLOTS],
            free: Vec::new(),
            is_dead: false,
            wakes: Wakes::default(),
            woken: Woken::default(),
            judged: 0,
            used: 0,
        })
    }

    /// The ring that the local process writes, or the one that it reads.
    pub(crate) fn rings(&self, slot: usize, is_read_there: bool) -> Rings {
        let from = if is_read_there { self.end.ours } else { self.end.ours.other() };
        Rings::of(&self.end.map, slot, from)
    }

    /// As side A: a slot for a connection, in which the ticket is shown.
    pub(crate) fn show(&mut self, id: u64, ticket: u64) -> Option<Slot> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.used < SLOTS => {
                self.used += 1;
                self.end.map.header().used.store(self.used as u32, Ordering::Release);
                self.used - 1
            }
            None => return None,
        };
        let words = self.end.map.slot(slot);
        let was_used = words.side[0].state().0 != 0;
        let generation = words.side[0].state().0.wrapping_add(1) & 0x00ff_ffff;
        words.side.iter().for_each(SlotSide::clear);
        for from in [Side::A, Side::B].into_iter().filter(|_| was_used) {
            let first = self.end.map.small_ring(slot, from) as *const AtomicU64;
            // SAFETY: the first word of a small ring of a mapped channel; nobody uses the slot now.
            unsafe { (*first).store(0, Ordering::Relaxed) };
        }
        words.side[0].listener.store(PROMOTION, Ordering::Release);
        let names = self.end.map.names(slot);
        names.ports.store(0, Ordering::Relaxed);
        names.ticket().store(ticket, Ordering::Relaxed);
        [Side::A, Side::B].iter().for_each(|side| names.switched_at(*side).store(0, Ordering::Relaxed));
        self.slots[slot] = Some(id);
        self.woken.joined += 1;
        Some(Slot { slot, generation })
    }

    /// A connection asks at a slot that has none, as side A of the local process: the ticket that it shows.
    pub(crate) fn shown(&self, slot: usize) -> Option<(Slot, u64)> {
        let theirs = self.end.theirs(slot);
        let (generation, state) = theirs.state();
        let is_asked = self.end.ours == Side::B
            && matches!(state, SlotState::Syn | SlotState::Closed)
            && self.end.own(slot).state().0 != generation
            && theirs.listener.load(Ordering::Acquire) == PROMOTION;
        let ticket = self.end.map.names(slot).ticket().load(Ordering::Relaxed);
        is_asked.then_some((Slot { slot, generation }, ticket))
    }

    /// As side B: answers, if the local process has not taken its request back.
    pub(crate) fn answer(&mut self, at: Slot, state: SlotState, control: &mut Control) -> bool {
        let word = &self.end.own(at.slot).state;
        let old = word.load(Ordering::Acquire);
        let new = at.generation << 8 | state as u32;
        let is_first = old >> 8 != at.generation
            && word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_first {
            self.end.notify(at.slot, ALL_BITS, control);
            self.end.announce(at.slot, control);
        }
        is_first
    }

    /// As side A: takes the request back, unless it was answered.
    pub(crate) fn take_back(&self, at: Slot) -> bool {
        let answer = &self.end.theirs(at.slot).state;
        let old = answer.load(Ordering::Acquire);
        let closed = at.generation << 8 | SlotState::Closed as u32;
        old >> 8 != at.generation
            && answer.compare_exchange(old, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// What the local process has declared of this life of the slot.
    pub(crate) fn state(&self, at: Slot) -> SlotState {
        match self.end.theirs(at.slot).state() {
            (generation, state) if generation == at.generation => state,
            // Side A has closed this one, and uses the slot again; side B has not answered.
            _ if self.end.ours == Side::B => SlotState::Closed,
            _ => SlotState::Free,
        }
    }

    /// Both sides have this connection there.
    pub(crate) fn is_open(&self, at: Slot) -> bool {
        let [a, b] = &self.end.map.slot(at.slot).side;
        let (a, b) = (a.state(), b.state());
        a == (at.generation, SlotState::Syn) && b == (at.generation, SlotState::Open)
    }

    /// The local process uses the slot for another connection.
    pub(crate) fn is_reused(&self, at: Slot) -> bool {
        self.end.ours == Side::B && self.end.theirs(at.slot).state().0 != at.generation
    }

    /// The connection is over.
    pub(crate) fn close(&mut self, at: Slot, control: &mut Control) {
        let own = self.end.own(at.slot);
        let is_unanswered = self.end.ours == Side::B && own.state().0 != at.generation;
        if is_unanswered {
            self.answer(at, SlotState::Refused, control);
            return;
        }
        own.wait.store(0, Ordering::Relaxed);
        own.set_state(at.generation, SlotState::Closed);
        self.end.notify(at.slot, ALL_BITS, control);
    }

    /// Nobody uses the slot any more.
    pub(crate) fn leave(&mut self, at: Slot, has_large: bool) {
        self.slots[at.slot] = None;
        if has_large && !self.end.is_stranger && self.end.ours == Side::A {
            let ring = self.end.map.large_ring(at.slot, self.end.ours);
            // SAFETY: a large ring of a mapped channel, into which only the engine writes, of a slot that is free.
            unsafe { sd_sys::mem::punch(ring, GEOMETRY.large as usize) };
        }
        if self.end.ours == Side::A {
            self.free.push(at.slot);
        }
    }

    /// Zeroes what is in a large ring that the local process reads, from a whole word on.
    pub(crate) fn clear_large(&self, slot: usize, from: u32) {
        let ring = self.end.map.large_ring(slot, self.end.ours);
        let (from, len) = (from as usize, GEOMETRY.large as usize);
        let page = from.next_multiple_of(sd_shm::PAGE).min(len);
        // SAFETY: whole pages of that ring, into which only the engine writes. Nothing that is in them was sent.
        let punch = || page < len && unsafe { sd_sys::mem::punch(ring.wrapping_add(page), len - page) };
        let end = if !self.end.is_stranger && punch() { page } else { len };
        for at in (from..end).step_by(8) {
            // SAFETY: a whole word of a large ring of a mapped channel.
            unsafe { (*ring.wrapping_add(at).cast::<AtomicU64>()).store(0, Ordering::Relaxed) };
        }
    }

    /// Whoever has such news of the slot rings. To be looked at afterwards.
    pub(crate) fn arm(&self, slot: usize, news: u32) {
        doorbell::arm(&self.end.own(slot).wait, news);
    }

    /// Side A says that all its waits look at both roads, and asks.
    pub(crate) fn request(&mut self, at: Slot, control: &mut Control) {
        let own = self.end.own(at.slot);
        own.say(RoadWord::ATTACHED);
        own.set_state(at.generation, SlotState::Syn);
        self.end.request(at.slot, control);
    }
}

/// The channel that comes with a message, and the engine's side of it; the process at its other side.
pub(crate) fn of_message(reply: &Reply) -> Option<((u64, Side), Process)> {
    match *reply {
        Reply::NewChannel { id, stranger, peer_pid, .. } => {
            Some(((id, Side::B), Process { pid: peer_pid, is_stranger: stranger }))
        }
        Reply::Promote { channel, side: 0, stranger, peer_pid, .. } => {
            Some(((channel, Side::A), Process { pid: peer_pid, is_stranger: stranger }))
        }
        _ => None,
    }
}
