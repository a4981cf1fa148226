//! What carries packets to another host's engine: RDMA where both hosts have it ([`crate::rdma`]); else a trunk, or datagrams, as [`crate::choice`] says.
//!
//! To the link the trunk is path 0, datagrams are path 1, RDMA is path 2. Datagrams go from the address and port where this engine listens to that where the other one does,
//! so a firewall needs one rule for both.
//!
//! # Guarantees
//! * Datagrams are there only behind a greeting: nothing that somebody else sends from the other engine's address comes to a link that has no keys.
//! * A carrier that is not used costs nothing but its memory: datagrams are read where the kernel has told of some, or every now and then.

use crate::choice::{Advice, Choice, Seen, TrunkSeen, Way};
use crate::desk::{Desk, View};
use crate::rdma::{Rdma, Turn};
use crate::socket;
use sd_carrier::{Carrier, Datagram, DatagramConfig, Received, State, Trunk};
use sd_keys::hosts::Carriers as Allowed;
use sd_link::congestion::Congestion;
use sd_link::{Link, PathConfig};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

/// Paths of the link.
pub(crate) const TRUNK: u8 = 0;
pub(crate) const DATAGRAMS: u8 = 1;
pub(crate) const RDMA: u8 = 2;
/// Reads of a carrier before others have their turn.
const READS: usize = 4;
/// A carrier that has had news is asked until it had none so often: behind a part of a packet, which is none, may be its end.
const ASKED: u8 = 2;
/// So long after something came by datagrams they are asked in each look; then so often.
const LIVELY_NS: u64 = 10_000_000;
const SELDOM_NS: u64 = 100_000;

/// See the module.
pub(crate) struct Carriers {
    trunk: Option<Trunk>,
    datagrams: Option<Datagram>,
    rdma: Rdma,
    /// How often the trunk and datagrams are still to be asked whether something has come.
    news: [u8; 2],
    /// When datagrams came last, and when they were asked for some.
    came_at: u64,
    asked_at: u64,
    /// When the trunk was asked while RDMA carries.
    trunk_asked_at: u64,
    choice: Choice,
    allowed: Allowed,
    /// Packets of the trunk when it was looked at.
    packets: u64,
}

/// The paths of a link.
pub(crate) fn paths(congestion: Congestion) -> [PathConfig; 3] {
    let datagrams = PathConfig { congestion, ..PathConfig::datagrams() };
    let rdma = PathConfig { places: true, ..PathConfig::stream() };
    [PathConfig::stream(), datagrams, rdma]
}

impl Carriers {
    /// Between the engines that listen at these addresses, the own one first.
    pub(crate) fn new(allowed: Allowed, [here, there]: [SocketAddr; 2]) -> Carriers {
        Carriers {
            trunk: None,
            datagrams: None,
            rdma: Rdma::new(allowed, here, there),
            news: [0; 2],
            came_at: 0,
            asked_at: 0,
            trunk_asked_at: 0,
            choice: Choice::new(allowed),
            allowed,
            packets: 0,
        }
    }

    pub(crate) fn trunk(&self) -> Option<&Trunk> {
        self.trunk.as_ref()
    }

    /// The other engine has shown itself on this trunk. The one before, if there was one; and the socket of datagrams, if it is new.
    pub(crate) fn begin(
        &mut self,
        trunk: Trunk,
        (from, to): (SocketAddr, SocketAddr),
    ) -> (Option<Trunk>, Option<i32>) {
        let before = self.trunk.replace(trunk);
        self.news = [ASKED; 2];
        let mut new = None;
        if self.datagrams.is_none() && self.allowed != Allowed::Trunk {
            let socket =
                socket::datagrams(from, to).map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
            // Without them there is the trunk.
            self.datagrams = socket.and_then(|socket| Datagram::new(socket, DatagramConfig::default())).ok();
            new = self.datagrams.as_ref().map(|datagrams| datagrams.as_fd().as_raw_fd());
        }
        (before, new)
    }

    /// Another link takes the place of the one that there was: all begins with a trunk.
    pub(crate) fn begin_anew(&mut self) {
        self.choice = Choice::new(self.allowed);
        self.rdma.begin_anew();
    }

    /// A session begins, with RDMA anew: by what packets go from now on, if that changes.
    pub(crate) fn leave_rdma(&mut self, link: &mut Link) -> Option<Way> {
        let carried = self.rdma.carries();
        self.rdma.begin_anew();
        carried.then(|| go_by_trunk(link))
    }

    /// A descriptor of an end for RDMA that is new, and to be watched.
    pub(crate) fn unwatched(&mut self) -> Option<i32> {
        self.rdma.unwatched()
    }

    /// A packet of the session has come by RDMA.
    pub(crate) fn heard_by_rdma(&mut self) {
        self.rdma.heard();
    }

    /// Whether rings may be lent to a device: nothing is encrypted between the engines.
    pub(crate) fn may_place(&mut self, may: bool) {
        self.rdma.places = may;
    }

    /// See [`Rdma::lend`].
    pub(crate) fn lend(&mut self, of: (usize, u64), desk: &mut Desk) {
        self.rdma.lend(of, desk);
    }

    /// Nobody is there any more.
    pub(crate) fn end_datagrams(&mut self) {
        self.datagrams = None;
    }

    /// The kernel tells of one of them.
    pub(crate) fn has_news(&mut self) {
        self.rdma.listener().into_iter().for_each(Carrier::woken);
        self.news = [ASKED; 2];
    }

    /// The kernel was not asked.
    pub(crate) fn may_have_news(&mut self, now: u64) {
        if !self.rdma.carries() || now - self.trunk_asked_at > SELDOM_NS {
            (self.news[0], self.trunk_asked_at) = (ASKED, now);
        }
        let is_lively = self.choice.way() == Way::Datagrams || now - self.came_at < LIVELY_NS;
        if is_lively || now - self.asked_at > SELDOM_NS {
            (self.news[1], self.asked_at) = (ASKED, now);
        }
    }

    /// Hands over what has come, with its path, and whether the network has marked it; whether there was something.
    pub(crate) fn receive(&mut self, now: u64, each: &mut dyn FnMut(u8, &mut [u8], bool)) -> bool {
        let [news, datagrams_news] = &mut self.news;
        let by_trunk = self.trunk.as_mut().is_some_and(|trunk| receive(trunk, TRUNK, news, each));
        let by_datagrams = self
            .datagrams
            .as_mut()
            .is_some_and(|datagrams| receive(datagrams, DATAGRAMS, datagrams_news, each));
        // It is asked in each look, as that costs no system call.
        let mut rdma_news = ASKED;
        let by_rdma = self.rdma.listener().is_some_and(|end| receive(end, RDMA, &mut rdma_news, each));
        if by_datagrams {
            self.came_at = now;
            self.choice.may_be_answered();
        }
        by_trunk || by_datagrams || by_rdma
    }

    /// Sends what there is to send. A trunk that has ended is given back.
    pub(crate) fn send(&mut self, now: u64, link: &mut Link, view: &mut View<'_>) -> Option<Trunk> {
        if let Some(rdma) = self.rdma.speaker() {
            // That it has ended it says when something is received.
            rdma.send_placing(&mut |room, placing| {
                let (desk, peer) = (&mut *view.desk, view.peer);
                let mut view = View { placing: Some(placing), ..View::of(desk, peer) };
                link.transmit(now, RDMA, room, &mut view)
            });
        }
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.send(&mut |room| link.transmit(now, DATAGRAMS, room, view));
            if datagrams.state() != State::Open {
                self.datagrams = None;
                link.path_broke(DATAGRAMS);
            }
        }
        let trunk = self.trunk.as_mut()?;
        trunk.send(&mut |room| link.transmit(now, TRUNK, room, view));
        let is_open = trunk.state() == State::Open;
        if is_open { None } else { self.trunk.take() }
    }

    /// When [`Carriers::choose`] has something to do though nothing comes.
    pub(crate) fn next_time(&self, link: &Link) -> Option<u64> {
        let wanted = self.has_to_choose(link) && self.datagrams.is_some() && !self.rdma.carries();
        wanted.then(|| self.choice.next_time(link.health(TRUNK).waits_since))?
    }

    /// Something goes between the engines. Of who is quiet nothing can be seen, and nobody wakes for that.
    fn has_to_choose(&self, link: &Link) -> bool {
        let health = link.health(TRUNK);
        let is_used = health.waits_since.is_some() || health.packets_sent != self.packets;
        let is_wanted = link.connections() > 0 && (self.trunk.is_none() || self.choice.is_busy());
        link.is_up() && (is_used || is_wanted)
    }

    /// Goes on with RDMA: by what packets go from now on, if that changes.
    pub(crate) fn tend(&mut self, of: (usize, u64), link: &mut Link, desk: &mut Desk) -> Option<Way> {
        let carried = self.rdma.carries();
        let turn = self.rdma.tend(of, RDMA, link, desk);
        if turn == Some(Turn::Ends) {
            desk.take_back_rings(of.0);
        }
        match turn? {
            Turn::Begins => {
                self.choice = Choice::new(self.allowed);
                [TRUNK, DATAGRAMS].into_iter().for_each(|path| link.carries(path, false));
                link.carries(RDMA, true);
                // What was lost on its way comes late, and nobody waits for it there any more.
                link.say_again(DATAGRAMS);
                Some(Way::Rdma)
            }
            Turn::Ends => {
                link.path_broke(RDMA);
                carried.then(|| go_by_trunk(link))
            }
        }
    }

    /// Chooses another way, where that is due and better: which one.
    pub(crate) fn choose(&mut self, now: u64, link: &mut Link) -> Option<Way> {
        if self.rdma.carries() || !self.choice.is_due(now) || !self.has_to_choose(link) {
            return None;
        }
        let health = link.health(TRUNK);
        self.packets = health.packets_sent;
        let seen = |trunk: &Trunk| {
            let below = sd_sys::tcp::info(trunk.as_fd().as_raw_fd()).ok()?;
            Some(TrunkSeen {
                health,
                segments: below.segments_sent.into(),
                again: below.retransmitted.into(),
            })
        };
        let trunk = self.trunk.as_ref().and_then(seen);
        let datagrams = self.datagrams.is_some().then(|| link.health(DATAGRAMS));
        match self.choice.look(now, &Seen { trunk, datagrams }) {
            Advice::Stay => None,
            Advice::Ask => {
                link.ask(DATAGRAMS);
                None
            }
            Advice::Use(way) => {
                link.carries(TRUNK, way == Way::Trunk);
                link.carries(DATAGRAMS, way == Way::Datagrams);
                // What waits in a trunk that suffers comes late, and what datagrams carried that do not arrive never.
                link.say_again(if way == Way::Datagrams { TRUNK } else { DATAGRAMS });
                Some(way)
            }
        }
    }
}

/// After RDMA.
fn go_by_trunk(link: &mut Link) -> Way {
    link.carries(RDMA, false);
    link.carries(TRUNK, true);
    Way::Trunk
}

fn receive(
    carrier: &mut dyn Carrier,
    path: u8,
    news: &mut u8,
    each: &mut dyn FnMut(u8, &mut [u8], bool),
) -> bool {
    if *news == 0 {
        return false;
    }
    let mut has_come = false;
    for _ in 0..READS {
        let received = carrier.receive(&mut |packet, mark| {
            has_come = true;
            each(path, packet, mark.is_congested());
        });
        if received != Received::More {
            break;
        }
    }
    *news = if has_come { ASKED } else { *news - 1 };
    has_come
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::Desk;
    use crate::peer::no_link;

    #[test]
    fn who_has_asked_in_vain_sleeps_when_all_is_quiet() {
        let (mut link, mut other) = (no_link(0), no_link(0));
        let (mut desk, mut others) = (Desk::default(), Desk::default());
        let mut now = 0;
        while !link.is_up() || link.health(TRUNK).packets_sent == 0 {
            now += 60_000_000;
            assert!(now < 60_000_000_000, "no session");
            let (mut view, mut others) = (View::of(&mut desk, 0), View::of(&mut others, 0));
            let mut room = [0; 16 << 10];
            link.tick(now, &mut view);
            other.tick(now, &mut others);
            link.ask(TRUNK);
            while let Some(len) = link.transmit(now, TRUNK, &mut room, &mut view) {
                other.receive(now, TRUNK, &mut room[..len], false, &mut others);
            }
            while let Some(len) = other.transmit(now + 2_000_000, TRUNK, &mut room, &mut others) {
                link.receive(now, TRUNK, &mut room[..len], false, &mut view);
            }
        }
        let mut carriers =
            Carriers::new(Allowed::Either, [([10, 0, 0, 1], 7).into(), ([10, 0, 0, 2], 7).into()]);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        carriers.datagrams = Some(Datagram::new(socket, DatagramConfig::default()).unwrap());
        // There is no trunk, and something had gone by one.
        assert_eq!(carriers.choose(now, &mut link), None);
        assert!(carriers.choice.is_busy(), "datagrams are asked for an answer");
        assert_eq!((link.connections(), link.health(TRUNK).waits_since), (0, None));
        assert_eq!(carriers.next_time(&link), None);
    }
}
