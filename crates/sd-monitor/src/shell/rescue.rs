//! Connections that wait for accept at a process that does not take them go to its siblings, which
//! listen on the same address (ADR 14).
//!
//! ```text
//! listener closed, process dead, client's complaint --> connections that wait on the channel
//!     --Offer: channel, number--> sibling --> its backlog --> accept, by compare-and-swap on B's word
//!     nobody listens any more  --> refused
//!     nobody at present, but the listener is open --> kept until somebody shows that he accepts
//! ```
//! What waits is read from the slots, never from anybody's list. An offer takes nothing away from
//! those who could accept before, so it may be made too often, and its reader may die with it.

use super::by_kernel::ByKernel;
use super::family::Family;
use super::origin::Origin;
use super::parked::Parked;
use super::proof::Proof;
use super::segments::Segment;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::listeners::Listener;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_ring::doorbell;
use sd_shm::channel::{Side, SlotState};
use sd_shm::slab::{End, State};
use sd_sys::futex::{Scope, wake};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Why somebody else should have the connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Listeners may be gone: what waits at others stays.
    Gone,
    /// Nobody has accepted for a while: siblings that have nothing to do get the chance.
    Slow,
}

/// Channels whose connections wait though one side has no process.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Nobody accepts at present, but somebody has the listener open: in one of these slabs.
    pub(super) orphans: HashMap<ChannelKey, Vec<ClientId>>,
    /// The connecting side is dead: what is needed to hand its connections on.
    pub(super) parked: HashMap<ChannelKey, Parked>,
    /// Nobody who listens there had time when it was complained.
    pub(super) starving: BTreeSet<ChannelKey>,
    /// Network namespaces and ports at which some process accepts that can take no channel.
    pub(super) by_kernel: ByKernel,
    turn: usize,
}

/// A connection that waits, as its client says.
pub(super) struct Request {
    pub(super) slot: usize,
    pub(super) generation: u32,
    pub(super) listener: (u32, u32),
    /// By `sd_sys::time::ticks`.
    pub(super) asked_at: u64,
    pub(super) ip: Ip,
    pub(super) port: u16,
}

/// Listeners that somebody has open, by port, and in which slab.
#[derive(Default)]
struct Open(HashMap<u16, Vec<(Ip, ClientId)>>);

impl Open {
    /// In which slabs one is kept that a connection to this place could be for.
    fn at(&self, ip: Ip, port: u16) -> Vec<ClientId> {
        let all = self.0.get(&port).into_iter().flatten();
        let mut slabs: Vec<ClientId> =
            all.filter(|(local, _)| *local == ip || local.is_unspecified()).map(|(_, slab)| *slab).collect();
        slabs.dedup();
        slabs
    }
}

impl Waiting {
    pub(crate) fn forget(&mut self, key: ChannelKey) {
        self.orphans.remove(&key);
        self.parked.remove(&key);
        self.starving.remove(&key);
    }
}

impl Server {
    /// Listeners of a client are gone. `dead`: and so is its process, which takes no new connections
    /// on its channels. Also looks again after everything that has nobody.
    pub(crate) fn rescue_all(&mut self, client: ClientId, dead: bool) {
        for key in self.core.channels.of_family(client) {
            if dead
                && self.core.channels.founder(key) == Some(client)
                && let Some(map) = self.segments.get(&key).and_then(Segment::map)
            {
                // A client that asks later sees this; one that asked before is found below (SYNC POINT: end of a listener, with
                // `listener_is_gone` in crates/sd-socket/src/setup/connect.rs).
                map.header().dead[Side::B as usize].store(1, Ordering::SeqCst);
                sd_ring::fence_full();
            }
            self.rescue(key, Why::Gone);
        }
        self.rescue_orphans();
    }

    /// Somebody may have come who accepts, or the last one may have gone.
    pub(crate) fn rescue_orphans(&mut self) {
        let orphans: Vec<_> = self.waiting.orphans.keys().copied().collect();
        orphans.into_iter().for_each(|key| self.rescue(key, Why::Gone));
    }

    /// See the module.
    pub(crate) fn rescue(&mut self, key: ChannelKey, why: Why) {
        // What waits there waits on its twin as well, or will in a moment.
        if self.pumps.is_near(key) {
            return;
        }
        let waiting = self.waiting_on(key);
        let Some(netns) = self.netns_of(key) else {
            self.waiting.orphans.remove(&key);
            return;
        };
        let ports: BTreeSet<u16> = waiting.iter().map(|request| request.port).collect();
        ports.into_iter().for_each(|port| _ = self.prove(netns, port));
        let founder = self.core.channels.founder(key);
        let holders = self.core.channels.side(key, Side::B).iter();
        let slabs = holders.flat_map(|(client, _)| self.core.members.lineage(*client));
        let lineage: Vec<_> = slabs.chain(self.waiting.orphans.remove(&key).unwrap_or_default()).collect();
        let is_listening = |request: &Request| {
            let at = self.core.listeners.candidates(netns, request.ip, request.port).into_iter();
            at.into_iter().any(|l| Some(l.client) == founder && (l.index, l.generation) == request.listener)
        };
        let (live, gone): (Vec<_>, Vec<_>) = waiting.iter().partition(|request| is_listening(request));
        let places = |requests: &[&Request]| -> BTreeSet<(Ip, u16)> {
            requests.iter().map(|request| (request.ip, request.port)).collect()
        };
        let (places_gone, places_live) = (places(&gone), places(&live));
        let (mut near, mut far) = (None::<Open>, None::<Open>);
        for (ip, port) in places_gone {
            let stranded: Vec<_> = gone.iter().filter(|r| (r.ip, r.port) == (ip, port)).collect();
            if self.offer_to_siblings(key, netns, (ip, port), stranded.len(), None) > 0 {
                self.starve(key, netns, (ip, port), None);
                continue;
            }
            if self.has_no_acceptor(key, netns, (ip, port), why) {
                stranded.into_iter().for_each(|request| self.withdraw(key, request));
                continue;
            }
            // Each slab is looked through once, however many places there are.
            let known = near.get_or_insert_with(|| self.open_listeners(&lineage));
            let mut open_at = known.at(ip, port);
            if open_at.is_empty() {
                let others = || self.open_listeners(&self.receivers(netns, founder));
                open_at = far.get_or_insert_with(others).at(ip, port);
            }
            if !open_at.is_empty() {
                self.waiting.orphans.insert(key, open_at);
                continue;
            }
            if let Some(segment) = self.segments.get(&key) {
                stranded.into_iter().for_each(|request| refuse(segment, request));
                self.wake_sides(&BTreeSet::from([(key, Side::A as u32)]));
            }
        }
        if why == Why::Slow {
            for place in places_live {
                let stranded: Vec<_> = live.iter().filter(|r| (r.ip, r.port) == place).copied().collect();
                if self.only_others_accept(key, netns, place) {
                    stranded.into_iter().for_each(|request| self.withdraw(key, request));
                    continue;
                }
                let origin = self.origin(key, netns, &stranded);
                if self.is_left_over(key, netns, place, (&origin, stranded.len())) {
                    stranded.into_iter().for_each(|request| self.withdraw(key, request));
                }
            }
        }
        let abandoned = self.core.channels.side(key, Side::B).is_empty() && !self.recovery.awaits(key);
        if abandoned && !self.waiting.orphans.contains_key(&key) {
            self.side_died(key, Side::B);
        }
    }

    /// Whether some process has a listener open for what waits now on a channel that had nobody who accepts.
    pub(super) fn is_orphaned(&self, key: ChannelKey) -> bool {
        let Some(slabs) = self.waiting.orphans.get(&key) else { return false };
        let open = self.open_listeners(slabs);
        self.waiting_on(key).iter().any(|request| !open.at(request.ip, request.port).is_empty())
    }

    pub(super) fn waiting_on(&self, key: ChannelKey) -> Vec<Request> {
        let segment = self.segments.get(&key).filter(|_| !self.core.channels.is_foreign(key));
        let Some(segment) = segment else { return Vec::new() };
        let mut found: Vec<Request> = Vec::new();
        // Side B looks no further either. Who lies about it loses connections of its own.
        let used = segment.used();
        let Some(map) = (used != 0).then(|| segment.map()).flatten() else { return found };
        segment.slots(|slot| {
            let Some(generation) = map.waiting(slot).filter(|_| slot < used) else { return };
            if found.iter().rev().take(2).any(|request| request.slot == slot) {
                return;
            }
            let asking = &map.slot(slot).side[Side::A as usize];
            let index = asking.listener.load(Ordering::Relaxed);
            let asked_at = asking.announced.load(Ordering::Relaxed);
            let names = map.names(slot);
            let listener = (index, names.listener_gen.load(Ordering::Relaxed));
            let port = names.ports.load(Ordering::Relaxed) as u16;
            found.push(Request { slot, generation, listener, asked_at, ip: address(&names.remote), port });
        });
        found
    }

    /// Whether connections on the channel wait for accept.
    pub(crate) fn has_waiting(&self, key: ChannelKey) -> bool {
        !self.waiting_on(key).is_empty()
    }

    /// Of the process that connects over the channel, or did before it ended.
    pub(super) fn connecting_user(&self, key: ChannelKey) -> Option<u32> {
        if let Some(user) = self.pumps.user(key) {
            return Some(user);
        }
        let near = self.pumps.near(key);
        let living = self.core.channels.maker(near, Side::A).and_then(|client| self.families.get(&client));
        living.map(|family| family.uid).or_else(|| Some(self.waiting.parked.get(&key)?.uid))
    }

    pub(super) fn netns_of(&self, key: ChannelKey) -> Option<u64> {
        let (near, far) = (self.pumps.near(key), self.pumps.far(key));
        let ends = [(near, Side::A), (far, Side::B), (key, Side::A), (key, Side::B)];
        let sides = ends.map(|(key, side)| self.core.channels.side(key, side)).concat();
        if let Some(netns) = self.pumps.netns(key) {
            return Some(netns);
        }
        let living = sides.iter().find_map(|(client, _)| self.families.get(client));
        living.map(|family| family.netns).or_else(|| Some(self.waiting.parked.get(&key)?.netns))
    }

    /// Offers the channel to those who listen at a place: the idle ones, one for each connection. `living`: where they wait
    /// at listeners that there are; else they must go, to one that is busy if nobody is idle. How many got it.
    pub(super) fn offer_to_siblings(
        &mut self,
        key: ChannelKey,
        netns: u64,
        (ip, port): (Ip, u16),
        count: usize,
        living: Option<&Origin>,
    ) -> usize {
        let founder = self.core.channels.founder(key);
        let siblings = self.siblings(key, netns, (ip, port)).into_iter();
        // Its founder has looked already, unless the listener they waited at is closed.
        let mut siblings: Vec<Listener> = siblings
            .filter(|l| l.accepting && living.is_none_or(|at| Some(l.client) != founder && at.admits(l)))
            .collect();
        self.waiting.turn = self.waiting.turn.wrapping_add(1);
        let turn = self.waiting.turn.checked_rem(siblings.len()).unwrap_or(0);
        siblings.rotate_left(turn);
        let is_idle = |l: &Listener| self.families.get(&l.client).is_some_and(|f| f.is_idle(l.index));
        let (mut idle, busy): (Vec<_>, Vec<_>) = siblings.into_iter().partition(is_idle);
        idle.truncate(count);
        let mut given = 0;
        for listener in idle {
            given += usize::from(self.offer(key, listener).is_some());
        }
        if given == 0 && living.is_none() {
            return usize::from(busy.into_iter().any(|listener| self.offer(key, listener).is_some()));
        }
        given
    }

    /// So many connections wait at these listeners: siblings that are idle get them, others when they have time. Whether nobody
    /// got any, though processes accept there that can be given none.
    fn is_left_over(
        &mut self,
        key: ChannelKey,
        netns: u64,
        place: (Ip, u16),
        (origin, count): (&Origin, usize),
    ) -> bool {
        if self.offer_to_siblings(key, netns, place, count, Some(origin)) >= count {
            return false;
        }
        // Who becomes idle before it can see this, is seen idle now.
        self.starve(key, netns, place, Some(origin));
        let given = self.offer_to_siblings(key, netns, place, count, Some(origin));
        given == 0 && self.strangers_accept(key, netns, place)
    }

    /// Who may be offered what waits at a place: other connections over the channel can be read and written by whoever
    /// has it, so they are processes of the user that it was made for.
    pub(super) fn siblings(&self, key: ChannelKey, netns: u64, (ip, port): (Ip, u16)) -> Vec<Listener> {
        let user = self.core.channels.user(key);
        let all = self.core.listeners.candidates(netns, ip, port).into_iter();
        all.filter(|l| Some(l.user) == user).copied().collect()
    }

    /// Tells a listening process to look at a channel.
    pub(super) fn offer(&mut self, key: ChannelKey, listener: Listener) -> Option<()> {
        let client = listener.client;
        if self.namespaces.proof(&listener) == Proof::Gone {
            return None;
        }
        let own = self.core.channels.founder(key) == Some(client);
        if !own && !self.families.get_mut(&client)?.has_room() {
            return None;
        }
        let adopter = if own { 0 } else { self.core.channels.adopt(key, client)? };
        let (_, id) = *self.core.channels.side(key, Side::B).iter().find(|(c, _)| *c == client)?;
        let segment = self.segments.get(&key)?;
        let asking = self.core.channels.side(key, Side::A).first().and_then(|(a, _)| self.families.get(a));
        let parked = self.waiting.parked.get(&key);
        let (public, eventfd, peer_pid): (&File, BorrowedFd<'_>, u32) = match (asking, parked) {
            (Some(a), _) => (a.public.as_ref()?, a.eventfd.as_ref()?.as_fd(), a.pid),
            (None, Some(parked)) => (&parked.public, parked.eventfd.as_fd(), parked.pid),
            (None, None) => return None,
        };
        let family = self.families.get(&client)?;
        let notice = Reply::Offer {
            id,
            peer_pid,
            adopter,
            listener: listener.index,
            stranger: self.are_strangers(key),
        };
        let fds = [segment.file().as_fd(), public.as_fd(), eventfd];
        let fds = if own { &fds[..0] } else { &fds[..] };
        let connection = self.connections.get_mut(&family.connection?)?;
        if let Err(error) = connection.tell(&notice, fds) {
            tracing::info!(pid = family.pid, "a sibling cannot be offered connections: {error}");
            return None;
        }
        family.announce_mail();
        self.counters.offers += 1;
        tracing::debug!(channel = id, adopter, client = client.0, "offered");
        Some(())
    }

    /// Those to whom a listener may have been passed by SCM_RIGHTS: of the user that listened, or of root.
    fn receivers(&self, netns: u64, founder: Option<ClientId>) -> Vec<ClientId> {
        let uid = founder.and_then(|client| self.families.get(&client)).map(|family| family.uid);
        let may = |family: &Family| family.netns == netns && (family.uid == 0 || Some(family.uid) == uid);
        self.families.iter().filter(|(_, family)| may(family)).map(|(client, _)| *client).collect()
    }

    /// The listeners in these slabs that some process has open.
    fn open_listeners(&self, slabs: &[ClientId]) -> Open {
        let mut open = Open::default();
        for client in slabs {
            let Some(family) = self.families.get(client) else { continue };
            family.slab.endpoints(|endpoint| {
                let is_open = endpoint.state.load(Ordering::Acquire) == State::Listen as u8
                    && endpoint.holders.load(Ordering::Acquire) != 0;
                if is_open {
                    let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
                    let local = Ip(family.slab.address(endpoint, End::Local));
                    open.0.entry(port).or_default().push((local, *client));
                }
            });
        }
        open
    }

    /// Whoever accepts at a place cannot be given the channel. After a complaint what is for the kernel has gone there before.
    fn has_no_acceptor(&mut self, key: ChannelKey, netns: u64, (ip, port): (Ip, u16), why: Why) -> bool {
        why == Why::Gone && self.is_for_kernel(netns, ip, port)
            || self.only_others_accept(key, netns, (ip, port))
    }

    /// A client complains that nobody accepts its connections.
    pub(crate) fn stuck(&mut self, client: ClientId, id: u64) -> Result<(), ErrorCode> {
        let sides = [Side::A, Side::B].into_iter();
        let key = sides.filter_map(|side| self.channel_of(client, id, side)).next();
        self.look_for_acceptors(key.ok_or(ErrorCode::Protocol)?);
        Ok(())
    }

    /// Somebody is to accept what waits on a channel, or nobody will.
    pub(super) fn look_for_acceptors(&mut self, key: ChannelKey) {
        let key = self.pumps.far(key);
        // It was asked for before the routes said otherwise.
        self.withdraw_unaccepted(key);
        self.rescue(key, Why::Slow);
    }
}

/// An address in shared memory.
fn address(words: &[AtomicU64; 2]) -> Ip {
    let [first, second] = [&words[0], &words[1]].map(|word| word.load(Ordering::Relaxed));
    let mut ip = [0; 16];
    ip[..8].copy_from_slice(&first.to_ne_bytes());
    ip[8..].copy_from_slice(&second.to_ne_bytes());
    Ip(ip)
}

/// Tells A that nobody listens, unless somebody has accepted meanwhile.
pub(super) fn refuse(segment: &Segment, request: &Request) {
    let Some(map) = segment.map() else { return };
    let [a, b] = &map.slot(request.slot).side;
    let old = b.state.load(Ordering::Acquire);
    let refused = request.generation << 8 | SlotState::Refused as u32;
    if old >> 8 == request.generation || !sd_ring::sync::slot_state::answer(&b.state, old, refused) {
        return;
    }
    let all = doorbell::RX_SLEEP | doorbell::RX_EVENT | doorbell::TX_SLEEP | doorbell::TX_EVENT;
    doorbell::ring(&a.wait, all);
    map.events(Side::A).post(request.slot);
    wake(&a.wait, i32::MAX, Scope::Shared);
}
