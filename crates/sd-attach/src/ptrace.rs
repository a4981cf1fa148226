//! ptrace(2), as far as it is needed. System calls only: the tracer has no thread of its own (see `tracer`).

use libc::{iovec, user_regs_struct};
use sd_sys::{Errno, Result, check, syscall};

/// `PTRACE_O_TRACESYSGOOD` marks stops at system calls.
const BOUNDARY: i32 = libc::SIGTRAP | 0x80;
/// Of a kernel's signal mask.
const MASK_LEN: usize = size_of::<u64>();

/// Why a tracee has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has executed a program.
    Exec,
    /// It begins or ends a system call.
    Boundary,
    /// It is about to get this signal.
    Signal(i32),
    /// Its process is stopped, by SIGSTOP or the like.
    Group,
    /// Something else that it goes on from, such as the end of [`Stop::Group`].
    Other,
}

impl Stop {
    /// From a status of wait4(2), "Stopped states" in ptrace(2). `None`: it has ended.
    fn of(status: i32) -> Option<Stop> {
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            _ if !libc::WIFSTOPPED(status) => None,
            libc::PTRACE_EVENT_EXEC => Some(Stop::Exec),
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => Some(Stop::Group),
            0 if signal == BOUNDARY => Some(Stop::Boundary),
            0 => Some(Stop::Signal(signal)),
            _ => Some(Stop::Other),
        }
    }
}

/// A thread that this process traces, by the id that it has at the moment: an exec gives it its process's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracee(pub(crate) i32);

impl Tracee {
    fn request(self, request: impl Into<i64>, data: usize) -> Result<usize> {
        // SAFETY: whoever asks gives, in `data`, a number or what the request reads or writes.
        check(unsafe { syscall!(libc::SYS_ptrace, request.into(), self.0, 0, data) })
    }

    /// Begins to trace it. It does not notice, and runs on when this process ends, however it does.
    pub(crate) fn seize(self) -> Result<()> {
        let options = (libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD) as usize;
        self.request(libc::PTRACE_SEIZE, options).map(drop)
    }

    /// The next stop of the only tracee; this process has no children. `None`: there is no tracee any more.
    pub(crate) fn next_stop() -> Option<(Tracee, Stop)> {
        let mut status = 0i32;
        loop {
            // SAFETY: the kernel writes the status.
            let id = unsafe { syscall!(libc::SYS_wait4, -1i64, &raw mut status, libc::__WALL, 0) };
            match check(id) {
                Ok(id) => return Some((Tracee(id as i32), Stop::of(status)?)),
                Err(Errno::EINTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// Goes on until the next stop, with a signal or 0.
    pub(crate) fn go_on(self, signal: i32) -> Result<()> {
        self.request(libc::PTRACE_CONT, signal as usize).map(drop)
    }

    /// Stays as it is, in [`Stop::Group`], as if nobody traced it.
    pub(crate) fn stay(self) -> Result<()> {
        self.request(libc::PTRACE_LISTEN, 0).map(drop)
    }

    /// Goes on to where the next system call begins or ends. All signals are blocked, so what comes in between is
    /// SIGSTOP, and what ends that. The kernel knows that the process is stopped, and stops it again when it is let
    /// go.
    pub(crate) fn go_to_boundary(self) -> Result<()> {
        let mut signal = 0;
        loop {
            self.request(libc::PTRACE_SYSCALL, signal as usize)?;
            let (_, stop) = Tracee::next_stop().ok_or(Errno::ESRCH)?;
            signal = match stop {
                Stop::Boundary => return Ok(()),
                Stop::Signal(libc::SIGSTOP) => libc::SIGSTOP,
                // SIGSYS, by a filter.
                Stop::Signal(_) => return Err(Errno::EINTR),
                _ => 0,
            };
        }
    }

    /// Is not traced any more, and runs on.
    pub(crate) fn let_go(self) {
        // It may have been killed.
        let _ = self.request(libc::PTRACE_DETACH, 0);
    }

    pub(crate) fn registers(self) -> Result<user_regs_struct> {
        // SAFETY: plain numbers.
        let mut registers: user_regs_struct = unsafe { core::mem::zeroed() };
        self.request(libc::PTRACE_GETREGS, &raw mut registers as usize).map(|_| registers)
    }

    pub(crate) fn set_registers(self, registers: &user_regs_struct) -> Result<()> {
        self.request(libc::PTRACE_SETREGS, core::ptr::from_ref(registers) as usize).map(drop)
    }

    fn mask_request(self, request: i64, mask: *mut u64) -> Result<()> {
        // SAFETY: the kernel reads or writes a mask of that length.
        check(unsafe { syscall!(libc::SYS_ptrace, request, self.0, MASK_LEN, mask) }).map(drop)
    }

    /// The signals that it blocks.
    pub(crate) fn mask(self) -> Result<u64> {
        let mut mask = 0;
        self.mask_request(libc::PTRACE_GETSIGMASK.into(), &raw mut mask).map(|()| mask)
    }

    pub(crate) fn set_mask(self, mut mask: u64) -> Result<()> {
        self.mask_request(libc::PTRACE_SETSIGMASK.into(), &raw mut mask)
    }

    /// Reads its memory, as far as there is some.
    pub(crate) fn read(self, at: u64, into: &mut [u8]) -> Result<usize> {
        let local = iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = iovec { iov_base: at as *mut _, iov_len: into.len() };
        // SAFETY: the kernel writes to the slice.
        check(unsafe {
            syscall!(libc::SYS_process_vm_readv, self.0, &raw const local, 1, &raw const remote, 1, 0)
        })
    }

    /// Writes to its memory: all of the bytes, or an error.
    pub(crate) fn write(self, at: u64, bytes: &[u8]) -> Result<()> {
        let local = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = iovec { iov_base: at as *mut _, iov_len: bytes.len() };
        // SAFETY: the kernel reads the slice; the memory is another program's.
        let done = check(unsafe {
            syscall!(libc::SYS_process_vm_writev, self.0, &raw const local, 1, &raw const remote, 1, 0)
        });
        if done? == bytes.len() { Ok(()) } else { Err(Errno::EFAULT) }
    }
}
