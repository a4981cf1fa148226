//! ptrace(2), as far as it is needed. System calls only: the tracer has no thread of its own (see `tracer`).

use libc::{iovec, user_regs_struct};
use sd_sys::{Errno, Result, check, syscall};

/// Why a tracee has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has executed a program.
    Exec,
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
        self.request_at(request, 0, data)
    }

    fn request_at(self, request: impl Into<i64>, at: u64, data: usize) -> Result<usize> {
        // SAFETY: whoever asks gives, in `data`, a number or what the request reads or writes; the place is the tracee's.
        check(unsafe { syscall!(libc::SYS_ptrace, request.into(), self.0, at, data) })
    }

    /// Begins to trace it. It does not notice, and runs on when this process ends, however it does.
    pub(crate) fn seize(self) -> Result<()> {
        self.request(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACEEXEC as usize).map(drop)
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

    /// Writes instructions to its text: what others have of that stays as it is. Zeros follow to a multiple of eight.
    pub(crate) fn write_text(self, at: u64, bytes: &[u8]) -> Result<()> {
        let words = bytes.chunks(size_of::<usize>());
        (at..).step_by(size_of::<usize>()).zip(words).try_for_each(|(at, bytes)| {
            let mut word = [0; size_of::<usize>()];
            word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            self.request_at(libc::PTRACE_POKEDATA, at, usize::from_ne_bytes(word)).map(drop)
        })
    }
}
