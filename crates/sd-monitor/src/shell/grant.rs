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
use crate::core::channels::ChannelKey;
use sd_shm::channel::{SEGMENT_LEN, SLOTS, Side, SlotState};

/// Slots that a full channel may have left: the two sides do not agree at each moment.
const LEFT: usize = 32;
/// A process may always have so many, as user or process of another user's.
const ALWAYS: u64 = 2;

/// Addresses that mappings of channels and slabs may have, of the 128 TiB that a process has.
const ADDRESSES: u64 = 112 << 40;
/// Mappings that the monitor needs for other things.
const OTHER_MAPPINGS: u64 = 1024;

/// How many channels and slabs, which are smaller, the monitor can have mapped at a time.
pub(super) fn mappings_max() -> usize {
    let addresses = sd_sys::fd::limit_of(0, libc::RLIMIT_AS).map_or(u64::MAX, |limit| limit.rlim_cur);
    let maps = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let maps = maps.trim().parse::<u64>().unwrap_or(65530).saturating_sub(OTHER_MAPPINGS);
    maps.min(addresses.min(ADDRESSES) / SEGMENT_LEN as u64) as usize
}

impl Server {
    /// Whether one more channel or slab can be mapped. Channels are mapped when they have to be looked into, which must not
    /// fail then: so there are never more than can be.
    pub(super) fn has_addresses(&self) -> bool {
        self.families.len() + self.segments.len() < self.mappings_max
    }

    /// Whether a channel has no room for further connections.
    pub(super) fn is_full(&self, key: ChannelKey) -> bool {
        self.segments.get(&key).is_none_or(is_full)
    }

    /// See the module. The server may have so many descriptors (`None`: it is not known).
    pub(super) fn may_have_another(&self, a: ClientId, b: ClientId, limit: Option<u64>) -> bool {
        let (Some(asks), Some(serves)) = (self.families.get(&a), self.families.get(&b)) else { return false };
        let Some(limit) = limit else { return true };
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
    if segment.used() < SLOTS - LEFT {
        return false;
    }
    let Some(map) = segment.map() else { return false };
    let is_free = |slot: &usize| {
        let [(a, a_state), (b, b_state)] = map.slot(*slot).side.each_ref().map(|side| side.state());
        let is_over = a_state == SlotState::Closed
            && a == b
            && matches!(b_state, SlotState::Closed | SlotState::Refused);
        is_over || a_state == SlotState::Free
    };
    (0..SLOTS).filter(is_free).count() <= LEFT
}
