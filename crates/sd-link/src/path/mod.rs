//! One carrier between two engines: which packets have come, which were lost, and how much may be under way.
//!
//! A carrier is a *stream* (a kernel TCP connection, which loses nothing until it breaks) or *datagrams*. The parts are chosen by
//! configuration: the congestion controller, how loss is found, when acknowledgements are sent, how large packets are. What was
//! in a lost packet goes back to the session, which says it again in a new packet, on any path.

mod phase;
mod received;
mod rtt;
mod sent;

use crate::Nanos;
use crate::congestion::{Acknowledged, Congestion, Controller};
use crate::wire::{Ack, Malformed};
use alloc::boxed::Box;
use phase::Phase;
pub use received::AckPolicy;
pub(crate) use received::{Arrival, Received};
use rtt::Rtt;
pub(crate) use sent::Item;
pub(crate) use sent::Sent;

/// How loss is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// A packet is lost when one so many numbers later has come.
    pub gap_packets: u64,
    /// A packet is lost when a later one has come and so many eighths of a round trip have passed.
    pub time_eighths: u64,
    /// A packet without acknowledgement is asked about after the round trip and at least this.
    pub patience: Nanos,
    /// So many such questions in a row without an answer: the path is silent.
    pub questions: u32,
}

/// The parts of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Bytes of a packet, 512 to 65535.
    pub packet_max: usize,
    /// Packets and records that may be under way; the memory of the path.
    pub packets_max: usize,
    pub records_max: usize,
    pub congestion: Congestion,
    /// `None` for carriers that lose nothing.
    pub recovery: Option<Recovery>,
    pub acks: AckPolicy,
    pub rtt_initial: Nanos,
    /// The carrier can place bytes at the peer, ahead of the packet that says so; of a carrier that keeps the order.
    pub places: bool,
}

impl PathConfig {
    /// UDP in an Ethernet.
    pub fn datagrams() -> PathConfig {
        PathConfig {
            packet_max: 1472,
            packets_max: 2048,
            records_max: 1 << 15,
            congestion: Congestion::Dctcp,
            recovery: Some(Recovery { gap_packets: 3, time_eighths: 9, patience: 1_000_000, questions: 10 }),
            acks: AckPolicy { every: 8, delay: 50_000 },
            rtt_initial: 10_000_000,
            places: false,
        }
    }

    /// A kernel TCP connection between the engines.
    pub fn stream() -> PathConfig {
        PathConfig {
            packet_max: 16 << 10,
            congestion: Congestion::Unlimited,
            recovery: None,
            acks: AckPolicy { every: 8, delay: 1_000_000 },
            ..PathConfig::datagrams()
        }
    }
}

/// How a path does, for who chooses among several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Smoothed, once it is known.
    pub rtt: Option<Nanos>,
    /// When something that was sent was acknowledged last.
    pub heard_at: Nanos,
    /// Since when the oldest packet waits that was not acknowledged.
    pub waits_since: Option<Nanos>,
    /// Packets that were sent to ask for an answer since the last acknowledgement: none of a stream.
    pub questions: u32,
    /// Of this session, with those that ask for nothing.
    pub packets_sent: u64,
    pub packets_lost: u64,
}

/// One carrier.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) config: PathConfig,
    pub(crate) sent: Sent,
    pub(crate) received: Received,
    controller: Box<dyn Controller>,
    rtt: Rtt,
    largest_acknowledged: Option<u64>,
    marked: u32,
    /// When the next packet counts as lost though no later one comes.
    loss_at: Option<Nanos>,
    pub(crate) asked_at: Nanos,
    questions: u32,
    /// A packet may be sent although the window is full.
    pub(crate) must_ask: bool,
    /// Records go by it.
    pub(crate) carries: bool,
    heard_at: Nanos,
    packets_lost: u64,
    phase: Phase,
    /// The window was not filled when last there was nothing to send.
    pub(crate) is_idle: bool,
}

impl Path {
    pub(crate) fn new(config: PathConfig) -> Path {
        let packet_max = config.packet_max.clamp(512, 65535);
        Path {
            config: PathConfig { packet_max, ..config },
            sent: Sent::new(config.packets_max.max(8), config.records_max.max(512)),
            received: Received::new(),
            controller: config.congestion.controller(packet_max as u64),
            rtt: Rtt::new(config.rtt_initial),
            largest_acknowledged: None,
            marked: 0,
            loss_at: None,
            asked_at: 0,
            questions: 0,
            must_ask: false,
            carries: true,
            heard_at: 0,
            packets_lost: 0,
            phase: Phase::default(),
            is_idle: true,
        }
    }

    /// Another session: nothing of the one before is left but what the caller has chosen.
    pub(crate) fn begin_anew(&mut self) {
        *self = Path { carries: self.carries, ..Path::new(self.config) };
    }

    /// The phase of the keys of the next packet, which is sent now; they are to be no older than `every`.
    pub(crate) fn phase(&mut self, now: Nanos, every: Nanos) -> bool {
        self.phase.of(now, self.sent.next(), every, self.largest_acknowledged)
    }

    /// Whether a packet of records may be sent now.
    pub(crate) fn may_send(&self) -> bool {
        let is_within = self.sent.in_flight() < self.controller.window();
        self.sent.has_packet_room() && (is_within || self.must_ask)
    }

    /// The round-trip time, once there is one.
    pub(crate) fn rtt(&self) -> Option<Nanos> {
        self.rtt.is_known().then(|| self.rtt.smoothed())
    }

    /// How it does.
    pub(crate) fn health(&self) -> Health {
        Health {
            rtt: self.rtt(),
            heard_at: self.heard_at,
            waits_since: self.sent.oldest().map(|(_, at)| at),
            questions: self.questions,
            packets_sent: self.sent.next(),
            packets_lost: self.packets_lost,
        }
    }

    /// A packet was written.
    pub(crate) fn commit(&mut self, now: Nanos, bytes: usize, is_asking: bool) {
        self.sent.commit(now, bytes as u32, is_asking);
        if is_asking {
            self.asked_at = now;
            self.must_ask = false;
        }
    }

    /// An acknowledgement has come. Items of packets that arrived go to `come`, those that were lost to `lost`.
    pub(crate) fn acknowledged(
        &mut self,
        now: Nanos,
        ack: &Ack<'_>,
        mut come: impl FnMut(Item),
        lost: impl FnMut(Item),
    ) -> Result<(), Malformed> {
        if ack.largest >= self.sent.next() {
            return Err(Malformed);
        }
        let (mut bytes, mut packets, mut newest) = (0, 0, None::<sent::Fate>);
        for (begin, end) in ack.ranges() {
            self.sent.acknowledge(begin, end, &mut come, |fate| {
                (bytes, packets) = (bytes + u64::from(fate.bytes), packets + 1);
                newest = Some(newest.filter(|newest| newest.number > fate.number).unwrap_or(fate));
            });
        }
        let Some(newest) = newest else { return Ok(()) };
        (self.questions, self.heard_at) = (0, now);
        let is_largest = newest.number == ack.largest;
        if is_largest {
            self.rtt.sample(now.saturating_sub(newest.at), u64::from(ack.delay_us) * 1000);
        }
        self.largest_acknowledged = self.largest_acknowledged.max(Some(ack.largest));
        let news = ack.marked.wrapping_sub(self.marked);
        // Acknowledgements overtake each other, so an older count is no news.
        let marked = if news < 1 << 31 { u64::from(news).min(packets) } else { 0 };
        self.marked = if news < 1 << 31 { ack.marked } else { self.marked };
        self.controller.acknowledged(&Acknowledged {
            now,
            bytes,
            packets,
            marked,
            sent_at: newest.at,
            rtt: is_largest.then_some(self.rtt.latest),
            smoothed_rtt: self.rtt.smoothed(),
            is_idle: self.is_idle,
        });
        self.find_lost(now, lost);
        Ok(())
    }

    fn find_lost(&mut self, now: Nanos, lost: impl FnMut(Item)) {
        self.loss_at = None;
        let Some(largest) = self.largest_acknowledged else { return };
        // A stream keeps the order, so what was passed over there did not find memory, and is lost at once.
        let (gap, eighths) =
            self.config.recovery.map_or((1, 0), |parts| (parts.gap_packets, parts.time_eighths));
        let patience = self.rtt.smoothed().max(self.rtt.latest) * eighths / 8;
        let (mut loss_at, mut packets) = (None, 0);
        let is_lost = |number: u64, at: Nanos| {
            let is_before = number < largest;
            let is_lost = is_before && (largest - number >= gap || at + patience <= now);
            if is_before && !is_lost {
                loss_at = Some(at + patience);
            }
            packets += u64::from(is_lost);
            is_lost
        };
        if let Some(last) = self.sent.give_up(is_lost, lost) {
            self.controller.lost(last.at, now);
        }
        self.loss_at = loss_at;
        self.packets_lost += packets;
    }

    /// When [`Path::tick`] has something to do.
    pub(crate) fn next_time(&self) -> Option<Nanos> {
        let recovery = self.config.recovery?;
        let (_, oldest) = self.sent.oldest()?;
        Some(self.loss_at.unwrap_or_else(|| self.question_at(&recovery, oldest)))
    }

    fn question_at(&self, recovery: &Recovery, oldest: Nanos) -> Nanos {
        let unknown = if self.rtt.is_known() { 0 } else { self.config.rtt_initial };
        let patience = self.rtt.patience(recovery.patience) + self.config.acks.delay + unknown;
        self.asked_at.max(oldest) + (patience << self.questions.min(10)).min(1_000_000_000)
    }

    /// Time has passed. Items that are to be said again go to `lost`; returns whether the path has become silent.
    pub(crate) fn tick(&mut self, now: Nanos, lost: impl FnMut(Item)) -> bool {
        if self.next_time().is_none_or(|at| at > now) {
            return false;
        }
        let Some(recovery) = self.config.recovery else { return false };
        if self.loss_at.is_some() {
            self.find_lost(now, lost);
            return false;
        }
        // The oldest is said again, without a guess about the network.
        let oldest = self.sent.oldest().map_or(0, |(number, _)| number);
        self.sent.give_up(|number, _| number < oldest + 2, lost);
        self.must_ask = true;
        self.asked_at = now;
        self.questions += 1;
        if self.questions == 3 {
            self.controller.silent();
        }
        self.questions == recovery.questions
    }

    /// Nothing of what is under way is waited for any longer.
    pub(crate) fn give_up_all(&mut self, lost: impl FnMut(Item)) {
        self.sent.give_up(|_, _| true, lost);
        self.loss_at = None;
    }
}
