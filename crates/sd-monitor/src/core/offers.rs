//! Connections that the kernel has made and whose processes offer them: which two are the ends of one.
//!
//! What is compared the monitor has read from the sockets themselves; of what a client says only its role is used. [`evidence`] is the
//! only judge, and is pure. In this order:
//!
//! | evidence | when it is there | holds through |
//! |---|---|---|
//! | [`Evidence::Numbers`]: the sequence numbers at which both streams begin, 64 bits | the monitor has CAP_NET_ADMIN over both network namespaces (`sd_sys::origins`) | translated addresses, published ports, bridges |
//! | [`Evidence::Names`]: each end's own name is the other's peer, in one network namespace | the kernel tells namespaces apart | loopback, and the namespace's own addresses |
//!
//! A connection that was restored (TCP_REPAIR) has the numbers that its kernel began with anew; its process says what they were before, as
//! the monitor had told it. So where they begin by now is known of both ends, and with it how far the two counts are apart ([`Offer::behind`]).
//!
//! Of a socket with bytes that wait to be sent nobody asks for numbers, and a sender of bulk has such bytes whenever it is looked at. So it is known by its names
//! if the other end waits already, and both are names of its namespace's loopback ([`Offers::is_awaited_by_name`]).
//!
//! Where the first is there, it alone decides. The role of an end is part of it: the number of the first byte follows from it, so who
//! says the wrong one has numbers that nobody mirrors. Two offers that fit one are as good as none: all are refused.
//!
//! # Not guaranteed
//! Who says that his connection was restored can say any numbers, as can who has CAP_NET_ADMIN in a network namespace of his own (TCP_REPAIR). To be taken for an end of
//! somebody else's connection he has to know both of its numbers, so he has to see its packets, and could have changed them.

use super::ClientId;
use sd_proto::Ip;
use sd_shm::slab::Awaits;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::Wrapping;

/// An address and a port.
pub(crate) type Name = (Ip, u16);

/// What the kernel says of the sequence numbers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// See [`sd_sys::origins::Origins`].
    Known { sent: u32, received: u32 },
    /// The monitor may not ask.
    Untold,
    /// It could not be asked at this moment.
    Later,
    /// Nor could that: bytes wait to be sent.
    Full,
}

/// What the kernel says of a connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Its network namespace; zero: the kernel does not tell.
    pub(crate) netns: u64,
    /// By which the kernel knows it, as long as it exists.
    pub(crate) cookie: u64,
    pub(crate) local: Name,
    pub(crate) remote: Name,
    pub(crate) numbers: Numbers,
}

/// One end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) client: ClientId,
    /// Its name for the offer.
    pub(crate) serial: u64,
    pub(crate) uid: u32,
    /// It connected; otherwise it accepted.
    pub(crate) connected: bool,
    pub(crate) facts: Facts,
    /// Of a connection that was restored: the numbers of the first bytes sent and received, as the monitor has told them before. Those of
    /// `facts` are where the kernel has begun to count anew.
    pub(crate) restored: Option<(u32, u32)>,
    /// Calls that have moved bytes of it, and the bytes: for the engine.
    pub(crate) load: (u32, u64),
}

/// Whether two offers are the ends of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    Numbers,
    Names,
    No,
}

/// What the two ends of a connection have in common, as one of them has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mark {
    /// Numbers of the first byte sent, and received.
    Streams(u32, u32),
    /// Network namespace, own name, name of the peer.
    Names(u64, Name, Name),
}

impl Mark {
    /// As the other end has it.
    fn mirrored(self) -> Mark {
        match self {
            Mark::Streams(sent, received) => Mark::Streams(received, sent),
            Mark::Names(netns, local, remote) => Mark::Names(netns, remote, local),
        }
    }
}

impl Offer {
    /// Where the kernel begins to count: numbers of the byte sent, and of the byte received.
    pub(crate) fn counted(&self) -> Option<(u32, u32)> {
        let Numbers::Known { sent, received } = self.facts.numbers else { return None };
        let first = Wrapping(sent) + Wrapping(u32::from(self.connected));
        Some((first.0, received))
    }

    /// Numbers of the first byte sent, and received, since the connection was made.
    pub(crate) fn began(&self) -> Option<(u32, u32)> {
        self.counted().map(|counted| self.restored.unwrap_or(counted))
    }

    /// Where `other` counts byte 0 of what it sends, as this end counts what it has received.
    pub(crate) fn behind(&self, other: &Offer) -> u32 {
        let both = self.counted().zip(other.counted());
        both.map_or(0, |((_, received), (sent, _))| sent.wrapping_sub(received))
    }

    /// The numbers of the other end, which accepted, if this one is so far [behind](Offer::behind) it.
    pub(crate) fn far_numbers(&self, behind: u32) -> Numbers {
        self.counted().map_or(Numbers::Untold, |(sent, received)| Numbers::Known {
            sent: received.wrapping_add(behind),
            received: sent,
        })
    }

    fn streams(&self) -> Option<Mark> {
        self.began().map(|(sent, received)| Mark::Streams(sent, received))
    }

    fn names(&self) -> Option<Mark> {
        let Facts { netns, local, remote, .. } = self.facts;
        (netns != 0).then_some(Mark::Names(netns, local, remote))
    }

    fn marks(&self) -> impl Iterator<Item = Mark> {
        self.streams().into_iter().chain(self.names())
    }

    /// The kernel's socket.
    fn socket(&self) -> (u64, u64) {
        (self.facts.netns, self.facts.cookie)
    }
}

/// See the module.
pub(crate) fn evidence(a: &Offer, b: &Offer) -> Evidence {
    let mirror = |a: Option<Mark>, b: Option<Mark>| Some(a?.mirrored() == b?);
    if a.connected == b.connected || a.socket() == b.socket() {
        return Evidence::No;
    }
    match (mirror(a.streams(), b.streams()), mirror(a.names(), b.names())) {
        (Some(true), _) => Evidence::Numbers,
        (None, Some(true)) => Evidence::Names,
        _ => Evidence::No,
    }
}

/// For so long an offer waits.
const WAITS_MS: u64 = 60_000;
/// Offers of one user that wait.
const OF_USER_MAX: usize = 4096;
/// Of a user whom the monitor serves without bounds.
const OF_EXEMPT_MAX: usize = 1 << 16;
/// Of all others together.
const OF_ALL_MAX: usize = 1 << 17;

/// What an offer has come to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It waits for the other end.
    Waits,
    /// Both ends: who connected, and who accepted.
    Pair(Box<[Offer; 2]>, Evidence),
    /// There are too many, or more than one fits.
    Refused,
}

struct Waiting {
    until_ms: u64,
    offer: Offer,
    /// Why the engine leaves it to the kernel, for people.
    stays: Option<Awaits>,
}

/// Those that wait for the other end.
#[derive(Default)]
pub(crate) struct Offers {
    /// Oldest first; all wait for the same time.
    waiting: BTreeMap<u64, Waiting>,
    last: u64,
    by_socket: HashMap<(u64, u64), u64>,
    by_name: HashMap<(ClientId, u64), u64>,
    by_mark: HashMap<Mark, BTreeSet<u64>>,
    of_user: HashMap<u32, usize>,
}

impl Offers {
    /// One more. `is_there` says whether the socket of one that waits still has its connection; it is asked of those that fit by their
    /// names.
    pub(crate) fn add(
        &mut self,
        offer: Offer,
        (now_ms, is_exempt): (u64, bool),
        is_there: impl Fn(&Offer) -> bool,
    ) -> Outcome {
        self.expire(now_ms);
        // The library offers again what it has offered before.
        if let Some(before) = self.by_socket.get(&offer.socket()).copied() {
            self.remove(before);
        }
        // Numbers do not come again; names do, when a connection is closed and another one made.
        let lives =
            |(_, other): &(u64, Offer)| evidence(&offer, other) == Evidence::Numbers || is_there(other);
        let (there, gone): (Vec<_>, Vec<_>) = self.fitting(&offer).into_iter().partition(lives);
        gone.into_iter().for_each(|(number, _)| self.remove(number));
        match there.as_slice() {
            [] if self.is_full(offer.uid, is_exempt) => Outcome::Refused,
            [] => {
                self.insert(offer, now_ms + WAITS_MS);
                Outcome::Waits
            }
            &[(number, other)] => {
                self.remove(number);
                let found = evidence(&offer, &other);
                if offer.connected {
                    Outcome::Pair(Box::new([offer, other]), found)
                } else {
                    Outcome::Pair(Box::new([other, offer]), found)
                }
            }
            _ => Outcome::Refused,
        }
    }

    /// Exactly one waits that is the other end of this one by its names, over loopback. By other addresses a transparent proxy has the one's name
    /// and the other's on two sockets of one namespace, which only numbers tell from a connection. Not if that one was restored: where
    /// its kernel counts anew only numbers tell from where.
    pub(crate) fn is_awaited_by_name(&self, offer: &Offer) -> bool {
        let Facts { local, remote, .. } = offer.facts;
        local.0.is_loopback()
            && remote.0.is_loopback()
            && offer.restored.is_none()
            && matches!(self.fitting(offer).as_slice(), [(_, other)] if other.restored.is_none())
    }

    /// One that waits, which waits no longer.
    pub(crate) fn take(&mut self, client: ClientId, serial: u64) -> Option<Offer> {
        let number = *self.by_name.get(&(client, serial))?;
        let offer = self.waiting.get(&number)?.offer;
        self.remove(number);
        Some(offer)
    }

    /// The engine says why one that waits stays the kernel's.
    pub(crate) fn stays(&mut self, client: ClientId, serial: u64, why: Awaits) {
        let number = self.by_name.get(&(client, serial));
        if let Some(waiting) = number.and_then(|number| self.waiting.get_mut(number)) {
            waiting.stays = Some(why);
        }
    }

    /// See [`Offers::stays`].
    pub(crate) fn why_it_stays(&self, client: ClientId, serial: u64) -> Option<Awaits> {
        self.waiting.get(self.by_name.get(&(client, serial))?)?.stays
    }

    /// Those that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Offer> {
        self.waiting.values().map(|waiting| &waiting.offer)
    }

    /// So many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// A client is gone.
    pub(crate) fn forget(&mut self, client: ClientId) {
        let is_its =
            |(number, waiting): (&u64, &Waiting)| (waiting.offer.client == client).then_some(*number);
        let gone: Vec<u64> = self.waiting.iter().filter_map(is_its).collect();
        gone.into_iter().for_each(|number| self.remove(number));
    }

    fn expire(&mut self, now_ms: u64) {
        while let Some((number, _)) =
            self.waiting.first_key_value().filter(|(_, first)| first.until_ms <= now_ms)
        {
            let number = *number;
            self.remove(number);
        }
    }

    /// Those that may be the other end.
    fn fitting(&self, offer: &Offer) -> Vec<(u64, Offer)> {
        let numbers = offer.marks().filter_map(|mark| self.by_mark.get(&mark.mirrored())).flatten();
        let numbers: BTreeSet<u64> = numbers.copied().collect();
        let known = numbers.into_iter().filter_map(|number| Some((number, self.waiting.get(&number)?.offer)));
        known.filter(|(_, other)| evidence(offer, other) != Evidence::No).collect()
    }

    fn is_full(&self, uid: u32, is_exempt: bool) -> bool {
        let of_user = self.of_user.get(&uid).copied().unwrap_or_default();
        match is_exempt {
            true => of_user >= OF_EXEMPT_MAX,
            false => of_user >= OF_USER_MAX || self.waiting.len() >= OF_ALL_MAX,
        }
    }

    fn insert(&mut self, offer: Offer, until_ms: u64) {
        self.last += 1;
        self.by_socket.insert(offer.socket(), self.last);
        self.by_name.insert((offer.client, offer.serial), self.last);
        for mark in offer.marks() {
            self.by_mark.entry(mark).or_default().insert(self.last);
        }
        *self.of_user.entry(offer.uid).or_default() += 1;
        self.waiting.insert(self.last, Waiting { until_ms, offer, stays: None });
    }

    fn remove(&mut self, number: u64) {
        let Some(Waiting { offer, .. }) = self.waiting.remove(&number) else { return };
        self.by_socket.remove(&offer.socket());
        // Its name may be another one's by now.
        let name = (offer.client, offer.serial);
        if self.by_name.get(&name) == Some(&number) {
            self.by_name.remove(&name);
        }
        for mark in offer.marks() {
            if let Some(all) = self.by_mark.get_mut(&mark) {
                all.remove(&number);
                if all.is_empty() {
                    self.by_mark.remove(&mark);
                }
            }
        }
        if let Some(count) = self.of_user.get_mut(&offer.uid) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&offer.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests;
