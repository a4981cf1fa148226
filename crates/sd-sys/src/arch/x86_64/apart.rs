//! A process that shares the caller's memory and runs on a stack of its own.

use core::arch::asm;
use core::ffi::c_void;
use core::sync::atomic::AtomicU32;

/// clone(2) of a child that runs `main` on another stack: its id, or -errno. `word` is where the flags' thread ids
/// go.
///
/// # Safety
/// `stack_end` is a multiple of 16, and the end of memory that is the child's as long as it lives; so does what
/// `argument` leads to. The flags ask for the caller's memory (CLONE_VM), and for no thread. The child has the
/// caller's FS and GS, so `main` uses nothing that belongs to a thread, and no call of libc's that does.
pub unsafe fn clone_apart(
    flags: usize,
    stack_end: *mut u8,
    word: *const AtomicU32,
    main: unsafe extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> isize {
    let ret: isize;
    // SAFETY: as the caller says. To the parent it is a system call like any other; the child has the parent's
    // registers, another stack, and never comes to the end of this.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => ret,
            in("rdi") flags, in("rsi") stack_end, in("rdx") word, in("r10") word, in("r8") 0,
            in("r12") main, in("r13") argument, lateout("rcx") _, lateout("r11") _,
        );
    }
    ret
}

/// munmap(2) of memory with the stack that the caller runs on, then the end of its process.
///
/// # Safety
/// Nobody else uses the memory.
pub unsafe fn unmap_and_exit(start: *mut u8, len: usize) -> ! {
    // SAFETY: as the caller says; between the two calls nothing is in memory.
    unsafe {
        asm!(
            "syscall",
            "mov eax, {exit_group}",
            "xor edi, edi",
            "syscall",
            "ud2",
            exit_group = const libc::SYS_exit_group,
            in("rax") libc::SYS_munmap, in("rdi") start, in("rsi") len,
            options(noreturn, nostack),
        );
    }
}
