//! A connection that the kernel has made gets a slot of a channel besides (ADR 82).
//!
//! ```text
//!  monitor ──Promote: channel, ticket──> A and B
//!  A  attach: a slot, the ticket in its names, state Syn, ATTACHED ── event ──> B
//!  B  finds its connection by the ticket; attach: state Open, ATTACHED ── event ──> A
//! ```
//! Each end attaches at a call on the connection while nobody else is in one. From then on the number leads to an endpoint of ours,
//! whose directions are the kernel's until their senders switch (`socket::road`).

use crate::backlog::arrivals::refuse;
use crate::fd::table::{self, Entry};
use crate::link::channel::Channel;
use crate::memory::idle::without_forks;
use crate::monitor::client::Counts;
use crate::process::{PROCESS, detaching, single_threaded};
use crate::setup::offers::{Offers, Promise, Shown};
use crate::socket::endpoint::{EndpointExt, NONBLOCK, OWN_SOCKET};
use crate::socket::handle::Socket;
use crate::socket::history;
use crate::socket::life;
use crate::socket::pin::Pinned;
use crate::socket::road::{self, CLOSED, INSIDE, NEVER, OFFERED, PROMISED};
use crate::socket::token::{Half, Rx, Tx};
use crate::socket::way_back::is_held_alone;
use crate::socket::{addr, beneath, cold, token};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_proto::Request;
use sd_ring::road::RoadWord;
use sd_shm::channel::{Side, SlotState};
use sd_shm::promotion::PROMOTION;
use sd_shm::slab::{Awaits, Endpoint, FIXED_BUF, HAS_COLD, RX_PARKED, Reason, State, TX_PARKED};
use sd_sys::lock::Lock;
use sd_sys::section::Section;
use sd_sys::tcp::{ESTABLISHED, SYN_DATA};

/// Who finds a connection closed for a moment looks again after so long.
const PAUSE_NS: u64 = 50_000;

static OFFERS: Lock<Offers> = Lock::new(Offers::new());
/// For so long calls on watched connections look for a ticket; one that has not come by then is not waited for, and the connection is offered anew.
const AWAITED_NS: u64 = 3_000_000_000;

/// A ticket that was shown before its promise was heard of: of several threads, one may have taken in the monitor's message just now.
struct Early {
    channel: u64,
    ticket: u64,
    slot: (usize, u32),
    since: u64,
}

/// More are refused.
const EARLY_MAX: usize = 64;
/// Changed under the lock of [`OFFERS`].
static EARLY: Lock<Vec<Early>> = Lock::new(Vec::new());
/// Tickets that side A has still to show, when they were counted last.
static AWAITED: AtomicU32 = AtomicU32::new(0);
/// What is late is looked for so often, and was last.
const LOOK_NS: u64 = 100_000_000;
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
static SERIAL: AtomicU64 = AtomicU64::new(1);
/// The generation of an endpoint whose connection was never offered; no serial.
pub(super) const NOT_OFFERED: u32 = 0;

/// There are some that side A has still to show.
#[inline]
pub(super) fn are_awaited() -> bool {
    AWAITED.load(Ordering::Relaxed) != 0
}

/// Looks for tickets that side A has still to show.
pub(super) fn look_for_tickets() {
    if !are_awaited() {
        return;
    }
    crate::epoll::drain();
    let now = sd_sys::time::now_ns();
    if now.saturating_sub(LOOKED_NS.load(Ordering::Relaxed)) < LOOK_NS {
        return;
    }
    LOOKED_NS.store(now, Ordering::Relaxed);
    let until = now.saturating_sub(AWAITED_NS);
    let late = {
        let mut offers = OFFERS.lock();
        let late = offers.take_late(until);
        late.iter()
            .filter(|offered| offered.is_valid())
            .for_each(|offered| road::offer_anew(offered.endpoint));
        let late = take_early(|early| early.since < until);
        count_awaited(&offers);
        late
    };
    late.iter().for_each(refuse_early);
}

/// Under the lock of [`OFFERS`].
fn take_early(is_it: impl Fn(&Early) -> bool) -> Vec<Early> {
    EARLY.lock().extract_if(.., |early| is_it(early)).collect()
}

#[cold]
fn refuse_early(early: &Early) {
    let _within = crate::link::reclaim::change();
    let (slot, generation) = early.slot;
    let channel = PROCESS.channels().find(|channel| (channel.id, channel.side) == (early.channel, Side::B));
    channel.inspect(|channel| refuse(channel, slot, generation));
}

/// A connection is about to be offered: the name of the offer.
pub(super) fn expect(endpoint: &'static Endpoint) -> u64 {
    let mut serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    if serial as u32 == NOT_OFFERED {
        serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    }
    let over = {
        let mut offers = OFFERS.lock();
        let over = offers.add(serial, endpoint, sd_sys::time::now_ns());
        count_awaited(&offers);
        over
    };
    // How many are busy between two hosts is counted by offers, so this is the moment to take back those that are over.
    for offered in over.iter().filter(|offered| offered.promise.is_none()) {
        crate::monitor::client::tell(&Request::Withdraw { serial: offered.serial }, &[]);
    }
    serial
}

/// Side A may not come: its connection may be over, or it may be in a call for long.
fn count_awaited(offers: &Offers) {
    AWAITED.store((offers.awaited() + EARLY.lock().len()) as u32, Ordering::Release);
}

/// What was offered to the monitor before, which found no other end, is offered to this one again.
pub(super) fn monitor_is_new() {
    let waiting = OFFERS.lock().take_waiting();
    waiting
        .iter()
        .filter(|offered| offered.is_valid())
        .for_each(|offered| road::offer_anew(offered.endpoint));
}

/// It was refused.
pub(super) fn give_up(serial: u64) {
    OFFERS.lock().give_up(serial);
}

/// The monitor has found the other end.
pub(super) fn promised((serial, channel): (u64, u64), side: Side, ticket: u64, counts: Counts) {
    let mut offers = OFFERS.lock();
    let Some(endpoint) = offers.valid(serial) else { return };
    history::awaits(endpoint, Awaits::Moment);
    super::began::note(endpoint, counts.began);
    let early = take_early(|early| (early.channel, early.ticket) == (channel, ticket));
    let slot = early.first().filter(|_| side == Side::B).map(|early| early.slot);
    let promise = Promise { channel, side, ticket, behind: counts.behind, slot };
    offers.promise(serial, promise, sd_sys::time::now_ns());
    if side == Side::A || slot.is_some() {
        mark(endpoint);
    }
    count_awaited(&offers);
}

fn mark(endpoint: &Endpoint) {
    road::word(endpoint).inspect(|word| _ = word.fetch_or(PROMISED, Ordering::AcqRel));
}

/// A slot without an endpoint, of side A's, was announced on a channel: a ticket, perhaps.
pub(crate) fn shown(channel: &'static Channel, slot: usize, generation: u32) {
    let words = channel.map.slot(slot);
    if words.side[0].listener.load(Ordering::Acquire) != PROMOTION {
        return;
    }
    let ticket = channel.map.names(slot).ticket().load(Ordering::Relaxed);
    crate::monitor::client::check_mail();
    let mut offers = OFFERS.lock();
    match offers.shown((channel.id, ticket), (slot, generation)) {
        Shown::New(endpoint) => {
            mark(endpoint);
            count_awaited(&offers);
        }
        Shown::Again => {}
        Shown::Unknown if !single_threaded() && EARLY.lock().len() < EARLY_MAX => {
            let since = sd_sys::time::now_ns();
            EARLY.lock().push(Early { channel: channel.id, ticket, slot: (slot, generation), since });
            count_awaited(&offers);
        }
        Shown::Unknown => {
            drop(offers);
            refuse(channel, slot, generation);
        }
    }
}

fn take(endpoint: &Endpoint) -> Option<Promise> {
    let mut offers = OFFERS.lock();
    let promise = offers.take(endpoint);
    count_awaited(&offers);
    promise
}

/// Gives the connection behind a number its slot, if nobody is in a call on it. Whether it is ours now.
#[cold]
pub(super) fn attach(endpoint: &'static Endpoint, fd: i32) -> bool {
    let _within = crate::link::reclaim::change();
    let _section = Section::enter();
    let Some(word) = road::word(endpoint) else { return false };
    let now = word.load(Ordering::Acquire);
    // What was promised to one is not to be used up by a relative that has the connection too.
    if detaching::is_on() || !is_held_alone(endpoint) || !close(endpoint, now, PROMISED) {
        return false;
    }
    // Another thread may close the number meanwhile.
    let pinned = Pinned::new(endpoint);
    let leads_here =
        pinned.is_some() && matches!(table::get(fd), Entry::Kernel(other) if core::ptr::eq(other, endpoint));
    let promise = take(endpoint).filter(|_| leads_here);
    history::awaits(endpoint, Awaits::Slot);
    let is_done = promise.is_some_and(|promise| {
        let channel = PROCESS.channels().find(|channel| {
            (channel.id, channel.side, channel.adopter) == (promise.channel, promise.side, 0)
                && !channel.inherited.load(Ordering::Relaxed)
        });
        let mut is_done = false;
        if let Some(channel) = channel {
            without_forks(|| is_done = attach_to(endpoint, fd, now, channel, &promise));
        }
        is_done
    });
    match is_done {
        true => {
            history::awaits(endpoint, Awaits::Sends);
            // Notes that there is one.
            road::is_promoted(endpoint);
        }
        false => {
            road::put_off(cold::of(endpoint));
            open(endpoint, OFFERED);
        }
    }
    is_done
}

/// Nobody enters a call on the connection from here on, if nobody is in one now. What stands in the word besides loses these bits.
/// The caller is in a section until [`open`]: a handler of a signal that came into it would wait for its own thread.
///
/// Who closes says first who he is, and takes that back last. So whoever finds it closed can find out whether he lives ([`await_open`]): a
/// child of a fork, say, whose parent was killed.
pub(super) fn close(endpoint: &Endpoint, now: u32, loses: u32) -> bool {
    let Some(word) = road::word(endpoint) else { return false };
    if now & (INSIDE | CLOSED) != 0 || !become_closer(endpoint) {
        return false;
    }
    let closed = now & !loses | CLOSED;
    let is_closed = word.compare_exchange(now, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !is_closed {
        cold::of(endpoint).closer.store(0, Ordering::Release);
    }
    is_closed
}

/// False: somebody else is, who lives.
fn become_closer(endpoint: &Endpoint) -> bool {
    let closer = &cold::of(endpoint).closer;
    let before = closer.load(Ordering::Acquire);
    (before == 0 || token::is_dead(before))
        && closer.compare_exchange(before, token::id(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The opposite of [`close`].
pub(super) fn open(endpoint: &Endpoint, loses: u32) {
    road::word(endpoint).inspect(|word| _ = word.fetch_and(!(CLOSED | loses), Ordering::AcqRel));
    cold::of(endpoint).closer.store(0, Ordering::Release);
}

/// For who has found the connection closed: a moment passes, and what a dead thread has closed is opened.
#[cold]
pub(crate) fn await_open(endpoint: &Endpoint) {
    let _ = sd_sys::time::sleep_ns(PAUSE_NS);
    let closer = cold::of(endpoint).closer.load(Ordering::Acquire);
    // It had changed nothing else: a connection that several processes have is not moved.
    if closer != 0 && token::is_dead(closer) && become_closer(endpoint) {
        open(endpoint, 0);
    }
}

/// The kernel's connection is the one whose names were noted: a program may have broken it off, and connected anew.
pub(super) fn is_named(endpoint: &Endpoint, fd: i32) -> bool {
    let (local, peer) = crate::socket::names::of(endpoint);
    let kernel = (addr::kernel_name(fd).map(|(_, name)| name), addr::kernel_peer(fd).map(|(_, name)| name));
    kernel == (Some(local), Some(peer))
}

/// Both ends of its stream are open, and nothing is set on the socket that the ring does not have.
fn is_fit(endpoint: &'static Endpoint, fd: i32, word: u32) -> bool {
    let option = |level, name| sd_sys::fd::getsockopt_int(fd, level, name);
    let is_zero = |level, name| option(level, name).unwrap_or(0) == 0;
    let holds = |info: sd_sys::tcp::Info| info.state == ESTABLISHED && info.options & SYN_DATA == 0;
    let owner = sd_sys::fd::fcntl(fd, libc::F_GETOWN, 0).unwrap_or(0);
    let flags = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as i32;
    endpoint.state_now() == State::Kernel
        && word & NEVER == 0
        && is_held_alone(endpoint)
        && is_named(endpoint, fd)
        && sd_sys::tcp::info(fd).is_ok_and(holds)
        && owner == 0
        && flags & libc::O_ASYNC == 0
        // Zero, which means the same, where an MPTCP listener has accepted a TCP connection.
        && matches!(option(libc::SOL_SOCKET, libc::SO_RCVLOWAT), Ok(0 | 1))
        && is_zero(libc::SOL_SOCKET, libc::SO_TIMESTAMPING)
        && is_zero(libc::SOL_SOCKET, libc::SO_ZEROCOPY)
        && is_zero(libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)
        && !sd_sys::tcp::has_layer(fd)
}

/// The numbers of the connection, while they are the kernel's.
fn numbers(endpoint: &'static Endpoint, fd: i32) -> Vec<i32> {
    let mut numbers = vec![];
    // This one, and the caller's hold.
    let alone = PROCESS.private(endpoint).is_some_and(|private| private.fds.load(Ordering::Acquire) == 2);
    if alone {
        return vec![fd];
    }
    table::for_each(0, u32::MAX, |number, entry| {
        if matches!(entry, Entry::Kernel(other) if core::ptr::eq(other, endpoint)) {
            numbers.push(number);
        }
    });
    numbers
}

fn attach_to(
    endpoint: &'static Endpoint,
    fd: i32,
    word: u32,
    channel: &'static Channel,
    promise: &Promise,
) -> bool {
    let numbers = numbers(endpoint, fd);
    let registered: Option<Vec<_>> = numbers.iter().map(|fd| crate::epoll::registrations(*fd)).collect();
    let fit = registered.filter(|_| is_fit(endpoint, fd, word));
    let (Some(registered), Some(socket)) = (fit, Socket::of(endpoint)) else {
        history::awaits(endpoint, Awaits::Option);
        promise.slot.inspect(|(slot, generation)| refuse(channel, *slot, *generation));
        return false;
    };
    let Some((slot, generation)) = promise.slot.or_else(|| show(channel, promise)) else { return false };
    let [a, b] = &channel.map.slot(slot).side;
    let own = if channel.side == Side::A { a } else { b };
    if channel.side == Side::B {
        let old = b.state.load(Ordering::Acquire);
        let open = generation << 8 | SlotState::Open as u32;
        let is_shown = a.state() == (generation, SlotState::Syn);
        if !is_shown || old >> 8 == generation || !sd_ring::sync::slot_state::answer(&b.state, old, open) {
            // Side A may have had it go back by now: else it could not use the slot again.
            refuse(channel, slot, generation);
            return false;
        }
        b.listener.store(0, Ordering::Release);
    }
    let flags = sd_sys::fd::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as i32;
    let nonblock = if flags & libc::O_NONBLOCK != 0 { NONBLOCK } else { 0 };
    // Calls that began before it was demoted may be under way still, and are not to take a half that is parked for one that is in a ring.
    let parked = endpoint.flags.load(Ordering::Acquire) & (TX_PARKED | RX_PARKED);
    endpoint.flags.store(HAS_COLD | OWN_SOCKET | nonblock | parked, Ordering::Release);
    super::remember::recall(endpoint, fd);
    recall_send_buffer(endpoint, fd);
    endpoint.fd.store(fd, Ordering::Relaxed);
    endpoint.error.store(0, Ordering::Relaxed);
    endpoint.sender.store(0, Ordering::Relaxed);
    endpoint.reason.store(Reason::Promoted as u8, Ordering::Relaxed);
    {
        // Calls that began before it was demoted may be under way still.
        let _halves = (Half::<Rx>::take_as_is(endpoint), Half::<Tx>::take_as_is(endpoint));
        life::attach(socket, channel, slot, generation);
        road::begin(endpoint, word, (fd, promise.behind));
    }
    numbers.iter().copied().for_each(crate::epoll::forget_told);
    beneath::keep(endpoint, fd);
    // Who changes one meanwhile finds the connection closed, and then ours.
    for registration in registered.into_iter().flatten() {
        crate::epoll::put_back(registration, endpoint);
    }
    life::turn_numbers(endpoint, &numbers, true);
    road::opened(endpoint);
    own.say(RoadWord::ATTACHED);
    if channel.side == Side::A {
        a.set_state(generation, SlotState::Syn);
        channel.map.events(Side::B).post(slot);
        channel.peer.wake();
    } else {
        // A local peer looks before it sends.
        channel.tell(slot);
    }
    true
}

/// SO_SNDBUF, where the program has set it.
fn recall_send_buffer(endpoint: &Endpoint, fd: i32) {
    const SO_BUF_LOCK: i32 = 72;
    const SOCK_SNDBUF_LOCK: i32 = 1;
    // What the kernel says is twice what was set.
    const LARGE: i32 = 2 * (128 << 10);
    let option = |name| sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, name);
    let is_set = option(SO_BUF_LOCK).is_ok_and(|locks| locks & SOCK_SNDBUF_LOCK != 0);
    if is_set && option(libc::SO_SNDBUF).is_ok_and(|size| size < LARGE) {
        endpoint.set_flag(FIXED_BUF);
    }
}

/// Side A takes a slot, and shows the ticket there.
#[cold]
#[inline(never)]
fn show(channel: &'static Channel, promise: &Promise) -> Option<(usize, u32)> {
    // That the peer lives the monitor has just said; in another process namespace it could not be seen.
    if channel.side != Side::A {
        return None;
    }
    let (slot, generation) = channel.allocate_slot_slowly()?;
    channel.map.slot(slot).side[0].listener.store(PROMOTION, Ordering::Release);
    let names = channel.map.names(slot);
    names.ports.store(0, Ordering::Relaxed);
    names.ticket().store(promise.ticket, Ordering::Relaxed);
    [Side::A, Side::B].iter().for_each(|side| names.switched_at(*side).store(0, Ordering::Relaxed));
    Some((slot, generation))
}

/// In the child of a fork: what the parent has offered is the parent's.
pub(crate) fn forked() {
    // SAFETY: the child has one thread.
    unsafe {
        OFFERS.force_unlock();
        EARLY.force_unlock();
    }
    separated();
}

/// The process has left its family: what it has offered is gone, and so is the endpoints' memory.
pub(crate) fn separated() {
    *OFFERS.lock() = Offers::new();
    EARLY.lock().clear();
    AWAITED.store(0, Ordering::Relaxed);
}
