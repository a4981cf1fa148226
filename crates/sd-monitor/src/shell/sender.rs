//! Who asks? The kernel says it of each message (SO_PASSCRED), so nobody asks with rights that he has given up.
//!
//! The user is the process's effective one, as when the kernel makes a socket: the library says so where the real one is
//! another, and the kernel lets nobody say what he could not become. Whatever depends on the user follows it: the policy,
//! who may be shown what, to whose listeners others are led, who may adopt connections.

use super::connection::UNKNOWN;
use super::family::Family;
use super::server::Server;
use crate::core::ClientId;
use crate::core::quotas::Holding;

/// Who has sent a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

impl Server {
    /// Notes who has sent a message. The child of a fork says who it is with whatever it sends first. `None`: somebody who
    /// has the process's socket, but not its user; nothing is done for him.
    pub(crate) fn note_sender(&mut self, id: u64, sender: Option<(u32, u32)>) -> Option<Sender> {
        let connection = self.connections.get_mut(&id)?;
        let (pid, uid) = sender.unwrap_or((connection.pid, connection.uid));
        if connection.child.is_some() && connection.who.is_none() {
            (connection.pid, connection.uid) = (pid, uid);
            self.core.quotas.becomes(Holding::Connection(id), uid);
        } else if connection.uid != uid {
            if connection.pid != pid || uid == UNKNOWN {
                return None;
            }
            connection.uid = uid;
            let who = connection.who;
            self.core.quotas.becomes(Holding::Connection(id), uid);
            if let Some(who) = who {
                self.user_changed(who.client, uid);
            }
        }
        Some(Sender { pid, uid })
    }

    fn user_changed(&mut self, client: ClientId, uid: u32) {
        let Some(family) = self.families.get_mut(&client) else { return };
        tracing::debug!(client = client.0, from = family.uid, to = uid, "another user");
        family.uid = uid;
        Family::void_routes(family);
        self.core.quotas.becomes(Holding::Family(client), uid);
        self.core.channels.user_changed(client, uid);
        let changed = self.core.listeners.user_changed(client, uid);
        self.listeners_changed(client, changed);
    }
}
