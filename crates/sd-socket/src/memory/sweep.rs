//! The clock hand: housekeeping in a process that has always something to do.
//!
//! A sleeper looks after the memory of its connections itself, see [`crate::memory::idle`]. A busy process never sleeps for long,
//! though most of its connections may idle. So a thread that finds nothing and is about to wait moves a clock hand over some of the
//! process's connections first, as the clock algorithm of page replacement does: what was not used since the hand's last
//! visit idles. A lap takes a second at least; after one without use credits and large rings are given back, when the
//! retention time ends (`retention`) small rings and halves as well, those of neighbours only if they idle too.
//!
//! The counts of bytes at a visit, and the laps since they last moved, stand where a parked half's words are kept, which are
//! of no use to a half that is not parked. They are written while nobody parks (that is done under the same lock), and for
//! connections that no other process holds.
//!
//! An episode is short, since what arrives meanwhile waits for it.

use crate::memory::idle::{self, Open, Round};
use crate::memory::rounds;
use crate::process::{PROCESS, SlabRec};
use crate::socket::endpoint::EndpointExt;
use crate::socket::parked;
use core::sync::atomic::{AtomicU64, Ordering};
use sd_shm::slab::{Endpoint, HALVES_PER_PAGE, ParkedHalves, RX_PARKED, Slab, State, TX_PARKED};
use sd_sys::time::{self, Interval};

/// It moves for so long.
static EPISODE: Interval = Interval::of_ns(20_000);
/// A lap takes so long at least.
const LAP_NS: u64 = 1_000_000_000;
/// More laps are not counted.
const LAPS_MAX: u64 = 1 << 20;

/// The slab that the clock hand is at, and above it the number of the endpoint there.
static CLOCK_HAND: AtomicU64 = AtomicU64::new(0);
/// When the lap began.
static LAP_BEGAN: AtomicU64 = AtomicU64::new(0);

/// For a thread that is about to wait, and holds nothing; the hand rests in between (`calls/duties.rs`).
pub(crate) fn episode() {
    idle::without_forks_if_free(|| move_hand(time::ticks()));
}

/// The slabs that the clock hand moves over are others.
pub(crate) fn separated() {
    CLOCK_HAND.store(0, Ordering::Relaxed);
}

fn move_hand(began: u64) {
    let hand = CLOCK_HAND.load(Ordering::Relaxed);
    if hand == 0 {
        let now = time::now_ns();
        if now.wrapping_sub(LAP_BEGAN.load(Ordering::Relaxed)) < LAP_NS {
            return;
        }
        LAP_BEGAN.store(now, Ordering::Relaxed);
    }
    let (mut at, mut number) = ((hand & 0xff) as usize, (hand >> 8) as usize);
    let enough = enough_laps();
    while !EPISODE.is_over(time::ticks().wrapping_sub(began)) {
        let Some((rec, slab)) = PROCESS.slab_at(at) else {
            (at, number) = (0, 0);
            break;
        };
        if number >= slab.header().high.load(Ordering::Acquire) as usize {
            (at, number) = (at + 1, 0);
            continue;
        }
        visit(rec, slab, number, enough);
        number += 1;
        if number.is_multiple_of(HALVES_PER_PAGE) && PROCESS.owns_slab(at) {
            crate::memory::park::park_pages(rec, slab, number);
        }
    }
    CLOCK_HAND.store((number as u64) << 8 | at as u64, Ordering::Relaxed);
}

/// A connection that is open here, and nowhere else.
fn is_own(rec: &SlabRec, endpoint: &Endpoint) -> bool {
    endpoint.state_now() == State::Connected
        && endpoint.holders.load(Ordering::Acquire) == rec.bit.load(Ordering::Relaxed)
}

fn visit(rec: &SlabRec, slab: Slab, number: usize, enough: u64) {
    let (Some(endpoint), Some(kept)) = (slab.endpoint(number), slab.kept(number)) else { return };
    if !is_own(rec, endpoint) || parked::are_both_parked(endpoint) {
        return;
    }
    let Some(open) = Open::of(endpoint) else { return };
    // Still, now that it is kept open.
    if !is_own(rec, endpoint) {
        return;
    }
    note(endpoint, kept);
    let laps = idle_laps(endpoint, kept);
    if laps == 0 {
        return;
    }
    let round = if laps < enough { Round::First } else { Round::Second };
    if rounds::needs(endpoint, round) {
        idle::tidy_open(&open, round, |of| is_idle(of, enough));
    }
}

/// Laps without use after which all memory may go.
fn enough_laps() -> u64 {
    1 + crate::process::retention::now() / LAP_NS
}

/// Counts a lap of each half that was not used, as of those that are parked; otherwise begins to count.
fn note(endpoint: &Endpoint, kept: &ParkedHalves) {
    let count = |now: u64, bytes: &AtomicU64, laps: &AtomicU64| {
        let is_same = bytes.swap(now, Ordering::Relaxed) == now;
        let before = laps.load(Ordering::Relaxed);
        laps.store(if is_same { before.saturating_add(1).min(LAPS_MAX) } else { 0 }, Ordering::Relaxed);
    };
    if !endpoint.flag(TX_PARKED) {
        count(endpoint.tx().bytes.load(Ordering::Relaxed), &kept.tx_bytes, &kept.tx);
    }
    if !endpoint.flag(RX_PARKED) {
        count(endpoint.rx().bytes.load(Ordering::Relaxed), &kept.rx_bytes, &kept.rx);
    }
}

/// For how many laps neither half was used.
fn idle_laps(endpoint: &Endpoint, kept: &ParkedHalves) -> u64 {
    let laps = |is_parked: bool, now: &AtomicU64, bytes: &AtomicU64, laps: &AtomicU64| match is_parked {
        true => LAPS_MAX,
        false if now.load(Ordering::Relaxed) == bytes.load(Ordering::Relaxed) => laps.load(Ordering::Relaxed),
        false => 0,
    };
    let tx = laps(endpoint.flag(TX_PARKED), &endpoint.tx().bytes, &kept.tx_bytes, &kept.tx);
    tx.min(laps(endpoint.flag(RX_PARKED), &endpoint.rx().bytes, &kept.rx_bytes, &kept.rx))
}

/// Whether a neighbour has not been used for so many laps.
fn is_idle(endpoint: &'static Endpoint, enough: u64) -> bool {
    let Some((rec, number)) = PROCESS.locate(endpoint) else { return false };
    let kept = rec.slab().and_then(|slab| slab.kept(number));
    kept.is_some_and(|kept| is_own(rec, endpoint) && idle_laps(endpoint, kept) >= enough)
}
