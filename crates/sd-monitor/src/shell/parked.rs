//! Channels whose connecting side is dead, while connections wait there for accept: Linux keeps those for the listener, with
//! what was sent.
//!
//! The dead ask for nothing new, so what waits only becomes less. When the first process at the other side says that it has no use for the
//! channel, all are shown once more what waits. Each says so twice, and hears in between what it is shown: what all have left by then is refused. For the words are the
//! client's: what says in them that it waits may be nothing that anybody could accept.

use super::family::Family;
use super::rescue::{Why, refuse};
use super::segments::Segment;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use sd_proto::{ErrorCode, Reply};
use sd_shm::channel::Side;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// What is needed to hand its connections on.
pub(super) struct Parked {
    pub(super) public: File,
    pub(super) eventfd: OwnedFd,
    pub(super) netns: u64,
    pub(super) pid: u32,
    pub(super) uid: u32,
    leavers: Leavers,
}

/// Who has no use for the channel.
#[derive(Default)]
struct Leavers {
    /// They have said so once.
    asked: BTreeSet<ClientId>,
    /// They have said so again.
    done: BTreeSet<ClientId>,
}

impl Leavers {
    /// One says that it has no use for the channel. Whether all are to be shown what waits.
    fn leaves(&mut self, client: ClientId) -> bool {
        let is_first = self.asked.is_empty();
        if !self.asked.insert(client) {
            self.done.insert(client);
        }
        is_first
    }
}

impl Server {
    /// The last process of a side is gone. Whether the channel stays, as connections wait on it.
    pub(crate) fn stays_without(&mut self, key: ChannelKey, left: &[Side], family: ClientId) -> bool {
        match left {
            [Side::B] => self.waiting.orphans.contains_key(&key),
            [Side::A] if !self.pumps.is_near(key) && self.has_waiting(key) => {
                let Some(record) = self.families.get(&family) else { return false };
                let public = record.public.as_ref().and_then(|file| file.try_clone().ok());
                let eventfd = record.eventfd.as_ref().and_then(|fd| fd.try_clone().ok());
                let (Some(public), Some(eventfd)) = (public, eventfd) else { return false };
                let (netns, pid, uid) = (record.netns, record.pid, record.uid);
                let leavers = Leavers::default();
                self.waiting.parked.insert(key, Parked { public, eventfd, netns, pid, uid, leavers });
                self.look_again(key);
                let stays = self.has_waiting(key);
                if !stays {
                    self.waiting.parked.remove(&key);
                }
                stays
            }
            _ => false,
        }
    }

    /// A client that has ended may have asked for what is nowhere, or have told nobody: what it asked of listeners that
    /// there are is announced once more, the rest is for siblings or refused.
    fn look_again(&mut self, key: ChannelKey) {
        if let Some(map) = self.segments.get(&key).and_then(Segment::map) {
            let events = map.events_for(Side::B, 0);
            self.waiting_on(key).iter().for_each(|request| events.post(request.slot));
        }
        let founder = self.core.channels.founder(key).and_then(|client| self.families.get(&client));
        founder.into_iter().for_each(Family::wake);
        self.rescue(key, Why::Gone);
    }

    /// A client has no use for a channel any more.
    pub(crate) fn leave(&mut self, client: ClientId, id: u64) -> Result<Reply, ErrorCode> {
        let key = self.core.channels.named(client, id).ok_or(ErrorCode::Protocol)?;
        let segment = self.segments.get(&key).ok_or(ErrorCode::Protocol)?;
        let is_parked = self.waiting.parked.contains_key(&key);
        let header = || segment.map().map(|map| map.header());
        let is_dead =
            || header().is_some_and(|it| it.dead.iter().any(|dead| dead.load(Ordering::Acquire) != 0));
        let is_over = is_parked || is_dead();
        if !is_over {
            return Err(ErrorCode::Protocol);
        }
        let parked = self.waiting.parked.get_mut(&key);
        if parked.is_some_and(|parked| parked.leavers.leaves(client)) {
            self.look_again(key);
        }
        if self.has_waiting(key) && !self.is_left_by_all(key) {
            return Err(ErrorCode::Protocol);
        }
        // Of a parked one the asking side is gone, and nothing waits any more: it is over for all. The leaver's children, and others
        // on its side, may still read what they have accepted, so they are asked before it is emptied (`remains`).
        let is_over_for_all = is_parked && self.segments.contains_key(&key);
        if is_over_for_all || !self.core.channels.leave(key, client).is_empty() {
            self.end_channel(key);
        }
        Ok(Reply::Ok)
    }

    /// Nobody at the accepting side of a parked channel takes what waits there, and no other process has the listener open: it is refused.
    fn is_left_by_all(&mut self, key: ChannelKey) -> bool {
        let Some(parked) = self.waiting.parked.get(&key) else { return false };
        let holders = self.core.channels.side(key, Side::B);
        let all_leave = holders.iter().all(|(client, _)| parked.leavers.done.contains(client));
        if !all_leave || self.waiting.orphans.contains_key(&key) && self.is_orphaned(key) {
            return false;
        }
        if let Some(segment) = self.segments.get(&key) {
            self.waiting_on(key).iter().for_each(|request| refuse(segment, request));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_leave_twice() {
        let [first, second] = [ClientId(1), ClientId(2)];
        let mut leavers = Leavers::default();
        assert!(leavers.leaves(first) && !leavers.leaves(first));
        assert_eq!(leavers.done, BTreeSet::from([first]));
        assert!(!leavers.leaves(second), "shown once, to all");
        assert!(!leavers.done.contains(&second), "it may not have looked yet");
        assert!(!leavers.leaves(second));
        assert_eq!(leavers.done, BTreeSet::from([first, second]));
    }
}
