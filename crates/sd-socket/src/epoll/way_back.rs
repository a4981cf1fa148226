//! A connection goes back to the kernel's, as far as others see it: instances of epoll, and numbers (`socket::way_back` does the rest).
//!
//! ```text
//!  a direction has left ──> registrations in the kernel's instances, those who sleep look again
//!  both have            ──> the number leads to a kernel's connection, the slot is closed, and it may be promoted anew
//! ```
//! The slot is given back when nobody else is in a call on the connection; until then its bytes go through the kernel all the same. The kernel's
//! instance tells of what is ready when a registration is made or changed there: so nothing is lost that came before.

use super::*;
use crate::link::{kept_rings, placed, reclaim};
use crate::socket::bell::{ALL_BITS, notify};
use crate::socket::pin::Pinned;
use crate::socket::road::{self, ACTIVE, CLOSED, KEPT, NEVER, RX_LEFT, TX_LEFT};
use crate::socket::{beneath, broken, resend, way_back};
use crate::wait::duties;
use alloc::vec::Vec;
use sd_ring::road::RoadWord;
use sd_shm::channel::SlotState;
use sd_shm::slab::{HAS_COLD, Reason};
use sd_sys::section::Section;

/// What is to be done for the way back of a connection is done. The caller has no lock and no token.
#[cold]
pub(crate) fn look(endpoint: &'static Endpoint) {
    if broken::step(endpoint) {
        roads::moved(endpoint);
    }
    // A relative may have moved a direction.
    if way_back::step(endpoint) | roads::follow_all(endpoint) {
        roads::tell_waiting(endpoint);
    }
    if resend::are_there() {
        duties::note(duties::RESENDS);
    }
    give_back(endpoint);
}

/// The monitor wants it back in the kernel. For who keeps it open meanwhile; [`give_back`] follows.
#[cold]
pub(crate) fn begin(endpoint: &'static Endpoint) {
    if endpoint.state_now() == State::Connected {
        way_back::wish(endpoint);
        look(endpoint);
    }
}

/// Gives the slot back of a connection whose bytes all go through the kernel for good. True: it is a kernel's connection now.
#[cold]
pub(crate) fn give_back(endpoint: &'static Endpoint) -> bool {
    // An error that was taken from the kernel's connection is told by the library's calls only.
    if !way_back::is_over(endpoint) || endpoint.error.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let Some(_within) = reclaim::change_if_free() else { return false };
    let _section = Section::enter();
    let _pinned = Pinned::new(endpoint);
    if way_back::take_moved(endpoint) {
        roads::came_back(endpoint);
    }
    if !close_slot(endpoint, way_back::is_over) {
        return false;
    }
    watch::to_kernel(endpoint);
    road::opened_to_kernel(endpoint);
    true
}

/// The connection goes back at once, for who cannot wait for the peer's marker: what lies in the ring comes through the kernel when the peer has heard
/// of that. For who keeps it open meanwhile, and has no lock or token; [`give_back`] follows, when the peer has sent it: if it dies before, that is read
/// from the ring after all. False: the ring has to be read up to its end, as the peer leaves or is gone.
#[cold]
pub(crate) fn begin_at_once(endpoint: &'static Endpoint) -> bool {
    let is_begun = stop_reading(endpoint);
    if is_begun {
        look(endpoint);
    }
    is_begun
}

fn stop_reading(endpoint: &'static Endpoint) -> bool {
    let (mut rx, mut tx) = (endpoint.rx_token(), endpoint.tx_token());
    if endpoint.state_now() != State::Connected || !resend::stop_reading(endpoint, rx.cursor()) {
        return false;
    }
    way_back::wish(endpoint);
    way_back::leave(endpoint, tx.cursor());
    true
}

/// As [`begin_at_once`], for who goes on without the library: the connection is the kernel's afterwards, all that the peer has sent there. False also if
/// that has not come to be by then: its ring may have to be read still.
#[cold]
fn hand_back(endpoint: &'static Endpoint, until_ns: u64) -> bool {
    let Some(_within) = reclaim::change_if_free() else { return false };
    let _section = Section::enter();
    let _pinned = Pinned::new(endpoint);
    if !stop_reading(endpoint) {
        return false;
    }
    if way_back::take_moved(endpoint) {
        roads::came_back(endpoint);
    }
    let until = sd_sys::time::now_ns() + resend::TAKEN_WITHIN_NS;
    while !endpoint.own_words().road().has(RoadWord::LEFT) {
        let left_ms = until.saturating_sub(sd_sys::time::now_ns()) / 1_000_000;
        let is_open =
            |fd| sd_sys::fd::poll_one(fd, libc::POLLOUT, left_ms as i32).is_ok_and(|found| found != 0);
        // Where there is nothing to do, and it was not said, the peer has written into this end's word.
        if left_ms == 0 || !way_back::is_leaving(endpoint) || !road::number(endpoint).is_some_and(is_open) {
            return false;
        }
        look(endpoint);
    }
    if !has_sent_all(endpoint, until_ns) {
        return false;
    }
    if close_slot(endpoint, way_back::has_left) {
        watch::to_kernel(endpoint);
        road::opened_to_kernel(endpoint);
    }
    true
}

/// So long peers are given the time to say that they have left.
const LEAVING_NS: u64 = 100_000_000;
/// Between two looks whether one has, at first and at most.
const LOOK_NS: (u64, u64) = (20_000, 1_000_000);

/// Waits until the peer, which was asked to send again what lies in its ring, has done so. False: it is dead, or busy with something else. Then whoever
/// goes on has to have the ring as well, since what lies there is lost if the peer dies before it has sent that.
fn has_sent_all(endpoint: &'static Endpoint, until_ns: u64) -> bool {
    let has_left = || endpoint.peer_words().road().has(RoadWord::LEFT);
    let mut pause_ns = LOOK_NS.0;
    while !has_left() {
        let has_ended = |fd| sd_sys::fd::poll_one(fd, libc::POLLRDHUP, 0).is_ok_and(|events| events != 0);
        if sd_sys::time::now_ns() >= until_ns || road::number(endpoint).is_none_or(has_ended) {
            // Who lives says it before the stream ends, or never was in the ring.
            let was_there = endpoint.peer_words().road().has(RoadWord::SWITCHED);
            return has_left() || !was_there && sd_sys::time::now_ns() < until_ns;
        }
        let _ = sd_sys::time::sleep_ns(pause_ns);
        pause_ns = (pause_ns * 2).min(LOOK_NS.1);
    }
    true
}

/// The connection goes on in something without us: a program after exec, a process that gets it in a message, this one when it gives rights up. True:
/// the kernel's socket under its numbers is all of it from now on, and it stays that. False: it was never the kernel's, or something lies in
/// its ring that the peer cannot be asked for any more, or has not sent again yet.
#[cold]
pub(crate) fn hand_over(endpoint: &'static Endpoint) -> bool {
    hand_over_by(endpoint, sd_sys::time::now_ns() + LEAVING_NS)
}

/// As [`hand_over`], for several: all peers are asked before the first is waited for. Those that it cannot be done with are as they were.
#[cold]
pub(crate) fn hand_over_all(endpoints: &[&'static Endpoint]) {
    let until_ns = sd_sys::time::now_ns() + LEAVING_NS;
    for endpoint in endpoints.iter().filter(|endpoint| road::is_promoted(endpoint)) {
        begin_at_once(endpoint);
    }
    endpoints.iter().for_each(|endpoint| _ = hand_over_by(endpoint, until_ns));
}

fn hand_over_by(endpoint: &'static Endpoint, until_ns: u64) -> bool {
    // Who cannot be asked to send again is asked to leave.
    let sends_again = endpoint.channel_ref().is_none_or(|channel| channel.link.sends_again());
    if !sends_again && road::is_promoted(endpoint) {
        begin(endpoint);
    }
    loop {
        if !road::is_promoted(endpoint) && !road::is_given_back(endpoint) {
            return false;
        }
        if road::is_given_back(endpoint) || hand_back(endpoint, until_ns) {
            road::stay(endpoint);
            return true;
        }
        let is_coming = !sends_again || way_back::is_peer_leaving(endpoint);
        if !is_coming || sd_sys::time::now_ns() >= until_ns {
            return false;
        }
        look(endpoint);
        let _ = sd_sys::time::sleep_ns(LOOK_NS.1);
    }
}

static ENDS_DUE_NS: AtomicU64 = AtomicU64::new(0);
static ENDS_PAUSE_NS: AtomicU64 = AtomicU64::new(way_back::LOOK_FOR_DEATH_NS.0);

/// Peers that have died while there was no monitor, or have relatives that have, are found by the ends of their kernel's connections; more and more rarely. For who
/// waits for several sockets: who sleeps on one connection looks itself (`wait::sleep`).
pub(crate) fn look_at_ends() -> Option<u64> {
    if !road::are_there() {
        return None;
    }
    let now = sd_sys::time::now_ns();
    let due = ENDS_DUE_NS.load(Ordering::Relaxed);
    if now < due {
        return Some(due - now);
    }
    let pause = ENDS_PAUSE_NS.load(Ordering::Relaxed);
    ENDS_PAUSE_NS.store((pause * 2).min(way_back::LOOK_FOR_DEATH_NS.1), Ordering::Relaxed);
    ENDS_DUE_NS.store(now + pause, Ordering::Relaxed);
    road::look_anew();
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Socket(endpoint) = entry
            && road::is_promoted(endpoint)
        {
            way_back::notes_death(endpoint);
        }
    });
    road::are_there().then_some(pause)
}

/// What the kernel did not take is sent again, where it is time for that; how soon this is to be called once more.
pub(crate) fn resend_more() -> Option<u64> {
    if !resend::are_there() {
        duties::clear(duties::RESENDS);
        if !resend::are_there() {
            return None;
        }
        duties::note(duties::RESENDS);
    }
    for endpoint in resend::take_due() {
        look(endpoint);
        resend::tried(endpoint);
    }
    resend::pause_ns()
}

/// The numbers of a connection in this process. `None`: somebody is in a call on it.
fn numbers(endpoint: &'static Endpoint) -> Option<Vec<i32>> {
    let mut numbers = vec![];
    // This call counts as one more.
    let fds = PROCESS.private(endpoint)?.fds.load(Ordering::Acquire).checked_sub(1)?;
    let first = endpoint.fd.load(Ordering::Relaxed);
    if fds == 1 && table::socket(first).is_some_and(|other| core::ptr::eq(other, endpoint)) {
        return Some(vec![first]);
    }
    table::for_each(0, u32::MAX, |number, entry| {
        if matches!(entry, Entry::Socket(other) if core::ptr::eq(other, endpoint)) {
            numbers.push(number);
        }
    });
    (!numbers.is_empty() && numbers.len() == fds as usize).then_some(numbers)
}

/// The slot is closed, and the numbers lead to a kernel's connection on which nobody may begin a call yet.
fn close_slot(endpoint: &'static Endpoint, is_over: fn(&Endpoint) -> bool) -> bool {
    let Some((rec, index)) = PROCESS.locate(endpoint) else { return false };
    let (Some(channel), Some(private)) = (endpoint.channel_ref(), rec.private(index)) else { return false };
    let Some(word) = road::word(endpoint) else { return false };
    let (mut rx, _tx) = (endpoint.rx_token(), endpoint.tx_token());
    if !is_over(endpoint) || !way_back::is_held_alone(endpoint) {
        return false;
    }
    let (Some(numbers), Some(nowhere)) = (numbers(endpoint), placed::nowhere()) else { return false };
    let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
    let generation = endpoint.generation.load(Ordering::Relaxed);
    let was_large =
        rec.slab().and_then(|slab| slab.kept(index)).is_some_and(|kept| kept.tx.load(Ordering::Relaxed) != 0);
    // Who was asked to send its ring again has to read it first.
    if (was_large || rx.cursor().is_large()) && way_back::is_over(endpoint) {
        let is_closed = endpoint.peer_words().state() == (generation, SlotState::Closed);
        kept_rings::trim(channel, slot, is_closed);
    }
    // What is left of the halves stays parked until it is promoted again.
    let which = crate::socket::cold::of(endpoint).road_use.load(Ordering::Relaxed);
    let kept = word.load(Ordering::Acquire) & (ACTIVE | NEVER) | road::bits_of_use(which);
    let before = word.swap(kept | road::WATCHED | CLOSED | RX_LEFT | TX_LEFT, Ordering::AcqRel);
    if let Some(fd) = numbers.first().filter(|_| before & KEPT != 0) {
        beneath::give_back(endpoint, *fd);
    }
    endpoint.flags.fetch_and(!crate::socket::endpoint::WATCHED, Ordering::AcqRel);
    endpoint.set_flag(HAS_COLD);
    endpoint.reason.store(Reason::Demoted as u8, Ordering::Relaxed);
    endpoint.set_state(State::Kernel);
    crate::socket::life::turn_numbers(endpoint, &numbers, false);
    let own = endpoint.own_words();
    own.wait.store(0, Ordering::Relaxed);
    // The port is the kernel's.
    let _ = channel.unbind(slot, endpoint);
    own.set_state(generation, SlotState::Closed);
    notify(endpoint, ALL_BITS);
    // Before the channel may go, for the rest of a call that this is a part of.
    placed::note_nowhere(endpoint, nowhere);
    private.clear_role();
    channel.unused();
    true
}
