//! Where does a connection lead? Routes learned from the monitor, and source ports.
//!
//! The first connection to a destination is looked up in what the monitor publishes of who listens where; unless there is
//! a channel to each process that listens there, or the answer depends on who asks, the monitor is asked. Later ones use what
//! was learned, in turn over those who listen (§4.5.2: round robin; `deal.rs`), until the monitor changes the route epoch in our slab. So
//! connecting again costs no message, nor does connecting to another listener of a process that is known.

use crate::link::channel::Channel;
use crate::monitor::client;
use crate::monitor::proof::Proof;
use crate::process::PROCESS;
use crate::route::deal::{Deal, Taker};
use crate::route::elsewhere::Elsewhere;
use crate::route::places::{Place, Places};
use crate::route::ports::{Leases, Used};
use crate::route::target::{Target, leads_to};
use crate::socket::addr::Name;
use crate::socket::cold;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_proto::{Ip, Reply, Request, Route, Socket};
use sd_shm::channel::Side;
use sd_shm::directory::{Listing, Reader};
use sd_shm::slab::{End, Endpoint, Reason};
use sd_sys::lock::Lock;

/// What to do with a connection.
pub(crate) enum Decision {
    /// Over shared memory, from this source address.
    Shm { target: Target, source: Ip },
    /// To the kernel.
    Kernel(Reason),
    /// Forbidden.
    Denied,
}

struct Entry {
    /// When it was learned: the slab's route epoch, and [`Routes::round`].
    learned: (u32, u32),
    source: Ip,
    targets: Deal<Target>,
    /// Of those that are of other users.
    proofs: Vec<Proof>,
    /// Targets that there are; more may have to be asked for.
    candidates: u32,
    /// Instead of targets: the kernel, for this reason.
    kernel: Option<Reason>,
    ports: Used,
}

impl Place for Entry {
    /// Connections to there, or a try, have ports.
    fn is_used(&self) -> bool {
        self.ports.is_any()
    }
}

struct Routes {
    entries: Places<Entry>,
    leases: Leases,
    /// Counts how often everything was forgotten.
    round: u32,
    /// What the monitor says of who listens where.
    directory: Option<Reader>,
    /// Room for what the directory has of one port.
    listed: [Listing; LISTINGS],
    elsewhere: Elsewhere,
}

static ROUTES: Lock<Routes> = Lock::new(Routes {
    entries: Places::new(),
    leases: Leases::new(),
    round: 0,
    directory: None,
    listed: [Listing::NONE; LISTINGS],
    elsewhere: Elsewhere::new(),
});

/// Listeners of a port that are looked at in the directory.
const LISTINGS: usize = 32;

/// Keeps the table unchanged across a fork.
pub(crate) fn keep_lock() {
    ROUTES.lock_and_keep();
}

/// Ends `keep_lock`.
///
/// # Safety
/// The calling thread (or the one it is a copy of) called `keep_lock`.
pub(crate) unsafe fn unlock() {
    // SAFETY: promised by the caller.
    unsafe { ROUTES.unlock() };
}

/// After a fork in the child: the parent's channels and ports are not ours.
pub(crate) fn forked() {
    let mut routes = ROUTES.lock();
    routes.entries.clear();
    routes.leases.clear();
}

/// The process has left its family, and will be told anew who listens where.
pub(crate) fn forget() {
    forked();
    ROUTES.lock().directory = None;
}

/// Forgets what was learned, but not which ports are in use.
pub(crate) fn forget_all() {
    let mut routes = ROUTES.lock();
    routes.round = routes.round.wrapping_add(1);
}

fn epoch() -> u32 {
    sd_ring::sync::will_listen::epoch(&PROCESS.header().route_epoch)
}

/// Another monitor knows of no route, and of no lease.
pub(crate) fn monitor_is_new() {
    forget_all();
    ROUTES.lock().leases.end();
}

/// Decides for a connection to `to`; `asks`: what is published was found to be out of date.
pub(crate) fn decide(to: Name, asks: bool) -> Decision {
    if crate::process::network::has_left() {
        return Decision::Kernel(Reason::Elsewhere);
    }
    let epoch = epoch();
    let mut routes = ROUTES.lock();
    let now = (epoch, routes.round);
    if let Some(entry) = routes.entries.get(to) {
        entry.refresh(now);
        if let Some(reason) = entry.kernel {
            return Decision::Kernel(reason);
        }
        if let Some(target) = entry.pick() {
            let source = entry.source;
            if entry.proofs.is_empty() {
                return Decision::Shm { target, source };
            }
            let proof = entry.proof_of(&target);
            drop(routes);
            return proved(to, epoch, Decision::Shm { target, source }, proof);
        }
    }
    if routes.elsewhere.is_known(to.ip) {
        return Decision::Kernel(Reason::Remote);
    }
    drop(routes);
    let Some(source) = crate::route::local::source_for(to.ip) else {
        ROUTES.lock().elsewhere.note(to.ip);
        return Decision::Kernel(Reason::Remote);
    };
    let published = if asks { None } else { look_up(to, epoch, source) };
    published.unwrap_or_else(|| ask(to, epoch, source, false))
}

/// Whether the kernel has said a moment ago that the address is not this host's.
pub(crate) fn is_elsewhere(ip: Ip) -> bool {
    ROUTES.lock().elsewhere.is_known(ip)
}

/// Whether what was decided for connections to `to` still holds.
pub(crate) fn is_current(to: Name) -> bool {
    let epoch = epoch();
    let mut routes = ROUTES.lock();
    let now = (epoch, routes.round);
    routes.entries.get(to).is_none_or(|entry| entry.learned == now)
}

/// The decision for a target, if its listener is one that needs no proof or is there; else what the monitor says.
#[cold]
fn proved(to: Name, epoch: u32, decision: Decision, proof: Option<Proof>) -> Decision {
    match decision {
        Decision::Shm { source, .. } if proof.is_some_and(|proof| !proof.holds()) => {
            ask(to, epoch, source, false)
        }
        decision => decision,
    }
}

/// The monitor has registered the process; its directory comes along.
pub(crate) fn welcomed(fds: &sd_sys::msg::Fds) {
    let directory = fds.as_slice().first().and_then(|fd| Reader::map(*fd).ok());
    ROUTES.lock().directory = directory;
}

/// Decides by the directory, as the monitor would, if there is a channel to each process that listens there.
fn look_up(to: Name, epoch: u32, source: Ip) -> Option<Decision> {
    if !client::is_there() {
        return None;
    }
    let mut routes = ROUTES.lock();
    let Routes { entries, round, directory, listed, .. } = &mut *routes;
    let count = directory.as_ref()?.find(to.port, listed)?;
    let found = listed.get(..count)?;
    let rank = |listing: &Listing| Ip::from_halves(listing.ip).rank_for(to.ip, listing.v6only);
    let best = found.iter().filter_map(rank).min();
    let fits = |listing: &&Listing| best.is_some() && rank(listing) == best;
    let accepting = || found.iter().filter(fits).filter(|listing| listing.accepting);
    let target = |of: &Listing| Some((of.cookie, Target::of(of)?));
    let targets: Vec<(u64, Target)> = accepting().map(target).collect::<Option<_>>()?;
    let proof = |of: &Listing| {
        let socket = Socket { user: of.user, cookie: of.cookie, ip: Ip::from_halves(of.ip) };
        Proof::needed((of.client, of.index), &socket, to.port)
    };
    let now = (epoch, *round);
    let entry = entries.get_or_insert(to, || Entry::new(now, source))?;
    entry.refresh(now);
    if targets.is_empty() {
        let reason = if best.is_some() { Reason::NotAccepting } else { Reason::NoListener };
        entry.kernel = Some(reason);
        return Some(Decision::Kernel(reason));
    }
    entry.source = source;
    entry.candidates = targets.len() as u32;
    entry.targets.clear();
    targets.into_iter().for_each(|(socket, target)| entry.targets.insert(socket, target));
    entry.proofs = accepting().filter_map(proof).collect();
    let target = entry.pick()?;
    let proof = entry.proof_of(&target);
    drop(routes);
    Some(proved(to, epoch, Decision::Shm { target, source }, proof))
}

impl Entry {
    fn new(learned: (u32, u32), source: Ip) -> Entry {
        Entry {
            learned,
            source,
            targets: Deal::new(sd_sys::time::ticks() ^ PROCESS.pid.load(Ordering::Relaxed) as u64),
            proofs: Vec::new(),
            candidates: 0,
            kernel: None,
            ports: Used::new(),
        }
    }

    /// Forgets what was learned at another time than `now`; but not which ports are in use.
    fn refresh(&mut self, now: (u32, u32)) {
        if self.learned != now {
            self.targets.clear();
            self.proofs.clear();
            self.kernel = None;
            self.candidates = 0;
            self.learned = now;
        }
    }

    /// The next target in turn, once all are known; a closed one voids the route.
    fn pick(&mut self) -> Option<Target> {
        if self.candidates == 0 || self.targets.len() < self.candidates as usize {
            return None;
        }
        let target = *self.targets.next()?;
        if target.is_closed() {
            self.targets.clear();
            self.candidates = 0;
            return None;
        }
        Some(target)
    }
}

/// The channel to a target is full: another one to the same process that is not, or a new one of the monitor's.
pub(crate) fn another(to: Name, source: Ip, full: &Target) -> Decision {
    let Some(channel) = sibling_with_room(full.channel) else { return ask(to, epoch(), source, true) };
    let target = Target { channel, ..*full };
    with_entry(to, epoch(), source, |entry| entry.replace(full, target));
    Decision::Shm { target, source }
}

/// Channels that are looked at for one that has room.
const LOOKS: usize = 256;

/// Another channel to the same process, on which connections can begin.
fn sibling_with_room(full: &Channel) -> Option<&'static Channel> {
    static BEGIN: AtomicU32 = AtomicU32::new(0);
    // Zero: as yet unknown to a new monitor.
    let client = Some(full.peer.client.load(Ordering::Relaxed)).filter(|client| *client != 0)?;
    let count = PROCESS.channel_count.load(Ordering::Acquire);
    let first = BEGIN.load(Ordering::Relaxed) as usize;
    (0..count.min(LOOKS)).map(|step| (first + step) % count.max(1)).find_map(|at| {
        let channel =
            PROCESS.channel(at).filter(|channel| leads_to(channel, client) && channel.has_room())?;
        BEGIN.store(at as u32, Ordering::Relaxed);
        Some(channel)
    })
}

/// Says to all who share the socket of a target, which is busy, that a connection waits there. False: not all of them are known.
pub(crate) fn say_left_beside(to: Name, target: &Target) -> bool {
    let mut routes = ROUTES.lock();
    let Some(entry) = routes.entries.get(to) else { return false };
    let client = |of: &Target| of.channel.peer.client.load(Ordering::Relaxed);
    let is_it = |other: &Target| (client(other), other.name()) == (client(target), target.name());
    let sharers = entry.targets.sharers(is_it);
    if sharers.len() < 2 {
        target.is_chosen(false);
    }
    for other in sharers.iter().filter(|other| !is_it(other)) {
        other.channel.map.events(Side::B).say_left_beside();
        other.channel.peer.wake();
    }
    entry.targets.len() >= entry.candidates as usize
}

/// Asks the monitor, and keeps the answer. `full`: the channel we have is full.
fn ask(to: Name, epoch: u32, source: Ip, full: bool) -> Decision {
    let known = with_entry(to, epoch, source, |entry| entry.targets.len() as u32).unwrap_or(0);
    let nth = if full { ROUND.fetch_add(1, Ordering::Relaxed) } else { known };
    let want_ports = ROUTES.lock().leases.are_over();
    let request = Request::Connect { ip: to.ip, port: to.port, nth, want_ports, want_channel: full };
    let Some((reply, made)) = ask_until_known(&request) else {
        return Decision::Kernel(Reason::NoMonitor);
    };
    let Reply::Route { route, port_first, port_count } = reply else {
        return Decision::Kernel(Reason::NoMonitor);
    };
    ROUTES.lock().leases.add(port_first, port_count);
    match route {
        Route::Denied => Decision::Denied,
        // It has not listened in all that time. The kernel knows, and the next one asks again.
        Route::Soon => Decision::Kernel(Reason::NoListener),
        Route::Kernel { reason } => {
            let reason = Reason::from_u32(reason);
            with_entry(to, epoch, source, |entry| entry.kernel = Some(reason));
            Decision::Kernel(reason)
        }
        Route::Shm { channel, fresh, listener, generation, candidates, peer, socket, .. } => {
            let known = || PROCESS.channels().find(|c| c.id == channel && c.side == Side::A);
            let Some(channel) = (if fresh { made } else { known() }) else {
                if !fresh {
                    return Decision::Kernel(Reason::Exhausted);
                }
                client::tell(&Request::Decline { channel }, &[]);
                with_entry(to, epoch, source, |entry| entry.kernel = Some(Reason::Exhausted));
                return Decision::Kernel(Reason::Exhausted);
            };
            channel.set_client(peer);
            let target = Target { channel, listener, generation };
            target.is_chosen(candidates > 1 && !target.is_idle());
            let proof = Proof::needed((peer, listener), &socket, to.port);
            with_entry(to, epoch, source, |entry| {
                entry.learn((socket.cookie, target), candidates, full);
                entry.keep_proof((peer, listener), proof);
            });
            Decision::Shm { target, source }
        }
    }
}

/// Asks the monitor for a route, again and again while somebody is about to listen there.
fn ask_until_known(request: &Request) -> Option<(Reply, Option<&'static Channel>)> {
    // A monitor that was restarted is found at the second try.
    let ask = || ask_for_route(request).or_else(|| ask_for_route(request));
    super::soon::ask_until_known(ask, |answer| {
        matches!(answer, Some((Reply::Route { route: Route::Soon, .. }, _)))
    })
}

/// Asks the monitor, and takes the channel that it has made, if it has: whoever asks next is told of that one, so it has
/// to be in the table by then.
fn ask_for_route(request: &Request) -> Option<(Reply, Option<&'static Channel>)> {
    client::question_and(request, &[], |reply, got| {
        let made = match reply {
            Reply::Route { route: Route::Shm { channel, fresh: true, peer_pid, stranger, .. }, .. } => {
                crate::link::made::new_channel(channel, (Side::A, 0), (peer_pid, stranger), got)
            }
            _ => None,
        };
        (reply, made)
    })
}

static ROUND: AtomicU32 = AtomicU32::new(0);

impl Entry {
    /// That of a target of another user's.
    #[cold]
    fn proof_of(&self, target: &Target) -> Option<Proof> {
        let of = (target.channel.peer.client.load(Ordering::Relaxed), target.listener);
        self.proofs.iter().find(|proof| proof.is_of(of)).copied()
    }

    fn keep_proof(&mut self, of: (u64, u32), proof: Option<Proof>) {
        self.proofs.retain(|known| !known.is_of(of));
        self.proofs.extend(proof);
    }

    fn replace(&mut self, old: &Target, new: Target) {
        let is_it =
            |known: &&mut Target| (known.channel.id, known.listener) == (old.channel.id, old.listener);
        self.targets.iter_mut().filter(is_it).for_each(|known| *known = new);
    }

    fn learn(&mut self, (socket, target): (u64, Target), candidates: u32, replaces: bool) {
        self.targets.remove(|t: &Target| {
            t.listener == target.listener
                && (t.channel.id == target.channel.id
                    || (replaces && t.channel.peer.pid == target.channel.peer.pid))
        });
        self.targets.insert(socket, target);
        // A repeated answer means that the candidates have changed meanwhile; take what is known.
        self.candidates = candidates
            .min(self.targets.len().max(1) as u32)
            .max(if self.targets.len() < candidates as usize && !replaces { candidates } else { 1 });
    }
}

fn with_entry<R>(to: Name, epoch: u32, source: Ip, f: impl FnOnce(&mut Entry) -> R) -> Option<R> {
    let mut routes = ROUTES.lock();
    let now = (epoch, routes.round);
    let entry = routes.entries.get_or_insert(to, || Entry::new(now, source))?;
    entry.refresh(now);
    Some(f(entry))
}

/// A source port that no accelerated connection to `to` uses. `None` when there is none to be had.
pub(crate) fn take_port(to: Name) -> Option<u16> {
    if let Some(port) = free_port(to) {
        return Some(port);
    }
    let request =
        Request::Connect { ip: to.ip, port: to.port, nth: 0, want_ports: true, want_channel: false };
    if let (Reply::Route { port_first, port_count, .. }, _) = ask_for_route(&request)? {
        ROUTES.lock().leases.add(port_first, port_count);
    }
    free_port(to)
}

fn free_port(to: Name) -> Option<u16> {
    let mut routes = ROUTES.lock();
    let Routes { entries, leases, .. } = &mut *routes;
    entries.get(to)?.ports.take(leases)
}

/// The port of an earlier connection, for another; false when it is in use.
pub(crate) fn take_port_again(to: Name, port: u16) -> bool {
    let mut routes = ROUTES.lock();
    let Routes { entries, leases, .. } = &mut *routes;
    entries.get(to).is_some_and(|entry| entry.ports.take_again(leases, port))
}

/// A connection's end: its source port is free again.
pub(crate) fn port_unused(endpoint: &Endpoint) {
    if endpoint.side.load(Ordering::Relaxed) != Side::A as u8 {
        return;
    }
    let ip = cold::ip(endpoint, End::Remote);
    let ports = endpoint.ports.load(Ordering::Relaxed);
    let (local, remote) = ((ports >> 16) as u16, ports as u16);
    let mut routes = ROUTES.lock();
    let Routes { entries, leases, .. } = &mut *routes;
    if let Some(entry) = entries.get(Name { ip, port: remote }) {
        entry.ports.free(leases, local);
    }
}
