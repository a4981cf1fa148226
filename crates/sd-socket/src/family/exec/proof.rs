//! Whether the state that is found at a start was left by an image of this process that had the library.
//!
//! Descriptors go through exec whoever has opened them, and the state holds addresses that are used as they are. So a
//! caller must not be able to plant one in a program with more rights than its own: one that su(1) starts, say.
//! Programs whose exec itself gave them rights (AT_SECURE) never come here. What is believed was made by this user, with
//! this module's name, and sealed so that nobody could write to it later. A file that the monitor has made, where the
//! program may make none, belongs to the user that asked for it.

use core::ffi::CStr;
use libc::{F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE};
use sd_sys::{check, fd, mem, syscall};

pub(super) const NAME: &CStr = c"sd-exec";
const SEALS: i32 = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
/// Names of such files as /proc shows them; the second is of one that the monitor has made.
const LINK: &[u8] = b"/memfd:sd-exec (deleted)";
const LINK_BY_MONITOR: &[u8] = b"/memfd:sd-memory (deleted)";

/// Nobody can change it from now on. False when it would not be believed.
pub(super) fn seal(state: i32) -> bool {
    mem::add_seals(state, F_SEAL_WRITE | F_SEAL_SEAL).is_ok() && is_believable(state)
}

/// See the module.
pub(super) fn is_believable(state: i32) -> bool {
    let is_sealed = mem::get_seals(state).is_ok_and(|seals| seals & SEALS == SEALS);
    is_sealed && fd::owner(state) == Ok(fd::geteuid()) && has_name(state)
}

/// Where there is no /proc, whoever made it for this user is believed.
fn has_name(state: i32) -> bool {
    let path = sd_sys::procfs::of_fd(state);
    let mut link = [0u8; 64];
    // SAFETY: the kernel reads the path and writes at most the array.
    let got = check(unsafe {
        syscall!(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), link.as_mut_ptr(), link.len())
    });
    let Ok(len) = got else { return true };
    let name = link.get(..len).unwrap_or(&[]);
    name == LINK || name == LINK_BY_MONITOR
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_believed_and_nothing_else() {
        let ours = mem::memfd_sealed(NAME, 64).unwrap();
        assert!(!is_believable(ours.raw()), "it could still be written to");
        assert!(seal(ours.raw()) && is_believable(ours.raw()));
        let another = mem::memfd_sealed(c"sd-status", 64).unwrap();
        assert!(!seal(another.raw()));
        let file = fd::dup(0).unwrap();
        assert!(!is_believable(file.raw()));
    }

    #[test]
    fn what_the_monitor_has_made_for_this_user_is_believed() {
        let given = mem::memfd_sealed(c"sd-memory", 64).unwrap();
        assert!(seal(given.raw()));
    }

    #[test]
    fn what_another_user_has_made_is_not_believed() {
        let made = std::thread::spawn(|| {
            // SAFETY: no pointers; the thread's own.
            unsafe { syscall!(libc::SYS_setfsuid, 2003) };
            let state = mem::memfd_sealed(NAME, 64).unwrap();
            (fd::owner(state.raw()) == Ok(fd::geteuid()), seal(state.raw()))
        });
        let (is_own, is_believed) = made.join().unwrap();
        // Only root can be somebody else.
        assert_eq!(is_own, is_believed);
    }
}
