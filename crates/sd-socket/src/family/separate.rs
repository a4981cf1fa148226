//! Leaving the family: what a process shares with its relatives, it has no more (ADR 47).
//!
//! Parent and forked children share slabs and channels. That is right as long as each of them could reach what the others
//! have by other ways too. A process that is about to give rights up, or to confine itself, for good must keep no more than
//! the sockets that it holds. Therefore, before the call that does so and with the old rights:
//! ```text
//!  connection --> kernel socket under the same numbers, with a bridge behind it, which keeps the old rights
//!  listener   --> its kernel listener; taken up again as one that came from elsewhere, by a process without relatives
//!  others     --> kernel sockets
//!  slabs, channels, public pages, eventfds, control socket --> unmapped, closed
//! ```
//! For the monitor the process has ended, and one with the same process id registers later. The bridge is told apart from
//! other bridges by `Reads::AsRead`: what the process did not read before it closed its copy is still there for relatives
//! that have the connection too.
//!
//! A process without relatives keeps everything as it is. One with several threads, and one whose call goes on when the handler
//! returns that gives rights up, is described in `threads`.

mod threads;

pub(super) use threads::forked;

use crate::Outcome;
use crate::epoll::{self, Registered};
use crate::family::bridge::Gate;
use crate::fd::table::{self, Entry};
use crate::process::{PROCESS, single_threaded};
use crate::socket::addr::Name;
use crate::socket::endpoint::{EndpointExt, NONBLOCK};
use crate::socket::{life, way_back};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use sd_shm::slab::{Endpoint, State};
use sd_sys::Errno;
use sd_sys::fd::Owned;
use sd_sys::section;

/// Makes `call`, which gives rights up: first the process leaves its family, if it has one.
pub fn before(call: impl FnOnce() -> c_int) -> Outcome<c_int> {
    crate::setup::handed_on::forget();
    if !has_relatives() {
        return Outcome::Kernel;
    }
    match leave() {
        Ok(left) => {
            let result = call();
            left.into_iter().for_each(Left::take_up);
            Outcome::Done(result)
        }
        Err(errno) => Outcome::Errno(errno),
    }
}

/// Leaves the family before a filter of the program's, under which nothing could be opened any more. False when what the process
/// has cannot be handed over: the filter must not be installed then.
pub fn now() -> bool {
    crate::setup::handed_on::forget();
    if !has_relatives() {
        return true;
    }
    leave().map(|left| left.into_iter().for_each(Left::take_up)).is_ok()
}

/// Whether other processes can reach memory that this one has mapped, or could before it was alone with that.
pub fn has_relatives() -> bool {
    let count = PROCESS.slab_count.load(Ordering::Acquire);
    // A child of a clone that we have not seen has our table but none of our sockets.
    let is_ours = PROCESS.pid.load(Ordering::Relaxed) == sd_sys::fd::getpid();
    if count == 0 || !is_ours || crate::monitor::client::is_closed_for_good() {
        return false;
    }
    let is_shared = |rec: &crate::process::SlabRec| {
        let members = rec.slab().map_or(0, |slab| slab.header().members.load(Ordering::Acquire));
        members & !rec.bit.load(Ordering::Relaxed) != 0
    };
    PROCESS.slabs.iter().take(count).any(is_shared) || PROCESS.channels().any(|channel| channel.adopter != 0)
}

/// Whether an exec takes rights away that relatives have: the saved user id becomes the effective one.
pub(super) fn is_left_by_exec() -> bool {
    let [mut real, mut effective, mut saved] = [0u32; 3];
    // SAFETY: the kernel writes three numbers.
    unsafe { sd_sys::syscall!(libc::SYS_getresuid, &raw mut real, &raw mut effective, &raw mut saved) };
    has_relatives() && ![real, effective].iter().any(|id| *id == 0 || *id == saved)
}

/// A socket that the process has kept, as the kernel has it.
pub(super) struct Left {
    numbers: Vec<i32>,
    kind: Kind,
}

enum Kind {
    Listener {
        backlog: u32,
        registered: Vec<Registered>,
    },
    /// Its names, which the kernel does not know.
    Connection {
        domain: i32,
        local: Name,
        remote: Name,
    },
}

impl Left {
    /// A listener is one of ours again, in a process that has no relatives, and a connection is told by its names. Where
    /// there is no monitor they stay the kernel's.
    pub(super) fn take_up(self) {
        let Some(&first) = self.numbers.first() else { return };
        match self.kind {
            Kind::Listener { backlog, registered } => {
                crate::setup::listen::adopt_from_kernel(first);
                let Some(endpoint) = table::socket(first) else { return };
                crate::backlog::listener::set_backlog(endpoint, backlog);
                share(endpoint, &self.numbers, table::set_socket);
                for one in registered {
                    crate::setup::listen::interested(endpoint, one.fd());
                    epoll::put_back(one, endpoint);
                }
            }
            Kind::Connection { domain, local, remote } => {
                if let Some(endpoint) = crate::socket::names::remember(first, domain, local, remote) {
                    share(endpoint, &self.numbers, table::set_kernel);
                }
            }
        }
    }
}

/// The other numbers lead to what the first one leads to.
fn share(endpoint: &'static Endpoint, numbers: &[i32], set: fn(i32, &'static Endpoint) -> bool) {
    for &number in numbers.iter().skip(1) {
        life::retain(endpoint);
        if !set(number, endpoint) {
            life::release(endpoint);
        }
    }
}

/// Whether nobody is in a call that goes on once this thread's own has returned.
pub(super) fn is_only_call() -> bool {
    single_threaded() && !section::is_in_a_call()
}

/// Leaves the family. `Err` is errno: a connection cannot be handed over; nothing has changed then.
pub(super) fn leave() -> Result<Vec<Left>, Errno> {
    if !is_only_call() {
        return threads::leave().map(|()| Vec::new());
    }
    crate::wait::settle::leave();
    crate::setup::syn_sent::all_to_kernel();
    let endpoints = endpoints();
    hand_over(&endpoints);
    let bridged = bridged(&endpoints, None)?;
    let mut left: Vec<Left> = bridged.into_iter().map(|(endpoint, outer)| replace(endpoint, outer)).collect();
    left.extend(endpoints.into_iter().filter_map(to_kernel));
    forget();
    Ok(left)
}

/// The sockets of ours that numbers of this process lead to.
fn endpoints() -> Vec<&'static Endpoint> {
    let mut endpoints: Vec<&'static Endpoint> = Vec::new();
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = entry {
            endpoints.push(endpoint);
        }
    });
    endpoints.sort_unstable_by_key(|endpoint| core::ptr::from_ref(*endpoint));
    endpoints.dedup_by_key(|endpoint| core::ptr::from_ref(*endpoint));
    endpoints
}

/// Those that the kernel has made need nothing but its socket, which is under their numbers already.
fn hand_over(endpoints: &[&'static Endpoint]) {
    epoll::hand_over_all(endpoints);
}

/// The other connections among them, and a kernel socket with a bridge for each. `Err` is errno; nothing has changed then.
fn bridged(
    endpoints: &[&'static Endpoint],
    gate: Option<&Gate>,
) -> Result<Vec<(&'static Endpoint, Owned)>, Errno> {
    let is_left =
        |endpoint: &Endpoint| endpoint.state_now() == State::Connected && !way_back::has_left(endpoint);
    let connections = endpoints.iter().filter(|endpoint| is_left(endpoint));
    connections.map(|endpoint| Ok((*endpoint, crate::family::bridge::for_leaving(endpoint, gate)?))).collect()
}

/// All numbers of this process that lead to the endpoint.
fn numbers(endpoint: &'static Endpoint) -> Vec<i32> {
    let mut all = Vec::new();
    table::for_each(0, u32::MAX, |fd, entry| {
        if matches!(entry, Entry::Socket(e) | Entry::Kernel(e) if core::ptr::eq(e, endpoint)) {
            all.push(fd);
        }
    });
    all
}

/// The kernel socket is under all the numbers of the connection, which this process lets go of.
fn replace(endpoint: &'static Endpoint, outer: Owned) -> Left {
    let (local, remote) = crate::socket::names::of(endpoint);
    let kind = Kind::Connection { domain: endpoint.family(), local, remote };
    let numbers = put_under_numbers(endpoint, outer);
    epoll::leave_to_kernel(endpoint);
    numbers.iter().for_each(|&fd| give_up(fd, endpoint));
    Left { numbers, kind }
}

/// A kernel socket is put under all numbers of the connection, which are these.
fn put_under_numbers(endpoint: &'static Endpoint, outer: Owned) -> Vec<i32> {
    let numbers = numbers(endpoint);
    for &fd in &numbers {
        let cloexec = if crate::fd::table::survives_exec(fd) { 0 } else { libc::O_CLOEXEC };
        let _ = sd_sys::fd::dup3(outer.raw(), fd, cloexec);
    }
    numbers
}

fn give_up(fd: i32, endpoint: &'static Endpoint) {
    table::clear(fd);
    life::release(endpoint);
}

/// Sockets that are no connections are the kernel's. What is to be known of a listener.
fn to_kernel(endpoint: &'static Endpoint) -> Option<Left> {
    let numbers = numbers(endpoint);
    let &first = numbers.first()?;
    let state = endpoint.state_now();
    make_kernels(endpoint, first);
    let registered = epoll::leave_to_kernel(endpoint);
    let backlog = crate::backlog::listener::backlog(endpoint);
    numbers.iter().for_each(|&fd| give_up(fd, endpoint));
    let backlog = backlog.filter(|_| state == State::Listen)?;
    Some(Left { numbers, kind: Kind::Listener { backlog, registered } })
}

/// What is not connected gets a kernel socket of its own, as the program sees it.
fn make_kernels(endpoint: &'static Endpoint, fd: i32) {
    if endpoint.state_now() != State::Kernel {
        let _ = crate::socket::kernel_socket::materialize(endpoint);
        let flags = if endpoint.flag(NONBLOCK) { libc::O_NONBLOCK } else { 0 };
        let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, flags as usize);
    }
}

/// No number leads to a socket of ours: the rest goes, and the process is as one that never had any.
fn forget() {
    crate::monitor::client::forget();
    crate::route::forget();
    crate::setup::promote::separated();
    crate::process::netlink::separated();
    epoll::separated();
    crate::wait::sleep_set::forked();
    crate::socket::thread_waker::forked();
    crate::socket::pin::forked();
    crate::socket::token::separated();
    // A handler may have interrupted a call that is counted at an endpoint, whose memory goes.
    sd_sys::thread::forget_counts();
    crate::memory::sweep::separated();
    for index in 0..PROCESS.channel_count.load(Ordering::Acquire) {
        if let Some(channel) = PROCESS.remove_channel(index) {
            // SAFETY: made by Box::into_raw; out of the table, and no endpoint, thread or listener has a reference.
            drop(unsafe { Box::from_raw(channel) });
        }
    }
    crate::link::reclaim::empty();
    PROCESS.channel_count.store(0, Ordering::Release);
    forget_slabs();
    forget_pages();
    drop(crate::monitor::spare::Free::now());
    for placeholder in &PROCESS.placeholders {
        placeholder.close();
    }
    PROCESS.forked.store(false, Ordering::Relaxed);
    PROCESS.mail_seen.store(0, Ordering::Relaxed);
}

fn forget_slabs() {
    let count = PROCESS.slab_count.swap(0, Ordering::AcqRel);
    PROCESS.disown_slab();
    for rec in PROCESS.slabs.iter().take(count) {
        rec.forget();
    }
    let mut alloc = PROCESS.alloc.lock();
    alloc.free = 0;
    alloc.orphans.clear();
}

/// Public pages that this process or a relative writes, and the eventfds that belong to them.
fn forget_pages() {
    PROCESS.public.store(core::ptr::null_mut(), Ordering::Release);
    let count = PROCESS.waker_count.swap(0, Ordering::AcqRel);
    crate::process::waker::separated();
    for waker in PROCESS.wakers.iter().take(count) {
        waker.event_fd.close();
        let page = waker.public.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !page.is_null() {
            // SAFETY: a mapping of that length, made at registration or inherited; nobody has a reference any more.
            unsafe { sd_sys::mem::unmap(page.cast(), sd_shm::public::LEN) };
        }
    }
}
