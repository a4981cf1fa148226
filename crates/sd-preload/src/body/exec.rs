//! exec: what has to be done before, and when it fails.

use crate::edge::last_errno;
use core::ffi::{c_char, c_int};
use sd_socket::calls;
pub(crate) use sd_socket::exec::{Program, Variables};

type Environment = *const *const c_char;

unsafe extern "C" {
    static environ: Environment;
}

/// The program at a path.
pub(crate) fn at(path: *const c_char) -> Program {
    Program::At { dir: libc::AT_FDCWD, path, flags: 0 }
}

/// The program behind a descriptor.
pub(crate) fn of_fd(fd: c_int) -> Program {
    Program::At { dir: fd, path: c"".as_ptr(), flags: libc::AT_EMPTY_PATH }
}

/// The environment of this program.
pub(crate) fn environment() -> Environment {
    // SAFETY: libc's variable.
    unsafe { environ }
}

/// Executes `program` by `real`, with the environment it is given, or the library for it; it only returns when that fails. Not part of who calls: its
/// frame is large, and `raw::ask`'s is below every call of a static program.
///
/// # Safety
/// libc's contract for the arguments.
#[inline(never)]
pub(crate) unsafe fn with(
    program: Program,
    (arguments, environment): (*const *const c_char, Environment),
    real: impl FnOnce(Environment) -> c_int,
) -> c_int {
    // SAFETY: libc's contract.
    let prepared = unsafe { calls::exec_prepare(program, environment) };
    let mut room = Variables::new();
    // SAFETY: libc's contract.
    let environment = unsafe { prepared.environment(program, environment, &mut room) };
    // SAFETY: libc's contract.
    let (result, errno) = match unsafe { prepared.execute(arguments, environment) } {
        Some(errno) => (-1, errno),
        None => (real(environment), last_errno()),
    };
    calls::exec_failed(prepared);
    // SAFETY: libc gives the address of this thread's errno, which is the real function's.
    unsafe { *libc::__errno_location() = errno.0 };
    result
}
