//! Sections: stretches of this library's code that a handler of a signal must not come into the middle of.
//!
//! A system call runs as a whole before a handler of its thread sees anything; so must what stands in for one. A thread
//! counts the sections that it is in. A handler that is about to run inside one is put off: its signal is queued again,
//! all others are blocked, and the end of the outermost section lets it come. `sd-preload` puts [`hold`] before the
//! handlers of the program. In the common case a section costs an increment, a decrement and a branch.

use crate::{confine, fd, syscall};
use core::arch::{asm, global_asm};
use core::ffi::c_int;
use libc::{siginfo_t, ucontext_t};

// `sd_section`: how many sections the thread is in, and PENDING. `sd_section_mask`: the signal mask to go back to when
// PENDING. `sd_handled`: bit n when a handler of signal n ran. Initial-exec, so that reading them is no call.
global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".hidden sd_section",
    ".globl sd_section",
    ".type sd_section,@object",
    ".balign 16",
    "sd_section: .zero 4",
    ".size sd_section, 4",
    ".hidden sd_section_mask",
    ".globl sd_section_mask",
    ".type sd_section_mask,@object",
    ".balign 8",
    "sd_section_mask: .zero 8",
    ".size sd_section_mask, 8",
    ".hidden sd_handled",
    ".globl sd_handled",
    ".type sd_handled,@object",
    ".balign 16",
    "sd_handled: .zero 16",
    ".size sd_handled, 16",
    ".popsection",
);

/// A signal was put off. The highest bit, so that the decrement tells by its sign.
const PENDING: u32 = 1 << 31;

/// A section of the calling thread, until dropped.
#[derive(Debug)]
pub struct Section(());

impl Section {
    /// Comes before what a handler must not see half done.
    #[inline(always)]
    pub fn enter() -> Section {
        // SAFETY: the thread's own word, by one instruction, which a handler cannot come into.
        unsafe {
            asm!("mov {at}, qword ptr [rip + sd_section@GOTTPOFF]", "inc dword ptr fs:[{at}]",
                at = out(reg) _, options(nostack));
        }
        Section(())
    }

    /// Takes up a section that was forgotten.
    pub(crate) fn resume() -> Section {
        Section(())
    }
}

impl Drop for Section {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe {
            asm!("mov rax, qword ptr [rip + sd_section@GOTTPOFF]", "dec dword ptr fs:[rax]", "js {due}",
                out("rax") _, due = label { let_signals_come() }, options(nostack));
        }
    }
}

/// glibc's own flag (2.32): no second thread exists. glibc clears it before a second thread starts.
#[inline(always)]
pub fn is_only_thread() -> bool {
    unsafe extern "C" {
        static __libc_single_threaded: core::ffi::c_char;
    }
    // SAFETY: a plain byte that glibc writes only while a single thread exists.
    unsafe { core::ptr::read_volatile(&raw const __libc_single_threaded) != 0 }
}

/// Whether the calling thread is in a section.
pub fn is_inside() -> bool {
    // SAFETY: the thread's own word.
    unsafe { word().read_volatile() & !PENDING != 0 }
}

fn word() -> *mut u32 {
    let at: *mut u32;
    // SAFETY: reads the thread pointer and the word's offset from it.
    unsafe {
        asm!("mov {at}, qword ptr fs:[0]", "add {at}, qword ptr [rip + sd_section@GOTTPOFF]",
            at = out(reg) at, options(pure, nomem, nostack));
    }
    at
}

fn handled() -> *mut u128 {
    let at: *mut u128;
    // SAFETY: as above.
    unsafe {
        asm!("mov {at}, qword ptr fs:[0]", "add {at}, qword ptr [rip + sd_handled@GOTTPOFF]",
            at = out(reg) at, options(pure, nomem, nostack));
    }
    at
}

/// Tells which handlers of the program run on this thread while it exists.
#[derive(Debug)]
pub struct Watch {
    /// What is still to be told to an outer one, whose call the handler interrupted that made this.
    before: u128,
}

impl Watch {
    /// From now on.
    #[inline]
    pub fn start() -> Watch {
        let at = handled();
        // SAFETY: the thread's own word; a bit that a handler sets in between is one from before.
        unsafe {
            let before = at.read_volatile();
            if before != 0 {
                at.write_volatile(0);
            }
            Watch { before }
        }
    }

    /// Whether a handler ran.
    #[inline]
    pub fn has_run(&self) -> bool {
        // SAFETY: the thread's own word.
        unsafe { handled().read_volatile() != 0 }
    }

    /// Their signals: bit n-1 for signal n.
    pub fn signals(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (handled().read_volatile() >> 1) as u64 }
    }
}

impl Drop for Watch {
    #[inline]
    fn drop(&mut self) {
        if self.before != 0 {
            // SAFETY: as above.
            unsafe { handled().write_volatile(handled().read_volatile() | self.before) };
        }
    }
}

fn kept_mask() -> *mut u64 {
    let at: *mut u64;
    // SAFETY: as above.
    unsafe {
        asm!("mov {at}, qword ptr fs:[0]", "add {at}, qword ptr [rip + sd_section_mask@GOTTPOFF]",
            at = out(reg) at, options(pure, nomem, nostack));
    }
    at
}

/// At the end of a section with a signal put off.
#[cold]
#[inline(never)]
fn let_signals_come() {
    let word = word();
    // SAFETY: the thread's own words; signals are blocked as long as PENDING is set.
    let mask = unsafe {
        if word.read_volatile() != PENDING {
            return;
        }
        word.write_volatile(0);
        kept_mask().read_volatile()
    };
    let _ = set_mask(mask);
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Signals of a fault: they cannot wait, since the instruction that they interrupt cannot go on.
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS)
    | bit(libc::SIGABRT);
/// libc's own (pthread_cancel, setuid), whose handlers do not come to us.
const OF_LIBC: u64 = bit(32) | bit(33);

/// Sets the thread's signal mask; the one before.
fn set_mask(mask: u64) -> crate::Result<u64> {
    let mut before = 0u64;
    // SAFETY: the kernel reads and writes eight bytes each.
    let ret =
        unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, 8) };
    crate::check(ret).map(|_| before)
}

/// A handler of the program.
pub type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut ucontext_t);

/// In the frame of a handler that would run inside a section: puts it off, or runs it where that cannot be.
///
/// # Safety
/// The arguments are what the kernel gave to a handler on this thread; `info` is filled in if `has_info`.
#[cold]
pub unsafe fn hold(
    handler: Handler,
    has_info: bool,
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut ucontext_t,
) {
    let allowed = [libc::SYS_rt_sigprocmask, libc::SYS_rt_tgsigqueueinfo, libc::SYS_tgkill];
    let all = !(FAULTS | OF_LIBC);
    let masked = match allowed.into_iter().all(confine::allows) {
        true => set_mask(all).ok(),
        false => None,
    };
    let Some(mask_of_handler) = masked else {
        // SAFETY: this function's contract.
        return unsafe { handler(signal, info, context) };
    };
    let (process, thread) = (fd::getpid(), fd::gettid());
    // SAFETY: to the calling thread; `info` is what the kernel filled in.
    let queued = crate::check(unsafe {
        match has_info {
            true => syscall!(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info),
            false => syscall!(libc::SYS_tgkill, process, thread, signal),
        }
    });
    if queued.is_err() {
        let _ = set_mask(mask_of_handler);
        // SAFETY: this function's contract.
        return unsafe { handler(signal, info, context) };
    }
    // SAFETY: the kernel's frame, whose mask it takes up when the handler returns: its own set is eight bytes. The
    // words are the thread's own. Where another handler came before the mask was set, and stored its own, this store
    // is the later one, and the right one.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        kept_mask().write_volatile(*mask);
        *mask |= all;
        let word = word();
        word.write_volatile(word.read_volatile() | PENDING);
    }
}

/// Whether the signal is one of a fault, which cannot be put off.
pub fn is_fault(signal: c_int) -> bool {
    bit(signal) & FAULTS != 0
}

/// Runs the handler of a fault inside a section: as if outside, since it may leave it by siglongjmp.
///
/// # Safety
/// The arguments are what the kernel gave to a handler on this thread.
pub unsafe fn fault(handler: Handler, signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let word = word();
    // SAFETY: the thread's own word; this function's contract.
    unsafe {
        let before = word.read_volatile();
        word.write_volatile(0);
        handler(signal, info, context);
        word.write_volatile(before);
    }
}

#[cfg(test)]
mod tests {
    use super::{Section, hold, is_inside};
    use core::sync::atomic::{AtomicU32, Ordering};

    static RUNS: AtomicU32 = AtomicU32::new(0);
    static INSIDE: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn program(_: i32, _: *mut libc::siginfo_t, _: *mut libc::ucontext_t) {
        RUNS.fetch_add(1, Ordering::Relaxed);
        INSIDE.fetch_add(u32::from(is_inside()), Ordering::Relaxed);
    }

    unsafe extern "C" fn first(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
        // SAFETY: the kernel's arguments, in both cases.
        unsafe {
            match is_inside() {
                true => hold(program, true, signal, info, context),
                false => program(signal, info, context),
            }
        }
    }

    fn raise() {
        // SAFETY: no pointers.
        unsafe { libc::raise(libc::SIGUSR1) };
    }

    #[test]
    fn a_handler_waits_for_the_outermost_end() {
        // SAFETY: an all-zero action is valid, and so is the handler.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = first as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGUSR1, &action, core::ptr::null_mut());
        }
        raise();
        assert_eq!(RUNS.load(Ordering::Relaxed), 1);
        let outer = Section::enter();
        let inner = Section::enter();
        raise();
        drop(inner);
        assert_eq!(RUNS.load(Ordering::Relaxed), 1, "put off");
        drop(outer);
        assert_eq!((RUNS.load(Ordering::Relaxed), INSIDE.load(Ordering::Relaxed)), (2, 0));
        assert!(!is_inside());
        raise();
        assert_eq!(RUNS.load(Ordering::Relaxed), 3, "and no longer");
    }
}
