//! Packets in and out.

use super::greet::Heard;
use super::{Cause, Link, Taken};
use crate::Nanos;
use crate::path::Arrival;
use crate::session::{Ends, Fault, Session, Writer};
use crate::wire::{Ack, HEADER, HELLO, Header, Hello, PacketKind, RecordKind, Records, ack_max};

/// Records are foreseen so far ahead.
const AHEAD: usize = 4;

impl Link {
    /// Takes a packet that came by a path; `is_marked` by the network, as a sign of congestion.
    pub fn receive(
        &mut self,
        now: Nanos,
        path: u8,
        packet: &mut [u8],
        is_marked: bool,
        ends: &mut (impl Ends + ?Sized),
    ) -> Taken {
        let header = Header::decode(packet).ok().filter(|header| header.path == path);
        let Some(header) = header.filter(|_| usize::from(path) < self.paths.len()) else {
            self.counters.malformed += 1;
            return Taken::No;
        };
        match header.kind {
            PacketKind::Hello => self.hear(now, path, packet, ends),
            PacketKind::Records => self.take(now, &header, packet, is_marked, ends),
        }
    }

    fn hear(&mut self, now: Nanos, path: u8, packet: &mut [u8], ends: &mut (impl Ends + ?Sized)) -> Taken {
        let is_whole = packet.len() == self.hello_len() && self.seal.is_signed(packet);
        let body = packet.get(HEADER..HEADER + HELLO).filter(|_| is_whole);
        let Some(hello) = body.and_then(|body| Hello::decode(body).ok()) else {
            self.counters.malformed += 1;
            return Taken::No;
        };
        let was_up = self.is_up();
        if !was_up && self.greeting.next_time().is_none() {
            // The other engine has broken the rules, and the caller has not asked for more of it.
            return Taken::No;
        }
        let was_sure = self.greeting.may_send();
        let heard = self.greeting.hear(now, usize::from(path), &hello);
        let is_sure = self.greeting.may_send();
        if heard == Heard::Nothing {
            if is_sure && !was_sure {
                self.asked_since = None;
            }
            return Taken::Yes;
        }
        if was_up {
            self.session.clear(self.config.connections_max, ends);
            self.paths.iter_mut().for_each(crate::path::Path::begin_anew);
        }
        self.asked_since = (!is_sure).then_some(now);
        self.seal.begin(&self.greeting.names.session);
        Taken::Up
    }

    fn take(
        &mut self,
        now: Nanos,
        header: &Header,
        packet: &mut [u8],
        is_marked: bool,
        ends: &mut (impl Ends + ?Sized),
    ) -> Taken {
        let is_ours = self.is_up() && header.tag == self.greeting.names.receive_tag;
        if !is_ours || !self.seal.open(header.path, header.sealed_number(), packet, HEADER) {
            self.counters.forged += 1;
            return Taken::No;
        }
        let Some(path) = self.paths.get(usize::from(header.path)) else { return Taken::No };
        if !path.received.is_new(header.number) {
            self.counters.again += 1;
            return Taken::No;
        }
        self.greeting.is_sure();
        self.heard_at = now;
        self.asked_since = None;
        let body = packet.get(HEADER..packet.len() - self.seal.overhead()).unwrap_or_default();
        match self.take_records(now, header, body, ends) {
            Ok(is_asking) => {
                let arrival =
                    Arrival { number: header.number, age: header.age, at: now, is_asking, is_marked };
                if let Some(path) = self.paths.get_mut(usize::from(header.path)) {
                    path.received.insert(&arrival, &path.config.acks);
                }
                self.counters.packets_taken += 1;
                self.counters.bytes_taken += u64::from(header.len);
                Taken::Yes
            }
            Err(Fault::Shortage) => {
                self.counters.shortage += 1;
                Taken::No
            }
            Err(Fault::Violation) => {
                self.down(ends);
                Taken::Down(Cause::Violation)
            }
        }
    }

    /// Takes the records of a packet; says whether it asks for an acknowledgement.
    fn take_records(
        &mut self,
        now: Nanos,
        header: &Header,
        body: &[u8],
        ends: &mut (impl Ends + ?Sized),
    ) -> Result<bool, Fault> {
        let mut is_asking = false;
        let mut ahead = Records(body);
        let mut foresee = |session: &mut Session, ends: &mut _, count| {
            for record in ahead.by_ref().take(count).flatten() {
                session.soon(record.connection, ends);
            }
        };
        foresee(&mut self.session, ends, AHEAD);
        for record in Records(body) {
            foresee(&mut self.session, ends, 1);
            let record = record.map_err(|_| Fault::Violation)?;
            if record.kind == RecordKind::Ack {
                let ack = Ack::decode(&record).map_err(|_| Fault::Violation)?;
                let Some(path) = self.paths.get_mut(usize::from(header.path)) else { continue };
                let (session, counters) = (core::cell::RefCell::new(&mut self.session), &mut self.counters);
                let come = |item| session.borrow_mut().came(item, ends);
                let lost = |item| {
                    counters.lost_records += 1;
                    session.borrow_mut().lost(item);
                };
                path.acknowledged(now, &ack, come, lost).map_err(|_| Fault::Violation)?;
                continue;
            }
            is_asking = true;
            let path = self.paths.get(usize::from(header.path));
            if record.kind == RecordKind::Placed && !path.is_some_and(|path| path.config.places) {
                return Err(Fault::Violation);
            }
            self.session.take(&record, ends)?;
        }
        Ok(is_asking)
    }

    /// Writes the next packet for a path into `out`, and returns its length; `None` if there is nothing to send by it now.
    pub fn transmit(
        &mut self,
        now: Nanos,
        path: u8,
        out: &mut [u8],
        ends: &mut (impl Ends + ?Sized),
    ) -> Option<usize> {
        if let Some(hello) = self.greeting.take(usize::from(path)) {
            return self.greet(path, &hello, out);
        }
        if !self.greeting.may_send() {
            return None;
        }
        let road = self.paths.get_mut(usize::from(path))?;
        let overhead = self.seal.overhead();
        let len = out.len().min(road.config.packet_max);
        let out = out.get_mut(..len)?;
        let number = road.sent.next();
        let mut packet = Writer { out: out.get_mut(..len - overhead)?, at: HEADER };
        if packet.out.len() < HEADER + ack_max() + 128 {
            return None;
        }
        let is_acknowledging = road.received.is_asked();
        if is_acknowledging {
            packet.at += road.received.encode(now, &mut packet.out[HEADER..]);
        }
        let before = packet.at;
        if road.may_send() && (road.carries || road.must_ask) {
            let places = road.config.places;
            let is_more = road.carries && self.session.fill(now, &mut packet, &mut road.sent, places, ends);
            road.is_idle = !is_more;
            if road.must_ask && packet.at == before {
                packet.record(RecordKind::Ping, 0, 0, 0, 0, |_| {});
            }
        } else if road.carries {
            road.is_idle = false;
        }
        let is_asking = packet.at > before;
        let is_due = road.received.due().is_some_and(|due| due <= now);
        if !is_asking && !is_due {
            return None;
        }
        let len = packet.at + overhead;
        let out = out.get_mut(..len)?;
        let tag = self.greeting.names.send_tag;
        let age = road.sent.age();
        let phase = road.phase(now, self.config.rekey);
        let header = Header { kind: PacketKind::Records, path, len: len as u16, age, tag, number, phase };
        header.encode(out.first_chunk_mut::<HEADER>()?);
        self.seal.seal(path, header.sealed_number(), out, HEADER);
        if is_acknowledging {
            road.received.told();
        }
        road.commit(now, len, is_asking);
        if is_asking && self.asked_since.is_none() {
            self.asked_since = Some(now);
        }
        self.counters.packets_sent += 1;
        self.counters.bytes_sent += len as u64;
        Some(len)
    }

    /// Bytes of a greeting, with its signature.
    fn hello_len(&self) -> usize {
        HEADER + HELLO + self.seal.overhead()
    }

    fn greet(&mut self, path: u8, hello: &Hello, out: &mut [u8]) -> Option<usize> {
        let len = self.hello_len();
        let out = out.get_mut(..len)?;
        let header = Header {
            kind: PacketKind::Hello,
            path,
            len: len as u16,
            age: 0,
            tag: 0,
            number: 0,
            phase: false,
        };
        header.encode(out.first_chunk_mut::<HEADER>()?);
        hello.encode(out.get_mut(HEADER..)?.first_chunk_mut::<HELLO>()?);
        self.seal.sign(out);
        Some(len)
    }
}
