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
