//! How this engine stands with another one: what is logged of that, and told to the monitor.
//!
//! ```text
//! peer --reached, lost, failed--> Standing --> log: each change once
//!                                    |
//!                 Reports, once a second at most --Peer--> monitor
//! ```
//! # Guarantees
//! * Nothing is logged for a message. An engine that stays away is logged once for each reason, and once a second at most, whoever calls
//!   from its address.
//! * The monitor is told when something has changed; then one wake-up more, a second later at most, tells the last of it. After that an idle
//!   engine sleeps.

use crate::choice::Way;
use crate::greeting::Over;
use crate::peer::{FOREVER_NS, Peer, Tenure};
use sd_carrier::{End, State, Trunk};
use sd_keys::Trust;
use sd_link::{Cause, Counters, Link};
use sd_proto::{PeerState, Request};
use sd_pump::control::Control;
use sd_sys::Errno;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

/// From one report to the next, and from one line about a greeting that failed to the next.
const EVERY_NS: u64 = 1_000_000_000;
const NO_ERRNO: Errno = Errno(0);

/// See the module.
pub(crate) struct Standing {
    address: SocketAddr,
    is_sealed: bool,
    way: Way,
    state: PeerState,
    errno: Errno,
    since_ns: u64,
    /// What the last attempt came to, and when that was logged.
    failed: Option<(PeerState, i32)>,
    failed_at: Option<u64>,
    /// Of links and trunks before those that there are.
    links: Counters,
    retransmitted: u64,
    /// What the monitor knows.
    told: Option<Request>,
}

impl Standing {
    pub(crate) fn new(address: SocketAddr, trust: &Trust, dials: bool, now: u64) -> Standing {
        Standing {
            address,
            is_sealed: *trust != Trust::Plain,
            way: Way::Trunk,
            state: if dials { PeerState::Calling } else { PeerState::Awaited },
            errno: NO_ERRNO,
            since_ns: now,
            failed: None,
            failed_at: None,
            links: Counters::default(),
            retransmitted: 0,
            told: None,
        }
    }

    /// Something has come over the trunk that is of the session.
    #[inline]
    pub(crate) fn heard(&mut self, now: u64) {
        if self.state != PeerState::Up {
            self.reached(now);
        }
    }

    fn reached(&mut self, now: u64) {
        let how = if self.is_sealed { "encrypted" } else { "plain" };
        tracing::info!("engine: {} is reached, {how}", self.address);
        self.turns(PeerState::Up, NO_ERRNO, now);
    }

    fn turns(&mut self, state: PeerState, errno: Errno, now: u64) {
        (self.state, self.errno, self.since_ns) = (state, errno, now);
        (self.failed, self.failed_at) = (None, None);
    }

    /// The trunk carries no more.
    pub(crate) fn lost(&mut self, end: State, now: u64) {
        let (state, errno) = match end {
            State::Ended(End::Broken(errno)) => (PeerState::Broken, Errno(errno)),
            State::Ended(End::Length(_) | End::Truncated) => (PeerState::Noise, NO_ERRNO),
            _ => (PeerState::Ended, NO_ERRNO),
        };
        if self.state != PeerState::Up {
            // It has not shown that it takes the greeting.
            return self.failed(&Over(PeerState::Unwelcome, NO_ERRNO), now);
        }
        tracing::info!("engine: {} is lost: {}", self.address, why(state, errno));
        self.turns(state, errno, now);
    }

    /// Packets go another way.
    pub(crate) fn goes(&mut self, way: Way) {
        if self.way != way {
            let (what, why) = match way {
                Way::Trunk if self.way == Way::Rdma => ("by the trunk", "RDMA is lost"),
                Way::Trunk => ("by the trunk", "datagrams lose nothing, or do not arrive"),
                Way::Rdma => ("by RDMA", "both hosts have it"),
                Way::Datagrams => ("as datagrams", "the trunk suffers from loss, or is not to be used"),
            };
            tracing::info!("engine: packets to {} go {what}: {why}", self.address);
        }
        self.way = way;
    }

    /// A session has begun.
    pub(crate) fn session(&self) {
        tracing::info!("engine: a session with {} has begun", self.address);
    }

    /// The session is over, for another reason than that a new one begins.
    pub(crate) fn session_over(&mut self, cause: Cause, now: u64) {
        let state = match cause {
            Cause::Silence => PeerState::Silent,
            Cause::Violation => PeerState::Noise,
            Cause::Restarted | Cause::Asked => return,
        };
        tracing::info!("engine: the session with {} is over: {}", self.address, state.text());
        self.turns(state, NO_ERRNO, now);
    }

    /// It could not be called, or a greeting has come to nothing: perhaps of somebody else at its address.
    pub(crate) fn failed(&mut self, over: &Over, now: u64) {
        let Over(state, errno) = *over;
        if self.state != PeerState::Up {
            (self.state, self.errno) = (state, errno);
        }
        let is_known = self.failed == Some((state, errno.0));
        if is_known || self.failed_at.is_some_and(|at| now.saturating_sub(at) < EVERY_NS) {
            return;
        }
        (self.failed, self.failed_at) = (Some((state, errno.0)), Some(now));
        tracing::info!("engine: a greeting with {} fails: {}", self.address, why(state, errno));
    }

    /// Another trunk takes the place of this one, or none.
    pub(crate) fn leaves(&mut self, trunk: &Trunk) {
        self.retransmitted += below(trunk).map_or(0, |info| u64::from(info.retransmitted));
    }

    /// A new link takes the place of this one.
    pub(crate) fn keeps(&mut self, link: &Link) {
        self.links = self.sum(link);
    }

    fn sum(&self, link: &Link) -> Counters {
        let (old, new) = (&self.links, link.counters());
        Counters {
            packets_sent: old.packets_sent + new.packets_sent,
            packets_taken: old.packets_taken + new.packets_taken,
            bytes_sent: old.bytes_sent + new.bytes_sent,
            bytes_taken: old.bytes_taken + new.bytes_taken,
            lost_records: old.lost_records + new.lost_records,
            placed: [0, 1].map(|way| old.placed[way] + new.placed[way]),
            ..Counters::default()
        }
    }

    /// Whether the monitor knows another state than this. What the kernel counts changes with packets only.
    fn has_news(&self, link: &Link) -> bool {
        let Some(Request::Peer {
            state, errno, connections, packets_sent, packets_received, carrier, ..
        }) = self.told
        else {
            return true;
        };
        let sum = self.sum(link);
        (packets_sent, packets_received) != (sum.packets_sent, sum.packets_taken)
            || connections != link.connections()
            || carrier != self.way.carrier()
            || (state, errno) != (self.state, self.errno.0 as u32)
    }

    /// What the monitor is to be told, if that is new.
    pub(crate) fn report(&mut self, link: &Link, trunk: Option<&Trunk>) -> Option<Request> {
        if !self.has_news(link) {
            return None;
        }
        let (sum, below) = (self.sum(link), trunk.and_then(below));
        let kernels = below.map(|info| u64::from(info.rtt_us) * 1000);
        let report = Request::Peer {
            ip: self.address.ip().into(),
            port: self.address.port(),
            state: self.state,
            errno: self.errno.0 as u32,
            sealed: self.is_sealed,
            carrier: self.way.carrier(),
            since_ns: self.since_ns,
            // Before anything was acknowledged the kernel knows it, from the greeting.
            rtt_ns: link.rtt().or(kernels).unwrap_or(0),
            connections: link.connections(),
            bytes_sent: sum.bytes_sent,
            bytes_received: sum.bytes_taken,
            packets_sent: sum.packets_sent,
            packets_received: sum.packets_taken,
            placed_sent: sum.placed[0],
            placed_received: sum.placed[1],
            said_again: sum.lost_records,
            retransmitted: self.retransmitted + below.map_or(0, |info| u64::from(info.retransmitted)),
        };
        self.told = Some(report);
        Some(report)
    }
}

/// A state in words, with the kernel's reason.
fn why(state: PeerState, errno: Errno) -> String {
    match errno {
        NO_ERRNO => state.text().to_owned(),
        Errno(errno) => format!("{}: {}", state.text(), std::io::Error::from_raw_os_error(errno)),
    }
}

/// What the kernel says of a trunk.
fn below(trunk: &Trunk) -> Option<sd_sys::tcp::Info> {
    sd_sys::tcp::info(trunk.as_fd().as_raw_fd()).ok()
}

/// When the monitor is told.
#[derive(Default)]
pub(crate) struct Reports {
    due_ns: u64,
}

impl Reports {
    /// Tells the monitor what has changed, if its last report is a second old.
    #[inline]
    pub(crate) fn look(&mut self, now: u64, peers: &mut [Peer], links: &[Link], control: &mut Control) {
        if now >= self.due_ns {
            self.tell(now, peers, links, control);
        }
    }

    #[cold]
    fn tell(&mut self, now: u64, peers: &mut [Peer], links: &[Link], control: &mut Control) {
        self.due_ns = now + EVERY_NS;
        if control.has_ended {
            return;
        }
        for (peer, link) in peers.iter_mut().zip(links).filter(|(peer, _)| peer.tenure != Tenure::Gone) {
            let (standing, trunk) = peer.standing();
            if let Some(report) = standing.report(link, trunk) {
                control.tell(&report);
            }
        }
    }

    /// Another monitor knows nothing.
    pub(crate) fn begin_anew(&mut self, peers: &mut [Peer]) {
        peers.iter_mut().for_each(|peer| peer.standing().0.told = None);
        self.due_ns = 0;
    }

    /// When it has something to do though nothing else happens.
    pub(crate) fn next_time(&self, peers: &mut [Peer], links: &[Link], has_monitor: bool) -> u64 {
        let has_news = |(peer, link): (&mut Peer, &Link)| {
            peer.tenure != Tenure::Gone && peer.standing().0.has_news(link)
        };
        match has_monitor && peers.iter_mut().zip(links).any(has_news) {
            true => self.due_ns,
            false => FOREVER_NS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::no_link;

    fn standing() -> Standing {
        Standing::new("10.0.0.2:7077".parse().unwrap(), &Trust::Plain, true, 5)
    }

    fn told(standing: &mut Standing, link: &Link) -> Option<(PeerState, u64)> {
        match standing.report(link, None)? {
            Request::Peer { state, since_ns, port: 7077, sealed: false, .. } => Some((state, since_ns)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_has_not_changed_is_not_told_again() {
        let (mut it, link) = (standing(), no_link(0));
        assert_eq!(told(&mut it, &link), Some((PeerState::Calling, 5)));
        assert_eq!(told(&mut it, &link), None);
        it.failed(&Over(PeerState::Refused, Errno(libc::ECONNREFUSED)), 10);
        assert_eq!(told(&mut it, &link), Some((PeerState::Refused, 5)), "since it was not reached");
        it.failed(&Over(PeerState::Refused, Errno(libc::ECONNREFUSED)), 20);
        assert_eq!(told(&mut it, &link), None);
        it.heard(30);
        it.heard(31);
        assert_eq!(told(&mut it, &link), Some((PeerState::Up, 30)));
    }

    #[test]
    fn who_is_up_stays_so_whatever_others_say_at_its_address() {
        let (mut it, link) = (standing(), no_link(0));
        it.heard(1);
        it.failed(&Over(PeerState::OtherKey, NO_ERRNO), 2);
        assert_eq!(told(&mut it, &link), Some((PeerState::Up, 1)));
        it.lost(State::Ended(End::Closed), 3);
        assert_eq!(told(&mut it, &link), Some((PeerState::Ended, 3)));
        it.lost(State::Ended(End::Closed), 4);
        assert_eq!(told(&mut it, &link), Some((PeerState::Unwelcome, 3)), "it has taken no greeting");
    }

    #[test]
    fn a_failure_is_logged_once_and_not_more_often_than_once_a_second() {
        let mut it = standing();
        let mut fails = |state, now| {
            let before = it.failed_at;
            it.failed(&Over(state, NO_ERRNO), now);
            it.failed_at != before
        };
        assert!(fails(PeerState::Refused, 1));
        assert!(!fails(PeerState::Refused, 3 * EVERY_NS));
        assert!(fails(PeerState::Silent, 3 * EVERY_NS));
        assert!(!fails(PeerState::Refused, 3 * EVERY_NS + 1), "in turn");
        assert!(fails(PeerState::Refused, 5 * EVERY_NS));
    }

    #[test]
    fn what_was_counted_stays() {
        let (mut it, link) = (standing(), no_link(0));
        it.links.bytes_sent = 7;
        it.links.packets_sent = 1;
        it.keeps(&link);
        let Some(Request::Peer { bytes_sent: 7, packets_sent: 1, rtt_ns: 0, .. }) = it.report(&link, None)
        else {
            panic!("{:?}", it.told);
        };
        assert!(!it.has_news(&link));
    }
}
