//! A process that leaves its family while its threads run (ADR 54): what it has mapped instead of a slab and its channels from
//! then on, and how it lets go of what it was using.
//!
//! A thread may be anywhere, with addresses in the memory that goes. So nothing is unmapped: private memory takes its place
//! between two accesses. In that of a slab all sockets are the kernel's and broken off, so that a call under way
//! ends and is made again there; their rings and words are in memory that nobody else has.

use crate::channel::{Mapping, SEGMENT_LEN, Side};
use crate::slab::{
    End, Endpoint, HAS_COLD, LEN, ROAD_RX_LEFT, ROAD_TX_LEFT, RX_PARKED, Slab, State, TX_PARKED,
};
use core::sync::atomic::{AtomicU64, Ordering};
use sd_ring::token::Thread;
use sd_sys::{Errno, Result, mem};

/// Private memory that is to take the place of a slab.
#[derive(Debug)]
pub struct StandIn(*mut u8);

impl StandIn {
    /// For this slab, with words and rings at a `nowhere`. `finish` sees each of its sockets, in the state that it was in, and whether its bytes
    /// all go through a kernel's socket: calls that are under way go on there.
    pub fn of(slab: &Slab, nowhere: &Mapping, finish: impl Fn(&Endpoint, bool)) -> Result<StandIn> {
        let made = StandIn(mem::reserve_private(LEN)?);
        let Some(to) = Slab::from_base(made.0) else { return Ok(made) };
        let (high, threads) = (&slab.header().high, &slab.header().threads);
        to.header().high.store(high.load(Ordering::Acquire), Ordering::Relaxed);
        to.header().threads.store(threads.load(Ordering::Acquire), Ordering::Relaxed);
        for number in 1..=threads.load(Ordering::Acquire) {
            if let (Some(from), Some(to)) = (slab.thread(number), to.thread(number)) {
                copy::<Thread>(from, to);
            }
        }
        let [_, peer] = &nowhere.slot(0).side;
        let peer = core::ptr::from_ref(peer) as u64;
        let rings = [Side::A, Side::B].map(|from| (nowhere.small_ring(0, from) as u64 - peer) as u32);
        for index in 0..high.load(Ordering::Acquire) as usize {
            let (Some(from), Some(into)) = (slab.endpoint(index), to.endpoint(index)) else { break };
            copy::<Endpoint>(from, into);
            into.peer.store(peer, Ordering::Relaxed);
            into.rings.iter().zip(rings).for_each(|(word, ring)| word.store(ring, Ordering::Relaxed));
            let goes_on = is_left(slab, from);
            if !goes_on {
                into.flags.fetch_and(!(TX_PARKED | RX_PARKED), Ordering::Relaxed);
            }
            if State::from_u32(u32::from(from.state.load(Ordering::Acquire))) == State::Free {
                continue;
            }
            finish_halves((slab, from), (&to, into), index, goes_on);
            finish(into, goes_on);
            into.state.store(State::Kernel as u8, Ordering::Relaxed);
        }
        Ok(made)
    }

    /// Takes the slab's place.
    ///
    /// # Safety
    /// The stand-in was made of this slab.
    pub unsafe fn replace(self, slab: &Slab) -> Result<()> {
        // SAFETY: a slab's length, both; who uses the slab finds there what the module says.
        let done = unsafe { mem::replace_by(slab.base(), LEN, self.0) };
        if done.is_ok() {
            core::mem::forget(self);
        }
        done
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // SAFETY: reserved with that length; nobody else knows it.
        unsafe { mem::unreserve(self.0, LEN) };
    }
}

/// Both directions have left the rings, which the copy of its word says too.
fn is_left(slab: &Slab, endpoint: &Endpoint) -> bool {
    const LEFT: u32 = ROAD_RX_LEFT | ROAD_TX_LEFT;
    slab.cold_of(endpoint).is_some_and(|cold| cold.road.load(Ordering::Acquire) & LEFT == LEFT)
}

/// Names, and who waits for a token. Halves that go on stay parked, as those of zeros are.
fn finish_halves(
    (slab, from): (&Slab, &Endpoint),
    (to, into): (&Slab, &Endpoint),
    index: usize,
    goes_on: bool,
) {
    if let Some(half) = to.rx(index).filter(|_| !goes_on) {
        half.lowat.store(1, Ordering::Relaxed);
    }
    if from.flags.load(Ordering::Acquire) & HAS_COLD != 0 {
        if let (Some(from), Some(to)) = (slab.cold(index), to.cold(index)) {
            copy(from, to);
        }
        if let (Some(from), Some(to)) = (slab.tokens(index), to.tokens(index)) {
            to.tx.stand_in_for(&from.tx);
            to.rx.stand_in_for(&from.rx);
        }
    }
    if goes_on && let (Some(from), Some(to)) = (slab.kept(index), to.kept(index)) {
        copy(from, to);
    }
    for end in [End::Local, End::Remote] {
        to.set_address(into, end, slab.address(from, end));
    }
}

/// Copies a structure of atomics that others may be changing.
fn copy<T>(from: &T, to: &T) {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() >= 8) };
    let words = |at: &T| core::ptr::from_ref(at).cast::<AtomicU64>();
    for word in 0..size_of::<T>() / 8 {
        // SAFETY: within the structures, which are made of atomics only.
        unsafe {
            (*words(to).add(word)).store((*words(from).add(word)).load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Slab {
    /// For relatives: these threads use the slab no more, nor does the process with this bit of `holders`. Of what it was
    /// the last to hold the monitor hears.
    pub fn abandon(&self, bit: u64, is_thread: impl Fn(u32) -> bool) {
        for number in 1..=self.header().threads.load(Ordering::Acquire) {
            let record = self.thread(number).filter(|record| is_thread(record.id.load(Ordering::Acquire)));
            record.into_iter().for_each(Thread::abandon);
        }
        for index in 0..self.header().high.load(Ordering::Acquire) as usize {
            let Some(endpoint) = self.endpoint(index) else { break };
            let claimant = endpoint.sender.load(Ordering::Acquire);
            if claimant != 0 && is_thread(claimant) {
                let _ = endpoint.sender.compare_exchange(claimant, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            if endpoint.flags.load(Ordering::Acquire) & HAS_COLD != 0
                && let Some(tokens) = self.tokens(index)
            {
                tokens.tx.abandon(&is_thread);
                tokens.rx.abandon(&is_thread);
            }
            let others = |holders: u64| Some(holders & !bit).filter(|others| *others != 0);
            let _ = endpoint.holders.fetch_update(Ordering::AcqRel, Ordering::Acquire, others);
        }
    }

    /// Another mapping of the slab.
    pub fn again(&self) -> Result<Slab> {
        // SAFETY: mapped shared with this length.
        let again = unsafe { mem::map_again(self.base(), LEN) };
        again.and_then(|base| Slab::from_base(base).ok_or(Errno::ENOMEM))
    }
}

impl Mapping {
    /// A channel of private memory, which nobody else is a side of.
    pub fn nowhere() -> Result<Mapping> {
        const ALIGN: usize = 1 << 20;
        let place = mem::reserve_private(SEGMENT_LEN + ALIGN)?;
        Ok(Mapping::at(place.map_addr(|at| at.next_multiple_of(ALIGN))))
    }

    /// One that was made by [`Mapping::nowhere`], from where it begins.
    pub fn known_nowhere(base: *mut u8) -> Mapping {
        Mapping::named(base, 0)
    }

    /// Another mapping of the segment.
    pub fn again(&self) -> Result<Mapping> {
        // SAFETY: mapped shared with this length.
        unsafe { mem::map_again(self.base(), SEGMENT_LEN) }.map(Mapping::at)
    }

    /// Whether that is an address in it.
    pub fn contains(&self, address: usize) -> bool {
        (self.base().addr()..self.base().addr() + SEGMENT_LEN).contains(&address)
    }

    /// Zeros take its place; who uses it finds a channel on which nothing ever happens.
    pub fn replace_by_zeros(&self) -> Result<()> {
        // SAFETY: mapped with this length; all that is read in a channel is checked, or of the program's other side.
        unsafe { mem::replace_by_zeros(self.base(), SEGMENT_LEN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn a_stand_in_holds_what_was_there_and_changes_nothing() {
        let (_fd, slab) = Slab::create(7).unwrap();
        let nowhere = Mapping::nowhere().unwrap();
        slab.header().high.store(3, Ordering::Relaxed);
        let endpoint = slab.endpoint(1).unwrap();
        endpoint.state.store(State::Connected as u8, Ordering::Relaxed);
        endpoint.holders.store(3, Ordering::Relaxed);
        endpoint.sender.store(42, Ordering::Relaxed);
        endpoint.peer.store(1, Ordering::Relaxed);
        slab.rx(1).unwrap().lowat.store(1, Ordering::Relaxed);
        slab.set_address(endpoint, End::Remote, [9; 16]);
        let stand_in =
            StandIn::of(&slab, &nowhere, |one, _| one.holders.store(2, Ordering::Relaxed)).unwrap();
        let again = slab.again().unwrap();
        // SAFETY: made of this slab.
        unsafe { stand_in.replace(&slab) }.unwrap();
        assert_eq!(endpoint.state.load(Ordering::Relaxed), State::Kernel as u8);
        assert_eq!(endpoint.holders.load(Ordering::Relaxed), 2);
        assert_eq!(slab.address(endpoint, End::Remote), [9; 16]);
        assert_ne!(endpoint.peer.load(Ordering::Relaxed), 1);
        again.abandon(2, |thread| thread == 42);
        let shared = again.endpoint(1).unwrap();
        assert_eq!(shared.state.load(Ordering::Relaxed), State::Connected as u8);
        assert_eq!((shared.holders.load(Ordering::Relaxed), shared.sender.load(Ordering::Relaxed)), (1, 0));
        endpoint.peer.store(5, Ordering::Relaxed);
        assert_eq!(shared.peer.load(Ordering::Relaxed), 1);
        // SAFETY: nobody uses them any more.
        unsafe {
            slab.unmap();
            again.unmap();
        }
    }
}
