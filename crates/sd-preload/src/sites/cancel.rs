//! pthread_cancel(3) of musl's, in static programs.
//!
//! musl sends a signal to the thread. Its handler looks where the thread stands: in `__syscall_cp_asm`, up to its `syscall` instruction, it is cancelled
//! there; elsewhere the signal is blocked, sent again, and waits, and the thread is cancelled by the next call that comes there, or by the one
//! that it is in, if that fails with EINTR. So here:
//!
//! | the signal finds the thread | what is done |
//! |---|---|
//! | in the island of that instruction, or at the beginning of the entry | the handler is told the place in the text |
//! | in a call of the kernel's that the library makes for the program | that fails with EINTR, also if it is about to be made (`arch::program_call6`) |
//! | asleep in the library | that sleep fails with EINTR, and so does the call |
//! | elsewhere in a call of the library's | the next sleep is none, and the call fails with EINTR (`sd_socket::cancel`) |
//! | in a section of the library's | put off, as every handler |
//!
//! Tested by the subjects `cancel/*` (`cargo xtask posix --static`).

use super::enter;
use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{REG_RAX, REG_RCX, REG_RIP, siginfo_t, ucontext_t};
use sd_socket::calls;
use sd_sys::section::Handler;
use sd_sys::{arch, thread};

/// A place before the instruction in the text; its island, and the instruction there. Zeros where the program cannot cancel threads.
static IN_TEXT: AtomicUsize = AtomicUsize::new(0);
static ISLAND: AtomicUsize = AtomicUsize::new(0);
static INSTRUCTION: AtomicUsize = AtomicUsize::new(0);
/// musl's handler.
static HANDLER: AtomicUsize = AtomicUsize::new(0);

/// Before the program begins.
pub(super) fn set_place(in_text: usize, (island, instruction): (usize, usize)) {
    IN_TEXT.store(in_text, Ordering::Relaxed);
    ISLAND.store(island, Ordering::Relaxed);
    INSTRUCTION.store(instruction, Ordering::Relaxed);
}

/// A call of the program's, in which its thread may be cancelled if it has come from that instruction. Other calls come to an end,
/// also if a handler makes them in the midst of such a one.
pub(super) struct Cancellable {
    was: bool,
}

impl Cancellable {
    pub(super) fn begin(instruction: usize) -> Cancellable {
        Cancellable { was: thread::set_cancellable(instruction == INSTRUCTION.load(Ordering::Relaxed)) }
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        thread::set_cancellable(self.was);
        if self.was && thread::is_cancelled() {
            // A handler has made this call, and the one beneath it may be asleep.
            wake();
        }
    }
}

/// Whether the thread was found in a sleep of the library's, which now ends with EINTR, if it would not have done so by itself; what
/// comes next looks whether the thread is cancelled.
///
/// # Safety
/// The registers of the kernel's frame: the thread was about to execute what is there.
unsafe fn ends_sleep(registers: *mut usize) -> bool {
    const INSTRUCTION: [u8; 2] = [0x0f, 0x05];
    const INTERRUPTED: usize = -(libc::EINTR as isize) as usize;
    /// No calls but these are ended by it: what else the library does does not wait.
    const SLEEPS: [c_long; 7] = [
        libc::SYS_futex,
        libc::SYS_futex_waitv,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_epoll_wait,
        libc::SYS_ppoll,
        libc::SYS_poll,
    ];
    let [place, result] = [REG_RIP, REG_RAX].map(|register| registers.wrapping_add(register as usize));
    // SAFETY: by contract; text of this process, which has two bytes before any place that is reached by going on.
    unsafe {
        let code = *place as *const [u8; 2];
        if code.read() == INSTRUCTION && SLEEPS.contains(&(*result as c_long)) {
            (*place, *result) = (*place + INSTRUCTION.len(), INTERRUPTED);
            return true;
        }
        *result == INTERRUPTED && code.wrapping_sub(1).read() == INSTRUCTION
    }
}

/// The call that this thread is in sleeps no longer.
#[cold]
fn wake() {
    // SAFETY: no arguments.
    calls::cancelled(unsafe { libc::pthread_self() } as usize);
}

/// What to install instead of musl's handler.
pub(crate) fn instead_of(handler: usize) -> usize {
    HANDLER.store(handler, Ordering::Relaxed);
    handle as *const () as usize
}

/// The signal has come.
unsafe extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    let in_text = IN_TEXT.load(Ordering::Relaxed);
    // SAFETY: `instead_of` has stored it, before the kernel was told of this one; and the kernel's frame. The kernel's set of
    // signals has eight bytes.
    let (handler, registers, mask) = unsafe {
        let handler: Handler = core::mem::transmute(HANDLER.load(Ordering::Relaxed));
        let registers = (&raw mut (*context).uc_mcontext.gregs).cast::<usize>();
        (handler, registers, (&raw mut (*context).uc_sigmask).cast::<u64>())
    };
    let place = registers.wrapping_add(REG_RIP as usize);
    let bit = 1u64 << (signal - 1);
    // SAFETY: as above; musl's handler, with the kernel's arguments.
    unsafe {
        let (stands, instruction) = (*place, *registers.wrapping_add(REG_RCX as usize));
        let is_before = (ISLAND.load(Ordering::Relaxed)..=INSTRUCTION.load(Ordering::Relaxed))
            .contains(&stands)
            || arch::is_before_work(enter::any_address(), stands)
                && instruction == INSTRUCTION.load(Ordering::Relaxed);
        let told = if is_before && in_text != 0 { in_text } else { stands };
        *place = told;
        let was_blocked = *mask & bit != 0;
        handler(signal, info, context);
        if *place != told {
            return;
        }
        *place = stands;
        if *mask & bit != 0 && !was_blocked {
            thread::mark_cancelled();
            let end = arch::end_program_call(stands);
            match thread::is_cancelled() {
                true if end != stands => *place = end,
                true if ends_sleep(registers) => sd_socket::cancel::mark(),
                true => wake(),
                false => {}
            }
        }
    }
}
