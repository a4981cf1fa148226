//! Channels between processes of different users.
//!
//! Each side can write to an eventfd of the other's, whose owner can make such a write wait. So a process is told which of
//! its peers are another user's: it wakes those by other means (`stranger.rs` in the library), or, where it has none, asks
//! the monitor to do it.
//!
//! ```text
//! B is another user's  --NewChannel, Route, Offer, Adopter { stranger }--> A
//! B becomes one        --Stranger--> A and B
//! A --Ring--> monitor --> B
//! ```

use super::reaper::Woken;
use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use sd_proto::{ErrorCode, Reply};
use sd_shm::channel::Side;

impl Server {
    /// Whether the processes on a channel are, or were, of more than one user.
    pub(crate) fn are_strangers(&self, key: ChannelKey) -> bool {
        let sides = [Side::A, Side::B].map(|side| self.core.channels.side(key, side));
        let mut users = sides.into_iter().flatten().filter_map(|(client, _)| self.user_of(*client));
        let first = users.next();
        self.core.channels.is_strange(key) || users.any(|user| Some(user) != first)
    }

    /// Whether one process is another user's than the other.
    pub(super) fn is_stranger(&self, one: ClientId, other: ClientId) -> bool {
        self.user_of(one) != self.user_of(other)
    }

    fn user_of(&self, client: ClientId) -> Option<u32> {
        self.families.get(&client).map(|family| family.uid)
    }

    /// A process has become another user's: all that have channels to it are told, once.
    pub(super) fn tell_of_stranger(&mut self, client: ClientId) {
        for key in self.core.channels.of_family(client) {
            if self.are_strangers(key) && self.core.channels.becomes_strange(key) {
                self.tell_all(key, |id| Reply::Stranger { id });
            }
        }
    }

    /// Wakes the processes on the other side of a channel.
    pub(super) fn ring(&self, client: ClientId, channel: u64, side: u32) -> Result<(), ErrorCode> {
        let side = Side::from_u32(side).ok_or(ErrorCode::Protocol)?;
        let key = self.channel_of(client, channel, side).ok_or(ErrorCode::Protocol)?;
        self.wake_sides(&Woken::from([(key, side.other() as u32)]));
        Ok(())
    }
}
