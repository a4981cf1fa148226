//! Connections that wait though all who could accept them are busy: who has time first asks for them.
//!
//! ```text
//! client's complaint, nobody idle --> `starving` in the slabs of all who listen there
//! one of them, about to sleep --Idle--> monitor --Offer--> it
//! client that met nobody idle --a word in its channels--> all of them, and the first that has nothing to do asks as well
//! ```
//! The word is set before the monitor looks who is idle, and a worker says that it is idle before it looks at the word;
//! so one of the two sees the other (SYNC POINT: starving, with `enter` in crates/sd-socket/src/process/waker.rs and `ask_for_work` in
//! crates/sd-socket/src/backlog/beside.rs).

use super::origin::Origin;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::listeners::Listener;
use sd_proto::Ip;
use sd_ring::sync::starving;
use sd_shm::channel::Side;
use std::collections::BTreeSet;

impl Server {
    /// Connections to a place wait on the channel; `living`: at these listeners.
    pub(super) fn starve(&mut self, key: ChannelKey, netns: u64, place: (Ip, u16), living: Option<&Origin>) {
        self.waiting.starving.insert(key);
        let siblings = self.siblings(key, netns, place).into_iter();
        self.tell_starving(
            siblings.filter(|l| living.is_none_or(|at| at.admits(l))).map(|listener| listener.client),
        );
    }

    fn tell_starving(&self, clients: impl Iterator<Item = ClientId>) {
        let families = clients.filter_map(|client| self.families.get(&client));
        starving::tell(families.map(|family| &family.slab.header().starving));
    }

    /// Somebody begins to accept.
    pub(crate) fn tell_newcomer(&self, client: ClientId) {
        if !self.waiting.starving.is_empty() {
            self.tell_starving([client].into_iter());
        }
    }

    /// A process waits for connections. `channel`: the process that connects over it says that some of its wait at siblings.
    pub(crate) fn idle(&mut self, client: ClientId, channel: u64) {
        if let Some(key) = self.channel_of(client, channel, Side::B) {
            self.note_left_beside(client, key);
        }
        self.feed(client);
    }

    /// What waits at siblings of a process, over channels of whoever connects over this one, is for who has time first.
    fn note_left_beside(&mut self, client: ClientId, key: ChannelKey) {
        let Some(asking) = self.core.channels.maker(self.pumps.near(key), Side::A) else { return };
        let sockets: BTreeSet<u64> = self.core.listeners.of_client(client).map(|l| l.cookie).collect();
        let shares = |other: &ChannelKey| {
            let founder = self.core.channels.founder(*other).filter(|founder| *founder != client);
            founder.is_some_and(|it| self.core.listeners.of_client(it).any(|l| sockets.contains(&l.cookie)))
        };
        let of_asking = self.core.channels.of_family(asking).into_iter().map(|near| self.pumps.far(near));
        let left: Vec<_> = of_asking.filter(shares).filter(|other| self.has_waiting(*other)).collect();
        self.waiting.starving.extend(left);
    }

    /// A process waits for connections: it gets those that nobody had time for.
    fn feed(&mut self, client: ClientId) {
        let Some(family) = self.families.get(&client) else { return };
        let own = self.core.listeners.of_client(client).filter(|l| l.accepting);
        // It says so itself, and need not sleep.
        let own: Vec<(Listener, bool)> = own.map(|l| (*l, family.pending(l.index) == 0)).collect();
        let mut again = false;
        let keys: Vec<ChannelKey> = self.waiting.starving.iter().copied().collect();
        for key in keys {
            let waiting = self.waiting_on(key);
            let Some(netns) = self.netns_of(key).filter(|_| !waiting.is_empty()) else {
                self.waiting.starving.remove(&key);
                continue;
            };
            let fits = |(l, _): &&(Listener, bool)| {
                let listens_at = |ip, port| self.siblings(key, netns, (ip, port)).contains(l);
                let mut waiting = waiting.iter();
                waiting.any(|r| self.origin(key, netns, &[r]).admits(l) && listens_at(r.ip, r.port))
            };
            if let Some(&(listener, is_idle)) = own.iter().find(fits) {
                // It takes one at a time, or has some already.
                again |= !is_idle || self.offer(key, listener).is_some();
            }
        }
        if again {
            self.tell_starving([client].into_iter());
        }
    }
}
