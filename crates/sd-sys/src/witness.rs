//! A witness of this image of the process: a lock that ends with it, by exec(2) or exit, and by nothing else.
//!
//! ```text
//! mapping --> description with the lock (flock(2)) --> file in memory <-- description to look at the lock with, which is sent
//! ```
//! The description that has the lock has no number, so no close ends it; its mapping is not copied by fork(2). Who has the other
//! one finds the lock taken as long as the image lives. The file is empty for good, and the mapping is never touched.

use crate::fd::{Owned, open_to_read};
use crate::{Result, check, mem, syscall};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Where the mapping is; zero: there is none.
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Makes a witness, in the place of an earlier one; what others can look at it with.
pub fn make() -> Result<Owned> {
    end();
    let to_look = mem::memfd_sealed(c"sd-witness", 0)?;
    let with_lock = open_anew(to_look.raw())?;
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_flock, with_lock.raw(), libc::LOCK_EX | libc::LOCK_NB) })?;
    let at = mem::map_shared(with_lock.raw(), mem::page_size(), false)?;
    // SAFETY: a mapping of this module's, which nobody touches.
    let alone = check(unsafe { syscall!(libc::SYS_madvise, at, mem::page_size(), libc::MADV_DONTFORK) });
    PLACE.store(at as usize, Ordering::Release);
    if let Err(error) = alone {
        end();
        return Err(error);
    }
    Ok(to_look)
}

/// Another description of the file.
fn open_anew(fd: i32) -> Result<Owned> {
    open_to_read(&crate::procfs::of_fd(fd))
}

/// Whether there is one.
pub fn is_there() -> bool {
    PLACE.load(Ordering::Acquire) != 0
}

/// Ends it, if there is one: for whoever looks, the image is over.
pub fn end() {
    let place = PLACE.swap(0, Ordering::AcqRel);
    if place != 0 {
        // SAFETY: mapped by `make`, and touched by nobody.
        unsafe { mem::unmap(place as *mut u8, mem::page_size()) };
    }
}

/// In the child of a fork, which has no mapping of it.
pub fn forked() {
    PLACE.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_held(witness: &Owned) -> bool {
        // SAFETY: no pointers.
        let flock = |operation| check(unsafe { syscall!(libc::SYS_flock, witness.raw(), operation) });
        let taken = flock(libc::LOCK_EX | libc::LOCK_NB);
        if taken.is_ok() {
            flock(libc::LOCK_UN).unwrap();
        }
        taken.is_err()
    }

    #[test]
    fn tells_of_the_image() {
        assert!(!is_there());
        let first = make().unwrap();
        assert!(is_there() && is_held(&first));
        let second = make().unwrap();
        assert!(!is_held(&first) && is_held(&second));
        end();
        assert!(!is_there() && !is_held(&second));
    }
}
