//! The program's handlers of signals run between the library's sections, never inside one: see `sd_sys::section`.
//!
//! The kernel is given [`entry`] in the place of each handler, with the program's own flags and mask, and whoever asks
//! is told the program's. Nothing is kept of SIG_DFL and SIG_IGN, and flags are the kernel's to remember.

use crate::table::real;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{SIG_DFL, SIG_ERR, SIG_IGN, siginfo_t, ucontext_t};
use sd_socket::calls;
#[cfg(sd_freestanding)]
use sd_sys::libcs::has_glibc;
use sd_sys::section::{self, Handler};

const SIGNALS: usize = 65;
/// sigset(3): block it.
const SIG_HOLD: usize = 2;

/// The program's, by signal: once installed, an entry is a function for ever.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];

// What the kernel calls. A jump leaves no frame of ours on the stack: whoever unwinds it, or leaves it, sees the
// program's handler only.
sd_sys::handler_entry!(entry, inside, HANDLERS);

fn entry_address() -> usize {
    entry as *const () as usize
}

/// sigaction(2)'s struct for the kernel, on all architectures that have a restorer.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// A handler that has come into a section.
unsafe extern "C" fn inside(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let Some(handler) = HANDLERS.get(signal as usize) else { return };
    // SAFETY: `entry` was installed for this signal, so the program's handler was stored before.
    let handler: Handler = unsafe { core::mem::transmute(handler.load(Ordering::Relaxed)) };
    if section::is_fault(signal) {
        // SAFETY: the kernel's arguments.
        return unsafe { section::fault(handler, signal, info, context) };
    }
    let mut action = KernelAction::default();
    // SAFETY: the kernel writes one struct, whose size it knows.
    unsafe { sd_sys::syscall!(libc::SYS_rt_sigaction, signal, 0, &raw mut action, 8) };
    if action.handler == SIG_DFL && action.flags & libc::SA_RESETHAND as u64 != 0 {
        // It is to run once, and has not run yet.
        action.handler = entry_address();
        // SAFETY: the kernel reads one struct.
        unsafe { sd_sys::syscall!(libc::SYS_rt_sigaction, signal, &raw const action, 0, 8) };
    }
    let has_info = action.flags & libc::SA_SIGINFO as u64 != 0;
    // SAFETY: the kernel's arguments.
    unsafe { section::hold(handler, has_info, signal, info, context) };
}

/// What to tell the kernel instead of a handler of the program, and what to tell the program of the one before.
struct Exchange {
    slot: &'static AtomicUsize,
    /// What the slot held.
    before: usize,
    given: usize,
}

impl Exchange {
    fn new(signal: c_int, handler: usize) -> Option<Exchange> {
        let slot = HANDLERS.get(signal as usize).filter(|_| !crate::start::is_passive())?;
        let is_function = ![SIG_DFL, SIG_IGN, SIG_ERR, SIG_HOLD, entry_address()].contains(&handler);
        if !is_function || calls::is_on_borrowed_memory() {
            return Some(Exchange { slot, before: slot.load(Ordering::Relaxed), given: handler });
        }
        let before = slot.swap(handler, Ordering::AcqRel);
        Some(Exchange { slot, before, given: entry_address() })
    }

    /// What the kernel was asked to do failed.
    fn undo(&self) {
        if self.before != 0 {
            self.slot.store(self.before, Ordering::Release);
        }
    }

    fn former(&self, told: usize) -> usize {
        if told == entry_address() { self.before } else { told }
    }
}

/// sigaction(2).
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: libc's contract.
    let copy = unsafe { new.as_ref() }.copied();
    let handler = copy.map_or(SIG_DFL, |action| action.sa_sigaction);
    let Some(exchange) = Exchange::new(signal, handler) else {
        // SAFETY: libc's contract.
        return unsafe { real::sigaction(signal, new, old) };
    };
    let given = copy.map(|action| libc::sigaction { sa_sigaction: exchange.given, ..action });
    let given = given.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: libc's contract for `old`; `given` is null or ours.
    let ret = unsafe { real::sigaction(signal, given, old) };
    if ret != 0 {
        exchange.undo();
    } else if !old.is_null() {
        // SAFETY: libc's contract, and libc has filled it in.
        unsafe { (*old).sa_sigaction = exchange.former((*old).sa_sigaction) };
    }
    ret
}

/// signal(2) and its like: `set` is libc's function, which sets a handler and returns the one before.
pub(crate) fn signal(
    signal: c_int,
    handler: *mut c_void,
    set: impl FnOnce(*mut c_void) -> *mut c_void,
) -> *mut c_void {
    let Some(exchange) = Exchange::new(signal, handler as usize) else { return set(handler) };
    let told = set(exchange.given as *mut c_void) as usize;
    if told == SIG_ERR {
        exchange.undo();
    }
    exchange.former(told) as *mut c_void
}

/// What pthread_cancel(3) of the program's libc sends.
#[cfg(sd_freestanding)]
pub(crate) fn of_cancellation() -> c_int {
    if has_glibc() { 32 } else { 33 }
}

/// What its setuid(2) and the like send to all threads, before each of them makes the same call.
#[cfg(sd_freestanding)]
fn of_all_threads() -> c_int {
    if has_glibc() { 33 } else { 34 }
}

/// Before tgkill(2), where a program makes it by an instruction of its own: glibc is about to stop the threads.
#[cfg(sd_freestanding)]
pub(crate) fn before_tgkill(signal: c_int) {
    if has_glibc() && signal == of_all_threads() {
        super::privileges::may_change_for_all();
    }
}

/// rt_sigaction(2), where a program makes it by an instruction of its own. Not part of who calls it, whose frame is below every call.
///
/// # Safety
/// The program's contract with the kernel.
#[inline(never)]
#[cfg(sd_freestanding)]
pub(crate) unsafe fn by_number(signal: c_int, new: usize, old: usize, len: usize) -> isize {
    const LEN: usize = size_of::<KernelAction>();
    // SAFETY: the program's contract.
    let ask =
        |new: usize| unsafe { sd_sys::syscall_of_program!(libc::SYS_rt_sigaction, signal, new, old, len) };
    let readable = |at: usize| at == 0 || sd_sys::user::is_readable(at as *const u8, LEN);
    if !readable(new) {
        return ask(new);
    }
    let copy = match new {
        0 => None,
        // SAFETY: so long, and it can be read.
        at => Some(unsafe { (at as *const KernelAction).read_unaligned() }),
    };
    let mut handler = copy.as_ref().map_or(SIG_DFL, |action| action.handler);
    if signal == of_cancellation() && ![SIG_DFL, SIG_IGN].contains(&handler) {
        handler = crate::sites::cancel::instead_of(handler);
    }
    // musl installs its handler before, and glibc long before: see `before_tgkill`.
    if signal == of_all_threads() && !has_glibc() && handler != SIG_IGN && new != 0 {
        super::privileges::may_change_for_all();
    }
    let Some(exchange) = Exchange::new(signal, handler) else { return ask(new) };
    let given = copy.map(|action| KernelAction { handler: exchange.given, ..action });
    let ret = ask(given.as_ref().map_or(0, |given| &raw const *given as usize));
    if ret != 0 {
        exchange.undo();
    } else if old != 0 {
        // SAFETY: the kernel has just filled it in.
        unsafe {
            let told = (old as *mut KernelAction).cast::<usize>();
            told.write_unaligned(exchange.former(told.read_unaligned()));
        }
    }
    ret
}
