//! Connections whose other end is looked for: what the monitor is asked by other engines, and they by this one.
//!
//! ```text
//!  monitor --Seek--> this engine --question--> the other one --Sought--> its monitor
//!                                                            <--Promote--
//!  monitor <--Found--            <--accepted--
//! ```
//! A connection that has got no slot within a minute is given up. The other host is the one that the kernel reaches, whatever name the program has
//! connected to ([`crate::translations`]).

use super::Engine;
use crate::connection::{Connection, WINDOW};
use crate::desk::Desk;
use crate::peer::{FOREVER_NS, Tenure};
use crate::policy::{self, Load};
use crate::words::{self, Here, Question, Streams};
use crate::worth::{May, Service};
use sd_proto::{Ip, Request};
use sd_pump::control::Control;
use sd_shm::slab::Awaits;
use sd_sys::diag::Diag;
use sd_sys::time::now_ns;
use std::collections::{HashMap, VecDeque};

/// A connection without a slot is given up after so long.
const WAITS_NS: u64 = 61_000_000_000;

/// Connections that may be given up, and when, in that order. Who has got a slot stays here until he would be due.
#[derive(Default)]
pub(super) struct Unseated(VecDeque<(u64, u64)>);

impl Unseated {
    fn add(&mut self, due: u64, id: u64) {
        self.0.push_back((due, id));
    }

    fn take_due(&mut self, now: u64) -> Option<u64> {
        let (_, id) = self.0.front().copied().filter(|(due, _)| *due <= now)?;
        self.0.pop_front();
        Some(id)
    }

    /// When the first one is due that waits still; those before it are forgotten, so that nobody wakes up for them.
    fn next_time(&mut self, mut waits: impl FnMut(u64) -> bool) -> Option<u64> {
        loop {
            let (due, id) = self.0.front().copied()?;
            if waits(id) {
                return Some(due);
            }
            self.0.pop_front();
        }
    }
}

/// Those that wait are looked at so often while there is other work: of thousands each look would take long.
const ASKED_NS: u64 = 1_000_000;

/// Connections that are offered and were not asked about yet, and what is to be asked of them.
#[derive(Default)]
pub(super) struct Offered {
    all: Vec<(u64, Question)>,
    /// Some came since they were looked at last.
    has_new: bool,
    looked_at: u64,
    /// Something has happened since then: a link may be there by now.
    is_owed: bool,
}

impl Offered {
    fn add(&mut self, id: u64, question: Question) {
        self.all.push((id, question));
        self.has_new = true;
    }

    /// Whether they are to be looked at now.
    fn is_due(&mut self, now: u64, has_happened: bool) -> bool {
        self.is_owed |= has_happened;
        let is_due = self.has_new || self.is_owed && now - self.looked_at >= ASKED_NS;
        if is_due {
            (self.has_new, self.is_owed, self.looked_at) = (false, false, now);
        }
        is_due && !self.all.is_empty()
    }

    fn next_time(&self) -> Option<u64> {
        (self.is_owed && !self.all.is_empty()).then_some(self.looked_at + ASKED_NS)
    }
}

impl Engine {
    /// When one has waited for a slot for too long.
    pub(super) fn next_given_up(&mut self) -> Option<u64> {
        let Engine { unseated, desk, .. } = self;
        unseated.next_time(|id| desk.connections.get(id).is_some_and(|it| it.at.is_none()))
    }

    /// A local end whose other end may be another host's.
    pub(super) fn seek(&mut self, offer: (u64, u64), question: Question, load: Load) {
        // One that cannot be looked for now is offered again in a minute.
        let Some(owner) = self.namespaces.owner(question.here.netns, &self.hosts, now_ns()) else { return };
        let sought = match owner {
            0 => self.translations.of(question),
            owner => Question { here: Here { owner, ..question.here }, ..question },
        };
        let Some((peer, tenant)) = self.hosts.engine_of(owner, sought.remote.0) else {
            return self.reload.keep(now_ns() + WAITS_NS, offer, question, load);
        };
        let question = sought;
        if load.is_bulk() && policy::judges(self.hosts.least) {
            // It is offered again in a minute, and may have become something else by then.
            return stays(offer, Awaits::Small, &mut self.control);
        }
        let until_ns = now_ns() + WAITS_NS;
        let mut connection = Connection::new(peer, true, until_ns);
        (connection.offer, connection.tenant, connection.far) = (offer, tenant, question.remote);
        let id = self.desk.connections.add(connection);
        self.unseated.add(until_ns, id);
        self.offered.add(id, question);
    }

    /// The local end is in this network namespace.
    pub(super) fn promised(&mut self, id: u64, (channel, ticket): (u64, u64), netns: u64, behind: u32) {
        let now = now_ns();
        let until_ns = now + WAITS_NS;
        let Some(connection) = self.desk.connections.get(id) else { return };
        if self.namespaces.owner(netns, &self.hosts, now) != Some(self.hosts.owner(connection.tenant)) {
            tracing::warn!(
                connection = id,
                netns,
                "engine: a connection is in a network namespace that is not its tenant's"
            );
            return self.desk.give_up(id, &mut self.links);
        }
        connection.until_ns = until_ns;
        if let (Some(number), false) = (connection.number, connection.is_opener)
            && self.links[connection.peer].accept(number, id, WINDOW, &words::answer(behind)).is_err()
        {
            return self.desk.give_up(id, &mut self.links);
        }
        tracing::debug!(connection = id, channel, "engine: a connection is to be carried");
        self.desk.promised(id, channel, ticket);
    }

    /// `has_happened`: this look has found something.
    pub(super) fn answer_questions(&mut self, now: u64, has_happened: bool) {
        for (id, question) in std::mem::take(&mut self.desk.unanswered) {
            self.offered.add(id, question);
        }
        let is_measured = self.desk.worth.next_time().is_some_and(|due| due <= now);
        if self.offered.is_due(now, has_happened) || is_measured {
            while self.ask(now) {}
        }
        for (id, behind) in std::mem::take(&mut self.desk.opened) {
            if let Some(connection) = self.desk.connections.get(id) {
                let (client, offer) = connection.offer;
                tracing::debug!(client, offer, "engine: the other host has the other end");
                let (engine, port, tenant) = self.hosts.named(connection.peer, connection.tenant);
                let serial = id;
                self.control.tell(&Request::Found { client, offer, serial, behind, engine, port, tenant });
            }
        }
        for (peer, number, tenant, question) in std::mem::take(&mut self.desk.asked) {
            // Whose connections it is about that engine must be asked for, too, and the same tenant's.
            let stays = self.peers[peer].tenure == Tenure::Stays;
            let is_its = |it: &Question| {
                stays && self.hosts.engine_of(self.hosts.owner(tenant), it.local.0) == Some((peer, tenant))
            };
            let question = question.filter(is_its);
            let Some(Question { local, remote, streams, .. }) = question else {
                tracing::debug!(
                    peer,
                    "engine: a question is refused: not of that host's networks, or another tenant's"
                );
                let _ = self.links[peer].refuse(number, 1);
                continue;
            };
            let until_ns = now + WAITS_NS;
            let mut asked = Connection::new(peer, false, until_ns);
            (asked.number, asked.tenant, asked.far) = (Some(number), tenant, local);
            let serial = self.desk.connections.add(asked);
            self.unseated.add(until_ns, serial);
            let Streams { began, counted } = streams.unwrap_or_default();
            let (engine, port, tenant) = self.hosts.named(peer, tenant);
            self.control.tell(&Request::Sought {
                serial,
                local: local.0,
                local_port: local.1,
                remote: remote.0,
                remote_port: remote.1,
                told: streams.is_some(),
                sent: began.0,
                received: began.1,
                sent_from: counted.0,
                received_from: counted.1,
                engine,
                port,
                tenant,
            });
        }
        self.give_up_old(now);
    }

    /// When those that are offered are to be looked at, though nothing happens.
    pub(super) fn next_asked(&self) -> u64 {
        let due = [self.offered.next_time(), self.desk.worth.next_time()];
        due.into_iter().flatten().min().unwrap_or(FOREVER_NS)
    }

    /// Asks what can be asked now. Whether to try again at once: there are services that were not known.
    fn ask(&mut self, now: u64) -> bool {
        let Engine { offered, desk, links, hosts, control, peers, diag, .. } = self;
        let pending = &mut offered.all;
        if desk.worth.next_time().is_some_and(|due| due <= now) {
            let questions: HashMap<u64, Question> = pending.iter().copied().collect();
            desk.worth.go_on(now, |id| carried(diag.as_ref(), questions.get(&id)?));
        }
        if hosts.has_trials {
            pending.retain(|(id, _)| !desk.leaves(*id, now, control));
        }
        let crowds = desk.crowds(links, pending.iter().map(|(id, _)| *id));
        let mut unknown = HashMap::<Service, Vec<u64>>::new();
        pending.retain(|(id, question)| {
            let Some(connection) = desk.connections.get(*id) else { return false };
            if peers[connection.peer].tenure != Tenure::Stays {
                return true;
            }
            let Some(service) = connection.service() else { return false };
            let may = if hosts.has_trials { desk.worth.may_come(service, now) } else { May::Come };
            match (policy::may_come(crowds[connection.peer], hosts.least), may) {
                (true, May::Come) => {}
                (true, May::Unknown) => {
                    unknown.entry(service).or_default().push(*id);
                    return true;
                }
                (true, May::Wait | May::Stay) => return true,
                (false, _) => {
                    if !std::mem::replace(&mut connection.is_told_of, true) {
                        stays(connection.offer, Awaits::Few, control);
                    }
                    return true;
                }
            }
            match links[connection.peer].open(connection.tenant, *id, WINDOW, &question.encode()) {
                Ok(number) => (connection.number, connection.question) = (Some(number), Some(*question)),
                Err(sd_link::Error::NotNow) => return true,
                Err(_) => desk.forget(*id),
            }
            false
        });
        if unknown.is_empty() {
            return false;
        }
        let questions: HashMap<u64, Question> = pending.iter().copied().collect();
        for (service, ids) in unknown {
            desk.worth.begin(service, now, ids.into_iter(), |id| carried(diag.as_ref(), questions.get(&id)?));
        }
        true
    }

    fn give_up_old(&mut self, now: u64) {
        while let Some(id) = self.unseated.take_due(now) {
            let Some(connection) = self.desk.connections.get(id).filter(|it| it.at.is_none()) else {
                continue;
            };
            match connection.until_ns {
                until if until > now => self.unseated.add(until, id),
                _ => self.desk.give_up(id, &mut self.links),
            }
        }
    }
}

impl Desk {
    /// The connection stays the kernel's, as it would be slower here: it is offered again when that may have changed.
    fn leaves(&mut self, id: u64, now: u64, control: &mut Control) -> bool {
        let Some(connection) = self.connections.get(id) else { return true };
        let is_left = connection.service().is_some_and(|service| self.worth.is_left(service, now));
        if is_left {
            stays(connection.offer, Awaits::Faster, control);
            self.forget(id);
        }
        is_left
    }
}

/// What the kernel has carried of a connection, if it is of this network namespace.
fn carried(diag: Option<&Diag>, question: &Question) -> Option<u64> {
    let name = |(ip, port): (Ip, u16)| (ip.to_addr(), port);
    // Names in a tenant's own namespace may be another connection's here.
    (question.here.owner == 0).then_some(())?;
    let [local, remote] = question.here.names.unwrap_or([question.local, question.remote]);
    diag?.carried(name(local), name(remote))
}

/// An offer is not asked about for now; the monitor tells people.
fn stays((client, offer): (u64, u64), why: Awaits, control: &mut Control) {
    control.tell(&Request::Stays { client, offer, why: why as u32 });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_offered_is_looked_at_when_something_happens_and_seldom() {
        let question = Question {
            local: (Ip([0; 16]), 1),
            remote: (Ip([0; 16]), 2),
            here: Here::default(),
            streams: None,
        };
        let (mut offered, now) = (Offered::default(), 10 * ASKED_NS);
        assert!(!offered.is_due(now, true), "there are none");
        offered.add(1, question);
        assert!(offered.is_due(now, false), "at once");
        assert_eq!((offered.is_due(now + 9 * ASKED_NS, false), offered.next_time()), (false, None));
        assert!(!offered.is_due(now + ASKED_NS / 2, true));
        assert_eq!(offered.next_time(), Some(now + ASKED_NS));
        assert!(offered.is_due(now + ASKED_NS, false));
        assert_eq!(offered.next_time(), None, "nobody wakes up in vain");
    }

    #[test]
    fn nobody_wakes_up_for_who_has_a_slot() {
        let mut unseated = Unseated::default();
        (1..=4).for_each(|id| unseated.add(10 * id, id));
        assert_eq!(unseated.next_time(|id| id == 3), Some(30));
        assert_eq!(
            (unseated.take_due(29), unseated.take_due(30), unseated.take_due(39)),
            (None, Some(3), None)
        );
        assert_eq!((unseated.next_time(|_| false), unseated.take_due(99)), (None, None));
    }
}
