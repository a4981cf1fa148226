//! Another host's engine: how it is reached, and what is moved between carriers and the link.

use crate::carriers::{self, Carriers, DATAGRAMS, RDMA, TRUNK};
use crate::choice::Way;
use crate::desk::{Desk, View};
use crate::greeting::{Agreed, Binding, Greeting, Over, Terms};
use crate::hosts::{self, Hosts};
use crate::silence::silence_ns;
use crate::socket;
use crate::standing::Standing;
use sd_carrier::{Carrier, Trunk, TrunkConfig};
use sd_keys::{Credentials, Keys, Protection, Trust};
use sd_link::congestion::Congestion;
use sd_link::seal::Checksum;
use sd_link::{Config, Limits, Link, Taken};
use sd_proto::PeerState;
use sd_sys::Errno;
use sd_sys::time::now_ns;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// After an attempt to reach it, the next: at first, and at last.
const PAUSE_NS: [u64; 2] = [100_000_000, 5_000_000_000];
/// Who says for so long that nobody listens has no engine any more: one that has died has a successor at once.
const GONE_NS: u64 = 2_000_000_000;
/// Looked at once in this time while nothing else happens.
pub(crate) const FOREVER_NS: u64 = u64::MAX;
/// So many callers, who may be anybody at its address, are heard at once.
const GREETINGS_MAX: usize = 4;
/// What has come is acknowledged after so long at the latest.
pub(crate) const ACK_DELAY_NS: u64 = 1_000_000;

/// Whether the hosts file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenure {
    Stays,
    /// It does not, or in another way: what is left goes back to the kernel's.
    Leaves,
    /// Nothing is left.
    Gone,
}

/// See the module.
pub(crate) struct Peer {
    pub(crate) tenure: Tenure,
    carriers: Carriers,
    /// A socket that the loop does not watch yet.
    unwatched: Option<i32>,
    greetings: Vec<Greeting>,
    engine: hosts::Engine,
    listen: SocketAddr,
    congestion: Congestion,
    rekey_ns: u64,
    tenants: Arc<[(u32, Limits)]>,
    credentials: Arc<Credentials>,
    /// Of the link.
    binding: Binding,
    /// This engine connects; otherwise that one does.
    dials: bool,
    dial_at: u64,
    pause: u64,
    standing: Standing,
    /// Since when its host says that nobody listens.
    refused_at: Option<u64>,
}

impl Peer {
    pub(crate) fn new(hosts: &Hosts, engine: &hosts::Engine) -> Peer {
        let dials = hosts.listen < engine.address;
        Peer {
            tenure: if engine.is_gone { Tenure::Gone } else { Tenure::Stays },
            carriers: Carriers::new(hosts.carriers, [hosts.listen, engine.address]),
            unwatched: None,
            greetings: Vec::new(),
            engine: engine.clone(),
            listen: hosts.listen,
            congestion: hosts.congestion,
            rekey_ns: hosts.rekey_ns(),
            tenants: hosts.tenants().into(),
            credentials: Arc::clone(&hosts.credentials),
            binding: [0; 32],
            dials,
            dial_at: 0,
            pause: PAUSE_NS[0],
            standing: Standing::new(engine.address, &engine.trust, dials, now_ns()),
            refused_at: None,
        }
    }

    /// How it stands with that engine, and by which trunk.
    pub(crate) fn standing(&mut self) -> (&mut Standing, Option<&Trunk>) {
        (&mut self.standing, self.carriers.trunk())
    }

    pub(crate) fn is_at(&self, ip: IpAddr) -> bool {
        let is_called = !self.dials && self.tenure == Tenure::Stays;
        is_called && self.engine.address.ip().to_canonical() == ip.to_canonical()
    }

    /// The kernel tells of it.
    pub(crate) fn has_news(&mut self) {
        self.carriers.has_news();
    }

    /// Something may have come, as the kernel was not asked.
    pub(crate) fn may_have_news(&mut self, now: u64) {
        self.carriers.may_have_news(now);
    }

    /// A descriptor that is new, and to be watched; until there is none.
    pub(crate) fn unwatched(&mut self) -> Option<i32> {
        self.unwatched.take().or_else(|| self.carriers.unwatched())
    }

    /// When it has something to do by itself.
    pub(crate) fn next_time(&self, link: &Link) -> u64 {
        let dials = self.is_dialled(link) && self.carriers.trunk().is_none() && self.greetings.is_empty();
        let dial = if dials { self.dial_at } else { FOREVER_NS };
        let greeting = self.greetings.iter().map(|greeting| greeting.until_ns).min().unwrap_or(FOREVER_NS);
        // A link that is not up has nobody to greet without a trunk.
        let is_used = self.carriers.trunk().is_some() || link.is_up();
        let choice = self.carriers.next_time(link).unwrap_or(FOREVER_NS);
        let link = link.next_time().filter(|_| is_used).unwrap_or(FOREVER_NS);
        dial.min(greeting).min(link).min(choice)
    }

    /// Who has to be called by the other one calls too while there is a session, to find out whether anybody is left there.
    fn is_dialled(&self, link: &Link) -> bool {
        self.tenure == Tenure::Stays && (self.dials || link.is_up())
    }

    /// Another hosts file, of which all that concerns the link is as it was.
    pub(crate) fn adopt(&mut self, hosts: &Hosts, now: u64, link: &mut Link) {
        (self.tenants, self.rekey_ns) = (hosts.tenants().into(), hosts.rekey_ns());
        link.rekey_after(self.rekey_ns);
        set_tenants(link, now, &self.tenants);
    }

    /// It is left, with all that there may still be.
    pub(crate) fn close(&mut self, at: usize, now: u64, link: &mut Link, desk: &mut Desk) {
        self.send(at, now + ACK_DELAY_NS, link, desk);
        self.tenure = Tenure::Gone;
        self.greetings.clear();
        self.carriers = Carriers::new(Default::default(), [self.listen, self.engine.address]);
        self.replace((at, now), (self.first_link(now), [0; 32]), link, desk);
    }

    /// Has a trunk made anew, where that is due. The socket is to be watched then.
    pub(crate) fn dial(&mut self, now: u64, from: IpAddr, link: &Link) -> Option<i32> {
        let is_reached = self.carriers.trunk().is_some() || !self.greetings.is_empty();
        if is_reached || !self.is_dialled(link) || now < self.dial_at {
            return None;
        }
        self.dial_at = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_NS[1]);
        let dialled = socket::dial(self.engine.address, from).map_err(|errno| Over::failed(errno, false));
        let socket = dialled.inspect_err(|over| self.standing.failed(over, now)).ok()?;
        let raw = socket.as_raw_fd();
        let greeting = Greeting::call(socket, now, &self.terms());
        self.greetings.push(greeting);
        Some(raw)
    }

    /// Somebody at its address has called.
    pub(crate) fn called(&mut self, socket: OwnedFd, now: u64) {
        if self.greetings.len() >= GREETINGS_MAX {
            self.greetings.remove(0);
        }
        self.greetings.push(Greeting::called(socket, now));
    }

    fn terms(&self) -> Terms<'_> {
        Terms { credentials: &self.credentials, engine: &self.engine, binding: self.binding }
    }

    /// Moves what there is, in both directions: whether something came.
    pub(crate) fn carry(&mut self, at: usize, now: u64, link: &mut Link, desk: &mut Desk) -> bool {
        if !self.greetings.is_empty() {
            self.greet(at, now, link, desk);
        }
        if link.next_time().is_some_and(|due| due <= now)
            && let Taken::Down(cause) = link.tick(now, &mut View::of(desk, at))
        {
            self.standing.session_over(cause, now);
            desk.session_is_over(at);
        }
        let way = self.carriers.tend((at, now), link, desk).or_else(|| self.carriers.choose(now, link));
        way.into_iter().for_each(|way| self.standing.goes(way));
        let (mut is_up, mut is_down, mut is_heard, mut by_rdma) = (false, None, false, false);
        let has_come = self.carriers.receive(now, &mut |path, packet, is_marked| {
            // Datagrams anybody can send from its address, and its own may be late.
            is_heard |= path != DATAGRAMS;
            match take((at, now), path, packet, is_marked, link, desk) {
                Taken::Up => is_up = true,
                Taken::Down(cause) => is_down = Some(cause),
                Taken::Yes => by_rdma |= path == RDMA,
                Taken::No => {}
            }
        });
        if by_rdma {
            self.carriers.heard_by_rdma();
        }
        self.carriers.lend((at, now), desk);
        is_down.into_iter().for_each(|cause| self.standing.session_over(cause, now));
        if is_heard && link.is_up() {
            self.standing.heard(now);
        }
        if is_up || is_down.is_some() {
            // What there was is of the session before, or of no engine any more.
            self.carriers.leave_rdma(link).into_iter().for_each(|way| self.standing.goes(way));
        }
        if is_up {
            self.pause = PAUSE_NS[0];
            self.standing.session();
        }
        has_come
    }

    fn greet(&mut self, at: usize, now: u64, link: &mut Link, desk: &mut Desk) {
        for greeting in std::mem::take(&mut self.greetings) {
            let is_late = greeting.until_ns <= now;
            match greeting.look(&self.terms()) {
                Ok(Ok(agreed)) => self.agreed(at, now, agreed, link, desk),
                Ok(Err(greeting)) if !is_late => self.greetings.push(greeting),
                Ok(Err(_)) => self.standing.failed(&Over(PeerState::Silent, Errno(0)), now),
                Err(over) => {
                    if over.0 == PeerState::Refused {
                        self.refused(at, now, link, desk);
                    }
                    self.standing.failed(&over, now);
                }
            }
        }
    }

    /// Nobody listens there. Programs there are gone, or have lost their connections with their engine: so do those here.
    fn refused(&mut self, at: usize, now: u64, link: &mut Link, desk: &mut Desk) {
        let since = *self.refused_at.get_or_insert(now);
        if now - since >= GONE_NS && link.is_up() {
            self.carriers.end_datagrams();
            self.replace((at, now), (self.first_link(now), [0; 32]), link, desk);
        }
    }

    /// Another link takes the place of this one, whose session is over. What it has counted stays.
    fn replace(
        &mut self,
        (at, now): (usize, u64),
        (next, binding): (Link, Binding),
        link: &mut Link,
        desk: &mut Desk,
    ) {
        link.restart(now, &mut View::of(desk, at));
        desk.session_is_over(at);
        self.standing.keeps(link);
        (*link, self.binding) = (next, binding);
        self.carriers.begin_anew();
        self.standing.goes(Way::Trunk);
    }

    /// The trunk carries from now on; with a new link unless the one that there is goes on.
    fn agreed(&mut self, at: usize, now: u64, agreed: Agreed, link: &mut Link, desk: &mut Desk) {
        let Agreed { socket, goes_on, keys } = agreed;
        self.refused_at = None;
        // Without one the link that there is stays.
        let Ok(trunk) = Trunk::new(socket, TrunkConfig::default()) else { return };
        self.carriers.may_place(matches!(self.engine.trust, Trust::Plain));
        if !goes_on && self.begin(at, now, keys, link, desk).is_none() {
            return;
        }
        let (before, new) = self.carriers.begin(trunk, (self.listen, self.engine.address));
        self.unwatched = new;
        before.iter().for_each(|trunk| self.standing.leaves(trunk));
        if before.is_some() || goes_on {
            link.path_broke(TRUNK);
        }
    }

    fn begin(
        &mut self,
        at: usize,
        now: u64,
        keys: Option<Keys>,
        link: &mut Link,
        desk: &mut Desk,
    ) -> Option<()> {
        let binding = keys.as_ref().map_or([0; 32], Keys::binding);
        let protection = Protection::new(&self.engine.trust, keys).ok()?;
        self.replace((at, now), (self.link(now, protection), binding), link, desk);
        Some(())
    }

    /// Sends what there is to send.
    pub(crate) fn send(&mut self, at: usize, now: u64, link: &mut Link, desk: &mut Desk) {
        let mut view = View::of(desk, at);
        if let Some(trunk) = self.carriers.send(now, link, &mut view) {
            self.standing.leaves(&trunk);
            self.standing.lost(trunk.state(), now);
            link.path_broke(TRUNK);
        }
    }

    /// Before the other engine has shown itself there is nobody to talk to.
    pub(crate) fn first_link(&self, now: u64) -> Link {
        self.link(now, Protection::Plain(Checksum::default()))
    }

    fn link(&self, now: u64, protection: Protection) -> Link {
        let mut link = link(now, protection, self.congestion, &self.tenants);
        link.rekey_after(self.rekey_ns);
        link
    }
}

/// A packet has come from the peer `at`. Where a session begins or ends with it nothing of the one before is left: numbers begin anew.
pub(crate) fn take(
    (at, now): (usize, u64),
    path: u8,
    packet: &mut [u8],
    is_marked: bool,
    link: &mut Link,
    desk: &mut Desk,
) -> Taken {
    let mut view = View { by_rdma: path == RDMA, ..View::of(desk, at) };
    let taken = link.receive(now, path, packet, is_marked, &mut view);
    if let Taken::Down(_) = taken {
        link.restart(now, &mut view);
    }
    if matches!(taken, Taken::Up | Taken::Down(_)) {
        desk.session_is_over(at);
    }
    taken
}

/// As with an engine that nothing is said of.
#[cfg(test)]
pub(crate) fn no_link(now: u64) -> Link {
    let nobody = (0, Limits { weight: 1, rate: None });
    link(now, Protection::Plain(Checksum::default()), Congestion::Dctcp, &[nobody])
}

fn link(now: u64, protection: Protection, congestion: Congestion, tenants: &[(u32, Limits)]) -> Link {
    let random = || sd_sys::mem::random().unwrap_or(now) | 1;
    let config = Config { silence: silence_ns(), ..Config::new(random(), random()) };
    let mut link = Link::new(config, &carriers::paths(congestion), protection);
    set_tenants(&mut link, now, tenants);
    [DATAGRAMS, RDMA].into_iter().for_each(|path| link.carries(path, false));
    link
}

fn set_tenants(link: &mut Link, now: u64, tenants: &[(u32, Limits)]) {
    for (id, limits) in tenants {
        let _ = link.tenant(now, *id, *limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Connection, WINDOW};
    use crate::words::{Here, Question, Streams};
    use sd_proto::{Ip, Request};

    /// Another engine, which was started now, and the time there.
    struct Other {
        link: Link,
        desk: Desk,
        now: u64,
    }

    impl Other {
        fn new(now: u64) -> Other {
            Other { link: no_link(now), desk: Desk::default(), now }
        }

        /// What each has to say goes to the other; here it is the peer `at`.
        fn exchange(&mut self, at: usize, link: &mut Link, desk: &mut Desk) {
            self.now += 10_000_000;
            let Other { link: other, desk: others, now } = self;
            other.tick(*now, &mut View::of(others, 0));
            link.tick(*now, &mut View::of(desk, at));
            let mut room = [0; 16 << 10];
            while let Some(len) = other.transmit(*now, 0, &mut room, &mut View::of(others, 0)) {
                take((at, *now), 0, &mut room[..len], false, link, desk);
            }
            while let Some(len) = link.transmit(*now, 0, &mut room, &mut View::of(desk, at)) {
                take((0, *now), 0, &mut room[..len], false, other, others);
            }
        }

        /// It greets, and asks about a connection: its number, which is the same here. What is asked here comes of it.
        fn asks(&mut self, at: usize, link: &mut Link, desk: &mut Desk) -> sd_link::Connection {
            let question = Question {
                local: (Ip([1; 16]), 1),
                remote: (Ip([2; 16]), 2),
                here: Here::default(),
                streams: Some(Streams { began: (3, 4), counted: (3, 4) }),
            };
            let mut asked = None;
            for _ in 0..200 {
                self.exchange(at, link, desk);
                asked = asked.or_else(|| self.link.open(0, 9, WINDOW, &question.encode()).ok());
                if let Some(number) = asked.filter(|_| !desk.asked.is_empty()) {
                    return number;
                }
            }
            panic!("nothing was asked");
        }
    }

    fn asks(link: &mut Link, desk: &mut Desk, now: u64) {
        Other::new(now).asks(0, link, desk);
    }

    /// Numbers of two links are alike.
    #[test]
    fn a_question_that_is_taken_back_ends_no_connection() {
        for at in [0, 1] {
            let (mut links, mut desk) = ([no_link(0), no_link(0)], Desk::default());
            let mut others = [Other::new(0), Other::new(0)];
            let mut carried = Connection::new(0, false, u64::MAX);
            others[0].asks(0, &mut links[0], &mut desk);
            let (_, first, ..) = desk.asked.pop().unwrap();
            carried.number = Some(first);
            let id = desk.connections.add(carried);
            links[0].accept(first, id, WINDOW, &[]).unwrap();
            let number = others[at].asks(at, &mut links[at], &mut desk);
            let (_, second, ..) = desk.asked.pop().unwrap();
            assert_eq!(first == second, at == 1);
            others[at].link.reset(number, 2, true).unwrap();
            (0..5).for_each(|_| others[at].exchange(at, &mut links[at], &mut desk));
            assert_eq!(links[at].connections(), u32::from(at == 0));
            assert_eq!(desk.connections.get(id).and_then(|carried| carried.number), Some(first));
        }
    }

    #[test]
    fn who_listens_no_more_has_no_session_and_what_was_counted_stays() {
        let (mut link, mut desk) = (no_link(0), Desk::default());
        asks(&mut link, &mut desk, 0);
        let file = "listen 10.0.0.1:7077\nhost 10.0.0.2 10.0.0.2:7077 plain\n";
        let hosts = Hosts::parse(file, std::path::Path::new("/nowhere")).unwrap();
        let mut peer = Peer::new(&hosts, &hosts.engines[0]);
        let taken = link.counters().packets_taken;
        peer.refused(0, 5, &mut link, &mut desk);
        assert!(link.is_up() && taken > 0);
        peer.refused(0, 5 + GONE_NS, &mut link, &mut desk);
        assert!(!link.is_up() && link.counters().packets_taken == 0);
        let told = peer.standing.report(&link, None);
        let Some(Request::Peer { packets_received, .. }) = told else { panic!("{told:?}") };
        assert_eq!(packets_received, taken);
    }

    #[test]
    fn a_question_of_an_engine_that_is_gone_is_not_taken_for_one_of_the_next() {
        let (mut link, mut desk) = (no_link(0), Desk::default());
        asks(&mut link, &mut desk, 0);
        let (_, first, ..) = desk.asked.pop().unwrap();
        // Not the one whose id the link says where it knows none.
        desk.connections.add(Connection::new(0, false, u64::MAX));
        let mut waits = Connection::new(0, false, u64::MAX);
        waits.number = Some(first);
        let id = desk.connections.add(waits);
        asks(&mut link, &mut desk, 10_000_000_000);
        // They look alike, as numbers begin anew.
        assert_eq!(desk.asked.iter().map(|(_, number, ..)| *number).collect::<Vec<_>>(), [first]);
        assert_eq!(desk.connections.get(id).and_then(|waits| waits.number), None);
    }
}
