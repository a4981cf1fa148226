//! The process at an end of a twin, and how it is woken.

use crate::control::Control;
use sd_proto::{Reply, Request};
use sd_ring::RingMem;
use sd_ring::doorbell::{self, RX_EVENT, RX_SIGNAL, RX_SLEEP, TX_EVENT, TX_SIGNAL, TX_SLEEP};
use sd_ring::sync::sleepers;
use sd_shm::channel::{ColdWords, Mapping, Side, SlotSide, ThreadWaker};
use sd_shm::link::Link;
use sd_shm::public::Public;
use sd_shm::rings::Rings;
use sd_sys::fd::Owned;
use sd_sys::futex::{self, Scope};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// For bytes, or the end of them.
pub const RX_BITS: u32 = RX_SLEEP | RX_EVENT | RX_SIGNAL;
/// For room.
pub const TX_BITS: u32 = TX_SLEEP | TX_EVENT | TX_SIGNAL;

/// A process, and its channel to the pump.
pub struct End {
    pub id: u64,
    pub map: Mapping,
    /// The pump's side of the channel.
    pub ours: Side,
    /// The process is another user's.
    pub is_stranger: bool,
    /// The process waits until the pump has looked.
    answers: bool,
    /// The process is rung when [`End::ring_owed`] is called, once for all that was announced before.
    pub gathers: bool,
    owes_ring: Cell<bool>,
    /// How often somebody there was woken, since who counts that has taken it.
    pub wakes: Cell<u64>,
    bell: Bell,
    page: &'static Public,
    adopters: HashMap<u32, Option<Bell>>,
    wake_targets: HashMap<u64, Option<Bell>>,
    segment: Owned,
}

/// How a process is woken.
struct Bell {
    eventfd: Owned,
    /// It says whether somebody sleeps.
    page: Page,
}

/// A page that is mapped as long as this lives.
struct Page(&'static Public);

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: from `map_peer`; the owner of this is the only one who has it.
        unsafe { sd_shm::public::unmap_peer(self.0) };
    }
}

impl Bell {
    fn of(page: Owned, eventfd: Owned) -> Option<Bell> {
        let page = sd_shm::public::map_peer(page.raw()).ok()?;
        Some(Bell { eventfd, page: Page(page) })
    }
}

/// So many processes are remembered besides the one that the channel was made for; who names more is woken as that one.
const OTHERS_MAX: usize = 4096;

impl End {
    /// Maps what the monitor sent: segment, page, eventfd.
    pub fn new(id: u64, ours: Side, is_stranger: bool, fds: [Owned; 3]) -> Option<End> {
        let [segment, page, eventfd] = fds;
        let bell = Bell::of(page, eventfd)?;
        let page = bell.page.0;
        let map = Mapping::map(segment.raw()).ok()?;
        let link = Link::of(map.header().link[ours as usize].load(Ordering::Relaxed));
        let answers = link.answers();
        let (adopters, wake_targets) = (HashMap::new(), HashMap::new());
        let (gathers, owes_ring) = (false, Cell::new(false));
        Some(End {
            id,
            map,
            ours,
            is_stranger,
            answers,
            gathers,
            owes_ring,
            wakes: Cell::new(0),
            bell,
            page,
            adopters,
            wake_targets,
            segment,
        })
    }

    /// The words that the process writes.
    pub fn theirs(&self, slot: usize) -> &'static SlotSide {
        &self.map.slot(slot).side[self.ours.other() as usize]
    }

    /// The words that the pump writes.
    pub fn own(&self, slot: usize) -> &'static SlotSide {
        &self.map.slot(slot).side[self.ours as usize]
    }

    /// A ring of the channel that is looked at without making a page.
    pub fn through_file<'a>(&'a self, rings: &'a Rings) -> ThroughFile<'a> {
        ThroughFile { end: self, rings }
    }

    /// How often the process has rung, if it waits for an answer.
    pub fn rung(&self) -> Option<u32> {
        let rung = &self.map.header().rung[self.ours.other() as usize];
        self.answers.then(|| rung.load(Ordering::SeqCst))
    }

    /// All that was announced up to then has been looked at.
    pub fn answer(&self, rung: u32) {
        self.map.header().answered[self.ours.other() as usize].store(rung, Ordering::Release);
    }

    /// Generation of a listener, as the process publishes it.
    pub fn listener_generation(&self, index: u32) -> u32 {
        let listener = self.page.listeners.get(index as usize);
        listener.map_or(0, |listener| listener.generation.load(Ordering::Acquire))
    }

    /// The process, as it stands in the channel.
    pub fn pid(&self) -> u32 {
        self.map.header().pid[self.ours.other() as usize].load(Ordering::Relaxed)
    }

    /// A new monitor learns of the channel.
    pub fn bring(&self, control: &mut Control) {
        control.bring(self.id, self.ours, self.pid(), &self.segment);
    }

    /// The monitor found the process gone.
    pub fn is_dead(&self) -> bool {
        self.map.header().dead[self.ours.other() as usize].load(Ordering::Acquire) != 0
    }

    /// The process sees news of a slot, if it waits for such: `bits` of its doorbell.
    pub fn notify(&mut self, slot: usize, bits: u32, control: &mut Control) {
        let theirs = self.theirs(slot);
        let fired = doorbell::ring(&theirs.wait, bits);
        if fired & (RX_SLEEP | TX_SLEEP) != 0 {
            futex::wake(&theirs.wait, i32::MAX, Scope::Shared);
            self.wakes.set(self.wakes.get() + 1);
        }
        if fired & (RX_SIGNAL | TX_SIGNAL) != 0 && fired & RX_SLEEP == 0 {
            self.signal(slot, false, control);
        }
        if fired & (RX_EVENT | TX_EVENT) != 0 {
            self.announce(slot, control);
        }
    }

    /// The process gets a signal, if it wants any.
    pub fn signal(&self, slot: usize, urgent: bool, control: &mut Control) {
        let wants = |words: &ColdWords| words.wants_signals.load(Ordering::Acquire) != 0;
        if self.theirs(slot).cold().is_some_and(wants) {
            let (channel, side) = (self.id, self.ours as u32);
            control.tell(&Request::Signal { channel, slot: slot as u32, side, urgent });
        }
    }

    /// Whoever has the slot at the end looks at it.
    pub fn announce(&mut self, slot: usize, control: &mut Control) {
        let target = self.theirs(slot).cold().map_or(0, |words| words.wake_target.load(Ordering::Relaxed));
        if target != 0 && ThreadWaker::of(target).is_none() && self.ring_target(target, control) {
            return;
        }
        let adopter = match self.ours {
            Side::A => self.theirs(slot).listener.load(Ordering::Relaxed),
            Side::B => 0,
        };
        self.own(slot).announced.store(sd_sys::time::ticks(), Ordering::Relaxed);
        self.map.events_for(self.ours.other(), adopter).post(slot);
        match adopter {
            0 if self.gathers => self.owes_ring.set(true),
            0 => self.ring(&self.bell, control),
            number => self.ring_adopter(number, control),
        }
    }

    /// A connection is asked for.
    pub fn request(&self, slot: usize, control: &mut Control) {
        self.map.events(Side::B).post(slot);
        self.ring(&self.bell, control);
    }

    /// The client says that connections of its wait at a busy sibling of this one.
    pub fn say_left_beside(&self, control: &mut Control) {
        self.map.events(Side::B).say_left_beside();
        self.ring(&self.bell, control);
    }

    /// Rings for what was announced meanwhile.
    pub fn ring_owed(&self, control: &mut Control) {
        if self.owes_ring.take() {
            self.ring(&self.bell, control);
        }
    }

    fn ring(&self, bell: &Bell, control: &mut Control) {
        // What he shall see was published before.
        if sleepers::must_wake(&bell.page.0.sleepers) {
            self.wakes.set(self.wakes.get() + 1);
            control.ring(bell.eventfd.raw(), (self.id, self.ours), self.is_stranger);
        }
    }

    fn ring_target(&mut self, client: u64, control: &mut Control) -> bool {
        let (channel, side) = (self.id, self.ours as u32);
        if !self.wake_targets.contains_key(&client) {
            if self.wake_targets.len() >= OTHERS_MAX {
                return false;
            }
            // The monitor wakes it this time.
            let bell = ask(&Request::WakeTarget { channel, side, client }, control);
            self.wake_targets.insert(client, bell);
        }
        let bell = self.wake_targets.get(&client).and_then(Option::as_ref);
        bell.inspect(|bell| self.ring(bell, control)).is_some()
    }

    fn ring_adopter(&mut self, number: u32, control: &mut Control) {
        if !self.adopters.contains_key(&number) && self.adopters.len() < OTHERS_MAX {
            let bell = ask(&Request::Adopter { channel: self.id, number }, control);
            self.adopters.insert(number, bell);
        }
        if let Some(Some(bell)) = self.adopters.get(&number) {
            self.ring(bell, control);
        }
    }
}

/// A ring by way of the channel's file: read(2) of a hole makes no page. Nothing is written.
pub struct ThroughFile<'a> {
    end: &'a End,
    rings: &'a Rings,
}

impl RingMem for ThroughFile<'_> {
    fn load(&self, region: u32, off: u32) -> u64 {
        let mut word = [0; 8];
        let at = self.rings.place(&self.end.map, region, off);
        // SAFETY: the buffer is that long.
        let got = unsafe { sd_sys::fd::pread(self.end.segment.raw(), word.as_mut_ptr(), word.len(), at) };
        // It must not fail; a look at the ring makes a page at worst.
        if got == Ok(word.len()) { u64::from_ne_bytes(word) } else { self.rings.load(region, off) }
    }
    fn publish(&self, _region: u32, _off: u32, _word: u64) {}
    fn store(&self, _region: u32, _off: u32, _word: u64) {}
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: who has an end keeps no reference into its channel beyond a call.
        unsafe { self.map.unmap() };
    }
}

fn ask(request: &Request, control: &mut Control) -> Option<Bell> {
    let (Reply::Adopter { .. }, got) = control.ask(request, &[])? else { return None };
    let [page, eventfd] = got.fds.take()?;
    Bell::of(page, eventfd)
}
