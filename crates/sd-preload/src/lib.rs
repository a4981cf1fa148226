//! `libsd.so`: the table of intercepted libc symbols and the start-up order, nothing else.
//!
//! ```text
//! program --libc call--> export (table.rs) --ours?--> sd_socket::calls --Done/Errno--> return value, errno
//!                                          \--not ours, Kernel--> the real function of the next library
//! ```
//!
//! Guarantees: a call on a descriptor that is not ours costs one inline check and a jump to the real function (no lock,
//! no thread-local, no allocation); a hook adds no state of its own, so it is as thread-safe and
//! async-signal-safe as the call behind it; errno is written by one function, `edge::fail`; nothing is exported but
//! the names in `table` and one that AddressSanitizer asks (`sanitizer`). A call that comes before our constructor, out of the constructor of another
//! library or out of the allocator while symbols are looked up, is the raw system call.
//!
//! Not here: what a call does (`sd-socket`). docs/hooks.txt gives a word for each function of glibc that takes a
//! descriptor, hooked or not. Tests: `tests/` runs programs with and without the library and compares.
//!
//! # Safety contract of all hooks
//! A hook has the C signature and the contract of the function that it stands for: **the caller vouches for
//! its pointers** exactly as it would to libc. Hooks pass the arguments on, unchanged, to the real function, to the
//! kernel or to `sd_socket::calls`, which have the same contract. The SAFETY comments in this crate say
//! "libc's contract" for this.
//!
//! Built with `--cfg sd_freestanding` it is `libsd-freestanding.so`, for programs without libc: `begin` instead of `start`, the hooks
//! by number only, and `sd_sys::freestanding` instead of libc.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(panic = "abort", no_std)]
#![cfg_attr(
    any(not(target_arch = "x86_64"), sd_freestanding),
    allow(
        dead_code,
        reason = "what `sites` needs, which is for x86-64; what stands in for functions of libc"
    )
)]

extern crate alloc;

#[cfg(sd_freestanding)]
mod begin;
mod body;
#[macro_use]
mod edge;
mod file_layout;
#[cfg(sd_freestanding)]
mod load;
mod next;
#[cfg(not(sd_freestanding))]
mod sanitizer;
#[cfg(target_arch = "x86_64")]
mod sites;
#[cfg(not(sd_freestanding))]
mod start;
mod table;

#[cfg(sd_freestanding)]
use begin as start;

#[cfg(panic = "abort")]
sd_sys::personality!();

/// Ends the process by SIGABRT. Nothing is printed in a stranger's process.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    let (pid, tid) = (sd_sys::fd::getpid(), sd_sys::fd::gettid());
    loop {
        // SAFETY: no pointers.
        unsafe { sd_sys::syscall!(libc::SYS_tgkill, pid, tid, libc::SIGABRT) };
    }
}

/// libc's, but in the child of a bare clone; see there.
#[global_allocator]
static HEAP: sd_sys::heap::Heap = sd_sys::heap::Heap;
