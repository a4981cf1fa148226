//! Leaving the family while other threads run (ADR 54).
//!
//! They may be anywhere: in the middle of a copy into a ring, asleep on a word of a channel, about to load from an endpoint.
//! Nobody stops them. So:
//! ```text
//!  1. nothing new begins:   no route, no registration, no segment is mapped (`client::set_ending`); who would make, change or close a
//!                           socket waits until this is over (`reclaim::Leaver`), and finds it the kernel's
//!  2. what is held goes on: kernel sockets under the same numbers, with bridges that begin after step 5; new calls are
//!                           the kernel's, calls under way go on as they were; the monitor knows which listeners are the kernel's
//!  3. nobody is in a half:  both tokens of each connection are taken
//!  4. the memory goes:      private memory takes the place of slabs, channels, pages and ledgers, at once
//!  5. relatives are freed:  through other mappings, the tokens, claims and holders' bits that threads here had
//!  6. threads come back:    who sleeps is woken, finds the socket moved (`withdrawn::MOVED`), and asks the kernel
//!  7. descriptors go:       segments and eventfds are replaced under their numbers
//! ```
//! From then on the process is on the kernel's path: it never registers again, so nothing is made twice that a thread might
//! still have an address of. Its next image begins anew.
//!
//! Tested by `xtask hostile` (`finding-06-threads-*`) and the subjects `privileges/threads_*`.

use super::{Gate, bridged, endpoints, make_kernels, numbers, put_under_numbers};
use crate::epoll;
use crate::fd::table::{self, Entry};
use crate::link::channel::Channel;
use crate::link::reclaim;
use crate::monitor::client;
use crate::process::{PROCESS, SlabRec};
use crate::socket::endpoint::{EndpointExt, RESET};
use crate::socket::token;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_ring::token::Way;
use sd_shm::channel::Mapping;
use sd_shm::slab::{Endpoint, Reason, Slab, StandIn, State};
use sd_sys::fd::Owned;
use sd_sys::futex::{self, Scope};
use sd_sys::lock::Lock;
use sd_sys::section::Section;
use sd_sys::{Errno, mem};

/// One thread leaves at a time.
static LEAVING: Lock<()> = Lock::new(());

/// How often sockets are looked for that calls under way have made meanwhile.
const ROUNDS: usize = 3;
/// How long such calls have, a millisecond each.
const LOOKS: usize = 100;

/// Leaves the family. `Err` is errno; what is the kernel's by then stays so.
pub(super) fn leave() -> Result<(), Errno> {
    let _one = LEAVING.lock();
    if !super::has_relatives() {
        return Ok(());
    }
    let gate = Gate::new().map_err(|_| Errno::EAGAIN)?;
    crate::wait::settle::leave();
    client::set_ending(true);
    crate::route::forget_all();
    let alone = reclaim::Leaver::begin();
    let left = hand_over(&gate).and_then(|()| replace_all().ok_or(Errno::EAGAIN));
    drop(alone);
    gate.open();
    if left.is_err() {
        client::set_ending(client::is_closed_for_good());
    }
    left
}

/// Everything that has a number goes to the kernel, also what calls under way connect or accept meanwhile, should they take long.
fn hand_over(gate: &Gate) -> Result<(), Errno> {
    for _ in 0..ROUNDS {
        wait_for_users();
        crate::setup::syn_sent::all_to_kernel();
        let all = endpoints();
        let is_ours = |endpoint: &&'static Endpoint| !is_the_kernels(endpoint);
        let left: Vec<&'static Endpoint> = all.into_iter().filter(is_ours).collect();
        if left.is_empty() {
            break;
        }
        super::hand_over(&left);
        for (endpoint, outer) in bridged(&left, Some(gate))? {
            to_bridge(endpoint, outer);
        }
        left.into_iter().filter(is_ours).for_each(to_kernel);
    }
    Ok(())
}

fn is_the_kernels(endpoint: &'static Endpoint) -> bool {
    numbers(endpoint).iter().all(|fd| matches!(table::get(*fd), Entry::Kernel(_)))
}

/// In the child of a fork, which has not the thread that was leaving.
pub(crate) fn forked() {
    // SAFETY: the child has one thread.
    unsafe { LEAVING.force_unlock() };
    client::set_ending(client::is_closed_for_good());
}

/// Both halves of all connections that the process has, so that nobody is in the middle of a change.
struct Halves(Vec<&'static Endpoint>);

impl Halves {
    /// In the order in which others take several, receivers first.
    fn hold() -> Halves {
        let mut all: Vec<&'static Endpoint> = PROCESS.connections().map(|(_, endpoint)| endpoint).collect();
        all.sort_unstable_by_key(|endpoint| token::order(endpoint));
        for way in [Way::Receive, Way::Send] {
            all.iter().for_each(|endpoint| token::hold(endpoint, way));
        }
        Halves(all)
    }

    fn let_go(&self) {
        for way in [Way::Receive, Way::Send] {
            self.0.iter().for_each(|endpoint| token::let_go(endpoint, way));
        }
    }
}

/// Until no thread is in the middle of connecting, accepting or closing, or of what comes from a channel. None begins.
fn wait_for_users() {
    for _ in 0..LOOKS {
        if reclaim::is_unused() {
            return;
        }
        let _ = sd_sys::time::sleep_ns(1_000_000);
    }
}

/// The kernel's socket is under the numbers of the connection, which is known by its names still.
fn to_bridge(endpoint: &'static Endpoint, outer: Owned) {
    let numbers = put_under_numbers(endpoint, outer);
    epoll::leave_to_kernel(endpoint);
    for fd in numbers {
        table::set_kernel(fd, endpoint);
    }
}

/// What is no connection is the kernel's. Relatives may have a listener still, and connections come for this process alone: those that the
/// monitor sends here before it sees the process end are to come over the kernel as well.
fn to_kernel(endpoint: &'static Endpoint) {
    let numbers = numbers(endpoint);
    if let Some(&fd) = numbers.first() {
        make_kernels(endpoint, fd);
        if endpoint.state_now() == State::Listen {
            crate::setup::withdrawn::cannot_take(fd);
        }
    }
    epoll::leave_to_kernel(endpoint).into_iter().for_each(epoll::Registered::into_kernel);
    for fd in numbers {
        table::set_kernel(fd, endpoint);
    }
}

/// Steps 3 to 7. `None`: the kernel has no memory for it. What is shared then, is; no right was given up.
fn replace_all() -> Option<()> {
    // Threads in an instance may wait for a half.
    epoll::separated_with_threads()?;
    // No handler of this thread comes into what follows.
    let _section = Section::enter();
    let halves = Halves::hold();
    let Some(old) = Old::of(&halves.0) else {
        halves.let_go();
        return None;
    };
    let done = old.replace();
    old.abandon();
    done?;
    old.wake();
    blind();
    Some(())
}

/// What is to be replaced, mapped once more.
struct Old {
    slabs: Vec<(&'static SlabRec, Slab, Slab)>,
    channels: Vec<(&'static Channel, Mapping)>,
    /// Words in `channels` that threads may sleep on, by their distance from the start.
    words: Vec<(usize, usize)>,
    nowhere: Mapping,
}

impl Old {
    fn of(connections: &[&'static Endpoint]) -> Option<Old> {
        let mut old = Old {
            slabs: Vec::new(),
            channels: Vec::new(),
            words: Vec::new(),
            nowhere: Mapping::nowhere().ok()?,
        };
        for rec in PROCESS.slabs.iter().take(PROCESS.slab_count.load(Ordering::Acquire)) {
            let slab = rec.slab()?;
            old.slabs.push((rec, slab, slab.again().ok()?));
        }
        for channel in PROCESS.channels() {
            old.channels.push((channel, channel.map.again().ok()?));
        }
        for endpoint in connections {
            let word = core::ptr::from_ref(&endpoint.own_words().wait).addr();
            let is_in = |(channel, _): &(&Channel, Mapping)| channel.map.contains(word);
            if let Some(at) = old.channels.iter().position(is_in) {
                old.words.push((at, word - old.channels.get(at)?.0.map.base().addr()));
            }
        }
        Some(old)
    }

    fn replace(&self) -> Option<()> {
        let mut control = crate::monitor::client::CONTROL.lock();
        client::close_for_good(&mut control);
        let _alloc = PROCESS.alloc.lock();
        PROCESS.disown_slab();
        for (rec, slab, _) in &self.slabs {
            let bit = rec.bit.load(Ordering::Relaxed);
            let stand_in =
                StandIn::of(slab, &self.nowhere, |endpoint, goes_on| end(endpoint, goes_on, bit)).ok()?;
            // SAFETY: made of this slab.
            unsafe { stand_in.replace(slab) }.ok()?;
        }
        PROCESS.forget_announcements();
        for (channel, _) in &self.channels {
            channel.map.replace_by_zeros().ok()?;
            channel.wake_targets.forget_all();
            let others = channel.adopters.peers().filter_map(|peer| peer.public);
            others.chain(channel.peer.public).try_for_each(replace_page)?;
        }
        let pages = PROCESS.wakers.iter().take(PROCESS.waker_count.load(Ordering::Acquire));
        // SAFETY: null, or a page that stays mapped.
        let pages = pages.filter_map(|waker| unsafe { waker.public.load(Ordering::Acquire).as_ref() });
        { pages }.try_for_each(replace_page)
    }

    /// For relatives.
    fn abandon(&self) {
        for (rec, _, again) in &self.slabs {
            again.abandon(rec.bit.load(Ordering::Relaxed), token::is_of_this_process);
        }
    }

    /// Whoever sleeps looks again, and finds that the socket is the kernel's.
    fn wake(&self) {
        for (at, distance) in &self.words {
            if let Some((_, again)) = self.channels.get(*at) {
                let word = again.base().wrapping_add(*distance).cast::<AtomicU32>();
                futex::wake(word, i32::MAX, Scope::Shared);
            }
        }
        crate::process::waker::event_fds().for_each(sd_sys::fd::eventfd_signal);
        crate::socket::thread_waker::wake_all();
    }
}

impl Drop for Old {
    fn drop(&mut self) {
        for (_, _, again) in &self.slabs {
            // SAFETY: this mapping is known here only.
            unsafe { again.unmap() };
        }
        for (_, again) in &self.channels {
            // SAFETY: as above.
            unsafe { again.unmap() };
        }
    }
}

/// An endpoint in a stand-in: nothing can be sent or received with it, unless its bytes went through the kernel's socket before.
fn end(endpoint: &Endpoint, goes_on: bool, bit: u64) {
    if !goes_on && matches!(endpoint.state_now(), State::Connected | State::Connecting) {
        endpoint.set_flag(RESET);
        endpoint.reason.store(Reason::Bridged as u8, Ordering::Relaxed);
    }
    endpoint.holders.store(bit, Ordering::Relaxed);
}

fn replace_page(page: &'static sd_shm::public::Public) -> Option<()> {
    let page = core::ptr::from_ref(page).cast_mut().cast();
    // SAFETY: a page mapped with that length; who reads it finds that nobody sleeps.
    unsafe { mem::replace_by_zeros(page, sd_shm::public::LEN) }.ok()
}

/// What numbers of the library's own lead to is nobody's any more: segments, and eventfds that others sleep on. Sockets
/// and pipes are the process's own, and so are epoll instances, on which threads may be asleep.
fn blind() {
    let Ok(nothing) = sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) else { return };
    // Whoever begins to watch it looks again.
    sd_sys::fd::eventfd_signal(nothing.raw());
    table::for_each(0, u32::MAX, |fd, entry| {
        if matches!(entry, Entry::Hidden) && !is_own(fd, nothing.raw()) {
            let _ = sd_sys::fd::dup3(nothing.raw(), fd, libc::O_CLOEXEC);
        }
    });
}

fn is_own(fd: i32, other: i32) -> bool {
    // It is an instance if it says that it does not watch the other one, and not that it is none.
    let is_epoll = sd_sys::fd::epoll_ctl(fd, libc::EPOLL_CTL_DEL, other, 0, 0) != Err(Errno::EINVAL);
    let is_socket = sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_ok();
    is_epoll || is_socket || sd_sys::fd::fcntl(fd, libc::F_GETPIPE_SZ, 0).is_ok()
}
