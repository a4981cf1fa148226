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
