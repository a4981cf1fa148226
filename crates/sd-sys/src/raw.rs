//! The `syscall` instruction with zero to six arguments.

use core::arch::asm;

/// Issues system call `nr` with six arguments; unused ones are ignored by the kernel.
///
/// # Safety
/// The caller vouches for the call: pointers among the arguments must be valid for what the
/// kernel does with them, and the call's effect on the process must be sound.
#[inline(always)]
pub unsafe fn syscall6(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 Linux calling convention; rcx and r11 are clobbered by the instruction.
    unsafe {
        asm!("syscall", inlateout("rax") nr as isize => ret,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// [`syscall6`] for the library's own sake: ENOSYS where a filter of the program's forbids the call; see `confine`.
///
/// # Safety
/// As for [`syscall6`].
#[inline(always)]
pub unsafe fn own_call6(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    if !crate::confine::allows(nr) {
        return -(libc::ENOSYS as isize);
    }
    // SAFETY: the caller's.
    unsafe { syscall6(nr, a, b, c, d, e, f) }
}

/// `own_call6` with the arguments given as a list; missing ones are zero.
#[macro_export]
macro_rules! syscall {
    ($nr:expr) => { $crate::raw::own_call6($nr, 0, 0, 0, 0, 0, 0) };
    ($nr:expr, $a:expr) => { $crate::raw::own_call6($nr, $a as usize, 0, 0, 0, 0, 0) };
    ($nr:expr, $a:expr, $b:expr) => { $crate::raw::own_call6($nr, $a as usize, $b as usize, 0, 0, 0, 0) };
    ($nr:expr, $a:expr, $b:expr, $c:expr) => {
        $crate::raw::own_call6($nr, $a as usize, $b as usize, $c as usize, 0, 0, 0)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $crate::raw::own_call6($nr, $a as usize, $b as usize, $c as usize, $d as usize, 0, 0)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::raw::own_call6($nr, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, 0)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::raw::own_call6(
            $nr, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize)
    };
}
