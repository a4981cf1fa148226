//! epoll_wait: look, merge, spin, sleep.

use super::collect::{collect, cool_down};
use super::{Epoll, KERNEL_PART, Source};
use crate::channel::drain;
use crate::process::{PROCESS, single_threaded};
use crate::wait::{self, Deadline, HOUSEKEEPING_NS, OWN_EVENT, Sleeper};
use core::sync::atomic::Ordering;
use libc::{epoll_event, sigset_t};

/// About ten microseconds: while sockets of ours are always ready, the kernel is asked so often.
const KERNEL_EVERY_CYCLES: u64 = 25_000;

/// Keeps the record alive while a thread is inside.
struct User(*mut Epoll);

impl User {
    fn enter(epoll: *mut Epoll) -> User {
        // SAFETY: found in the table by the caller; freed only when `users` is zero.
        unsafe { (*epoll).users.fetch_add(1, Ordering::AcqRel) };
        User(epoll)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: counted, so still alive.
        let this = unsafe { &*self.0 };
        if this.users.fetch_sub(1, Ordering::AcqRel) == 1 && this.closed {
            let _lock = PROCESS.readiness.lock();
            // SAFETY: closed and without users: nobody else leads here.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// See epoll_wait(2). `Err` is errno.
pub(crate) fn wait(
    epoll: *mut Epoll,
    out: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, i32> {
    let _user = User::enter(epoll);
    let deadline = Deadline::after(timeout_ns);
    if !super::has_ours(epoll) {
        // Only the kernel's, so far. What another thread adds meanwhile ends the sleep, see `kick`.
        // SAFETY: alive while `_user` is; the descriptor does not change.
        let got = wait::sleep_on(unsafe { (*epoll).fd }, out, timeout_ns, mask)?;
        let count = keep_foreign(out, 0, got);
        if count > 0 || got == 0 {
            return Ok(count);
        }
    }
    let ready = look(epoll, out);
    if ready != Ok(0) || timeout_ns == Some(0) {
        return ready;
    }
    if mask.is_null() {
        let mut found = Ok(0);
        let mut rounds = 0u32;
        // SAFETY: alive while `_user` is.
        let learned = unsafe { &(*epoll).spin };
        let hit = wait::spin(learned, || {
            rounds += 1;
            found = if rounds.is_multiple_of(64) { look(epoll, out) } else { look_at_ours(epoll, out) };
            found != Ok(0)
        });
        if hit {
            return found;
        }
    }
    sleep(epoll, out, deadline, mask)
}

/// One look at our sockets, without the kernel.
fn look_at_ours(epoll: *mut Epoll, out: &mut [epoll_event]) -> Result<usize, i32> {
    drain();
    // SAFETY: alive while the caller's `User` is, and no other thread changes the lists.
    if single_threaded() && unsafe { (*epoll).ready.is_empty() && (*epoll).scanned.is_empty() } {
        return Ok(0);
    }
    let _lock = PROCESS.readiness.lock();
    // SAFETY: as above, and under the lock.
    Ok(collect(unsafe { &mut *epoll }, out))
}

/// One look at everything. The kernel's part is asked when nothing of ours is ready, and now and
/// then anyway, so that neither side starves the other.
fn look(epoll: *mut Epoll, out: &mut [epoll_event]) -> Result<usize, i32> {
    let mut count = look_at_ours(epoll, out)?;
    // SAFETY: alive; the counters are atomic.
    let (kernel_count, kernel_asked) = unsafe { (&(*epoll).kernel_count, &(*epoll).kernel_asked) };
    if kernel_count.load(Ordering::Relaxed) == 0 {
        return Ok(count);
    }
    let now = sd_sys::time::tsc();
    if count == 0 || now.wrapping_sub(kernel_asked.load(Ordering::Relaxed)) > KERNEL_EVERY_CYCLES {
        kernel_asked.store(now, Ordering::Relaxed);
        if count == out.len() {
            // Room for the kernel's events: some of ours go back on the list for the next wait.
            count = out.len() * 3 / 4;
            requeue_tail(epoll, out, count);
        }
        count += from_kernel(epoll, out, count)?;
        if count == 0 {
            count = look_at_ours(epoll, out)?;
        }
    }
    Ok(count)
}

/// Puts events that will not be reported this time back on the list.
fn requeue_tail(epoll: *mut Epoll, out: &[epoll_event], keep: usize) {
    let _lock = PROCESS.readiness.lock();
    // SAFETY: alive, and under the lock.
    let this = unsafe { &mut *epoll };
    for event in out.get(keep..).unwrap_or(&[]) {
        let data = event.u64;
        // SAFETY: items are live under the lock.
        let item = this.items.iter().copied().find(|&i| !i.is_null() && unsafe { (*i).data } == data);
        if let Some(item) = item {
            // SAFETY: as above.
            unsafe { (*item).disabled = false };
            this.enqueue(item);
        }
    }
}

/// Adds the kernel's events that are ready now behind the first `count` of `out`; returns how many.
fn from_kernel(epoll: *mut Epoll, out: &mut [epoll_event], count: usize) -> Result<usize, i32> {
    // SAFETY: alive; the descriptor does not change.
    let fd = unsafe { (*epoll).fd };
    match out.get_mut(count..) {
        Some(rest) if !rest.is_empty() => {
            let got = wait::sleep_on(fd, rest, Some(0), core::ptr::null())?;
            Ok(keep_foreign(out, count, got))
        }
        _ => Ok(0),
    }
}

/// Of the `got` kernel events behind the first `count`, keeps those that are the program's business;
/// returns how many.
fn keep_foreign(out: &mut [epoll_event], count: usize, got: usize) -> usize {
    let mut kept = count;
    for at in count..count + got {
        let Some(&event) = out.get(at) else { break };
        let (data, bits) = (event.u64, event.events);
        // A listener may be ready on both sides: one event.
        let known = out.iter().take(count).any(|other| other.u64 == data && other.events & bits != 0);
        if data == OWN_EVENT || known {
            continue;
        }
        if let Some(slot) = out.get_mut(kept) {
            *slot = event;
            kept += 1;
        }
    }
    kept - count
}

/// Sleeps until something is ready, or the deadline.
fn sleep(
    epoll: *mut Epoll,
    out: &mut [epoll_event],
    deadline: Deadline,
    mask: *const sigset_t,
) -> Result<usize, i32> {
    let mut housekeeping = HOUSEKEEPING_NS.into_iter();
    // SAFETY: alive while the caller's `User` is.
    let mut pause =
        if unsafe { (*epoll).dirty.load(Ordering::Relaxed) } { housekeeping.next() } else { None };
    loop {
        crate::reclaim::sweep();
        let sleeper = Sleeper::enter();
        // SAFETY: as above.
        unsafe { (*epoll).sleepers.fetch_add(1, Ordering::SeqCst) };
        let slept = sleep_once(epoll, out, deadline, pause, mask);
        // SAFETY: as above.
        unsafe { (*epoll).sleepers.fetch_sub(1, Ordering::SeqCst) };
        drop(sleeper);
        match slept {
            Err(errno) => return Err(errno),
            Ok(0) => {}
            ready => return ready,
        }
        let ready = look(epoll, out);
        if ready != Ok(0) || deadline.left() == Some(0) {
            return ready;
        }
        if pause.is_some() {
            tidy(epoll);
            pause = housekeeping.next();
        }
    }
}

fn sleep_once(
    epoll: *mut Epoll,
    out: &mut [epoll_event],
    deadline: Deadline,
    pause: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, i32> {
    drain();
    {
        let _lock = PROCESS.readiness.lock();
        // SAFETY: alive, and under the lock.
        let this = unsafe { &mut *epoll };
        super::watch_own(this);
        if cool_down(this) {
            return Ok(collect(this, out));
        }
    }
    let retry = crate::control::retry_if_lost();
    let timeout = wait::earlier(wait::earlier(deadline.left(), pause), retry);
    let mut events = [epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: alive while the caller's `User` is.
    let sleep_fd = unsafe { (*epoll).sleep_fd.load(Ordering::Acquire) };
    let woken = wait::sleep_on(sleep_fd, &mut events, timeout, mask)?;
    let mut kernel = false;
    for event in events.iter().take(woken) {
        let (data, bits) = (event.u64, event.events);
        kernel |= data == KERNEL_PART;
        if data == OWN_EVENT && bits & libc::EPOLLIN as u32 == 0 {
            crate::control::look_at_socket();
        }
    }
    if kernel { from_kernel(epoll, out, 0) } else { Ok(0) }
}

/// Housekeeping of the instance's sockets, see `idle`.
fn tidy(epoll: *mut Epoll) {
    let endpoints: Vec<_> = {
        let _lock = PROCESS.readiness.lock();
        // SAFETY: alive, and under the lock.
        let this = unsafe { &mut *epoll };
        this.dirty.store(false, Ordering::Relaxed);
        // SAFETY: items are live under the lock.
        let sources = this.items.iter().filter_map(|&i| unsafe { i.as_ref() }).map(|i| i.source);
        sources.filter_map(|s| if let Source::Socket(endpoint) = s { Some(endpoint) } else { None }).collect()
    };
    endpoints.into_iter().for_each(crate::idle::tidy);
}
