//! Halves on loss, once each round trip.

use super::{Acknowledged, Controller, Window};
use crate::Nanos;

/// As RFC 5681 and 9002.
#[derive(Clone, Copy, Debug)]
pub struct NewReno {
    window: Window,
}

impl NewReno {
    pub fn new(packet: u64) -> NewReno {
        NewReno { window: Window::new(packet) }
    }
}

impl Controller for NewReno {
    fn window(&self) -> u64 {
        self.window.bytes
    }

    fn acknowledged(&mut self, what: &Acknowledged) {
        if what.marked > 0 {
            self.lost(what.sent_at, what.now);
        } else if !what.is_idle && self.window.is_news(what.sent_at) {
            self.window.grow(what.bytes);
        }
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
