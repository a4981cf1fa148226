//! Threads that a peer wakes alone: each sleeps on a *thread waker*, an eventfd that only it watches (ADR 34), by an epoll
//! instance that holds nothing else: so a peer that reads it takes no wake-up away (ADR 4).
//!
//! ```text
//! thread: takes a thread waker of the process; "waker n" in its words of each slot of its list --> peer: writes that eventfd
//! ```
//! The process's own eventfd wakes every thread that sleeps on several things. A thread whose connections nobody else
//! waits for goes without it: it writes the number of a thread waker into `wake_target` of its connections, and sleeps in ppoll on the
//! thread waker, the kernel's descriptors of its list and the control socket. The peer then neither posts an event nor
//! wakes anybody else.
//!
//! A thread waker is used only when the peer has said, in `rings` of its words of the slot, that it can ring it. Until then the
//! thread sleeps as others do, and its words say which thread waker it *wishes* for: who announces something to it asks the
//! monitor for that eventfd, once for each channel and number. So a peer that cannot get it, or a monitor that is
//! gone, costs nothing but the herd.
//!
//! SYNC POINT: thread waker, with `announce` in crates/sd-socket/src/link/channel.rs, and `displace` and `ring_no_more` in
//! crates/sd-socket/src/socket/thread_waker.rs. The sleeper stores its number, fences, looks whether it is still alone and whether the peer rings,
//! looks at its connections, and sleeps. Whoever makes the connection a matter of others too (a second thread that waits, an epoll
//! instance, fork, exec), or cannot ring any more, says so first, fences, then looks for a number: if there is
//! one, its owner is rung and begins anew. And who announces news has published them, fenced, then reads the number.

use crate::fd::hidden::{Hidden, HiddenCell};
use crate::link::channel::Channel;
use crate::link::thread_wakers::rings_in;
use crate::process::{PROCESS, single_threaded, tid};
use crate::socket::endpoint::{EndpointExt, WATCHED};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sd_proto::{Reply, Request};
use sd_ring::sync::thread_waker as sync;
use sd_shm::channel::{RINGS_NOT, SlotSide, THREAD_WAKERS, ThreadWaker};
use sd_shm::slab::{Endpoint, State};

/// This process's thread wakers.
static OWN: [Place; THREAD_WAKERS] = [const {
    Place {
        is_taken: AtomicBool::new(false),
        event_fd: HiddenCell::empty(),
        epoll_fd: HiddenCell::empty(),
        is_gone: AtomicBool::new(false),
        registration: AtomicU32::new(0),
    }
}; THREAD_WAKERS];

struct Place {
    is_taken: AtomicBool,
    event_fd: HiddenCell,
    /// What is slept on: it watches the eventfd.
    epoll_fd: HiddenCell,
    /// The program closed it behind our back.
    is_gone: AtomicBool,
    /// Registration with the monitor that knows it; zero: none.
    registration: AtomicU32,
}

/// All of them are closed: the process is about to execute another program.
static ARE_CLOSED: AtomicBool = AtomicBool::new(false);

/// A thread waker that the calling thread has for one sleep.
pub(crate) struct Taken {
    number: u32,
    place: &'static Place,
    /// Connections whose words name it.
    named: Vec<(&'static Endpoint, u64)>,
}

impl Taken {
    /// `None`: there is none free, or no monitor that could tell of it.
    pub(crate) fn take() -> Option<Taken> {
        let (before, after) = OWN.split_at(tid() as usize % THREAD_WAKERS);
        let is_free = |place: &&Place| {
            !place.is_taken.load(Ordering::Relaxed) && !place.is_taken.swap(true, Ordering::Acquire)
        };
        let place = after.iter().chain(before).find(is_free)?;
        let number = OWN.iter().position(|other| core::ptr::eq(other, place))? as u32;
        let taken = Taken { number, place, named: Vec::new() };
        let is_known = || place.registration.load(Ordering::Relaxed) == registration();
        (is_known() || place.register(number).is_some()).then_some(taken)
    }

    /// Readable when somebody has rung.
    pub(crate) fn epoll_fd(&self) -> i32 {
        self.place.epoll_fd.raw()
    }

    /// Names the thread waker in the words of each connection. Whether it may be slept at, when all have been looked at once
    /// more; if not, a wish for it may stand there.
    pub(crate) fn announce(&mut self, connections: &[&'static Endpoint]) -> bool {
        let [sleeps, wishes] =
            [ThreadWaker::Sleeps(self.number), ThreadWaker::Wishes(self.number)].map(ThreadWaker::word);
        let is_free = |wake_target: u64| [0, sleeps, wishes].contains(&wake_target);
        let can =
            |endpoint: &Endpoint| endpoint.channel_ref().is_some_and(|channel| channel.link.wakes_threads());
        let may = |endpoint: &&'static Endpoint| {
            is_free(wake_target(endpoint)) && is_ours_alone(endpoint) && can(endpoint)
        };
        if !connections.iter().all(may) || ARE_CLOSED.load(Ordering::SeqCst) {
            return false;
        }
        let can_ring = |endpoint: &&'static Endpoint| rings(endpoint, self.number);
        let name = if connections.iter().all(can_ring) { sleeps } else { wishes };
        let is_moored = self.write(connections, name, is_free) && {
            let is_safe = |endpoint: &&'static Endpoint| {
                wake_target(endpoint) == sleeps && is_ours_alone(endpoint) && rings(endpoint, self.number)
            };
            sync::named(|| connections.iter().all(is_safe) && !ARE_CLOSED.load(Ordering::SeqCst))
        };
        if !is_moored && name == sleeps && !self.named.is_empty() {
            // Some peer may have rung this one only, though others wait too.
            let words =
                self.named.drain(..).map(|(endpoint, _)| &endpoint.own_words().make_cold().wake_target);
            sync::take_back(words, sleeps);
            sd_sys::fd::eventfd_signal(crate::process::waker::own_event_fd());
        }
        is_moored
    }

    fn write(&mut self, connections: &[&'static Endpoint], name: u64, is_free: impl Fn(u64) -> bool) -> bool {
        for &endpoint in connections {
            let (word, before) = (&endpoint.own_words().make_cold().wake_target, wake_target(endpoint));
            if !is_free(before) || !sync::name(word, before, name) {
                return false;
            }
            self.named.push((endpoint, name));
        }
        true
    }

    /// The words name it no more.
    fn cast_off(&mut self) {
        for (endpoint, name) in self.named.drain(..) {
            if wake_target(endpoint) == name {
                sync::name(&endpoint.own_words().make_cold().wake_target, name, 0);
            }
        }
    }

    /// It was read as rung, and is to be rung anew.
    pub(crate) fn reset(&self) {
        sd_sys::fd::eventfd_reset(self.place.event_fd.raw());
    }

    /// The program closed it behind our back: nobody gets it again, and the numbers may be other files' by now.
    pub(crate) fn lose(&self) {
        self.place.lose();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.cast_off();
        self.place.is_taken.store(false, Ordering::Release);
    }
}

impl Place {
    /// See [`Taken::lose`].
    fn lose(&self) {
        self.registration.store(0, Ordering::Relaxed);
        self.is_gone.store(true, Ordering::Relaxed);
        self.event_fd.lose();
        self.epoll_fd.lose();
    }

    /// Tells the monitor of it, which tells others.
    #[cold]
    fn register(&self, number: u32) -> Option<()> {
        if self.event_fd.is_some() && !sd_sys::fd::is_epoll(self.epoll_fd.raw(), self.event_fd.raw()) {
            self.lose();
        }
        if !crate::monitor::client::is_there() || self.is_gone.load(Ordering::Relaxed) {
            return None;
        }
        if !self.event_fd.is_some() {
            self.make()?;
        }
        let now = registration();
        let event_fd = self.event_fd.raw();
        match crate::monitor::client::question(&Request::ThreadWaker { number }, &[event_fd])? {
            (Reply::Ok, _) => {
                self.registration.store(now, Ordering::Relaxed);
                Some(())
            }
            _ => None,
        }
    }

    fn make(&self) -> Option<()> {
        let epoll_fd = sd_sys::fd::epoll_create().ok()?;
        let event_fd = sd_sys::fd::eventfd(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).ok()?;
        let (epoll_fd, event_fd) = (Hidden::of(epoll_fd), Hidden::of(event_fd));
        let (op, edge) = (libc::EPOLL_CTL_ADD, sd_sys::fd::EVENTFD_EDGE);
        sd_sys::fd::epoll_ctl(epoll_fd.raw(), op, event_fd.raw(), edge, 0).ok()?;
        self.epoll_fd.put(epoll_fd);
        self.event_fd.put(event_fd);
        Some(())
    }

    fn ring(&self) {
        let event_fd = self.event_fd.raw();
        if event_fd >= 0 {
            sd_sys::fd::eventfd_signal(event_fd);
        }
    }
}

fn registration() -> u32 {
    crate::monitor::client::REGISTRATIONS.load(Ordering::Acquire)
}

/// Nobody but the calling thread waits for the connection, in any process, and its channel was made for this one.
fn is_ours_alone(endpoint: &'static Endpoint) -> bool {
    let (Some((rec, _)), Some(channel)) = (PROCESS.locate(endpoint), endpoint.channel_ref()) else {
        return false;
    };
    endpoint.state_now() == State::Connected
        && !endpoint.flag(WATCHED)
        && !channel.inherited.load(Ordering::Relaxed)
        && channel.adopter == 0
        && channel.peer.public.is_some()
        && endpoint.holders.load(Ordering::SeqCst) == rec.bit.load(Ordering::Relaxed)
        && channel.others_wait(slot(endpoint)).is_none_or(|others| others.load(Ordering::SeqCst) == 0)
}

/// Zero also of what is no connection.
fn wake_target(endpoint: &Endpoint) -> u64 {
    let is_connected = endpoint.state_now() == State::Connected;
    if is_connected { wake_target_in(endpoint.own_words()) } else { 0 }
}

fn wake_target_in(words: &SlotSide) -> u64 {
    words.cold().map_or(0, |words| words.wake_target.load(Ordering::SeqCst))
}

fn slot(endpoint: &Endpoint) -> usize {
    usize::from(endpoint.slot.load(Ordering::Relaxed))
}

fn rings(endpoint: &Endpoint, number: u32) -> bool {
    let rings = rings_in(endpoint.peer_words());
    rings & RINGS_NOT == 0 && rings >> number & 1 != 0
}

/// Wakes the thread that sleeps on a thread waker for the connection, if one does.
pub(crate) fn wake(endpoint: &Endpoint) {
    if let Some(number) = sleeping(wake_target(endpoint))
        && let Some(place) = OWN.get(number as usize)
    {
        place.ring();
    }
}

/// Others wait for the connection too: who sleeps on a thread waker for it begins anew (SYNC POINT: thread waker, with `announce` in
/// crates/sd-socket/src/socket/thread_waker.rs).
pub(crate) fn displace(endpoint: &Endpoint) {
    let is_connected = || endpoint.state_now() == State::Connected;
    let word =
        || is_connected().then(|| endpoint.own_words().cold()).flatten().map(|words| &words.wake_target);
    let displaced = sync::displace(word, sleeping);
    displaced.and_then(|number| OWN.get(number as usize)).into_iter().for_each(Place::ring);
}

/// The number of the thread waker that a thread sleeps on, as such a word says.
fn sleeping(wake_target: u64) -> Option<u32> {
    match ThreadWaker::of(wake_target) {
        Some(ThreadWaker::Sleeps(number)) => Some(number),
        _ => None,
    }
}

/// A thread that waits for connections, but not on a thread waker: channels and slots.
pub(crate) struct Among(Vec<(&'static Channel, usize)>);

impl Among {
    /// The connections are kept until this is dropped.
    pub(crate) fn enter(connections: &[&'static Endpoint]) -> Among {
        if single_threaded() {
            return Among(Vec::new());
        }
        let connected = connections.iter().filter(|endpoint| endpoint.state_now() == State::Connected);
        let counts = connected.filter_map(|endpoint| {
            let (channel, slot) = (endpoint.channel_ref()?, slot(endpoint));
            let others = channel.make_others_wait(slot)?;
            channel.used();
            others.fetch_add(1, Ordering::SeqCst);
            displace(endpoint);
            Some((channel, slot))
        });
        Among(counts.collect())
    }
}

impl Drop for Among {
    fn drop(&mut self) {
        for (channel, slot) in &self.0 {
            channel
                .others_wait(*slot)
                .into_iter()
                .for_each(|others| _ = others.fetch_sub(1, Ordering::SeqCst));
            channel.unused();
        }
    }
}

/// Some thread has slept on a thread waker.
fn are_used() -> bool {
    OWN.iter().any(|place| place.registration.load(Ordering::Relaxed) != 0)
}

/// Another process has the connections too, from now on: a bit in `holders` says so.
pub(crate) fn leave() {
    if are_used() {
        PROCESS.connections().for_each(|(_, endpoint)| displace(endpoint));
    }
}

/// Another image of the process will go on with the connections, without these thread wakers and without those of peers. `yes`
/// is false when the exec has failed.
pub(crate) fn close(connections: impl Iterator<Item = &'static Endpoint>, yes: bool) {
    ARE_CLOSED.store(yes, Ordering::SeqCst);
    if yes {
        leave();
        connections.filter(|endpoint| endpoint.state_now() == State::Connected).for_each(ring_no_more);
    }
}

/// A process that does not know the peer's thread wakers will have the connection too (SYNC POINT: thread waker, with `announce` in
/// crates/sd-socket/src/socket/thread_waker.rs).
pub(crate) fn ring_no_more(endpoint: &'static Endpoint) {
    sync::no_more(&endpoint.own_words().make_cold().rings, RINGS_NOT);
    if let Some(number) = sleeping(wake_target_in(endpoint.peer_words()))
        && let Some(channel) = endpoint.channel_ref()
    {
        channel.thread_wakers.ring(&channel.peer, number);
    }
}

/// pthread_cancel: all look whether they are meant.
pub(crate) fn wake_all() {
    OWN.iter().filter(|place| place.is_taken.load(Ordering::SeqCst)).for_each(Place::ring);
}

/// In the child of a fork, which has none.
pub(crate) fn forked() {
    ARE_CLOSED.store(false, Ordering::Relaxed);
    for place in &OWN {
        place.event_fd.close();
        place.epoll_fd.close();
        place.is_gone.store(false, Ordering::Relaxed);
        place.registration.store(0, Ordering::Relaxed);
        place.is_taken.store(false, Ordering::Relaxed);
    }
}

/// None of the peer's thread wakers can be rung for a connection any more. The monitor makes their threads look.
pub(crate) fn ring_none(endpoint: &Endpoint) {
    if endpoint.state_now() == State::Connected
        && let Some(words) = endpoint.own_words().cold()
    {
        words.rings.fetch_and(RINGS_NOT, Ordering::SeqCst);
    }
}
