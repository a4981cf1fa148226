//! `syscall(2)`, libc's function for system calls by number: what a hook answers, it answers too. Rows of the table whose
//! system call has the function's own arguments are asked as they stand (`table::by_number`); here is the rest.
//!
//! Programs that call by number rarely mean "past every library". libuv, and so Node, closes all its sockets with
//! `syscall(SYS_close, fd)`; unseen, such a socket would never end for its peer. What no row of the table is for goes
//! to the kernel unchanged: futex, the clone of a thread and the like. Of system calls that a program makes by an instruction of its own
//! those come here that `sites` has led here. The kernel's conventions hold, where they differ from libc's functions: a signal mask has a
//! length, and pselect6's mask stands in memory with it.

use super::{clone, confine, create, privileges, ready, vector};
use crate::table::hook;
use crate::{edge, table};
use core::ffi::{c_int, c_long};
use sd_socket::{Outcome, calls};

type Args = [usize; 6];

/// Bytes of the kernel's sigset_t.
const MASK_LEN: usize = 8;

/// # Safety
/// The caller's contract with the kernel about this system call.
pub(crate) unsafe fn syscall(nr: c_long, args: Args) -> isize {
    // SAFETY: the caller's contract.
    match unsafe { ask(nr, args) } {
        Outcome::Done(value) => value,
        Outcome::Errno(errno) => edge::fail(errno),
        Outcome::Kernel => {
            let [a, b, c, d, e, f] = args;
            // SAFETY: the caller's contract.
            unsafe {
                let ret = edge::finish(sd_sys::raw::program_call6(nr, a, b, c, d, e, f));
                made(nr, args, ret)
            }
        }
    }
}

/// As the instruction answers: -errno for a failure.
///
/// # Safety
/// The caller's contract with the kernel about this system call.
pub(crate) unsafe fn by_instruction(nr: c_long, args: Args) -> isize {
    #[cfg(sd_freestanding)]
    if crate::load::is_loaded()
        // SAFETY: the caller's contract.
        && let Some(answer) = unsafe { by_own_file(nr, &args) }
    {
        return answer;
    }
    // SAFETY: the caller's contract.
    or_errno(unsafe { syscall(nr, args) })
}

/// The answer to a call that names the program's own file, of a program that the library has loaded. Not part of [`by_instruction`], whose frame is below
/// every call.
///
/// # Safety
/// The caller's contract with the kernel about this system call.
#[cfg(sd_freestanding)]
#[inline(never)]
unsafe fn by_own_file(nr: c_long, args: &Args) -> Option<isize> {
    let led = crate::load::led_to_own_file(nr, args)?;
    // SAFETY: the caller's contract.
    Some(or_errno(unsafe { syscall(nr, led) }))
}

const FAILED: isize = -1;

/// What libc's function returns, as the instruction does.
pub(crate) fn or_errno(value: isize) -> isize {
    if value == FAILED { -(edge::last_errno().0 as isize) } else { value }
}

/// What there is no row for, or what by number is not what the function of that name does; then the table.
///
/// # Safety
/// The caller's contract with the kernel.
unsafe fn ask(nr: c_long, args: Args) -> Outcome<isize> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's contract. The kernel looks at the lower half of a register for an int.
    unsafe {
        match nr {
            libc::SYS_kcmp if is_own_files(a, b, c) => int(calls::same_file(d as _, e as _)),
            libc::SYS_ppoll if is_mask(d, e) => int(ready::ppoll_by_number(a as _, b as _, c as _, d as _)),
            libc::SYS_pselect6 => match mask_of_pselect(f) {
                Some(mask) => int(ready::pselect_by_number(a as _, b as _, c as _, d as _, e as _, mask)),
                None => Outcome::Kernel,
            },
            libc::SYS_epoll_pwait if ours(a) && is_mask(e, f) => {
                int(calls::epoll_wait(a as _, b as _, c as _, ready::of_ms(d as _), e as _))
            }
            libc::SYS_epoll_pwait2 if ours(a) && is_mask(e, f) => {
                int(ready::epoll_pwait2(a as _, b as _, c as _, d as _, e as _))
            }
            libc::SYS_preadv2 if ours(a) => vector::preadv2(a as _, b as _, c as _, d as _, f as _),
            libc::SYS_pwritev2 if ours(a) => vector::pwritev2(a as _, b as _, c as _, d as _, f as _),
            libc::SYS_execve => Outcome::Done(hook::execve(a as _, b as _, c as _) as isize),
            libc::SYS_execveat => {
                Outcome::Done(hook::execveat(a as _, b as _, c as _, d as _, e as _) as isize)
            }
            // Of one thread, as libc's functions are not.
            libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_capset
            | privileges::SYS_LANDLOCK_RESTRICT_SELF => {
                let make = || edge::finish(sd_sys::raw::program_call6(nr, a, b, c, d, e, f));
                int(privileges::change(nr, [a, b, c], make))
            }
            libc::SYS_seccomp => int(confine::seccomp(a as _, b as _, c)),
            libc::SYS_clone | libc::SYS_clone3 => forks(nr, args),
            libc::SYS_openat2 => int(calls::creates()),
            _ => match old(nr, args) {
                Outcome::Kernel => table::by_number(nr, args),
                outcome => outcome,
            },
        }
    }
}

/// Those that newer architectures do without, and that are no row's.
///
/// # Safety
/// The caller's contract with the kernel.
#[cfg(target_arch = "x86_64")]
unsafe fn old(nr: c_long, args: Args) -> Outcome<isize> {
    let [a, b, c, d, ..] = args;
    // SAFETY: the caller's contract.
    unsafe {
        match nr {
            libc::SYS_epoll_wait if ours(a) => {
                int(calls::epoll_wait(a as _, b as _, c as _, ready::of_ms(d as _), core::ptr::null()))
            }
            libc::SYS_fork => forks(nr, args),
            _ if OLD_CREATORS.contains(&nr) => int(calls::creates()),
            _ => Outcome::Kernel,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn old(_: c_long, _: Args) -> Outcome<isize> {
    Outcome::Kernel
}

#[cfg(target_arch = "x86_64")]
const OLD_CREATORS: &[c_long] = &[libc::SYS_open, libc::SYS_creat, libc::SYS_eventfd, libc::SYS_inotify_init];

/// The result of the kernel's: new descriptors must have the lowest numbers that the program can see as free, and connections
/// that may move to shared memory count the calls that are under way.
///
/// # Safety
/// The caller's contract with the kernel.
unsafe fn made(nr: c_long, args: Args, ret: isize) -> isize {
    let [a, ..] = args;
    // SAFETY: the caller's contract.
    unsafe {
        match nr {
            libc::SYS_ppoll => calls::polled(ret as c_int) as isize,
            libc::SYS_preadv2 | libc::SYS_pwritev2 if ours(a) => calls::moved(a as c_int, ret),
            libc::SYS_openat2 => create::made(ret as c_int) as isize,
            libc::SYS_signalfd4 => create::by_signalfd(a as _, ret as c_int) as isize,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_signalfd => create::by_signalfd(a as _, ret as c_int) as isize,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_pipe => {
                let pair = a as *mut c_int;
                create::pair(pair, pair.wrapping_add(1), ret as c_int) as isize
            }
            #[cfg(target_arch = "x86_64")]
            _ if OLD_CREATORS.contains(&nr) => create::made(ret as c_int) as isize,
            _ => table::made_by(nr, args, ret),
        }
    }
}

/// # Safety
/// The caller's contract with the kernel.
unsafe fn forks(nr: c_long, args: Args) -> Outcome<isize> {
    // SAFETY: the caller's contract.
    unsafe { clone::by_number(nr, args) }.map_or(Outcome::Kernel, |pid| Outcome::Done(pid as isize))
}

/// kcmp(2) of two files of this process.
fn is_own_files(first_pid: usize, second_pid: usize, kind: usize) -> bool {
    const KCMP_FILE: c_int = 0;
    let own = sd_sys::fd::getpid();
    kind as c_int == KCMP_FILE && [first_pid, second_pid].iter().all(|pid| *pid as c_int == own)
}

fn ours(register: usize) -> bool {
    calls::is_ours(register as c_int)
}

fn int(outcome: Outcome<c_int>) -> Outcome<isize> {
    edge::by_number(outcome, |value| value as isize)
}

/// A mask of the right length, or none. For another length the kernel has the errno.
fn is_mask(mask: usize, len: usize) -> bool {
    mask == 0 || len == MASK_LEN
}

/// The mask among pselect6's arguments; null if there is none, `None` if the kernel would not take it.
///
/// # Safety
/// The caller's contract with the kernel: null, or the addresses of a mask and its length.
unsafe fn mask_of_pselect(pair: usize) -> Option<*const libc::sigset_t> {
    if pair == 0 {
        return Some(core::ptr::null());
    }
    if !sd_sys::user::seems_readable(pair as *const usize, 2 * size_of::<usize>()) {
        return None;
    }
    // SAFETY: by contract.
    let [mask, len] = unsafe { (pair as *const [usize; 2]).read_unaligned() };
    is_mask(mask, len).then_some(mask as *const libc::sigset_t)
}
