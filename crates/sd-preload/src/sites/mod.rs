//! Programs that make system calls by instructions of their own: Go programs, with libc (cgo) or without, and static ones of musl's and glibc's.
//!
//! ```text
//! program --syscall--> kernel                        as it was built
//! program --jmp--> island --jmp--> entry --number of interest?--> raw::by_instruction, on a stack of its own
//!                    ^--------------------\--any other: syscall, in the island
//! ```
//!
//! Go's standard library calls libc for names and users only; for sockets, files and epoll it has one `syscall` instruction
//! (`internal/runtime/syscall.Syscall6`), and its runtime has a few for itself. The constructor, which runs before the runtime does, looks for
//! those that a socket could pass through (`sd_attach::sites`), and puts a jump to a piece of code of ours (`island`) in their place (`patch`): all of them, or none.
//! What comes out of them is answered as libc's `syscall` is, on a stack of the thread's own (`enter`), since a goroutine's has no room.
//!
//! Where libc makes the threads, each has words of libc's, and so of ours (`threads_of_libc`); else the runtime's two instructions for threads are led, too
//! (`threads_of_runtime`).
//!
//! Another static program has such an instruction in each of libc's functions, so all that there are in it are led, with what stands around them
//! (`sd_attach::windows`, `moved`); its calls are answered on its own stack (`any_entry!`), all registers are kept, and its handlers of signals are put off
//! in the library's sections, as with libc. Its threads are seen to begin and to end at their calls; `cancel` is pthread_cancel(3), `lent` is posix_spawn(3) of glibc's.
//! One that is Go's with a libc in it is led so as well, but with Go's own instructions as above, and a stack of the library's for each thread.
//!
//! Guarantees: a program that is not Go's, or whose runtime looks otherwise, is not touched, nor is it read beyond its table of
//! symbols in the first case; no call of the program's is left on the caller's stack; errno is kept.
//! Tested by `tests/sites.rs` and `tests/moved.rs`, the scenarios `go-*`, `own-calls`, `musl-static`, `glibc-static` and `static-*` of `tests/apps`, and `cargo xtask posix --static`, `--static-glibc`
//! (ADR [108](../../../../docs/adr/0108-dynamic-go.md), [113](../../../../docs/adr/0113-programs-without-libc.md), [117](../../../../docs/adr/0117-static-programs.md)).

#[cfg(sd_freestanding)]
pub(crate) mod cancel;
mod enter;
mod island;
#[cfg(sd_freestanding)]
mod lent;
#[cfg(sd_freestanding)]
mod moved;
mod patch;
mod program;
#[cfg_attr(sd_freestanding, path = "threads_of_runtime.rs")]
#[cfg_attr(not(sd_freestanding), path = "threads_of_libc.rs")]
mod threads;

use sd_attach::sites::{Threads, sites};

/// In the constructor: leads the program's own system calls to the library, if it is a program for that.
#[cfg(not(sd_freestanding))]
pub(crate) fn lead() {
    let Some(program) = program::go() else { return };
    let Some(sites) = sites(program.bytes(), Threads::OfLibc) else { return };
    if threads::is_ready() {
        patch::lead(&program, &sites, enter::address);
    }
}

/// Before the program's first instruction: the same, and whether it was done.
///
/// # Safety
/// What the kernel has left on the stack of this program.
#[cfg(sd_freestanding)]
pub(crate) unsafe fn lead(start: &sd_sys::freestanding::Start) -> bool {
    // SAFETY: by contract.
    let Some(program) = (unsafe { program::of(start) }) else { return false };
    if program.is_go() {
        if let Some(sites) = sites(program.bytes(), Threads::OfRuntime) {
            return patch::lead(&program, &sites, enter::address);
        }
        if !sd_attach::sites::has_libc(program.bytes()) {
            return false;
        }
        threads::keep_stacks();
    }
    if program.is_open() {
        return false;
    }
    sd_sys::libcs::set_glibc(program.has_glibc());
    threads::leave_stack();
    let found = sd_attach::windows::windows(program.bytes());
    let is_led = found.is_ok_and(|windows| patch::lead_any(&program, &windows, enter::words_of_any()));
    sd_sys::libcs::set_only_thread(is_led);
    is_led
}

#[cfg(sd_freestanding)]
pub(crate) use enter::look_at;
#[cfg(sd_freestanding)]
pub(crate) use threads::begin_own;
