//! Which packets have come.
//!
//! ```text
//! extra: ranges | connection: packets that came marked | position: microseconds since the last one came
//! body: last number u64 | packets in its range - 1 u16 | for each further range: (missing before it - 1 u16, packets - 1 u16)
//! ```
//! Ranges go downwards. What is before the last range is not said again: the sender has made up its mind about it, or will.

use super::{Malformed, RECORD, Record, RecordKind, put, take};

/// More ranges are not told: then the oldest are left out.
pub const RANGES_MAX: usize = 32;

/// Bytes of the greatest such record.
pub const fn ack_max() -> usize {
    RECORD + 8 + 2 + 4 * (RANGES_MAX - 1)
}

/// A decoded acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    pub largest: u64,
    /// Packets in the range that ends with `largest`, less one.
    pub first: u16,
    /// How many packets have come with the network's mark of congestion, modulo 2^32.
    pub marked: u32,
    pub delay_us: u32,
    rest: &'a [u8],
}

impl<'a> Ack<'a> {
    pub fn decode(record: &Record<'a>) -> Result<Ack<'a>, Malformed> {
        let mut rest = record.body;
        let largest = u64::from_le_bytes(take(&mut rest)?);
        let first = u16::from_le_bytes(take(&mut rest)?);
        let ranges = usize::from(record.extra);
        let is_whole = (1..=RANGES_MAX).contains(&ranges) && rest.len() == 4 * (ranges - 1);
        let ack = Ack { largest, first, marked: record.connection, delay_us: record.position, rest };
        let lowest = ack.ranges().last().map(|range| range.0);
        if !is_whole || lowest.is_none() || ack.ranges().count() != ranges {
            return Err(Malformed);
        }
        Ok(ack)
    }

    /// First and last number of each range, from the highest on. Ends where a range would go below zero.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let mut last = Some(self.largest);
        let mut len = Some(self.first);
        let mut rest = self.rest;
        core::iter::from_fn(move || {
            let (end, count) = (last?, len?);
            let begin = end.checked_sub(u64::from(count))?;
            let gap = take::<2>(&mut rest).ok().map(u16::from_le_bytes);
            len = take::<2>(&mut rest).ok().map(u16::from_le_bytes);
            last = gap.and_then(|gap| begin.checked_sub(u64::from(gap) + 2));
            Some((begin, end))
        })
    }

    /// Writes the record for ranges that go downwards; returns its length, 0 if there is no room or no range.
    pub fn encode(
        ranges: impl Iterator<Item = (u64, u64)>,
        marked: u32,
        delay_us: u32,
        out: &mut [u8],
    ) -> usize {
        let Some((head, body)) = out.split_at_mut_checked(RECORD) else { return 0 };
        let (mut at, mut count, mut before) = (0, 0u8, 0);
        for (begin, end) in ranges.take(RANGES_MAX) {
            let first = count == 0;
            let gap = if first { 0 } else { before - end - 2 };
            let (Ok(gap), Ok(len)) = (u16::try_from(gap), u16::try_from(end - begin)) else { break };
            let size = if first { 10 } else { 4 };
            let Some(place) = body.get_mut(at..at + size) else { break };
            let (front, back) = place.split_at_mut(size - 2);
            match first {
                true => front.copy_from_slice(&end.to_le_bytes()),
                false => front.copy_from_slice(&gap.to_le_bytes()),
            }
            back.copy_from_slice(&len.to_le_bytes());
            (at, count, before) = (at + size, count + 1, begin);
        }
        let is_written = count > 0 && put(head, RecordKind::Ack, count, at as u16, marked, delay_us);
        if is_written { RECORD + at } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Records;
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn ranges_there_and_back() {
        let told = [(90, 100), (70, 88), (69 - 5, 67), (0, 0)];
        let mut bytes = [0; ack_max()];
        let len = Ack::encode(told.into_iter(), 7, 9, &mut bytes);
        let record = Records(&bytes[..len]).next().unwrap().unwrap();
        let ack = Ack::decode(&record).unwrap();
        assert_eq!((ack.largest, ack.marked, ack.delay_us), (100, 7, 9));
        assert_eq!(ack.ranges().collect::<Vec<_>>(), told);
    }

    #[test]
    fn below_zero_is_malformed() {
        let mut bytes = [0; ack_max()];
        let len = Ack::encode([(5, 9)].into_iter(), 0, 0, &mut bytes);
        bytes[RECORD + 8] = 200;
        let record = Records(&bytes[..len]).next().unwrap().unwrap();
        assert_eq!(Ack::decode(&record), Err(Malformed));
    }
}
