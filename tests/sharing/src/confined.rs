//! A program that is executed under a seccomp filter which nobody has told the library of, as a service manager installs it, or
//! in a cgroup.

use std::ffi::CString;
use std::io;

/// What a small server or client calls, without the library.
const SMALL: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_clone,
    libc::SYS_wait4,
    libc::SYS_brk,
    libc::SYS_arch_prctl,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_access,
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prlimit64,
    libc::SYS_getrandom,
    libc::SYS_exit_group,
    libc::SYS_poll,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_clock_nanosleep,
    libc::SYS_madvise,
    libc::SYS_readlink,
    libc::SYS_futex,
];

/// What systemd's @system-service leaves out.
const NOT_OF_SERVICES: &[(i64, i64)] = &[
    (27, 27),
    (101, 101),
    (103, 103),
    (134, 134),
    (136, 136),
    (139, 139),
    (153, 156),
    (159, 159),
    (161, 161),
    (163, 185),
    (212, 212),
    (227, 227),
    (236, 236),
    (246, 246),
    (298, 298),
    (300, 301),
    (304, 305),
    (313, 313),
    (317, 317),
    (320, 321),
    (329, 331),
    (335, 423),
    (428, 433),
    (438, 438),
    (442, 448),
    (451, 511),
];

/// What a filter does with a call that it does not let pass.
const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// `found` for the calls of a list, `other` for the rest.
fn list(calls: &[i64], found: u32, other: u32) -> Vec<libc::sock_filter> {
    let found = |nr: &i64| [op(EQUAL, 0, 1, *nr as u32), op(RETURN, 0, 0, found)];
    let calls = calls.iter().flat_map(found);
    std::iter::once(op(LOAD, 0, 0, 0)).chain(calls).chain([op(RETURN, 0, 0, other)]).collect()
}

/// A call whose argument has a bit, or is a number.
fn argument(nr: i64, at: u32, (test, value): (u32, u32), found: u32) -> Vec<libc::sock_filter> {
    vec![
        op(LOAD, 0, 0, 0),
        op(EQUAL, 0, 3, nr as u32),
        op(LOAD, 0, 0, 16 + 8 * at),
        op(test, 0, 1, value),
        op(RETURN, 0, 0, found),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn filter(mode: &str) -> Option<Vec<libc::sock_filter>> {
    let (action, what) = mode.split_once('-')?;
    let verdict = if action == "eperm" { EPERM } else { KILL };
    let allow = libc::SECCOMP_RET_ALLOW;
    Some(match what {
        "small" => list(SMALL, allow, verdict),
        "system-service" => {
            let calls: Vec<i64> = NOT_OF_SERVICES.iter().flat_map(|(first, last)| *first..=*last).collect();
            list(&calls, verdict, allow)
        }
        "shared" => argument(libc::SYS_mmap, 3, (BIT, libc::MAP_SHARED as u32), verdict),
        "unix" => argument(libc::SYS_socket, 0, (EQUAL, libc::AF_UNIX as u32), verdict),
        numbers => {
            let (numbers, found, other) = match numbers.strip_prefix("all-but-") {
                Some(numbers) => (numbers, allow, verdict),
                None => (numbers, verdict, allow),
            };
            let calls: Vec<i64> = numbers.split(',').filter_map(|word| word.parse().ok()).collect();
            list(&calls, found, other)
        }
    })
}

/// Makes a system call by an instruction of its own, which no library sees.
pub(crate) fn unseen(nr: i64, a: usize, b: usize, c: usize) -> isize {
    let result: isize;
    // SAFETY: a system call; it clobbers two registers.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") nr as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") 0, in("r8") 0, lateout("rcx") _, lateout("r11") _);
    }
    result
}

/// Executes itself with other arguments under a filter, say `eperm-small`.
/// With `group-FILE` it joins a cgroup instead.
pub(crate) fn execute(mode: &str, args: &[&str]) -> io::Result<()> {
    if let Some(processes) = mode.strip_prefix("group-") {
        std::fs::write(processes, "0")?;
        return become_role(args);
    }
    let mut program = filter(mode).ok_or_else(|| io::Error::other("no such filter"))?;
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let done = unseen(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0)
        | unseen(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER as usize, 0, (&raw const program) as usize);
    if done != 0 {
        return Err(io::Error::other(format!("the filter: {done}")));
    }
    become_role(args)
}

fn become_role(args: &[&str]) -> io::Result<()> {
    let own = CString::new(std::env::current_exe()?.into_os_string().into_encoded_bytes())?;
    let args: Vec<CString> = args.iter().map(|arg| CString::new(*arg)).collect::<Result<_, _>>()?;
    let argv: Vec<_> =
        std::iter::once(&own).chain(&args).map(|arg| arg.as_ptr()).chain([std::ptr::null()]).collect();
    // By an instruction as well: only in the image that comes the filter meets the library.
    // SAFETY: the C library's own variable.
    let environment = unsafe { environ };
    let error = unseen(libc::SYS_execve, own.as_ptr() as usize, argv.as_ptr() as usize, environment as usize);
    Err(io::Error::from_raw_os_error(-error as i32))
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}
