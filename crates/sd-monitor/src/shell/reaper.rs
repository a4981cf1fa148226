//! Closes what the dead held, so that their peers see what Linux would show.
//!
//! ```text
//! process gone --> its bit leaves every endpoint of every slab it shared
//!                    no bit left, connected --> slot closed: end of stream, or reset if data was lost
//!                  family without members --> its side of every channel closed, peers told
//! ```
//! Flags are set before the state, and the state before anybody is woken (SYNC POINT: slot state, with `state` in
//! crates/sd-shm/src/slot.rs).

use super::bind::step_now;
use super::descriptors::{ends_within, has_ended};
use super::rescue::Why;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::members::{Process, ProcessId};
use crate::core::quotas::Holding;
use sd_proto::{ErrorCode, Reply};
use sd_ring::RxCursor;
use sd_ring::road::RoadWord;
use sd_shm::channel::{FLAG_DEAD, FLAG_FIN, FLAG_RESET, Mapping, SLOTS, Side, SlotSide, SlotState};
use sd_shm::slab::{Cold, End, Endpoint, ROAD_RX_LEFT, State};
use sd_shm::time_wait::{SECONDS, TimeWait};
use sd_sys::futex::{Scope, wake};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Generations are kept above the state's byte.
const GENERATION_MASK: u32 = 0x00ff_ffff;

/// More messages than a socket's queue holds.
pub(super) const LAST_WORDS_MAX: usize = 4096;

/// Whether the dead's endpoints were looked through for connections with unread data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    Looked,
    /// Its slab is gone.
    Unknown,
    /// It carried the connections for others, and what was under way is lost.
    Lost,
    /// As `Lost`, to other hosts, and it writes into no ring any more: their ends go on over the kernel (ADR 101).
    Broken,
}

/// Sides of channels that have something to look at.
pub(super) type Woken = BTreeSet<(ChannelKey, u32)>;

impl Server {
    /// A pidfd became ready.
    pub(crate) fn process_ended(&mut self, process: ProcessId) {
        if !self.pidfds.get(&process).is_some_and(|pidfd| has_ended(pidfd.as_fd())) {
            return;
        }
        let of_process = |(_, c): &(&u64, &super::connection::Connection)| c.process() == Some(process);
        let connection = self.connections.iter().find(of_process).map(|(id, _)| *id);
        // Its last words first: it may have announced a child.
        if let Some(id) = connection
            && self.hears_last_words(id)
        {
            if let Some(pidfd) = self.pidfds.get(&process) {
                self.poller.forget(pidfd);
            }
            return;
        }
        for _ in 0..LAST_WORDS_MAX {
            if !connection.is_some_and(|id| self.take_message(id)) {
                break;
            }
        }
        match connection.filter(|id| self.connections.contains_key(id)) {
            Some(id) => self.let_go(id),
            None => self.reap(process),
        }
    }

    /// A control connection has ended: the process image is gone, by exit, kill or exec. The socket
    /// is returned, watched no more.
    pub(crate) fn connection_ended(&mut self, id: u64) -> Option<OwnedFd> {
        let connection = self.connections.remove(&id)?;
        self.core.quotas.give_back(Holding::Connection(id));
        self.poller.forget(connection.fd());
        // What lies in its queue is bounded from now on.
        let _ = nix::sys::socket::shutdown(connection.fd().as_raw_fd(), nix::sys::socket::Shutdown::Read);
        if let Some(process) = connection.process() {
            tracing::debug!(pid = connection.pid, process = process.0, "gone");
            self.reap(process);
        }
        Some(connection.into_socket())
    }

    /// The process at the other end has left its family. It may go on as another user.
    pub(crate) fn separate(&mut self, id: u64) -> Result<Reply, ErrorCode> {
        let process = self
            .connections
            .get(&id)
            .and_then(|connection| connection.process())
            .ok_or(ErrorCode::Protocol)?;
        tracing::debug!(process = process.0, "separates");
        self.reap(process);
        self.connections.get_mut(&id).ok_or(ErrorCode::Protocol)?.begin_anew(process);
        Ok(Reply::Ok)
    }

    pub(crate) fn reap(&mut self, process: ProcessId) {
        self.silent.forget(process);
        self.forget_cut_off(process);
        self.core.quotas.give_back(Holding::Child(process));
        self.helpers.ended(process);
        let pidfd = self.pidfds.remove(&process).inspect(|pidfd| self.poller.forget(pidfd));
        let Some(gone) = self.core.members.gone(process) else { return };
        self.remains_without(process);
        if let Some(parent) = gone.parent() {
            self.unseen.remove(&(parent, process));
        }
        let Process { client, shares, .. } = gone;
        if let Some(client) = client {
            self.expect_heirs_of_all(client);
            let changed = self.core.listeners.remove_client(client) | self.soon.forget(client);
            self.listeners_changed(client, changed);
            if let Some(family) = self.families.get_mut(&client) {
                family.connection = None;
            }
        }
        let mut woken = Woken::new();
        for &(family, member) in &shares {
            self.release_endpoints(family, member, &mut woken);
        }
        match client {
            Some(client) => self.rescue_all(client, true),
            // It may have been the last to hold somebody's listener.
            None => self.rescue_orphans(),
        }
        for &(family, _) in &shares {
            if self.core.members.is_extinct(family) {
                // Its connection ends a moment before it does, but after its memory is gone.
                let has_died = self.engine.is(family)
                    && pidfd.as_ref().is_some_and(|pidfd| ends_within(pidfd.as_fd(), ENDS_WITHIN_MS));
                self.end_family(family, has_died, &mut woken);
            }
        }
        self.wake_sides(&woken);
        self.reap_unseen(process);
    }

    /// Takes a member off the holders of every endpoint of a slab.
    fn release_endpoints(&mut self, family: ClientId, member: u32, woken: &mut Woken) {
        let Some(record) = self.families.get(&family) else { return };
        let bit = 1u64 << (member % u64::BITS);
        let (mut closed, mut left) = (0, Vec::new());
        let (netns, user) = (record.netns, record.uid);
        record.slab.endpoints(|endpoint| {
            if !must_close(endpoint, bit) {
                return;
            }
            if endpoint.state.load(Ordering::Acquire) == State::Connected as u8 {
                let cold = record.slab.cold(endpoint);
                let (receiver, ..) = record.slab.receiver(endpoint);
                let aborts = cold.is_some_and(Cold::aborts);
                // Of a connection that the kernel has made: what its ring holds is sent again, or was read.
                let reads_kernels =
                    cold.is_some_and(|cold| cold.road.load(Ordering::Acquire) & ROAD_RX_LEFT != 0);
                let receiver = (!reads_kernels).then_some(receiver);
                let was_closed = self.close_connection(family, endpoint, (receiver, aborts), woken);
                closed += u64::from(was_closed.is_some());
                let local = || record.slab.address(endpoint, End::Local);
                let seconds = cold.and_then(Cold::orphan_seconds).unwrap_or(SECONDS);
                let was_first = was_closed.filter(|was_first| *was_first && seconds != 0);
                left.extend(was_first.map(|_| TimeWait::of(endpoint, local(), step_now(), seconds)));
            }
            // The bit goes last: without it the slab's owner may use the endpoint again.
            endpoint.state.store(State::Free as u8, Ordering::Release);
            endpoint.holders.fetch_and(!bit, Ordering::AcqRel);
        });
        if member != 0 {
            record.slab.header().members.fetch_and(!bit, Ordering::AcqRel);
        }
        self.counters.connections_reaped += closed;
        left.into_iter().for_each(|one| self.remember(family, netns, user, one));
    }

    /// Closes a connection on behalf of the dead, who has read so far, and may have wanted a reset: whether the other side
    /// was still open, and has lost nothing. `None` when there was nothing to close. Without a `receiver` they read the kernel's connection for good: if they
    /// send there too, that tells the end, which others that have it may put off.
    fn close_connection(
        &self,
        family: ClientId,
        endpoint: &Endpoint,
        (receiver, aborts): (Option<RxCursor>, bool),
        woken: &mut Woken,
    ) -> Option<bool> {
        let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
        let side = Side::from_u32(endpoint.side.load(Ordering::Relaxed).into())?;
        let key = self.channel_of(family, endpoint.channel_id.load(Ordering::Relaxed), side)?;
        let segment = self.segments.get(&key).filter(|_| slot < SLOTS)?;
        let map = segment.map()?;
        let sides = &map.slot(slot).side;
        let own = &sides[side as usize];
        let (generation, state) = own.state();
        let is_theirs = generation == endpoint.generation.load(Ordering::Relaxed) & GENERATION_MASK;
        if !is_theirs || matches!(state, SlotState::Closed | SlotState::Free) {
            return None;
        }
        if receiver.is_none() && own.road().has(RoadWord::LEFT) {
            close_slot(map, slot, side, generation, 0);
            woken.insert((key, side.other() as u32));
            return Some(false);
        }
        let has_unread = receiver.is_some_and(|receiver| segment.has_unread(receiver, slot, side));
        let reset = if aborts || has_unread { FLAG_RESET } else { 0 };
        close_slot(map, slot, side, generation, FLAG_DEAD | reset);
        woken.insert((key, side.other() as u32));
        let other = &sides[side.other() as usize];
        Some(reset == 0 && other.flags.load(Ordering::Relaxed) & (FLAG_FIN | FLAG_RESET | FLAG_DEAD) == 0)
    }

    /// The channel that an endpoint names, if its family or one it descends from is on that side.
    pub(crate) fn channel_of(&self, family: ClientId, id: u64, side: Side) -> Option<ChannelKey> {
        let channels = &self.core.channels;
        self.core.members.lineage(family).find_map(|holder| {
            let key = channels.named(holder, id)?;
            channels.side(key, side).contains(&(holder, id)).then_some(key)
        })
    }

    /// The last process that shared a slab is gone.
    fn end_family(&mut self, family: ClientId, is_dead_engine: bool, woken: &mut Woken) {
        for key in self.core.channels.of_family(family) {
            let unread = match self.is_carrier(key, family) {
                true if is_dead_engine => Unread::Broken,
                true => Unread::Lost,
                false => Unread::Looked,
            };
            self.leave_side(key, family, unread, woken);
        }
        self.pumps.ended(family);
        self.engine_forgets(family);
        self.core.members.forget(family);
        self.core.offers.forget(family);
        self.give_back_family(family);
        if let Some(record) = self.families.remove(&family) {
            self.metrics.ended(family, &record);
            self.inherit_time_waits(family, &record);
            tracing::debug!(pid = record.pid, client = family.0, "family ended");
            record.slab.into_file().into_iter().for_each(|file| self.closers.give_back(file));
        }
        self.core.leases.release(family);
        let Server { directories, namespaces, families, core, waiting, .. } = self;
        let is_needed = |netns| families.values().any(|family| family.netns == netns);
        directories.retain(is_needed);
        namespaces.retain(is_needed);
        waiting.by_kernel.retain(is_needed);
        core.time_waits.retain(is_needed);
    }

    /// A family is on a side of a channel no more.
    pub(super) fn leave_side(
        &mut self,
        key: ChannelKey,
        family: ClientId,
        unread: Unread,
        woken: &mut Woken,
    ) {
        let left = self.core.channels.leave(key, family);
        let is_lost = matches!(unread, Unread::Lost | Unread::Broken);
        let stays = !is_lost && self.stays_without(key, &left, family);
        if left.is_empty() || stays && left == [Side::B] {
            return;
        }
        left.iter().for_each(|side| self.close_side(key, *side, unread, woken));
        self.wake_sides(woken);
        woken.clear();
        match stays {
            true => {
                self.tell_all(key, |id| Reply::PeerGone { id });
                self.rescue(key, Why::Slow);
            }
            false => self.end_channel(key),
        }
    }

    /// A side of a recovered channel will never be announced.
    pub(crate) fn side_died(&mut self, key: ChannelKey, side: Side) {
        if !self.segments.contains_key(&key) || !self.core.channels.side(key, side).is_empty() {
            return;
        }
        let mut woken = Woken::new();
        let unread = if self.pump_behind(key, side).is_some() { Unread::Lost } else { Unread::Unknown };
        self.close_side(key, side, unread, &mut woken);
        self.wake_sides(&woken);
        self.end_channel(key);
    }

    /// Closes every connection that is still open on a side.
    pub(super) fn close_side(&self, key: ChannelKey, side: Side, unread: Unread, woken: &mut Woken) {
        let Some(segment) = self.segments.get(&key) else { return };
        let Some(map) = segment.map() else { return };
        map.header().dead[side as usize].store(1, Ordering::Release);
        segment.slots(|slot| {
            let sides = &map.slot(slot).side;
            let (generation, state) = sides[side as usize].state();
            let (peer_generation, peer_state) = sides[side.other() as usize].state();
            let is_open = !matches!(state, SlotState::Closed | SlotState::Free);
            let is_unanswered = side == Side::B
                && peer_state == SlotState::Syn
                && (state == SlotState::Free || generation != peer_generation);
            // What accept never took from the backlog Linux resets. Where the endpoints were looked
            // at, all that B has left is that.
            // A dead one may have lied about what the other side has open.
            let is_denied = peer_state == SlotState::Open && generation != peer_generation;
            if unread == Unread::Broken && is_open_at_both(sides) {
                break_road(map, slot, side);
                return;
            }
            let is_backlog = side == Side::B && (is_unanswered || unread == Unread::Looked);
            let is_lost = matches!(unread, Unread::Lost | Unread::Broken);
            let flags = if is_backlog || is_lost { FLAG_DEAD | FLAG_RESET } else { FLAG_DEAD };
            if is_unanswered || is_denied {
                close_slot(map, slot, side, peer_generation, flags);
            } else if is_open {
                close_slot(map, slot, side, generation, flags);
            } else {
                // Or about what it had closed, and whoever sleeps there sleeps on.
                sides[side as usize].flags.fetch_or(FLAG_DEAD, Ordering::AcqRel);
                sd_ring::fence_full();
                let other = &sides[side.other() as usize];
                if other.state.load(Ordering::Relaxed) != 0 || other.wait.load(Ordering::Relaxed) != 0 {
                    wake_sleepers(other);
                }
            }
        });
        woken.insert((key, side.other() as u32));
    }

    /// One side of a channel is dead and its slots are closed: tells the other, and lets go.
    pub(crate) fn end_channel(&mut self, key: ChannelKey) {
        self.tell_all(key, |id| Reply::ChannelDead { id });
        self.recovery.forget(key);
        self.waiting.forget(key);
        let left = self.left_of(key);
        self.core.channels.remove(key);
        self.pumps.forget(key);
        let segment = self.segments.remove(&key);
        let file = segment.and_then(|segment| {
            self.by_identity.remove(&segment.identity);
            segment.into_file()
        });
        match (left, file) {
            (Some(left), Some(file)) => self.keep_remains(key, left, file),
            (_, file) => self.end_remains(key, file),
        }
    }

    /// Tells everybody who has a channel, by its id there.
    pub(super) fn tell_all(&mut self, key: ChannelKey, notice: impl Fn(u64) -> Reply) {
        let all = [Side::A, Side::B].map(|side| self.core.channels.side(key, side).to_vec()).concat();
        for (client, id) in all {
            let Some(family) = self.families.get(&client) else { continue };
            if let Some(connection) = family.connection.and_then(|id| self.connections.get_mut(&id)) {
                let _ = connection.notify(&notice(id), &[]);
            }
            family.announce_mail();
        }
    }

    /// Makes the processes on these sides look around.
    pub(super) fn wake_sides(&self, woken: &Woken) {
        let sides = woken.iter().filter_map(|(key, side)| Some((*key, Side::from_u32(*side)?)));
        let families =
            sides.flat_map(|(key, side)| self.core.channels.side(key, side).iter().map(|(f, _)| *f));
        let clients: BTreeSet<ClientId> =
            families.flat_map(|f| self.core.members.clients_of(f).chain([f])).collect();
        clients.iter().filter_map(|client| self.families.get(client)).for_each(|family| family.wake_all());
    }
}

/// Clears a dead member's bit while others hold the endpoint. True, and the bit is left, when it is
/// the last one: then nobody living can touch the endpoint.
fn must_close(endpoint: &Endpoint, bit: u64) -> bool {
    let clear = |holders| Some(holders & !bit).filter(|left| holders & bit != 0 && *left != 0);
    match endpoint.holders.fetch_update(Ordering::AcqRel, Ordering::Acquire, clear) {
        Ok(_) => false,
        Err(holders) => holders & bit != 0,
    }
}

/// Closes a side of a slot, and wakes or notifies the other.
fn close_slot(map: &Mapping, slot: usize, side: Side, generation: u32, flags: u32) {
    let [own, other] = [side, side.other()].map(|side| &map.slot(slot).side[side as usize]);
    own.flags.fetch_or(flags, Ordering::AcqRel);
    own.set_state(generation, SlotState::Closed);
    sd_ring::fence_full();
    let adopter = map.slot(slot).side[Side::B as usize].listener.load(Ordering::Relaxed);
    map.events_for(side.other(), adopter).post(slot);
    wake_sleepers(other);
}

/// Both sides have the same connection there, a promoted one.
fn is_open_at_both([a, b]: &[SlotSide; 2]) -> bool {
    let ((asked, state), (answered, answer)) = (a.state(), b.state());
    let is_promoted = [a, b].iter().all(|side| side.road().has(RoadWord::ATTACHED));
    is_promoted && asked == answered && (state, answer) == (SlotState::Syn, SlotState::Open)
}

/// The engine at a side of a slot is dead: whoever has the other side goes on without it.
fn break_road(map: &Mapping, slot: usize, side: Side) {
    let [own, other] = [side, side.other()].map(|side| &map.slot(slot).side[side as usize]);
    own.say(RoadWord::BROKEN);
    sd_ring::fence_full();
    let adopter = map.slot(slot).side[Side::B as usize].listener.load(Ordering::Relaxed);
    map.events_for(side.other(), adopter).post(slot);
    wake_sleepers(other);
}

/// So long an engine whose connection has ended is waited for.
const ENDS_WITHIN_MS: i32 = 200;

/// All bits, whether it sleeps or wants an event; the wake-up is cheap and this is rare.
fn wake_sleepers(words: &SlotSide) {
    words.wait.fetch_and(0, Ordering::SeqCst);
    wake(&words.wait, i32::MAX, Scope::Shared);
}
