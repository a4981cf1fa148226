//! SIGURG and SIGIO for a process that asked for them, when the other end of a connection says that it is time.
//!
//! The process states in its slab to whom they go, and which signal; its words of the slot, which its peer can write, only
//! say where in the slab. Only a member of a family on that side of the channel gets one, and only if the kernel would let
//! the family's user send it (`sigio_perm`): so nobody can make us signal whom he could not signal himself.

use super::segments::{Segment, Slab};
use super::server::Server;
use super::standing::Standing;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use sd_proto::Request;
use sd_shm::channel::{SLOTS, Side};
use sd_shm::slab::{Endpoint, State};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// What the owner of an endpoint wants.
struct Wish {
    pid: u32,
    is_async: bool,
    signal: u16,
}

impl Wish {
    /// If it is the endpoint of that connection.
    fn of(slab: &Slab, endpoint: &Endpoint, channel: u64, slot: u32, side: Side) -> Option<Wish> {
        let is_it = endpoint.state.load(Ordering::Acquire) == State::Connected as u8
            && endpoint.channel_id.load(Ordering::Relaxed) == channel
            && u32::from(endpoint.slot.load(Ordering::Relaxed)) == slot
            && u32::from(endpoint.side.load(Ordering::Relaxed)) == side as u32;
        let cold = slab.cold(endpoint).filter(|_| is_it)?;
        Some(Wish {
            pid: cold.owner.load(Ordering::Acquire),
            is_async: cold.status.load(Ordering::Relaxed) & libc::O_ASYNC as u32 != 0,
            signal: cold.signal.load(Ordering::Relaxed),
        })
    }
}

impl Server {
    /// `client`, on `side` of its channel `id`, has done something that the other side wants a signal for.
    pub(crate) fn signal(&self, client: ClientId, asked: Request) {
        let Request::Signal { channel: id, slot, side, urgent } = asked else { return };
        let side = if side == 0 { Side::A } else { Side::B };
        let Some(key) = self.core.members.lineage(client).find_map(|f| self.core.channels.named(f, id))
        else {
            return;
        };
        let family = self.core.channels.side(key, side).iter().map(|(family, _)| *family);
        if self.core.members.lineage(client).any(|f| family.clone().any(|on_side| on_side == f)) {
            self.signal_side(key, side.other(), slot, urgent);
        }
    }

    fn signal_side(&self, key: ChannelKey, side: Side, slot: u32, urgent: bool) {
        let segment = self.segments.get(&key).filter(|_| (slot as usize) < SLOTS);
        let Some(map) = segment.and_then(Segment::map) else { return };
        let words = &map.slot(slot as usize).side[side as usize];
        let Some(number) =
            words.cold().and_then(|words| words.wants_signals.load(Ordering::Acquire).checked_sub(1))
        else {
            return;
        };
        let families = self.core.channels.side(key, side).iter();
        let wish_of = |(family, id): &(ClientId, u64)| {
            let family = self.families.get(family)?;
            let wish = Wish::of(&family.slab, family.slab.used_endpoint(number)?, *id, slot, side)?;
            Some((wish, family.uid))
        };
        let found = families.clone().find_map(wish_of);
        let Some((Wish { pid, is_async, signal }, user)) = found.filter(|(wish, _)| wish.pid != 0) else {
            return;
        };
        let signal = match (urgent, is_async, signal) {
            (true, ..) => libc::SIGURG,
            (false, false, _) => return,
            (false, true, 0) => libc::SIGIO,
            (false, true, other) => i32::from(other),
        };
        let process = families
            .flat_map(|(family, _)| self.core.members.clients_of(*family).chain([*family]))
            .find_map(|family| self.core.members.member_with(family, pid));
        let pidfd = process.and_then(|process| self.pidfds.get(&process));
        let may = |pidfd: &&OwnedFd| {
            Standing::of(pidfd.as_fd()).is_some_and(|(_, target)| target.may_be_signalled_by(user))
        };
        if let Some(pidfd) = pidfd.filter(may) {
            // SAFETY: no information comes along, so there is no pointer to follow.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, 0usize, 0) };
        }
    }
}
