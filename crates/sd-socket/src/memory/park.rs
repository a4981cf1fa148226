//! Halves of idle connections without memory: what is left of a page of them is a word for each cursor and count.
//!
//! Senders' and receivers' halves stand 64 to a page of the slab each. When nothing happens on any of the 64 connections, so
//! that their rings' memory is given back already, housekeeping takes all tokens of a page, writes what has to be kept beside
//! (`sd_shm::slab::ParkedHalves`), and gives the page back. It reads as zeros then, and a half of zeros is *parked*: nothing can be
//! sent or received with it, so the short ways of send and recv, which hold a token but look at no mark, go the long way.
//! There who takes a token of a parked half makes it what it was, first of all.
//!
//! - *Death*: before the page is given back the halves count, and after that what is kept; both say the same. In the middle of
//!   making a half good the mark of a half that is not parked is not yet written.
//! - *Others*: only connections that no other process holds are parked, and nobody forks meanwhile, so whoever else could
//!   take a token is a thread of this process, or got the connection by SCM_RIGHTS and takes one after the other.
//! - *Order of tokens*: those of one way only, by channel and slot, as who gives back small rings takes them.
//! - *Looks without a token* (hints of a waiting thread) see a half before it was parked, or take what is kept: a page is
//!   counted in [`PAGES`] before it goes (`socket::parked`).
//!
//! Tested by `sd-ring` (`tests/model.rs`), the subjects `idle_parked/` of tests/posix, and `xtask sharing` (`park`).

use crate::memory::idle::{self, Open};
use crate::process::{PROCESS, SlabRec};
use crate::socket::endpoint::{EOF, EndpointExt, FIN_SENT, PEER_DEAD, RESET, SHUT_RD, SHUT_WR};
use crate::socket::parked::{PAGES, glance, is_parked};
use crate::socket::road;
use crate::socket::token::{Half, Rx, Tx, cursor, order};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use sd_ring::token::Way;
use sd_shm::PAGE;
use sd_shm::channel::GEOMETRY;
use sd_shm::slab::{Endpoint, HALVES_PER_PAGE, RX_PARKED, Slab, State, TX_FIRST, TX_PARKED};

/// Parks what idles of this process's connections.
pub(super) fn park_idle() {
    let Some((rec, slab)) = PROCESS.own().and_then(|rec| Some((rec, rec.slab()?))) else { return };
    let high = slab.header().high.load(Ordering::Acquire) as usize;
    for (way, first_page) in [(Way::Send, TX_FIRST), (Way::Receive, HALVES_PER_PAGE)] {
        let (mut from, mut to) = (0, first_page);
        while from < high {
            let page = Page { rec, slab, way, numbers: from..to };
            if page.seems_idle() {
                idle::without_forks(|| page.park());
            }
            (from, to) = (to, to + HALVES_PER_PAGE);
        }
    }
}

/// Parks the two pages of halves that end among the numbers up to `end`, a multiple of their size; nobody forks
/// meanwhile.
pub(super) fn park_pages(rec: &SlabRec, slab: Slab, end: usize) {
    let senders_end = end - HALVES_PER_PAGE + TX_FIRST;
    for (way, end) in [(Way::Send, senders_end), (Way::Receive, end)] {
        let page = Page { rec, slab, way, numbers: end.saturating_sub(HALVES_PER_PAGE)..end };
        if page.seems_idle() {
            page.park();
        }
    }
}

/// Tokens of one way, of connections in the order of their slots.
enum Halves<'a> {
    Send { _all: Vec<Half<'a, Tx>> },
    Receive { _all: Vec<Half<'a, Rx>> },
}

impl Halves<'_> {
    fn take(way: Way, open: &[Open]) -> Halves<'_> {
        match way {
            Way::Send => Halves::Send { _all: open.iter().map(|open| Half::take_as_is(open.0)).collect() },
            Way::Receive => {
                Halves::Receive { _all: open.iter().map(|open| Half::take_as_is(open.0)).collect() }
            }
        }
    }
}

/// Halves of one way that share a page.
struct Page<'a> {
    rec: &'a SlabRec,
    slab: Slab,
    way: Way,
    numbers: core::ops::Range<usize>,
}

impl Page<'_> {
    fn flag(&self) -> u32 {
        if self.way == Way::Send { TX_PARKED } else { RX_PARKED }
    }

    fn endpoints(&self) -> impl Iterator<Item = (usize, &'static Endpoint)> {
        self.numbers.clone().filter_map(|number| Some((number, self.slab.endpoint(number)?)))
    }

    /// All may be given back, and some is there.
    fn seems_idle(&self) -> bool {
        let mut some = false;
        self.endpoints().all(|(_, endpoint)| {
            let state = endpoint.state_now();
            some |= state == State::Connected && !endpoint.flag(self.flag());
            state == State::Free || state == State::Connected && self.is_idle(endpoint)
        }) && some
    }

    /// Nothing is unusual, nobody else has it, and the rings' memory was given back. Of a half that is parked already too.
    fn is_idle(&self, endpoint: &'static Endpoint) -> bool {
        let unusual = SHUT_RD | SHUT_WR | EOF | RESET | FIN_SENT | PEER_DEAD;
        !endpoint.flag(unusual)
            && endpoint.holders.load(Ordering::Acquire) == self.rec.bit.load(Ordering::Relaxed)
            && endpoint.error.load(Ordering::Relaxed) == 0
            && endpoint.sender.load(Ordering::Relaxed) == 0
            && !road::is_by_kernel(endpoint, road::RX_LEFT | road::TX_LEFT)
            && glance(endpoint).parked(&GEOMETRY).is_some()
    }

    /// Takes all tokens, and gives the page back if all may go; nobody forks meanwhile.
    fn park(&self) {
        let connected = self.endpoints().filter(|(_, endpoint)| endpoint.state_now() == State::Connected);
        let mut open: Vec<Open> = connected.filter_map(|(_, endpoint)| Open::of(endpoint)).collect();
        open.sort_unstable_by_key(|open| order(open.0));
        let _halves = Halves::take(self.way, &open);
        // Who is free stays so.
        let _alloc = PROCESS.alloc.lock();
        let is_open = |endpoint| open.iter().any(|open| core::ptr::eq(open.0, endpoint));
        let mut ready = self.endpoints().all(|(number, endpoint)| match endpoint.state_now() {
            State::Free => true,
            State::Connected => is_open(endpoint) && self.is_idle(endpoint) && self.keep(number).is_some(),
            _ => false,
        });
        if ready {
            open.iter().for_each(|open| open.0.set_flag(self.flag()));
            PAGES.fetch_add(1, Ordering::SeqCst);
            ready = self.give_back();
        }
        if !ready {
            let live = open.iter().filter(|open| !is_parked(open.0, self.way));
            live.for_each(|open| open.0.clear_flag(self.flag()));
        }
    }

    fn give_back(&self) -> bool {
        let last = self.numbers.end - 1;
        let place = match self.way {
            Way::Send => self.slab.tx(last).map(|half| core::ptr::from_ref(half) as usize),
            Way::Receive => self.slab.rx(last).map(|half| core::ptr::from_ref(half) as usize),
        };
        let page = place.map(|place| place & !(PAGE - 1));
        // SAFETY: a page of halves whose tokens are held, or that are not in use.
        page.is_some_and(|page| unsafe { sd_sys::mem::punch(page as *mut u8, PAGE) })
    }

    /// Writes down what is kept of a half, unless it is parked; `None`: more would have to be.
    fn keep(&self, number: usize) -> Option<()> {
        let (endpoint, kept) = (self.slab.endpoint(number)?, self.slab.kept(number)?);
        if is_parked(endpoint, self.way) {
            return Some(());
        }
        if self.way == Way::Send {
            // SAFETY: the caller has the token.
            kept.tx.store(unsafe { cursor::<Tx>(endpoint) }.parked(&GEOMETRY)?, Ordering::Relaxed);
            kept.tx_bytes.store(endpoint.tx().bytes.load(Ordering::Relaxed), Ordering::Relaxed);
            return Some(());
        }
        let half = endpoint.rx();
        if half.lowat.load(Ordering::Relaxed) != 1 {
            return None;
        }
        // SAFETY: as above.
        kept.rx.store(unsafe { cursor::<Rx>(endpoint) }.parked()?, Ordering::Relaxed);
        kept.rx_bytes.store(half.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        for (to, from) in kept.short_addresses.iter().zip(&half.short_addresses) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Some(())
    }
}
