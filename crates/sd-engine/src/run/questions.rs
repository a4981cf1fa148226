//! Connections whose other end is looked for: what the monitor is asked by other engines, and they by this one.
//!
//! ```text
//!  monitor --Seek--> this engine --question--> the other one --Sought--> its monitor
//!                                                            <--Promote--
//!  monitor <--Found--            <--accepted--
//! ```
//! A connection that has got no slot within a minute is given up.

use super::Engine;
use crate::connection::{Connection, WINDOW};
use crate::peer::{FOREVER_NS, Tenure};
use crate::policy::{self, Load};
use crate::words::Question;
use crate::worth::{May, Service};
use sd_proto::{Ip, Request};
use sd_pump::control::Control;
use sd_shm::slab::Awaits;
use sd_sys::diag::Diag;
use sd_sys::time::now_ns;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

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

impl Engine {
    /// When one has waited for a slot for too long.
    pub(super) fn next_given_up(&mut self) -> Option<u64> {
        let Engine { unseated, desk, .. } = self;
        unseated.next_time(|id| desk.connections.get(id).is_some_and(|it| it.at.is_none()))
    }

    /// A local end whose other end may be another host's.
    pub(super) fn seek(&mut self, offer: (u64, u64), question: Question, load: Load) {
        let Some((peer, tenant)) = self.hosts.engine_of(question.remote.0) else {
            return self.reload.keep(now_ns() + WAITS_NS, offer, question, load);
        };
        if load.is_bulk() && policy::judges(self.hosts.least) {
            // It is offered again in a minute, and may have become something else by then.
            return stays(offer, Awaits::Small, &mut self.control);
        }
        let until_ns = now_ns() + WAITS_NS;
        let mut connection = Connection::new(peer, true, until_ns);
        (connection.offer, connection.tenant, connection.far) = (offer, tenant, question.remote);
        let id = self.desk.connections.add(connection);
        self.unseated.add(until_ns, id);
        self.pending.push((id, question));
    }

    pub(super) fn promised(&mut self, id: u64, channel: u64, ticket: u64) {
        let until_ns = now_ns() + WAITS_NS;
        let Some(connection) = self.desk.connections.get(id) else { return };
        connection.until_ns = until_ns;
        if let (Some(number), false) = (connection.number, connection.is_opener)
            && self.links[connection.peer].accept(number, id, WINDOW).is_err()
        {
            return self.desk.give_up(id, &mut self.links);
        }
        tracing::debug!(connection = id, channel, "engine: a connection is to be carried");
        self.desk.promised(id, channel, ticket);
    }

    pub(super) fn answer_questions(&mut self, now: u64) {
        self.pending.append(&mut self.desk.unanswered);
        if !self.pending.is_empty() {
            while self.ask(now) {}
        }
        for id in std::mem::take(&mut self.desk.opened) {
            if let Some(connection) = self.desk.connections.get(id) {
                let (client, offer) = connection.offer;
                tracing::debug!(client, offer, "engine: the other host has the other end");
                self.control.tell(&Request::Found { client, offer, serial: id });
            }
        }
        for (peer, number, tenant, question) in std::mem::take(&mut self.desk.asked) {
            // Whose connections it is about that engine must be asked for, too, and the same tenant's.
            let stays = self.peers[peer].tenure == Tenure::Stays;
            let is_its = |it: &Question| stays && self.hosts.engine_of(it.local.0) == Some((peer, tenant));
            let question = question.filter(is_its);
            let Some(Question { local, remote, began }) = question else {
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
            let (sent, received) = began.unwrap_or_default();
            self.control.tell(&Request::Sought {
                serial,
                local: local.0,
                local_port: local.1,
                remote: remote.0,
                remote_port: remote.1,
                told: began.is_some(),
                sent,
                received,
            });
        }
        self.give_up_old(now);
    }

    /// When the kernel was to be asked again what connections carry that are offered.
    pub(super) fn next_measured(&self) -> u64 {
        self.desk.worth.next_time().unwrap_or(FOREVER_NS)
    }

    /// Asks what can be asked now. Whether to try again at once: there are services that were not known.
    fn ask(&mut self, now: u64) -> bool {
        let Engine { pending, desk, links, hosts, control, peers, diag, .. } = self;
        if desk.worth.next_time().is_some_and(|due| due <= now) {
            let questions: HashMap<u64, Question> = pending.iter().copied().collect();
            desk.worth.go_on(now, |id| carried(diag.as_ref(), questions.get(&id)?));
        }
        let crowds = desk.crowds(links, pending.iter().map(|(id, _)| *id), now);
        let mut unknown = HashMap::<Service, Vec<u64>>::new();
        pending.retain(|(id, question)| {
            let Some(connection) = desk.connections.get(*id) else { return false };
            if peers[connection.peer].tenure != Tenure::Stays {
                return true;
            }
            let service = (connection.peer, question.remote.0, question.remote.1);
            let may = if hosts.has_trials { desk.worth.may_come(service, now) } else { May::Come };
            let why = match policy::may_come(crowds[connection.peer], hosts.least) {
                _ if may == May::Stay => Awaits::Faster,
                true => Awaits::Nothing,
                false => Awaits::Few,
            };
            if why != Awaits::Nothing && std::mem::replace(&mut connection.stays, why) != why {
                stays(connection.offer, why, control);
            }
            if why != Awaits::Nothing || may == May::Wait {
                return true;
            }
            if may == May::Unknown {
                unknown.entry(service).or_default().push(*id);
                return true;
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

/// What the kernel has carried of a connection, if it is of this network namespace.
fn carried(diag: Option<&Diag>, question: &Question) -> Option<u64> {
    let name = |(ip, port): (Ip, u16)| {
        let ip = ip.to_v4().map_or(IpAddr::V6(ip.0.into()), |v4| IpAddr::V4(v4.into()));
        (ip, port)
    };
    diag?.carried(name(question.local), name(question.remote))
}

/// An offer is not asked about for now; the monitor tells people.
fn stays((client, offer): (u64, u64), why: Awaits, control: &mut Control) {
    control.tell(&Request::Stays { client, offer, why: why as u32 });
}

#[cfg(test)]
mod tests {
    use super::*;

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
