//! The eventfds of single threads (`sd_shm::channel::ThreadWaker`): who has which, and who may ring it.

use super::descriptors;
use super::server::Server;
use crate::core::ClientId;
use crate::core::quotas::Holding;
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::channel::{Side, THREAD_WAKERS};
use std::os::fd::{AsFd, OwnedFd};

impl Server {
    /// A client has one more eventfd, for a single thread.
    pub(super) fn waker(
        &mut self,
        client: ClientId,
        number: u32,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Reply, ErrorCode> {
        let [event_fd] = &fds[..] else { return Err(ErrorCode::Descriptor) };
        descriptors::check_eventfd(event_fd.as_fd()).map_err(|_| ErrorCode::Descriptor)?;
        let family = self.families.get(&client).filter(|_| (number as usize) < THREAD_WAKERS);
        let uid = family.ok_or(ErrorCode::Protocol)?.uid;
        self.charge(Holding::ThreadWaker(client, number), uid, 1)?;
        let wakers = &mut self.families.get_mut(&client).ok_or(ErrorCode::Protocol)?.thread_wakers;
        wakers.extend(fds.pop().map(|event_fd| (number, event_fd)));
        Ok(Reply::Ok)
    }

    /// Tells one side of a channel how a thread of the other is woken.
    pub(super) fn tell_waker(
        &mut self,
        id: u64,
        client: ClientId,
        asked: Request,
    ) -> Result<Option<Reply>, ErrorCode> {
        let Request::ThreadWakerOf { channel, side, number } = asked else { return Err(ErrorCode::Protocol) };
        let side = Side::from_u32(side).ok_or(ErrorCode::Protocol)?;
        let key = self.channel_of(client, channel, side).ok_or(ErrorCode::Protocol)?;
        let maker = self.core.channels.maker(key, side.other()).ok_or(ErrorCode::Protocol)?;
        let wakers = &self.families.get(&maker).ok_or(ErrorCode::Protocol)?.thread_wakers;
        let waker = wakers.get(&number).ok_or(ErrorCode::Protocol)?;
        let sent = self.connections.get_mut(&id).map(|c| c.answer(&Reply::ThreadWaker, &[waker.as_fd()]));
        if let Some(Err(error)) = sent {
            self.dismiss(id, &format!("it cannot be told of a thread waker: {error}"));
        }
        Ok(None)
    }
}
