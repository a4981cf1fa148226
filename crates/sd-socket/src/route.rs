//! Where does a connection lead? Routes learned from the monitor, and source ports.
//!
//! The first connection to a destination asks the monitor; later ones use what was learned, in
//! turn over the listening processes (§4.5.2: round robin), until the monitor changes the route
//! epoch in our slab. So connecting again costs no message.

use crate::addr::{self, Name};
use crate::channel::Channel;
use crate::control;
use crate::process::PROCESS;
use core::sync::atomic::Ordering;
use sd_proto::{Ip, Reply, Request, Route};
use sd_shm::channel::Side;
use sd_shm::slab::{Endpoint, Reason};
use sd_sys::lock::Lock;

/// A listening process, over a channel to it.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) channel: &'static Channel,
    pub(crate) listener: u32,
    pub(crate) generation: u32,
}

impl Target {
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
        self.page().is_some_and(waits) && self.outstanding() == 0
    }

    fn outstanding(&self) -> usize {
        self.channel.outstanding((self.listener, self.generation))
    }

    /// It listens still, and has room. The page is the peer's: a lie hurts the peer alone.
    pub(crate) fn state(&self) -> TargetState {
        let Some(listener) = self.page() else { return TargetState::Closed };
        if listener.generation.load(Ordering::Acquire) != self.generation || self.channel.peer_is_dead() {
            return TargetState::Closed;
        }
        // As in Linux, one more than the backlog.
        let backlog = listener.backlog.load(Ordering::Relaxed);
        let full =
            listener.pending.load(Ordering::Relaxed) > backlog || self.outstanding() > backlog as usize;
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
    ip: Ip,
    port: u16,
    epoch: u32,
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

struct Routes {
    entries: Vec<Entry>,
    /// First port of each leased block of 64.
    leases: Vec<u16>,
}

static ROUTES: Lock<Routes> = Lock::new(Routes { entries: Vec::new(), leases: Vec::new() });

const LEASE_LEN: usize = 64;
const ENTRIES_MAX: usize = 4096;

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
    for entry in &mut ROUTES.lock().entries {
        entry.targets.clear();
        entry.candidates = 0;
        entry.kernel = None;
    }
}

fn epoch() -> u32 {
    PROCESS
        .own()
        .and_then(|own| own.slab())
        .map_or(0, |slab| slab.header().route_epoch.load(Ordering::Acquire))
}

/// Decides for a connection to `to`.
pub(crate) fn decide(to: Name) -> Decision {
    if crate::network::has_left() {
        return Decision::Kernel(Reason::Elsewhere);
    }
    let epoch = epoch();
    let mut routes = ROUTES.lock();
    if let Some(at) = routes.entries.iter().position(|e| e.ip == to.ip && e.port == to.port)
        && let Some(entry) = routes.entries.get_mut(at)
    {
        if entry.epoch != epoch {
            entry.targets.clear();
            entry.kernel = None;
            entry.candidates = 0;
            entry.epoch = epoch;
        }
        if let Some(reason) = entry.kernel {
            return Decision::Kernel(reason);
        }
        if let Some(target) = entry.pick() {
            return Decision::Shm { target, source: entry.source };
        }
    }
    drop(routes);
    ask(to, epoch, false)
}

impl Entry {
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
        if target.state() == TargetState::Closed {
            self.targets.clear();
            self.candidates = 0;
            return None;
        }
        Some(target)
    }
}

/// Asks the monitor, and keeps the answer. `full`: the channel we have is full.
pub(crate) fn ask(to: Name, epoch: u32, full: bool) -> Decision {
    let source = match source_for(to.ip) {
        Some(source) => source,
        None => return Decision::Kernel(Reason::Remote),
    };
    let known = with_entry(to, epoch, source, |entry| entry.targets.len() as u32).unwrap_or(0);
    let nth = if full { ROUND.fetch_add(1, Ordering::Relaxed) } else { known };
    let want_ports = ROUTES.lock().leases.is_empty();
    let request = Request::Connect { ip: to.ip, port: to.port, nth, want_ports, want_channel: full };
    let Some((reply, got)) = control::question(&request, &[]) else {
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
        Route::Shm { channel, fresh, listener, generation, candidates, peer_pid } => {
            let found = if fresh {
                control::new_channel(channel, (Side::A, 0), peer_pid, &got)
            } else {
                known_channel(channel)
            };
            let Some(channel) = found else {
                if !fresh {
                    return Decision::Kernel(Reason::Exhausted);
                }
                control::tell(&Request::Decline { channel }, &[]);
                with_entry(to, epoch, source, |entry| entry.kernel = Some(Reason::Exhausted));
                return Decision::Kernel(Reason::Exhausted);
            };
            let target = Target { channel, listener, generation };
            with_entry(to, epoch, source, |entry| entry.learn(target, candidates, full));
            Decision::Shm { target, source }
        }
    }
}

/// A channel that the monitor has already given to this process. Another thread may have got it a
/// moment ago and not have entered it yet.
fn known_channel(id: u64) -> Option<&'static Channel> {
    for _ in 0..100 {
        if let Some(channel) = PROCESS.channels().find(|c| c.id == id && c.side == Side::A) {
            return Some(channel);
        }
        let _ = sd_sys::time::sleep_ns(100_000);
    }
    None
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
    let at = routes.entries.iter().position(|e| e.ip == to.ip && e.port == to.port);
    if at.is_none() {
        if routes.entries.len() >= ENTRIES_MAX {
            return None;
        }
        routes.entries.push(Entry {
            ip: to.ip,
            port: to.port,
            epoch,
            source,
            targets: Vec::new(),
            candidates: 0,
            next: 0,
            kernel: None,
            used: Vec::new(),
            port_at: 0,
        });
    }
    let last = routes.entries.len().checked_sub(1)?;
    routes.entries.get_mut(at.unwrap_or(last)).map(f)
}

/// A source port that no accelerated connection to `to` uses. `None` when there is none to be had.
pub(crate) fn take_port(to: Name) -> Option<u16> {
    if let Some(port) = free_port(to) {
        return Some(port);
    }
    let request =
        Request::Connect { ip: to.ip, port: to.port, nth: 0, want_ports: true, want_channel: false };
    let (reply, got) = control::question(&request, &[])?;
    if let Reply::Route { route, port_first, port_count } = reply {
        if let Route::Shm { channel, fresh: true, peer_pid, .. } = route {
            control::new_channel(channel, (Side::A, 0), peer_pid, &got);
        }
        if port_count as usize == LEASE_LEN {
            ROUTES.lock().leases.push(port_first);
        }
    }
    free_port(to)
}

fn free_port(to: Name) -> Option<u16> {
    let mut routes = ROUTES.lock();
    let Routes { entries, leases } = &mut *routes;
    let entry = entries.iter_mut().find(|e| e.ip == to.ip && e.port == to.port)?;
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
    let Routes { entries, leases } = &mut *routes;
    let leased = leases.iter().position(|&first| (port.wrapping_sub(first) as usize) < LEASE_LEN);
    let entry = entries.iter_mut().find(|e| e.ip == to.ip && e.port == to.port);
    let (Some(at), Some(entry)) = (leased, entry) else { return false };
    entry.used.resize(leases.len(), 0);
    let (Some(word), Some(first)) = (entry.used.get_mut(at), leases.get(at)) else { return false };
    let bit = 1 << port.wrapping_sub(*first);
    let is_free = *word & bit == 0;
    *word |= bit;
    is_free
}

/// A connection's end: its source port is free again.
pub(crate) fn port_unused(endpoint: &Endpoint) {
    if endpoint.side.load(Ordering::Relaxed) != Side::A as u16 {
        return;
    }
    let ip = addr::load(&endpoint.remote);
    let ports = endpoint.ports.load(Ordering::Relaxed);
    let (local, remote) = ((ports >> 16) as u16, ports as u16);
    let mut routes = ROUTES.lock();
    let Routes { entries, leases } = &mut *routes;
    let Some(at) = leases.iter().position(|&first| (local.wrapping_sub(first) as usize) < LEASE_LEN) else {
        return;
    };
    if let Some(entry) = entries.iter_mut().find(|e| e.ip == ip && e.port == remote)
        && let (Some(word), Some(first)) = (entry.used.get_mut(at), leases.get(at))
    {
        *word &= !(1u64 << local.wrapping_sub(*first));
    }
}

/// The address that the kernel would connect from, if `ip` is one of this host's; else `None`.
fn source_for(ip: Ip) -> Option<Ip> {
    if ip == Ip::v4([127, 0, 0, 1]) || (ip.is_loopback() && ip.to_v4().is_none()) {
        return Some(ip);
    }
    let domain = if ip.to_v4().is_some() { libc::AF_INET } else { libc::AF_INET6 };
    let ask = |call: i64| {
        let fd = sd_sys::fd::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()?;
        let mut bytes = [0u8; 28];
        let port = if call == libc::SYS_bind { 0 } else { 9 };
        let len = addr::encode(domain, Name { ip, port }, &mut bytes);
        // SAFETY: the kernel reads `len` bytes of the address.
        let done = sd_sys::check(unsafe { sd_sys::syscall!(call, fd, bytes.as_ptr(), len) });
        let name = done.ok().and_then(|_| addr::kernel_name(fd));
        sd_sys::fd::close(fd);
        name
    };
    // Only a local address can be bound (UDP, no packet is sent).
    ask(libc::SYS_bind)?;
    ask(libc::SYS_connect).map(|(_, name)| name.ip)
}
