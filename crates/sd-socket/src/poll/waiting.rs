//! poll(2) and select(2) over our sockets and the kernel's descriptors.
//!
//! Without a socket of ours the real call is made. Else the kernel's part is asked without
//! waiting, ours is looked at, and a sleep happens on the socket's doorbell word when it is the
//! only thing waited for, else in ppoll on the kernel's part and a set of our own descriptors (`sleep_set`). As in Linux,
//! what a number led to lives until the call ends, and a number closed meanwhile is noticed after the sleep.

use super::spinner::Spinner;
use crate::Outcome;
use crate::backlog::beside;
use crate::epoll::Epoll;
use crate::epoll::drain;
use crate::fd::table::{self, Entry};
use crate::process::single_threaded;
use crate::process::stats::{Counter, count};
use crate::process::waker::Sleeper;
use crate::socket::endpoint::{EndpointExt, PeerEnd, peer_end};
use crate::socket::pin::Pinned;
use crate::socket::thread_waker::{Among, Taken};
use crate::socket::way_back;
use crate::wait::by_kernel;
use crate::wait::duties::{self, On, Waiting};
use crate::wait::ready;
use crate::wait::sleep_set::{self, SleepSet};
use crate::wait::{self, Deadline};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, c_int, pollfd, sigset_t};
use sd_ring::doorbell;
use sd_shm::slab::{Endpoint, State};
use sd_sys::section::Watch;
use sd_sys::{Errno, confine};

/// What a poll entry leads to, as far as it concerns us.
#[derive(Clone, Copy)]
enum Kind {
    Kernel,
    Socket(&'static Endpoint),
    Epoll(&'static Epoll),
}

impl Kind {
    fn of(fd: i32) -> Kind {
        match table::get(fd) {
            Entry::Socket(endpoint) => Kind::Socket(endpoint),
            Entry::Epoll(epoll) if crate::epoll::has_ours(epoll.epoll()) => {
                Kind::Epoll(crate::epoll::others_look(epoll.epoll()))
            }
            _ => Kind::Kernel,
        }
    }

    /// Whether the kernel has to be asked: for listeners and epoll instances, too.
    fn in_kernel(self) -> bool {
        match self {
            Kind::Socket(endpoint) => matches!(endpoint.state_now(), State::Listen | State::Kernel),
            _ => true,
        }
    }

    /// What of it the kernel is asked for in a sleep.
    fn kernel_events(self, entry: &pollfd) -> Option<pollfd> {
        match self {
            Kind::Socket(endpoint) if !self.in_kernel() => {
                let directions = by_kernel::watched(endpoint);
                let events = by_kernel::of_kernel(directions, u32::from(entry.events as u16)) as i16;
                (directions != 0).then_some(pollfd { events, ..*entry })
            }
            _ => Some(*entry),
        }
    }

    /// A connection whose bytes are all ours.
    fn is_connection(self) -> bool {
        matches!(self, Kind::Socket(endpoint) if endpoint.state_now() == State::Connected
            && by_kernel::watched(endpoint) == 0)
    }

    /// Events of ours.
    fn events(self, entry: &pollfd) -> i16 {
        let wanted = entry.events | POLLERR | POLLHUP;
        match self {
            Kind::Socket(endpoint) => {
                if endpoint.state_now() == State::Listen {
                    crate::setup::listen::interested(endpoint, entry.fd);
                }
                if endpoint.state_now() == State::Connected && way_back::is_begun(endpoint) {
                    crate::epoll::look_at_way_back(endpoint);
                }
                let wanted = u32::from(wanted as u16);
                (ready::mask(endpoint, wanted) | by_kernel::kernel_part(endpoint) & wanted) as i16
            }
            Kind::Epoll(epoll) if crate::epoll::is_ready(epoll) => (POLLIN | POLLRDNORM) & wanted,
            _ => 0,
        }
    }
}

/// Connections, at most, that a thread sleeps for on a thread waker.
const MOORED: usize = 64;

/// Entries whose kinds need no allocation.
const FEW: usize = 16;

/// A list of poll, and what its numbers lead to.
struct List<'a> {
    fds: &'a mut [pollfd],
    few: [Kind; FEW],
    /// Empty when they are few.
    many: Vec<Kind>,
    /// What the call waits for lives until it ends, whoever closes it.
    users: Vec<crate::epoll::User>,
    sockets: Vec<&'static Endpoint>,
    kept: Vec<Pinned>,
}

impl<'a> List<'a> {
    fn of(fds: &'a mut [pollfd]) -> List<'a> {
        let mut list = List {
            fds,
            few: [Kind::Kernel; FEW],
            many: Vec::new(),
            users: Vec::new(),
            sockets: Vec::new(),
            kept: Vec::new(),
        };
        list.find();
        list
    }

    /// Finds what the numbers lead to now.
    fn find(&mut self) {
        let kinds = self.fds.iter().map(|entry| Kind::of(entry.fd));
        if self.fds.len() <= FEW {
            self.few.iter_mut().zip(kinds).for_each(|(known, kind)| *known = kind);
        } else {
            self.many.clear();
            self.many.extend(kinds);
        }
    }

    fn kinds(&self) -> &[Kind] {
        if self.many.is_empty() { &self.few } else { &self.many }
    }

    /// Entries that are not to be ignored.
    fn entries(&self) -> impl Iterator<Item = (&pollfd, Kind)> {
        self.fds.iter().zip(self.kinds().iter().copied()).filter(|(entry, _)| entry.fd >= 0)
    }

    fn begin_waiting(&mut self) {
        while !self.enter_instances() {
            // Another thread has closed one.
            self.find();
        }
        self.keep();
    }

    /// Whether all could be entered.
    fn enter_instances(&mut self) -> bool {
        let instances = self.entries().filter_map(|(entry, kind)| match kind {
            Kind::Epoll(epoll) => Some(crate::epoll::User::enter(epoll, entry.fd)),
            _ => None,
        });
        let entered: Option<Vec<_>> = instances.collect();
        let are_all = entered.is_some();
        self.users = entered.unwrap_or_default();
        are_all
    }

    /// Keeps the sockets that the numbers lead to now, beside those that they led to before.
    fn keep(&mut self) {
        let sockets = self.entries().filter_map(|(_, kind)| match kind {
            Kind::Socket(endpoint) => Some(core::ptr::from_ref(endpoint)),
            _ => None,
        });
        if sockets.eq(self.sockets.iter().map(|kept| core::ptr::from_ref(*kept))) {
            return;
        }
        let before = self.sockets.len();
        let mut all = core::mem::take(&mut self.sockets);
        let mut kept = core::mem::take(&mut self.kept);
        let mut has_lost = false;
        for (_, kind) in self.entries() {
            if let Kind::Socket(endpoint) = kind
                && !all.iter().take(before).any(|other| core::ptr::eq(*other, endpoint))
            {
                match Pinned::new(endpoint) {
                    Some(pinned) => {
                        kept.push(pinned);
                        all.push(endpoint);
                    }
                    None => has_lost = true,
                }
            }
        }
        (self.sockets, self.kept) = (all, kept);
        if has_lost {
            // Its number was closed just now.
            self.find();
        }
    }

    /// One look without waiting; the number of entries with events.
    fn look(&mut self, ask_kernel: bool) -> Result<usize, Errno> {
        drain();
        if ask_kernel && self.entries().any(|(_, kind)| kind.in_kernel()) {
            sd_sys::fd::poll(self.fds, 0)?;
        } else {
            self.fds.iter_mut().for_each(|p| p.revents = 0);
        }
        let List { fds, few, many, .. } = self;
        let kinds: &[Kind] = if many.is_empty() { few } else { many };
        let mut count = 0;
        for (entry, kind) in fds.iter_mut().zip(kinds.iter()).filter(|(entry, _)| entry.fd >= 0) {
            // What else the kernel says of our placeholders means nothing.
            if !kind.in_kernel() {
                entry.revents &= POLLNVAL;
            }
            entry.revents |= kind.events(entry);
            count += usize::from(entry.revents != 0);
        }
        Ok(count)
    }

    /// Looks for a while, unless there is a crowd.
    fn spin(&mut self) -> Result<usize, Errno> {
        let mut ready = Ok(0);
        if let Some(_spinner) = Spinner::enter() {
            let mut rounds = 0u32;
            let word = self.sockets.first().map_or(&SPIN, |first| &first.rx().spin);
            wait::spin_at(word, LOOK_COST, || {
                rounds += 1;
                ready = self.look(rounds.is_multiple_of(32));
                ready != Ok(0)
            });
        }
        ready
    }

    /// The connection, if the list waits for a single one and nothing else.
    fn only_connection(&self) -> Option<(&'static Endpoint, i16)> {
        let mut entries = self.entries();
        match (entries.next()?, entries.next()) {
            ((entry, kind @ Kind::Socket(endpoint)), None) if kind.is_connection() => {
                Some((endpoint, entry.events))
            }
            _ => None,
        }
    }

    /// The kernel's part, behind what is ours.
    fn for_kernel(&self, own: &[pollfd]) -> Vec<pollfd> {
        let mut fds = Vec::with_capacity(own.len() + self.fds.len());
        fds.extend_from_slice(own);
        fds.extend(self.entries().filter_map(|(entry, kind)| kind.kernel_events(entry)));
        fds
    }

    /// Where there can be no set: a nap, during which only the kernel's descriptors are watched.
    #[cold]
    fn nap(&self, deadline: Deadline, mask: *const sigset_t) -> Result<(), Errno> {
        let mut fds = self.for_kernel(&[]);
        // SAFETY: the caller's mask.
        unsafe { confine::nap(&mut fds, deadline.left(), mask) }.map(drop)
    }

    /// There are connections of ours and, beside them, only the kernel's descriptors; and other threads to be left alone.
    fn is_for_thread_waker(&self) -> bool {
        let fits = |kind: Kind| match kind {
            Kind::Kernel => true,
            Kind::Socket(endpoint) => endpoint.state_now() == State::Kernel || kind.is_connection(),
            Kind::Epoll(_) => false,
        };
        !single_threaded()
            && !confine::is_on()
            && (1..=MOORED).contains(&self.sockets.len())
            && self.entries().all(|(_, kind)| fits(kind))
    }

    /// Those that are not ready shall tell; whether one is, or is the kernel's by now.
    fn arm(&self) -> bool {
        self.entries().any(|(entry, kind)| {
            if let Kind::Socket(endpoint) = kind {
                ready::arm(endpoint, u32::from(entry.events as u16));
                if crate::socket::kernel_socket::is_moved(endpoint) {
                    return true;
                }
            }
            // What is not ready in an epoll instance is armed by looking.
            kind.events(entry) != 0
        })
    }

    /// Sleeps where only this thread is woken.
    fn sleep_at(
        &self,
        thread_waker: &Taken,
        timeout: Option<u64>,
        mask: *const sigset_t,
        watch: &Watch,
    ) -> Result<(), Errno> {
        count(Counter::Sleep);
        if self.arm() {
            return Ok(());
        }
        let control = crate::monitor::client::CONTROL_FD.raw();
        let mut fds = self.for_kernel(&[
            pollfd { fd: thread_waker.epoll_fd(), events: POLLIN, revents: 0 },
            pollfd { fd: control, events: POLLRDHUP, revents: 0 },
        ]);
        wait::ended_by_handler(watch, mask)?;
        crate::wait::cancel::check()?;
        // SAFETY: the caller's mask.
        unsafe { sd_sys::fd::ppoll(&mut fds, timeout, mask) }?;
        let [own, control] = fds.first_chunk().map_or([0; 2], |own: &[pollfd; 2]| own.map(|fd| fd.revents));
        if own != 0 {
            take_ring(thread_waker);
        }
        if control != 0 {
            crate::monitor::client::look_at_socket();
        }
        Ok(())
    }

    /// Sleeps until something may have changed.
    fn sleep(
        &self,
        waiting: &mut Waiting,
        deadline: Deadline,
        mask: *const sigset_t,
        watch: &Watch,
    ) -> Result<(), Errno> {
        let only = if mask.is_null() { self.only_connection() } else { None };
        let pause = waiting.before_sleep(if only.is_some() { On::Word } else { On::Events });
        let slept = match only {
            Some(connection) => sleep_on_one(connection, pause, deadline, watch),
            None => self.sleep_on_all(waiting, pause, deadline, mask, watch),
        };
        waiting.after_sleep();
        slept
    }

    fn sleep_on_all(
        &self,
        waiting: &mut Waiting,
        pause: Option<u64>,
        deadline: Deadline,
        mask: *const sigset_t,
        watch: &Watch,
    ) -> Result<(), Errno> {
        if !sleep_set::is_allowed() {
            return self.nap(deadline, mask);
        }
        // Kept until the end: others may be asked to make it known.
        let mut thread_waker = if self.is_for_thread_waker() { Taken::take() } else { None };
        if let Some(thread_waker) = thread_waker.as_mut()
            && thread_waker.announce(&self.sockets)
        {
            return self.sleep_at(thread_waker, wait::earlier(deadline.left(), pause), mask, watch);
        }
        let _among = Among::enter(&self.sockets);
        let sleeper = Sleeper::enter();
        let Ok(set) = SleepSet::take(&sleeper) else { return self.nap(deadline, mask) };
        drain();
        if self.arm() {
            return Ok(());
        }
        let pause = wait::earlier(pause, waiting.announced());
        if sleeper.is_stale() {
            return Ok(());
        }
        wait::ended_by_handler(watch, mask)?;
        set.sleep(&mut self.for_kernel(&[SleepSet::FIRST]), wait::earlier(deadline.left(), pause), mask)
    }
}

/// Whether any of the numbers needs us.
pub(super) fn concerns_us(fds: &[pollfd]) -> bool {
    let concerns = |p: &pollfd| {
        if !table::is_ours(p.fd) {
            return false;
        }
        crate::setup::watched::waits_elsewhere(p.fd);
        !matches!(Kind::of(p.fd), Kind::Kernel)
    };
    fds.iter().any(concerns)
}

/// How long to spin for lists without a connection.
static SPIN: AtomicU32 = AtomicU32::new(0);
/// A look at a list, in looks at one ring.
const LOOK_COST: u32 = 16;

/// poll and ppoll. `fds` are the caller's.
pub(crate) fn poll(fds: &mut [pollfd], timeout_ns: Option<u64>, mask: *const sigset_t) -> Outcome<c_int> {
    if super::by_kernel::enter(fds) {
        return Outcome::Kernel;
    }
    poll_noting(fds, timeout_ns, mask, &mut false)
}

/// poll and ppoll; notes in `waited` whether the call could not be answered at once.
pub(super) fn poll_noting(
    fds: &mut [pollfd],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    waited: &mut bool,
) -> Outcome<c_int> {
    if !concerns_us(fds) {
        return Outcome::Kernel;
    }
    let now = sd_sys::time::ticks();
    duties::in_call();
    duties::now_and_then(now);
    let deadline = Deadline::after(timeout_ns);
    let mut list = List::of(fds);
    let mut ready = list.look(true);
    if ready == Ok(0) && timeout_ns == Some(0) && beside::has_brought_some() {
        ready = list.look(true);
    }
    let watch = Watch::start();
    let mut waiting = Waiting::begin(None, now);
    if ready == Ok(0) && timeout_ns == Some(0) && !mask.is_null() {
        // A signal that the mask lets through interrupts even a poll that does not wait.
        list.begin_waiting();
        if let Err(errno) = list.sleep(&mut waiting, deadline, mask, &watch) {
            return Outcome::Errno(errno);
        }
        ready = list.look(true);
    }
    if ready == Ok(0) && timeout_ns != Some(0) {
        *waited = true;
        list.begin_waiting();
        if mask.is_null() {
            ready = list.spin();
        }
    }
    while ready == Ok(0) && deadline.left() != Some(0) {
        if let Err(errno) = list.sleep(&mut waiting, deadline, mask, &watch) {
            return Outcome::Errno(errno);
        }
        list.find();
        list.keep();
        ready = list.look(true);
    }
    match ready {
        Ok(count) => Outcome::Done(count as c_int),
        Err(errno) => Outcome::Errno(errno),
    }
}

/// Sleeps for the only entry of a list, which is a connection.
fn sleep_on_one(
    (endpoint, events): (&'static Endpoint, i16),
    pause: Option<u64>,
    deadline: Deadline,
    watch: &Watch,
) -> Result<(), Errno> {
    let mut bits = doorbell::RX_SLEEP;
    if events & POLLOUT != 0 {
        bits |= doorbell::TX_SLEEP;
    }
    let value = doorbell::arm(&endpoint.own_words().wait, bits);
    let wanted = events | POLLERR | POLLHUP;
    if ready::mask(endpoint, u32::from(wanted as u16)) != 0
        || peer_end(endpoint) != PeerEnd::Open && wanted & POLLIN != 0
    {
        return Ok(());
    }
    wait::ended_by_handler(watch, core::ptr::null())?;
    // poll is never restarted after a handler.
    match wait::sleep_on_connection(endpoint, value, deadline.of_partial(), pause) {
        Err(Errno::EAGAIN) => Ok(()),
        other => other,
    }
}

/// After a sleep that the thread waker has ended: what came is taken.
fn take_ring(thread_waker: &Taken) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }];
    match crate::wait::sleep_on(thread_waker.epoll_fd(), &mut events, Some(0), core::ptr::null()) {
        Ok(_) if events[0].events & libc::EPOLLERR as u32 != 0 => {
            thread_waker.reset();
        }
        Ok(_) | Err(Errno::EINTR) => {}
        Err(_) => {
            thread_waker.lose();
        }
    }
}
