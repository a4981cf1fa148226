//! Where does a connection lead? Introduces the two processes to each other the first time.

use super::descriptors::has_ended;
use super::family::Family;
use super::proof::Proof;
use super::segments::Segment;
use super::server::Server;
use crate::Promote;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::dispatch::{Decision, Question, decide};
use crate::core::listeners::Listener;
use crate::core::ports::Lease;
use crate::core::quotas::Holding;
use sd_proto::{Admission, ErrorCode, Ip, Reply, Route, Socket};
use sd_shm::slab::Reason;
use std::os::fd::{AsFd, OwnedFd};

/// A Connect request.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) ip: Ip,
    pub(crate) port: u16,
    pub(crate) nth: u32,
    pub(crate) want_ports: bool,
    pub(crate) want_channel: bool,
}

/// A channel, and whether the asking process does not have it yet.
pub(super) struct Introduction {
    pub(super) id: u64,
    pub(super) fresh: Option<ChannelKey>,
}

impl Server {
    /// Answers a Connect request.
    pub(crate) fn connect(&mut self, id: u64, client: ClientId, wanted: Wanted) -> Result<(), ErrorCode> {
        let Some(family) = self.families.get(&client) else { return Err(ErrorCode::Protocol) };
        let question = Question {
            uid: family.uid,
            netns: family.netns,
            offset: client.0,
            nth: wanted.nth,
            ip: wanted.ip,
            port: wanted.port,
        };
        let decision = match self.decide(&question) {
            Decision::Shm { .. } if self.promote == Promote::All => Decision::Kernel(Reason::Policy),
            decision => decision,
        };
        let is_soon = self.pumps.is_awaited() && matches!(decision, Decision::Shm { .. });
        let (route, fresh) = match is_soon || self.is_soon(client, &question, &decision) {
            true => (Route::Soon, None),
            false => self.route(client, decision, &wanted),
        };
        match route {
            Route::Shm { .. } => self.counters.routes_shm += 1,
            Route::Kernel { .. } => self.counters.routes_kernel += 1,
            Route::Denied => self.counters.routes_denied += 1,
            Route::Soon => {}
        }
        self.metrics.routed(&route);
        let wants_ports = wanted.want_ports && matches!(route, Route::Shm { .. });
        let lease = if wants_ports { self.lease(client, question.netns) } else { None };
        let (port_first, port_count) = lease.map_or((0, 0), |lease| (lease.first, lease.count));
        let reply = Reply::Route { route, port_first, port_count };
        tracing::debug!(client = client.0, ?reply, "route");
        self.send_route(id, &reply, fresh);
        Ok(())
    }

    /// Whether the answer will probably be another one in a moment.
    fn is_soon(&self, client: ClientId, question: &Question, decision: &Decision) -> bool {
        let Question { netns, ip, port, .. } = *question;
        match decision {
            Decision::Kernel(Reason::NoListener) => {
                self.soon.includes(netns, ip, port) || self.is_expected(client, question)
            }
            Decision::Kernel(Reason::NotAccepting) => self.is_expected(client, question),
            _ => false,
        }
    }

    /// Decides, after the dead have been reaped, and listeners that are gone forgotten: neither may have been heard of yet.
    fn decide(&mut self, question: &Question) -> Decision {
        loop {
            let decision = decide(&self.core.policy, &self.core.listeners, question);
            let Decision::Shm { listener, .. } = decision else { return decision };
            // Whoever has bound an address that is not this host's (IP_FREEBIND, ip_nonlocal_bind) has it for those
            // alone that are routed here.
            let is_elsewhere = || self.namespaces.is_local(question.netns, question.ip) == Some(false);
            if !question.ip.is_loopback() && is_elsewhere() {
                return Decision::Kernel(Reason::Remote);
            }
            let connection = self.families.get(&listener.client).and_then(|family| family.connection);
            let who = connection.and_then(|id| self.connections.get(&id)?.who);
            let ended = |pidfd: &OwnedFd| has_ended(pidfd.as_fd());
            if let Some(dead) = who.filter(|who| self.pidfds.get(&who.process).is_some_and(ended)) {
                self.process_ended(dead.process);
                continue;
            }
            match self.proof_for(&listener, question.uid) {
                Proof::Alive => return decision,
                Proof::Unknown => return Decision::Kernel(Reason::NoListener),
                Proof::Gone => {
                    self.forget_listener(&listener);
                    self.rescue_all(listener.client, false);
                }
            }
        }
    }

    fn lease(&mut self, client: ClientId, netns: u64) -> Option<Lease> {
        let random = self.random(client.0);
        let listeners = &self.core.listeners;
        let user = self.families.get(&client).map(|family| family.uid);
        let user = user.filter(|user| !self.core.quotas.is_exempt(*user));
        self.core.leases.take(netns, (client, user), random, |port| listeners.has_port(netns, port))
    }

    /// The route, and the listening client when a new channel goes with it.
    fn route(
        &mut self,
        client: ClientId,
        decision: Decision,
        wanted: &Wanted,
    ) -> (Route, Option<(ClientId, ChannelKey)>) {
        let (listener, candidates) = match decision {
            Decision::Denied => return (Route::Denied, None),
            Decision::Kernel(reason) => return (Route::Kernel { reason: reason as u32 }, None),
            Decision::Shm { listener, candidates } => (listener, candidates),
        };
        let Listener { client: b, index, generation, user, cookie, ip, .. } = listener;
        let is_there = |key: &ChannelKey| self.core.channels.founder(self.pumps.far(*key)) == Some(b);
        let known = self.newest(client, b).filter(is_there);
        let known = known.filter(|key| !wanted.want_channel || !self.is_full(*key));
        let introduction = match known {
            Some(key) => self.id_for(key, client).map(|id| Introduction { id, fresh: None }),
            None => self.introduce(client, &listener, wanted),
        };
        let Some(Introduction { id: channel, fresh }) = introduction else {
            return (Route::Kernel { reason: Reason::Exhausted as u32 }, None);
        };
        let peer_pid = self.families.get(&b).map_or(0, |family| family.pid);
        let (fresh_channel, peer) = (fresh.is_some(), b.0);
        let stranger = self.is_stranger(client, self.pumps.pump_or(b));
        let route = Route::Shm {
            channel,
            fresh: fresh_channel,
            listener: index,
            generation,
            candidates,
            peer_pid,
            peer,
            stranger,
            socket: Socket { user, cookie, ip },
        };
        (route, fresh.map(|key| (b, key)))
    }

    fn id_for(&self, key: ChannelKey, client: ClientId) -> Option<u64> {
        let side = self.core.channels.side(key, sd_shm::channel::Side::A);
        side.iter().find(|(holder, _)| *holder == client).map(|(_, id)| *id)
    }

    /// Makes a channel, for a connection to a listener, and gives it to the listening process.
    fn introduce(&mut self, a: ClientId, listener: &Listener, wanted: &Wanted) -> Option<Introduction> {
        let b = listener.client;
        let limit = self.families.get(&b)?.descriptors_max();
        let has_room = |family: &mut Family| family.has_room_below(limit);
        if !self.has_addresses()
            || !self.may_have_another(a, b, limit)
            || !self.families.get_mut(&b).is_some_and(has_room)
        {
            return None;
        }
        let key = ChannelKey(self.core.channels.next_id());
        let uid = self.families.get(&a)?.uid;
        self.charge(Holding::Channel(key), uid, 1).ok()?;
        let made = match self.pumps.is_wanted() {
            true => self.introduce_pump(a, listener, wanted),
            false => self.make_channel(a, b, self.admission(listener, wanted)),
        };
        if made.is_none() {
            self.core.quotas.give_back(Holding::Channel(key));
        }
        made
    }

    /// The newest channel over which a process connects to another, itself or through a pump.
    fn newest(&self, a: ClientId, b: ClientId) -> Option<ChannelKey> {
        match self.pumps.is_wanted() {
            true => self.pumps.newest(a, b),
            false => self.core.channels.newest(a, b),
        }
    }

    /// What a channel is made for.
    pub(super) fn admission(&self, listener: &Listener, wanted: &Wanted) -> Admission {
        let Wanted { ip, port, .. } = *wanted;
        let policy = self.policy_number();
        Admission { policy, has_all: listener.ip.is_unspecified(), ip, port }
    }

    pub(super) fn make_channel(
        &mut self,
        a: ClientId,
        b: ClientId,
        admits: Admission,
    ) -> Option<Introduction> {
        let (family_a, family_b) = (self.families.get(&a)?, self.families.get(&b)?);
        let id = self.core.channels.next_id();
        let segment = Segment::create(id, family_a.pid, family_b.pid)?;
        self.engine.note(&segment, [a, b])?;
        let stranger = self.is_stranger(a, b);
        let notice = Reply::NewChannel { id, peer_pid: family_a.pid, stranger, admits };
        let (public, eventfd) = (family_a.public.as_ref()?, family_a.eventfd.as_ref()?);
        let fds = [segment.file().as_fd(), public.as_fd(), eventfd.as_fd()];
        let connection = self.connections.get_mut(&family_b.connection?)?;
        if let Err(error) = connection.tell(&notice, &fds) {
            tracing::info!(pid = family_b.pid, "a listening process cannot be told of a channel: {error}");
            return None;
        }
        family_b.announce_mail();
        let user = family_b.uid;
        let (id, key) = self.core.channels.create(a, b);
        self.core.channels.is_for(key, user);
        if stranger {
            self.core.channels.becomes_strange(key);
        }
        self.by_identity.insert(segment.identity, key);
        self.segments.insert(key, segment);
        self.counters.channels += 1;
        self.families.get_mut(&b).into_iter().for_each(Family::was_told);
        tracing::debug!(channel = id, a = a.0, b = b.0, "channel");
        Some(Introduction { id, fresh: Some(key) })
    }

    fn send_route(&mut self, id: u64, reply: &Reply, fresh: Option<(ClientId, ChannelKey)>) {
        let mut fds = Vec::new();
        if let Some((b, key)) = fresh
            && let (Some(family), Some(segment)) = (self.families.get(&b), self.segments.get(&key))
            && let Some(rung) = self.families.get(&self.pumps.pump_or(b))
            && let (Some(public), Some(eventfd)) = (&family.public, &rung.eventfd)
        {
            fds = vec![segment.file().as_fd(), public.as_fd(), eventfd.as_fd()];
        }
        let sent = self.connections.get_mut(&id).map(|connection| connection.answer(reply, &fds));
        if let Some(Err(error)) = sent {
            self.dismiss(id, &format!("it cannot be told a route: {error}"));
        }
    }
}
