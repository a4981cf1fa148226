//! Shrinks by as much as the network's marks say.

use super::{Acknowledged, Controller, Window};
use crate::Nanos;

/// As RFC 8257: `alpha` is the smoothed part of packets that are marked, in 1/1024.
#[derive(Clone, Copy, Debug)]
pub struct Dctcp {
    window: Window,
    alpha: u64,
    packets: u64,
    marked: u64,
    /// A round trip ends when something is acknowledged that was sent after its begin.
    round: Nanos,
}

impl Dctcp {
    pub fn new(packet: u64) -> Dctcp {
        Dctcp { window: Window::new(packet), alpha: 1024, packets: 0, marked: 0, round: 0 }
    }
}

impl Controller for Dctcp {
    fn window(&self) -> u64 {
        self.window.bytes
    }

    fn acknowledged(&mut self, what: &Acknowledged) {
        self.packets += what.packets;
        self.marked += what.marked.min(what.packets);
        if what.marked > 0 {
            // It stops doubling at the first mark, not at the end of the round trip.
            self.window.threshold = self.window.threshold.min(self.window.bytes);
        } else if !what.is_idle && self.window.is_news(what.sent_at) {
            self.window.grow(what.bytes);
        }
        if what.sent_at < self.round || self.packets == 0 {
            return;
        }
        let part = 1024 * self.marked / self.packets;
        self.alpha = (15 * self.alpha + part) / 16;
        if self.marked > 0 {
            self.window.shrink(1024 - self.alpha / 2, what.now);
        }
        (self.packets, self.marked, self.round) = (0, 0, what.now);
    }

    fn lost(&mut self, sent_at: Nanos, now: Nanos) {
        if self.window.is_news(sent_at) {
            self.window.shrink(512, now);
        }
    }

    fn silent(&mut self) {
        self.window.collapse();
    }
}
