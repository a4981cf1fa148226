//! `sd bridge-helper`, hidden: a process that the monitor starts to bridge a connection of a process that may start none
//! (`sd_socket::bridge::helper`). Standard input is a socket to that process, standard output one to the monitor, standard error a
//! pidfd of that process, or nothing.
//!
//! It ends up with the user of that process, without groups, capabilities, or any call that reaches a file, another process
//! or an address, and nobody of that user can trace it. Only then it reads.

use std::ffi::{OsStr, OsString};

/// As whom, when this is a helper's command line.
pub(crate) fn user() -> Option<OsString> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == "bridge-helper").then(|| arguments.next().unwrap_or_default())
}

/// Whom root's monitor lends no group of its own.
const NOGROUP: u32 = 65534;

/// Serves one connection.
pub(crate) fn main(user: &OsStr) {
    let Some(user) = user.to_str().and_then(|user| user.parse().ok()) else { return };
    if enter_pid_namespace() && leave_the_monitor() && become_user(user) && confine() {
        sd_socket::bridge::helper::serve(libc::STDIN_FILENO, libc::STDOUT_FILENO);
    }
}

/// Standard error is a pidfd of the client's: what is forked from now on is in its PID namespace, where the monitor may enter that.
/// Who shares a connection asks by number whether the others live. True: nobody's pidfd is left open.
fn enter_pid_namespace() -> bool {
    // SAFETY: a C string, and numbers.
    unsafe {
        libc::setns(libc::STDERR_FILENO, libc::CLONE_NEWPID);
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        libc::dup2(nothing, libc::STDERR_FILENO) >= 0
    }
}

/// The monitor waits for the process that it has started, and for no other. What ends the monitor's group leaves this alone. In
/// another PID namespace it belongs to the first process there, whose end would otherwise wait for somebody outside.
pub(crate) fn leave_the_monitor() -> bool {
    let inode =
        |link: &str| std::fs::metadata(link).map(|found| std::os::unix::fs::MetadataExt::ino(&found)).ok();
    let is_elsewhere = inode("/proc/self/ns/pid") != inode("/proc/self/ns/pid_for_children");
    go_on_in_child(is_elsewhere) && (!is_elsewhere || go_on_in_child(false)) && {
        // SAFETY: no pointers.
        unsafe { libc::setsid() };
        true
    }
}

/// Forks: true in the child, false where there is none. This process ends, perhaps after its child.
fn go_on_in_child(waits: bool) -> bool {
    // SAFETY: this process has one thread, and ends at once.
    unsafe {
        match libc::fork() {
            -1 => false,
            0 => true,
            child => {
                if waits {
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
                libc::_exit(0)
            }
        }
    }
}

fn become_user(user: u32) -> bool {
    // SAFETY: no pointers but an empty list of groups.
    unsafe {
        let is_root = libc::geteuid() == 0;
        let is_done = !is_root
            || libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(NOGROUP, NOGROUP, NOGROUP) == 0
                && libc::setresuid(user, user, user) == 0;
        // Exec has made it traceable by its user, who may be confined where it is not.
        is_done && libc::geteuid() == user && libc::prctl(libc::PR_SET_DUMPABLE, 0) == 0
    }
}

fn confine() -> bool {
    let header = [0x2008_0522u32, 0];
    let none = [0u32; 6];
    let limit = |resource, value| {
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        // SAFETY: the kernel reads one limit.
        unsafe { libc::setrlimit(resource, &raw const limit) == 0 }
    };
    // SAFETY: the kernel reads the header and the sets.
    let is_bare = unsafe {
        libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) == 0
            && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    };
    // A name for people.
    // SAFETY: a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"sd-bridge".as_ptr()) };
    is_bare && limit(libc::RLIMIT_NPROC, 0) && limit(libc::RLIMIT_CORE, 0) && filter()
}

/// What a bridge calls. None of it opens a file, makes a process, or names another one.
const CALLS: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_memfd_create,
    libc::SYS_eventfd2,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_socket,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getrlimit,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
/// Those that x86-64 alone has: elsewhere libc makes the newer ones.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[libc::SYS_dup2, libc::SYS_poll, libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64 (linux/audit.h).
const ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

/// Everything else fails with EPERM.
fn filter() -> bool {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![
        op(LOAD, 0, 0, 4),
        op(IS, 1, 0, ARCH),
        op(ANSWER, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        op(LOAD, 0, 0, 0),
    ];
    for call in CALLS.iter().chain(OLDER) {
        program.extend([op(IS, 0, 1, *call as u32), op(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW)]);
    }
    program.push(op(ANSWER, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads the program.
    unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) == 0 }
}
