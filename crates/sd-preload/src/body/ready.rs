//! Time-outs of the waiting calls: each in its own unit, all to `Option<ns>` (`None` waits for ever).
//!
//! An invalid time-out goes to the kernel, which has the right errno for it.

use core::ffi::c_int;
use core::ptr::null;
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use sd_socket::{Outcome, calls};
use sd_sys::user;

const NS_PER_S: u64 = 1_000_000_000;
/// Of a timespec, and of a timeval.
const LEN: usize = size_of::<timespec>();

/// Negative is for ever.
pub(crate) fn of_ms(timeout_ms: c_int) -> Option<u64> {
    u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000)
}

/// A time-out that the kernel would reject, or a mask.
struct Invalid;

/// # Safety
/// Null, or libc's contract.
unsafe fn of_timespec(timeout: *const timespec) -> Result<Option<u64>, Invalid> {
    if timeout.is_null() {
        return Ok(None);
    }
    if !user::seems_readable(timeout, LEN) {
        return Err(Invalid);
    }
    // SAFETY: not null, so valid by contract.
    let t = unsafe { timeout.read() };
    match (u64::try_from(t.tv_sec), u64::try_from(t.tv_nsec)) {
        (Ok(s), Ok(ns)) if ns < NS_PER_S => Ok(Some(s.saturating_mul(NS_PER_S).saturating_add(ns))),
        _ => Err(Invalid),
    }
}

/// Microseconds beyond a second are allowed, as in glibc.
///
/// # Safety
/// Null, or libc's contract.
unsafe fn of_timeval(timeout: *const timeval) -> Result<Option<u64>, Invalid> {
    if timeout.is_null() {
        return Ok(None);
    }
    if !user::seems_readable(timeout, LEN) {
        return Err(Invalid);
    }
    // SAFETY: not null, so valid by contract.
    let t = unsafe { timeout.read() };
    match (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec)) {
        (Ok(s), Ok(us)) => Ok(Some(s.saturating_mul(NS_PER_S).saturating_add(us.saturating_mul(1000)))),
        _ => Err(Invalid),
    }
}

/// None, or one that can be read.
fn is_mask(mask: *const sigset_t) -> bool {
    const MASK_LEN: usize = 8;
    mask.is_null() || user::seems_readable(mask, MASK_LEN)
}

/// # Safety
/// libc's contract.
pub(crate) unsafe fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    // SAFETY: libc's contract.
    unsafe {
        match of_timespec(timeout) {
            Ok(timeout_ns) if is_mask(mask) => calls::poll(fds, count, timeout_ns, mask),
            _ => Outcome::Kernel,
        }
    }
}

/// # Safety
/// libc's contract.
pub(crate) unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    // SAFETY: libc's contract.
    unsafe {
        match of_timespec(timeout) {
            Ok(timeout_ns) if is_mask(mask) => calls::epoll_wait(epfd, events, max, timeout_ns, mask),
            _ => Outcome::Kernel,
        }
    }
}

/// ppoll(2) by its number tells, in `timeout`, how much of it is left, as libc's function does not; but not if it was zero.
///
/// # Safety
/// The caller's contract with the kernel.
pub(crate) unsafe fn ppoll_by_number(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *mut timespec,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    // SAFETY: the caller's contract.
    unsafe {
        let Ok(timeout_ns) = of_timespec(timeout) else { return Outcome::Kernel };
        let Some(whole_ns) = timeout_ns.filter(|whole_ns| *whole_ns != 0) else {
            return ppoll(fds, count, timeout, mask);
        };
        let begun_ns = sd_sys::time::now_ns();
        let outcome = ppoll(fds, count, timeout, mask);
        let left_ns = whole_ns.saturating_sub(sd_sys::time::now_ns().saturating_sub(begun_ns));
        tell_left(outcome, timeout, left_ns);
        outcome
    }
}

/// pselect6(2), likewise.
///
/// # Safety
/// The caller's contract with the kernel.
pub(crate) unsafe fn pselect_by_number(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timespec,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    // SAFETY: the caller's contract.
    unsafe {
        let Ok(timeout_ns) = of_timespec(timeout) else { return Outcome::Kernel };
        if !is_mask(mask) {
            return Outcome::Kernel;
        }
        let mut left_ns = timeout_ns.unwrap_or_default();
        let outcome = calls::select(nfds, read, write, except, timeout_ns, mask, &mut left_ns);
        if timeout_ns.is_some_and(|whole_ns| whole_ns != 0) {
            tell_left(outcome, timeout, left_ns);
        }
        outcome
    }
}

/// # Safety
/// Not null, and a time-out that has been read.
unsafe fn tell_left(outcome: Outcome<c_int>, timeout: *mut timespec, left_ns: u64) {
    // Where it cannot be written the kernel does not mind.
    if outcome != Outcome::Kernel && user::seems_writable(timeout, LEN) {
        let left = timespec { tv_sec: (left_ns / NS_PER_S) as i64, tv_nsec: (left_ns % NS_PER_S) as i64 };
        // SAFETY: by contract.
        unsafe { timeout.write(left) };
    }
}

/// select(2) tells, in `timeout`, how much of it is left; also when interrupted.
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn select(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> Outcome<c_int> {
    // SAFETY: libc's contract.
    let Ok(timeout_ns) = (unsafe { of_timeval(timeout) }) else { return Outcome::Kernel };
    let mut remaining_ns = timeout_ns.unwrap_or_default();
    // SAFETY: libc's contract.
    let outcome = unsafe { calls::select(nfds, read, write, except, timeout_ns, null(), &mut remaining_ns) };
    // Where it cannot be written the kernel does not mind.
    if outcome != Outcome::Kernel && !timeout.is_null() && user::seems_writable(timeout, LEN) {
        let left = timeval {
            tv_sec: (remaining_ns / NS_PER_S) as i64,
            tv_usec: (remaining_ns % NS_PER_S / 1000) as i64,
        };
        // SAFETY: not null, so valid by contract.
        unsafe { timeout.write(left) };
    }
    outcome
}

/// pselect(2) leaves its time-out alone.
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn pselect(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    // SAFETY: libc's contract.
    unsafe {
        match of_timespec(timeout) {
            Ok(timeout_ns) if is_mask(mask) => {
                calls::select(nfds, read, write, except, timeout_ns, mask, &mut 0)
            }
            _ => Outcome::Kernel,
        }
    }
}
