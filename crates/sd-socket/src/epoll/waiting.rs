//! epoll_wait: look, spin, sleep.

use super::collect::{Look, collect};
use super::*;
use crate::backlog::beside;
use crate::link::reclaim;
use crate::process::waker::{OWN_EVENT, Sleeper};
use crate::process::{detaching, lingering, single_threaded};
use crate::wait::duties::{self, On, Waiting};
use crate::wait::{self, Deadline};
use libc::{epoll_event, sigset_t};
use sd_sys::Errno;
use sd_sys::section::Watch;
use sd_sys::time::Interval;

/// So often the kernel is asked while sockets of ours are looked at.
static KERNEL_EVERY: Interval = Interval::of_ns(10_000);

/// Counts a thread that looks or sleeps: events for one thread only go where one is.
struct Waiter(&'static Epoll);

impl Waiter {
    fn enter(epoll: &'static Epoll) -> Waiter {
        epoll.waiters.fetch_add(1, Ordering::SeqCst);
        Waiter(epoll)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let one_less = |count: u32| count.checked_sub(1);
        let _ = self.0.waiters.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    }
}

/// No errno: the wait is to be begun again with [`detaching::resumed`], at an edge of which something is to be done first.
pub(crate) const AT_EDGE: Errno = Errno(i32::MIN);

/// No errno: another thread has closed the number, and what it leads to now is to be asked again.
pub(crate) const CLOSED: Errno = Errno(i32::MIN + 1);

/// See epoll_wait(2), of the instance behind a number. `Err` is errno.
pub(crate) fn wait(
    (epoll, epfd): (&'static Epoll, i32),
    out: &mut [epoll_event],
    mut timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    if lingering::is_for(epoll)
        && let Some(done) = first_try(&mut timeout_ns, |left| inside::wait_again(epoll, out, left, mask))
    {
        return done;
    }
    let Some(_user) = User::enter(epoll, epfd) else { return Err(CLOSED) };
    if is_kernels(epoll)
        && let Some(done) = first_try(&mut timeout_ns, |left| wait_in_kernel(epoll, out, left, mask))
    {
        return done;
    }
    duties::in_call();
    ledger::catch_up(epoll);
    super::dispatch::drain();
    let is_last = timeout_ns == Some(0);
    let found = match has_kernel(epoll) {
        false => look_at(epoll, out, Look { kernel: false, stay: !is_last }),
        true => look_and_learn(epoll, out, is_last),
    };
    if found != 0 {
        return Ok(found);
    }
    if is_last {
        return Ok(if beside::has_brought_some() { look(epoll, out, false, true) } else { 0 });
    }
    wait_for_event(epoll, out, timeout_ns, mask)
}

/// A wait that may be over, or have to go on in another way for what is left of its time.
#[inline(always)]
fn first_try<T>(timeout_ns: &mut Option<u64>, wait: impl FnOnce(Option<u64>) -> Option<T>) -> Option<T> {
    // Cheaper than a clock, which hardly any of these waits needs.
    let began = if timeout_ns.is_some() { sd_sys::time::ticks() } else { 0 };
    let done = wait(*timeout_ns);
    if let (None, Some(timeout)) = (&done, timeout_ns) {
        let passed = sd_sys::time::ns_of_ticks(sd_sys::time::ticks().wrapping_sub(began));
        *timeout = timeout.saturating_sub(passed);
    }
    done
}

/// Nothing is ready. A function of its own, so that a wait which finds something needs no large frame.
#[inline(never)]
fn wait_for_event(
    epoll: &'static Epoll,
    out: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let deadline = Deadline::after(timeout_ns);
    let _waiter = Waiter::enter(epoll);
    let watch = Watch::start();
    let mut waiting = Waiting::begin_for_many(sd_sys::time::ticks());
    let told = epoll.place.told();
    let spins = mask.is_null() && !epoll.place.is_inside();
    let mut found = if spins { spin(epoll, out) } else { 0 };
    if found == 0 {
        found = sleep(epoll, out, &mut waiting, deadline, Signals { mask, watch: &watch })?;
    }
    if found != 0 {
        epoll.place.learn(told);
    }
    Ok(found)
}

/// The instance holds nothing of ours; not any more, where all its connections went back to the kernel's. Who adds something tells those that sleep
/// meanwhile (`sleep_fd::kick`): each side writes first and looks then.
fn is_kernels(epoll: &Epoll) -> bool {
    !has_ours(epoll) || has_none_left(epoll)
}

fn has_none_left(epoll: &Epoll) -> bool {
    epoll.members.load(Ordering::SeqCst) == 0
        && !epoll.place.is_inside()
        && epoll.ledger.load(Ordering::Relaxed).is_null()
        && !duties::are_caused()
}

/// The wait of an instance that holds nothing of ours; `None` when there is something, or there was
/// when another thread had added it, or a thread was cancelled, see `kick`.
#[inline(never)]
fn wait_in_kernel(
    epoll: &Epoll,
    out: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<Result<usize, Errno>> {
    epoll.strangers.fetch_add(1, Ordering::SeqCst);
    let slept = is_kernels(epoll).then(|| wait::sleep_on(epoll.fd(), out, timeout_ns, mask));
    let one_less = |count: u32| count.checked_sub(1);
    let before = epoll.strangers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    if before == Ok(1) && epoll.kicked.load(Ordering::SeqCst) {
        sleep_fd::are_all_back(epoll, &epoll.interest.lock());
    }
    let got = match slept? {
        Ok(got) => got,
        errno => return Some(errno),
    };
    let kicked = out.iter().take(got).position(|event| event.u64 == OWN_EVENT);
    let Some(at) = kicked else { return Some(Ok(got)) };
    out.copy_within(at + 1..got, at);
    (got > 1).then_some(Ok(got - 1))
}

/// One look at everything; the `last` one of the wait, or one that a spin or a sleep follows.
fn look(epoll: &Epoll, out: &mut [epoll_event], stay: bool, last: bool) -> usize {
    match has_kernel(epoll) {
        false => look_at(epoll, out, Look { kernel: false, stay }),
        true => look_at_both(epoll, out, stay, last),
    }
}

/// The first look of a wait, which may find something at once.
#[inline(never)]
fn look_and_learn(epoll: &Epoll, out: &mut [epoll_event], is_last: bool) -> usize {
    let told = epoll.place.told();
    let found = look_at_both(epoll, out, !is_last, is_last);
    if found != 0 {
        epoll.place.learn(told);
    }
    found
}

/// The kernel's part is asked when that is due, so that neither side starves the other, and in the last look when nothing of
/// ours is ready. After any other the wait goes on, and asks it: in a spin, before it gives way to anybody, or by a sleep.
#[inline(never)]
fn look_at_both(epoll: &Epoll, out: &mut [epoll_event], stay: bool, last: bool) -> usize {
    let now = sd_sys::time::ticks();
    // A sleep inside asks it by itself.
    let by_sleep = || !last && epoll.place.is_inside() && epoll.load.load(Ordering::Acquire) == 0;
    let kernel = is_kernel_due(epoll, now) && !by_sleep();
    let mut found = look_at(epoll, out, Look { kernel, stay });
    if found == 0 && last && !kernel {
        found = look_at(epoll, out, Look { kernel: true, stay });
    }
    if kernel {
        // Who always finds something never waits.
        duties::now_and_then(now);
    }
    found
}

fn is_kernel_due(epoll: &Epoll, now: u64) -> bool {
    KERNEL_EVERY.is_over(now.wrapping_sub(epoll.kernel_asked.load(Ordering::Relaxed)))
}

fn has_kernel(epoll: &Epoll) -> bool {
    epoll.kernel_count.load(Ordering::Relaxed) != 0 || ledger::is_shared(epoll)
}

pub(super) fn look_at(epoll: &Epoll, out: &mut [epoll_event], look: Look) -> usize {
    if !look.kernel && epoll.load.load(Ordering::Acquire) == 0 {
        return 0;
    }
    collect(epoll, out, look)
}

fn spin(epoll: &Epoll, out: &mut [epoll_event]) -> usize {
    // Once for all looks: the count is shared by all threads.
    let user = (!single_threaded()).then(reclaim::User::enter);
    let (mut found, mut rounds) = (0, 0u32);
    wait::spin_warned(&epoll.spin, super::dispatch::looks_of_drain(), |others_follow| {
        rounds += 1;
        super::dispatch::drain_inside(user.as_ref());
        let is_due = || others_follow || is_kernel_due(epoll, sd_sys::time::ticks());
        let kernel = (others_follow || rounds.is_multiple_of(8)) && has_kernel(epoll) && is_due();
        found = look_at(epoll, out, Look { kernel, stay: true });
        found != 0
    });
    found
}

/// Which may end a sleep, and which did before it began.
#[derive(Clone, Copy)]
struct Signals<'a> {
    mask: *const sigset_t,
    watch: &'a Watch,
}

/// Sleeps until something is ready, or the deadline.
fn sleep(
    epoll: &'static Epoll,
    out: &mut [epoll_event],
    waiting: &mut Waiting,
    deadline: Deadline,
    signals: Signals<'_>,
) -> Result<usize, Errno> {
    loop {
        let paused = waiting.before_sleep(On::Events);
        let sleeper = Sleeper::enter();
        epoll.sleepers.fetch_add(1, Ordering::SeqCst);
        let timeout = wait::earlier(deadline.left(), paused);
        let slept = sleep_once(epoll, out, &sleeper, (waiting, timeout), signals);
        waiting.after_sleep();
        let one_less = |count: u32| count.checked_sub(1);
        let _ = epoll.sleepers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        match slept {
            Ok(Slept { by_kernel: true, pause, .. }) if inside::may_linger(epoll) => {
                lingering::begin(sleeper, epoll, wait::earlier(paused, pause));
            }
            _ => drop(sleeper),
        }
        let Slept { mut found, kernel, .. } = slept?;
        if kernel {
            // Not counted as asleep any more: who leaves something to others wakes nobody but them.
            found = look_at(epoll, out, Look { kernel, stay: false });
        }
        if found != 0 {
            return Ok(found);
        }
        ledger::catch_up(epoll);
        super::dispatch::drain();
        let is_last = deadline.left() == Some(0);
        let found = look(epoll, out, false, is_last);
        if found != 0 || is_last {
            return Ok(found);
        }
        if detaching::is_asked() && single_threaded() && signals.mask.is_null() {
            detaching::interrupt(deadline.left());
            return Err(AT_EDGE);
        }
    }
}

/// How one sleep has ended.
struct Slept {
    /// Events that were found, by it or before it.
    found: usize,
    /// The kernel's part has some.
    kernel: bool,
    /// It was inside, and the kernel's part alone has ended it.
    by_kernel: bool,
    /// How long it could have lasted, for what had to be looked at.
    pause: Option<u64>,
}

/// One sleep.
fn sleep_once(
    epoll: &'static Epoll,
    out: &mut [epoll_event],
    sleeper: &Sleeper,
    (waiting, timeout): (&mut Waiting, Option<u64>),
    signals: Signals<'_>,
) -> Result<Slept, Errno> {
    let inside = {
        let mut interest = epoll.interest.lock();
        sleep_fd::prepare(epoll, &mut interest, sleeper.view());
        inside::settle(epoll, &interest)
    };
    ledger::catch_up(epoll);
    super::dispatch::drain();
    let found = look_at(epoll, out, Look { kernel: false, stay: false });
    if found != 0 || sleeper.is_stale() {
        return Ok(Slept { found, kernel: false, by_kernel: false, pause: None });
    }
    let pause = waiting.announced();
    wait::ended_by_handler(signals.watch, signals.mask)?;
    let timeout = wait::earlier(timeout, pause);
    let slept = match inside {
        true => {
            let inside::Slept { found, by_own } = inside::sleep(epoll, out, timeout, signals.mask)?;
            Slept { found, kernel: false, by_kernel: found != 0 && !by_own, pause }
        }
        false => {
            let kernel = sleep_fd::sleep(epoll, timeout, signals.mask)?;
            Slept { found: 0, kernel, by_kernel: false, pause }
        }
    };
    epoll.kernel_asked.store(sd_sys::time::ticks(), Ordering::Relaxed);
    Ok(slept)
}
