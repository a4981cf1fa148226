//! Holds the round trip near a target.

use super::{Acknowledged, Controller, Window};
use crate::Nanos;

/// As Swift (SIGCOMM 2020), without what scales the target by hops and flows, and without windows below two packets.
#[derive(Clone, Copy, Debug)]
pub struct Swift {
    window: Window,
    target: Nanos,
    shrunk_at: Option<Nanos>,
}

/// Parts of the excess by which it shrinks.
const BETA: u64 = 820;
/// At least so many of 1024 parts are left.
const LEAST_LEFT: u64 = 512;

impl Swift {
    pub fn new(packet: u64, target: Nanos) -> Swift {
        Swift { window: Window::new(packet), target, shrunk_at: None }
    }

    fn may_shrink(&self, now: Nanos, rtt: Nanos) -> bool {
        self.shrunk_at.is_none_or(|at| now.saturating_sub(at) >= rtt)
    }

    fn shrink(&mut self, parts: u64, now: Nanos) {
        self.window.shrink(parts.max(LEAST_LEFT), now);
        self.shrunk_at = Some(now);
    }
}

impl Controller for Swift {
    fn window(&self) -> u64 {
        self.window.bytes
    }

    fn acknowledged(&mut self, what: &Acknowledged) {
        let delay = what.rtt.unwrap_or(what.smoothed_rtt);
        if delay <= self.target && what.marked == 0 {
            if !what.is_idle {
                self.window.grow(what.bytes);
            }
        } else if self.may_shrink(what.now, what.smoothed_rtt) {
            let excess = 1024 * delay.saturating_sub(self.target) / delay.max(1);
            self.shrink(1024 - BETA * excess / 1024, what.now);
        }
    }

    fn lost(&mut self, sent_at: Nanos, now: Nanos) {
        if self.window.is_news(sent_at) {
            self.shrink(LEAST_LEFT, now);
        }
    }

    fn silent(&mut self) {
        self.window.collapse();
    }
}
