//! After a restart: clients bring the channels that an earlier monitor made.
//!
//! Both sides announce a channel; what says that it is one channel is its segment. When one side
//! stays silent, its process may have died while there was no monitor, or just have nothing to do.

use super::connection::UNKNOWN;
use super::descriptors::{has_ended, std_fd};
use super::family::Family;
use super::poller::Token;
use super::segments::Segment;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::quotas::Holding;
use sd_proto::ErrorCode;
use sd_shm::channel::Side;
use sd_shm::slab::{Reason, State};
use sd_sys::Errno;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So long a side may stay silent before it is asked whether it lives.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// So long after its Hello a client may bring channels; it sends them at once.
pub(crate) const RECOVERY_MAX: Duration = Duration::from_secs(10);

/// A Channel request.
#[derive(Clone, Copy)]
pub(crate) struct Announced {
    pub(crate) id: u64,
    pub(crate) side: u32,
    pub(crate) peer_pid: u32,
    pub(crate) adopter: u32,
}

/// A side that has not been announced.
struct Missing {
    due: Instant,
    key: ChannelKey,
    side: Side,
    pid: u32,
}

/// What recovery still waits for.
#[derive(Default)]
pub(crate) struct Recovery {
    /// In the order of `due`. Those that are awaited no longer stay until then.
    missing: VecDeque<Missing>,
    /// Channels with a side that may be announced yet, or never; and when that is looked into.
    awaited: HashMap<ChannelKey, Instant>,
    /// Processes that live but have not announced their side, and which side that is.
    witnesses: HashMap<ChannelKey, (OwnedFd, Side)>,
}

impl Recovery {
    /// How long to sleep at most; `None` when there is nothing to wait for.
    pub(crate) fn pause(&self) -> Option<Duration> {
        self.missing.front().map(|first| first.due.saturating_duration_since(Instant::now()))
    }

    /// A side that has nobody now should be announced by this process soon.
    pub(crate) fn expect(&mut self, key: ChannelKey, side: Side, pid: u32) {
        let due = Instant::now() + SILENCE_MAX;
        self.awaited.insert(key, due);
        self.missing.push_back(Missing { due, key, side, pid });
    }

    /// The channel is gone, or complete.
    pub(crate) fn forget(&mut self, key: ChannelKey) {
        self.witnesses.remove(&key);
        self.awaited.remove(&key);
    }

    /// Whether a side that nobody has announced may belong to a process that lives.
    pub(crate) fn awaits(&self, key: ChannelKey) -> bool {
        self.awaited.contains_key(&key)
    }
}

impl Server {
    /// A client announces a channel that it has.
    pub(crate) fn recover_channel(
        &mut self,
        client: ClientId,
        Announced { id, side, peer_pid, adopter }: Announced,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ErrorCode> {
        let side = Side::from_u32(side).ok_or(ErrorCode::Protocol)?;
        if !self.recovers(client) {
            return Err(ErrorCode::Protocol);
        }
        let [fd] = fds.as_slice() else { return Err(ErrorCode::Descriptor) };
        let identity = Segment::check(fd.as_fd()).map_err(|_| ErrorCode::Descriptor)?;
        let known = self.by_identity.get(&identity).copied();
        let key = known.unwrap_or_else(|| self.core.channels.recover());
        if self.core.channels.announce(key, (side, adopter), client, id).is_err() {
            if known.is_none() {
                self.core.channels.remove(key);
            }
            return Err(ErrorCode::Protocol);
        }
        let user = self.families.get(&client).map(|family| family.uid);
        if let Some(user) = user.filter(|_| side == Side::B && adopter == 0) {
            self.core.channels.is_for(key, user);
        }
        if known.is_none() {
            if self.charge(Holding::Channel(key), user.unwrap_or(UNKNOWN), 2).is_err() {
                self.core.channels.remove(key);
                return Err(ErrorCode::Exhausted);
            }
            let Some(segment) = fds.pop().and_then(|fd| Segment::new(fd.into(), identity)) else {
                self.core.channels.remove(key);
                self.core.quotas.give_back(Holding::Channel(key));
                return Err(ErrorCode::Exhausted);
            };
            self.segments.insert(key, segment);
            self.by_identity.insert(identity, key);
        }
        tracing::debug!(client = client.0, channel = id, ?side, peer_pid, "channel recovered");
        self.recovery.forget(key);
        self.note_foreign(key);
        let other = side.other();
        if self.core.channels.side(key, other).is_empty() {
            let pid = self.pump_behind(key, other).unwrap_or(peer_pid);
            self.recovery.expect(key, other, pid);
        }
        Ok(())
    }

    /// Whether a client has just come back to a new monitor: only then it has channels that are not known.
    fn recovers(&self, client: ClientId) -> bool {
        let connection = self.families.get(&client).and_then(|family| family.connection);
        let until = connection.and_then(|id| self.connections.get(&id)?.recovers_until);
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Ports that connections of an earlier monitor's time use are not given to others.
    pub(super) fn reclaim_ports(&mut self, client: ClientId, family: &Family) {
        let user = Some(family.uid).filter(|user| !self.core.quotas.is_exempt(*user));
        family.slab.endpoints(|endpoint| {
            let is_promoted = endpoint.reason.load(Ordering::Relaxed) == Reason::Promoted as u8;
            let is_connecting_side = endpoint.side.load(Ordering::Relaxed) == 0 && !is_promoted;
            if endpoint.state.load(Ordering::Relaxed) == State::Connected as u8 && is_connecting_side {
                let port = (endpoint.ports.load(Ordering::Relaxed) >> 16) as u16;
                self.core.leases.reclaim(family.netns, (client, user), port);
            }
        });
    }

    /// A client was given a connection over a channel; that it has the segment says that it is so.
    pub(crate) fn join(
        &mut self,
        client: ClientId,
        id: u64,
        side: u32,
        fds: &mut [OwnedFd],
    ) -> Result<(), ErrorCode> {
        let side = Side::from_u32(side).ok_or(ErrorCode::Protocol)?;
        let [fd] = fds else { return Err(ErrorCode::Descriptor) };
        let identity = Segment::check(fd.as_fd()).map_err(|_| ErrorCode::Descriptor)?;
        let key = self.by_identity.get(&identity).copied().ok_or(ErrorCode::Protocol)?;
        self.core.channels.join(key, side, client, id).map_err(|_| ErrorCode::Protocol)
    }

    /// Looks after the sides that have been silent for too long.
    pub(crate) fn recover_overdue(&mut self) {
        let now = Instant::now();
        while self.recovery.missing.front().is_some_and(|first| first.due <= now) {
            let Some(Missing { due, key, side, pid }) = self.recovery.missing.pop_front() else { return };
            if self.recovery.awaited.get(&key) == Some(&due) {
                self.look_after(key, side, pid);
            }
        }
    }

    /// Nobody has announced a side that belongs to this process: is it dead, or when will it be?
    pub(crate) fn look_after(&mut self, key: ChannelKey, side: Side, pid: u32) {
        self.recovery.awaited.entry(key).or_insert_with(Instant::now);
        match open_witness(pid) {
            Witness::Dead => self.side_died(key, side),
            Witness::Unknown => {}
            Witness::Alive(pidfd) => {
                if self.poller.watch(&pidfd, Token::Witness(key.0)).is_ok() {
                    self.recovery.witnesses.insert(key, (pidfd, side));
                }
            }
        }
    }

    /// A process that should have announced a side has ended.
    pub(crate) fn witness_ended(&mut self, key: ChannelKey) {
        if let Some((pidfd, side)) = self.recovery.witnesses.remove(&key) {
            self.poller.forget(pidfd);
            self.side_died(key, side);
        }
    }
}

enum Witness {
    Alive(OwnedFd),
    Dead,
    /// Nothing can be found out about it.
    Unknown,
}

fn open_witness(pid: u32) -> Witness {
    let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 0) else { return Witness::Unknown };
    match sd_sys::fd::pidfd_open(pid) {
        Ok(fd) => {
            let pidfd = std_fd(fd);
            if has_ended(pidfd.as_fd()) { Witness::Dead } else { Witness::Alive(pidfd) }
        }
        Err(Errno::ESRCH) => Witness::Dead,
        Err(_) => Witness::Unknown,
    }
}
