//! Listeners that the kernel has, and that accelerated processes are expected to register in a moment (ADR 53).
//!
//! | what happened | who is expected | how long |
//! |---|---|---|
//! | this monitor has just started | whoever has a listener in a slab, of this place's earlier monitor or of no monitor yet | [`RETURN`] |
//! | a process forked before it accepted, ended, or began another program | its children, or its next image | [`HOLD`] |
//!
//! A client that asks for such a place when nobody accepts there is told to ask again in a moment (`Route::Soon`); so it does
//! not stay on the kernel's path for the life of its connection. It is told so only while the kernel's listener is there, and
//! never when it is a relative of the process that listened: a program that connects to itself before it accepts must
//! not wait for itself. When the time is over the answer is what it would have been.
//!
//! What a slab says can be a lie. It delays connections to listeners at the addresses it names, once, by [`RETURN`] at most.

use super::segments::Slab;
use super::server::Server;
use crate::core::ClientId;
use crate::core::dispatch::Question;
use crate::core::listeners::Listener;
use sd_proto::Ip;
use sd_shm::slab::{End, State};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Processes that listen look for a monitor four times a second while there is none.
const RETURN: Duration = Duration::from_millis(600);
/// From fork to accept.
const HOLD: Duration = Duration::from_millis(250);

/// Places that are believed of one slab, and of all together.
const OF_SLAB_MAX: usize = 256;
const MAX: usize = 8192;

/// Where a listener is expected.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// `None`: not known, any.
    netns: Option<u64>,
    pub(crate) ip: Ip,
    pub(crate) port: u16,
    pub(crate) v6only: bool,
    /// The kernel's socket, where it is known.
    cookie: Option<u64>,
    /// Who had it.
    of: Option<ClientId>,
    until: Instant,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Expected {
    by_port: BTreeMap<u16, Vec<Place>>,
    count: usize,
}

impl Expected {
    fn add(&mut self, place: Place) -> bool {
        let of_port = self.by_port.entry(place.port).or_default();
        let is_it = |known: &&mut Place| (known.netns, known.ip) == (place.netns, place.ip);
        match of_port.iter_mut().find(is_it) {
            Some(known) => *known = place,
            None if self.count >= MAX => return false,
            None => {
                of_port.push(place);
                self.count += 1;
            }
        }
        true
    }

    /// Somebody accepts there. True when that was expected.
    pub(crate) fn has_come(&mut self, netns: u64, ip: Ip, port: u16) -> bool {
        let Some(of_port) = self.by_port.get_mut(&port) else { return false };
        let before = of_port.len();
        of_port.retain(|place| place.ip != ip || place.netns.is_some_and(|of| of != netns));
        let gone = before - of_port.len();
        self.count -= gone;
        gone != 0
    }

    /// All of a namespace.
    pub(crate) fn of(&self, netns: u64) -> impl Iterator<Item = &Place> {
        self.by_port.values().flatten().filter(move |place| place.is_in(netns))
    }

    /// What a connection would reach.
    fn at(&self, netns: u64, ip: Ip, port: u16) -> impl Iterator<Item = &Place> {
        let of_port = self.by_port.get(&port).into_iter().flatten();
        of_port.filter(move |place| place.is_in(netns) && place.ip.rank_for(ip, place.v6only).is_some())
    }

    /// How long until something is expected no longer; `None` when nothing is expected.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let first = self.by_port.values().flatten().map(|place| place.until).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Forgets what did not come in time; the ports of those.
    fn expire(&mut self) -> Vec<u16> {
        let (now, mut late) = (Instant::now(), Vec::new());
        for (port, of_port) in &mut self.by_port {
            late.extend(of_port.extract_if(.., |place| place.until <= now).map(|_| *port));
        }
        self.by_port.retain(|_, of_port| !of_port.is_empty());
        self.count -= late.len();
        late
    }
}

impl Place {
    fn is_in(&self, netns: u64) -> bool {
        self.netns.is_none_or(|own| own == netns)
    }
}

impl Server {
    /// Before anybody is served: whoever listens, as this slab says, will register.
    pub(crate) fn expect_listeners_of(&mut self, slab: &Slab) {
        let until = Instant::now() + RETURN;
        let mut left = OF_SLAB_MAX;
        slab.endpoints(|endpoint| {
            let listens = endpoint.state.load(Ordering::Acquire) == State::Listen as u8
                && endpoint.holders.load(Ordering::Acquire) != 0;
            if listens && left > 0 {
                left -= 1;
                let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
                let ip = Ip(slab.address(endpoint, End::Local));
                let (netns, cookie, of) = (None, None, None);
                self.soon.expected.add(Place { netns, ip, port, v6only: false, cookie, of, until });
            }
        });
    }

    /// A listener is not accepted from any more by the process that registered it; perhaps by its children. Whether anybody
    /// has to be told.
    pub(crate) fn expect_heirs_of(&mut self, listener: &Listener) -> bool {
        let Listener { client, netns, ip, port, v6only, cookie, .. } = *listener;
        let others = self.core.listeners.candidates(netns, ip, port);
        if others.iter().any(|l| l.accepting && (l.client, l.index) != (client, listener.index)) {
            return false;
        }
        let (netns, cookie, of) = (Some(netns), Some(cookie), Some(client));
        let until = Instant::now() + HOLD;
        self.soon.expected.add(Place { netns, ip, port, v6only, cookie, of, until })
    }

    /// Expects the children of a client that ends to accept from its listeners ([`Self::expect_heirs_of`] for each).
    pub(crate) fn expect_heirs_of_all(&mut self, client: ClientId) {
        let own: Vec<Listener> = self.core.listeners.of_client(client).copied().collect();
        own.iter().for_each(|listener| _ = self.expect_heirs_of(listener));
    }

    /// Whether somebody will probably accept in a moment what this question is about, though nobody does now.
    pub(crate) fn is_expected(&self, client: ClientId, question: &Question) -> bool {
        let Question { netns, ip, port, .. } = *question;
        if self.waiting.by_kernel.includes(netns, ip, port) {
            return false;
        }
        let members = &self.core.members;
        let is_relative = |of: ClientId| {
            members.lineage(client).any(|it| it == of) || members.lineage(of).any(|it| it == client)
        };
        self.soon.expected.at(netns, ip, port).any(|place| {
            !place.of.is_some_and(is_relative)
                && self.namespaces.has_listener((netns, place.ip, port), place.cookie)
        })
    }

    /// Forgets who did not come in time. It is said for each port before anybody is sent to the kernel for it.
    pub(crate) fn end_expectations(&mut self) {
        if !self.soon.expected.pause().is_some_and(|pause| pause.is_zero()) {
            return;
        }
        let late = self.soon.expected.expire();
        late.iter().for_each(|port| tracing::info!(port, "nobody accepts in time"));
        if !late.is_empty() {
            self.routes_changed(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Ip = Ip::v4([0; 4]);
    const LOCAL: Ip = Ip::v4([127, 0, 0, 1]);

    fn place(netns: Option<u64>, ip: Ip, until: Instant) -> Place {
        Place { netns, ip, port: 80, v6only: false, cookie: None, of: None, until }
    }

    #[test]
    fn what_is_expected_comes_or_is_forgotten() {
        let mut all = Expected::default();
        assert_eq!(all.pause(), None);
        let later = Instant::now() + Duration::from_secs(60);
        assert!(all.add(place(None, ANY, later)) && all.add(place(Some(7), LOCAL, later)));
        assert!(all.add(place(Some(7), LOCAL, later)), "once more");
        assert_eq!((all.at(7, LOCAL, 80).count(), all.at(8, LOCAL, 80).count()), (2, 1));
        assert_eq!((all.at(7, LOCAL, 81).count(), all.of(8).count()), (0, 1));
        assert!(all.pause().is_some_and(|pause| pause > Duration::from_secs(1)) && all.expire().is_empty());
        assert!(all.has_come(8, ANY, 80) && !all.has_come(8, LOCAL, 80));
        assert_eq!((all.count, all.at(7, LOCAL, 80).count()), (1, 1));
        assert!(all.add(place(Some(7), LOCAL, Instant::now())));
        assert_eq!(all.pause(), Some(Duration::ZERO));
        assert!(all.expire() == [80] && all.count == 0 && all.pause().is_none());
    }

    #[test]
    fn no_more_than_so_many() {
        let mut all = Expected::default();
        let later = Instant::now() + Duration::from_secs(60);
        let at = |n: usize| Ip::v4([10, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
        assert!((0..MAX).all(|n| all.add(place(None, at(n), later))));
        assert!(!all.add(place(None, at(MAX), later)) && all.count == MAX);
    }
}
