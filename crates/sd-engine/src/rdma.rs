//! RDMA with one other engine: how both come to a pair, and since when it may be used (ADR 112).
//!
//! ```text
//!  who dials                                             who is called
//!  makes an end ── offer, by the link ─────────────────> makes an end and connects it
//!  connects its own <───────────────────────── offer ─── is quiet, as that end may not be connected yet
//!  asks, by RDMA ──────────────────────────────────────> something has come: all goes by RDMA now
//!  all goes by RDMA now <───────────────────── answer ──
//! ```
//! An offer is a question of the link ([`crate::words::offer`]) that is refused, so it is sealed as all that the link carries, and an engine
//! that knows none refuses it, too. Where an end is lost the trunk carries again, and who dials offers another one.
//!
//! # Guarantees
//! * Nothing is sent but to a device that has the other engine's own address among its names.
//! * The other engine can have one end made a second, and one is there at a time.
//! * Nobody wakes up to try again: that is done when something goes between the engines.
//! * That the device or its port is gone ends an end at once, also where nothing goes by it.

use crate::desk::Desk;
use crate::words;
use sd_carrier::{Carrier, State, Verbs, VerbsConfig, VerbsEnd, VerbsError};
use sd_keys::hosts::Carriers as Allowed;
use sd_link::{Link, NOBODY};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

/// After an attempt the next one: at first, and at last.
const PAUSE_NS: [u64; 2] = [1_000_000_000, 60_000_000_000];
/// So long an end waits for the other engine's, and for what comes by it first: a trunk that suffers takes its time.
const UNANSWERED_NS: u64 = 20_000_000_000;
/// An end that was used for so long was no failure.
const GOOD_NS: u64 = 10_000_000_000;
/// What is refused is of no tenant.
const TENANT: u32 = 0;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Nothing,
    /// The other engine is told of the end here.
    Offered,
    /// Connected here, and perhaps not yet there: nothing is sent.
    Quiet,
    /// Connected at both ends: an answer is awaited.
    Asking,
    /// Something has come, and the caller is still to be told.
    Heard,
    /// The caller knows that it carries.
    Carries,
}

/// What the caller is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It carries from now on.
    Begins,
    /// What there was is lost: what is under way by it is to be sent again.
    Ends,
}

/// See the module.
pub(crate) struct Rdma {
    /// Of both engines; none: not of one kind, or not allowed.
    addresses: Option<[IpAddr; 2]>,
    dials: bool,
    end: Option<Verbs>,
    stage: Stage,
    /// When an end may be made again, and how long after an attempt.
    due: u64,
    pause: u64,
    /// Since when it carries.
    since: u64,
    /// When the other engine's offer was taken last.
    taken_at: Option<u64>,
    /// When the stage was reached that waits for the other engine.
    waits_since: u64,
    /// Descriptors of an end that the loop does not watch yet.
    unwatched: Vec<i32>,
    /// Rings may be lent to the end, and so many writes between them are known to be done.
    pub(crate) places: bool,
    placed: u64,
}

impl Rdma {
    pub(crate) fn new(allowed: Allowed, here: SocketAddr, there: SocketAddr) -> Rdma {
        let both = [here, there].map(|address| address.ip().to_canonical());
        let may = allowed == Allowed::Rdma && both[0].is_ipv4() == both[1].is_ipv4();
        Rdma {
            addresses: may.then_some(both),
            dials: here < there,
            end: None,
            stage: Stage::Nothing,
            due: 0,
            pause: PAUSE_NS[0],
            since: 0,
            taken_at: None,
            waits_since: 0,
            unwatched: Vec::new(),
            places: false,
            placed: 0,
        }
    }

    /// A session begins, or there is none any more.
    pub(crate) fn begin_anew(&mut self) {
        self.end_it();
        (self.due, self.pause) = (0, PAUSE_NS[0]);
    }

    pub(crate) fn unwatched(&mut self) -> Option<i32> {
        self.unwatched.pop()
    }

    /// It carries.
    pub(crate) fn carries(&self) -> bool {
        self.stage == Stage::Carries
    }

    /// By which something may be sent.
    pub(crate) fn speaker(&mut self) -> Option<&mut Verbs> {
        let may_speak = matches!(self.stage, Stage::Asking | Stage::Heard | Stage::Carries);
        self.end.as_mut().filter(|_| may_speak)
    }

    /// By which something may come: connected here.
    pub(crate) fn listener(&mut self) -> Option<&mut Verbs> {
        let is_connected = self.stage != Stage::Offered;
        self.end.as_mut().filter(|_| is_connected)
    }

    /// A packet of the session has come by it.
    pub(crate) fn heard(&mut self) {
        if matches!(self.stage, Stage::Quiet | Stage::Asking) {
            self.stage = Stage::Heard;
        }
    }

    /// Offers an end and takes the other engine's, where that is due; says what has become of it.
    pub(crate) fn tend(
        &mut self,
        (at, now): (usize, u64),
        path: u8,
        link: &mut Link,
        desk: &mut Desk,
    ) -> Option<Turn> {
        let mut offered = None;
        while let Some(place) = desk.ends.iter().position(|(of, ..)| *of == at) {
            let (_, number, end) = desk.ends.remove(place);
            let _ = link.refuse(number, 1);
            offered = Some(end);
        }
        if let Some(State::Ended(why)) = self.end.as_ref().map(Carrier::state) {
            tracing::debug!(?why, "engine: an end for RDMA is over");
            self.give_up(now);
            return Some(Turn::Ends);
        }
        if let Some(other) = offered {
            return self.take(now, &other, path, link);
        }
        let waits = matches!(self.stage, Stage::Offered | Stage::Asking);
        if waits && now - self.waits_since >= UNANSWERED_NS {
            self.give_up(now);
            return Some(Turn::Ends);
        }
        if self.dials && self.stage == Stage::Nothing && now >= self.due && link.is_up() {
            self.make(now, None, Stage::Offered, link);
        }
        if self.stage == Stage::Heard {
            (self.stage, self.since) = (Stage::Carries, now);
            return Some(Turn::Begins);
        }
        None
    }

    /// Lends the rings for which that is due, and looks which the device is done with.
    pub(crate) fn lend(&mut self, of: (usize, u64), desk: &mut Desk) {
        let carries = self.carries();
        let end = self.end.as_ref().filter(|_| carries && self.places);
        let placed = end.map_or(0, Verbs::placed);
        if placed != self.placed {
            self.placed = placed;
            desk.look_after_device();
        }
        if !desk.lender.wanted.is_empty() {
            desk.lend(of, end);
        }
    }

    /// What there was is lost, and the next attempt comes later.
    fn give_up(&mut self, now: u64) {
        let was_good = self.carries() && now - self.since >= GOOD_NS;
        self.pause = if was_good { PAUSE_NS[0] } else { (2 * self.pause).min(PAUSE_NS[1]) };
        self.end_it();
        self.due = now + self.pause;
    }

    fn end_it(&mut self) {
        (self.end, self.stage) = (None, Stage::Nothing);
        self.unwatched.clear();
    }

    /// Makes an end, connects it if the other one is known, and tells the other engine: it is at this stage then.
    fn make(&mut self, now: u64, other: Option<&VerbsEnd>, stage: Stage, link: &mut Link) {
        let Some([here, _]) = self.addresses else { return };
        self.due = now + self.pause;
        let first = sd_sys::mem::random().unwrap_or(now) as u32;
        let made = Verbs::at(here, VerbsConfig::default(), first).and_then(|mut end| {
            other.map_or(Ok(()), |other| end.connect(other))?;
            Ok(end)
        });
        match made {
            Ok(end) if link.open(TENANT, NOBODY, 0, &words::offer(&end.end())).is_ok() => {
                self.unwatched = other.map(|_| descriptors(&end)).unwrap_or_default();
                (self.end, self.stage, self.waits_since) = (Some(end), stage, now);
            }
            Ok(_) => {}
            Err(error) => self.fails(now, &error),
        }
    }

    fn fails(&mut self, now: u64, error: &VerbsError) {
        tracing::debug!("engine: no RDMA: {error}");
        self.give_up(now);
    }

    /// The other engine has told of its end.
    fn take(&mut self, now: u64, other: &VerbsEnd, path: u8, link: &mut Link) -> Option<Turn> {
        let is_its = self.addresses.is_some_and(|[_, there]| other.is_at(there));
        if !is_its {
            tracing::debug!("engine: an end for RDMA is refused: not at the other engine's address");
            return None;
        }
        if self.dials {
            let end = self.end.as_mut().filter(|_| self.stage == Stage::Offered)?;
            if let Err(error) = end.connect(other) {
                self.fails(now, &error);
                return Some(Turn::Ends);
            }
            self.unwatched = descriptors(end);
            (self.stage, self.waits_since) = (Stage::Asking, now);
            link.ask(path);
            return None;
        }
        if self.taken_at.is_some_and(|at| now - at < PAUSE_NS[0]) {
            return None;
        }
        // That engine has lost the one that there was.
        let had_one = self.end.is_some();
        self.end_it();
        self.taken_at = Some(now);
        self.make(now, Some(other), Stage::Quiet, link);
        had_one.then_some(Turn::Ends)
    }
}

/// What tells of completions, and of the device.
fn descriptors(end: &Verbs) -> Vec<i32> {
    vec![end.as_fd().as_raw_fd(), end.events().as_raw_fd()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carriers::{RDMA, TRUNK};
    use crate::desk::View;
    use crate::peer::no_link;

    const HERE: &str = "192.0.2.1:7077";
    const THERE: &str = "192.0.2.2:7077";

    fn rdma(here: &str, there: &str) -> Rdma {
        Rdma::new(Allowed::Rdma, here.parse().unwrap(), there.parse().unwrap())
    }

    /// An end at this address, as it is told.
    fn end_at(address: [u8; 4]) -> VerbsEnd {
        let mut told = [0; VerbsEnd::LEN];
        told[10..12].fill(0xff);
        told[12..16].copy_from_slice(&address);
        // The length of packets, below which there are none.
        told[26..28].copy_from_slice(&1024_u16.to_le_bytes());
        VerbsEnd::decode(&told).unwrap()
    }

    #[test]
    fn both_engines_have_addresses_of_one_kind() {
        let of = |here, there| rdma(here, there).addresses.is_some();
        assert!(
            of(HERE, THERE)
                && of("[2001:db8::1]:7077", "[2001:db8::2]:7077")
                && of("[::ffff:192.0.2.1]:7077", THERE)
        );
        assert!(!of(HERE, "[2001:db8::2]:7077"));
    }

    /// Two links, each with its desk, until they are quiet.
    fn exchange(now: &mut u64, links: &mut [Link; 2], desks: &mut [Desk; 2]) {
        let mut room = [0; 16 << 10];
        for _ in 0..50 {
            *now += 10_000_000;
            for from in [0, 1] {
                let mut view = View::of(&mut desks[from], 0);
                links[from].tick(*now, &mut view);
                while let Some(len) = links[from].transmit(*now, TRUNK, &mut room, &mut view) {
                    let mut other = View::of(&mut desks[1 - from], 0);
                    links[1 - from].receive(*now, TRUNK, &mut room[..len], false, &mut other);
                    view = View::of(&mut desks[from], 0);
                }
            }
        }
    }

    #[test]
    fn an_offer_leaves_no_connection_and_comes_to_one_engine() {
        let (mut links, mut desks, mut now) =
            ([no_link(1), no_link(2)], [Desk::default(), Desk::default()], 0);
        exchange(&mut now, &mut links, &mut desks);
        assert!(links.iter().all(Link::is_up));
        let told = end_at([192, 0, 2, 1]);
        links[0].open(TENANT, NOBODY, 0, &words::offer(&told)).unwrap();
        exchange(&mut now, &mut links, &mut desks);
        assert_eq!(desks[1].ends.iter().map(|(of, _, end)| (*of, *end)).collect::<Vec<_>>(), [(0, told)]);
        assert!(desks[1].asked.is_empty(), "it is no question");
        // Of another peer.
        let mut called = rdma(THERE, HERE);
        assert_eq!(called.tend((1, now), RDMA, &mut links[1], &mut desks[1]), None);
        assert_eq!(desks[1].ends.len(), 1);
        assert_eq!(called.tend((0, now), RDMA, &mut links[1], &mut desks[1]), None);
        assert!(desks[1].ends.is_empty());
        assert!(called.taken_at.is_some() && called.end.is_none(), "there is no such device here");
        exchange(&mut now, &mut links, &mut desks);
        assert_eq!(links.each_ref().map(Link::connections), [0, 0]);
    }

    #[test]
    fn an_end_that_is_not_at_the_other_engine_is_not_taken() {
        let mut link = no_link(0);
        for (here, there) in [(HERE, THERE), (THERE, HERE)] {
            let mut it = rdma(here, there);
            assert_eq!(it.take(5, &end_at([192, 0, 2, 77]), RDMA, &mut link), None);
            assert_eq!(it.taken_at, None);
        }
        let mut forbidden = Rdma::new(Allowed::Either, HERE.parse().unwrap(), THERE.parse().unwrap());
        assert_eq!(forbidden.take(5, &end_at([192, 0, 2, 2]), RDMA, &mut link), None);
        assert_eq!(forbidden.taken_at, None);
    }

    #[test]
    fn without_a_device_it_is_tried_more_and_more_seldom() {
        let (mut links, mut desks, mut now) =
            ([no_link(1), no_link(2)], [Desk::default(), Desk::default()], 0);
        exchange(&mut now, &mut links, &mut desks);
        let mut dials = rdma(HERE, THERE);
        let mut tries = Vec::new();
        for at in (now..now + 300_000_000_000).step_by(100_000_000) {
            let before = dials.due;
            assert_eq!(dials.tend((0, at), RDMA, &mut links[0], &mut desks[0]), None);
            if dials.due != before {
                tries.push((at - now) / 1_000_000_000);
            }
        }
        assert_eq!(tries, [0, 2, 6, 14, 30, 62, 122, 182, 242]);
    }
}
