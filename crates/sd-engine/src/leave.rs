//! Connections that are not to be carried any more, as the hosts file has changed (ADR 104), and engines that it names no more.
//!
//! ```text
//!  advised: both ends go back in order ──> nothing is left ──────────────────────────────> the link is closed
//!           └─ a minute later some are left ──> let go of: at exact bytes (ADR 101) ──────────┘
//! ```

use crate::connection::Connection;
use crate::desk::Desk;
use crate::peer::FOREVER_NS;
use crate::seat::Seat;
use sd_link::Link;
use sd_pump::control::Control;
use sd_ring::road::RoadWord;
use sd_shm::promotion::Advice;

/// Programs have so long to go back by themselves. One that is on its way back when it is let go of is reset.
pub(crate) const GRACE_NS: u64 = 60_000_000_000;
/// Then the other engine has so long to hear of those that are let go of.
pub(crate) const LAST_NS: u64 = 2_000_000_000;
/// Of a connection that both engines let go of: the way back is the one after the end of a session.
pub(crate) const LET_GO: u8 = 3;

/// Other engines that are being left, by their place.
#[derive(Default)]
pub(crate) struct Leaving(Vec<(usize, u64, bool)>);

/// What is due for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    LetGo(usize),
    Close(usize),
}

impl Connection {
    /// One end has begun to go back to the kernel's connection: the other one has to follow, as nothing can be said any more at exact bytes
    /// (ADR 101).
    pub(crate) fn goes_back(&self, seat: &Seat) -> bool {
        let Some(at) = self.at else { return false };
        let [a, b] = &seat.end.map.slot(at.slot).side;
        [RoadWord::LEAVING, RoadWord::LEFT, RoadWord::RESUME]
            .into_iter()
            .any(|word| a.road().has(word) || b.road().has(word))
    }
}

impl Leaving {
    pub(crate) fn begin(&mut self, peer: usize, now: u64) {
        if !self.0.iter().any(|(at, ..)| *at == peer) {
            self.0.push((peer, now + GRACE_NS, false));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn next_time(&self) -> u64 {
        self.0.iter().map(|(_, due, _)| *due).min().unwrap_or(FOREVER_NS)
    }

    /// What is due now; `is_done`: nothing is left between the two engines.
    pub(crate) fn due(&mut self, now: u64, is_done: impl Fn(usize) -> bool) -> Option<Due> {
        let at = self.0.iter().position(|(peer, due, _)| *due <= now || is_done(*peer))?;
        let (peer, due, is_let_go) = &mut self.0[at];
        let peer = *peer;
        if !*is_let_go && !is_done(peer) {
            (*due, *is_let_go) = (now + LAST_NS, true);
            return Some(Due::LetGo(peer));
        }
        self.0.swap_remove(at);
        Some(Due::Close(peer))
    }
}

impl Desk {
    /// Ends of connections that do not stay go back to the kernel's in order; those that have no slot yet are given up.
    pub(crate) fn send_back(
        &mut self,
        stays: impl Fn(&Connection) -> bool,
        why: Advice,
        links: &mut [Link],
        control: &mut Control,
    ) {
        for id in self.connections.ids() {
            let Some(connection) = self.connections.get(id).filter(|it| !stays(it)) else { continue };
            if connection.at.is_none() {
                self.give_up(id, links);
            } else {
                tracing::debug!(connection = id, ?why, "engine: back to the kernel");
                self.advise(id, why, links, control);
            }
        }
    }

    /// Lets go of connections that do not stay; a seat is that of the local end, which has one or is promised it.
    pub(crate) fn let_go(
        &mut self,
        stays: impl Fn(&Connection, Option<&Seat>) -> bool,
        links: &mut [Link],
        control: &mut Control,
    ) {
        for id in self.connections.ids() {
            let Desk { connections, seats, .. } = self;
            let Some(connection) = connections.get(id) else { continue };
            let seat = connection.promise.and_then(|(seat, _)| seats.get(seat));
            if stays(connection, seat.as_deref()) {
                continue;
            }
            let (peer, Some(number)) = (connection.peer, connection.lose()) else { continue };
            let _ = links[peer].reset(number, LET_GO, true);
            self.look_out(id, links, control);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_left_is_waited_for_let_go_of_and_closed() {
        let mut leaving = Leaving::default();
        leaving.begin(3, 5);
        leaving.begin(3, 9);
        leaving.begin(4, 5);
        let busy = |peer| peer == 4;
        assert_eq!(leaving.due(6, busy), Some(Due::Close(4)));
        assert_eq!((leaving.due(6, busy), leaving.next_time()), (None, 5 + GRACE_NS));
        let late = 5 + GRACE_NS;
        assert_eq!(leaving.due(late, busy), Some(Due::LetGo(3)));
        assert_eq!(leaving.due(late, busy), None);
        assert_eq!(leaving.due(late + LAST_NS, busy), Some(Due::Close(3)));
        assert!(leaving.is_empty() && leaving.next_time() == FOREVER_NS);
    }

    #[test]
    fn what_is_done_is_closed_at_once_and_what_ends_when_let_go_of_does_not_wait() {
        let mut leaving = Leaving::default();
        leaving.begin(0, 0);
        assert_eq!(leaving.due(GRACE_NS, |_| false), Some(Due::LetGo(0)));
        assert_eq!(leaving.due(GRACE_NS + 1, |_| true), Some(Due::Close(0)));
    }
}
