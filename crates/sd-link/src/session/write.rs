//! Records into a packet, and what became of those that were sent.

use super::table::Stage;
use super::{Ends, Session, Way, bit};
use crate::Nanos;
use crate::path::{Item, Sent};
use crate::wire::{RECORD, RecordKind, put};

/// A packet that is being written.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    pub(crate) out: &'a mut [u8],
    pub(crate) at: usize,
}

impl Writer<'_> {
    fn room(&self) -> usize {
        self.out.len() - self.at
    }

    /// Writes a record with a body of `len` bytes, which `fill` writes; says whether there was room.
    #[inline]
    pub(crate) fn record(
        &mut self,
        kind: RecordKind,
        extra: u8,
        connection: u32,
        position: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(place) = self.out.get_mut(self.at..self.at + RECORD + len) else { return false };
        put(place, kind, extra, len as u16, connection, position as u32);
        fill(&mut place[RECORD..]);
        self.at += RECORD + len;
        true
    }
}

/// A record of bytes is not begun with room for fewer, unless there are no more.
const LEAST: usize = 128;
/// More bytes are never in one record, nor placed with one.
const MOST: usize = 32 << 10;

/// What is said of a connection besides bytes, in this order.
const SAID: [RecordKind; 9] = [
    RecordKind::Open,
    RecordKind::Opened,
    RecordKind::Refused,
    RecordKind::Credit,
    RecordKind::Said,
    RecordKind::Urgent,
    RecordKind::Fin,
    RecordKind::Stop,
    RecordKind::Reset,
];

impl Session {
    /// Fills a packet; what it holds is noted in `sent`. Says whether something is left that a next packet could hold. The carrier `places` bytes
    /// where it is asked to.
    pub(crate) fn fill(
        &mut self,
        now: Nanos,
        packet: &mut Writer<'_>,
        sent: &mut Sent,
        places: bool,
        ends: &mut (impl Ends + ?Sized),
    ) -> bool {
        self.fill_said(packet, sent)
            || self.fill_again(packet, sent, ends)
            || self.fill_new(now, packet, sent, places, ends)
    }

    fn fill_said(&mut self, packet: &mut Writer<'_>, sent: &mut Sent) -> bool {
        while let Some(key) = self.talking.first() {
            if sent.item_room() < SAID.len() || !self.fill_said_of(key, packet, sent) {
                return true;
            }
            self.talking.remove(&mut self.table, key);
        }
        false
    }

    /// Says what is due of one connection, as far as there is room.
    fn fill_said_of(&mut self, key: u32, packet: &mut Writer<'_>, sent: &mut Sent) -> bool {
        let connection = self.table.number(key);
        for kind in SAID {
            let is_there = self.is_known_there(key);
            let conn = self.table.at(key);
            let may_be_said = match kind {
                RecordKind::Open => true,
                RecordKind::Reset => is_there,
                // What is said before the answer would find a caller who has not taken the connection.
                _ => conn.stage != Stage::Opening,
            };
            if conn.due & bit(kind) == 0 || !may_be_said {
                continue;
            }
            let (extra, position) = match kind {
                RecordKind::Credit => (0, conn.consumed),
                RecordKind::Fin => (0, conn.announced),
                RecordKind::Reset => (conn.code, conn.reset_at),
                RecordKind::Refused => (conn.code, 0),
                RecordKind::Urgent => (conn.urgent.1, conn.urgent.0),
                RecordKind::Said => (0, conn.said_count),
                _ => (0, 0),
            };
            let words = if kind == RecordKind::Said { &conn.said } else { &conn.words };
            let words = words.as_deref().unwrap_or_default();
            let (tenant, window) = (self.turns.id(conn.tenant), conn.window);
            let mut body = [0; 8 + super::WORDS_MAX];
            let len = match kind {
                RecordKind::Said => {
                    body[..words.len()].copy_from_slice(words);
                    words.len()
                }
                RecordKind::Open => {
                    body[..4].copy_from_slice(&tenant.to_le_bytes());
                    body[4..8].copy_from_slice(&window.to_le_bytes());
                    body[8..8 + words.len()].copy_from_slice(words);
                    8 + words.len()
                }
                RecordKind::Opened => {
                    body[..4].copy_from_slice(&window.to_le_bytes());
                    body[4..4 + words.len()].copy_from_slice(words);
                    4 + words.len()
                }
                _ => 0,
            };
            let fill = |place: &mut [u8]| place.copy_from_slice(&body[..len]);
            if !packet.record(kind, extra, connection, position, len, fill) {
                return false;
            }
            sent.push(Item { connection, kind, len: 0, position });
            self.table.at(key).due &= !bit(kind);
        }
        true
    }

    /// Bytes that were in lost packets.
    fn fill_again(
        &mut self,
        packet: &mut Writer<'_>,
        sent: &mut Sent,
        ends: &mut (impl Ends + ?Sized),
    ) -> bool {
        while let Some(item) = self.again.front().copied() {
            let key = self.table.find(item.connection);
            let wanted = key.and_then(|key| self.still_wanted(key, &item));
            let (Some(key), Some(item)) = (key, wanted) else {
                self.again.pop_front();
                if let Some(key) = key {
                    self.settle_bytes(key, ends);
                }
                continue;
            };
            let len = usize::from(item.len).min(packet.room().saturating_sub(RECORD));
            if sent.item_room() == 0 || len < usize::from(item.len).min(LEAST) {
                return true;
            }
            let end = self.table.at(key).end;
            let read = |place: &mut [u8]| ends.read(end, item.position, place);
            packet.record(RecordKind::Data, 0, item.connection, item.position, len, read);
            sent.push(Item { len: len as u16, ..item });
            self.again.pop_front();
            if len < usize::from(item.len) {
                let rest = Item { position: item.position + len as u64, len: item.len - len as u16, ..item };
                self.table.at(key).unsettled += 1;
                self.again.push_front(rest);
            }
        }
        false
    }

    /// The part of lost bytes that the peer has not consumed: what it has is not in the ring any more.
    fn still_wanted(&mut self, key: u32, item: &Item) -> Option<Item> {
        let conn = self.table.at(key);
        let end = item.position + u64::from(item.len);
        let is_ended = conn.stage == Stage::Resetting && conn.reset_at == 0;
        let begin = item.position.max(conn.peer_consumed);
        let is_wanted = begin < end && !is_ended && conn.peer_reset.is_none();
        is_wanted.then(|| Item { position: begin, len: (end - begin) as u16, ..*item })
    }

    fn fill_new(
        &mut self,
        now: Nanos,
        packet: &mut Writer<'_>,
        sent: &mut Sent,
        places: bool,
        ends: &mut (impl Ends + ?Sized),
    ) -> bool {
        while let Some(key) = self.turns.next(now) {
            let connection = self.table.number(key);
            let conn = self.table.at(key);
            let most = conn.sendable().min(MOST as u64) as usize;
            let sendable = most.min(conn.turn.max(1024) as usize);
            let len = sendable.min(packet.room().saturating_sub(RECORD));
            if len < sendable.min(LEAST) || sent.item_room() == 0 {
                return true;
            }
            let (end, position) = (conn.end, conn.taken);
            // There is room for the record of it.
            let may_place = places && len >= LEAST;
            let way = if may_place { ends.place(end, position, most) } else { Way::Copied(len) };
            let len = match way {
                Way::Copied(together) => {
                    let len = len.min(together);
                    packet.record(RecordKind::Data, 0, connection, position, len, |place| {
                        ends.read(end, position, place)
                    });
                    len
                }
                Way::Placed(len) => {
                    let len = len.min(most);
                    self.placed[0] += len as u64;
                    let said = (len as u16).to_le_bytes();
                    packet.record(RecordKind::Placed, 0, connection, position, said.len(), |place| {
                        place.copy_from_slice(&said)
                    });
                    len
                }
            };
            let conn = self.table.at(key);
            conn.taken += len as u64;
            conn.unsettled += 1;
            sent.push(Item { connection, kind: RecordKind::Data, len: len as u16, position });
            self.turns.charge(&mut self.table, key, (len + RECORD) as u32);
        }
        false
    }

    /// A record has come.
    pub(crate) fn came(&mut self, item: Item, ends: &mut (impl Ends + ?Sized)) {
        let Some(key) = self.table.find(item.connection) else { return };
        match item.kind {
            RecordKind::Data => self.settle_bytes(key, ends),
            RecordKind::Open => self.is_confirmed(key),
            kind @ (RecordKind::Opened | RecordKind::Fin | RecordKind::Reset | RecordKind::Refused) => {
                self.table.at(key).known |= bit(kind);
                self.finish_if_done(key, ends);
            }
            _ => {}
        }
    }

    /// A record was lost: what it said is said again, as it is now.
    pub(crate) fn lost(&mut self, item: Item) {
        let Some(key) = self.table.find(item.connection) else { return };
        let conn = self.table.at(key);
        let is_known = conn.known & bit(item.kind) != 0;
        let is_living = matches!(conn.stage, Stage::Open | Stage::Opening);
        let is_wanted = match item.kind {
            RecordKind::Data => {
                self.again.push_back(item);
                return;
            }
            RecordKind::Open => !is_known && matches!(conn.stage, Stage::Opening | Stage::Resetting),
            RecordKind::Opened => !is_known && conn.stage == Stage::Open,
            RecordKind::Credit | RecordKind::Urgent | RecordKind::Stop | RecordKind::Said => is_living,
            RecordKind::Fin => is_living && !is_known,
            RecordKind::Reset | RecordKind::Refused => !is_known,
            RecordKind::Ack | RecordKind::Ping | RecordKind::Placed => false,
        };
        if is_wanted {
            self.say(key, item.kind);
        }
    }

    fn settle_bytes(&mut self, key: u32, ends: &mut (impl Ends + ?Sized)) {
        let conn = self.table.at(key);
        conn.unsettled = conn.unsettled.saturating_sub(1);
        if conn.unsettled == 0 {
            self.finish_if_done(key, ends);
        }
    }
}
