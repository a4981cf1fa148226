//! The eventfds that peers and the monitor write to, who watches them, and which threads sleep.
//!
//! One is this process's own; others are those of its parents, from which it has inherited connections, and of
//! families that passed connections on. They are watched edge-triggered, and nobody reads them; who does, a hostile peer,
//! takes no wake-up away, since that they can be written is watched too (ADR 4).

use crate::fd::hidden::Hidden;
use crate::process::stats::{Counter, count};
use crate::process::{PROCESS, lingering, single_threaded};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sd_ring::sync::sleepers;
use sd_ring::sync::wake_target::Watch;
use sd_shm::public::Public;
use sd_sys::fd::Owned;
use sd_sys::lock::Lock;
use sd_sys::{Errno, fd};

/// Index of the own one, plus one; zero: none yet.
static OWN: AtomicUsize = AtomicUsize::new(0);
/// Which of them are watched: those before the first are not, as what they would tell, others are told (see `wake_target`). And how
/// many threads sleep.
pub(crate) static WATCH: Watch = Watch::new();

/// Adds the own one; under `PROCESS.alloc`. False when there are too many.
pub(crate) fn add_own(public: &'static Public, event_fd: Hidden) -> bool {
    let added = add(core::ptr::from_ref(public).cast_mut(), event_fd);
    if added {
        if any_sleeper() {
            // They are in no count of this page: it says for ever that somebody sleeps.
            sleepers::become_unknown(core::iter::once(&public.sleepers));
        }
        OWN.store(PROCESS.waker_count.load(Ordering::Relaxed), Ordering::Release);
    }
    added
}

/// In a new image: an eventfd that peers of the one before write to.
pub(crate) fn add_inherited(event_fd: Hidden) {
    add(core::ptr::null_mut(), event_fd);
}

/// Families whose eventfds are watched because a connection came from them; by a number of each.
static FAMILIES: Lock<Vec<u64>> = Lock::new(Vec::new());

/// A connection has come from a family: what its peers write to wakes this process too. The descriptors are taken.
pub(crate) fn watch_family(origin: u64, event_fds: impl Iterator<Item = Owned>) {
    let mut families = FAMILIES.lock();
    let is_known = families.contains(&origin);
    if !is_known {
        for event_fd in event_fds {
            add(core::ptr::null_mut(), Hidden::of(event_fd));
        }
        families.push(origin);
    }
}

fn add(public: *mut Public, event_fd: Hidden) -> bool {
    let count = PROCESS.waker_count.load(Ordering::Relaxed);
    let Some(waker) = PROCESS.wakers.get(count) else { return false };
    waker.public.store(public, Ordering::Relaxed);
    waker.event_fd.put(event_fd);
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
    PROCESS.wakers.iter().take(count).map(|waker| waker.event_fd.raw())
}

/// This process's own one; before it has registered, whichever it watches.
pub(crate) fn own_event_fd() -> i32 {
    let of = match OWN.load(Ordering::Acquire) {
        0 => PROCESS.waker_count.load(Ordering::Acquire),
        own => own,
    };
    let waker = of.checked_sub(1).and_then(|index| PROCESS.wakers.get(index));
    waker.map_or(-1, |waker| waker.event_fd.raw())
}

/// From now on only the own one is watched and only the own page says who sleeps; false when there is none yet.
pub(crate) fn watch_own_only() -> bool {
    let own = OWN.load(Ordering::Acquire).checked_sub(1);
    own.inspect(|own| WATCH.watch_from(*own)).is_some()
}

/// From now on all are watched.
pub(crate) fn watch_all() {
    WATCH.watch_from(0);
}

/// Some thread sleeps. One that lingers does not, and is counted no more.
pub(crate) fn any_sleeper() -> bool {
    lingering::end();
    WATCH.any_sleeper()
}

/// In the child of a fork: it has none of its own yet, and one thread.
pub(crate) fn forked() {
    lingering::forked();
    WATCH.forked();
    own_none();
}

fn own_none() {
    OWN.store(0, Ordering::Relaxed);
    WATCH.watch_from(0);
    // SAFETY: the child has one thread.
    unsafe { FAMILIES.force_unlock() };
}

/// The process leaves its family, and has none any more; before their pages are unmapped.
pub(crate) fn separated() {
    lingering::separated();
    own_none();
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
    pub(crate) const NONE: View = View { first: 0, end: 0 };

    /// Those that are to be watched now.
    pub(crate) fn now() -> View {
        let end = PROCESS.waker_count.load(Ordering::SeqCst);
        View { first: WATCH.first(), end }
    }

    /// The first, and the one after the last.
    pub(super) fn ends(self) -> [usize; 2] {
        [self.first, self.end]
    }

    /// See [`View::ends`].
    pub(super) fn of([first, end]: [usize; 2]) -> View {
        View { first, end }
    }

    /// All.
    fn all() -> View {
        View { first: 0, end: PROCESS.waker_count.load(Ordering::SeqCst) }
    }

    /// In each public page that says whether this process sleeps, the number of sleepers.
    fn sleepers(self) -> impl Iterator<Item = &'static AtomicU64> {
        let wakers = PROCESS.wakers.iter().take(self.end).skip(self.first);
        // SAFETY: null or a mapping of this process (or inherited, shared) that is never unmapped.
        let pages = wakers.filter_map(|waker| unsafe { waker.public.load(Ordering::Acquire).as_ref() });
        pages.map(|public| &public.sleepers)
    }

    /// Lets a kernel epoll instance, which watches these, watch others. False, and to be done once more, where the program has
    /// closed one of them past libc.
    pub(crate) fn update(&mut self, epoll_fd: i32, view: View) -> bool {
        if *self == view {
            return true;
        }
        let mut is_done = true;
        for (index, waker) in PROCESS.wakers.iter().enumerate().take(self.end.max(view.end)) {
            let [was, is] = [*self, view].map(|view| (view.first..view.end).contains(&index));
            let op = match (was, is) {
                (false, true) => libc::EPOLL_CTL_ADD,
                (true, false) => libc::EPOLL_CTL_DEL,
                _ => continue,
            };
            let changed = fd::epoll_ctl(epoll_fd, op, waker.event_fd.raw(), fd::EVENTFD_EDGE, OWN_EVENT);
            is_done &= !is || changed != Err(Errno::EBADF);
        }
        if is_done {
            *self = view;
        }
        is_done
    }
}

/// Says to all peers that this thread sleeps, for as long as it lives.
pub(crate) struct Sleeper {
    view: View,
}

impl Sleeper {
    /// Afterwards what is to be slept on is made to watch the view, and events must be looked at once more before
    /// sleeping (SYNC POINT: sleepers, with `wake` in crates/sd-socket/src/link/peer.rs; SYNC POINT: wake target, with
    /// `leave_under_lock` in crates/sd-socket/src/wait/settle.rs; SYNC POINT: starving, with `starve` in
    /// crates/sd-monitor/src/shell/starving.rs; SYNC POINT: told channel, with `told_channel` in crates/sd-socket/src/setup/mail.rs).
    pub(crate) fn enter() -> Sleeper {
        lingering::end();
        super::detaching::sleeps();
        WATCH.enter();
        let view = View::now();
        sleepers::enter(view.sleepers());
        count(Counter::Sleep);
        Sleeper { view }
    }

    /// The sleep is over, but the thread stays counted where the view's eventfds are written.
    pub(super) fn linger(self) -> View {
        super::detaching::sleeps_no_more();
        let view = self.view;
        core::mem::forget(self);
        view
    }

    /// The opposite of [`Sleeper::linger`].
    pub(super) fn lingered(view: View) -> Sleeper {
        super::detaching::sleeps();
        Sleeper { view }
    }

    /// The eventfds whose writers know of this sleep.
    pub(crate) fn view(&self) -> View {
        self.view
    }

    /// What the eventfds told is taken, and the thread has not slept yet. Afterwards events must be looked at once more (SYNC POINT: rung, with
    /// `wake` in crates/sd-socket/src/link/peer.rs).
    pub(crate) fn has_taken(&self) {
        sleepers::taken(self.view.sleepers());
    }

    /// Others are to be watched by now: enter anew.
    pub(crate) fn is_stale(&self) -> bool {
        self.view != View::now()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        sleepers::leave(self.view.sleepers());
        WATCH.leave();
        super::detaching::sleeps_no_more();
    }
}

/// Before exec: the next image wakes up by the same eventfds, but cannot map the pages writable, so peers have to take
/// it for asleep from now on. `yes` is false when the exec has failed.
pub(crate) fn assume_asleep(yes: bool) {
    lingering::end();
    match yes {
        true => sleepers::become_unknown(View::all().sleepers()),
        false => sleepers::become_known(View::all().sleepers()),
    }
}

/// Marks events of the library's own descriptors.
pub(crate) const OWN_EVENT: u64 = 0x5d5d_a11e_4e57_0b0e;
