//! What the system calls come to that `patch` has led here.

use super::threads;
#[cfg(sd_freestanding)]
use super::{cancel, lent};
#[cfg(sd_freestanding)]
use crate::body::handlers;
use crate::body::{clone, raw};
use crate::{edge, table};
use core::ffi::c_long;
use core::sync::atomic::AtomicU8;
#[cfg(sd_freestanding)]
use core::sync::atomic::Ordering;
use sd_attach::sites::Kind;
use sd_socket::{DESCRIPTORS, DESCRIPTORS_LEN};
#[cfg(sd_freestanding)]
use sd_sys::arch::{AnyCall, CALLER_MAKES_THREAD, ENDS};
use sd_sys::arch::{CALLER_MAKES_IT, Call, NUMBERS, PASSES as PASSES_IT, PASSES_NOBODYS};
#[cfg(sd_freestanding)]
use sd_sys::thread;

sd_sys::site_entry!(entry, answer: answer, begin: threads::begin, passes: PASSES, table: DESCRIPTORS, table_len: DESCRIPTORS_LEN);

/// What an island reads: where it jumps to, or the block of a thread that has none.
pub(super) fn address(kind: Kind) -> usize {
    match kind {
        #[cfg(sd_freestanding)]
        Kind::Clone => &raw const sd_sys::freestanding::BLANK as usize,
        #[cfg(sd_freestanding)]
        Kind::Exit => threads::exit_address(),
        _ => entry as *const () as usize,
    }
}

#[cfg(sd_freestanding)]
sd_sys::any_entry!(any_entry, answer: answer_any, begin: threads::begin_any, end: threads::exit_entry, passes: PASSES_OF_ANY, table: DESCRIPTORS, table_len: DESCRIPTORS_LEN);

/// Where that begins.
#[cfg(sd_freestanding)]
pub(super) fn any_address() -> usize {
    any_entry as *const () as usize
}

/// What islands of windows share.
#[cfg(sd_freestanding)]
pub(super) fn words_of_any() -> super::moved::Words {
    [any_address(), &raw const sd_sys::freestanding::BLANK as usize, entry as *const () as usize]
}

/// As [`PASSES`]; but the library has a part in handlers of signals, in the end of a thread, and in what glibc's setuid(2) and posix_spawn(3) do.
#[cfg(sd_freestanding)]
#[expect(clippy::indexing_slicing, reason = "at compile time")]
static PASSES_OF_ANY: Passes = Passes::new({
    let mut passes = PASSING_NUMBERS;
    passes[libc::SYS_rt_sigaction as usize] = 0;
    passes[libc::SYS_exit as usize] = ENDS;
    passes[libc::SYS_exit_group as usize] = 0;
    passes[libc::SYS_tgkill as usize] = 0;
    passes[libc::SYS_arch_prctl as usize] = 0;
    passes
});

/// System calls that no hook is for, and that programs make often, or that must be made by the caller itself: these are not
/// looked at; nor are calls on descriptors that are nobody's. Others that no hook is for are only slower.
static PASSES: Passes = Passes::new(PASSING_NUMBERS);

/// What the entries read, a byte for each number.
#[repr(transparent)]
struct Passes([AtomicU8; NUMBERS]);

impl Passes {
    const fn new(bytes: [u8; NUMBERS]) -> Passes {
        // SAFETY: an atomic is a byte like any other.
        Passes(unsafe { core::mem::transmute::<[u8; NUMBERS], [AtomicU8; NUMBERS]>(bytes) })
    }
}

/// Before the program begins: these calls are looked at, too.
#[cfg(sd_freestanding)]
pub(crate) fn look_at(numbers: impl Iterator<Item = c_long>) {
    for number in numbers {
        let bytes = [&PASSES, &PASSES_OF_ANY].map(|passes| passes.0.get(number as usize));
        bytes.into_iter().flatten().for_each(|byte| byte.store(0, Ordering::Relaxed));
    }
}

#[expect(clippy::indexing_slicing, reason = "at compile time")]
const PASSING_NUMBERS: [u8; NUMBERS] = {
    let mut passes = [0; NUMBERS];
    let mut at = 0;
    while at < PASSING.len() {
        assert!(!table::has_row(PASSING[at]), "a hook answers this one");
        passes[PASSING[at] as usize] = PASSES_IT;
        at += 1;
    }
    at = 0;
    while at < PASSING_NOBODYS.len() {
        assert!(table::has_row(PASSING_NOBODYS[at]), "no hook answers this one");
        passes[PASSING_NOBODYS[at] as usize] = PASSES_NOBODYS;
        at += 1;
    }
    passes
};

/// Calls whose rows (`table`) ask for the first argument only, and do nothing where that is nobody's: `ours(fd)`, or `ours(fd; false)`.
const PASSING_NOBODYS: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_ioctl,
];

const PASSING: &[c_long] = &[
    // Threads, clocks and signals.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_kill,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_pause,
    libc::SYS_alarm,
    libc::SYS_getitimer,
    libc::SYS_clock_getres,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_arch_prctl,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_brk,
    // Who and what.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getpgrp,
    libc::SYS_getsid,
    libc::SYS_umask,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_sysinfo,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Files by name, and what a socket refuses.
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
];

/// What a call returns, as the kernel's would.
///
/// # Safety
/// `entry`'s, of a call that the program makes: its contract with the kernel is the program's.
unsafe extern "C" fn answer(call: *const Call) -> isize {
    // SAFETY: `entry` has just written it.
    let Call { number, args, .. } = unsafe { call.read() };
    // SAFETY: the program's contract with the kernel.
    edge::keeping_errno(|| unsafe {
        match number {
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork | libc::SYS_fork => forks(number, args),
            _ => raw::by_instruction(number, args),
        }
    })
}

/// A child with descriptors of its own gets memory of its own too, as that of vfork(2) does elsewhere (`body::clone`): it calls
/// here, and what it changed would be its parent's. Any other goes on where its caller says, so the caller makes it.
///
/// # Safety
/// The program's contract with the kernel.
unsafe fn forks(number: c_long, args: [usize; 6]) -> isize {
    // SAFETY: the program's contract.
    unsafe { clone::without_lending(number, args, |number, args| clone::by_number(number, args)) }
        .map_or(CALLER_MAKES_IT, |pid| raw::or_errno(pid as isize))
}

/// As [`answer`], for a program that was not made for this.
///
/// # Safety
/// `any_entry`'s, of a call that the program makes: its contract with the kernel is the program's.
#[cfg(sd_freestanding)]
unsafe extern "C" fn answer_any(call: *mut AnyCall) -> isize {
    // SAFETY: `any_entry` has just written it.
    let made = unsafe { call.read().call };
    loop {
        // SAFETY: by contract.
        let answer = unsafe { answer_once(call, made) };
        if !cancel::act(made.number, answer) {
            return answer;
        }
    }
}

/// # Safety
/// As [`answer_any`].
#[cfg(sd_freestanding)]
#[inline(always)]
unsafe fn answer_once(call: *mut AnyCall, made: Call) -> isize {
    let Call { number, args, instruction } = made;
    let [a, b, c, d, ..] = args;
    let _cancellable = cancel::Cancellable::begin(instruction);
    if number != libc::SYS_close && thread::is_cancelled() {
        return -(libc::EINTR as isize);
    }
    // SAFETY: the program's contract with the kernel.
    unsafe {
        match number {
            libc::SYS_rt_sigaction => handlers::by_number(a as i32, b as _, c as _, d),
            // The library's words would be gone. Programs that are known to do it are not led (`sd_attach::segment`).
            libc::SYS_arch_prctl if a as u32 == sd_attach::segment::ARCH_SET_GS => -(libc::EPERM as isize),
            libc::SYS_tgkill => {
                handlers::before_tgkill(c as i32);
                CALLER_MAKES_IT
            }
            libc::SYS_exit_group => {
                lent::end();
                CALLER_MAKES_IT
            }
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork | libc::SYS_fork => {
                begins(call, number, args).unwrap_or_else(|| {
                    sd_sys::libcs::set_only_thread(false);
                    CALLER_MAKES_THREAD
                })
            }
            _ => raw::by_instruction(number, args),
        }
    }
}

/// A child with descriptors of its own gets memory of its own too, as in [`forks`]; on another stack (posix_spawn(3)) it goes on where that
/// begins. `None`: the caller makes it, a thread.
///
/// Not part of [`answer_any`], whose frame is below every call.
///
/// # Safety
/// As [`answer_any`].
#[cfg(sd_freestanding)]
#[inline(never)]
unsafe fn begins(call: *mut AnyCall, number: c_long, args: [usize; 6]) -> Option<isize> {
    // SAFETY: the program's contract. The child goes on here, on its copy of this stack, and then on its own.
    unsafe {
        let Some((flags, top)) = clone::on_stack(number, args) else {
            return match forks(number, args) {
                CALLER_MAKES_IT => None,
                answer => Some(answer),
            };
        };
        if clone::lending_nothing(flags) & (libc::CLONE_VM | libc::CLONE_FILES) as usize != 0 {
            return None;
        }
        let fork = || clone::on_own_stack(number, args);
        let pid = match clone::lending_nothing(flags) == flags {
            true => fork(),
            false => lent::fork((*call).stack_pointer, fork),
        }?;
        if pid == 0 {
            (*call).stack_pointer = top;
            threads::begin_on_small_stack();
        }
        Some(raw::or_errno(pid as isize))
    }
}
