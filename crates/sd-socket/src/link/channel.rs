//! This process's record of a channel: slots, events, and how to wake the other process.

use crate::fd::hidden::Hidden;
use crate::link::admitted::Admitted;
use crate::link::adopters::{Adopters, Complaints};
use crate::link::kept_rings::{Few, are_kept};
use crate::link::outstanding::Outstanding;
use crate::link::peer::Peer;
use crate::link::queued::Queued;
use crate::link::slots::Slots;
use crate::link::thread_wakers;
use crate::link::wake_target::WakeTargets;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};
use sd_ring::sync::thread_waker::target;
use sd_ring::sync::{gone, slot_state};
use sd_shm::channel::{Mapping, SLOTS, Side, SlotSide, SlotState, ThreadWaker};
use sd_shm::events::EventSet;
use sd_shm::link::Link;
use sd_shm::slab::Endpoint;
use sd_sys::lock::Lock;
use sd_sys::time::Interval;

/// A channel that this process is one side of.
pub(crate) struct Channel {
    pub(crate) id: u64,
    pub(crate) side: Side,
    pub(crate) map: Mapping,
    /// Side B: this process's number among the adopters; 0 when the channel was made for it.
    pub(crate) adopter: u32,
    pub(crate) peer: Peer,
    /// What stands behind the other side; see `seam`.
    pub(crate) link: Link,
    /// An accepted connection is told of: the channel was made for another process, or the other side does not look by itself.
    pub(crate) tells_accept: bool,
    /// Side A: how to wake the adopters that have accepted connections.
    pub(crate) adopters: Adopters,
    /// How to wake the processes that alone have connections on the other side.
    pub(crate) wake_targets: WakeTargets,
    /// How to wake single threads of the other side's process.
    pub(crate) thread_wakers: thread_wakers::Known,
    /// Segment, kept for announcing the channel to a restarted monitor.
    pub(crate) segment_fd: Hidden,
    /// What is announced to this process: an adopter has a set of its own.
    events: &'static EventSet,
    /// Endpoints and waiting connections that use the record.
    uses: AtomicU32,
    /// The other side is gone for good: to be freed when nothing uses it any more.
    doomed: AtomicU32,
    /// Its other side is gone, as the monitor says, though connections may wait there.
    left_over: AtomicU32,
    /// The monitor has not let it go, though nothing here used it.
    refused: AtomicBool,
    /// Time-stamp of the last look whether the other process lives; MAX: it cannot be looked at.
    looked_at: AtomicU64,
    /// Came by fork: new connections and events belong to the parent.
    pub(crate) inherited: AtomicBool,
    /// Endpoints by slot.
    endpoints: Box<[AtomicPtr<Endpoint>]>,
    /// By slot, threads of this process that wait for the connection and are woken as others are (see `thread_waker`); null
    /// while there were none.
    others_wait: AtomicPtr<Counts>,
    pub(crate) queued: Queued,
    /// Slots on which a ring that a stranger reads, or fills, may be large.
    pub(crate) grown: Few,
    pub(super) entered: Few,
    /// Side B.
    pub(crate) admitted: Admitted,
    /// Side B: the client has left connections with a busy sibling, see `backlog::beside`.
    pub(crate) left_beside: AtomicBool,
    /// Side A: nobody who shares a socket was idle when a connection was last dealt to this side B, as far as is known.
    pub(crate) nobody_idle: AtomicBool,
    slots: Lock<Slots>,
    /// Side A.
    pub(super) outstanding: Outstanding,
    /// Side A: complaints about the oldest of them.
    pub(crate) complaints: Complaints,
}

/// A number for each slot.
type Counts = [AtomicU16; SLOTS];

/// So rarely a look, which is three system calls, costs nothing.
static LOOK_EVERY: Interval = Interval::of_ns(50_000);

impl Channel {
    /// A record for a mapped segment.
    pub(crate) fn new(
        id: u64,
        (side, adopter): (Side, u32),
        map: Mapping,
        peer: Peer,
        segment_fd: Hidden,
    ) -> Box<Channel> {
        let events = map.events_for(side, adopter);
        let link = link_of(&map, side.other());
        let peer = peer.behind(link, map.header());
        Box::new(Channel {
            id,
            side,
            map,
            events,
            adopter,
            peer,
            link,
            tells_accept: adopter != 0 || link.must_be_told(),
            adopters: Adopters::new(),
            wake_targets: WakeTargets::new(),
            thread_wakers: thread_wakers::Known::new(),
            segment_fd,
            uses: AtomicU32::new(0),
            doomed: AtomicU32::new(0),
            left_over: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            looked_at: AtomicU64::new(0),
            inherited: AtomicBool::new(false),
            endpoints: (0..SLOTS).map(|_| AtomicPtr::new(core::ptr::null_mut())).collect(),
            others_wait: AtomicPtr::new(core::ptr::null_mut()),
            queued: Queued::of(side),
            grown: Few::to_grow(),
            entered: Few::to_enter(),
            admitted: Admitted::new(),
            left_beside: AtomicBool::new(false),
            nobody_idle: AtomicBool::new(false),
            slots: Lock::new(Slots::new()),
            outstanding: Outstanding::new(),
            complaints: Complaints::default(),
        })
    }

    /// The monitor found the other side's last process gone.
    pub(crate) fn peer_is_dead(&self) -> bool {
        self.map.header().dead.get(self.side.other() as usize).is_some_and(|d| d.load(Ordering::Acquire) != 0)
    }

    /// Some endpoint or waiting connection needs the record.
    pub(crate) fn is_used(&self) -> bool {
        self.uses.load(Ordering::Acquire) != 0
    }

    /// Announces a slot to the process that acts as the other side of it: to one thread, if that waits alone (SYNC POINT: thread
    /// waker, with `displace` in crates/sd-socket/src/socket/thread_waker.rs).
    pub(super) fn announce(&self, slot: usize) {
        let [a, b] = &self.map.slot(slot).side;
        let adopter = match self.side {
            Side::A => b.listener.load(Ordering::Relaxed),
            Side::B => 0,
        };
        let (own, other) = if self.side == Side::A { (a, b) } else { (b, a) };
        let wake_target = other.cold().map_or(0, |words| target(&words.wake_target));
        match ThreadWaker::of(wake_target) {
            Some(ThreadWaker::Sleeps(number)) if self.thread_wakers.ring(&self.peer, number) => return,
            Some(ThreadWaker::Wishes(number)) => self.thread_wakers.grant(self, slot, own, number),
            None if wake_target != 0 && self.wake_targets.wake(self, slot, wake_target) => return,
            _ => {}
        }
        own.announced.store(sd_sys::time::ticks(), Ordering::Relaxed);
        self.map.events_for(self.side.other(), adopter).post(slot);
        match adopter {
            0 => self.peer.wake(),
            number => self.adopters.wake(self.id, number),
        }
    }

    /// Whether the other process seems to be there, though the monitor may not know better yet. Looked at
    /// now and then; once it seems to be gone, the monitor is to be asked and believed (it may be in
    /// another process namespace).
    pub(crate) fn peer_seems_alive(&self) -> bool {
        let now = sd_sys::time::ticks();
        let last = self.looked_at.load(Ordering::Relaxed);
        if last == u64::MAX || !self.link.has_pid() || !LOOK_EVERY.is_over(now.wrapping_sub(last)) {
            return true;
        }
        let Ok(pidfd) = sd_sys::fd::pidfd_open(self.peer.pid as i32) else {
            self.looked_at.store(u64::MAX, Ordering::Relaxed);
            return false;
        };
        let ended = sd_sys::fd::poll_one(pidfd.raw(), libc::POLLIN, 0).is_ok_and(|events| events != 0);
        self.looked_at.store(if ended { u64::MAX } else { now }, Ordering::Relaxed);
        !ended
    }

    /// No connection can begin on the channel any more: its maker on the other side, or on this one
    /// if we are an adopter, is gone.
    pub(super) fn is_leftover(&self) -> bool {
        let dead = &self.map.header().dead;
        (gone::is_told(&self.left_over) || dead.iter().any(|side| side.load(Ordering::Acquire) != 0))
            && !self.inherited.load(Ordering::Relaxed)
    }

    /// See the field. The caller marks what is bound afterwards (SYNC POINT: gone, with `is_gone` in crates/sd-socket/src/link/channel.rs).
    pub(crate) fn left_over(&self) {
        gone::tell(&self.left_over, &self.uses);
    }

    /// The other side is gone for good.
    pub(crate) fn doom(&self) {
        gone::tell(&self.doomed, &self.uses);
    }

    /// What is left over goes when nothing uses it.
    pub(crate) fn leave_if_unused(&self) {
        if gone::is_told(&self.left_over) && !self.is_used() {
            crate::link::reclaim::leave_soon();
        }
    }

    /// Whether the other side was gone already when a slot was bound: asked by who has bound it.
    pub(crate) fn is_gone(&self) -> bool {
        // SYNC POINT: gone, with `left_over` in crates/sd-socket/src/link/channel.rs.
        gone::is_told(&self.left_over) || gone::is_told(&self.doomed)
    }

    /// The other side is another user's.
    pub(crate) fn peer_becomes_stranger(&self) {
        self.peer.becomes_stranger();
        self.adopters.become_strangers();
        self.wake_targets.become_strangers();
    }

    /// No connection shall begin on it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_leftover() || gone::is_told(&self.doomed)
    }

    /// Notes which endpoint uses a slot.
    pub(crate) fn bind(&self, slot: usize, endpoint: &'static Endpoint) {
        if let Some(cell) = self.endpoints.get(slot) {
            cell.store(endpoint as *const Endpoint as *mut Endpoint, Ordering::Release);
            self.used();
        }
    }

    /// The endpoint at a slot.
    pub(crate) fn endpoint(&self, slot: usize) -> Option<&'static Endpoint> {
        // SAFETY: null or set by `bind` to an endpoint of a mapped slab.
        unsafe { self.endpoints.get(slot)?.load(Ordering::Acquire).as_ref() }
    }

    /// How many threads of this process wait for the connection of a slot and are woken as others are; `None` while there were none.
    pub(crate) fn others_wait(&self, slot: usize) -> Option<&AtomicU16> {
        // SAFETY: null, or from a Box that stays as long as the record.
        unsafe { self.others_wait.load(Ordering::SeqCst).as_ref() }?.get(slot)
    }

    /// The count of a slot's other waiters, to be changed: made if there was none.
    pub(crate) fn make_others_wait(&self, slot: usize) -> Option<&AtomicU16> {
        if self.others_wait.load(Ordering::SeqCst).is_null() {
            let counts: *mut Counts = Box::into_raw(Box::new([const { AtomicU16::new(0) }; SLOTS]));
            let none = core::ptr::null_mut();
            if self.others_wait.compare_exchange(none, counts, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                // SAFETY: just made, and known to nobody.
                drop(unsafe { Box::from_raw(counts) });
            }
        }
        self.others_wait(slot)
    }

    /// The endpoint is done with its slot; `unused` follows when it is done with the record too. True: the caller gives its source
    /// port back.
    #[must_use]
    pub(crate) fn unbind(&self, slot: usize, endpoint: &Endpoint) -> bool {
        let Some(cell) = self.endpoints.get(slot) else { return false };
        if !core::ptr::eq(cell.load(Ordering::Acquire), endpoint) {
            return false;
        }
        cell.store(core::ptr::null_mut(), Ordering::Release);
        self.wake_targets.forget(slot);
        if self.side == Side::A && !self.inherited.load(Ordering::Relaxed) {
            self.slots.lock().closed(slot);
        }
        self.side == Side::A
    }

    /// One more endpoint or waiting connection needs the record.
    pub(crate) fn used(&self) {
        gone::enter(&self.uses);
    }

    /// One fewer does.
    pub(crate) fn unused(&self) {
        if self.uses.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        if gone::is_told(&self.doomed) {
            crate::link::reclaim::channels();
        } else if self.is_leftover() {
            crate::link::reclaim::leave_soon();
        }
    }

    /// Notes it, see the field: whether it was so before.
    pub(super) fn note_refused(&self) -> bool {
        self.refused.swap(true, Ordering::Relaxed)
    }

    /// Nothing uses it, but the monitor still knows it as ours.
    pub(super) fn is_idle_leftover(&self) -> bool {
        self.uses.load(Ordering::Acquire) == 0 && !gone::is_told(&self.doomed) && self.is_leftover()
    }

    /// Nobody will need the record any more.
    pub(super) fn is_finished(&self) -> bool {
        gone::is_told(&self.doomed) && self.uses.load(Ordering::Acquire) == 0
    }

    /// A slot for a new connection, side A only: number and generation. Its rings are empty and
    /// its words clean. `None` when the channel is full.
    pub(crate) fn allocate_slot(&self) -> Option<(usize, u32)> {
        if self.inherited.load(Ordering::Relaxed) {
            return None;
        }
        let mut slots = self.slots.lock();
        let (index, was_used) =
            if are_kept(self) { slots.take_last(&self.map)? } else { slots.take(&self.map)? };
        if !was_used {
            self.map.header().used.store(slots.used() as u32, Ordering::Release);
        }
        drop(slots);
        if was_used {
            self.clean_rings(index);
        }
        Some((index, self.clean(index)))
    }

    /// As [`Channel::allocate_slot`], which connect alone calls, so that it is a part of that.
    #[cold]
    #[inline(never)]
    pub(crate) fn allocate_slot_slowly(&self) -> Option<(usize, u32)> {
        if self.inherited.load(Ordering::Relaxed) {
            return None;
        }
        let mut slots = self.slots.lock();
        let (index, was_used) = slots.take_last(&self.map)?;
        if was_used {
            self.clean_rings(index);
        } else {
            self.map.header().used.store(slots.used() as u32, Ordering::Release);
        }
        drop(slots);
        Some((index, self.clean(index)))
    }

    /// There is a slot for a new connection, as far as a quick look tells.
    pub(crate) fn has_room(&self) -> bool {
        self.slots.lock().have_room(&self.map)
    }

    /// Answers a request in the place of the other side, unless it was answered: then false.
    pub(crate) fn take_back(&self, slot: usize, generation: u32) -> bool {
        let [_, b] = &self.map.slot(slot).side;
        let old = b.state.load(Ordering::Acquire);
        let closed = generation << 8 | SlotState::Closed as u32;
        old >> 8 != generation && slot_state::answer(&b.state, old, closed)
    }

    /// Takes a request back, unless somebody has accepted it: then false.
    pub(crate) fn withdraw(&self, slot: usize, generation: u32) -> bool {
        if !self.take_back(slot, generation) {
            return false;
        }
        let [a, _] = &self.map.slot(slot).side;
        a.set_state(generation, SlotState::Closed);
        self.slots.lock().closed(slot);
        self.tell(slot);
        true
    }

    /// Words of a slot, for its next connection.
    #[inline(always)]
    fn clean(&self, index: usize) -> u32 {
        let slot = self.map.slot(index);
        let generation = slot.side[0].state().0.wrapping_add(1) & 0x00ff_ffff;
        slot.side.iter().for_each(SlotSide::clear);
        generation
    }

    /// Rings of a slot that was used before: empty again.
    #[inline(always)]
    fn clean_rings(&self, index: usize) {
        for from in [Side::A, Side::B] {
            // SAFETY: the first word of a small ring of this mapping; nobody uses the slot now.
            unsafe { (*(self.map.small_ring(index, from) as *const AtomicU64)).store(0, Ordering::Relaxed) };
        }
    }

    /// In the child of a fork: another thread may have held the lock.
    pub(crate) fn forked(&self) {
        // SAFETY: the child has one thread.
        unsafe {
            self.wake_targets.forked();
            self.slots.force_unlock();
            self.outstanding.forked();
        }
    }

    /// What is announced to this process, if not to the one it was inherited from.
    pub(super) fn announced_events(&self) -> Option<&'static EventSet> {
        (!self.inherited.load(Ordering::Relaxed)).then_some(self.events)
    }

    /// Announces a slot to this process itself.
    pub(crate) fn announce_here(&self, slot: usize) {
        self.events.post(slot);
    }

    /// Calls `each` for every slot the peer has announced. Whether it has left connections with a busy sibling.
    #[inline]
    pub(crate) fn take_events(&self, each: impl FnMut(usize)) -> bool {
        self.events.take(each)
    }
}

/// What stands behind a side.
fn link_of(map: &Mapping, side: Side) -> Link {
    Link::of(map.header().link.get(side as usize).map_or(0, |word| word.load(Ordering::Relaxed)))
}

impl Drop for Channel {
    fn drop(&mut self) {
        let counts = *self.others_wait.get_mut();
        if !counts.is_null() {
            // SAFETY: from a Box; nobody uses the record any more.
            drop(unsafe { Box::from_raw(counts) });
        }
        // SAFETY: nobody uses the record any more, so nobody uses its mapping.
        unsafe { self.map.unmap() };
    }
}
