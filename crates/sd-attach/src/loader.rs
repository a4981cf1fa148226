//! The second way into a static program, where ptrace(2) is refused (yama, a filter): the library's file is executed instead of the program's, and
//! loads that, since it needs nobody to load itself.
//!
//! ```text
//!  caller: the program's file under a number --execve of the library's file, with the program's arguments--> the library's entry, rdi = 0
//!  library: maps the program as execve(2) would, tells it so in the auxiliary vector --> the program
//! ```
//! The first way is the better one: there the kernel knows which program runs. What is different here, [`Loader`] says.

use crate::elf::read_at;
use crate::layout::{Layout, START_LEN};
use crate::program;
use core::ffi::{CStr, c_char};
use sd_sys::{Errno, Result, check, fd, procfs, syscall};

/// A program's file, at the number where the library looks for it. Dropped, it is closed.
///
/// # Not as on Linux
/// - `/proc/PID/exe`, `/proc/PID/auxv` and the start of the heap are those of the library's file, to others. The program itself is given its own file
///   by `/proc/self/exe`.
/// - Its name (`/proc/PID/comm`) is the last part of its first argument.
/// - Its file can be written to while it runs: no ETXTBSY.
#[derive(Debug)]
#[must_use = "the program is executed by it"]
pub struct Loader {
    number: i32,
}

/// Where the program's file is passed on. Few programs have so many.
pub fn number() -> Option<i32> {
    const HIGHEST: u64 = 1024;
    let number = fd::nofile_limit().min(HIGHEST) as i32 - 2;
    (number > 2).then_some(number)
}

impl Loader {
    /// For the program in an open file.
    ///
    /// Async-signal-safe but for the stack that reading the program takes.
    ///
    /// # Errors
    /// EPERM: a debugger is there, which looks for the program that it knows. ENOEXEC: the library could not be brought into the program. EACCES and
    /// the like: the library's file is not to be executed. EMFILE: the number is taken.
    pub fn of(program: i32, library: &CStr) -> Result<Loader> {
        if is_traced()? {
            return Err(Errno::EPERM);
        }
        fd::access(library.to_bytes_with_nul(), libc::X_OK)?;
        let mut start = [0; START_LEN];
        let len = read_at(program, &mut start, 0).unwrap_or(0);
        let is_one = start.get(..len).and_then(Layout::of).is_some();
        if !is_one || program::can_be_led(program).is_err() {
            return Err(Errno(libc::ENOEXEC));
        }
        let wanted = number().ok_or(Errno(libc::EMFILE))?;
        let number = fd::fcntl(program, libc::F_DUPFD, wanted as usize)? as i32;
        let loader = Loader { number };
        if number == wanted { Ok(loader) } else { Err(Errno(libc::EMFILE)) }
    }

    /// Executes the program; returns only when that failed.
    ///
    /// # Safety
    /// As for execve(2); the library is the one that [`Loader::of`] was told.
    pub unsafe fn execute(
        &self,
        library: &CStr,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> Errno {
        // SAFETY: by contract.
        let failed = unsafe { syscall!(libc::SYS_execve, library.as_ptr(), arguments, environment) };
        check(failed).err().unwrap_or(Errno(libc::ENOEXEC))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        fd::close(self.number);
    }
}

/// Whether somebody traces the calling thread (proc(5)). An error: that is not known.
fn is_traced() -> Result<bool> {
    let mut status = [0; 1024];
    let len = fd::read_file(b"/proc/thread-self/status\0", &mut status)?;
    let tracer = status.get(..len).and_then(|status| procfs::field(status, b"TracerPid"));
    tracer.map(|pid| pid != b"0").ok_or(Errno::EPERM)
}
