//! Small functions of glibc around one socket call, which they would make without us.

use crate::edge::last_errno;
use crate::table::real;
use core::ffi::{c_int, c_ulong};
use libc::{sockaddr, sockaddr_in, socklen_t};
use sd_socket::{Outcome, calls};
use sd_sys::Errno;

const SIOCATMARK: c_ulong = 0x8905;
/// glibc tries these first: 600 to 1023, from a place that depends on the process; then 512 to 599.
const PREFERRED: core::ops::RangeInclusive<u16> = 600..=1023;
const RESERVE: core::ops::RangeInclusive<u16> = 512..=599;

/// sockatmark(3) = ioctl(SIOCATMARK).
pub(crate) fn sockatmark(fd: c_int) -> Outcome<c_int> {
    let mut at_mark: c_int = 0;
    // SAFETY: this request writes one int.
    match unsafe { calls::ioctl(fd, SIOCATMARK, &raw mut at_mark as c_ulong) } {
        Outcome::Done(_) => Outcome::Done(at_mark),
        other => other,
    }
}

/// bindresvport(3): the first free privileged port; `addr` (optional) receives it.
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn bindresvport(fd: c_int, addr: *mut sockaddr_in) -> Outcome<c_int> {
    // SAFETY: an all-zero sockaddr_in is valid.
    let mut any: sockaddr_in = unsafe { core::mem::zeroed() };
    any.sin_family = libc::AF_INET as u16;
    let addr = if addr.is_null() { &raw mut any } else { addr };
    // SAFETY: libc's contract, or our own variable.
    if unsafe { (*addr).sin_family } != libc::AF_INET as u16 {
        return Outcome::Errno(Errno::EAFNOSUPPORT);
    }
    let turn = sd_sys::fd::getpid() as usize % PREFERRED.len();
    let preferred = PREFERRED.skip(turn).chain(PREFERRED.take(turn));
    for port in preferred.chain(RESERVE) {
        // SAFETY: as above.
        let outcome = unsafe {
            (*addr).sin_port = port.to_be();
            bind(fd, addr as *const sockaddr, size_of::<sockaddr_in>() as socklen_t)
        };
        if outcome != Outcome::Errno(Errno::EADDRINUSE) {
            return outcome;
        }
    }
    Outcome::Errno(Errno::EADDRINUSE)
}

/// bind(2) with the errno of the real one in the result.
///
/// # Safety
/// libc's contract.
unsafe fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Outcome<c_int> {
    // SAFETY: libc's contract.
    unsafe {
        match calls::bind(fd, addr, len) {
            Outcome::Kernel => match real::bind(fd, addr, len) {
                -1 => Outcome::Errno(last_errno()),
                ret => Outcome::Done(ret),
            },
            outcome => outcome,
        }
    }
}
