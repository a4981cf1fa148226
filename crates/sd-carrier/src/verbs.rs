//! Packets by RDMA: batches that are written into the other engine's memory.
//!
//! ```text
//!  Source, slots + 1 ── a batch: len u16, packet, len u16, packet ... ── RDMA write with immediate ──> Landing, slots
//!                                                                                                       │ copied, handed over
//!  slots that are free <──────────── immediate: batches that were read so far ─────────────────────────┘
//! ```
//!
//! A batch is what was committed since the last flush, one write, and lands in the slot behind the last one's. The other engine counts what
//! it has read, and says so with each write of its own, or with an empty one when half of the slots are read and nothing is to be said
//! besides. No more batches are under way than it has slots, so nothing lands where something is still read, and a slot here is free when it
//! was read there: completions of writes are asked for only to empty the device's queue.
//!
//! Besides, bytes go straight from one ring to another, between memory that both engines have lent the device for that ([`placing`]).
//!
//! Waiting: the descriptor is the completion channel's, and the queue tells it once when it is armed. [`Carrier::woken`] takes what was told and arms
//! it again, and nothing else asks the kernel: who looks without sleeping pays for looks only, and is told once when he sleeps. It is never
//! writable: who is blocked waits for what the other engine says. A second descriptor, [`Verbs::events`], tells that the device or its port
//! has failed: then the carrier has ended, also where nothing was sent.
//!
//! Whether the other engine's end is where that engine should be, [`VerbsEnd::is_at`] says: the caller asks before it connects.

mod device;
mod end;
mod placing;

use crate::{Carrier, End, Flushed, Kind, Mark, PACKET_MAX, PACKET_MIN, Received, State, Wants};
use device::{errno, errno_of};
pub use end::VerbsEnd;
use placing::Placed;
pub use placing::{Grant, Placing};
use sd_verbs::{Completion, Domain, Done, Error, Landing, Outcome, Pair, PairConfig, Queue, Source, Window};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Bytes of a length.
const LEN: usize = 2;
/// The last of a carrier: nothing follows.
const LAST: u32 = 1 << 16;
/// Names of requests: of places for the other engine's writes, and of a carrier's last. Others say how much was placed before.
const PLACE: u64 = u64::MAX;
const PARTING: u64 = u64::MAX - 1;
/// How long a carrier that is dropped waits until the other engine's device has all.
const PARTING_MAX: Duration = Duration::from_millis(20);

/// How a carrier is made; both engines have the same `packet_max`, `slots` and `slot_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    pub port: u8,
    /// Which of the port's names this end has.
    pub gid_index: u32,
    pub packet_max: usize,
    /// Batches that may be under way.
    pub slots: usize,
    /// The longest batch; it is made to hold two packets at least.
    pub slot_bytes: usize,
    /// Batches that are no longer go without the device's reading our memory.
    pub inline_bytes: u32,
}

impl Default for VerbsConfig {
    fn default() -> VerbsConfig {
        let (packet_max, slot_bytes) = (16 << 10, 64 << 10);
        VerbsConfig { port: 1, gid_index: 0, packet_max, slots: 16, slot_bytes, inline_bytes: 128 }
    }
}

/// What a carrier has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsCounters {
    pub packets_sent: u64,
    pub packets_received: u64,
    /// Writes with packets, and without.
    pub batches: u64,
    pub credits: u64,
    /// The other engine had no slot free.
    pub blocked: u64,
}

/// Packets by RDMA.
pub struct Verbs {
    // Destroyed before the memory that it uses is unregistered.
    pair: Pair,
    queue: Queue,
    source: Source,
    landing: Landing,
    domain: Domain,
    placed: Placed,
    port: u8,
    gid_index: u32,
    other: Window,
    /// Of the other engine's end.
    other_number: u32,
    packet_max: usize,
    slots: usize,
    slot_bytes: usize,
    state: State,
    /// Why nothing more can be sent; told when all that came was handed over.
    fault: Option<End>,
    /// Bytes of the batch that is being made.
    batch_len: usize,
    /// Batches: sent, of these read by the other engine, landed and read here, of these told. Of counts that are told the low 16 bits are.
    sent: u64,
    acknowledged: u64,
    read: u64,
    told: u64,
    /// Lengths of batches that have landed and were not read.
    landed: VecDeque<usize>,
    /// The other engine has said its last.
    is_last: bool,
    /// Writes since one whose completion was asked for.
    untold_writes: usize,
    /// A batch is copied to here, since the other engine can change it in its slot.
    copy: Box<[u8]>,
    counters: VerbsCounters,
}

impl Verbs {
    /// One end, which carries when it is connected. `first` is any number.
    pub fn new(domain: &Domain, config: VerbsConfig, first: u32) -> Result<Verbs, Error> {
        let packet_max = config.packet_max.clamp(PACKET_MIN, PACKET_MAX);
        let slot_bytes = config.slot_bytes.max(2 * (LEN + packet_max));
        let slots = config.slots.clamp(2, 1024);
        // Batches, and as many empty writes; twice, as those that were done are noticed late.
        let places = 4 * slots as u32;
        let requests = places + placing::MOST as u32;
        let queue = Queue::new(domain.context(), 2 * requests)?;
        let pair_config = PairConfig {
            port: config.port,
            gid_index: config.gid_index,
            writes: requests,
            places,
            inline_bytes: config.inline_bytes,
        };
        let mut pair = Pair::new(domain, &queue, pair_config, first)?;
        for _ in 0..places {
            pair.expect(PLACE)?;
        }
        Ok(Verbs {
            pair,
            queue,
            source: Source::new(domain, (slots + 1) * slot_bytes)?,
            landing: Landing::new(domain, slots * slot_bytes)?,
            domain: domain.clone(),
            placed: Placed::default(),
            port: config.port,
            gid_index: config.gid_index,
            other: Window { addr: 0, len: 0, key: 0 },
            other_number: 0,
            packet_max,
            slots,
            slot_bytes,
            state: State::Open,
            fault: None,
            batch_len: 0,
            sent: 0,
            acknowledged: 0,
            read: 0,
            told: 0,
            landed: VecDeque::with_capacity(slots),
            is_last: false,
            untold_writes: 0,
            copy: vec![0; slot_bytes].into_boxed_slice(),
            counters: VerbsCounters::default(),
        })
    }

    pub fn end(&self) -> VerbsEnd {
        VerbsEnd { address: self.pair.address(), window: self.landing.window() }
    }

    /// Connects to the other engine's end, which does the same with this one.
    pub fn connect(&mut self, other: &VerbsEnd) -> Result<(), Error> {
        let (len, own) = (other.window.len, self.landing.window().len);
        if len != own {
            return Err(Error::OutOfBounds { offset: 0, len: own as usize, region_len: len as usize });
        }
        (self.other, self.other_number) = (other.window, other.address.number);
        self.pair.connect(&other.address)?;
        self.queue.arm()
    }

    pub fn counters(&self) -> VerbsCounters {
        self.counters
    }

    fn is_sending(&self) -> bool {
        self.state == State::Open && self.fault.is_none()
    }

    /// Batches that the other engine has not read, as far as is known.
    fn under_way(&self) -> usize {
        (self.sent - self.acknowledged) as usize
    }

    /// The place of the batch that is being made: one slot more than the other engine has, so that there always is one.
    fn batch_at(&self) -> usize {
        (self.sent % (self.slots as u64 + 1)) as usize * self.slot_bytes
    }

    /// Nothing more can be sent; the first reason is the one that says something.
    fn fail(&mut self, end: End) {
        self.fault.get_or_insert(end);
        self.batch_len = 0;
    }

    /// Notes what the device says.
    fn look(&mut self) {
        loop {
            let mut found = [None; 32];
            let mut len = 0;
            let taken = self.queue.poll(|completion| {
                if let Some(place) = found.get_mut(len) {
                    *place = Some(completion);
                    len += 1;
                }
            });
            found.into_iter().flatten().for_each(|completion| self.note(&completion));
            match taken {
                Ok(32) => {}
                Ok(_) => return,
                Err(error) => return self.fail(End::Broken(errno_of(&error))),
            }
        }
    }

    fn note(&mut self, completion: &Completion) {
        let (immediate, len) = match completion.outcome {
            Outcome::Done(Done::Landed { immediate, len }) => (immediate, len as usize),
            Outcome::Done(_) => {
                self.placed.done(completion.id);
                return;
            }
            Outcome::Failed(failure) => return self.fail(End::Broken(errno(failure))),
        };
        // Of what was sent it can have read no more than all.
        let more = (immediate as u16).wrapping_sub(self.acknowledged as u16);
        if usize::from(more) > self.under_way() {
            return self.fail(End::Broken(libc::EPROTO));
        }
        self.acknowledged += u64::from(more);
        self.is_last |= immediate & LAST != 0;
        if len > 0 {
            if len > self.slot_bytes || self.landed.len() == self.slots {
                return self.fail(End::Length(len));
            }
            self.landed.push_back(len);
        }
        if let Err(error) = self.pair.expect(PLACE) {
            self.fail(End::Broken(errno_of(&error)));
        }
    }

    /// Writes the batch, or nothing, with what is to be told besides.
    fn write(&mut self, len: usize, flags: u32) -> Result<(), Error> {
        let (from, slot) = (self.batch_at(), self.sent % self.slots as u64);
        let to = slot * self.slot_bytes as u64;
        let is_told = flags != 0 || self.untold_writes >= self.slots || self.placed.wants_word();
        let immediate = u32::from(self.read as u16) | flags;
        let id = if flags == 0 { self.placed.posted() } else { PARTING };
        self.pair.write_with_immediate(
            id,
            (&self.source, from, len),
            (&self.other, to),
            immediate,
            is_told,
        )?;
        if is_told {
            self.placed.will_be_told();
        }
        self.untold_writes = if is_told { 0 } else { self.untold_writes + 1 };
        self.told = self.read;
        if len > 0 {
            self.sent += 1;
            self.counters.batches += 1;
        } else {
            self.counters.credits += 1;
        }
        Ok(())
    }

    /// Tells what was read, if that is much and nothing else has told it.
    fn give_credit(&mut self) {
        let untold = (self.read - self.told) as usize;
        if untold < self.slots / 2 || !self.is_sending() {
            return;
        }
        match self.write(0, 0) {
            // Room comes with the next completion.
            Ok(()) | Err(Error::Full) => {}
            Err(error) => self.fail(End::Broken(errno_of(&error))),
        }
    }

    /// Hands over all that has landed; whether there was anything.
    fn hand_over(&mut self, each: &mut dyn FnMut(&mut [u8], Mark)) -> bool {
        let is_any = !self.landed.is_empty();
        while let Some(len) = self.landed.pop_front() {
            let at = (self.read % self.slots as u64) as usize * self.slot_bytes;
            if self.landing.copy_to(at, &mut self.copy[..len]).is_err() {
                self.state = State::Ended(End::Length(len));
                return true;
            }
            self.read += 1;
            let mut rest = &mut self.copy[..len];
            while !rest.is_empty() {
                let bad = match rest.split_first_chunk_mut::<LEN>() {
                    None => End::Truncated,
                    Some((len, behind)) => match usize::from(u16::from_le_bytes(*len)) {
                        len if len == 0 || len > self.packet_max => End::Length(len),
                        len if len > behind.len() => End::Truncated,
                        len => {
                            let (packet, behind) = behind.split_at_mut(len);
                            each(packet, Mark::Incapable);
                            self.counters.packets_received += 1;
                            rest = behind;
                            continue;
                        }
                    },
                };
                self.state = State::Ended(bad);
                return true;
            }
            self.give_credit();
        }
        is_any
    }
}

impl AsFd for Verbs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl Carrier for Verbs {
    fn kind(&self) -> Kind {
        Kind::Stream
    }

    fn state(&self) -> State {
        self.state
    }

    fn wants(&self) -> Wants {
        let is_open = self.state == State::Open;
        Wants { read: is_open, write: is_open && self.batch_len > 0 }
    }

    fn packet_max(&self) -> usize {
        self.packet_max
    }

    fn room(&mut self) -> Option<&mut [u8]> {
        if !self.is_sending() || self.batch_len + LEN + self.packet_max > self.slot_bytes {
            return None;
        }
        let at = self.batch_at() + self.batch_len + LEN;
        self.source.bytes_mut().get_mut(at..at + self.packet_max)
    }

    fn commit(&mut self, len: usize) {
        let is_sound = len > 0 && len <= self.packet_max && self.batch_len + LEN + len <= self.slot_bytes;
        debug_assert!(is_sound, "a packet of {len} bytes");
        if !is_sound || !self.is_sending() {
            return;
        }
        let at = self.batch_at() + self.batch_len;
        if let Some(place) = self.source.bytes_mut().get_mut(at..at + LEN) {
            place.copy_from_slice(&(len as u16).to_le_bytes());
            self.batch_len += LEN + len;
            self.counters.packets_sent += 1;
        }
    }

    fn flush(&mut self) -> Flushed {
        if self.is_sending() && self.batch_len > 0 {
            if self.under_way() >= self.slots {
                self.look();
            }
            if self.is_sending() && self.under_way() >= self.slots {
                self.counters.blocked += 1;
                return Flushed::Blocked;
            }
        }
        if self.is_sending() && self.batch_len > 0 {
            match self.write(self.batch_len, 0) {
                Ok(()) => self.batch_len = 0,
                Err(Error::Full) => {
                    self.look();
                    self.counters.blocked += 1;
                    return Flushed::Blocked;
                }
                Err(error) => self.fail(End::Broken(errno_of(&error))),
            }
        }
        if self.is_sending() { Flushed::All } else { Flushed::Ended }
    }

    fn woken(&mut self) {
        if !self.queue.take_event() {
            // Another descriptor is ready. If it is the device's, it stays so until this is done.
            return self.hear_device();
        }
        // What came before the queue is armed again tells nobody: it is found when the caller receives.
        if let Err(error) = self.queue.arm() {
            self.fail(End::Broken(errno_of(&error)));
        }
    }

    fn receive(&mut self, each: &mut dyn FnMut(&mut [u8], Mark)) -> Received {
        if self.state != State::Open {
            return Received::Ended;
        }
        self.look();
        let is_any = self.hand_over(each);
        self.give_credit();
        if self.state == State::Open && !is_any {
            let end = if self.is_last { Some(End::Closed) } else { self.fault };
            self.state = end.map_or(State::Open, State::Ended);
        }
        match self.state {
            State::Ended(_) => Received::Ended,
            // The end, if there is one, is told the next time.
            State::Open if is_any => Received::More,
            State::Open => Received::Drained,
        }
    }
}

impl Drop for Verbs {
    /// Says that nothing follows. A pair that is destroyed forgets what is under way, so this waits a moment for the other engine's
    /// device; where that does not answer, what was sent may be lost, as with all that ends without a word.
    fn drop(&mut self) {
        if !self.is_sending() || self.other.len == 0 || self.write(0, LAST).is_err() {
            return;
        }
        let end = Instant::now() + PARTING_MAX;
        let mut is_done = false;
        while !is_done && Instant::now() < end {
            let found = self.queue.poll(|completion| {
                is_done |= completion.id == PARTING;
            });
            match found {
                Ok(0) => std::thread::yield_now(),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
