//! Charges users for what the monitor holds for them: see `core::quotas`.
//!
//! | refused | answer |
//! |---|---|
//! | a connection | it is closed, as when there are no descriptors left |
//! | Hello, ThreadWaker | exhausted |
//! | a channel | the connection goes over the kernel |
//! | a channel of an earlier monitor's time | none, as ever: it is not watched any more |
//! | the connection of a child to be | it is known by its pidfd then: see `forks` |

use super::server::Server;
use crate::core::ClientId;
use crate::core::quotas::{Closing, Holding};
use sd_proto::ErrorCode;

impl Server {
    /// Charges a user for something, unless it has had enough.
    pub(crate) fn charge(&mut self, what: Holding, user: u32, count: u64) -> Result<(), ErrorCode> {
        if !self.core.quotas.is_exempt(user) {
            let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
            self.core.quotas.set_limit(limit.map_or(u64::MAX, |(soft, _)| soft));
        }
        let closing = self.closing(user);
        self.core.quotas.take(what, (user, count), closing).map_err(|_| {
            tracing::debug!(user, ?what, "a user has too many descriptors");
            ErrorCode::Exhausted
        })
    }

    /// A family is about to be forgotten.
    pub(crate) fn give_back_family(&mut self, client: ClientId) {
        let thread_wakers =
            self.families.get(&client).into_iter().flat_map(|family| family.thread_wakers.keys());
        thread_wakers.for_each(|number| self.core.quotas.give_back(Holding::ThreadWaker(client, *number)));
        self.core.quotas.give_back(Holding::Family(client));
    }

    fn closing(&self, user: u32) -> Closing {
        Closing { of_user: self.closers.held(user) as u64, of_all: self.closers.held_by_all() as u64 }
    }

    /// Before a message of a user's is received: whether there is room for what it may bring. If not, those who have most
    /// are let go, and `false` says that this connection must be too.
    pub(crate) fn make_room(&mut self, user: u32) -> bool {
        let is_fine = |server: &Server| server.core.quotas.has_room(server.closing(user));
        if self.core.quotas.is_exempt(user) || is_fine(self) {
            return true;
        }
        if let Some(heaviest) = self.core.quotas.heaviest() {
            tracing::warn!(
                user = heaviest,
                "hardly any descriptors are left: a user's clients are dismissed"
            );
            let theirs = self.connections.iter().filter(|(_, connection)| connection.uid == heaviest);
            let theirs: Vec<u64> = theirs.map(|(id, _)| *id).collect();
            theirs.into_iter().for_each(|id| self.let_go(id));
            self.cut_offs.of_user(heaviest).into_iter().for_each(|process| self.reap(process));
        }
        is_fine(self)
    }

    /// Whether so many descriptors of a user's wait to be closed that nothing more is taken from it.
    pub(crate) fn is_choked(&self, user: u32) -> bool {
        let quotas = &self.core.quotas;
        !quotas.is_exempt(user) && self.closers.held(user) as u64 > quotas.share()
    }
}
