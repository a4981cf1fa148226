//! Connections that wait though all who could accept them are busy: who has time first asks for them.
//!
//! ```text
//! client's complaint, nobody idle --> `starving` in the slabs of all who listen there
//! one of them, about to sleep --Idle--> monitor --Offer--> it
//! ```
//! The word is set before the monitor looks who is idle, and a worker says that it is idle before it looks at the word;
//! so one of the two sees the other (SYNC POINT: starving, with `enter` in crates/sd-socket/src/process/waker.rs and `ask_for_work` in
//! crates/sd-socket/src/setup/adopt.rs).

use super::origin::Origin;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use crate::core::listeners::Listener;
use sd_proto::Ip;
use sd_ring::sync::starving;

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

    /// A process waits for connections: it gets those that nobody had time for.
    pub(crate) fn feed(&mut self, client: ClientId) {
        let Some(family) = self.families.get(&client) else { return };
        let own = self.core.listeners.of_client(client).filter(|l| l.accepting);
        let own: Vec<(Listener, bool)> = own.map(|l| (*l, family.is_idle(l.index))).collect();
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
