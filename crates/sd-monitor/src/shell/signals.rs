//! SIGURG and SIGIO for a process that asked for them, when the other end of a connection says that it is time.
//!
//! The process states in its own words of the slot to whom they go, and which signal. Only a member of a family on
//! that side of the channel gets one, so nobody can make us signal a stranger; and what a process may do to itself by
//! this, it may do anyway.

use super::server::Server;
use crate::core::ClientId;
use crate::core::channels::ChannelKey;
use sd_shm::channel::{SIGNAL_ASYNC, SLOTS, Side};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

impl Server {
    /// `client`, on `side` of its channel `id`, has done something that the other side wants a signal for.
    pub(crate) fn signal(&self, client: ClientId, id: u64, slot: u32, side: u32, urgent: bool) {
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
        let Some(segment) = self.segments.get(&key).filter(|_| (slot as usize) < SLOTS) else { return };
        let words = &segment.map().slot(slot as usize).side[side as usize];
        let wanted = words.signals.load(Ordering::Acquire);
        let signal = match (urgent, wanted & SIGNAL_ASYNC != 0, wanted as u8) {
            (true, ..) => libc::SIGURG,
            (false, false, _) => return,
            (false, true, 0) => libc::SIGIO,
            (false, true, other) => i32::from(other),
        };
        let pid = (wanted >> 32) as u32;
        let families = self.core.channels.side(key, side).iter();
        let process = families
            .flat_map(|(family, _)| self.core.members.clients_of(*family).chain([*family]))
            .find_map(|family| self.core.members.member_with(family, pid));
        if let Some(pidfd) = process.and_then(|process| self.pidfds.get(&process)).filter(|_| pid != 0) {
            // SAFETY: no information comes along, so there is no pointer to follow.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, 0usize, 0) };
        }
    }
}
