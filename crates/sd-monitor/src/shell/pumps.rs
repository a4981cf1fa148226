//! Pumps: processes that stand between others and carry their connections (ADR 72).
//!
//! ```text
//! client --near channel--> pump --far channel--> server
//!          pump is side B          pump is side A
//! ```
//! A pump carries the connection of a slot at the same slot, with the same generation, of the channel's *twin*. So what the monitor
//! knows of a connection on one of the two it knows of both: complaints come from the client about the near one, and are answered
//! for the far one; what is to go over the kernel waits on the far one, and the client is told of the near one.
//!
//! # Who may be one
//! It sees all bytes of the connections that it carries. So only a process of root's or of the monitor's own user, who could trace
//! the monitor, and only if the monitor was told to use one.
//!
//! # When it dies
//! What it carried is reset at both ends, as on Linux when a host in between forgets a connection and says so. Connections that are made
//! afterwards wait a moment for another one.
//!
//! # When the monitor dies
//! The pump carries on, and brings its channels to the next monitor as any client does ([`super::recovery`]), and which of them are
//! twins. It gets no new connections, for which that monitor has a pump of its own, and ends when it carries none.

use super::reaper::{Unread, Woken};
use super::route::{Introduction, Wanted};
use super::segments::Segment;
use super::server::Server;
use crate::Pump;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::listeners::Listener;
use crate::core::quotas::Holding;
use sd_proto::{Admission, ErrorCode, Reply};
use sd_shm::channel::{Mapping, Side};
use sd_shm::link::Link;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;

/// What moves the bytes of the connections of a pump, as `sd ss` shows it, and why.
pub(super) const CARRIER: &str = "loopback";
pub(super) const PUMPED: &str = "the monitor was told to use a pump";

/// See the module.
pub(crate) struct Pumps {
    /// Connections go through one.
    wanted: Option<Pump>,
    /// The one that new connections go through.
    pump: Option<ClientId>,
    /// Those that carry what they had with an earlier monitor.
    before: BTreeSet<ClientId>,
    twins: HashMap<ChannelKey, Twin>,
    newest: HashMap<(ClientId, ClientId), ChannelKey>,
}

/// What a channel to or from a pump is.
#[derive(Clone, Copy)]
struct Twin {
    other: ChannelKey,
    is_near: bool,
    /// `None`: by an earlier monitor.
    made: Option<Made>,
}

/// For whom a channel was made.
#[derive(Clone, Copy)]
struct Made {
    /// The connecting process and the listening one.
    ends: (ClientId, ClientId),
    /// Of the connecting process.
    user: u32,
    netns: u64,
}

impl Pumps {
    pub(crate) fn new(wanted: Option<Pump>) -> Pumps {
        let (twins, newest) = (HashMap::new(), HashMap::new());
        Pumps { wanted, pump: None, before: BTreeSet::new(), twins, newest }
    }

    /// Connections go through one.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// One is to be used, and has not come yet.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_wanted() && self.pump.is_none()
    }

    /// Whether this client is one.
    pub(super) fn is(&self, client: ClientId) -> bool {
        self.pump == Some(client) || self.before.contains(&client)
    }

    /// Who is rung by processes that connect to this one.
    pub(super) fn pump_or(&self, b: ClientId) -> ClientId {
        self.pump.filter(|_| self.is_wanted()).unwrap_or(b)
    }

    /// The newest near channel of a connecting process for a listening one.
    pub(super) fn newest(&self, a: ClientId, b: ClientId) -> Option<ChannelKey> {
        self.newest.get(&(a, b)).copied()
    }

    /// Whether a channel is one between a connecting process and a pump.
    pub(super) fn is_near(&self, key: ChannelKey) -> bool {
        self.twins.get(&key).is_some_and(|twin| twin.is_near)
    }

    /// The far channel, of either; any other channel is its own.
    pub(super) fn far(&self, key: ChannelKey) -> ChannelKey {
        self.twins.get(&key).filter(|twin| twin.is_near).map_or(key, |twin| twin.other)
    }

    /// The near channel, of either; any other channel is its own.
    pub(super) fn near(&self, key: ChannelKey) -> ChannelKey {
        self.twins.get(&key).filter(|twin| !twin.is_near).map_or(key, |twin| twin.other)
    }

    /// The user who connects over a channel of a pump, also when that process has ended.
    pub(super) fn user(&self, key: ChannelKey) -> Option<u32> {
        self.twins.get(&key)?.made.map(|made| made.user)
    }

    /// The network namespace that a channel of a pump is in, whatever the pump's own is.
    pub(super) fn netns(&self, key: ChannelKey) -> Option<u64> {
        self.twins.get(&key)?.made.map(|made| made.netns)
    }

    /// A channel is over.
    pub(super) fn forget(&mut self, key: ChannelKey) {
        if let Some(Twin { made: Some(Made { ends, .. }), is_near: true, .. }) = self.twins.remove(&key)
            && self.newest.get(&ends) == Some(&key)
        {
            self.newest.remove(&ends);
        }
    }

    /// A client has ended.
    pub(super) fn ended(&mut self, client: ClientId) {
        self.before.remove(&client);
        self.pump = self.pump.filter(|pump| *pump != client);
    }
}

impl Server {
    /// A client says that it is a pump; perhaps one of before, that wants no new connections.
    pub(super) fn pump(&mut self, client: ClientId, again: bool) -> Result<Reply, ErrorCode> {
        let user = self.families.get(&client).ok_or(ErrorCode::Protocol)?.uid;
        if !self.pumps.is_wanted() || !self.core.quotas.is_exempt(user) {
            return Err(ErrorCode::Denied);
        }
        if again && !self.pumps.is(client) {
            tracing::info!(client = client.0, "a pump has come back");
            self.pumps.before.insert(client);
            return Ok(Reply::Ok);
        }
        if again || self.pumps.pump.is_some() || self.pumps.is(client) {
            return Err(ErrorCode::InUse);
        }
        tracing::info!(client = client.0, "connections go through a pump");
        self.pumps.pump = Some(client);
        self.routes_changed(None);
        Ok(Reply::Ok)
    }

    /// A pump of before says which two of the channels that it has announced are twins.
    pub(super) fn carries(&mut self, client: ClientId, near: u64, far: u64) -> Result<(), ErrorCode> {
        let channels = &self.core.channels;
        let named = |id, side| {
            let key = channels.named(client, id).filter(|key| !channels.is_of_ours(*key))?;
            let is_new = !self.pumps.twins.contains_key(&key);
            (is_new && channels.side(key, side).contains(&(client, id))).then_some(key)
        };
        let (near, far) = named(near, Side::B).zip(named(far, Side::A)).ok_or(ErrorCode::Protocol)?;
        if near == far || !self.pumps.before.contains(&client) {
            return Err(ErrorCode::Protocol);
        }
        self.pumps.twins.insert(near, Twin { other: far, is_near: true, made: None });
        self.pumps.twins.insert(far, Twin { other: near, is_near: false, made: None });
        self.counters.twins += 1;
        tracing::debug!(near = near.0, far = far.0, "twins of before");
        Ok(())
    }

    /// Whether a client is on a channel to carry connections for others; also one of before that has not come back.
    pub(super) fn is_carrier(&self, key: ChannelKey, client: ClientId) -> bool {
        let is_on = |side| self.core.channels.side(key, side).iter().any(|(holder, _)| *holder == client);
        let stands_behind = |side| is_on(side) && self.pump_behind(key, side).is_some();
        self.pumps.is(client) || [Side::A, Side::B].into_iter().any(stands_behind)
    }

    /// Pumps are used, or an engine.
    fn has_carriers(&self) -> bool {
        self.pumps.is_wanted() || self.engine.is_wanted()
    }

    /// The process of a pump, or the engine, that stands behind a side of a channel which an earlier monitor has made.
    pub(super) fn pump_behind(&self, key: ChannelKey, side: Side) -> Option<u32> {
        let map = self.segments.get(&key).filter(|_| self.has_carriers()).and_then(Segment::map)?;
        let (links, pids) = (&map.header().link, &map.header().pid);
        let is_pump = links[side as usize].load(Ordering::Relaxed) != Link::LOCAL.word();
        is_pump.then(|| pids[side as usize].load(Ordering::Relaxed))
    }

    /// Makes two channels for the connections of a process to a listener's, and gives them to the pump and to the listening
    /// process.
    pub(super) fn introduce_pump(
        &mut self,
        a: ClientId,
        listener: &Listener,
        wanted: &Wanted,
    ) -> Option<Introduction> {
        let (b, pump) = (listener.client, self.pumps.pump?);
        let (uid, netns) = self.families.get(&a).map(|family| (family.uid, family.netns))?;
        let admits = self.admission(listener, wanted);
        let link = if self.pumps.wanted == Some(Pump::Prompt) { Link::PROMPT_PUMP } else { Link::PUMP };
        let (near, near_segment) = self.make_link((a, pump), [Link::LOCAL, link])?;
        let Some((far, far_segment)) = self.make_link((pump, b), [link, Link::LOCAL]) else {
            self.end_channel(near);
            return None;
        };
        for (key, segment) in [(near, near_segment), (far, far_segment)] {
            // For the first of them it was charged already.
            if key == far && self.charge(Holding::Channel(far), uid, 1).is_err() {
                self.end_channel(near);
                self.end_channel(far);
                return None;
            }
            self.by_identity.insert(segment.identity, key);
            self.segments.insert(key, segment);
            self.counters.channels += 1;
        }
        let made = Some(Made { ends: (a, b), user: uid, netns });
        let twin = |other, is_near| Twin { other, is_near, made };
        self.pumps.twins.insert(near, twin(far, true));
        self.pumps.twins.insert(far, twin(near, false));
        self.pumps.newest.insert((a, b), near);
        if self.tell_of_twins((near, far), (a, pump, b), admits).is_none() {
            self.end_channel(near);
            self.end_channel(far);
            return None;
        }
        self.families.get_mut(&b).into_iter().for_each(super::family::Family::was_told);
        self.counters.twins += 1;
        tracing::debug!(near = near.0, far = far.0, a = a.0, b = b.0, "twins");
        Some(Introduction { id: near.0, fresh: Some(near) })
    }

    /// A channel between two clients, behind whose sides these links stand.
    fn make_link(&mut self, (a, b): (ClientId, ClientId), links: [Link; 2]) -> Option<(ChannelKey, Segment)> {
        if !self.has_addresses() {
            return None;
        }
        let (pid_a, family_b) = (self.families.get(&a)?.pid, self.families.get(&b)?);
        let (pid_b, user_b) = (family_b.pid, family_b.uid);
        let segment = Segment::create(self.core.channels.next_id(), pid_a, pid_b)?;
        Mapping::note_links(segment.file().as_raw_fd(), links).ok()?;
        let (_, key) = self.core.channels.create(a, b);
        self.core.channels.is_for(key, user_b);
        if self.is_stranger(a, b) {
            self.core.channels.becomes_strange(key);
        }
        Some((key, segment))
    }

    fn tell_of_twins(
        &mut self,
        (near, far): (ChannelKey, ChannelKey),
        (a, pump, b): (ClientId, ClientId, ClientId),
        admits: Admission,
    ) -> Option<()> {
        let family = |client: ClientId| self.families.get(&client);
        let (of_a, of_pump, of_b) = (family(a)?, family(pump)?, family(b)?);
        let file = |key: ChannelKey| self.segments.get(&key).map(Segment::file);
        let (near_file, far_file) = (file(near)?.as_fd(), file(far)?.as_fd());
        let (page_a, bell_a) = (of_a.public.as_ref()?.as_fd(), of_a.eventfd.as_ref()?.as_fd());
        let (page_b, bell_b) = (of_b.public.as_ref()?.as_fd(), of_b.eventfd.as_ref()?.as_fd());
        let bell_pump = of_pump.eventfd.as_ref()?.as_fd();
        let [near_stranger, far_stranger] = [a, b].map(|end| self.is_stranger(end, pump));
        let notice = Reply::NewChannel { id: far.0, peer_pid: of_a.pid, stranger: far_stranger, admits };
        let to_b = self.connections.get_mut(&of_b.connection?)?;
        to_b.tell(&notice, &[far_file, page_a, bell_pump]).ok()?;
        of_b.announce_mail();
        let twin = Reply::Twin { near: near.0, far: far.0, near_stranger, far_stranger };
        let to_pump = self.connections.get_mut(&of_pump.connection?)?;
        to_pump.tell(&twin, &[near_file, page_a, bell_a, far_file, page_b, bell_b]).ok()?;
        of_pump.announce_mail();
        Some(())
    }

    /// Whether a channel is one to or from a pump. Of one that an earlier monitor has made it says so itself: for `sd ss`.
    pub(super) fn is_pumped(&self, key: ChannelKey) -> bool {
        if self.core.channels.is_of_ours(key) {
            return self.pumps.twins.contains_key(&key);
        }
        let links = self.segments.get(&key).and_then(Segment::map).map(|map| &map.header().link);
        let is_pump = |word: u32| ![Link::LOCAL, Link::ENGINE].contains(&Link::of(word));
        links.is_some_and(|links| links.iter().any(|link| is_pump(link.load(Ordering::Relaxed))))
    }

    /// A pump has carried all that came over the twin of a channel, whose other side is gone.
    pub(super) fn over(&mut self, client: ClientId, id: u64) -> Result<(), ErrorCode> {
        let key = self.core.channels.named(client, id).ok_or(ErrorCode::Protocol)?;
        if !self.pumps.is(client) || !self.pumps.twins.contains_key(&key) {
            return Err(ErrorCode::Protocol);
        }
        let mut woken = Woken::new();
        self.leave_side(key, client, Unread::Looked, &mut woken);
        self.wake_sides(&woken);
        Ok(())
    }
}
