//! What is under way: the packets that were sent, and what stood in each.
//!
//! No bytes are kept. A record says which bytes of which connection it had, and what is sent again is read again, from the ring
//! in which it stays until its reader has consumed it.

use crate::Nanos;
use crate::wire::RecordKind;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A record that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) connection: u32,
    pub(crate) kind: RecordKind,
    pub(crate) len: u16,
    pub(crate) position: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    /// Acknowledged, given up, or it asks for nothing.
    Settled,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    at: Nanos,
    state: State,
    items: u16,
    bytes: u32,
    /// Number of its first item, counted from the path's first.
    first_item: u64,
}

/// A packet of which something is now known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) number: u64,
    pub(crate) at: Nanos,
    pub(crate) bytes: u32,
}

const NONE: Item = Item { connection: 0, kind: RecordKind::Ping, len: 0, position: 0 };
/// So many records have room at first: most links never have more under way.
const ITEMS_FIRST: usize = 256;

/// The packets under way on a path, and their records. Memory is taken for as many as there were at once.
#[derive(Debug)]
pub(crate) struct Sent {
    packets: VecDeque<Packet>,
    packets_max: usize,
    /// Number of the first packet in `packets`.
    first: u64,
    /// By number, modulo its length, which is a power of two.
    items: Vec<Item>,
    items_max: usize,
    items_begin: u64,
    items_end: u64,
    /// Items of the packet that is being written.
    open: u16,
    in_flight: u64,
}

impl Sent {
    pub(crate) fn new(packets_max: usize, items_max: usize) -> Sent {
        let items_max = items_max.next_power_of_two();
        Sent {
            packets: VecDeque::new(),
            packets_max,
            first: 0,
            items: alloc::vec![NONE; ITEMS_FIRST.min(items_max)],
            items_max,
            items_begin: 0,
            items_end: 0,
            open: 0,
            in_flight: 0,
        }
    }

    /// The number that the next packet has.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// How far back the first packet is that is still waited for, seen from the next one.
    pub(crate) fn age(&self) -> u16 {
        self.packets.len().min(usize::from(u16::MAX)) as u16
    }

    /// Bytes of packets that are under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) fn has_packet_room(&self) -> bool {
        self.packets.len() < self.packets_max
    }

    /// How many records there is room for.
    pub(crate) fn item_room(&self) -> usize {
        self.items_max - self.items_held()
    }

    fn items_held(&self) -> usize {
        (self.items_end - self.items_begin) as usize + usize::from(self.open)
    }

    /// Notes a record of the packet that is being written.
    #[inline]
    pub(crate) fn push(&mut self, item: Item) {
        if self.items_held() == self.items.len() {
            self.grow();
        }
        let mask = self.items.len() - 1;
        let at = (self.items_end + u64::from(self.open)) as usize & mask;
        if let Some(place) = self.items.get_mut(at) {
            *place = item;
        }
        self.open += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let old = self.items.len() - 1;
        let new = 2 * self.items.len() - 1;
        let mut items = alloc::vec![NONE; new + 1];
        for number in self.items_begin as usize..self.items_end as usize + usize::from(self.open) {
            items[number & new] = self.items[number & old];
        }
        self.items = items;
    }

    /// The packet that was being written is sent.
    pub(crate) fn commit(&mut self, at: Nanos, bytes: u32, is_asking: bool) {
        let items = core::mem::take(&mut self.open);
        let state = if is_asking { State::UnderWay } else { State::Settled };
        self.in_flight += if is_asking { u64::from(bytes) } else { 0 };
        self.packets.push_back(Packet { at, state, items, bytes, first_item: self.items_end });
        self.items_end += u64::from(items);
        self.drop_settled();
    }

    /// The packets from `begin` to `end` have come.
    pub(crate) fn acknowledge(
        &mut self,
        begin: u64,
        end: u64,
        mut item: impl FnMut(Item),
        mut packet: impl FnMut(Fate),
    ) {
        let begin = begin.max(self.first);
        let end = (end + 1).min(self.next());
        for number in begin..end {
            if let Some(fate) = self.settle(number, &mut item) {
                packet(fate);
            }
        }
        self.drop_settled();
    }

    /// Gives up packets from the first on, while `is_lost` says so, and hands out what stood in them.
    pub(crate) fn give_up(
        &mut self,
        mut is_lost: impl FnMut(u64, Nanos) -> bool,
        mut item: impl FnMut(Item),
    ) -> Option<Fate> {
        let mut last = None;
        for number in self.first..self.next() {
            let packet = self.packets[(number - self.first) as usize];
            if packet.state == State::Settled {
                continue;
            }
            if !is_lost(number, packet.at) {
                break;
            }
            last = self.settle(number, &mut item);
        }
        self.drop_settled();
        last
    }

    /// When the first packet that is under way was sent.
    pub(crate) fn oldest(&self) -> Option<(u64, Nanos)> {
        let packet = self.packets.front()?;
        Some((self.first, packet.at))
    }

    fn settle(&mut self, number: u64, item: &mut impl FnMut(Item)) -> Option<Fate> {
        let packet = self.packets.get_mut((number - self.first) as usize)?;
        if packet.state == State::Settled {
            return None;
        }
        packet.state = State::Settled;
        self.in_flight -= u64::from(packet.bytes);
        let mask = self.items.len() - 1;
        for at in packet.first_item..packet.first_item + u64::from(packet.items) {
            item(self.items[at as usize & mask]);
        }
        Some(Fate { number, at: packet.at, bytes: packet.bytes })
    }

    /// So the first one is always under way.
    fn drop_settled(&mut self) {
        while self.packets.front().is_some_and(|packet| packet.state == State::Settled) {
            self.packets.pop_front();
            self.first += 1;
        }
        self.items_begin = self.packets.front().map_or(self.items_end, |packet| packet.first_item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(position: u64) -> Item {
        Item { connection: 1, kind: RecordKind::Data, len: 8, position }
    }

    #[test]
    fn packets_settle_in_any_order() {
        let mut sent = Sent::new(8, 4);
        for number in 0..3 {
            assert_eq!(sent.next(), number);
            sent.push(item(number));
            sent.commit(number * 10, 100, true);
        }
        assert_eq!((sent.item_room(), sent.in_flight(), sent.age()), (1, 300, 3));
        let mut seen = Vec::new();
        sent.acknowledge(1, 70, |item| seen.push(item.position), |_| {});
        assert_eq!(seen, [1, 2]);
        assert_eq!((sent.oldest(), sent.in_flight(), sent.age()), (Some((0, 0)), 100, 3));
        let fate = sent.give_up(|number, _| number < 2, |item| seen.push(item.position));
        assert_eq!((fate.map(|fate| fate.number), seen.last()), (Some(0), Some(&0)));
        assert_eq!((sent.oldest(), sent.item_room(), sent.next()), (None, 4, 3));
    }

    #[test]
    fn room_for_records_comes_when_it_is_needed() {
        let mut sent = Sent::new(8, 4 * ITEMS_FIRST);
        let (mut next, mut seen) = (0, Vec::new());
        // The first lie across the end of the room that there is when it grows.
        for count in [ITEMS_FIRST - 3, 2, ITEMS_FIRST, 2 * ITEMS_FIRST] {
            for _ in 0..count {
                sent.push(item(next));
                next += 1;
            }
            sent.commit(0, 100, true);
            if count == ITEMS_FIRST - 3 {
                sent.acknowledge(0, 0, |item| seen.push(item.position), |_| {});
                assert_eq!((sent.items.len(), sent.item_room()), (ITEMS_FIRST, 4 * ITEMS_FIRST));
            }
        }
        assert_eq!((sent.items.len(), sent.item_room()), (4 * ITEMS_FIRST, ITEMS_FIRST - 2));
        sent.acknowledge(1, 9, |item| seen.push(item.position), |_| {});
        assert!(seen.into_iter().eq(0..next));
    }

    #[test]
    fn what_asks_for_nothing_leaves_nothing() {
        let mut sent = Sent::new(2, 2);
        for _ in 0..10 {
            sent.commit(0, 60, false);
        }
        assert_eq!((sent.next(), sent.in_flight(), sent.has_packet_room()), (10, 0, true));
    }
}
