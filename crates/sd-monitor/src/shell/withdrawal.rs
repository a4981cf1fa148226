//! Connections that wait where nobody will accept them go over the kernel.
//!
//! A process that accepts from a listener, but can take no channel (limits, another user, privileges that it gave up), says so
//! with the kernel's listener as its proof. From then on routes to that place say kernel, unless somebody else accepts
//! there, and what waits there already is sent back to the side that connects:
//!
//! ```text
//! child of B --CannotTake + kernel listener--> monitor --Withdraw: channel, slot, generation--> A
//! A: compare-and-swap on B's word, as accept does; the kernel's connect; what it has sent so far; a kernel socket from then on
//! ```
//! **Contract** of [`Server::withdraw`]: it may be called for any channel at any time and too often. B's word decides, so what
//! somebody has accepted stays where it is. A that is busy does it when it next looks around; one that shares the
//! connection with other processes, or finds that the kernel refuses, has a connection that was refused.

use super::descriptors::{Owned, Unfit};
use super::family::Family;
use super::rescue::Request;
use super::segments::Segment;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::listeners::Listener;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_ring::doorbell;
use sd_shm::channel::Side;
use sd_sys::futex::{Scope, wake};

impl Server {
    /// Acts on [`sd_proto::Request::CannotTake`], of a registered process or one that could not register.
    pub(crate) fn cannot_take(&mut self, id: u64, listener: Result<Owned, Unfit>) -> Result<(), ErrorCode> {
        let place = listener.map_err(|_| ErrorCode::Descriptor)?;
        let process = self.connections.get(&id).and_then(|connection| connection.process());
        let process = process.ok_or(ErrorCode::Protocol)?;
        // Its own slab, and those of its ancestors.
        for client in self.core.members.families_of(process) {
            if self.families.get(&client).is_none_or(|family| family.netns != place.netns) {
                continue;
            }
            let concerned = |ip, port| (ip, port) == (place.ip, place.port);
            let listeners = self.core.listeners.of_client(client).filter(|l| concerned(l.ip, l.port));
            let indices: Vec<u32> = listeners.map(|listener| listener.index).collect();
            let mut changed = false;
            for index in indices {
                changed |= self.core.listeners.set_accepting(client, index, false);
            }
            self.listeners_changed(client, changed);
            self.waiting.by_kernel.insert((place.netns, place.ip, place.port), place.v6only);
            for key in self.core.channels.of_family(client) {
                if self.core.channels.founder(key) == Some(client) {
                    self.withdraw_unaccepted(key);
                }
            }
        }
        Ok(())
    }

    /// What waits on a channel at places where only processes accept that can take no channel.
    pub(super) fn withdraw_unaccepted(&mut self, key: ChannelKey) {
        let Some(netns) = self.netns_of(key).filter(|_| !self.waiting.by_kernel.is_empty()) else { return };
        let waiting = self.waiting_on(key);
        let stranded = waiting.into_iter().filter(|r| self.is_for_kernel(netns, r.ip, r.port));
        let stranded: Vec<Request> = stranded.collect();
        stranded.iter().for_each(|request| self.withdraw(key, request));
    }

    pub(super) fn is_for_kernel(&self, netns: u64, ip: Ip, port: u16) -> bool {
        self.waiting.by_kernel.includes(netns, ip, port)
            && !self.core.listeners.candidates(netns, ip, port).iter().any(|listener| listener.accepting)
    }

    /// Others than the process that the channel was made for accept at a place, but none of them could be given it: they are of
    /// another user, or have no room for it.
    pub(super) fn only_others_accept(&mut self, key: ChannelKey, netns: u64, (ip, port): (Ip, u16)) -> bool {
        let founder = self.core.channels.founder(key);
        let is_other = |l: &Listener| l.accepting && Some(l.client) != founder;
        let somebody = self.core.listeners.candidates(netns, ip, port).into_iter().any(is_other);
        let siblings = self.siblings(key, netns, (ip, port)).into_iter().filter(is_other);
        let mut has_room = |l: Listener| self.families.get_mut(&l.client).is_some_and(Family::has_room);
        let mut siblings: Vec<Listener> = siblings.collect();
        somebody && !siblings.drain(..).any(&mut has_room)
    }

    /// Processes of another user accept at a place, which cannot be given the channel. They would see what waits in the
    /// kernel, and some only look, to start who accepts it.
    pub(super) fn strangers_accept(&self, key: ChannelKey, netns: u64, (ip, port): (Ip, u16)) -> bool {
        let user = self.core.channels.user(key);
        let mut all = self.core.listeners.candidates(netns, ip, port).into_iter();
        all.any(|listener| listener.accepting && Some(listener.user) != user)
    }

    /// See the contract in the module's head.
    pub(super) fn withdraw(&mut self, key: ChannelKey, request: &Request) {
        let (slot, generation) = (request.slot, request.generation);
        // A pump carries it at the same slot.
        let key = self.pumps.near(key);
        let asking: Vec<(ClientId, u64)> = self.core.channels.side(key, Side::A).to_vec();
        for (client, channel) in asking {
            let Some(family) = self.families.get(&client) else { continue };
            let connection = family.connection.and_then(|id| self.connections.get_mut(&id));
            let Some(connection) = connection else { continue };
            let _ = connection.notify(&Reply::Withdraw { channel, slot: slot as u32, generation }, &[]);
            family.announce_mail();
        }
        let Some(map) = self.segments.get(&key).and_then(Segment::map) else { return };
        let a = &map.slot(slot).side[Side::A as usize];
        doorbell::ring(&a.wait, doorbell::RX_SLEEP | doorbell::TX_SLEEP);
        wake(&a.wait, i32::MAX, Scope::Shared);
        tracing::debug!(channel = key.0, slot, "withdrawn");
    }
}
