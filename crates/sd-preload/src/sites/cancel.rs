//! pthread_cancel(3) in static programs.
//!
//! musl, and glibc from 2.41 on, send a signal to the thread. Its handler looks where the thread stands: in one function, up to its `syscall` instruction, it
//! is cancelled there; elsewhere it is cancelled by the next call that comes there, or by the one that it is in, if that fails with EINTR (musl: the signal is blocked,
//! sent again, and waits). So here:
//!
//! | the signal finds the thread | what is done |
//! |---|---|
//! | in the island of that instruction, or at the beginning of the entry | the handler is told the place in the text |
//! | in a call of the kernel's that the library makes for the program | that fails with EINTR, also if it is about to be made (`arch::program_call6`) |
//! | asleep in the library | that sleep fails with EINTR, and so does the call |
//! | elsewhere in a call of the library's | the next sleep is none, and the call fails with EINTR (`sd_socket::cancel`) |
//! | in a section of the library's | put off, as every handler |
//!
//! glibc before 2.41 lets a thread be cancelled anywhere while it is in such a call. Its handler does not come back then, and the
//! library's frames would be left, with what they hold. So the handler comes when the call has ended ([`act`]), by EINTR as above; if it comes back, the thread is in
//! no such call, and the call is made once more.
//!
//! Tested by the subjects `cancel/*` (`cargo xtask posix --static`, `--static-glibc`).

use super::enter;
use crate::body::handlers;
use core::ffi::{c_int, c_long};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use libc::{REG_RAX, REG_RCX, REG_RIP, siginfo_t, ucontext_t};
use sd_socket::calls;
use sd_sys::section::Handler;
use sd_sys::{arch, libcs, thread};

/// A place before the instruction in the text; its island, and the instruction there. Zeros where the program cannot cancel threads.
static IN_TEXT: AtomicUsize = AtomicUsize::new(0);
static ISLAND: AtomicUsize = AtomicUsize::new(0);
static INSTRUCTION: AtomicUsize = AtomicUsize::new(0);
/// libc's handler.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// See the module, glibc before 2.41: threads may be cancelled in the midst of any call, as far as the library knows.
static IN_ANY_CALL: AtomicBool = AtomicBool::new(false);
/// Where the program is: its first byte, and behind its last one.
static PROGRAM: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Before the program begins.
pub(super) fn set_place(in_text: usize, (island, instruction): (usize, usize)) {
    IN_TEXT.store(in_text, Ordering::Relaxed);
    ISLAND.store(island, Ordering::Relaxed);
    INSTRUCTION.store(instruction, Ordering::Relaxed);
}

/// The same, after the last of them.
pub(super) fn set_program((start, end): (usize, usize)) {
    PROGRAM.iter().zip([start, end]).for_each(|(word, place)| word.store(place, Ordering::Relaxed));
    let is_known = IN_TEXT.load(Ordering::Relaxed) != 0;
    IN_ANY_CALL.store(libcs::has_glibc() && !is_known, Ordering::Relaxed);
}

fn program() -> Range<usize> {
    let [start, end] = PROGRAM.each_ref().map(|word| word.load(Ordering::Relaxed));
    start..end
}

/// A call of the program's, in which its thread may be cancelled if it has come from that instruction. Other calls come to an end,
/// also if a handler makes them in the midst of such a one.
pub(super) struct Cancellable {
    was: bool,
}

impl Cancellable {
    pub(super) fn begin(instruction: usize) -> Cancellable {
        let is_it = instruction == INSTRUCTION.load(Ordering::Relaxed) || IN_ANY_CALL.load(Ordering::Relaxed);
        Cancellable { was: thread::set_cancellable(is_it) }
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

/// A call has ended with `answer`, and nothing of it is left: lets glibc's handler come, if the signal has. True: the call is to be made once more, as
/// the kernel does after a handler of glibc's (SA_RESTART).
#[inline]
pub(super) fn act(number: c_long, answer: isize) -> bool {
    IN_ANY_CALL.load(Ordering::Relaxed) && thread::take_mark() && act_now(number, answer)
}

#[cold]
#[inline(never)]
fn act_now(number: c_long, answer: isize) -> bool {
    /// Those that the kernel does not make once more (signal(7)).
    const ENDED: [c_long; 7] = [
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_epoll_wait,
        libc::SYS_ppoll,
        libc::SYS_poll,
        libc::SYS_pselect6,
        libc::SYS_select,
    ];
    sd_socket::cancel::acted();
    // The handler asks for this process and this way. In a thread that is to end it does not come back.
    // SAFETY: no pointers.
    unsafe {
        let (process, thread) = (sd_sys::fd::getpid(), sd_sys::fd::gettid());
        sd_sys::syscall!(libc::SYS_tgkill, process, thread, handlers::of_cancellation())
    };
    answer == -(libc::EINTR as isize) && !ENDED.contains(&number)
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

/// What to install instead of libc's handler.
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
    if IN_ANY_CALL.load(Ordering::Relaxed) {
        // SAFETY: as above.
        unsafe { in_any_call((handler, signal, info, context), registers) };
        return;
    }
    // SAFETY: as above; libc's handler, with the kernel's arguments.
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
        if libcs::has_glibc() || *mask & bit != 0 && !was_blocked {
            mark(registers);
        }
    }
}

/// See the module, glibc before 2.41.
///
/// # Safety
/// Its handler, with the kernel's arguments, and the registers of the kernel's frame.
unsafe fn in_any_call(
    (handler, signal, info, context): (Handler, c_int, *mut siginfo_t, *mut ucontext_t),
    registers: *mut usize,
) {
    // SAFETY: by contract.
    unsafe {
        let stands = *registers.wrapping_add(REG_RIP as usize);
        // A call that a handler has left by siglongjmp is not under way, whatever the thread's word says.
        if thread::is_cancellable() && !program().contains(&stands) {
            mark(registers);
        } else {
            handler(signal, info, context);
        }
    }
}

/// The thread is to be cancelled, and its call, if it is in one in which it may be, ends with EINTR.
///
/// # Safety
/// The registers of the kernel's frame: the thread was about to execute what is there.
unsafe fn mark(registers: *mut usize) {
    thread::mark_cancelled();
    if !thread::is_cancelled() {
        return;
    }
    // SAFETY: by contract.
    unsafe {
        let place = registers.wrapping_add(REG_RIP as usize);
        let stands = *place;
        let end = arch::end_program_call(stands);
        match () {
            () if end != stands => *place = end,
            () if ends_sleep(registers) => sd_socket::cancel::mark(),
            () => wake(),
        }
    }
}
