//! The start of the library in a program without libc: before the program's first instruction, on its stack.
//!
//! ```text
//! kernel: exec --tracer maps the library--> sd_start: this --> the program's own entry
//!         exec of the library's file ---------^  which maps the program first (`load`)
//! ```
//!
//! What the program finds is what the kernel has left for it: the stack, the registers, the memory. Besides there are the library, a stack of the
//! library's for each thread that calls it, and the islands ([`crate::sites`]). GS is the library's: no program that is led here uses it. Where
//! the program cannot be led, nothing is.

use crate::load;
use core::ffi::{c_char, c_int};
use libc::{Elf64_Ehdr, Elf64_Phdr};
use sd_socket::calls;
use sd_sys::freestanding::{self, Start};
use sd_sys::syscall;

sd_sys::library_entry!(start);

/// Returns where the program begins.
///
/// # Safety
/// Called once, by `sd_start`: the tracer's process id, the stack pointer that the kernel gave to the program, and the page with the tracer's
/// instructions, which have been executed. Or 0, and the stack pointer of the library's file, which was executed for a program.
unsafe extern "C" fn start(tracer: c_int, stack: *const usize, page: usize) -> usize {
    let mut loaded = None;
    if tracer == 0 {
        // SAFETY: by contract.
        loaded = Some(unsafe { load::load(stack) });
    } else {
        reap(tracer);
        give_back(page);
    }
    // SAFETY: by contract.
    let start = unsafe { Start::of(stack) };
    // SAFETY: by contract.
    let is_led = unsafe { lead(&start) };
    match loaded {
        Some(loaded) if is_led => loaded.keep(),
        Some(loaded) => loaded.execute(),
        None => {}
    }
    // SAFETY: by contract.
    unsafe { next_instruction(&start) }
}

/// Brings the library to work, and leads the program's calls to it; whether that was done.
///
/// # Safety
/// What the kernel has left.
unsafe fn lead(start: &Start) -> bool {
    // Words of the thread's come first: all the rest uses them.
    if !is_possible(start) || !crate::sites::begin_own() {
        return false;
    }
    freestanding::set_start(start);
    // SAFETY: the kernel's own library; and by contract.
    unsafe {
        freestanding::set_clock(clock(start).unwrap_or(0));
        let is_led = sd_sys::heap::leave_libc() && crate::sites::lead(start);
        if is_led {
            calls::start(start.environment, own_path(start));
        }
        is_led
    }
}

/// Where the kernel would have begun: in the program, or in its dynamic linker.
///
/// # Safety
/// What the kernel has left.
unsafe fn next_instruction(start: &Start) -> usize {
    match start.value(libc::AT_BASE) {
        None | Some(0) => start.value(libc::AT_ENTRY).unwrap_or(0),
        // SAFETY: the kernel has mapped the linker there, whose file begins with its header.
        Some(base) => base + unsafe { (base as *const Elf64_Ehdr).read() }.e_entry as usize,
    }
}

/// The kernel's own page of the vDSO is there again. Where that is refused the copy stays: what the program uses of it is the same.
fn give_back(page: usize) {
    // SAFETY: what is behind the vDSO's own bytes in the page is not executed any more; the rest is as before.
    let _ = unsafe { syscall!(libc::SYS_madvise, page, 4096, libc::MADV_DONTNEED) };
}

/// Where orphans come to this process the tracer is a child, of which the program must not know. It has nothing left to do.
fn reap(tracer: c_int) {
    let none = core::ptr::null::<u8>();
    // SAFETY: no pointers.
    if unsafe { syscall!(libc::SYS_wait4, tracer, none, libc::__WALL, none) } != tracer as isize {
        return;
    }
    // Where the program has SIGCHLD blocked, the tracer's is waiting.
    let child = 1u64 << (libc::SIGCHLD - 1);
    let (mut pending, time) = (0u64, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the kernel writes a set, and reads a set and a time.
    unsafe {
        syscall!(libc::SYS_rt_sigpending, &raw mut pending, 8);
        if pending & child != 0 {
            syscall!(libc::SYS_rt_sigtimedwait, &raw const child, none, &raw const time, 8);
        }
    }
}

/// Whether the library may be in this program, and can.
fn is_possible(start: &Start) -> bool {
    /// `FSGSBASE`: programs may change GS.
    const HAS_GS: usize = 1 << 1;
    let has_gs = start.value(libc::AT_HWCAP2).is_some_and(|has| has & HAS_GS != 0);
    let is_secure = start.value(libc::AT_SECURE).is_some_and(|secure| secure != 0);
    has_gs && !is_secure
}

/// The vDSO's clock (vdso(7)).
///
/// # Safety
/// What the kernel has left.
unsafe fn clock(start: &Start) -> Option<usize> {
    let base = start.value(libc::AT_SYSINFO_EHDR).filter(|base| *base != 0)?;
    // SAFETY: the kernel maps a whole library there.
    unsafe {
        let header = (base as *const Elf64_Ehdr).read();
        let headers = (base + header.e_phoff as usize) as *const Elf64_Phdr;
        let headers = core::slice::from_raw_parts(headers, usize::from(header.e_phnum));
        crate::next::function(base, headers, c"__vdso_clock_gettime").map(|function| function as usize)
    }
}

/// Where `libsd.so` is, which LD_PRELOAD names: programs with libc that this one executes load it. Null where it is not named.
///
/// # Safety
/// What the kernel has left. Called once.
unsafe fn own_path(start: &Start) -> *const c_char {
    const NAME: &[u8] = b"libsd.so";
    let is_own = |entry: &&[u8]| entry.rsplit(|byte| *byte == b'/').next() == Some(NAME);
    // SAFETY: by contract.
    let preloaded = unsafe { start.variable(b"LD_PRELOAD=") }.unwrap_or(&[]);
    let Some(own) = preloaded.split(|byte| b": ".contains(byte)).find(is_own) else {
        return core::ptr::null();
    };
    if own.len() >= OWN_PATH_LEN {
        return core::ptr::null();
    }
    let path = (&raw mut OWN_PATH).cast::<u8>();
    // SAFETY: there is room, and a zero byte behind; nobody else knows of it yet.
    unsafe { path.copy_from_nonoverlapping(own.as_ptr(), own.len()) };
    path.cast()
}

/// See [`own_path`]: with a zero byte behind.
static mut OWN_PATH: [u8; OWN_PATH_LEN] = [0; OWN_PATH_LEN];
const OWN_PATH_LEN: usize = 1024;

/// As `start::is_passive` is with libc: where the library is to change nothing it has not come so far.
pub(crate) const fn is_passive() -> bool {
    false
}
