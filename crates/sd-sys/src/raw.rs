//! System calls with zero to six arguments.

pub use crate::arch::syscall6;

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

#[cfg(sd_freestanding)]
pub use crate::arch::program_call6;
/// A call that the program makes.
#[cfg(not(sd_freestanding))]
pub use crate::arch::syscall6 as program_call6;

/// `own_call6` with the arguments given as a list; missing ones are zero.
#[macro_export]
macro_rules! syscall {
    ($($word:expr),+) => { $crate::call_by!([$crate::raw::own_call6] $($word),+) };
}

/// [`syscall6`], as [`syscall!`](crate::syscall) is for the library's own sake: a call that the program makes, and that its filters are about.
#[macro_export]
macro_rules! syscall_of_program {
    ($($word:expr),+) => { $crate::call_by!([$crate::raw::program_call6] $($word),+) };
}

/// See [`syscall!`](crate::syscall).
#[macro_export]
#[doc(hidden)]
macro_rules! call_by {
    ([$call:path] $nr:expr) => { $call($nr, 0, 0, 0, 0, 0, 0) };
    ([$call:path] $nr:expr, $a:expr) => { $call($nr, $a as usize, 0, 0, 0, 0, 0) };
    ([$call:path] $nr:expr, $a:expr, $b:expr) => { $call($nr, $a as usize, $b as usize, 0, 0, 0, 0) };
    ([$call:path] $nr:expr, $a:expr, $b:expr, $c:expr) => {
        $call($nr, $a as usize, $b as usize, $c as usize, 0, 0, 0)
    };
    ([$call:path] $nr:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $call($nr, $a as usize, $b as usize, $c as usize, $d as usize, 0, 0)
    };
    ([$call:path] $nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $call($nr, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, 0)
    };
    ([$call:path] $nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $call($nr, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize)
    };
}
