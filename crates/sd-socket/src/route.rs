//! Where does a connection lead? Routes learned from the monitor, and source ports.
//!
//! The first connection to a destination is looked up in what the monitor publishes of who listens where; unless there is
//! a channel to each process that listens there, or the answer depends on who asks, the monitor is asked. Later ones use what
//! was learned, in turn over the listening processes (§4.5.2: round robin), until the monitor changes the route epoch in our slab. So
//! connecting again costs no message, nor does connecting to another listener of a process that is known.

use crate::addr::{self, Name};
use crate::channel::Channel;
use crate::control;
use crate::places::{Place, Places};
use crate::process::PROCESS;
use crate::rare;
use core::sync::atomic::Ordering;
use sd_proto::{Ip, Reply, Request, Route};
use sd_shm::channel::Side;
use sd_shm::directory::{Listing, Reader};
use sd_shm::slab::{End, Endpoint, Reason};
use sd_sys::lock::Lock;

/// A listening process, over a channel to it.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) channel: &'static Channel,
    pub(crate) listener: u32,
    pub(crate) generation: u32,
}

impl Target {
    /// A listener over the newest channel to its process, if there is one.
    fn of(listing: &Listing) -> Option<Target> {
        let leads_there = |channel: &&Channel| {
            channel.side == Side::A
                && channel.peer.client.load(Ordering::Relaxed) == listing.client
                && !channel.inherited.load(Ordering::Relaxed)
                && !channel.is_over()
        };
        let channel = PROCESS.channels().filter(leads_there).max_by_key(|channel| channel.id)?;
        Some(Target { channel, listener: listing.index, generation: listing.generation })
    }

    fn page(&self) -> Option<&'static sd_shm::public::Listener> {
        self.channel.peer.public?.listeners.get(self.listener as usize)
    }

    /// Its threads wait for connections, and none waits for them.
    fn is_idle(&self) -> bool {
        let page = self.channel.peer.public;
        let sleeps = page.is_some_and(|page| page.sleepers.load(Ordering::Relaxed) != 0);
        let waits = |page: &sd_shm::public::Listener| {
            page.pending.load(Ordering::Relaxed) == 0 && (sleeps || page.waiting.load(Ordering::Relaxed) != 0)
        };
        self.page().is_some_and(waits) && !self.has_more_outstanding_than(0)
    }

    fn has_more_outstanding_than(&self, limit: u32) -> bool {
        self.channel.has_more_outstanding_than((self.listener, self.generation), limit as usize)
    }

    /// It does not listen any more. The page is the peer's: a lie hurts the peer alone.
    pub(crate) fn is_closed(&self) -> bool {
        let is_it = |page: &sd_shm::public::Listener| {
            page.generation.load(Ordering::Acquire) == self.generation && !self.channel.peer_is_dead()
        };
        !self.page().is_some_and(is_it)
    }

    /// It listens still, and has room.
    pub(crate) fn state(&self) -> TargetState {
        let Some(listener) = self.page().filter(|_| !self.is_closed()) else { return TargetState::Closed };
        // As in Linux, one more than the backlog.
        let backlog = listener.backlog.load(Ordering::Relaxed);
        let full =
            listener.pending.load(Ordering::Relaxed) > backlog || self.has_more_outstanding_than(backlog);
        if full { TargetState::Full } else { TargetState::Open }
    }
}

/// See [`Target::state`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetState {
    Open,
    Full,
    Closed,
}

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
    targets: Vec<Target>,
    /// Targets that there are; more may have to be asked for.
    candidates: u32,
    next: u32,
    /// Instead of targets: the kernel, for this reason.
    kernel: Option<Reason>,
    /// Bit per leased port that a connection to here uses; a word per lease.
    used: Vec<u64>,
    port_at: usize,
}

impl Place for Entry {
    /// Connections to there, or a try, have ports.
    fn is_used(&self) -> bool {
        self.used.iter().any(|ports| *ports != 0)
    }
}

struct Routes {
    entries: Places<Entry>,
    /// First port of each leased block of 64.
    leases: Vec<u16>,
    /// Counts how often everything was forgotten.
    round: u32,
    /// What the monitor says of who listens where.
    directory: Option<Reader>,
}

static ROUTES: Lock<Routes> =
    Lock::new(Routes { entries: Places::new(), leases: Vec::new(), round: 0, directory: None });

const LEASE_LEN: usize = 64;
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

/// Forgets what was learned, but not which ports are in use.
pub(crate) fn forget_all() {
    let mut routes = ROUTES.lock();
    routes.round = routes.round.wrapping_add(1);
}

fn epoch() -> u32 {
    PROCESS
        .own()
        .and_then(|own| own.slab())
        .map_or(0, |slab| slab.header().route_epoch.load(Ordering::Acquire))
}

/// Decides for a connection to `to`; `asks`: what is published was found to be out of date.
pub(crate) fn decide(to: Name, asks: bool) -> Decision {
    if crate::network::has_left() {
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
            return Decision::Shm { target, source: entry.source };
        }
    }
    drop(routes);
    let Some(source) = source_for(to.ip) else { return Decision::Kernel(Reason::Remote) };
    let published = if asks { None } else { look_up(to, epoch, source) };
    published.unwrap_or_else(|| ask(to, epoch, source, false))
}

/// The monitor has registered the process; its directory comes along.
pub(crate) fn welcomed(fds: &[i32]) {
    let directory = fds.first().and_then(|fd| Reader::map(*fd).ok());
    fds.iter().for_each(|fd| sd_sys::fd::close(*fd));
    ROUTES.lock().directory = directory;
}

/// Decides by the directory, as the monitor would, if there is a channel to each process that listens there.
fn look_up(to: Name, epoch: u32, source: Ip) -> Option<Decision> {
    if !control::is_there() {
        return None;
    }
    let mut routes = ROUTES.lock();
    let mut found = [Listing::default(); LISTINGS];
    let count = routes.directory.as_ref()?.find(to.port, &mut found)?;
    let found = found.get(..count)?;
    let rank = |listing: &Listing| Ip::from_halves(listing.ip).rank_for(to.ip, listing.v6only);
    let best = found.iter().filter_map(rank).min();
    let fits = |listing: &&Listing| best.is_some() && rank(listing) == best;
    let targets = found.iter().filter(fits).filter(|listing| listing.accepting).map(Target::of);
    let targets: Vec<Target> = targets.collect::<Option<_>>()?;
    let now = (epoch, routes.round);
    let entry = routes.entries.get_or_insert(to, || Entry::new(now, source))?;
    entry.refresh(now);
    if targets.is_empty() {
        let reason = if best.is_some() { Reason::NotAccepting } else { Reason::NoListener };
        entry.kernel = Some(reason);
        return Some(Decision::Kernel(reason));
    }
    entry.source = source;
    entry.candidates = targets.len() as u32;
    entry.targets = targets;
    entry.pick().map(|target| Decision::Shm { target, source })
}

impl Entry {
    fn new(learned: (u32, u32), source: Ip) -> Entry {
        Entry {
            learned,
            source,
            targets: Vec::new(),
            candidates: 0,
            // Not all begin with the same one.
            next: PROCESS.pid.load(Ordering::Relaxed) as u32,
            kernel: None,
            used: Vec::new(),
            port_at: 0,
        }
    }

    /// Forgets what was learned at another time than `now`; but not which ports are in use.
    fn refresh(&mut self, now: (u32, u32)) {
        if self.learned != now {
            self.targets.clear();
            self.kernel = None;
            self.candidates = 0;
            self.learned = now;
        }
    }

    /// The next target in turn that has nothing to do, or else room, or else the next one, once all are
    /// known; a closed one voids the route.
    fn pick(&mut self) -> Option<Target> {
        if self.candidates == 0 || self.targets.len() < self.candidates as usize {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        let count = self.targets.len();
        let turn =
            |step: usize| self.targets.get(self.next.wrapping_add(step as u32) as usize % count.max(1));
        let first = |fits: fn(&Target) -> bool| {
            (0..count).filter(|_| count > 1).find(|&step| turn(step).is_some_and(fits))
        };
        let step = first(Target::is_idle).or_else(|| first(|t| t.state() != TargetState::Full)).unwrap_or(0);
        let target = *turn(step)?;
        self.next = self.next.wrapping_add(step as u32);
        if target.is_closed() {
            self.targets.clear();
            self.candidates = 0;
            return None;
        }
        Some(target)
    }
}

/// The channel that we have is full: asks the monitor for another.
pub(crate) fn ask_for_another(to: Name) -> Decision {
    match source_for(to.ip) {
        Some(source) => ask(to, epoch(), source, true),
        None => Decision::Kernel(Reason::Remote),
    }
}

/// Asks the monitor, and keeps the answer. `full`: the channel we have is full.
fn ask(to: Name, epoch: u32, source: Ip, full: bool) -> Decision {
    let known = with_entry(to, epoch, source, |entry| entry.targets.len() as u32).unwrap_or(0);
    let nth = if full { ROUND.fetch_add(1, Ordering::Relaxed) } else { known };
    let want_ports = ROUTES.lock().leases.is_empty();
    let request = Request::Connect { ip: to.ip, port: to.port, nth, want_ports, want_channel: full };
    let Some((reply, made)) = ask_for_route(&request) else {
        return Decision::Kernel(Reason::NoMonitor);
    };
    let Reply::Route { route, port_first, port_count } = reply else {
        return Decision::Kernel(Reason::NoMonitor);
    };
    if port_count as usize == LEASE_LEN {
        ROUTES.lock().leases.push(port_first);
    }
    match route {
        Route::Denied => Decision::Denied,
        Route::Kernel { reason } => {
            let reason = Reason::from_u32(reason);
            with_entry(to, epoch, source, |entry| entry.kernel = Some(reason));
            Decision::Kernel(reason)
        }
        Route::Shm { channel, fresh, listener, generation, candidates, peer, .. } => {
            let known = || PROCESS.channels().find(|c| c.id == channel && c.side == Side::A);
            let Some(channel) = (if fresh { made } else { known() }) else {
                if !fresh {
                    return Decision::Kernel(Reason::Exhausted);
                }
                control::tell(&Request::Decline { channel }, &[]);
                with_entry(to, epoch, source, |entry| entry.kernel = Some(Reason::Exhausted));
                return Decision::Kernel(Reason::Exhausted);
            };
            channel.peer.client.store(peer, Ordering::Relaxed);
            let target = Target { channel, listener, generation };
            with_entry(to, epoch, source, |entry| entry.learn(target, candidates, full));
            Decision::Shm { target, source }
        }
    }
}

/// Asks the monitor, and takes the channel that it has made, if it has: whoever asks next is told of that one, so it has
/// to be in the table by then.
fn ask_for_route(request: &Request) -> Option<(Reply, Option<&'static Channel>)> {
    control::question_and(request, &[], |reply, got| {
        let made = match reply {
            Reply::Route { route: Route::Shm { channel, fresh: true, peer_pid, .. }, .. } => {
                crate::mail::new_channel(channel, (Side::A, 0), peer_pid, &got)
            }
            _ => None,
        };
        (reply, made)
    })
}

static ROUND: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

impl Entry {
    fn learn(&mut self, target: Target, candidates: u32, replaces: bool) {
        let same = |t: &&mut Target| {
            (t.channel.id == target.channel.id && t.listener == target.listener)
                || (replaces
                    && t.listener == target.listener
                    && t.channel.peer.pid == target.channel.peer.pid)
        };
        match self.targets.iter_mut().find(same) {
            Some(known) => *known = target,
            None => self.targets.push(target),
        }
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
    if let (Reply::Route { port_first, port_count, .. }, _) = ask_for_route(&request)?
        && port_count as usize == LEASE_LEN
    {
        ROUTES.lock().leases.push(port_first);
    }
    free_port(to)
}

fn free_port(to: Name) -> Option<u16> {
    let mut routes = ROUTES.lock();
    let Routes { entries, leases, .. } = &mut *routes;
    let entry = entries.get(to)?;
    entry.used.resize(leases.len(), 0);
    let words = entry.used.len();
    for step in 0..=words {
        let at = (entry.port_at / LEASE_LEN + step) % words.max(1);
        let first = *leases.get(at)?;
        let word = entry.used.get_mut(at)?;
        // In the word where the last search ended, prefer ports not tried for the longest time.
        let passed = if step == 0 { !0u64 << (entry.port_at % LEASE_LEN) } else { !0 };
        let bit = (!*word & passed).trailing_zeros();
        if bit < 64 {
            *word |= 1 << bit;
            entry.port_at = (at * LEASE_LEN + bit as usize + 1) % (words * LEASE_LEN);
            return Some(first.wrapping_add(bit as u16));
        }
    }
    None
}

/// The port of an earlier connection, for another; false when it is in use.
pub(crate) fn take_port_again(to: Name, port: u16) -> bool {
    let mut routes = ROUTES.lock();
    let Routes { entries, leases, .. } = &mut *routes;
    let leased = leases.iter().position(|&first| (port.wrapping_sub(first) as usize) < LEASE_LEN);
    let (Some(at), Some(entry)) = (leased, entries.get(to)) else { return false };
    entry.used.resize(leases.len(), 0);
    let (Some(word), Some(first)) = (entry.used.get_mut(at), leases.get(at)) else { return false };
    let bit = 1 << port.wrapping_sub(*first);
    let is_free = *word & bit == 0;
    *word |= bit;
    is_free
}

/// A connection's end: its source port is free again.
pub(crate) fn port_unused(endpoint: &Endpoint) {
    if endpoint.side.load(Ordering::Relaxed) != Side::A as u8 {
        return;
    }
    let ip = rare::ip(endpoint, End::Remote);
    let ports = endpoint.ports.load(Ordering::Relaxed);
    let (local, remote) = ((ports >> 16) as u16, ports as u16);
    let mut routes = ROUTES.lock();
    let Routes { entries, leases, .. } = &mut *routes;
    let Some(at) = leases.iter().position(|&first| (local.wrapping_sub(first) as usize) < LEASE_LEN) else {
        return;
    };
    if let Some(entry) = entries.get(Name { ip, port: remote })
        && let (Some(word), Some(first)) = (entry.used.get_mut(at), leases.get(at))
    {
        *word &= !(1u64 << local.wrapping_sub(*first));
    }
}

/// The address that the kernel would connect from, if `ip` is one of this host's; else `None`. Asked with a UDP socket,
/// which sends nothing.
fn source_for(ip: Ip) -> Option<Ip> {
    if ip == Ip::v4([127, 0, 0, 1]) || (ip.is_loopback() && ip.to_v4().is_none()) {
        return Some(ip);
    }
    let domain = if ip.to_v4().is_some() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = sd_sys::fd::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()?;
    let call = |nr: i64, port: u16| {
        let mut bytes = [0u8; 28];
        let len = addr::encode(domain, Name { ip, port }, &mut bytes);
        // SAFETY: the kernel reads `len` bytes of the address.
        sd_sys::check(unsafe { sd_sys::syscall!(nr, fd, bytes.as_ptr(), len) }).is_ok()
    };
    let connected = call(libc::SYS_connect, 9);
    let source = addr::kernel_name(fd).map(|(_, name)| name.ip).filter(|_| connected);
    // What it would connect from is this host's. What it would not may be, and then can be bound.
    let unbind = || {
        let nowhere = [0u8; 16];
        // SAFETY: the kernel reads an address of the family AF_UNSPEC.
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_connect, fd, nowhere.as_ptr(), nowhere.len()) })
            .is_ok()
    };
    let is_local = source == Some(ip) || source.is_some() && unbind() && call(libc::SYS_bind, 0);
    sd_sys::fd::close(fd);
    source.filter(|_| is_local)
}
