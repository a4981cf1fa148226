//! Packets that wait to be sent, laid out so that the kernel takes many of them as one message.
//!
//! ```text
//! datagram: len u16, little-endian | packet: len bytes | zeros up to the segment's length, but for the last of a run
//!
//!  at                                                  next packet
//!  │ datagram │ datagram  0 │ datagram    0 │ last    │
//!  │<──────── segment ─────>│<── segment ──>│
//! ```
//!
//! UDP_SEGMENT (udp(7)) cuts a message into datagrams of equal length, of which the last may be shorter. Packets that an engine fills with
//! records are nearly as long as they may be, but no two are equal. So those that miss at most an eighth are filled up, to the greatest
//! length, or to that of a shorter one that began the run. The last of a run is sent as it is: nothing is wasted if one goes alone.

/// Bytes of a length.
pub(super) const LEN: usize = 2;
/// The most that one message may hold: an IPv4 packet without both headers.
const RUN_BYTES_MAX: usize = 65_507;
/// A datagram may be filled up by one part in so many.
const FILLED_PART: usize = 8;

/// Datagrams of one length, the last one excepted.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    at: usize,
    segment: usize,
    count: usize,
    last: usize,
}

impl Run {
    fn end(&self) -> usize {
        self.at + (self.count - 1) * self.segment + self.last
    }

    /// Where the next datagram may follow: no longer than the segment.
    fn next(&self, segments_max: usize) -> Option<usize> {
        let has_place = self.count < segments_max && (self.count + 1) * self.segment <= RUN_BYTES_MAX;
        let is_near = self.segment - self.last <= self.segment / FILLED_PART;
        (has_place && is_near).then(|| self.at + self.count * self.segment)
    }

    fn len_at(&self, index: usize) -> usize {
        if index + 1 == self.count { self.last } else { self.segment }
    }
}

/// All that waits.
#[derive(Debug)]
pub(super) struct Runs {
    bytes: Box<[u8]>,
    runs: Box<[Run]>,
    head: usize,
    tail: usize,
    /// How many datagrams may be one message; 1: the kernel cannot cut.
    segments_max: usize,
    /// The length of a datagram when room was last given.
    full: usize,
}

impl Runs {
    pub(super) fn new(bytes: usize, runs: usize, segments_max: usize) -> Runs {
        let bytes = vec![0; bytes].into_boxed_slice();
        let runs = vec![Run::default(); runs].into_boxed_slice();
        Runs { bytes, runs, head: 0, tail: 0, segments_max, full: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(super) fn is_cut(&self) -> bool {
        self.segments_max > 1
    }

    /// The kernel cannot cut; what waits is sent one by one.
    pub(super) fn never_cut(&mut self) {
        self.segments_max = 1;
    }

    fn last(&self) -> Option<&Run> {
        self.runs[self.head..self.tail].last()
    }

    /// Where the next datagram begins.
    fn place(&self) -> usize {
        let joined = |run: &Run| run.next(self.segments_max).unwrap_or_else(|| run.end());
        self.last().map_or(0, joined)
    }

    /// Where the next packet is to be written.
    pub(super) fn room(&mut self, packet_max: usize) -> Option<&mut [u8]> {
        if self.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
        if self.tail == self.runs.len() {
            return None;
        }
        self.full = LEN + packet_max;
        let at = self.place() + LEN;
        self.bytes.get_mut(at..at + packet_max)
    }

    /// The first `len` bytes of the room are a packet.
    pub(super) fn commit(&mut self, len: usize) {
        let (at, len) = (self.place(), LEN + len);
        self.bytes[at..at + LEN].copy_from_slice(&((len - LEN) as u16).to_le_bytes());
        if let Some(run) = self.runs[self.head..self.tail].last_mut()
            && run.next(self.segments_max).is_some()
            && len <= run.segment
        {
            // What was there before is nobody's business.
            self.bytes[run.end()..at].fill(0);
            (run.count, run.last) = (run.count + 1, len);
            return;
        }
        let is_nearly_full = self.full - len <= self.full / FILLED_PART;
        let segment = if is_nearly_full { self.full } else { len };
        self.runs[self.tail] = Run { at, segment, count: 1, last: len };
        self.tail += 1;
    }

    /// The messages that wait, each with the length of its datagrams if it is to be cut.
    pub(super) fn messages(&self) -> impl Iterator<Item = (&[u8], Option<u16>)> {
        let is_cut = self.is_cut();
        self.runs[self.head..self.tail].iter().flat_map(move |run| {
            let count = if is_cut { 1 } else { run.count };
            (0..count).map(move |index| {
                let at = run.at + index * run.segment;
                let end = if is_cut { run.end() } else { at + run.len_at(index) };
                let segment = (is_cut && run.count > 1).then_some(run.segment as u16);
                (&self.bytes[at..end], segment)
            })
        })
    }

    /// The length of the longest datagram of the first message, and whether it is to be cut.
    pub(super) fn first(&self) -> Option<(usize, bool)> {
        let run = self.runs[self.head..self.tail].first()?;
        let is_cut = self.is_cut() && run.count > 1;
        Some((if is_cut { run.segment } else { run.len_at(0) }, is_cut))
    }

    /// The first messages are gone; returns how many datagrams they were.
    pub(super) fn take(&mut self, messages: usize) -> u64 {
        let mut datagrams = 0;
        for _ in 0..messages {
            let is_cut = self.is_cut();
            let Some(run) = self.runs[self.head..self.tail].first_mut() else { break };
            let taken = if is_cut { run.count } else { 1 };
            datagrams += taken as u64;
            run.at += run.segment;
            run.count -= taken;
            if run.count == 0 {
                self.head += 1;
            }
        }
        datagrams
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As the kernel would send them.
    fn datagrams(runs: &Runs) -> Vec<Vec<u8>> {
        let cut = |(bytes, segment): (&[u8], Option<u16>)| {
            let segment = segment.map_or(bytes.len(), usize::from);
            bytes.chunks(segment).map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        runs.messages().flat_map(cut).collect()
    }

    fn put(runs: &mut Runs, packet: &[u8]) -> bool {
        let Some(room) = runs.room(1000) else { return false };
        // What an engine wrote and did not commit.
        room.fill(0xee);
        room[..packet.len()].copy_from_slice(packet);
        runs.commit(packet.len());
        true
    }

    fn check(datagram: &[u8], packet: &[u8]) {
        let (len, rest) = datagram.split_first_chunk::<LEN>().unwrap();
        assert_eq!(usize::from(u16::from_le_bytes(*len)), packet.len());
        let (body, filling) = rest.split_at(packet.len());
        assert_eq!(body, packet);
        assert!(filling.iter().all(|byte| *byte == 0), "{filling:?}");
        assert!(filling.len() <= datagram.len() / FILLED_PART);
    }

    #[test]
    fn equal_packets_are_one_message() {
        let mut runs = Runs::new(20_000, 8, 64);
        for len in [930, 1000, 1000, 950, 1000, 300] {
            assert!(put(&mut runs, &vec![7; len]));
        }
        assert_eq!(runs.messages().count(), 1);
        assert_eq!(runs.first(), Some((1002, true)));
        assert!(put(&mut runs, &[7; 20]));
        assert_eq!(runs.messages().count(), 2, "behind a short one comes another message");
        runs.never_cut();
        assert_eq!(runs.messages().count(), 7);
        assert_eq!((runs.take(2), runs.messages().count()), (2, 5));
    }

    proptest! {
        #[test]
        fn each_packet_is_a_datagram(
            lens in prop::collection::vec(prop_oneof![1usize..=1000, 900usize..=1000], 1..200),
            segments_max in 1usize..70,
            takes in prop::collection::vec(0usize..5, 1..20),
        ) {
            let mut runs = Runs::new(60_000, 16, segments_max);
            let packets: Vec<Vec<u8>> = lens.iter().enumerate().map(|(at, len)| vec![at as u8; *len]).collect();
            let (mut put_count, mut sent, mut takes) = (0, 0, takes.iter().cycle());
            while sent < packets.len() {
                while put_count < packets.len() && put(&mut runs, &packets[put_count]) {
                    put_count += 1;
                }
                if sent > packets.len() / 2 {
                    runs.never_cut();
                }
                let waiting = datagrams(&runs);
                prop_assert_eq!(waiting.len(), put_count - sent);
                for (datagram, packet) in waiting.iter().zip(&packets[sent..]) {
                    check(datagram, packet);
                }
                sent += runs.take(1 + takes.next().unwrap()) as usize;
            }
            prop_assert!(runs.is_empty());
        }
    }
}
