//! The eventfds that peers and the monitor write to, and who watches them.
//!
//! One is this process's own; others are those of its parents, from which it has inherited connections, and of
//! families that passed connections on. They are watched edge-triggered, and nobody reads them; who does, a hostile peer,
//! takes no wake-up away, since that they can be written is watched too (ADR 4).

use crate::process::{PROCESS, close_hidden, hide_fd, single_threaded};
use crate::wait::OWN_EVENT;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use sd_shm::public::Public;
use sd_sys::fd;
use sd_sys::lock::Lock;

/// Index of the own one, plus one; zero: none yet.
static OWN: AtomicUsize = AtomicUsize::new(0);
/// Those before are not watched: what they would tell, others are told (see `wake_target`).
static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Adds the own one; under `PROCESS.alloc`. False when there are too many.
pub(crate) fn add_own(public: &'static Public, event_fd: i32) -> bool {
    let added = add(core::ptr::from_ref(public).cast_mut(), event_fd);
    if added {
        if crate::wait::any_sleeper() {
            // They are in no count of this page: it says for ever that somebody sleeps.
            public.sleepers.fetch_add(1, Ordering::SeqCst);
        }
        OWN.store(PROCESS.waker_count.load(Ordering::Relaxed), Ordering::Release);
    }
    added
}

/// In a new image: an eventfd that peers of the one before write to.
pub(crate) fn add_inherited(event_fd: i32) {
    add(core::ptr::null_mut(), event_fd);
}

/// Families whose eventfds are watched because a connection came from them; by a number of each.
static FAMILIES: Lock<Vec<u64>> = Lock::new(Vec::new());

/// A connection has come from a family: what its peers write to wakes this process too. The descriptors are taken.
pub(crate) fn watch_family(origin: u64, event_fds: &[i32]) {
    let mut families = FAMILIES.lock();
    let is_known = families.contains(&origin);
    for &event_fd in event_fds {
        let hidden = hide_fd(event_fd);
        if is_known || !add(core::ptr::null_mut(), hidden) {
            close_hidden(hidden);
        }
    }
    if !is_known {
        families.push(origin);
    }
}

fn add(public: *mut Public, event_fd: i32) -> bool {
    let count = PROCESS.waker_count.load(Ordering::Relaxed);
    let Some(waker) = PROCESS.wakers.get(count) else { return false };
    waker.public.store(public, Ordering::Relaxed);
    waker.event_fd.store(event_fd, Ordering::Relaxed);
    PROCESS.waker_count.store(count + 1, Ordering::SeqCst);
    // Threads that sleep already watch what there was.
    if !single_threaded() {
        event_fds().take(count).for_each(fd::eventfd_signal);
    }
    true
}

/// All of them.
pub(crate) fn event_fds() -> impl Iterator<Item = i32> {
    let count = PROCESS.waker_count.load(Ordering::Acquire);
    PROCESS.wakers.iter().take(count).map(|waker| waker.event_fd.load(Ordering::Relaxed))
}

/// This process's own one; before it has registered, whichever it watches.
pub(crate) fn own_event_fd() -> i32 {
    let of = match OWN.load(Ordering::Acquire) {
        0 => PROCESS.waker_count.load(Ordering::Acquire),
        own => own,
    };
    let waker = of.checked_sub(1).and_then(|index| PROCESS.wakers.get(index));
    waker.map_or(-1, |waker| waker.event_fd.load(Ordering::Relaxed))
}

/// From now on only the own one is watched and only the own page says who sleeps; false when there is none yet.
pub(crate) fn watch_own_only() -> bool {
    let own = OWN.load(Ordering::Acquire).checked_sub(1);
    own.inspect(|own| FIRST.store(*own, Ordering::SeqCst)).is_some()
}

/// From now on all are watched.
pub(crate) fn watch_all() {
    FIRST.store(0, Ordering::SeqCst);
}

/// One of them, or the control socket, has ended a sleep.
#[inline]
pub(crate) fn has_rung(events: u32) {
    if events & (libc::EPOLLIN | libc::EPOLLOUT) as u32 == 0 {
        crate::monitor::client::look_at_socket();
    } else if events & libc::EPOLLERR as u32 != 0 {
        event_fds().for_each(fd::eventfd_reset);
    }
}

/// In the child of a fork: it has none of its own yet.
pub(crate) fn forked() {
    OWN.store(0, Ordering::Relaxed);
    FIRST.store(0, Ordering::Relaxed);
    // SAFETY: the child has one thread.
    unsafe { FAMILIES.force_unlock() };
}

/// The process has left its family, and has none any more.
pub(crate) fn separated() {
    forked();
    FAMILIES.lock().clear();
}

/// Some of them, one after the other.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct View {
    first: usize,
    end: usize,
}

impl View {
    /// None.
    pub(super) const NONE: View = View { first: 0, end: 0 };

    /// Those that are to be watched now.
    pub(crate) fn now() -> View {
        let end = PROCESS.waker_count.load(Ordering::SeqCst);
        View { first: FIRST.load(Ordering::SeqCst), end }
    }

    /// All.
    pub(super) fn all() -> View {
        View { first: 0, end: PROCESS.waker_count.load(Ordering::SeqCst) }
    }

    /// In each public page that says whether this process sleeps, the number of sleepers.
    pub(super) fn each_sleepers(self, each: impl Fn(&AtomicU32)) {
        for waker in PROCESS.wakers.iter().take(self.end).skip(self.first) {
            // SAFETY: null or a mapping of this process (or inherited, shared) that is never unmapped.
            if let Some(public) = unsafe { waker.public.load(Ordering::Acquire).as_ref() } {
                each(&public.sleepers);
            }
        }
    }

    /// Lets a kernel epoll instance, which watches these, watch others.
    pub(crate) fn update(&mut self, epoll_fd: i32, view: View) {
        if *self == view {
            return;
        }
        for (index, waker) in PROCESS.wakers.iter().enumerate().take(self.end.max(view.end)) {
            let [was, is] = [*self, view].map(|view| (view.first..view.end).contains(&index));
            let op = match (was, is) {
                (false, true) => libc::EPOLL_CTL_ADD,
                (true, false) => libc::EPOLL_CTL_DEL,
                _ => continue,
            };
            let _ = fd::epoll_ctl(
                epoll_fd,
                op,
                waker.event_fd.load(Ordering::Relaxed),
                fd::EVENTFD_EDGE,
                OWN_EVENT,
            );
        }
        *self = view;
    }
}
