//! fork (§4.1.2): which process has what.
//!
//! Before the fork the parent marks every open endpoint as held by the child too (a bit per member
//! of the family), so that nothing ends in between, and tells the monitor, with one end of a pair of
//! sockets: the child's end is its control connection, and its closing is the child's end, whatever
//! the parent does meanwhile. The child keeps the parent's slabs and channels; it makes a slab, public
//! page and eventfd of its own when it registers.

use crate::fd::table::{self, Entry};
use crate::process::PROCESS;
use core::sync::atomic::Ordering;
use sd_proto::Request;
use sd_shm::slab::{MEMBERS, SHARED_MEMBER};
use sd_sys::thread;

/// There is something that the child must not take as it is: sockets of ours, or instances that threads sleep in.
fn active() -> bool {
    PROCESS.slab_count.load(Ordering::Acquire) != 0
        || crate::epoll::are_known()
        || crate::setup::first::are_there()
        || crate::setup::unregistered::are_there()
}

/// Before vfork(2): whether the child may run on this process's memory.
pub(crate) fn lend_memory() -> bool {
    let has_nothing = !active()
        && !table::is_active()
        && !sd_sys::numbers::are_limited()
        && !sd_sys::confine::is_on()
        && crate::process::single_threaded();
    if has_nothing {
        crate::process::borrowed::lend();
    }
    has_nothing
}

/// This thread has prepared the fork that it is in: what it did then is undone, whatever other threads have begun meanwhile.
fn is_prepared() -> bool {
    thread::child().is_some()
}

fn slabs() -> impl Iterator<Item = &'static crate::process::SlabRec> {
    PROCESS.slabs.iter().take(PROCESS.slab_count.load(Ordering::Acquire))
}

/// Before any fork handler: what may allocate. The handlers below must not, since an allocator that was preloaded or
/// linked in (jemalloc) holds its locks from its own handlers before ours to those after ours.
pub(crate) fn early() -> bool {
    crate::setup::handed_on::before_fork();
    let is_active = active();
    if is_active {
        PARTS.iter().for_each(|part| (part.early)());
    }
    is_active
}

/// The last thing before fork: everything is put into a state that the child can use.
pub(crate) fn prepare() {
    thread::set_child(None);
    if active() {
        PARTS.iter().for_each(|part| (part.keep)());
    }
}

/// What fork does to a part of the library.
struct Part {
    /// Before the fork, while memory may be allocated.
    early: fn(),
    /// Before the fork: takes the part's locks, which stay taken, and makes ready what the child finds.
    keep: fn(),
    /// After the fork, in either process: gives up those locks, which were kept on this thread, or on the one that it is a
    /// copy of.
    unlock: unsafe fn(),
    /// In the child, which is another process with one thread: what was the parent's alone.
    forked: fn(),
    /// In the child, after all handlers of others: what may allocate or free.
    late: fn(),
}

const fn nothing() {}
const NOTHING: Part = Part { early: nothing, keep: nothing, unlock: nothing, forked: nothing, late: nothing };

/// All parts, in the order in which their locks are taken and the child's part is done; locks are given up in the other
/// order.
static PARTS: [Part; 31] = {
    use crate::{epoll, link, memory, monitor, route, setup, socket, wait};
    [
        Part { keep: memory::idle::keep_lock, unlock: memory::idle::unlock, ..NOTHING },
        Part { forked: be_another_process, ..NOTHING },
        Part { early: setup::unregistered::before_fork, forked: setup::unregistered::all_stay, ..NOTHING },
        Part { early: setup::first::before_fork, forked: setup::first::forked, ..NOTHING },
        Part { forked: socket::pin::recount, ..NOTHING },
        Part { forked: socket::token::forked, ..NOTHING },
        Part { forked: own_nothing, ..NOTHING },
        Part {
            // A child that never registered does so now, or nobody would hear of its own child's death.
            early: || drop(slabs().next().and_then(|_| monitor::client::connected())),
            keep: || crate::monitor::client::CONTROL.lock_and_keep(),
            // SAFETY: kept by the line above.
            unlock: || unsafe { crate::monitor::client::CONTROL.unlock() },
            forked: || crate::monitor::client::CONTROL.lock().forked(),
            ..NOTHING
        },
        Part {
            keep: link::reclaim::keep_lock,
            unlock: link::reclaim::unlock,
            forked: link::reclaim::forked,
            ..NOTHING
        },
        Part { forked: memory::rounds::forked, ..NOTHING },
        Part { forked: wait::sleep_set::forked, ..NOTHING },
        Part { forked: socket::thread_waker::forked, ..NOTHING },
        Part { forked: crate::poll::forked, ..NOTHING },
        Part { forked: crate::process::waker::forked, ..NOTHING },
        Part { forked: link::stranger::forked, ..NOTHING },
        Part { forked: wait::settle::forked, ..NOTHING },
        Part { forked: wait::cancel::forked, ..NOTHING },
        Part { forked: super::spawn::forked, ..NOTHING },
        Part {
            early: setup::syn_sent::all_to_kernel,
            keep: setup::syn_sent::keep_lock,
            unlock: setup::syn_sent::unlock,
            forked: setup::syn_sent::forked,
            ..NOTHING
        },
        Part { forked: setup::promote::forked, ..NOTHING },
        Part { forked: crate::epoll::forget_lists, ..NOTHING },
        Part { forked: super::detach::forked, ..NOTHING },
        Part { keep: crate::socket::resend::keep_lock, unlock: crate::socket::resend::unlock, ..NOTHING },
        Part { keep: crate::socket::notes::keep_lock, unlock: crate::socket::notes::unlock, ..NOTHING },
        Part {
            early: setup::listen::before_fork,
            keep: setup::listen::keep_lock,
            unlock: setup::listen::unlock,
            forked: setup::listen::forked,
            ..NOTHING
        },
        Part {
            keep: route::keep_lock,
            unlock: route::unlock,
            forked: crate::process::netlink::forked,
            late: route::forked,
            ..NOTHING
        },
        Part { late: socket::pin::forked, ..NOTHING },
        Part {
            keep: || PROCESS.alloc.lock_and_keep(),
            // SAFETY: kept by the line above.
            unlock: || unsafe { PROCESS.alloc.unlock() },
            ..NOTHING
        },
        Part {
            early: epoll::before_fork,
            keep: epoll::keep_locks,
            unlock: epoll::unlock,
            forked: epoll::forked,
            late: epoll::forked_late,
        },
        Part { keep: name_child, forked: super::separate::forked, ..NOTHING },
        Part { keep: sd_sys::heap::keep_lock, unlock: sd_sys::heap::unlock, ..NOTHING },
    ]
};

/// With all locks taken: every open endpoint is the child's too, and the monitor knows of it.
fn name_child() {
    crate::wait::settle::leave_under_lock();
    PROCESS.forked.fetch_or(PROCESS.slab_count.load(Ordering::Acquire) != 0, Ordering::Relaxed);
    let member = claim_member();
    thread::set_child(Some((member, 0)));
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = entry {
            endpoint.holders.fetch_or(1 << member, Ordering::AcqRel);
        }
    });
    crate::socket::thread_waker::leave();
    // SAFETY: this thread keeps the lock.
    let control = unsafe { crate::monitor::client::CONTROL.kept_mut() };
    let serial = crate::monitor::client::before_fork(control, member);
    // The member number chosen for the child, and the fork's number.
    thread::set_child(Some((member, serial)));
}

/// A number that no process has in any of our slabs, now the child's; when there is none, the one that is shared: then
/// what the child holds is let go when all who have that number are gone.
///
/// Relatives may be forking at the same time. All who share a slab share its owner's older ones too, so whoever gets
/// the bit in the oldest has the number.
fn claim_member() -> u32 {
    let all = || slabs().filter_map(|rec| rec.slab()).map(|slab| &slab.header().members);
    let mut used = 1;
    loop {
        used |= all().fold(0, |used, members| used | members.load(Ordering::Acquire));
        let member = (!used).trailing_zeros();
        let bit = 1 << member.min(SHARED_MEMBER);
        if member >= SHARED_MEMBER {
            all().for_each(|members| {
                members.fetch_or(bit, Ordering::AcqRel);
            });
            return SHARED_MEMBER;
        }
        let taken_at = all().position(|members| members.fetch_or(bit, Ordering::AcqRel) & bit != 0);
        let Some(taken_at) = taken_at else { return member };
        all().take(taken_at).for_each(|members| {
            members.fetch_and(!bit, Ordering::AcqRel);
        });
        used |= bit;
    }
}

/// The locks that `prepare` took are free again, in whichever process.
fn unlock() {
    // SAFETY: kept by `prepare` on this thread, or on the one that it is a copy of.
    PARTS.iter().rev().for_each(|part| unsafe { (part.unlock)() });
}

/// After fork, in the parent.
pub(crate) fn parent() {
    if is_prepared() {
        crate::monitor::client::parent_after_fork();
        unlock();
        crate::setup::unregistered::all_stay();
    }
}

/// Tells the monitor the child's process id; a negative one means that there is no child.
pub(crate) fn announce(child: i32) {
    let child_of_thread = thread::child();
    thread::set_child(None);
    let Some((member, serial)) = child_of_thread.filter(|(member, _)| (*member as usize) < MEMBERS) else {
        return;
    };
    if child < 0 {
        // Where the monitor knows of the fork it frees the number: it has seen the end of the child's socket.
        if serial == 0 {
            forget_member(member);
        }
        return;
    }
    if serial != 0
        && let Ok(pidfd) = sd_sys::fd::pidfd_open(child)
    {
        crate::monitor::client::tell(&Request::Born { serial }, &[pidfd.raw()]);
    }
}

fn forget_member(member: u32) {
    for slab in slabs().filter_map(|rec| rec.slab()) {
        slab.header().members.fetch_and(!(1 << member), Ordering::AcqRel);
    }
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = entry {
            endpoint.holders.fetch_and(!(1 << member), Ordering::AcqRel);
        }
    });
}

/// After fork, in the child.
pub(crate) fn child() {
    crate::setup::handed_on::forked();
    if is_prepared() {
        unlock();
        changed();
    }
}

/// After a bare clone, in the child: other threads may have held locks of libc's allocator, which stay held.
pub(crate) fn child_bare() {
    crate::setup::handed_on::forked();
    if is_prepared() {
        unlock();
    }
    sd_sys::heap::leave_libc();
    if is_prepared() {
        changed();
    }
}

/// This is another process now.
fn changed() {
    PARTS.iter().for_each(|part| (part.forked)());
}

fn be_another_process() {
    thread::forget_id();
    sd_sys::budget::forked();
    PROCESS.pid.store(sd_sys::fd::getpid(), Ordering::Relaxed);
}

/// The slabs, the public page and the channels are the parent's.
fn own_nothing() {
    let member = thread::child().map_or(MEMBERS as u32, |(member, _)| member);
    // Whoever shares a number cannot let go for the others.
    let bit = if member < SHARED_MEMBER { 1 << member } else { 0 };
    slabs().for_each(|rec| rec.bit.store(bit, Ordering::Relaxed));
    PROCESS.disown_slab();
    PROCESS.public.store(core::ptr::null_mut(), Ordering::Release);
    {
        let mut alloc = PROCESS.alloc.lock();
        alloc.free = 0;
        alloc.orphans.clear();
    }
    for channel in PROCESS.channels() {
        channel.inherited.store(true, Ordering::Relaxed);
        channel.forked();
    }
    PROCESS.forget_announcements();
}

/// In the child, after all fork handlers: what may allocate or free.
pub(crate) fn late() {
    if is_prepared() {
        PARTS.iter().for_each(|part| (part.late)());
    }
}
