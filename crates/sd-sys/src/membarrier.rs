//! membarrier(2): the dear half of an asymmetric fence.

use crate::{Result, check, syscall};

const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

/// From now on, also in children until they call exec, [`fence_all`] of any process reaches this one.
/// To be called while there is one thread: with more it takes milliseconds.
pub fn register() -> Result<()> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_membarrier, REGISTER_GLOBAL_EXPEDITED, 0, 0) }).map(drop)
}

/// Every thread of every registered process executes a full fence before this returns.
pub fn fence_all() -> Result<()> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_membarrier, GLOBAL_EXPEDITED, 0, 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_registered_process_can_fence_all() {
        assert_eq!(super::register(), Ok(()));
        assert_eq!(super::fence_all(), Ok(()));
    }
}
