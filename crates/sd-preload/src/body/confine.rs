//! prctl(PR_SET_SECCOMP) and seccomp(2): filters that the program puts on itself.

use crate::table::real;
use core::ffi::{c_int, c_uint};
use sd_socket::{Outcome, confine};
use sd_sys::confine::{forbidden_by, forbidden_strictly};
use sd_sys::raw::syscall6;

/// prctl(2).
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn prctl(option: c_int, args: [usize; 4]) -> Outcome<c_int> {
    let [a, b, c, d] = args;
    // SAFETY: libc's contract.
    let install = || unsafe { real::prctl(option, a, b, c, d) };
    match (option, a as c_uint) {
        (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) => strictly(install),
        // SAFETY: libc's contract.
        (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER) => unsafe { filtered(b, install) },
        (libc::PR_SET_NO_NEW_PRIVS, 1) => super::privileges::no_new_privileges(install),
        _ => Outcome::Kernel,
    }
}

/// seccomp(2), by number.
///
/// # Safety
/// The caller's contract with the kernel.
pub(crate) unsafe fn seccomp(operation: c_uint, flags: usize, program: usize) -> Outcome<c_int> {
    let install = || {
        // SAFETY: the caller's contract.
        crate::edge::finish(unsafe {
            syscall6(libc::SYS_seccomp, operation as usize, flags, program, 0, 0, 0)
        })
    };
    match operation {
        libc::SECCOMP_SET_MODE_STRICT => strictly(install),
        // SAFETY: the caller's contract.
        libc::SECCOMP_SET_MODE_FILTER => unsafe { filtered(program, install) },
        _ => Outcome::Kernel,
    }
}

fn strictly(install: impl FnOnce() -> c_int) -> Outcome<c_int> {
    confine::install(&forbidden_strictly(), || {
        let result = install();
        if result == 0 {
            sd_sys::time::forbid_clocks();
        }
        result
    })
}

/// No program, as those give who only ask whether there are filters, is the kernel's to refuse.
///
/// # Safety
/// `address` is zero or that of a program.
unsafe fn filtered(address: usize, install: impl FnOnce() -> c_int) -> Outcome<c_int> {
    // SAFETY: by contract.
    let program = unsafe { (address as *const libc::sock_fprog).as_ref() };
    let Some(program) = program.filter(|program| !program.filter.is_null()) else {
        return Outcome::Kernel;
    };
    // SAFETY: by contract, `len` instructions.
    let instructions = unsafe { core::slice::from_raw_parts(program.filter, program.len.into()) };
    confine::install(&forbidden_by(instructions), install)
}
