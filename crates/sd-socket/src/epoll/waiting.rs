//! epoll_wait: look, spin, sleep.

use super::collect::{Look, collect};
use super::*;
use crate::link::reclaim;
use crate::memory::idle::{ROUNDS, Round};
use crate::process::single_threaded;
use crate::wait::{self, Deadline, OWN_EVENT, Sleeper};
use libc::{epoll_event, sigset_t};
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

/// See epoll_wait(2). `Err` is errno.
pub(crate) fn wait(
    epoll: &'static Epoll,
    out: &mut [epoll_event],
    mut timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, i32> {
    let _user = User::enter(epoll);
    if !has_ours(epoll) {
        let deadline = Deadline::after(timeout_ns);
        if let Some(done) = wait_in_kernel(epoll, out, timeout_ns, mask) {
            return done;
        }
        timeout_ns = deadline.left();
    }
    crate::setup::syn_sent::look();
    ledger::catch_up(epoll);
    crate::link::channel::drain();
    let is_last = timeout_ns == Some(0);
    let found = look(epoll, out, !is_last, is_last);
    if found != 0 || is_last {
        crate::setup::adopt::look();
        return Ok(found);
    }
    wait_for_event(epoll, out, timeout_ns, mask)
}

/// Nothing is ready. A function of its own, so that a wait which finds something needs no large frame.
#[inline(never)]
fn wait_for_event(
    epoll: &'static Epoll,
    out: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, i32> {
    let deadline = Deadline::after(timeout_ns);
    let _waiter = Waiter::enter(epoll);
    let watch = Watch::start();
    crate::memory::sweep::now_and_then(sd_sys::time::ticks());
    if mask.is_null() {
        let found = spin(epoll, out);
        if found != 0 {
            return Ok(found);
        }
    }
    sleep(epoll, out, deadline, Signals { mask, watch: &watch })
}

/// The wait of an instance that holds nothing of ours; `None` when there is something, or there was
/// when another thread had added it, see `kick`.
#[inline(never)]
fn wait_in_kernel(
    epoll: &Epoll,
    out: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<Result<usize, i32>> {
    epoll.strangers.fetch_add(1, Ordering::SeqCst);
    let slept = if has_ours(epoll) { None } else { Some(wait::sleep_on(epoll.fd(), out, timeout_ns, mask)) };
    let one_less = |count: u32| count.checked_sub(1);
    let before = epoll.strangers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    if before == Ok(1) && has_ours(epoll) {
        rest::all_back(epoll);
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

/// The kernel's part is asked when that is due, so that neither side starves the other, and in the last look when nothing of
/// ours is ready. After any other the wait goes on, and asks it: in a spin, before it gives way to anybody, or by a sleep.
#[inline(never)]
fn look_at_both(epoll: &Epoll, out: &mut [epoll_event], stay: bool, last: bool) -> usize {
    let now = sd_sys::time::ticks();
    let kernel = is_kernel_due(epoll, now);
    let mut found = look_at(epoll, out, Look { kernel, stay });
    if found == 0 && last && !kernel {
        found = look_at(epoll, out, Look { kernel: true, stay });
    }
    if kernel {
        // Who always finds something never waits.
        crate::memory::sweep::now_and_then(now);
    }
    found
}

fn is_kernel_due(epoll: &Epoll, now: u64) -> bool {
    KERNEL_EVERY.is_over(now.wrapping_sub(epoll.kernel_asked.load(Ordering::Relaxed)))
}

fn has_kernel(epoll: &Epoll) -> bool {
    epoll.kernel_count.load(Ordering::Relaxed) != 0 || ledger::is_shared(epoll)
}

fn look_at(epoll: &Epoll, out: &mut [epoll_event], look: Look) -> usize {
    if !look.kernel && epoll.load.load(Ordering::Acquire) == 0 {
        return 0;
    }
    collect(epoll, out, look)
}

fn spin(epoll: &Epoll, out: &mut [epoll_event]) -> usize {
    // Once for all looks: the count is shared by all threads.
    let user = (!single_threaded()).then(reclaim::User::enter);
    let (mut found, mut rounds) = (0, 0u32);
    wait::spin_warned(&epoll.spin, crate::link::channel::looks_of_drain(), |others_follow| {
        rounds += 1;
        crate::link::channel::drain_inside(user.as_ref());
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
    deadline: Deadline,
    signals: Signals<'_>,
) -> Result<usize, i32> {
    loop {
        let pause = keep_house(epoll);
        crate::link::wake_target::settle();
        let sleeper = Sleeper::enter();
        epoll.sleepers.fetch_add(1, Ordering::SeqCst);
        let slept = sleep_once(epoll, out, &sleeper, wait::earlier(deadline.left(), pause), signals);
        let one_less = |count: u32| count.checked_sub(1);
        let _ = epoll.sleepers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        drop(sleeper);
        let found = slept?;
        if found != 0 {
            return Ok(found);
        }
        ledger::catch_up(epoll);
        crate::link::channel::drain();
        let is_last = deadline.left() == Some(0);
        let found = look(epoll, out, false, is_last);
        if found != 0 || is_last {
            return Ok(found);
        }
    }
}

/// Before a sleep: does what is due of housekeeping, and says in how many nanoseconds there will be more. The time since
/// the last event counts, however many waits it was, since many programs wake up every second or so.
fn keep_house(epoll: &Epoll) -> Option<u64> {
    let done = epoll.rounds.load(Ordering::Relaxed);
    if !epoll.dirty.load(Ordering::Relaxed) && done >= ROUNDS.len() {
        return None;
    }
    let now = sd_sys::time::now_ns();
    if epoll.dirty.swap(false, Ordering::Relaxed) {
        epoll.quiet_since.store(now, Ordering::Relaxed);
        epoll.rounds.store(0, Ordering::Relaxed);
    }
    let quiet = now.saturating_sub(epoll.quiet_since.load(Ordering::Relaxed));
    let mut due = 0;
    for (number, round) in ROUNDS.into_iter().enumerate() {
        due += round.pause();
        if number < epoll.rounds.load(Ordering::Relaxed) {
            continue;
        }
        if due > quiet {
            return Some(due - quiet);
        }
        let more = tidy(epoll, round);
        epoll.rounds.store(if more { number + 1 } else { ROUNDS.len() }, Ordering::Relaxed);
    }
    None
}

/// One sleep; events that were found instead, or in the kernel's part.
fn sleep_once(
    epoll: &'static Epoll,
    out: &mut [epoll_event],
    sleeper: &Sleeper,
    timeout: Option<u64>,
    signals: Signals<'_>,
) -> Result<usize, i32> {
    rest::prepare(epoll, &mut epoll.interest.lock(), sleeper.view());
    ledger::catch_up(epoll);
    crate::link::channel::drain();
    // What that ended is freed before a sleep that may be long.
    reclaim::sweep();
    let found = look_at(epoll, out, Look { kernel: false, stay: false });
    let idle = wait::earlier(crate::setup::adopt::ask_for_work(), crate::setup::adopt::pause());
    let retry = wait::earlier(crate::monitor::client::retry_if_lost(), idle);
    if found != 0 || sleeper.is_stale() {
        return Ok(found);
    }
    wait::ended_by_handler(signals.watch, signals.mask)?;
    let kernel = rest::sleep(epoll, wait::earlier(timeout, retry), signals.mask)?;
    epoll.kernel_asked.store(sd_sys::time::ticks(), Ordering::Relaxed);
    Ok(if kernel { look_at(epoll, out, Look { kernel, stay: false }) } else { 0 })
}

/// Housekeeping of the instance's sockets, see `idle`: whether there will be more.
fn tidy(epoll: &Epoll, round: Round) -> bool {
    let (mut more, mut page) = (false, None);
    loop {
        // By pages: a list of all would be as much memory as is given back.
        let (sockets, next) = epoll.interest.lock().items.sockets(page);
        more = sockets
            .into_iter()
            .flatten()
            .fold(more, |more, socket| crate::memory::idle::tidy(socket, round) | more);
        page = next;
        if page.is_none() {
            break;
        }
    }
    if round != Round::First {
        crate::memory::parked::park_idle();
    }
    more
}
