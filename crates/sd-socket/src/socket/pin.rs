//! What a thread waits at: another thread may close its last number, or put another socket in its place, and the call
//! goes on with what it began with, as in Linux. So the thread counts as one more number of the endpoint ([`Pinned`]); at a
//! listener it holds the kernel's part too, by a hidden duplicate. The child of a fork has none of these threads, so it
//! counts its numbers anew. Tested by the subjects `odd/listener_closed_in_accept`, `odd/listener_closed_and_fork`,
//! `fork_served/while_a_thread_waits`, `fork_served/in_a_handler_of_a_wait`.

use crate::fd::hidden::{Hidden, HiddenCell};
use crate::fd::table::{self, Entry};
use crate::process::{PROCESS, single_threaded};
use crate::socket::handle::Socket;
use crate::socket::life;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use libc::c_int;
use sd_shm::slab::Endpoint;
use sd_sys::section::Section;

/// How many [`Pinned`] there are.
static WAITED_AT: AtomicU32 = AtomicU32::new(0);

/// A socket that a thread waits at.
pub(crate) struct Pinned {
    socket: Option<Socket>,
    pid: i32,
}

impl Pinned {
    /// `None`: its last number was closed since the caller looked, and it ends, or has ended.
    pub(crate) fn new(endpoint: &'static Endpoint) -> Option<Pinned> {
        let socket = Socket::of(endpoint);
        if socket.is_some_and(|socket| !count_if_open(&socket.private.fds)) {
            return None;
        }
        add(&WAITED_AT, 1);
        Some(Pinned { socket, pid: PROCESS.pid.load(Ordering::Relaxed) })
    }
}

/// One more number, if there is one.
#[inline(always)]
fn count_if_open(fds: &AtomicU32) -> bool {
    if !single_threaded() {
        let one_more = |fds: u32| (fds != 0).then_some(fds.wrapping_add(1));
        return fds.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok();
    }
    // A handler could close it in between.
    let _section = Section::enter();
    let is_open = fds.load(Ordering::Relaxed) != 0;
    if is_open {
        add(fds, 1);
    }
    is_open
}

/// Adds to a counter of this process, modulo 2^32; the value before. Between a message and the program that waited for
/// it there are two of these. While there is one thread only its handlers can come between, which takes one instruction,
/// but not a locked one.
#[inline(always)]
fn add(counter: &AtomicU32, value: u32) -> u32 {
    if !single_threaded() {
        return counter.fetch_add(value, Ordering::AcqRel);
    }
    // SAFETY: a counter of this process, which no other thread changes now.
    unsafe { sd_sys::arch::add_unlocked(counter, value) }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A child that was forked by a handler inside the wait has let go of it already.
        if self.pid == PROCESS.pid.load(Ordering::Relaxed) {
            if let Some(socket) = self.socket
                && add(&socket.private.fds, u32::MAX) == 1
            {
                life::end(socket);
            }
            add(&WAITED_AT, u32::MAX);
        }
    }
}

/// In the child of a fork: it has sockets by their numbers only, and listeners that are let go of below.
pub(crate) fn recount() {
    if WAITED_AT.swap(0, Ordering::AcqRel) == 0 {
        return;
    }
    for rec in PROCESS.slabs.iter().take(PROCESS.slab_count.load(Ordering::Acquire)) {
        let high = rec.slab().map_or(0, |slab| slab.header().high.load(Ordering::Acquire) as usize);
        let all = (0..high).filter_map(|index| rec.private(index));
        all.filter(|private| private.fds.load(Ordering::Relaxed) != 0)
            .for_each(|private| private.fds.store(0, Ordering::Relaxed));
    }
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = entry {
            life::retain(endpoint);
        }
    });
    for place in &KEPT {
        // SAFETY: as for `Place::let_go`.
        if let Some(listener) = unsafe { place.endpoint.load(Ordering::Acquire).as_ref() } {
            life::retain(listener);
        }
    }
}

/// More threads in accept than there are places hold nothing.
const PLACES: usize = 64;

struct Place {
    /// Null: the place is free. Whoever takes the pointer out lets go of the listener.
    endpoint: AtomicPtr<Endpoint>,
    fd: HiddenCell,
}

static KEPT: [Place; PLACES] =
    [const { Place { endpoint: AtomicPtr::new(null_mut()), fd: HiddenCell::empty() } }; PLACES];

impl Place {
    fn let_go(&self) {
        // SAFETY: null, or put in by `keep`; endpoints are never unmapped.
        if let Some(endpoint) = unsafe { self.endpoint.swap(null_mut(), Ordering::AcqRel).as_ref() } {
            self.fd.close();
            life::release(endpoint);
        }
    }
}

/// The program may have closed them past libc.
pub(crate) fn drop_lost() {
    let lost = KEPT.iter().filter(|place| place.fd.is_some() && !sd_sys::fd::is_open(place.fd.raw()));
    lost.for_each(|place| place.fd.lose());
}

/// A listener that a thread waits at in accept.
pub(crate) struct PinnedListener(Option<&'static Place>);

impl PinnedListener {
    /// `None`: its last number was closed since the caller looked.
    pub(crate) fn new(listener: &'static Endpoint) -> Option<PinnedListener> {
        let pointer = (listener as *const Endpoint).cast_mut();
        let is_taken = |place: &&Place| {
            place.endpoint.compare_exchange(null_mut(), pointer, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = KEPT.iter().find(is_taken);
        let is_open = |place: &Place| {
            let is_open = PROCESS.private(listener).is_none() || life::retain_open(listener);
            if !is_open {
                place.endpoint.store(null_mut(), Ordering::Release);
            }
            is_open
        };
        place.is_none_or(is_open).then_some(PinnedListener(place))
    }

    /// Before a sleep: holds the kernel's part too, if the number still leads to it.
    pub(crate) fn hold(&self, fd: c_int) {
        let Some(place) = self.0.filter(|place| !place.fd.is_some()) else { return };
        let Ok(own) = sd_sys::fd::dup(fd).map(Hidden::of) else { return };
        let listener = place.endpoint.load(Ordering::Relaxed).cast_const();
        if table::socket(fd).is_some_and(|now| core::ptr::eq(now, listener)) {
            place.fd.put(own);
        }
    }

    /// The number to ask the kernel with. `None` when the listener's is closed: then only our own connections come.
    pub(crate) fn fd(&self, fd: c_int) -> Option<c_int> {
        let Some(place) = self.0 else { return Some(fd) };
        let listener = place.endpoint.load(Ordering::Relaxed).cast_const();
        match place.fd.raw() {
            -1 => table::socket(fd).filter(|now| core::ptr::eq(*now, listener)).map(|_| fd),
            own => Some(own),
        }
    }
}

impl Drop for PinnedListener {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.let_go();
        }
    }
}

/// In the child of a fork, where no other thread waits.
pub(crate) fn forked() {
    KEPT.iter().for_each(Place::let_go);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One thread closes the last number while another begins to wait, and ends its wait: the socket ends once.
    #[test]
    fn a_socket_ends_once() {
        const ROUNDS: usize = 20_000;
        let fds: Vec<AtomicU32> = (0..ROUNDS).map(|_| AtomicU32::new(1)).collect();
        let begun = AtomicU32::new(0);
        let let_go = |fds: &AtomicU32| u32::from(add(fds, u32::MAX) == 1);
        let wait_for_other = |round: usize| {
            begun.fetch_add(1, Ordering::AcqRel);
            while begun.load(Ordering::Acquire) < 2 * round as u32 + 2 {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            let closer = scope.spawn(|| {
                let close = |(round, fds)| {
                    wait_for_other(round);
                    let_go(fds)
                };
                fds.iter().enumerate().map(close).collect::<Vec<u32>>()
            });
            let wait = |(round, fds)| {
                wait_for_other(round);
                if count_if_open(fds) { let_go(fds) } else { 0 }
            };
            let by_waiter: Vec<u32> = fds.iter().enumerate().map(wait).collect();
            let by_closer = closer.join().unwrap_or_default();
            let ends: Vec<u32> = by_waiter.iter().zip(&by_closer).map(|(a, b)| a + b).collect();
            assert!(
                ends.iter().all(|ends| *ends == 1),
                "of {ROUNDS} {}",
                ends.iter().filter(|ends| **ends != 1).count()
            );
        });
    }
}
