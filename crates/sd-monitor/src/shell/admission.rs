//! The policy at the listening side. A client that was led to one listener of a process has a channel to that process, and
//! could ask for its other listeners; so where there are rules accept asks about each listener and channel, once for each
//! policy. The slab says whether there are rules.

use super::server::Server;
use crate::core::ClientId;
use crate::core::policy::Action;
use sd_proto::{ErrorCode, Ip, Reply};
use sd_shm::channel::Side;
use std::sync::atomic::Ordering;

impl Server {
    /// Answers an Admits request.
    pub(crate) fn admits(
        &self,
        client: ClientId,
        (channel, index): (u64, u32),
        ip: Ip,
    ) -> Result<Reply, ErrorCode> {
        let key = self.channel_of(client, channel, Side::B).ok_or(ErrorCode::Protocol)?;
        // Only what the policy says is an answer; who is not known may be in a moment, after a restart of the monitor.
        let user = self.connecting_user(key).ok_or(ErrorCode::Protocol)?;
        let listener = self.core.listeners.get(client, index).ok_or(ErrorCode::Protocol)?;
        if self.core.channels.is_foreign(key) {
            return Err(ErrorCode::Denied);
        }
        let policy = &self.core.policy;
        let allows = policy.action(user, ip, listener.port) == Action::Allow
            && policy.allows_listener(user, listener.ip, listener.v6only, listener.port);
        if allows { Ok(Reply::Ok) } else { Err(ErrorCode::Denied) }
    }

    /// Another policy is in force.
    pub(crate) fn policy_changed(&mut self) {
        for (client, family) in &self.families {
            family.slab.header().policy.store(self.policy_for(*client), Ordering::Release);
        }
        self.routes_changed(None);
    }

    /// What slabs say of the policy: zero where it allows everything to everybody. The same rules have the same number, also
    /// after a restart, so that what was found by them holds.
    pub(crate) fn policy_number(&self) -> u32 {
        if self.core.policy.is_alike_for_all() { 0 } else { self.core.policy.number() }
    }
}
