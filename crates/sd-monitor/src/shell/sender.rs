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
use std::fs;
use std::sync::OnceLock;

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
        if stands_for_anybody(pid, uid) {
            return None;
        }
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
        Family::forget_routes(family);
        self.core.quotas.becomes(Holding::Family(client), uid);
        self.core.channels.user_changed(client, uid);
        let changed = self.core.listeners.user_changed(client, uid);
        self.listeners_changed(client, changed);
        self.tell_of_stranger(client);
    }
}

/// Whether the kernel says this of a message though somebody else has sent it. What it cannot name it gives one number
/// (`kernel.overflowuid`), which is `nobody`'s too: users that our user namespace has no number for, and who sent a message
/// before the socket asked for senders. The latter have no process either. A real `nobody` in a pid namespace that we do not
/// see is taken for one of those.
fn stands_for_anybody(pid: u32, uid: u32) -> bool {
    static UNNAMED: OnceLock<(u32, bool)> = OnceLock::new();
    let (unnamed, is_mapped) = *UNNAMED.get_or_init(|| {
        let text = fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        let unnamed = text.trim().parse().unwrap_or(65534);
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        (unnamed, maps(&map, unnamed))
    });
    uid == unnamed && (pid == 0 || !is_mapped)
}

/// Whether a user namespace (`/proc/PID/uid_map`) has a number for some user of its parent's under this one.
fn maps(map: &str, uid: u32) -> bool {
    map.lines().any(|line| {
        let mut words = line.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        let (Some(first), _, Some(count)) = (words.next(), words.next(), words.next()) else { return false };
        (first..first + count).contains(&u64::from(uid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_stands_for_all_that_have_none() {
        assert!(maps("         0          0 4294967295\n", 65534));
        assert!(!maps("0 4242 1\n1 100000 65533\n", 65534));
        assert!(maps("0 4242 1\n1 100000 65534\n", 65534) && !maps("", 0));
        assert!(stands_for_anybody(0, 65534) && !stands_for_anybody(0, 1000) && !stands_for_anybody(9, 1000));
    }
}
