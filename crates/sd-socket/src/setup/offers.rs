//! Connections of this process that were offered to the monitor, by the names of their offers and by tickets: thousands may wait at once, and
//! each is looked for some times until it is moved.

use crate::socket::endpoint::EndpointExt;
use crate::socket::road::{self, WATCHED};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use sd_shm::channel::Side;
use sd_shm::slab::{Endpoint, State};

/// So many are looked through for those that are over whenever one comes; more only every [`SWEEP_NS`].
const FEW: usize = 64;
const SWEEP_NS: u64 = 10_000_000;

/// A connection that was offered.
pub(super) struct Offered {
    pub(super) serial: u64,
    pub(super) endpoint: &'static Endpoint,
    pub(super) promise: Option<Promise>,
    /// When the promise came.
    promised_at: u64,
}

/// What the monitor said.
#[derive(Clone, Copy)]
pub(super) struct Promise {
    pub(super) channel: u64,
    pub(super) side: Side,
    pub(super) ticket: u64,
    pub(super) behind: u32,
    /// Side B: where A has shown the ticket.
    pub(super) slot: Option<(usize, u32)>,
}

impl Promise {
    fn name(&self) -> (u64, u64) {
        (self.channel, self.ticket)
    }
}

/// What a slot that shows a ticket is.
pub(super) enum Shown {
    /// This connection's, from now on.
    New(&'static Endpoint),
    /// That of a connection which is to be moved at its next call: side A has told of its slot once more.
    Again,
    Unknown,
}

impl Offered {
    /// The endpoint is still the one that was offered.
    pub(super) fn is_valid(&self) -> bool {
        self.endpoint.state_now() == State::Kernel
            && self.endpoint.generation.load(Ordering::Relaxed) == self.serial as u32
            && road::word(self.endpoint).is_some_and(|word| word.load(Ordering::Relaxed) & WATCHED != 0)
    }
}

/// All of them.
pub(super) struct Offers {
    /// By the lower half of the serial, which the endpoint has as its generation meanwhile.
    all: BTreeMap<u32, Offered>,
    /// Those whose ticket side A has still to show, by channel and ticket.
    awaited: BTreeMap<(u64, u64), u32>,
    /// Those whose ticket it has shown, with the slot.
    shown: BTreeMap<(u64, u64), (u32, (usize, u32))>,
    swept_ns: u64,
}

impl Offers {
    pub(super) const fn new() -> Offers {
        Offers { all: BTreeMap::new(), awaited: BTreeMap::new(), shown: BTreeMap::new(), swept_ns: 0 }
    }

    /// A connection is about to be offered under this name, which its endpoint has from now on. Those that are over, as far as they were looked for.
    pub(super) fn add(&mut self, serial: u64, endpoint: &'static Endpoint, now_ns: u64) -> Vec<Offered> {
        let before = endpoint.generation.swap(serial as u32, Ordering::Relaxed);
        let is_its = |offered: &&Offered| core::ptr::eq(offered.endpoint, endpoint);
        let is_before = self.all.get(&before).filter(is_its).is_some();
        let mut over: Vec<Offered> = is_before.then(|| self.remove(before)).flatten().into_iter().collect();
        if self.all.len() < FEW || now_ns.saturating_sub(self.swept_ns) > SWEEP_NS {
            self.swept_ns = now_ns;
            over.extend(self.extract(|offered| !offered.is_valid()));
        }
        self.all.insert(serial as u32, Offered { serial, endpoint, promise: None, promised_at: 0 });
        over
    }

    /// The one of this name, if that is the connection still.
    pub(super) fn valid(&self, serial: u64) -> Option<&'static Endpoint> {
        let offered = self.all.get(&(serial as u32)).filter(|offered| offered.serial == serial);
        offered.filter(|offered| offered.is_valid()).map(|offered| offered.endpoint)
    }

    /// The monitor has found the other end of the one of this name.
    pub(super) fn promise(&mut self, serial: u64, promise: Promise, now_ns: u64) {
        let Some(offered) = self.all.get_mut(&(serial as u32)) else { return };
        offered.promised_at = now_ns;
        let before = offered.promise.replace(promise);
        if let Some(before) = before {
            self.forget(&before);
        }
        match promise.slot {
            _ if promise.side == Side::A => {}
            Some(slot) => _ = self.shown.insert(promise.name(), (serial as u32, slot)),
            None => _ = self.awaited.insert(promise.name(), serial as u32),
        }
    }

    /// Side A has shown a ticket in this slot.
    pub(super) fn shown(&mut self, ticket: (u64, u64), slot: (usize, u32)) -> Shown {
        let known = self.shown.get(&ticket).filter(|(_, known)| *known == slot).map(|(key, _)| *key);
        let Some(key) = self.awaited.get(&ticket).copied().or(known) else { return Shown::Unknown };
        let offered = self.all.get_mut(&key).filter(|offered| offered.is_valid());
        let Some((promise, endpoint)) = offered.and_then(|it| Some((it.promise.as_mut()?, it.endpoint)))
        else {
            return Shown::Unknown;
        };
        promise.slot = Some(slot);
        self.shown.insert(ticket, (key, slot));
        match self.awaited.remove(&ticket) {
            Some(_) => Shown::New(endpoint),
            None => Shown::Again,
        }
    }

    /// What was promised to a connection, which is none of these any more.
    pub(super) fn take(&mut self, endpoint: &Endpoint) -> Option<Promise> {
        let key = endpoint.generation.load(Ordering::Relaxed);
        let is_it = |offered: &&Offered| core::ptr::eq(offered.endpoint, endpoint) && offered.is_valid();
        self.all.get(&key).filter(is_it)?;
        self.remove(key)?.promise
    }

    /// It was refused.
    pub(super) fn give_up(&mut self, serial: u64) {
        if self.all.get(&(serial as u32)).is_some_and(|offered| offered.serial == serial) {
            self.remove(serial as u32);
        }
    }

    /// Takes out those whose ticket was promised before then, and has not been shown.
    pub(super) fn take_late(&mut self, before_ns: u64) -> Vec<Offered> {
        let is_late = |key: &&u32| self.all.get(key).is_some_and(|offered| offered.promised_at < before_ns);
        let late: Vec<u32> = self.awaited.values().filter(is_late).copied().collect();
        late.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Takes out those to which nothing was promised.
    pub(super) fn take_waiting(&mut self) -> Vec<Offered> {
        self.extract(|offered| offered.promise.is_none())
    }

    /// How many tickets side A has still to show.
    pub(super) fn awaited(&self) -> usize {
        self.awaited.len()
    }

    fn extract(&mut self, is_it: impl Fn(&Offered) -> bool) -> Vec<Offered> {
        let keys: Vec<u32> =
            self.all.iter().filter(|(_, offered)| is_it(offered)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    fn remove(&mut self, key: u32) -> Option<Offered> {
        let offered = self.all.remove(&key)?;
        if let Some(promise) = offered.promise {
            self.forget(&promise);
        }
        Some(offered)
    }

    /// Side B waits for its ticket no more. Where both ends are this process', side A's promise has the same name: that it is over says nothing of side B's.
    fn forget(&mut self, promise: &Promise) {
        if promise.side == Side::B {
            self.awaited.remove(&promise.name());
            self.shown.remove(&promise.name());
        }
    }
}
