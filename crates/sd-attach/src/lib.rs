//! Programs that no dynamic linker loads the library into: which of them it can be brought into, and how it gets there,
//! at the exec, before the program's first instruction.
//!
//! ```text
//!  caller --clone, clone--> tracer --PTRACE_SEIZE--> caller
//!  caller --execve--> the program, stopped           the kernel's own exec: all that a program can learn of itself is right
//!  tracer --instructions, registers--> the program   behind the vDSO's own bytes; the tracer lets go, and ends
//!  the program --openat, mmap, close--> the library, at its entry
//! ```
//! The library is an ELF file that needs nobody to load it: ET_DYN without an interpreter, which relocates itself, with pages of 4 KiB.
//!
//! | module | |
//! |---|---|
//! | [`program`] | is a file such a program? |
//! | [`sites`] | where are its system calls, if it is Go's? |
//! | [`windows`] | and if it is not? |
//! | [`segment`] | does it need the register that the library needs? |
//! | [`decode`] | how long are instructions? |
//! | [`dynamic`] | and programs that a dynamic linker loads? |
//! | [`script`] | what is executed, if a file is a script? |
//! | [`unled`] | why the library is not brought into one |
//! | [`loader`] | what if ptrace(2) is refused? |
//! | [`layout`] | and where is a program mapped then? |
//! | `tracer` | what the caller sees of the tracer, and its life until the exec |
//! | `inject` | what it does to the new program |
//! | `library` | what is to be mapped where |
//! | `targets` | where do branches lead that are near a `syscall`? |
//! | `list` | what `windows` collects |
//! | `ptrace` | ptrace(2) |
//! | `elf` | the few words of elf(5) that all of them need |
//!
//! # The entry contract
//!
//! | register | at the library's first instruction |
//! |---|---|
//! | rip | its `e_entry`, where that is mapped |
//! | rsp | as the kernel gave it to the program: at argc |
//! | rdi | the tracer's process id; 0: there is none, the file itself was executed ([`loader`]), and what follows is not said |
//! | rsi | where the library is mapped: the address of its ELF header |
//! | rdx | how long that mapping is, in bytes. It is one reservation: what no segment takes has no access |
//! | rcx | the page of the vDSO that the tracer has written instructions to. The library gives it back (MADV_DONTNEED) |
//! | others | as execve(2) leaves them: zero |
//!
//! The next instruction is what the kernel would have begun with: AT_ENTRY of the auxiliary vector, or the dynamic linker's (AT_BASE) first one;
//! it gets rsp as it was, and rdx = 0.
//!
//! Where orphans come to the process (the first one of a PID namespace, PR_SET_CHILD_SUBREAPER) the tracer is its child. The library
//! waits for it by `wait4(rdi, .., __WALL, ..)`; elsewhere that is ECHILD. There a SIGCHLD may be pending, if the program blocks it.
//!
//! # Guarantees
//! - A failure before the entry is changed leaves the program as if nothing had been: mappings, descriptors,
//!   registers, signal mask. It runs on without the library.
//! - The program's text, its signal actions and its pending signals are never touched. The vDSO is written to behind its own bytes, where the kernel has
//!   filled a page with zeros; without room there no library is brought.
//! - The library's file may be replaced meanwhile: what has been mapped has the headers by which it was mapped, or it
//!   is unmapped.
//! - Programs of other processors' modes, those that have been given rights (AT_SECURE), and interpreted (dynamic) ones but for Go's that need no
//!   library are left alone.
//! - [`accompany`] and [`Tracer::dismiss`] are async-signal-safe, allocate nothing, and work in the child of a
//!   vfork(2) and in any thread.
//!
//! # Not guaranteed
//! - **Programs that give rights** (set-user-id, file capabilities): under a tracer the kernel leaves these out, so
//!   the caller must not come here for one.
//! - A tracer that is killed before the exec, or at its stop, is as if it had not been. A stopped tracer is a stopped exec.
//! - After a failure in the program its vDSO's last page stays a copy, with the instructions behind it.
//! - Yama (`kernel.yama.ptrace_scope` at 1): the tracer is declared by PR_SET_PTRACER, which replaces what the caller
//!   had declared.
//! - Filters (seccomp(2)) stay over an exec: one that forbids the calls with an error makes the program run
//!   without the library, and one that kills or traps kills. What `sd_sys::confine` knows of is asked before, and `sd_sys::filters` is to be.
#![cfg_attr(not(test), no_std)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

/// The library's name. It is beside the other one, `libsd.so`.
pub const FILE: &core::ffi::CStr = c"libsd-freestanding.so";

#[cfg(target_arch = "x86_64")]
pub mod decode;
pub mod dynamic;
pub mod elf;
#[cfg(target_arch = "x86_64")]
mod inject;
#[cfg(target_arch = "x86_64")]
pub mod layout;
#[cfg(target_arch = "x86_64")]
mod library;
#[cfg(target_arch = "x86_64")]
mod list;
#[cfg(target_arch = "x86_64")]
pub mod loader;
#[cfg(target_arch = "x86_64")]
pub mod program;
#[cfg(target_arch = "x86_64")]
mod ptrace;
pub mod script;
#[cfg(target_arch = "x86_64")]
pub mod segment;
#[cfg(target_arch = "x86_64")]
pub mod sites;
#[cfg(target_arch = "x86_64")]
mod targets;
#[cfg(target_arch = "x86_64")]
mod tracer;
pub mod unled;
#[cfg(target_arch = "x86_64")]
pub mod windows;

#[cfg(target_arch = "x86_64")]
pub use tracer::{Tracer, accompany};

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere;
#[cfg(not(target_arch = "x86_64"))]
pub use elsewhere::{Tracer, accompany, loader, program};
