//! How much may be under way: one trait, and controllers that are chosen by configuration.
//!
//! | controller | takes as a sign | shrinks by |
//! |---|---|---|
//! | [`NewReno`] | loss, and a mark as if it were a loss (RFC 5681, 9002, 3168) | half |
//! | [`Dctcp`] | marks, and how many of a round trip's packets have them (RFC 8257) | as many as were marked, a half at most |
//! | [`Swift`] | delay beyond a target (SIGCOMM 2020) | the part of the delay that is too much, a half at most |
//! | [`Unlimited`] | nothing | for carriers that do this themselves, as kernel TCP does |
//!
//! Each must pass `tests/controllers.rs`.

mod dctcp;
mod new_reno;
mod swift;

use crate::Nanos;
use alloc::boxed::Box;
pub use dctcp::Dctcp;
pub use new_reno::NewReno;
pub use swift::Swift;

/// What an acknowledgement has shown.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    pub now: Nanos,
    /// Bytes that are now known to have come.
    pub bytes: u64,
    /// Packets that are now known to have come, and how many more had the network's mark.
    pub packets: u64,
    pub marked: u64,
    /// When the newest of these packets was sent.
    pub sent_at: Nanos,
    /// The round trip of the newest packet, if it was among these.
    pub rtt: Option<Nanos>,
    pub smoothed_rtt: Nanos,
    /// The sender had less to send than it might have.
    pub is_idle: bool,
}

/// How many bytes may be under way on a path.
///
/// ```
/// use sd_link::congestion::{Controller, NewReno};
/// let mut controller = NewReno::new(1400);
/// let before = controller.window();
/// controller.lost(1_000, 2_000);
/// assert_eq!(controller.window(), before / 2);
/// ```
pub trait Controller: core::fmt::Debug {
    fn window(&self) -> u64;
    fn acknowledged(&mut self, what: &Acknowledged);
    /// Packets are given up, the newest of which was sent at `sent_at`.
    fn lost(&mut self, sent_at: Nanos, now: Nanos);
    /// Nothing has come for several time-outs.
    fn silent(&mut self);
}

/// Which controller a path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    NewReno,
    Dctcp,
    /// With the delay that is aimed at.
    Swift(Nanos),
    Unlimited,
}

impl Congestion {
    /// A controller for packets of at most `packet` bytes.
    pub fn controller(self, packet: u64) -> Box<dyn Controller> {
        match self {
            Congestion::NewReno => Box::new(NewReno::new(packet)),
            Congestion::Dctcp => Box::new(Dctcp::new(packet)),
            Congestion::Swift(target) => Box::new(Swift::new(packet, target)),
            Congestion::Unlimited => Box::new(Unlimited),
        }
    }
}

/// Leaves it to the carrier.
#[derive(Clone, Copy, Debug)]
pub struct Unlimited;

impl Controller for Unlimited {
    fn window(&self) -> u64 {
        u64::MAX
    }
    fn acknowledged(&mut self, _: &Acknowledged) {}
    fn lost(&mut self, _: Nanos, _: Nanos) {}
    fn silent(&mut self) {}
}

/// No more than this is ever under way on a path.
const WINDOW_MAX: u64 = 64 << 20;

/// A window that grows by doubling up to a threshold, then by a packet each round trip.
#[derive(Clone, Copy, Debug)]
struct Window {
    bytes: u64,
    packet: u64,
    threshold: u64,
    /// What is sent before this belongs to a decrease that was made.
    recovered_from: Option<Nanos>,
    /// Bytes acknowledged since the last growth by a packet.
    credit: u64,
}

impl Window {
    fn new(packet: u64) -> Window {
        Window { bytes: 32 * packet, packet, threshold: u64::MAX, recovered_from: None, credit: 0 }
    }

    fn grow(&mut self, bytes: u64) {
        if self.bytes < self.threshold {
            self.bytes = (self.bytes + bytes).min(WINDOW_MAX);
            return;
        }
        self.credit += bytes;
        if self.credit >= self.bytes {
            self.credit -= self.bytes;
            self.bytes = (self.bytes + self.packet).min(WINDOW_MAX);
        }
    }

    /// Whether what was sent then is news, and not of the round trip that a decrease has answered.
    fn is_news(&self, sent_at: Nanos) -> bool {
        self.recovered_from.is_none_or(|from| sent_at > from)
    }

    /// Leaves `parts` of 1024.
    fn shrink(&mut self, parts: u64, now: Nanos) {
        self.recovered_from = Some(now);
        self.bytes = (self.bytes * parts / 1024).max(self.least());
        self.threshold = self.bytes;
        self.credit = 0;
    }

    fn collapse(&mut self) {
        self.threshold = (self.bytes / 2).max(self.least());
        self.bytes = self.least();
        self.credit = 0;
    }

    fn least(&self) -> u64 {
        2 * self.packet
    }
}
