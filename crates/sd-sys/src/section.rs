//! Sections: stretches of this library's code that a handler of a signal must not come into the middle of.
//!
//! A system call runs as a whole before a handler of its thread sees anything; so must what stands in for one. A thread
//! counts the sections that it is in. A handler that is about to run inside one is put off: its signal is queued again,
//! all others are blocked, and the end of the outermost section lets it come. `sd-preload` puts [`hold`] before the
//! handlers of the program. In the common case a section costs an increment, a decrement and a branch.

use crate::{arch, confine, fd, syscall, thread};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use libc::{siginfo_t, ucontext_t};

/// A signal was put off. The highest bit, so that the decrement tells by its sign.
const PENDING: u32 = 1 << 31;

/// A section of the calling thread, until dropped.
#[derive(Debug)]
pub struct Section(());

impl Section {
    /// Comes before what a handler must not see half done.
    #[inline(always)]
    pub fn enter() -> Section {
        arch::section_enter();
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
        arch::section_leave(let_signals_come);
    }
}

pub use crate::libcs::is_only_thread;

/// Whether the calling thread is in a section.
pub fn is_inside() -> bool {
    thread::block().section.load(Ordering::Relaxed) & !PENDING != 0
}

/// The two words of the signals whose handlers ran.
#[inline(always)]
fn handled() -> [u64; 2] {
    let [low, high] = &thread::block().handled;
    [low.load(Ordering::Relaxed), high.load(Ordering::Relaxed)]
}

/// Whether the calling thread is in a call that a handler may have interrupted: what the call uses must stay where it is. One that a
/// handler left by siglongjmp counts for good.
pub fn is_in_a_call() -> bool {
    thread::block().in_call.load(Ordering::Relaxed)
}

/// Notes that the thread is in a call, or is not; what was noted before.
#[inline(always)]
fn set_in_a_call(is_in: bool) -> bool {
    let word = &thread::block().in_call;
    let before = word.load(Ordering::Relaxed);
    word.store(is_in, Ordering::Relaxed);
    before
}

/// Tells which handlers of the program run on this thread while it exists, which is while a call does.
#[derive(Debug)]
pub struct Watch {
    /// What is still to be told to an outer one, whose call the handler interrupted that made this.
    before: [u64; 2],
    /// Whether there is an outer one.
    is_inner: bool,
}

impl Watch {
    /// From now on.
    #[inline]
    pub fn start() -> Watch {
        let before = handled();
        if before != [0; 2] {
            // A bit that a handler sets in between is one from before.
            thread::block().handled.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        Watch { before, is_inner: set_in_a_call(true) }
    }

    /// Whether a handler ran.
    #[inline]
    pub fn has_run(&self) -> bool {
        handled() != [0; 2]
    }

    /// Their signals: bit n-1 for signal n.
    pub fn signals(&self) -> u64 {
        let [low, high] = handled();
        low >> 1 | high << 63
    }
}

impl Drop for Watch {
    #[inline]
    fn drop(&mut self) {
        set_in_a_call(self.is_inner);
        if self.before != [0; 2] {
            let words = thread::block().handled.iter().zip(self.before);
            words.for_each(|(word, before)| {
                word.store(word.load(Ordering::Relaxed) | before, Ordering::Relaxed)
            });
        }
    }
}

/// At the end of a section with a signal put off.
#[cold]
#[inline(never)]
fn let_signals_come() {
    let block = thread::block();
    // Signals are blocked as long as PENDING is set.
    if block.section.load(Ordering::Relaxed) != PENDING {
        return;
    }
    block.section.store(0, Ordering::Relaxed);
    let mask = block.mask.load(Ordering::Relaxed);
    // The handler runs before this returns, and the call goes on after it.
    let is_inner = set_in_a_call(true);
    let _ = set_mask(mask);
    set_in_a_call(is_inner);
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
/// libc's own (pthread_cancel, setuid), whose handlers do not come to us, where there is libc.
const OF_LIBC: u64 = if cfg!(sd_freestanding) { 0 } else { bit(32) | bit(33) };

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
    let block = thread::block();
    // SAFETY: the kernel's frame, whose mask it takes up when the handler returns: its own set is eight bytes. Where
    // another handler came before the mask was set, and stored its own, this store is the later one, and the right one.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        block.mask.store(*mask, Ordering::Relaxed);
        *mask |= all;
    }
    block.section.store(block.section.load(Ordering::Relaxed) | PENDING, Ordering::Relaxed);
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
    let section = &thread::block().section;
    let before = section.load(Ordering::Relaxed);
    section.store(0, Ordering::Relaxed);
    // SAFETY: this function's contract.
    unsafe { handler(signal, info, context) };
    section.store(before, Ordering::Relaxed);
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
