//! What a process does for its peers' memory and its own before it sleeps for long: returns all
//! credits, and gives back the memory of rings that are empty, so that an idle connection keeps none.
//!
//! Only the sender gives memory of a ring back, with the token of its half, and when it knows that all was consumed. Memory
//! that was given back reads as zeros, which is what the receiver finds in an empty ring anyway, so it need not know.
//! Of what is shared with another user's process nothing is given back: that takes a lock of the file's, which the peer can
//! hold as long as it likes (`kept_rings`).
//!
//! Small rings share a page with those of three neighbours: it goes when all four are empty and their sending halves are
//! in one hand. Tested by `tests/model.rs` and `tests/loom.rs` of sd-ring, and by the subjects `idle/` of tests/posix.

use crate::link::channel::Channel;
use crate::link::kept_rings::are_kept;
use crate::socket::endpoint::EndpointExt;
use crate::socket::life;
use crate::socket::parked::{self, glance};
use crate::socket::token::Half;
use core::sync::atomic::Ordering;
use sd_shm::channel::{GEOMETRY, LENT, SMALL_PER_PAGE};
use sd_shm::slab::{Endpoint, State};
use sd_sys::lock::Lock;

const PAGE: u32 = sd_shm::PAGE as u32;

/// Held while endpoints are kept open for housekeeping: nobody forks then, since the child would keep them for ever.
static KEEPING: Lock<()> = Lock::new(());

/// Before a fork, ahead of all other locks.
pub(crate) fn keep_lock() {
    KEEPING.lock_and_keep();
}

/// After a fork, in either process.
///
/// # Safety
/// The lock was kept by `keep_lock` on this thread, or on the one that it is a copy of.
pub(crate) unsafe fn unlock() {
    // SAFETY: as the caller says.
    unsafe { KEEPING.unlock() };
}

/// The rounds that a sleeper makes while there is something to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// Credits, and large rings.
    First,
    /// Small rings too: their neighbours may be used by other threads, whose tokens that takes. And credit for jumps, which
    /// takes a look at the ring: a look at memory that was given back makes a page of zeros.
    Second,
    /// What the other side's second round has made free.
    Third,
}

pub(super) const ROUNDS: [Round; 3] = [Round::First, Round::Second, Round::Third];

impl Round {
    /// Nanoseconds before it, since the one before.
    pub(super) fn pause(self) -> u64 {
        match self {
            Round::First => 100_000_000,
            Round::Second => crate::process::retention::now(),
            Round::Third => 2_000_000_000,
        }
    }
}

/// An endpoint that stays open while it is looked after; under `KEEPING`.
pub(super) struct Open(pub(super) &'static Endpoint);

impl Open {
    pub(crate) fn of(endpoint: &'static Endpoint) -> Option<Open> {
        life::retain_open(endpoint).then_some(Open(endpoint))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        life::release(self.0);
    }
}

/// Gives all credits back to the peer.
pub(crate) fn return_credit(endpoint: &'static Endpoint) {
    return_credits(endpoint, false);
}

/// Gives all credits back to the peer; if `looks`, over jumps that are next too.
fn return_credits(endpoint: &'static Endpoint, looks: bool) {
    let mut half = endpoint.rx_token();
    let rx = half.cursor();
    if looks && rx.is_large() {
        // What is wrong there will be found again by who receives.
        let _ = crate::socket::apart::next(endpoint, rx);
    }
    if let Some(consumed) = rx.credit_all() {
        endpoint.own_words().consumed.store(consumed, Ordering::Release);
        crate::socket::bell::notify(endpoint, sd_ring::doorbell::TX_EVENT | sd_ring::doorbell::TX_SLEEP);
    }
}

/// Whether `tidy` has memory to give back in that round.
pub(super) fn is_due(endpoint: &'static Endpoint, round: Round) -> bool {
    let tx = glance(endpoint);
    if endpoint.channel_ref().is_some_and(are_kept) {
        return false;
    }
    tx.large_was_used() || round != Round::First && tx.small_was_used()
}

/// See the module: whether memory is left for a later round. Takes both halves for a moment.
pub(super) fn tidy(endpoint: &'static Endpoint, round: Round) -> bool {
    if parked::are_both_parked(endpoint) {
        return false;
    }
    let _keeping = KEEPING.lock();
    let Some(open) = Open::of(endpoint) else { return false };
    if endpoint.state_now() != State::Connected {
        return false;
    }
    tidy_open(&open, round, |_| true);
    is_due(endpoint, Round::Third)
}

/// Tidies an endpoint that the caller keeps open. Small rings are given back with those of neighbours that are all `quiet`.
pub(super) fn tidy_open(open: &Open, round: Round, quiet: impl Fn(&'static Endpoint) -> bool) {
    let endpoint = open.0;
    return_credits(endpoint, round == Round::Second);
    if endpoint.channel_ref().is_some_and(are_kept) {
        return;
    }
    if glance(endpoint).large_was_used()
        && leave_large(endpoint)
        && let Some(channel) = endpoint.channel_ref()
    {
        channel.tell(usize::from(endpoint.slot.load(Ordering::Relaxed)));
    }
    if round != Round::First && glance(endpoint).small_was_used() {
        give_back_small(endpoint, quiet);
    }
}

/// What the peer has consumed.
fn consumed(endpoint: &Endpoint) -> u64 {
    endpoint.peer_words().consumed.load(Ordering::Acquire)
}

/// Whether there is something for the receiver to read: a jump. What the peer, an engine, has lent to a device stays
/// (SYNC POINT: lent, with `try_say` in crates/sd-ring/src/sync/lent.rs).
fn leave_large(endpoint: &'static Endpoint) -> bool {
    let mut half = endpoint.tx_token();
    let mem = endpoint.tx_mem();
    let tx = half.cursor();
    if tx.credit(consumed(endpoint)).is_err() || !tx.memory_is_free() {
        return false;
    }
    let (own, theirs) = (&endpoint.own_words().flags, &endpoint.peer_words().flags);
    if !LENT.begin_giving(own, theirs) {
        return false;
    }
    // A jump stays until the receiver has read it, and nothing else.
    let jump_at = tx.shrink(&GEOMETRY, &mem).filter(|_| !tx.is_large());
    let kept = jump_at.map_or(0..0, |at| at / PAGE * PAGE..at / PAGE * PAGE + PAGE);
    for (from, to) in [(0, kept.start), (kept.end, GEOMETRY.large)] {
        if from < to {
            // SAFETY: whole pages of our own large ring, all of it consumed.
            unsafe { sd_sys::mem::punch(mem.at(1, from), (to - from) as usize) };
        }
    }
    LENT.end_giving(own);
    if jump_at.is_none() && !tx.is_large() {
        tx.note_large_given_back();
    }
    jump_at.is_some()
}

/// Acts while nobody forks, so that endpoints may be kept open.
pub(crate) fn without_forks(act: impl FnOnce()) {
    let _keeping = KEEPING.lock();
    act();
}

/// Acts while nobody forks, unless another thread does so already.
pub(super) fn without_forks_if_free(act: impl FnOnce()) {
    if let Some(_keeping) = KEEPING.try_lock() {
        act();
    }
}

/// Acts on the endpoint that uses a slot, which goes on using it meanwhile.
pub(crate) fn with_bound(channel: &Channel, slot: usize, act: impl FnOnce(&'static Endpoint)) {
    let _keeping = KEEPING.lock();
    if let Some(open) = open_at(channel, slot) {
        act(open.0);
    }
}

fn open_at(channel: &Channel, slot: usize) -> Option<Open> {
    let open = Open::of(channel.endpoint(slot)?)?;
    // Still that connection, now that its record is kept.
    let is_bound = channel.endpoint(slot).is_some_and(|bound| core::ptr::eq(bound, open.0));
    is_bound.then_some(open)
}

/// The connections of this process that send into the same page as one at a slot, which is one of them.
fn neighbours(channel: &Channel, slot: usize) -> Option<[Open; SMALL_PER_PAGE]> {
    let first = slot / SMALL_PER_PAGE * SMALL_PER_PAGE;
    let open = |slot| open_at(channel, slot).filter(|open| open.0.state_now() == State::Connected);
    Some([open(first)?, open(first + 1)?, open(first + 2)?, open(first + 3)?])
}

/// Gives a page of small rings back when they are empty.
fn give_back_small(endpoint: &'static Endpoint, quiet: impl Fn(&'static Endpoint) -> bool) {
    let Some(channel) = endpoint.channel_ref() else { return };
    let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
    let Some(all) = neighbours(channel, slot) else { return };
    // Without the tokens first: mostly somebody is not idle.
    let seems_free = |of: &Open| {
        let mut tx = glance(of.0);
        quiet(of.0) && tx.credit(consumed(of.0)).is_ok() && tx.memory_is_free()
    };
    if !all.iter().all(seems_free) {
        return;
    }
    // In the order of their slots, and nobody else holds several.
    let mut halves = all.each_ref().map(|open| open.0.tx_token());
    let mut cursors = halves.each_mut().map(Half::cursor);
    let mut is_free = true;
    for (tx, open) in cursors.iter_mut().zip(&all) {
        is_free &= tx.credit(consumed(open.0)).is_ok() && tx.memory_is_free();
    }
    if is_free {
        let (page, len) = channel.map.small_page(slot, channel.side);
        // SAFETY: a page of rings into which only these four send, and nothing in it is needed.
        unsafe { sd_sys::mem::punch(page, len) };
        cursors.iter_mut().for_each(|tx| tx.note_small_given_back());
    }
}
