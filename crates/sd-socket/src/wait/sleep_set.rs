//! What poll, select and accept sleep on.
//!
//! A *set* is a kernel epoll instance that watches our eventfds and the end of the control socket. It is kept for later
//! sleeps, of any thread: those watch the same. The program's own descriptors are never in it, but beside it in one
//! ppoll(2), so nothing has to be known of numbers that were closed and used again. A sleep is that call, and one more
//! that takes what the set has if it was the set that ended it.

use crate::fd::hidden::Hidden;
use crate::monitor::client::losses;
use crate::process::waker::Sleeper;
use crate::process::waker::View;
use crate::process::{single_threaded, tid};
use crate::wait::{add_control, sleep_on};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{POLLIN, epoll_event, pollfd, sigset_t};
use sd_ring::sync::loose_sleepers::Loose;
use sd_sys::fd::{Number, Owned};
use sd_sys::lock::Lock;
use sd_sys::{Errno, confine};

/// Sets that are kept. Threads that sleep at the same time beyond that make one each time.
const KEPT: usize = 64;

static SETS: [Set; KEPT] =
    [const { Set { is_taken: AtomicBool::new(false), state: Lock::new(Watched::NONE) } }; KEPT];

struct Set {
    is_taken: AtomicBool,
    state: Lock<Watched<Hidden>>,
}

/// A kernel instance, and what it watches.
struct Watched<F> {
    fd: Option<F>,
    view: View,
    /// Registration with the monitor whose control socket it is.
    registration: u32,
    /// See [`crate::monitor::client::losses`].
    losses: u32,
}

/// Threads that sleep on a `SleepSet`. Which sockets they wait for is nowhere listed, so whoever takes
/// in an event must wake them (SYNC POINT: loose sleepers, with `wake_loose` in crates/sd-socket/src/epoll/watch.rs; counted before
/// the sleeper's last look).
static LOOSE_SLEEPERS: Loose = Loose::new();

/// See [`LOOSE_SLEEPERS`].
pub(crate) fn has_loose_sleepers() -> bool {
    LOOSE_SLEEPERS.any()
}

/// What a sleep takes.
const MUST_HAVE: [i64; 3] = [libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_ppoll];

/// Whether a filter of the program's allows such sleeps.
pub(crate) fn is_allowed() -> bool {
    MUST_HAVE.iter().all(|nr| confine::allows(*nr))
}

/// A set, for one sleep.
pub(crate) struct SleepSet {
    fd: i32,
    /// Where it is kept; None: nowhere.
    place: Option<&'static Set>,
    /// One that is kept nowhere.
    _own: Watched<Owned>,
}

impl SleepSet {
    /// A set that ends a sleep on whatever peers or the monitor say from now on, and perhaps for what they said before.
    pub(crate) fn take(sleeper: &Sleeper) -> Result<SleepSet, Errno> {
        let first = tid() as usize % KEPT;
        let (before, after) = SETS.split_at(first.min(SETS.len()));
        let is_free =
            |set: &&Set| !set.is_taken.load(Ordering::Relaxed) && !set.is_taken.swap(true, Ordering::Acquire);
        let place = after.iter().chain(before).find(is_free);
        let mut own = Watched::NONE;
        LOOSE_SLEEPERS.enter();
        let made = match place {
            Some(place) => {
                let mut watched = place.state.lock();
                watched.forget_lost();
                watched.make_ready(sleeper.view(), Hidden::of)
            }
            None => own.make_ready(sleeper.view(), |fd| fd),
        };
        let mut set = SleepSet { fd: -1, place, _own: own };
        let is_known;
        (set.fd, is_known) = made?;
        // An eventfd that was ever signalled is reported once when it is added; and where there are other threads, peers
        // write it for them. Without this the sleep would end for nothing.
        if !is_known || !single_threaded() {
            set.take_news();
            sleeper.has_taken();
        }
        Ok(set)
    }

    /// Sleeps until the set, or one of the descriptors after the first, has something. The first entry is the set's.
    pub(crate) fn sleep(
        &self,
        fds: &mut [pollfd],
        timeout_ns: Option<u64>,
        mask: *const sigset_t,
    ) -> Result<(), Errno> {
        crate::wait::cancel::check()?;
        if let Some(first) = fds.first_mut() {
            *first = pollfd { fd: self.fd, events: POLLIN, revents: 0 };
        }
        // SAFETY: the caller's mask.
        unsafe { sd_sys::fd::ppoll(fds, timeout_ns, mask) }?;
        if fds.first().is_some_and(|first| first.revents != 0) {
            self.take_news();
        }
        Ok(())
    }

    /// The place of the set in the list for [`SleepSet::sleep`].
    pub(crate) const FIRST: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

    fn take_news(&self) {
        let mut events = [epoll_event { events: 0, u64: 0 }; 8];
        match sleep_on(self.fd, &mut events, Some(0), core::ptr::null()) {
            Ok(count) => events.iter().take(count).for_each(|event| crate::wait::has_rung(event.events)),
            Err(Errno::EINTR) => {}
            // The number was closed behind our back.
            Err(_) => self.forget(),
        }
    }

    fn forget(&self) {
        if let Some(place) = self.place {
            let lost = core::mem::replace(&mut *place.state.lock(), Watched::NONE);
            let _ = lost.fd.map(Hidden::into_raw);
        }
    }
}

impl Drop for SleepSet {
    fn drop(&mut self) {
        LOOSE_SLEEPERS.leave();
        if let Some(place) = self.place {
            place.is_taken.store(false, Ordering::Release);
        }
    }
}

impl Watched<Hidden> {
    /// The program may have closed it past libc.
    fn forget_lost(&mut self) {
        if self.fd.is_none() || self.losses == losses() {
            return;
        }
        let other = crate::process::waker::own_event_fd();
        match core::mem::replace(self, Watched::NONE).fd {
            Some(fd) if sd_sys::fd::is_epoll(fd.raw(), other) => drop(fd),
            fd => fd.into_iter().for_each(Hidden::lost),
        }
    }
}

impl<F: Number> Watched<F> {
    const NONE: Watched<F> = Watched { fd: None, view: View::NONE, registration: u32::MAX, losses: 0 };

    /// Makes it watch what there is now. Its number, and whether it did before.
    fn make_ready(&mut self, view: View, hold: impl FnOnce(Owned) -> F) -> Result<(i32, bool), Errno> {
        let losses = losses();
        let fd = match &self.fd {
            Some(fd) => fd.raw(),
            None => {
                let fd = hold(sd_sys::fd::epoll_create()?);
                let number = fd.raw();
                *self = Watched { fd: Some(fd), losses, ..Watched::NONE };
                number
            }
        };
        if self.view == view && self.registration == registration() {
            return Ok((fd, true));
        }
        crate::wait::watch_all(&mut self.view, fd, view);
        if self.registration != registration() {
            self.registration = registration();
            add_control(fd);
        }
        Ok((fd, false))
    }
}

fn registration() -> u32 {
    crate::monitor::client::REGISTRATIONS.load(Ordering::Acquire)
}

/// In the child of a fork: the parent's sets would tell one of both only.
pub(crate) fn forked() {
    LOOSE_SLEEPERS.forked();
    for set in &SETS {
        // SAFETY: the child has one thread.
        unsafe { set.state.force_unlock() };
        set.is_taken.store(false, Ordering::Relaxed);
        *set.state.lock() = Watched::NONE;
    }
}
