//! Waiting (§4.4): poll, then yield, then sleep; how long is learned per socket or epoll instance.
//!
//! A wait looks at its ring without a pause for about two microseconds, then gives way to other
//! threads between looks, at most for the learned budget, then sleeps. A budget that did not pay
//! is halved; now and then a full one is tried again. When the yield itself let the peer run (one
//! core for both), the first phase is cut short next time. When it let a stranger run for a whole time slice, there are
//! more runnable threads than cores: then nobody here gives way for a while, since who sleeps is run as soon as he
//! is woken, but who gave way waits for his turn.

use crate::process::earlier;
use crate::process::stats::{Counter, count};
use crate::process::waker::{self, OWN_EVENT};
use crate::socket::endpoint::EndpointExt;
use crate::socket::way_back::{LOOK_FOR_DEATH_NS, may_be_broken, notes_death};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sd_shm::slab::Endpoint;
use sd_sys::futex::{self, Scope};
use sd_sys::section::Watch;
use sd_sys::{Errno, confine, time};

const LOOKS_MAX: u32 = 1200;
const LOOKS_MIN: u32 = 20;
const BUDGET_MAX_US: u32 = 60;
/// A yield that took so long ran somebody else.
const HANDED_OVER_NS: u64 = 900;
/// Looks that took so long were interrupted: the peer had this thread's core for a while, without which there was nothing to see.
static INTERRUPTED: time::Interval = time::Interval::of_ns(20_000);
/// One wait in so many uses the full budget.
const PROBE_EVERY: u32 = 32;
/// A yield that took so long gave the core away for a time slice. Of a peer that computed for so long on the same core,
/// the answer is not much later for a sleep.
const CROWDED_NS: u64 = 200_000;
/// For so long nobody yields after that; twice as long where it is found again soon, up to the longest.
const CROWDED_PAUSE_MS: [u32; 2] = [16, 1024];
const CROWDED_AGAIN_NS: u64 = 100_000_000;

/// No yields until then.
static CROWDED_UNTIL: AtomicU64 = AtomicU64::new(0);
static CROWDED_FOR_MS: AtomicU32 = AtomicU32::new(CROWDED_PAUSE_MS[0]);

/// A short yield in between, in which the peer had its turn, does not say that the stranger is gone.
#[cold]
fn note_crowd(now: u64) {
    let [least, most] = CROWDED_PAUSE_MS;
    let until = CROWDED_UNTIL.load(Ordering::Relaxed);
    if now < until {
        // Another thread has found it.
        return;
    }
    let is_again = now - until < CROWDED_AGAIN_NS;
    let before = CROWDED_FOR_MS.load(Ordering::Relaxed);
    let pause = if is_again { (before * 2).min(most) } else { least };
    CROWDED_FOR_MS.store(pause, Ordering::Relaxed);
    CROWDED_UNTIL.store(now + u64::from(pause) * 1_000_000, Ordering::Relaxed);
}

/// Learned state, packed in one word: looks (12 bits), budget in us (8 bits), waits since the last
/// probe (8 bits), and a bit that says that it was initialised.
#[derive(Clone, Copy)]
struct Learned {
    looks: u32,
    budget_us: u32,
    since_probe: u32,
}

impl Learned {
    fn load(word: &AtomicU32) -> Learned {
        let w = word.load(Ordering::Relaxed);
        if w >> 31 == 0 {
            return Learned { looks: LOOKS_MAX, budget_us: BUDGET_MAX_US, since_probe: 0 };
        }
        Learned { looks: w & 0xfff, budget_us: w >> 12 & 0xff, since_probe: w >> 20 & 0xff }
    }

    fn store(self, word: &AtomicU32) {
        let w = 1 << 31
            | self.since_probe.min(0xff) << 20
            | self.budget_us.min(0xff) << 12
            | self.looks.min(0xfff);
        word.store(w, Ordering::Relaxed);
    }
}

/// Looks for something without sleeping; true when `ready` said so.
#[inline]
pub(crate) fn spin(word: &AtomicU32, ready: impl FnMut() -> bool) -> bool {
    spin_at(word, 1, ready)
}

/// Spins as [`spin`] does, where a look takes as long as `cost` looks at one ring.
#[inline]
pub(crate) fn spin_at(word: &AtomicU32, cost: u32, mut ready: impl FnMut() -> bool) -> bool {
    spin_warned(word, cost, |_| ready())
}

/// Spins as [`spin_at`] does; `ready` is told which is the last look before other threads may run.
#[inline]
pub(crate) fn spin_warned(word: &AtomicU32, cost: u32, mut ready: impl FnMut(bool) -> bool) -> bool {
    let learned = Learned::load(word);
    let has_more_to_learn = learned.looks < LOOKS_MAX || learned.budget_us < BUDGET_MAX_US;
    let began = if has_more_to_learn { time::ticks() } else { 0 };
    for left in (0..learned.looks.div_ceil(cost)).rev() {
        if ready(left == 0) {
            if has_more_to_learn {
                reward(word, learned, began);
            }
            return true;
        }
    }
    spin_yielding(word, learned, cost, || ready(false))
}

#[cold]
fn reward(word: &AtomicU32, learned: Learned, began: u64) {
    if INTERRUPTED.is_over(time::ticks().wrapping_sub(began)) {
        Learned { looks: LOOKS_MIN, ..learned }.store(word);
        return;
    }
    let budget_us = (learned.budget_us + 4).min(BUDGET_MAX_US);
    Learned { looks: (learned.looks + 200).min(LOOKS_MAX), budget_us, ..learned }.store(word);
}

fn spin_yielding(word: &AtomicU32, mut learned: Learned, cost: u32, mut ready: impl FnMut() -> bool) -> bool {
    let probe = learned.since_probe >= PROBE_EVERY;
    let budget_us = if probe { BUDGET_MAX_US } else { learned.budget_us };
    let start = time::now_ns();
    if start < CROWDED_UNTIL.load(Ordering::Relaxed) {
        return false;
    }
    let mut before = start;
    while before - start < u64::from(budget_us) * 1000 {
        time::yield_now();
        for _ in 0..30u32.div_ceil(cost) {
            if ready() {
                let now = time::now_ns();
                if now - before > CROWDED_NS {
                    note_crowd(now);
                }
                let handed_over = now - before > HANDED_OVER_NS;
                learned.looks = if handed_over { LOOKS_MIN } else { learned.looks.max(200) };
                learned.budget_us = (budget_us * 2).clamp(8, BUDGET_MAX_US);
                learned.since_probe = 0;
                learned.store(word);
                count(Counter::SpinHit);
                return true;
            }
        }
        let now = time::now_ns();
        if now - before > CROWDED_NS {
            note_crowd(now);
        }
        before = now;
    }
    learned.since_probe = if probe { 0 } else { learned.since_probe + 1 };
    learned.budget_us /= 2;
    learned.looks = (learned.looks / 2).max(LOOKS_MIN);
    learned.store(word);
    false
}

/// Later than any clock will show.
const FAR_NS: u64 = 1 << 62;

/// A handler that ran since `watch` began ends a call with EINTR, unless there is no deadline and it has SA_RESTART
/// (signal(7)): also where it came before the call slept.
#[inline]
pub(crate) fn interrupted(watch: &Watch, deadline: Deadline) -> Result<(), Errno> {
    match watch.has_run() && (!deadline.is_never() || !all_restart(watch.signals())) {
        true => Err(Errno::EINTR),
        false => Ok(()),
    }
}

/// Ends poll and its like with EINTR if any handler ran since `watch` began; but where a signal mask is given, what ran before the
/// kernel took it up ran before the call.
#[inline]
pub(crate) fn ended_by_handler(watch: &Watch, mask: *const libc::sigset_t) -> Result<(), Errno> {
    if mask.is_null() && watch.has_run() { Err(Errno::EINTR) } else { Ok(()) }
}

/// Whether all these signals (bit n-1 for signal n) have SA_RESTART.
#[cold]
fn all_restart(signals: u64) -> bool {
    (1..=64).filter(|signal| signals & 1 << (signal - 1) != 0).all(|signal| {
        // The kernel's struct: handler, flags, restorer, mask.
        let mut action = [0u64; 4];
        // SAFETY: the kernel writes 32 bytes.
        unsafe { sd_sys::syscall!(libc::SYS_rt_sigaction, signal, 0, action.as_mut_ptr(), 8) };
        action[1] & libc::SA_RESTART as u64 != 0
    })
}

/// When a blocking call gives up.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<u64>);

impl Deadline {
    /// After `timeout_ns`; `None` = never.
    pub(crate) fn after(timeout_ns: Option<u64>) -> Deadline {
        Deadline(timeout_ns.map(|t| time::now_ns().saturating_add(t)))
    }

    /// As SO_RCVTIMEO counts: zero = never.
    pub(crate) fn option(timeout_ns: u64) -> Deadline {
        Deadline::after((timeout_ns != 0).then_some(timeout_ns))
    }

    /// The deadline of a call that has something to show already: every handler that runs ends its wait.
    pub(crate) fn of_partial(self) -> Deadline {
        Deadline(Some(self.0.unwrap_or(FAR_NS)))
    }

    /// There is none.
    pub(super) fn is_never(self) -> bool {
        self.0.is_none()
    }

    /// What is left; `Some(0)` when it has passed.
    pub(crate) fn left(self) -> Option<u64> {
        self.0.map(|at| at.saturating_sub(time::now_ns()))
    }
}

/// Sleeps on a doorbell word until woken, or `pause` has passed. Without a deadline the kernel itself restarts the
/// sleep after a handler with SA_RESTART, as it would restart recv or send; with one, every handler means EINTR.
pub(crate) fn sleep_on_word(
    word: *const AtomicU32,
    value: u32,
    deadline: Deadline,
    pause: Option<u64>,
) -> Result<(), Errno> {
    count(Counter::Sleep);
    crate::wait::cancel::check()?;
    let watch = Watch::start();
    let left = deadline.left();
    if left == Some(0) {
        return Err(Errno::EAGAIN);
    }
    let slept = match (left, pause) {
        (None, Some(pause)) => futex::wait_restarting(word, value, pause),
        _ => futex::wait(word, value, earlier(left, pause), Scope::Shared),
    };
    match slept {
        // A nap, which the kernel does not restart.
        Err(Errno::EINTR) if !confine::allows(libc::SYS_futex) => interrupted(&watch, deadline),
        Err(Errno::EINTR) => Err(Errno::EINTR),
        // No such system call before Linux 5.16; a container's filter may say EPERM for what it does not know.
        Err(Errno::ENOSYS | Errno::EPERM) => match futex::wait(word, value, pause, Scope::Shared) {
            Err(Errno::EINTR) => interrupted(&watch, deadline),
            _ => Ok(()),
        },
        Err(Errno::ETIMEDOUT) if deadline.left() == Some(0) => Err(Errno::EAGAIN),
        _ => Ok(()),
    }
}

/// Sleeps until the peer wakes whoever waits on a connection, as [`sleep_on_word`]; for a moment only where it cannot.
pub(crate) fn sleep_on_connection(
    endpoint: &Endpoint,
    value: u32,
    deadline: Deadline,
    pause: Option<u64>,
) -> Result<(), Errno> {
    let limit = earlier(pause, crate::socket::confine::limit(endpoint));
    if crate::socket::road::is_promoted(endpoint) {
        return sleep_beside_kernel(endpoint, value, deadline, limit);
    }
    sleep_on_word(&endpoint.own_words().wait, value, deadline, limit)
}

/// A peer that is killed while there is no monitor wakes nobody, but its kernel ends the kernel's connection: that is looked at now and then, more and
/// more rarely.
#[cold]
fn sleep_beside_kernel(
    endpoint: &Endpoint,
    value: u32,
    deadline: Deadline,
    limit: Option<u64>,
) -> Result<(), Errno> {
    let word = &endpoint.own_words().wait;
    let until = limit.map(|limit| time::now_ns().saturating_add(limit));
    let mut nap = LOOK_FOR_DEATH_NS.0;
    loop {
        let left = until.map(|until| until.saturating_sub(time::now_ns()));
        sleep_on_word(word, value, deadline, earlier(left, Some(nap)))?;
        let is_over = left.is_some_and(|left| left <= nap) || word.load(Ordering::Acquire) != value;
        // The thread that looks for all may be gone: who waits for one whose road is gone looks itself.
        if is_over || notes_death(endpoint) || may_be_broken(endpoint) {
            return Ok(());
        }
        nap = (nap * 2).min(LOOK_FOR_DEATH_NS.1);
    }
}

/// One of the process's eventfds, or the control socket, has ended a sleep.
#[inline]
pub(crate) fn has_rung(events: u32) {
    if events & (libc::EPOLLIN | libc::EPOLLOUT) as u32 == 0 {
        crate::monitor::client::look_at_socket();
    } else if events & libc::EPOLLERR as u32 != 0 {
        waker::event_fds().for_each(sd_sys::fd::eventfd_reset);
    }
}

/// Lets what is slept on watch these eventfds.
pub(crate) fn watch_all(now: &mut waker::View, epoll_fd: i32, view: waker::View) {
    if !now.update(epoll_fd, view) {
        // The program has closed one behind our back; by now it may be there again.
        crate::monitor::client::noticed_loss();
        now.update(epoll_fd, view);
    }
}

/// Adds the control socket: its end means that the monitor is gone.
pub(crate) fn add_control(epoll_fd: i32) {
    let control = crate::monitor::client::CONTROL_FD.raw();
    if control >= 0 {
        let events = (libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let _ = sd_sys::fd::epoll_ctl(epoll_fd, libc::EPOLL_CTL_ADD, control, events, OWN_EVENT);
    }
}

/// Sleeps on a kernel epoll instance. Number of events, or errno.
pub(crate) fn sleep_on(
    epoll_fd: i32,
    events: &mut [libc::epoll_event],
    timeout_ns: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    if timeout_ns != Some(0) {
        crate::wait::cancel::check()?;
    }
    if timeout_ns.is_some() && !LACKS_PWAIT2.load(Ordering::Relaxed) {
        let ts = timeout_ns.map(time::timespec_of);
        let ts_ptr = ts.as_ref().map_or(core::ptr::null(), |t| t as *const libc::timespec);
        // SAFETY: the kernel writes at most `events.len()` entries and reads timespec and mask (8 bytes).
        let done = sd_sys::check(unsafe {
            sd_sys::syscall!(
                libc::SYS_epoll_pwait2,
                epoll_fd,
                events.as_mut_ptr(),
                events.len(),
                ts_ptr,
                mask,
                8
            )
        });
        match done {
            Err(Errno::ENOSYS | Errno::EPERM) => LACKS_PWAIT2.store(true, Ordering::Relaxed),
            other => return other,
        }
    }
    let ms = timeout_ns.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
    // SAFETY: the kernel writes at most `events.len()` entries and reads the mask (8 bytes).
    unsafe { sd_sys::fd::epoll_pwait(epoll_fd, events.as_mut_ptr(), events.len() as i32, ms, mask) }
}

/// epoll_pwait2(2) is not there: an older kernel, valgrind (which complains about each try), or a container's filter
/// for system calls, which may say EPERM for what it does not know.
static LACKS_PWAIT2: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(word: &AtomicU32) -> [u32; 3] {
        let Learned { looks, budget_us, since_probe } = Learned::load(word);
        [looks, budget_us, since_probe]
    }

    #[test]
    fn what_is_learned_fits_into_its_word() {
        let word = AtomicU32::new(0);
        assert_eq!(learned(&word), [LOOKS_MAX, BUDGET_MAX_US, 0], "nothing yet");
        for state in [[LOOKS_MIN, 0, PROBE_EVERY], [LOOKS_MAX, BUDGET_MAX_US, 0], [0, 0, 0]] {
            let [looks, budget_us, since_probe] = state;
            Learned { looks, budget_us, since_probe }.store(&word);
            assert_eq!(learned(&word), state);
        }
        Learned { looks: 1 << 20, budget_us: 1 << 20, since_probe: 1 << 20 }.store(&word);
        assert_eq!(learned(&word), [0xfff, 0xff, 0xff], "one does not spoil the other");
    }

    #[test]
    fn what_pays_is_done_more_and_what_does_not_less() {
        let word = AtomicU32::new(0);
        // Never ready: half of all, down to the fewest looks and no yields; only each so many waits a full budget.
        let mut fewer = learned(&word);
        for _ in 0..20 {
            // On a busy machine nothing is learned for a while.
            CROWDED_UNTIL.store(0, Ordering::Relaxed);
            assert!(!spin(&word, || false));
            let now = learned(&word);
            assert!(now[0] <= fewer[0] && now[1] <= fewer[1], "{now:?} after {fewer:?}");
            fewer = now;
        }
        assert_eq!(fewer[..2], [LOOKS_MIN, 0]);
        // Ready at the first look: more with each.
        let mut more = fewer;
        for _ in 0..20 {
            assert!(spin(&word, || true));
            let now = learned(&word);
            assert!(now[0] >= more[0] && now[1] >= more[1]);
            more = now;
        }
        assert_eq!(more[..2], [LOOKS_MAX, BUDGET_MAX_US]);
    }

    #[test]
    fn the_last_look_is_announced_and_a_dear_one_is_made_less_often() {
        for (cost, looks) in [(1, LOOKS_MAX), (7, LOOKS_MAX.div_ceil(7)), (LOOKS_MAX, 1)] {
            let (mut count, mut last) = (0, 0);
            let found = spin_warned(&AtomicU32::new(0), cost, |is_last| {
                count += 1;
                if is_last {
                    last = count;
                }
                is_last
            });
            assert!(found && (count, last) == (looks, looks), "{cost}: {count}, {last}");
        }
    }
}
