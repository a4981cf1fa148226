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
    PROCESS.slab_count.load(Ordering::Acquire) != 0 || crate::epoll::are_known()
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
pub(crate) fn early() {
    if !active() {
        return;
    }
    // A child that never registered does so now, or nobody would hear of its own child's death.
    drop(crate::monitor::client::connected());
    crate::setup::syn_sent::all_to_kernel();
    crate::setup::listen::before_fork();
    crate::epoll::before_fork();
}

/// The last thing before fork: everything is put into a state that the child can use.
pub(crate) fn prepare() {
    thread::set_child(None);
    if !active() {
        return;
    }
    crate::memory::idle::keep_lock();
    PROCESS.control.lock_and_keep();
    crate::setup::syn_sent::keep_lock();
    crate::options::replay::keep_lock();
    crate::setup::listen::keep_lock();
    crate::route::keep_lock();
    PROCESS.alloc.lock_and_keep();
    crate::epoll::keep_locks();
    crate::link::wake_target::leave_under_lock();
    PROCESS.forked.fetch_or(PROCESS.slab_count.load(Ordering::Acquire) != 0, Ordering::Relaxed);
    let member = claim_member();
    thread::set_child(Some((member, 0)));
    table::for_each(0, u32::MAX, |_, entry| {
        if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = entry {
            endpoint.holders.fetch_or(1 << member, Ordering::AcqRel);
        }
    });
    crate::wait::thread_waker::leave();
    // SAFETY: this thread has taken the lock above and keeps it.
    let control = unsafe { PROCESS.control.kept_mut() };
    let serial = crate::monitor::client::before_fork(control, member);
    // The member number chosen for the child, and the fork's number.
    thread::set_child(Some((member, serial)));
    sd_sys::heap::keep_lock();
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
    unsafe {
        sd_sys::heap::unlock();
        crate::epoll::unlock();
        PROCESS.alloc.unlock();
        crate::route::unlock();
        crate::setup::listen::unlock();
        crate::options::replay::unlock();
        crate::setup::syn_sent::unlock();
        PROCESS.control.unlock();
        crate::memory::idle::unlock();
    }
}

/// After fork, in the parent.
pub(crate) fn parent() {
    if is_prepared() {
        crate::monitor::client::parent_after_fork();
        unlock();
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
    if let Ok(pidfd) = sd_sys::fd::pidfd_open(child) {
        crate::monitor::client::tell(&Request::Born { serial }, &[pidfd]);
        sd_sys::fd::close(pidfd);
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
    if is_prepared() {
        unlock();
        changed();
    }
}

/// After a bare clone, in the child: other threads may have held locks of libc's allocator, which stay held.
pub(crate) fn child_bare() {
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
    thread::forget_id();
    sd_sys::budget::forked();
    let member = thread::child().map_or(MEMBERS as u32, |(member, _)| member);
    PROCESS.pid.store(sd_sys::fd::getpid(), Ordering::Relaxed);
    crate::socket::pin::recount();
    crate::socket::token::forked();
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
    PROCESS.control.lock().forked();
    crate::link::reclaim::forked();
    crate::wait::forked();
    crate::wait::sleep_set::forked();
    crate::wait::thread_waker::forked();
    crate::wait::poll::forked();
    crate::wait::waker::forked();
    crate::link::stranger::forked();
    crate::link::wake_target::forked();
    crate::wait::cancel::forked();
    crate::family::spawn::forked();
    crate::setup::syn_sent::forked();
    crate::setup::listen::forked();
    crate::route::local::forked();
    crate::epoll::forked();
    crate::family::separate::forked();
}

/// In the child, after all fork handlers: what may allocate or free.
pub(crate) fn late() {
    if is_prepared() {
        crate::route::forked();
        crate::socket::pin::forked();
        crate::epoll::forked_late();
    }
}
