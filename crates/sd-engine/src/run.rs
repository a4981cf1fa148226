//! The loop: what the monitor, local processes and other engines have said is done, until nothing has come for a while; then it sleeps.

mod questions;
mod reload;
mod retire;

use crate::desk::Desk;
use crate::hosts::Hosts;
use crate::namespaces::Namespaces;
use crate::patience::Patience;
use crate::peer::{ACK_DELAY_NS, FOREVER_NS, Peer};
use crate::policy::{self, Load};
use crate::seat::{self, Seat};
use crate::socket::{Listener, watch};
use crate::standing::Reports;
use crate::translations::Translations;
use crate::words::Question;
use sd_link::Link;
use sd_proto::{Reply, Request};
use sd_pump::control::{self, Control, Role};
use sd_sys::Errno;
use sd_sys::diag::Diag;
use sd_sys::fd::{EVENTFD_EDGE, Owned};
use sd_sys::msg::Received;
use sd_sys::time::now_ns;
use std::fmt;
use std::os::fd::AsRawFd;
use std::path::Path;

pub use retire::Ended;

/// What local processes write within so long goes together, as long as each look finds more.
const GATHER_NS: u64 = 15_000;
/// Behind a packet the next one waits so long: a program that needs some microseconds for each message would have one made for each.
const PACE_NS: u64 = 20_000;
/// What nobody rings for is looked at so often.
const VISIT_NS: u64 = 100_000;
/// However busy it is, it answers and calls other engines so often.
const MEETS_NS: u64 = 10_000_000;
/// So many trunks are asked each time whether something has come. Of more the kernel tells which have news.
const FEW: usize = 4;
/// So many callers are heard before connections have their turn.
const CALLERS_MAX: usize = 32;
/// Of whom the kernel tells, besides peers by their number.
const MONITOR: u64 = 1 << 32;
const CALLERS: u64 = 2 << 32;
const RINGS: u64 = 3 << 32;
const NAMES: u64 = 4 << 32;
const ENDS: u64 = 5 << 32;
/// Without a monitor: so often it is looked for.
const ORPHAN_NS: u64 = 200_000_000;

/// Why there is no engine.
#[derive(Debug)]
pub enum Error {
    /// The monitor wants none, or does not answer.
    Control(control::Error),
    /// It cannot listen there; another one may.
    Listen(std::net::SocketAddr, std::io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Control(error) => error.fmt(f),
            Error::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Serves as engine of the monitor at `socket`, and of those that follow it there, until it is not needed, or is to end (`parent`: who has started it).
/// SIGTERM is for it alone from then on, and blocked.
pub fn run(socket: &Path, hosts: Hosts, parent: u32) -> Result<Ended, Error> {
    let listener = Listener::new(hosts.listen).map_err(|error| Error::Listen(hosts.listen, error))?;
    let control = Control::connect(socket, Role::Engine).map_err(Error::Control)?;
    tracing::info!("engine: listening at {}, for {} others", hosts.listen, hosts.engines.len());
    let mut engine = Engine::new(control, listener, hosts, parent).map_err(Error::Control)?;
    while engine.is_needed() {
        engine.turn(socket);
    }
    engine.leave();
    Ok(engine.retirement.ended())
}

struct Engine {
    control: Control,
    listener: Listener,
    hosts: Hosts,
    peers: Vec<Peer>,
    links: Vec<Link>,
    desk: Desk,
    offered: questions::Offered,
    unseated: questions::Unseated,
    sleeper: Owned,
    patience: Patience,
    gathers_since: Option<u64>,
    /// Something may have to be sent; and when something was last.
    is_unsent: bool,
    sent_at: u64,
    visited_at: u64,
    met_at: u64,
    judged_at: u64,
    wakes_judged_at: u64,
    orphan_at: u64,
    reports: Reports,
    reload: reload::Reload,
    retirement: retire::Retirement,
    /// Where the kernel tells what its connections carry.
    diag: Option<Diag>,
    translations: Translations,
    namespaces: Namespaces,
}

impl Engine {
    fn new(
        control: Control,
        listener: Listener,
        hosts: Hosts,
        parent: u32,
    ) -> Result<Engine, control::Error> {
        let system = |error| control::Error::System("wait for something", error);
        let sleeper = sd_sys::fd::epoll_create().map_err(system)?;
        let readable = libc::EPOLLIN as u32;
        for (fd, events, of) in
            [(control.socket(), readable, MONITOR), (control.eventfd.raw(), EVENTFD_EDGE, RINGS)]
        {
            sd_sys::fd::epoll_ctl(sleeper.raw(), libc::EPOLL_CTL_ADD, fd, events, of).map_err(system)?;
        }
        let now = now_ns();
        let peers: Vec<Peer> = hosts.engines.iter().map(|engine| Peer::new(&hosts, engine)).collect();
        let links = peers.iter().map(|peer| peer.first_link(now)).collect();
        let mut desk = Desk::default();
        desk.lender.most = hosts.rings();
        let engine = Engine {
            control,
            listener,
            hosts,
            peers,
            links,
            desk,
            offered: questions::Offered::default(),
            unseated: questions::Unseated::default(),
            sleeper,
            patience: Patience::new(),
            gathers_since: None,
            is_unsent: false,
            sent_at: 0,
            visited_at: 0,
            met_at: 0,
            judged_at: now,
            wakes_judged_at: now,
            orphan_at: 0,
            reports: Reports::default(),
            reload: reload::Reload::default(),
            retirement: retire::Retirement::new(parent),
            diag: Diag::open().ok(),
            translations: Translations::default(),
            namespaces: Namespaces::default(),
        };
        engine.watch_listener(&engine.listener).map_err(system)?;
        if let Some(signals) = engine.retirement.signals() {
            watch(&engine.sleeper, signals, ENDS);
        }
        Ok(engine)
    }

    /// Who calls, and who waits for its end. Of many some are heard the next time, so the kernel tells of these again.
    fn watch_listener(&self, listener: &Listener) -> Result<(), Errno> {
        let presence = listener.presence.as_ref().map(|presence| (presence.raw(), ENDS));
        for (fd, of) in [(listener.raw(), CALLERS)].into_iter().chain(presence) {
            sd_sys::fd::epoll_ctl(self.sleeper.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, of)?;
        }
        Ok(())
    }

    /// There is a monitor, or connections are carried.
    fn is_needed(&self) -> bool {
        let carries = self.desk.connections.count > 0;
        if self.retirement.is_begun() {
            return carries && !self.retirement.is_over();
        }
        carries || !self.control.has_ended || self.orphan_at == 0
    }

    fn turn(&mut self, socket: &Path) {
        if self.control.has_ended {
            self.look_for_monitor(socket);
        }
        self.tend_hosts();
        self.tend_end();
        if self.look() {
            self.patience.begin();
            return;
        }
        let now = now_ns();
        if self.is_unsent && !self.patience.is_shy(now) || !self.patience.is_over(now) {
            sd_sys::time::yield_now();
            self.patience.offered(now, now_ns());
            return;
        }
        let Engine { desk, links, control, .. } = self;
        if !desk.is_cold() && (desk.cool(links, control) || !desk.is_cold()) {
            return;
        }
        self.control.says_it_sleeps(true);
        let is_quiet = !self.look();
        self.send(now_ns());
        if is_quiet {
            let began = now_ns();
            self.sleep();
            self.patience.slept(now_ns() - began);
        }
        self.control.says_it_sleeps(false);
        self.patience.begin();
    }

    /// The last that was heard may be the end of a connection: who does not know that it was heard keeps it until he finds nobody here any more.
    fn leave(&mut self) {
        self.send(now_ns() + ACK_DELAY_NS);
    }

    /// Whether something was found anywhere.
    fn look(&mut self) -> bool {
        let now = now_ns();
        if self.control.has_mail() {
            self.take_mail();
        }
        if now - self.met_at > MEETS_NS {
            self.met_at = now;
            self.call(now);
            self.hear_callers(now);
            self.hear_names(now);
            self.hear_ends(now);
        }
        self.see_news(now, 0);
        let mut has_come = false;
        for (at, (peer, link)) in self.peers.iter_mut().zip(&mut self.links).enumerate() {
            has_come |= peer.carry(at, now, link, &mut self.desk);
            while let Some(fd) = peer.unwatched() {
                watch(&self.sleeper, fd, at as u64);
            }
        }
        let Engine { desk, links, control, .. } = self;
        has_come |= desk.settle(links, control);
        desk.ring(control);
        let mut is_said = desk.take_events(links, control);
        while self.desk.has_events() {
            self.send(now);
            is_said |= self.desk.take_events(&mut self.links, &mut self.control);
        }
        let Engine { desk, links, control, .. } = self;
        if now - self.visited_at >= VISIT_NS {
            self.visited_at = now;
            is_said |= desk.visit_hot(links, control);
        }
        if desk.has_strange() {
            // The monitor tells this side of a promise first.
            self.take_mail();
            self.desk.take_strange(&mut self.links, &mut self.control);
        }
        let Engine { desk, control, links, .. } = self;
        if now - self.judged_at >= policy::WINDOW_NS {
            let window_ns = now - std::mem::replace(&mut self.judged_at, now);
            desk.judge(window_ns, now, &self.hosts, links, control);
        }
        if now - self.wakes_judged_at >= policy::wakes_window_ns(desk.connections.count) {
            self.wakes_judged_at = now;
            desk.judge_wakes(self.hosts.least, links, control);
        }
        if desk.has_advised {
            desk.remember_woken(now, &self.hosts);
        }
        if desk.worth.is_due(now) {
            desk.judge_worth(now, links, control);
        }
        desk.leave_dead_seats(control);
        desk.ring(control);
        if !self.retirement.is_begun() {
            self.answer_questions(now, has_come || is_said);
        }
        self.reports.look(now, &mut self.peers, &self.links, &mut self.control);
        self.is_unsent |= has_come || is_said;
        // Who writes one message after the other is let finish, so that they go together.
        let since = *self.gathers_since.get_or_insert(now);
        if now - self.sent_at >= PACE_NS && (!is_said || now - since > GATHER_NS) {
            self.send(now);
        }
        has_come || is_said
    }

    fn send(&mut self, now: u64) {
        self.gathers_since = None;
        if std::mem::take(&mut self.is_unsent) {
            self.sent_at = now;
        }
        for (at, (peer, link)) in self.peers.iter_mut().zip(&mut self.links).enumerate() {
            peer.send(at, now, link, &mut self.desk);
        }
    }

    fn take_mail(&mut self) {
        while let Some((reply, got)) = self.control.notice() {
            self.hear(&reply, got);
        }
    }

    fn hear(&mut self, reply: &Reply, got: Received) {
        if let Reply::Hosts = reply {
            return self.reload.hear(got);
        }
        if let Some((channel, process)) = seat::of_message(reply)
            && let Some(fds) = got.fds.take()
        {
            match Seat::new(channel, process, fds) {
                Some(seat) => self.desk.seats.add(channel.0, seat),
                None => self.control.tell(&Request::Decline { channel: channel.0 }),
            }
        }
        match *reply {
            Reply::Seek { client, offer, messages, bytes, .. } if !self.retirement.is_begun() => {
                let load = Load { messages: messages.into(), bytes };
                Question::of(reply)
                    .into_iter()
                    .for_each(|question| self.seek((client, offer), question, load));
            }
            Reply::Unseek { client, offer } => {
                self.reload.unsought((client, offer));
                self.desk.unsought((client, offer), &mut self.links);
            }
            Reply::Promote { serial, channel, ticket, netns, behind, .. } => {
                self.promised(serial, (channel, ticket), netns, behind);
            }
            Reply::ChannelDead { id } | Reply::PeerGone { id } => {
                self.desk.gone(id, &mut self.links, &mut self.control);
            }
            Reply::Stranger { id } => {
                let at = self.desk.seats.of(id);
                let seat = at.and_then(|at| self.desk.seats.get(at));
                seat.into_iter().for_each(|seat| seat.end.is_stranger = true);
            }
            _ => {}
        }
    }

    /// Calls other engines, where that is due.
    fn call(&mut self, now: u64) {
        let address = self.hosts.listen.ip();
        for (at, (peer, link)) in self.peers.iter_mut().zip(&self.links).enumerate() {
            if let Some(fd) = peer.dial(now, address, link) {
                watch(&self.sleeper, fd, at as u64);
            }
        }
    }

    fn hear_callers(&mut self, now: u64) {
        // The others of many come next time.
        for _ in 0..CALLERS_MAX {
            let Some((socket, from)) = self.listener.accept() else { return };
            // Nobody else is spoken to.
            if let Some(at) = self.peers.iter().position(|peer| peer.is_at(from)) {
                watch(&self.sleeper, socket.as_raw_fd(), at as u64);
                self.peers[at].called(socket, now);
            }
        }
    }

    /// Notes which trunks have news, and waits for some. The ends of greetings and all others are looked at anyway.
    fn see_news(&mut self, now: u64, timeout: i32) {
        if self.peers.len() <= FEW {
            self.peers.iter_mut().for_each(|peer| peer.may_have_news(now));
            if timeout == 0 {
                return;
            }
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: room for 32 events; no mask.
        let count = unsafe {
            sd_sys::fd::epoll_pwait(self.sleeper.raw(), events.as_mut_ptr(), 32, timeout, std::ptr::null())
        };
        for event in events.iter().take(count.unwrap_or(0)) {
            match event.u64 {
                // Its end is not announced.
                MONITOR => self.take_mail(),
                CALLERS => self.hear_callers(now_ns()),
                ENDS => self.hear_ends(now_ns()),
                at => self.peers.get_mut(at as usize).into_iter().for_each(Peer::has_news),
            }
        }
    }

    fn sleep(&mut self) {
        let now = now_ns();
        self.call(now);
        self.hear_names(now);
        let unseated = self.next_given_up().unwrap_or(FOREVER_NS);
        let peers = self.peers.iter().zip(&self.links).map(|(peer, link)| peer.next_time(link));
        let orphan = if self.control.has_ended { now + ORPHAN_NS } else { FOREVER_NS };
        let due = peers
            .chain([unseated, orphan, self.reload.leaving.next_time(), self.next_asked()])
            .chain([self.retirement.next_time()])
            .min()
            .unwrap_or(FOREVER_NS);
        let has_monitor = !self.control.has_ended;
        let due = due.min(self.reports.next_time(&mut self.peers, &self.links, has_monitor));
        let timeout = match due {
            FOREVER_NS => -1,
            due => due.saturating_sub(now).div_ceil(1_000_000).min(3_600_000) as i32,
        };
        self.see_news(now, timeout);
    }

    /// There is no monitor.
    fn look_for_monitor(&mut self, socket: &Path) {
        let now = now_ns();
        if self.orphan_at > now {
            return;
        }
        if self.orphan_at == 0 {
            self.desk.give_up_unseated(&mut self.links);
            let old = self.control.socket();
            let _ = sd_sys::fd::epoll_ctl(self.sleeper.raw(), libc::EPOLL_CTL_DEL, old, 0, 0);
        }
        self.orphan_at = now + ORPHAN_NS;
        if self.control.come_back(socket).is_ok() {
            self.orphan_at = 0;
            self.reports.begin_anew(&mut self.peers);
            watch(&self.sleeper, self.control.socket(), MONITOR);
            for (_, seat) in self.desk.seats.all() {
                seat.end.bring(&mut self.control);
            }
            return;
        }
        // Nobody else tells who has ended.
        for channel in self.desk.seats.ended() {
            self.desk.gone(channel, &mut self.links, &mut self.control);
        }
    }
}
