//! Channels between processes of two network namespaces.
//!
//! There are some only for connections that the kernel has made and whose both ends were offered (`offers`). Nothing else may go over them:
//! a client that could ask for a listener there would get past the networks, which do not let it reach that listener, perhaps.
//!
//! ```text
//! B's slab: policy != 0, so accept asks --Admits: channel, listener--> monitor: Denied
//! ```
//! The word is raised before B is told of the channel, and stays. So no accept of B's takes anything from it unasked, and accepts
//! of all others ask nobody.

use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use sd_shm::channel::Side;
use sd_shm::slab::Header;
use std::sync::atomic::Ordering;

impl Server {
    /// Whether two processes are in different network namespaces.
    pub(super) fn are_foreign(&self, one: ClientId, other: ClientId) -> bool {
        let netns =
            |client| self.families.get(&client).map(|family| family.netns).filter(|netns| *netns != 0);
        matches!((netns(one), netns(other)), (Some(one), Some(other)) if one != other)
    }

    /// Before a process is told of a channel from another network namespace.
    pub(super) fn asks_from_now_on(&self, client: ClientId) {
        if let Some(family) = self.families.get(&client) {
            family.slab.header().policy.store(self.core.policy.number(), Ordering::Release);
        }
    }

    /// A client has announced a channel of an earlier monitor's time, which may be such a one. Its slab says so still.
    pub(super) fn note_foreign(&mut self, key: ChannelKey) {
        let [maker, founder] = [Side::A, Side::B].map(|side| self.core.channels.maker(key, side));
        if let (Some(maker), Some(founder)) = (maker, founder)
            && self.are_foreign(maker, founder)
        {
            self.core.channels.becomes_foreign(key);
            self.asks_from_now_on(founder);
        }
    }

    /// The next image of a process has what the one before had.
    pub(super) fn inherit_foreign(&self, before: ClientId, next: ClientId) {
        if self.has_foreign(before) {
            self.asks_from_now_on(next);
        }
    }

    /// To a process that registers; `again`: it may have something that it is to ask about from an earlier monitor's time.
    pub(super) fn say_policy(&self, slab: &Header, again: bool) {
        let number = self.policy_number();
        if number != 0 || !again {
            slab.policy.store(number, Ordering::Release);
        }
    }

    fn has_foreign(&self, client: ClientId) -> bool {
        self.core.channels.of_family(client).into_iter().any(|key| self.core.channels.is_foreign(key))
    }

    /// What a slab says of the policy: zero where accept need not ask.
    pub(super) fn policy_for(&self, client: ClientId) -> u32 {
        if self.has_foreign(client) { self.core.policy.number() } else { self.policy_number() }
    }
}
