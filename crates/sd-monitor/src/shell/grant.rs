//! Who may have a channel to a listening process: it costs that process two descriptors and four gigabytes of addresses, and
//! the one who asks nothing.
//!
//! | asked for | granted |
//! |---|---|
//! | the first channel between two processes | while fewer than half of the server's descriptors are for channels |
//! | another one | the same, and the monitor itself sees the newest one full |
//! | by another user, who is not root | the same, an eighth of the descriptors for a process and a quarter for a user |
//!
//! Who gets none connects over the kernel. What a dead client had is given back by the end of its channels.

use super::segments::Segment;
use super::server::Server;
use crate::core::ClientId;
use sd_shm::channel::{SLOTS, Side, SlotState};
use std::sync::atomic::Ordering;

/// Slots that a full channel may have left: the two sides do not agree at each moment.
const LEFT: usize = 32;
/// A process may always have so many, as user or process of another user's.
const ALWAYS: u64 = 2;

impl Server {
    /// Whether the newest channel between two processes, if there is one, has no room for further connections.
    pub(super) fn newest_is_full(&self, a: ClientId, b: ClientId) -> bool {
        let newest = self.core.channels.newest(a, b).and_then(|key| self.segments.get(&key));
        newest.is_none_or(is_full)
    }

    /// See the module.
    pub(super) fn may_have_another(&self, a: ClientId, b: ClientId) -> bool {
        let (Some(asks), Some(serves)) = (self.families.get(&a), self.families.get(&b)) else { return false };
        let Some(limit) = sd_sys::fd::limit_of(serves.pid as i32, libc::RLIMIT_NOFILE) else { return true };
        let limit = limit.rlim_cur;
        if (self.core.channels.count_of(b) as u64).saturating_mul(4) >= limit {
            return false;
        }
        if asks.uid == 0 || asks.uid == serves.uid {
            return true;
        }
        let (mut of_process, mut of_user) = (0u64, 0u64);
        for key in self.core.channels.of_family(b) {
            if self.core.channels.founder(key) == Some(b)
                && let Some(maker) = self.core.channels.maker(key, Side::A)
                && self.families.get(&maker).is_some_and(|family| family.uid == asks.uid)
            {
                of_user += 1;
                of_process += u64::from(maker == a);
            }
        }
        of_process < (limit / 16).max(ALWAYS) && of_user < (limit / 8).max(ALWAYS)
    }
}

/// All slots, nearly, have a connection.
fn is_full(segment: &Segment) -> bool {
    let map = segment.map();
    if (map.header().used.load(Ordering::Acquire) as usize) < SLOTS - LEFT {
        return false;
    }
    let is_free = |slot: &usize| {
        let [(a, a_state), (b, b_state)] = map.slot(*slot).side.each_ref().map(|side| side.state());
        let is_over = a_state == SlotState::Closed
            && a == b
            && matches!(b_state, SlotState::Closed | SlotState::Refused);
        is_over || a_state == SlotState::Free
    };
    (0..SLOTS).filter(is_free).count() <= LEFT
}
