//! What [`crate::policy`] has to know is counted, for all connections, and their ends are told what it says.

use crate::desk::Desk;
use crate::hosts::Hosts;
use crate::policy::{self, Crowd, Pace, Woken};
use crate::worth::{Count, Place, Service, Worth};
use sd_link::Link;
use sd_pump::control::Control;
use sd_shm::promotion::Advice;
use std::collections::{HashMap, HashSet};

impl Desk {
    /// A window is over. Who is better off with the kernel is told so.
    pub(crate) fn judge(
        &mut self,
        window_ns: u64,
        now: u64,
        hosts: &Hosts,
        links: &mut [Link],
        control: &mut Control,
    ) {
        if !hosts.has_trials {
            // Nor what was found before, where another hosts file says so.
            self.worth = Worth::default();
        }
        let least = hosts.least;
        if !policy::judges(least) {
            return;
        }
        let mut paces = vec![Vec::new(); links.len()];
        let (mut advised, mut used) = (Vec::new(), HashSet::new());
        for id in self.connections.ids() {
            let Some(connection) = self.connections.get(id) else { continue };
            let service = connection.service();
            used.extend(service);
            if !connection.is_judged() {
                continue;
            }
            // It came while the others were told.
            let is_left = service.is_some_and(|service| self.worth.is_left(service, now));
            advised.extend(is_left.then_some((id, Advice::Slower)));
            let (pace, advice) = connection.habit.look(connection.load(), window_ns);
            paces[connection.peer].push((id, pace));
            advised.extend(advice.map(|advice| (id, advice)));
        }
        self.worth.forget(now, &used);
        self.crowds.resize(links.len(), Crowd::default());
        for (crowd, paces) in self.crowds.iter_mut().zip(&paces) {
            if crowd.look(paces.iter().map(|(_, pace)| *pace), least) {
                let small = paces.iter().filter(|(_, pace)| *pace != Pace::Bulk);
                advised.extend(small.map(|(id, _)| (*id, Advice::Few)));
            }
        }
        self.advise_all(advised, links, control);
    }

    /// A window of trials is over.
    pub(crate) fn judge_worth(&mut self, now: u64, links: &mut [Link], control: &mut Control) {
        let mut counts = HashMap::<Service, Count>::new();
        let all = self.connections.ids();
        for id in &all {
            let Some(connection) = self.connections.get(*id) else { continue };
            let Some(service) = connection.service() else { continue };
            let count = counts.entry(service).or_default();
            count.here += usize::from(connection.is_judged());
            count.waiting += usize::from(connection.at.is_none());
        }
        let Desk { worth, connections, .. } = self;
        let slower = worth.look(now, &counts, |id| match connections.get(id) {
            None => Place::Over,
            Some(connection) if connection.is_judged() => Place::Here(connection.payload()),
            Some(_) => Place::Elsewhere,
        });
        for (service, hundredths) in slower {
            tracing::debug!(?service, hundredths, "engine: slower than the kernel was");
            let is_its = |id: &u64| self.connections.get(*id).is_some_and(|it| it.service() == Some(service));
            let advised = all.iter().copied().filter(is_its).map(|id| (id, Advice::Slower)).collect();
            self.advise_all(advised, links, control);
        }
    }

    /// A window of wakes is over.
    pub(crate) fn judge_wakes(&mut self, least: usize, links: &mut [Link], control: &mut Control) {
        if !policy::judges(least) {
            return;
        }
        self.count_come();
        let (mut advised, mut few) = (Vec::new(), Vec::new());
        let (mut together, mut there) = (Woken::default(), 0);
        for (seats, part, judged) in self.seats.take_woken() {
            let first = seats.first().and_then(|at| self.seats.get(*at));
            if part.is_few() {
                together += part;
                there += judged;
                few.extend(seats.into_iter().filter(|_| part.is_each()));
            } else if first.is_some_and(|seat| seat.wakes.look(part, judged)) {
                advised.extend(seats);
            }
        }
        if self.wakes.look(together, there) {
            advised.append(&mut few);
        }
        let advised = advised.into_iter().flat_map(|at| self.seats.connections(at));
        let advised: Vec<_> = advised.map(|id| (id, Advice::Woken)).collect();
        self.has_advised |= !advised.is_empty();
        self.advise_all(advised, links, control);
    }

    /// Each process gets the messages that have come for it since this was done last.
    fn count_come(&mut self) {
        for id in self.connections.ids() {
            let Some(connection) = self.connections.get(id).filter(|it| it.is_judged()) else { continue };
            let (come, promise) = (connection.come(), connection.promise);
            let seat = promise.and_then(|(seat, _)| self.seats.get(seat));
            if let Some(seat) = seat {
                seat.woken.messages += come;
                seat.judged += 1;
            }
        }
    }

    /// This engine, or the other one, has sent some back. Where that were nearly all connections of a service, as each message wakes its reader, its
    /// next ones are not tried anew at once.
    pub(crate) fn remember_woken(&mut self, now: u64, hosts: &Hosts) {
        self.has_advised = false;
        if !hosts.has_trials {
            return;
        }
        let mut found = HashMap::<Service, [usize; 2]>::new();
        for id in self.connections.ids() {
            let Some(connection) = self.connections.get(id).filter(|it| it.at.is_some()) else { continue };
            let Some(service) = connection.service() else { continue };
            let [all, woken] = found.entry(service).or_default();
            *all += 1;
            *woken += usize::from(connection.was_advised(Advice::Woken));
        }
        for (service, [all, woken]) in found {
            if policy::are_nearly_all(woken, all) {
                self.worth.leave(service, now);
            }
        }
    }

    fn advise_all(&mut self, advised: Vec<(u64, Advice)>, links: &mut [Link], control: &mut Control) {
        for (id, advice) in advised {
            tracing::debug!(connection = id, ?advice, "engine: better left to the kernel");
            self.advise(id, advice, links, control);
        }
    }

    /// Those that are offered to the engine of each of so many hosts, or carried.
    pub(crate) fn crowds(&mut self, links: &[Link], offered: impl Iterator<Item = u64>) -> Vec<usize> {
        let mut counts: Vec<usize> = links.iter().map(|link| link.connections() as usize).collect();
        for id in offered {
            let connection = self.connections.get(id);
            connection.into_iter().for_each(|connection| counts[connection.peer] += 1);
        }
        counts
    }
}
