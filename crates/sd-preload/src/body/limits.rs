//! RLIMIT_AS: the library's segments are on top of it; see `sd_sys::space`.

use core::ffi::{c_int, c_uint};
use libc::{pid_t, rlimit};
use sd_socket::Outcome;
use sd_sys::space;

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
    // SAFETY: no arguments.
    if resource != libc::RLIMIT_AS || pid != 0 && pid != unsafe { libc::getpid() } {
        return Outcome::Kernel;
    }
    let before = space::limits();
    // SAFETY: libc's contract.
    let set = unsafe { new.as_ref() }.map_or(Ok(()), |new| space::limit(*new));
    match (before, set) {
        (Ok(before), Ok(())) => {
            // SAFETY: libc's contract.
            if let Some(old) = unsafe { old.as_mut() } {
                *old = before;
            }
            Outcome::Done(0)
        }
        (Err(error), _) | (_, Err(error)) => Outcome::Errno(error.0),
    }
}
