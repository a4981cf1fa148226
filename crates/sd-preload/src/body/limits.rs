//! Limits with which the library's own needs must not interfere: RLIMIT_AS (see `sd_sys::space`) and RLIMIT_NOFILE (see
//! `sd_sys::numbers`).

use crate::table::real;
use core::ffi::{c_int, c_uint};
use libc::{pid_t, rlimit};
use sd_socket::{Outcome, calls};
use sd_sys::{numbers, space, user};

/// prlimit(2), and with it setrlimit(2) and getrlimit(2).
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn prlimit(
    pid: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> Outcome<c_int> {
    if crate::start::is_passive() || pid != 0 && pid != sd_sys::fd::getpid() {
        return Outcome::Kernel;
    }
    if !new.is_null() && !calls::may_work() {
        return Outcome::Kernel;
    }
    let len = size_of::<rlimit>();
    if !new.is_null() && !user::is_readable(new, len) || !old.is_null() && !user::is_writable(old, len) {
        return Outcome::Kernel;
    }
    // SAFETY: libc's contract.
    let new = unsafe { new.as_ref() };
    let (before, set) = match resource {
        libc::RLIMIT_AS => (space::limits(), new.map_or(Ok(()), |new| space::limit(*new))),
        libc::RLIMIT_NOFILE => (numbers::limits(), new.map_or(Ok(()), |new| numbers::limit(*new))),
        _ => return Outcome::Kernel,
    };
    match (before, set) {
        (Ok(before), Ok(())) => {
            // SAFETY: libc's contract.
            if let Some(old) = unsafe { old.as_mut() } {
                *old = before;
            }
            Outcome::Done(0)
        }
        (Err(error), _) | (_, Err(error)) => Outcome::Errno(error),
    }
}

/// mlockall(2), so that what is locked is what was touched (MCL_ONFAULT): the library's mappings are gigabytes, nearly all of
/// them holes, and would be made whole.
pub(crate) fn mlockall(flags: c_int) -> Outcome<c_int> {
    if crate::start::is_passive() || flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 {
        return Outcome::Kernel;
    }
    let flags = (flags | libc::MCL_ONFAULT) as usize;
    // The program's own call: what a filter of its says to it is the answer.
    // SAFETY: no pointers.
    match sd_sys::check(unsafe { sd_sys::raw::syscall6(libc::SYS_mlockall, flags, 0, 0, 0, 0, 0) }) {
        Ok(_) => Outcome::Done(0),
        Err(error) => Outcome::Errno(error),
    }
}

/// getdtablesize(3).
pub(crate) fn getdtablesize() -> c_int {
    sd_sys::fd::nofile_limit().min(c_int::MAX as u64) as c_int
}

/// sysconf(3).
pub(crate) fn sysconf(name: c_int) -> isize {
    if name == libc::_SC_OPEN_MAX && numbers::are_limited() {
        return numbers::soft() as isize;
    }
    #[cfg(not(sd_freestanding))]
    if let Some(ask) = crate::start::libc_names().sysconf {
        // SAFETY: no pointers.
        return unsafe { ask(name) as isize };
    }
    // SAFETY: no pointers.
    unsafe { real::sysconf(name) }
}
