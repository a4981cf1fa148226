//! `syscall(2)`, libc's function for system calls by number: what a hook answers, it answers too.
//!
//! Programs that call by number rarely mean "past every library". libuv, and so Node, closes all its sockets with
//! `syscall(SYS_close, fd)`; unseen, such a socket would never end for its peer. What no row of the table is for goes
//! to the kernel unchanged: futex, the clone of a thread and the like. System calls that a program makes by an instruction of its own
//! are not seen here. The kernel's conventions hold, where they differ from libc's functions: a signal mask has a
//! length, and pselect6's mask stands in memory with it.

use super::{clone, confine, create, limits, network, privileges, ready, rights, vector};
use crate::edge;
use crate::table::hook;
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
        Outcome::Kernel if creates(nr) && matches!(calls::creates(), Outcome::Errno(_)) => {
            edge::fail(libc::EMFILE)
        }
        Outcome::Kernel => {
            let [a, b, c, d, e, f] = args;
            // SAFETY: the caller's contract.
            let ret = edge::finish(unsafe { sd_sys::raw::syscall6(nr, a, b, c, d, e, f) });
            match nr {
                #[cfg(target_arch = "x86_64")]
                libc::SYS_epoll_create => create::epoll(ret as c_int) as isize,
                libc::SYS_epoll_create1 => create::epoll(ret as c_int) as isize,
                _ if creates(nr) => create::made(ret as c_int) as isize,
                _ => ret,
            }
        }
    }
}

/// Whether the result is a new descriptor, which must have the lowest number that the program can see as free.
fn creates(nr: c_long) -> bool {
    const CREATORS: &[c_long] = &[
        libc::SYS_socket,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_dup,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open,
        libc::SYS_openat,
        libc::SYS_openat2,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_eventfd,
        libc::SYS_eventfd2,
        libc::SYS_timerfd_create,
        libc::SYS_memfd_create,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_inotify_init,
        libc::SYS_inotify_init1,
        libc::SYS_pidfd_open,
    ];
    CREATORS.contains(&nr)
}

/// Calls that may concern us whatever their first argument is.
///
/// # Safety
/// The caller's contract with the kernel.
unsafe fn ask(nr: c_long, args: Args) -> Outcome<isize> {
    let [a, b, c, d, e, f] = args;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's contract.
    if let Some(outcome) = unsafe { old(nr, args) } {
        return outcome;
    }
    // SAFETY: the caller's contract. The kernel looks at the lower half of a register for an int.
    unsafe {
        match nr {
            libc::SYS_socket => int(calls::socket(a as _, b as _, c as _)),
            libc::SYS_accept => int(calls::accept4(a as _, b as _, c as _, 0)),
            libc::SYS_accept4 => int(calls::accept4(a as _, b as _, c as _, d as _)),
            libc::SYS_dup => int(calls::dup(a as _)),
            libc::SYS_dup3 => int(calls::dup3(a as _, b as _, c as _)),
            libc::SYS_kcmp if is_own_files(a, b, c) => int(calls::same_file(d as _, e as _)),
            libc::SYS_close_range => int(calls::close_range(a as _, b as _, c as _)),
            libc::SYS_ppoll if is_mask(d, e) => int(ready::ppoll(a as _, b as _, c as _, d as _)),
            libc::SYS_pselect6 => match mask_of_pselect(f) {
                Some(mask) => int(ready::pselect(a as _, b as _, c as _, d as _, e as _, mask)),
                None => Outcome::Kernel,
            },
            libc::SYS_epoll_ctl if ours(a) || ours(c) => {
                int(calls::epoll_ctl(a as _, b as _, c as _, d as _))
            }
            libc::SYS_fcntl if ours(a) || create::by_fcntl(b as _) => {
                int(calls::fcntl(a as _, b as _, c as _))
            }
            libc::SYS_sendmsg if ours(a) || rights::has_control(b as _) => {
                calls::sendmsg(a as _, b as _, c as _)
            }
            libc::SYS_sendfile if ours(a) || ours(b) => calls::sendfile(a as _, b as _, c as _, d),
            libc::SYS_splice if ours(a) || ours(c) => {
                calls::splice(a as _, b as _, c as _, d as _, e, f as _)
            }
            libc::SYS_execve => Outcome::Done(hook::execve(a as _, b as _, c as _) as isize),
            libc::SYS_execveat => {
                Outcome::Done(hook::execveat(a as _, b as _, c as _, d as _, e as _) as isize)
            }
            libc::SYS_unshare => int(network::unshare(a as _)),
            libc::SYS_setns => int(network::setns(a as _, b as _)),
            libc::SYS_prctl => int(confine::prctl(a as _, [b, c, d, e])),
            libc::SYS_setrlimit => int(limits::prlimit(0, a as _, b as _, core::ptr::null_mut())),
            libc::SYS_getrlimit => int(limits::prlimit(0, a as _, core::ptr::null(), b as _)),
            libc::SYS_prlimit64 => int(limits::prlimit(a as _, b as _, c as _, d as _)),
            libc::SYS_mlockall => int(limits::mlockall(a as _)),
            libc::SYS_setuid
            | libc::SYS_setreuid
            | libc::SYS_setresuid
            | libc::SYS_setgid
            | libc::SYS_setregid
            | libc::SYS_setresgid
            | libc::SYS_capset
            | privileges::SYS_LANDLOCK_RESTRICT_SELF => {
                let make = || edge::finish(sd_sys::raw::syscall6(nr, a, b, c, d, e, f));
                int(privileges::change(nr, [a, b, c], make))
            }
            libc::SYS_seccomp => int(confine::seccomp(a as _, b as _, c)),
            libc::SYS_clone | libc::SYS_clone3 => {
                clone::by_number(nr, args).map_or(Outcome::Kernel, |pid| Outcome::Done(pid as isize))
            }
            _ if ours(a) => match data(nr, args) {
                Outcome::Kernel => control(nr, args),
                outcome => outcome,
            },
            _ => Outcome::Kernel,
        }
    }
}

/// Those that newer architectures do without.
///
/// # Safety
/// The caller's contract with the kernel.
#[cfg(target_arch = "x86_64")]
unsafe fn old(nr: c_long, args: Args) -> Option<Outcome<isize>> {
    let [a, b, c, d, e, _] = args;
    // SAFETY: the caller's contract.
    Some(unsafe {
        match nr {
            libc::SYS_dup2 => int(calls::dup2(a as _, b as _)),
            libc::SYS_poll => int(calls::poll(a as _, b as _, ready::of_ms(c as _), core::ptr::null())),
            libc::SYS_select => int(ready::select(a as _, b as _, c as _, d as _, e as _)),
            libc::SYS_fork => {
                clone::by_number(nr, args).map_or(Outcome::Kernel, |pid| Outcome::Done(pid as isize))
            }
            _ => return None,
        }
    })
}

/// Data and waiting, on a descriptor that may be ours.
///
/// # Safety
/// The caller's contract with the kernel.
unsafe fn data(nr: c_long, [a, b, c, d, e, f]: Args) -> Outcome<isize> {
    // SAFETY: the caller's contract.
    unsafe {
        match nr {
            libc::SYS_read => calls::read(a as _, b as _, c),
            libc::SYS_write => calls::write(a as _, b as _, c),
            libc::SYS_readv => calls::readv(a as _, b as _, c as _),
            libc::SYS_writev => calls::writev(a as _, b as _, c as _),
            libc::SYS_preadv2 => vector::preadv2(a as _, b as _, c as _, d as _, f as _),
            libc::SYS_pwritev2 => vector::pwritev2(a as _, b as _, c as _, d as _, f as _),
            libc::SYS_recvfrom => calls::recvfrom(a as _, b as _, c, d as _, e as _, f as _),
            libc::SYS_sendto => calls::sendto(a as _, b as _, c, d as _, e as _, f as _),
            libc::SYS_recvmsg => calls::recvmsg(a as _, b as _, c as _),
            libc::SYS_recvmmsg => int(calls::recvmmsg(a as _, b as _, c as _, d as _, e as _)),
            libc::SYS_sendmmsg => int(calls::sendmmsg(a as _, b as _, c as _, d as _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => {
                int(calls::epoll_wait(a as _, b as _, c as _, ready::of_ms(d as _), core::ptr::null()))
            }
            libc::SYS_epoll_pwait if is_mask(e, f) => {
                int(calls::epoll_wait(a as _, b as _, c as _, ready::of_ms(d as _), e as _))
            }
            libc::SYS_epoll_pwait2 if is_mask(e, f) => {
                int(ready::epoll_pwait2(a as _, b as _, c as _, d as _, e as _))
            }
            _ => Outcome::Kernel,
        }
    }
}

/// Life, options and duplicates of a descriptor that may be ours.
///
/// # Safety
/// The caller's contract with the kernel.
unsafe fn control(nr: c_long, [a, b, c, d, e, _]: Args) -> Outcome<isize> {
    // SAFETY: the caller's contract.
    int(unsafe {
        match nr {
            libc::SYS_close => calls::close(a as _),
            libc::SYS_shutdown => calls::shutdown(a as _, b as _),
            libc::SYS_bind => calls::bind(a as _, b as _, c as _),
            libc::SYS_listen => calls::listen(a as _, b as _),
            libc::SYS_connect => calls::connect(a as _, b as _, c as _),
            libc::SYS_getsockopt => calls::getsockopt(a as _, b as _, c as _, d as _, e as _),
            libc::SYS_setsockopt => calls::setsockopt(a as _, b as _, c as _, d as _, e as _),
            libc::SYS_getsockname => calls::getsockname(a as _, b as _, c as _),
            libc::SYS_getpeername => calls::getpeername(a as _, b as _, c as _),
            libc::SYS_ioctl => calls::ioctl(a as _, b as _, c as _),
            _ => Outcome::Kernel,
        }
    })
}

/// kcmp(2) of two files of this process.
fn is_own_files(first_pid: usize, second_pid: usize, kind: usize) -> bool {
    const KCMP_FILE: c_int = 0;
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    kind as c_int == KCMP_FILE && [first_pid, second_pid].iter().all(|pid| *pid as c_int == own)
}

fn ours(register: usize) -> bool {
    calls::is_ours(register as c_int)
}

fn int(outcome: Outcome<c_int>) -> Outcome<isize> {
    match outcome {
        Outcome::Done(value) => Outcome::Done(value as isize),
        Outcome::Errno(errno) => Outcome::Errno(errno),
        Outcome::Kernel => Outcome::Kernel,
    }
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
