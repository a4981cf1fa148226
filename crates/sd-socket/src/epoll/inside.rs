//! Where a wait sleeps that the kernel's part ends: on the program's instance itself, as without us.
//!
//! ```text
//!  beside   the library's instance (`sleep_fd`) watches what is ours, and the program's      one call for ours, two and a spin for the kernel's part
//!  inside   the program's instance watches `sleep_fd`, which watches what is ours            two calls for ours, one for the kernel's part
//! ```
//! Waits learn which of the two pays. Inside is one more registration of the program's instance, so it is left before anybody but `wait` looks
//! at that: poll, an instance around it, a child, a receiver of a message. Nor does it begin where there is a second thread: who sleeps
//! would have to be brought back before it is left.

use super::collect::Look;
use super::*;
use crate::process::waker::OWN_EVENT;
use crate::process::{lingering, single_threaded};
use crate::wait::{self, duties};
use libc::{epoll_event, sigset_t};
use sd_sys::Errno;
use sd_sys::section::Watch;

/// Where an instance's waits sleep, and what they have learned.
pub(super) struct Place {
    inside: AtomicBool,
    /// Others may look at the program's instance.
    stays_beside: AtomicBool,
    /// Waits that the kernel's part has ended, less twice those that something of ours has; up to `MOST`.
    kernel_ends: AtomicU32,
    /// Looks at which the kernel's part had something, modulo 2^32.
    kernel_told: AtomicU32,
    /// Waits of a thread that lingers, modulo 2^32.
    again: AtomicU32,
    /// Connections that are registered in the kernel's instance too: what that tells of one is to be joined with what the library knows
    /// (`collect`), and of which of the two tells the lock of the ready list decides (`roads`).
    mixed: AtomicU32,
}

/// After so many more of the kernel's part, inside is where to sleep.
const ENOUGH: u32 = 8;
const MOST: u32 = 16;

impl Place {
    pub(super) const fn new() -> Place {
        Place {
            inside: AtomicBool::new(false),
            stays_beside: AtomicBool::new(false),
            kernel_ends: AtomicU32::new(0),
            kernel_told: AtomicU32::new(0),
            again: AtomicU32::new(0),
            mixed: AtomicU32::new(0),
        }
    }

    /// Of another instance, whose `sleep_fd` is still to be made.
    pub(super) fn begin_anew(&self) {
        self.is_beside();
        self.stays_beside.store(false, Ordering::Relaxed);
        self.kernel_ends.store(0, Ordering::Relaxed);
    }

    /// What was slept on is closed, or will be.
    pub(super) fn is_beside(&self) {
        self.inside.store(false, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Relaxed)
    }

    /// The kernel's part had something.
    pub(super) fn kernel_has_told(&self) {
        self.kernel_told.store(self.told().wrapping_add(1), Ordering::Relaxed);
    }

    /// One more connection is registered in both, or one less.
    pub(super) fn has_mixed(&self, more: bool) {
        match more {
            true => self.mixed.fetch_add(1, Ordering::Relaxed),
            false => self.mixed.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// For [`Place::learn`].
    pub(super) fn told(&self) -> u32 {
        self.kernel_told.load(Ordering::Relaxed)
    }

    /// A wait has found something; `told` is from its beginning.
    pub(super) fn learn(&self, told: u32) {
        let before = self.kernel_ends.load(Ordering::Relaxed);
        if before == 0 && told == self.told() {
            return;
        }
        let now = if told == self.told() { before.saturating_sub(2) } else { (before + 1).min(MOST) };
        self.kernel_ends.store(now, Ordering::Relaxed);
    }
}

/// Before a sleep, under the lock of the interest list: whether it is to be inside.
pub(super) fn settle(epoll: &Epoll, interest: &Interest) -> bool {
    let is = epoll.place.is_inside();
    match (is, is_wanted(epoll, is)) {
        (false, true) => enter(epoll),
        (true, false) => leave(epoll, interest),
        _ => {}
    }
    epoll.place.is_inside()
}

fn is_wanted(epoll: &Epoll, is: bool) -> bool {
    let enough = if is { 1 } else { ENOUGH };
    epoll.place.kernel_ends.load(Ordering::Relaxed) >= enough
        && epoll.sleep_fd.is_some()
        && single_threaded()
        && !epoll.place.stays_beside.load(Ordering::Relaxed)
        && !epoll.flat.load(Ordering::Relaxed)
        && !epoll.has_outers()
        && epoll.ledger.load(Ordering::Relaxed).is_null()
        && epoll.place.mixed.load(Ordering::Relaxed) == 0
}

fn enter(epoll: &Epoll) {
    let sleep_fd = epoll.sleep_fd.raw();
    let _ = sd_sys::fd::epoll_ctl(sleep_fd, libc::EPOLL_CTL_DEL, epoll.fd(), 0, 0);
    let level = libc::EPOLLIN as u32;
    let entered = sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_ADD, sleep_fd, level, OWN_EVENT).is_ok();
    epoll.place.inside.store(entered, Ordering::Relaxed);
    if !entered {
        epoll.place.stays_beside.store(true, Ordering::Relaxed);
        sleep_fd::watch_program(epoll);
    }
}

/// Under the lock of the interest list.
pub(super) fn leave(epoll: &Epoll, _interest: &Interest) {
    if epoll.place.inside.swap(false, Ordering::Relaxed) {
        let _ = sd_sys::fd::epoll_ctl(epoll.fd(), libc::EPOLL_CTL_DEL, epoll.sleep_fd.raw(), 0, 0);
        sleep_fd::watch_program(epoll);
    }
}

/// Others than waits of this process may look at the program's instance from now on; the same instance.
pub(crate) fn others_look(epoll: &Epoll) -> &Epoll {
    if !epoll.place.stays_beside.load(Ordering::Relaxed) {
        let interest = epoll.interest.lock();
        epoll.place.stays_beside.store(true, Ordering::Relaxed);
        leave(epoll, &interest);
    }
    epoll
}

/// What a sleep inside has found.
pub(super) struct Slept {
    /// Events for the program.
    pub(super) found: usize,
    /// Something of ours has ended it too.
    pub(super) by_own: bool,
}

/// Sleeps inside; or errno.
pub(super) fn sleep(
    epoll: &Epoll,
    out: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<Slept, Errno> {
    let got = wait::sleep_on(epoll.fd(), out, timeout_ns, mask)?;
    let by_own = take_own(out, got);
    if by_own {
        sleep_fd::answer(epoll);
    }
    let found = got - usize::from(by_own);
    if found != 0 {
        epoll.place.kernel_has_told();
    }
    Ok(Slept { found, by_own })
}

/// Takes the event out that stands for what is ours, if it is among so many.
fn take_own(out: &mut [epoll_event], got: usize) -> bool {
    let own = |event: &epoll_event| event.u64 == OWN_EVENT;
    let Some(at) = out.iter().take(got).position(own) else { return false };
    out.copy_within(at + 1..got, at);
    true
}

/// In one wait of so many it is looked whether something is to be done that is done now and then.
const DUTIES_EVERY: u32 = 16;

/// After a sleep that the kernel's part alone has ended: whether the thread may stay counted until the next ([`lingering`]).
pub(super) fn may_linger(epoll: &Epoll) -> bool {
    epoll.place.is_inside() && single_threaded() && duties::are_idle()
}

/// The wait of a thread that lingers for this instance. `None`: it does not any more, and has found nothing.
pub(super) fn wait_again(
    epoll: &'static Epoll,
    out: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<Result<usize, Errno>> {
    let waits = epoll.place.again.load(Ordering::Relaxed).wrapping_add(1);
    epoll.place.again.store(waits, Ordering::Relaxed);
    if waits.is_multiple_of(DUTIES_EVERY) {
        duties::now_and_then(sd_sys::time::ticks());
    }
    let watch = Watch::start();
    let pause = lingering::pause();
    let is_within = lingering::sleeps();
    let is_calm = epoll.load.load(Ordering::Acquire) == 0
        && pause != Some(0)
        && !lingering::is_stale()
        && may_linger(epoll);
    let slept = is_calm.then(|| {
        wait::ended_by_handler(&watch, mask)?;
        wait::sleep_on(epoll.fd(), out, wait::earlier(timeout_ns, pause), mask)
    });
    lingering::wakes(is_within);
    let is_cut = timeout_ns.is_none_or(|timeout| pause.is_some_and(|pause| pause < timeout));
    let slept = slept.filter(|slept| *slept != Ok(0) || !is_cut);
    let Some(slept) = slept else {
        lingering::end();
        return None;
    };
    let got = match slept {
        Ok(got) => got,
        errno => return Some(errno),
    };
    if !take_own(out, got) {
        return Some(Ok(got));
    }
    let found = got - 1;
    if !lingering::is_for(epoll) || !epoll.place.is_inside() {
        // A handler has run, and the instance may be another by now.
        return Some(if found == 0 { Err(Errno::EINTR) } else { Ok(found) });
    }
    lingering::end();
    sleep_fd::answer(epoll);
    if found == 0 {
        return None;
    }
    // Both had something when the program asked.
    super::dispatch::drain();
    let rest = out.get_mut(found..).unwrap_or_default();
    Some(Ok(found + waiting::look_at(epoll, rest, Look { kernel: false, stay: false })))
}
