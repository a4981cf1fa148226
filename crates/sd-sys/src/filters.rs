//! Seccomp filters that were there before the program: those of a service manager, a container, a sandbox.
//!
//! Such a filter is written for the calls that the program makes, and may kill for those that the library makes beside
//! them. What it does nobody tells, so a child tries: a copy of the process, which makes each call of the library's
//! with arguments that change nothing. That is done before the first of these calls: a program that makes no socket is not asked about. If the child is killed, the library leaves everything in this process to libc. A call that is only
//! refused (EPERM, ENOSYS) fails, and the library does without. A filter that the program itself installs later
//! is another matter: see `confine`.
//!
//! # Not guaranteed
//! Under a filter that kills for clone(2) or wait4(2) the question itself is the end.

use crate::arch::syscall6;
use crate::futex::SYS_FUTEX_WAITV;
use crate::scratch::Scratch;
use crate::{Errno, check, fd, procfs};
use core::sync::atomic::{AtomicU8, Ordering};

/// Any address that nothing is mapped at.
const NOWHERE: usize = 8;
const NO_FD: usize = usize::MAX;

/// What the library calls for its own sake, with arguments for which nothing happens.
const CALLS: &[(i64, [usize; 6])] = {
    const NONE: [usize; 6] = [0; 6];
    const BAD_FD: [usize; 6] = [NO_FD, 0, 0, 0, 0, 0];
    const BAD_FLAGS: [usize; 6] = [0, NO_FD, 0, 0, 0, 0];
    const NO_NAME: [usize; 6] = [NOWHERE, 0, 0, 0, 0, 0];
    const NO_NAME_THERE: [usize; 6] = [NO_FD, NOWHERE, 0, 0, 0, 0];
    const SHARED: usize = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize;
    const RESERVED: usize = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN) as usize;
    const QUERY: [usize; 6] = [libc::SIG_BLOCK as usize, 0, 0, 8, 0, 0];
    &[
        // First, so that whoever is killed leaves no core.
        (libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 0, 0, 0, 0, 0]),
        (libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]),
        (libc::SYS_getpid, NONE),
        (libc::SYS_gettid, NONE),
        (libc::SYS_getppid, NONE),
        (libc::SYS_getpgid, NONE),
        (libc::SYS_getuid, NONE),
        (libc::SYS_geteuid, NONE),
        (libc::SYS_getgid, NONE),
        (libc::SYS_getegid, NONE),
        (libc::SYS_getresuid, NONE),
        (libc::SYS_read, BAD_FD),
        (libc::SYS_write, BAD_FD),
        (libc::SYS_pread64, BAD_FD),
        (libc::SYS_preadv2, BAD_FD),
        (libc::SYS_close, BAD_FD),
        (libc::SYS_close_range, [NO_FD, NO_FD, NO_FD, 0, 0, 0]),
        (libc::SYS_fstat, BAD_FD),
        (libc::SYS_newfstatat, NO_NAME_THERE),
        (libc::SYS_statfs, NO_NAME),
        (libc::SYS_faccessat, NO_NAME_THERE),
        (libc::SYS_faccessat2, NO_NAME_THERE),
        (libc::SYS_readlinkat, NO_NAME_THERE),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, NO_NAME),
        (libc::SYS_openat, NO_NAME_THERE),
        (libc::SYS_flock, BAD_FD),
        (libc::SYS_lseek, BAD_FD),
        (libc::SYS_ftruncate, BAD_FD),
        (libc::SYS_fgetxattr, BAD_FD),
        (libc::SYS_fcntl, BAD_FD),
        (libc::SYS_ioctl, BAD_FD),
        (libc::SYS_dup, BAD_FD),
        (libc::SYS_dup3, [NO_FD, NO_FD, 0, 0, 0, 0]),
        (libc::SYS_pipe2, BAD_FLAGS),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, NONE),
        (libc::SYS_ppoll, [0, 0, NOWHERE, 0, 0, 0]),
        (libc::SYS_epoll_create1, BAD_FD),
        (libc::SYS_epoll_ctl, BAD_FD),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_epoll_wait, BAD_FD),
        (libc::SYS_epoll_pwait, BAD_FD),
        (libc::SYS_epoll_pwait2, BAD_FD),
        (libc::SYS_eventfd2, BAD_FLAGS),
        (libc::SYS_memfd_create, [NOWHERE, NO_FD, 0, 0, 0, 0]),
        (libc::SYS_mmap, [0, 4096, 0, SHARED, NO_FD, 0]),
        (libc::SYS_mmap, [0, 4096, libc::PROT_READ as usize | libc::PROT_WRITE as usize, RESERVED, NO_FD, 0]),
        (libc::SYS_munmap, NONE),
        (libc::SYS_mremap, NONE),
        (libc::SYS_madvise, NONE),
        (libc::SYS_msync, NONE),
        (libc::SYS_futex, [NOWHERE, libc::FUTEX_WAIT as usize, 0, 0, 0, 0]),
        (libc::SYS_futex, [NOWHERE, libc::FUTEX_WAKE as usize, 0, 0, 0, 0]),
        (libc::SYS_futex, [NOWHERE, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize, 0, 0, 0, 0]),
        (SYS_FUTEX_WAITV, [NOWHERE, 0, 0, 0, 0, 0]),
        (libc::SYS_io_setup, NONE),
        (libc::SYS_io_submit, NONE),
        (libc::SYS_io_destroy, NONE),
        (libc::SYS_membarrier, [1 << 2, 0, 0, 0, 0, 0]),
        (libc::SYS_sched_yield, NONE),
        (libc::SYS_sched_getaffinity, NONE),
        (libc::SYS_nanosleep, NO_NAME),
        (libc::SYS_getrandom, NONE),
        (libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, 0, 0, 0, 0]),
        (libc::SYS_capget, NONE),
        (libc::SYS_rt_sigaction, NONE),
        (libc::SYS_rt_sigprocmask, QUERY),
        (libc::SYS_kill, [0, 0, 0, 0, 0, 0]),
        (libc::SYS_tgkill, [NO_FD, NO_FD, 0, 0, 0, 0]),
        (libc::SYS_rt_tgsigqueueinfo, [NO_FD, NO_FD, 0, NOWHERE, 0, 0]),
        (libc::SYS_pidfd_open, BAD_FD),
        (libc::SYS_wait4, [NO_FD, 0, libc::WNOHANG as usize, 0, 0, 0]),
        (libc::SYS_setsid, NONE),
        (libc::SYS_setns, BAD_FD),
        (libc::SYS_setfsuid, BAD_FD),
        (libc::SYS_socket, [libc::AF_UNIX as usize, NO_FD, 0, 0, 0, 0]),
        (libc::SYS_socket, [libc::AF_INET as usize, libc::SOCK_STREAM as usize, NO_FD, 0, 0, 0]),
        (libc::SYS_socket, [libc::AF_NETLINK as usize, NO_FD, 0, 0, 0, 0]),
        (libc::SYS_socketpair, [libc::AF_UNIX as usize, NO_FD, 0, 0, 0, 0]),
        (libc::SYS_bind, BAD_FD),
        (libc::SYS_listen, BAD_FD),
        (libc::SYS_accept4, BAD_FD),
        (libc::SYS_connect, BAD_FD),
        (libc::SYS_shutdown, BAD_FD),
        (libc::SYS_getsockname, BAD_FD),
        (libc::SYS_getpeername, BAD_FD),
        (libc::SYS_getsockopt, BAD_FD),
        (libc::SYS_setsockopt, BAD_FD),
        (libc::SYS_sendto, BAD_FD),
        (libc::SYS_recvfrom, BAD_FD),
        (libc::SYS_sendmsg, BAD_FD),
        (libc::SYS_recvmsg, BAD_FD),
    ]
};

/// Nobody has asked, the library can work, it cannot.
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether the library can work in this program: no filter that was there before kills for its calls. To be asked before the first
/// of them, and before a filter of the program's own; whoever asks first pays for it.
#[inline]
pub fn let_us_work() -> bool {
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => ask(),
        answer => answer == YES,
    }
}

/// The same, for who has borrowed his memory: nothing is noted.
pub fn would_let_us_work() -> bool {
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => are_there().is_some_and(|are_there| !are_there || child_survives()),
        answer => answer == YES,
    }
}

/// The image before this one, of the same process, has found out that it can.
pub fn was_let_work() {
    ANSWER.store(YES, Ordering::Relaxed);
}

#[cold]
#[inline(never)]
fn ask() -> bool {
    let Some(are_there) = are_there() else { return false };
    let answer = !are_there || child_survives();
    ANSWER.store(if answer { YES } else { NO }, Ordering::Relaxed);
    answer
}

/// By the calls that have loaded the program, so by some that are allowed. Where /proc is not to be had prctl(2)
/// tells, which might not be allowed. `None`: not to be found out now.
fn are_there() -> Option<bool> {
    let mut text = Scratch::take().ok()?;
    // SAFETY: a C string.
    let file = check(unsafe {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        syscall6(
            libc::SYS_openat,
            libc::AT_FDCWD as usize,
            c"/proc/self/status".as_ptr() as usize,
            flags,
            0,
            0,
            0,
        )
    });
    match file {
        Ok(file) => {
            let file = fd::Owned::new(file as i32);
            Some(
                fd::read(file.raw(), &mut text)
                    .is_ok_and(|len| text.get(..len).is_some_and(tells_of_filters)),
            )
        }
        Err(Errno::EMFILE) => None,
        // SAFETY: no pointers.
        Err(_) => Some(
            check(unsafe { syscall6(libc::SYS_prctl, libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0) })
                .is_ok_and(|mode| mode != 0),
        ),
    }
}

fn tells_of_filters(status: &[u8]) -> bool {
    procfs::field(status, b"Seccomp").is_some_and(|mode| mode != b"0")
}

fn child_survives() -> bool {
    // SAFETY: a plain copy of the process, whose end sends no signal; the child makes the calls of the list, which change nothing
    // of its parent's, and ends. The parent waits for it.
    unsafe {
        let Ok(pid) = check(syscall6(libc::SYS_clone, 0, 0, 0, 0, 0, 0)) else { return false };
        if pid == 0 {
            for &(nr, [a, b, c, d, e, f]) in CALLS {
                syscall6(nr, a, b, c, d, e, f);
            }
            loop {
                syscall6(libc::SYS_exit_group, 0, 0, 0, 0, 0, 0);
            }
        }
        let mut status = -1i32;
        let wait = || {
            check(syscall6(libc::SYS_wait4, pid, (&raw mut status) as usize, libc::__WALL as usize, 0, 0, 0))
        };
        let waited = core::iter::repeat_with(wait).find(|done| *done != Err(crate::Errno::EINTR));
        waited == Some(Ok(pid)) && status == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_filter_the_child_survives() {
        assert!(child_survives());
    }

    #[test]
    fn the_kernel_tells_whether_there_are_filters() {
        assert!(!tells_of_filters(b"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
        assert!(tells_of_filters(b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!tells_of_filters(b"Name:\tx\nSeccomp:\t") && !tells_of_filters(b""));
    }
}
