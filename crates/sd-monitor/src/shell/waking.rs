//! How a process is woken that has a connection on the other side of a channel, though the channel was made for another:
//! an adopter (ADR 14), or a child that alone has what it inherited (ADR 23).

use super::server::Server;
use crate::core::ClientId;
use sd_proto::{ErrorCode, Reply};
use sd_shm::channel::Side;
use std::os::fd::AsFd;

/// What [`sd_proto::Request::WakeTarget`] asks.
pub(crate) struct WakeTarget {
    pub(crate) channel: u64,
    /// The asking side.
    pub(crate) side: u32,
    pub(crate) client: ClientId,
}

impl Server {
    /// Tells side A of a channel how to wake an adopter.
    pub(crate) fn tell_adopter(
        &mut self,
        id: u64,
        client: ClientId,
        channel: u64,
        number: u32,
    ) -> Result<(), ErrorCode> {
        let key = self.channel_of(client, channel, Side::A).ok_or(ErrorCode::Protocol)?;
        let adopter = self.core.channels.adopter(key, number).ok_or(ErrorCode::Protocol)?;
        let stranger = self.are_strangers(key) || self.is_stranger(client, adopter);
        self.tell_how_to_wake(id, adopter, stranger)
    }

    /// Tells one side of a channel how to wake a process that has a connection on the other.
    pub(crate) fn wake_by(&mut self, id: u64, client: ClientId, asked: WakeTarget) -> Result<(), ErrorCode> {
        let side = Side::from_u32(asked.side).ok_or(ErrorCode::Protocol)?;
        let key = self.channel_of(client, asked.channel, side).ok_or(ErrorCode::Protocol)?;
        let holders = self.core.channels.side(key, side.other());
        let is_there = |family| holders.iter().any(|(holder, _)| *holder == family);
        if !self.core.members.lineage(asked.client).any(is_there) {
            return Err(ErrorCode::Protocol);
        }
        // Whoever asks has something to tell it.
        self.families.get(&asked.client).ok_or(ErrorCode::Protocol)?.wake();
        let stranger = self.are_strangers(key) || self.is_stranger(client, asked.client);
        self.tell_how_to_wake(id, asked.client, stranger)
    }

    fn tell_how_to_wake(&mut self, id: u64, client: ClientId, stranger: bool) -> Result<(), ErrorCode> {
        let family = self.families.get(&client).ok_or(ErrorCode::Protocol)?;
        let (Some(public), Some(eventfd)) = (&family.public, &family.eventfd) else {
            return Err(ErrorCode::Protocol);
        };
        let fds = [public.as_fd(), eventfd.as_fd()];
        let sent = self.connections.get_mut(&id).map(|c| c.answer(&Reply::Adopter { stranger }, &fds));
        if let Some(Err(error)) = sent {
            self.dismiss(id, &format!("it cannot be told whom to wake: {error}"));
        }
        Ok(())
    }
}
