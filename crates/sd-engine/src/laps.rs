//! Where a byte of the ring stands in the stream between engines, and the other way.
//!
//! Within a lap of a region both grow alike. A jump takes the rest of its region in the ring, and its header in the stream.

use std::collections::VecDeque;

/// Of a jump, in the stream.
pub(crate) const HEADER: u64 = 8;

/// The laps that may be asked about still, oldest first; never empty.
#[derive(Debug)]
pub(crate) struct Laps(VecDeque<Lap>);

#[derive(Clone, Copy, Debug)]
struct Lap {
    /// Where it begins, in the stream and in the ring.
    stream: u64,
    ring: u64,
    region: u32,
}

impl Laps {
    /// The first, of the small region.
    pub(crate) fn new() -> Laps {
        Laps(VecDeque::from([Lap { stream: 0, ring: 0, region: 0 }]))
    }

    /// A jump has led there.
    pub(crate) fn begin(&mut self, stream: u64, ring: u64, is_large: bool) {
        self.0.push_back(Lap { stream, ring, region: is_large.into() });
    }

    /// Region, offset there, and how many bytes of the stream lie behind each other from there on.
    pub(crate) fn place(&self, stream: u64) -> Option<(u32, u32, u64)> {
        let at = self.0.partition_point(|lap| lap.stream <= stream).checked_sub(1)?;
        let lap = self.0.get(at)?;
        let end = self.0.get(at + 1).map_or(u64::MAX, |next| next.stream);
        Some((lap.region, (stream - lap.stream) as u32, end - stream))
    }

    /// The ring bytes before a place in the stream.
    pub(crate) fn ring_at(&self, stream: u64) -> u64 {
        let at = self.0.partition_point(|lap| lap.stream <= stream).saturating_sub(1);
        self.0.get(at).map_or(0, |lap| lap.ring + stream.saturating_sub(lap.stream))
    }

    /// The bytes of the stream before a place in the ring.
    pub(crate) fn stream_at(&self, ring: u64) -> u64 {
        let at = self.0.partition_point(|lap| lap.ring <= ring).saturating_sub(1);
        let Some(lap) = self.0.get(at) else { return 0 };
        let within = lap.stream.saturating_add(ring.saturating_sub(lap.ring));
        // Who says that he stands in what a jump has passed over stands in front of it.
        self.0.get(at + 1).map_or(within, |next| within.min(next.stream - HEADER))
    }

    /// Places in the stream from here on are known.
    pub(crate) fn known_from(&self) -> u64 {
        self.0.front().map_or(0, |lap| lap.stream)
    }

    /// Nobody asks about what is before this place in the stream.
    pub(crate) fn forget_before(&mut self, stream: u64) {
        while self.0.get(1).is_some_and(|next| next.stream <= stream) {
            self.0.pop_front();
        }
    }
}
