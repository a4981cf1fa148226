//! Both ends of a connection that the kernel has made get a channel, over which they move its bytes by themselves.
//!
//! ```text
//! A --Offer + socket--> monitor <--Offer + socket-- B
//! A <--Promote: channel, side A, ticket-- monitor --Promote: channel, side B, ticket--> B
//! ```
//! B is told first, so that it knows the ticket by the time that A shows it.

use super::descriptors::Unfit;
use super::family::Family;
use super::outbox::Then;
use super::segments::Segment;
use super::server::Server;
use crate::Promote;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::offers::{Facts, Numbers, Offer, Outcome};
use crate::core::quotas::Holding;
use sd_proto::{Admission, ErrorCode, Reply, Request};
use sd_shm::slab::Promotes;
use std::os::fd::{AsFd, BorrowedFd};

impl Server {
    /// What processes offer.
    pub(super) fn promotes(&self) -> Promotes {
        match self.promote {
            Promote::Nothing => Promotes::Nothing,
            Promote::Earned => Promotes::Earned,
            Promote::All => Promotes::All,
        }
    }

    /// Whether the first connection of a process begins as the kernel's, to be moved when it lasts. Rules are about connections from
    /// their beginning, so where there are any each is asked about.
    pub(super) fn say_promotes(&self) {
        let does =
            self.promote == Promote::Earned && !self.pumps.is_wanted() && self.core.policy.says_nothing();
        if let Err(error) = self.place.say_promotes(does) {
            tracing::warn!("first connections are not the kernel's: {error}");
        }
    }

    /// Acts on [`sd_proto::Request::Offer`].
    pub(super) fn offered(
        &mut self,
        client: ClientId,
        asked: Request,
        socket: Result<Facts, Unfit>,
    ) -> Result<Option<Reply>, ErrorCode> {
        let Request::Offer { serial, connected, restored, sent, received, messages, bytes, .. } = asked
        else {
            return Err(ErrorCode::Protocol);
        };
        let mut facts = socket.map_err(|_| ErrorCode::Descriptor)?;
        let uid = self.families.get(&client).ok_or(ErrorCode::Protocol)?.uid;
        if self.promote == Promote::Nothing || self.pumps.is_wanted() {
            return Err(ErrorCode::Denied);
        }
        if facts.numbers == Numbers::Later {
            return Err(ErrorCode::InUse);
        }
        let is_full = facts.numbers == Numbers::Full;
        if is_full {
            facts.numbers = Numbers::Untold;
        }
        // The kernel counts its bytes anew: without the numbers nobody knows from where.
        if restored && facts.numbers == Numbers::Untold {
            return Err(if is_full { ErrorCode::InUse } else { ErrorCode::Denied });
        }
        let restored = restored.then_some((sent, received));
        if connected && !self.core.policy.lets_move(uid, [facts.remote; 2], [facts.netns; 2]) {
            return Err(ErrorCode::Denied);
        }
        let load = (messages, bytes);
        let offer = Offer { client, serial, uid, connected, facts, restored, load };
        if is_full && !self.core.offers.is_awaited_by_name(&offer) {
            return Err(ErrorCode::InUse);
        }
        let now_ms = sd_sys::time::now_ns() / 1_000_000;
        let Server { core, namespaces, engine, .. } = self;
        let is_exempt = core.quotas.is_exempt(uid);
        let is_there =
            |other: &Offer| engine.is(other.client) || namespaces.is_connected(&other.facts) != Some(false);
        match core.offers.add(offer, (now_ms, is_exempt), is_there) {
            Outcome::Waits => {
                self.seek(&offer);
                Ok(Some(Reply::Ok))
            }
            Outcome::Pair(both, evidence) => {
                let [a, b] = *both;
                let lets = self.core.policy.lets_move(
                    a.uid,
                    [a.facts.remote, b.facts.local],
                    [a.facts.netns, b.facts.netns],
                );
                let done = lets && self.promote(&a, &b).is_some();
                tracing::debug!(a = a.client.0, b = b.client.0, ?evidence, done, "both ends are offered");
                match (lets, done) {
                    (false, _) => Err(ErrorCode::Denied),
                    (true, false) => Err(ErrorCode::Exhausted),
                    (true, true) => Ok(Some(Reply::Ok)),
                }
            }
            Outcome::Refused => Err(ErrorCode::Exhausted),
        }
    }

    /// Acts on [`sd_proto::Request::Withdraw`].
    pub(super) fn withdrawn(&mut self, client: ClientId, serial: u64) {
        if self.core.offers.take(client, serial).is_some() {
            self.unseek(client, serial);
        }
    }

    pub(super) fn promote(&mut self, a: &Offer, b: &Offer) -> Option<()> {
        // Both are told, or none.
        if ![a, b].iter().all(|to| self.may_be_told(to)) {
            return None;
        }
        let is_there = |key: &ChannelKey| self.core.channels.founder(*key) == Some(b.client);
        let known = self.core.channels.newest(a.client, b.client).filter(is_there);
        let (key, is_fresh) = match known.filter(|key| !self.is_full(*key)) {
            Some(key) => (key, false),
            None => (self.channel_for(a, b)?, true),
        };
        let ticket = u64::from(self.random(a.facts.cookie)) << 32 | u64::from(self.random(b.serial));
        let notice = |to: &Offer, other: &Offer, side| Reply::Promote {
            serial: to.serial,
            channel: key.0,
            side,
            ticket,
            peer_pid: self.families.get(&other.client).map_or(0, |family| family.pid),
            peer: other.client.0,
            stranger: self.is_stranger(to.client, other.client),
            behind: to.behind(other),
            told: to.began().is_some(),
            sent: to.began().map_or(0, |(sent, _)| sent),
            received: to.began().map_or(0, |(_, received)| received),
            netns: if self.engine.is(to.client) { other.facts.netns } else { 0 },
        };
        let (to_b, to_a) = (notice(b, a, 1), notice(a, b, 0));
        let told = self.tell_of_promotion([b, a], (&to_b, to_a), is_fresh.then_some((b.client, key)));
        if told.is_none() && is_fresh {
            // A does not know the channel.
            let _ = self.decline(a.client, key.0);
        }
        told?;
        for (engine, local) in [(a, b), (b, a)] {
            if self.engine.is(engine.client) {
                self.engine.carried.promised(engine.serial, (local.client, local.serial));
            }
        }
        self.counters.promotions += 1;
        self.wander.note(a, b);
        Some(())
    }

    /// A new channel, which B has been given.
    fn channel_for(&mut self, a: &Offer, b: &Offer) -> Option<ChannelKey> {
        let limit = self.families.get(&b.client)?.descriptors_max();
        let has_room = |family: &mut Family| family.has_room_below(limit);
        if !self.has_addresses()
            || !self.may_have_another(a.client, b.client, limit)
            || !self.families.get_mut(&b.client).is_some_and(has_room)
        {
            return None;
        }
        let key = ChannelKey(self.core.channels.next_id());
        self.charge(Holding::Channel(key), a.uid, 1).ok()?;
        let is_foreign = self.are_foreign(a.client, b.client);
        if is_foreign {
            self.asks_from_now_on(b.client);
        }
        // What a connection reached says nothing of other connections, which accept has to ask about.
        let made = self.make_channel(a.client, b.client, Admission::default());
        if made.is_none() {
            self.core.quotas.give_back(Holding::Channel(key));
        }
        let fresh = made?.fresh?;
        if is_foreign {
            self.core.channels.becomes_foreign(fresh);
        }
        Some(fresh)
    }

    fn may_be_told(&self, end: &Offer) -> bool {
        let number = self.families.get(&end.client).and_then(|family| family.connection);
        // Of a channel perhaps, besides.
        number.and_then(|number| self.connections.get(&number)).is_some_and(|its| its.has_room(2))
    }

    /// B is told first: A shows a ticket that B has to know.
    fn tell_of_promotion(
        &mut self,
        [b, a]: [&Offer; 2],
        (to_b, to_a): (&Reply, Reply),
        fresh: Option<(ClientId, ChannelKey)>,
    ) -> Option<()> {
        let mut fds = Vec::new();
        if let Some((b, key)) = fresh {
            let (other, segment): (&Family, &Segment) = (self.families.get(&b)?, self.segments.get(&key)?);
            let given =
                [segment.file().as_fd(), other.public.as_ref()?.as_fd(), other.eventfd.as_ref()?.as_fd()];
            fds = given.iter().map(BorrowedFd::try_clone_to_owned).collect::<Result<_, _>>().ok()?;
        }
        let then = Then { to: self.families.get(&a.client)?.connection?, notice: to_a, fds };
        let first = self.families.get(&b.client)?.connection?;
        let now = self.connections.get_mut(&first)?.tell_then(to_b, then).ok()?;
        self.announce_mail(first);
        now.into_iter().for_each(|then| self.tell_next(then));
        Some(())
    }
}
