//! Who a process is, as the kernel says at this moment: its parent and its users.
//!
//! A pidfd says which process is meant, and its number where to look. That it has not ended afterwards says that the number
//! was its own all the while.

use super::descriptors::{has_ended, pid_of_pidfd};
use std::os::fd::BorrowedFd;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) parent: u32,
    pub(crate) real: u32,
    pub(crate) effective: u32,
    pub(crate) saved: u32,
}

impl Standing {
    /// That of a process which is alive, and its number; `None` if it is not, or cannot be looked at.
    pub(crate) fn of(pidfd: BorrowedFd<'_>) -> Option<(u32, Standing)> {
        let pid = pid_of_pidfd(pidfd).ok()?;
        let standing = Standing::of_number(pid)?;
        (!has_ended(pidfd)).then_some((pid, standing))
    }

    /// That of whoever has this number now.
    pub(crate) fn of_number(pid: u32) -> Option<Standing> {
        if pid == 0 {
            return None;
        }
        Standing::parse(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }

    fn parse(status: &str) -> Option<Standing> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let mut users = field("Uid:")?.split_whitespace().map(str::parse);
        let mut user = || users.next()?.ok();
        let (real, effective, saved) = (user()?, user()?, user()?);
        Some(Standing { parent: field("PPid:")?.trim().parse().ok()?, real, effective, saved })
    }

    /// Whether the kernel would let a process of `user` send a signal to this one (`sigio_perm`, kill(2)).
    pub(crate) fn may_be_signalled_by(&self, user: u32) -> bool {
        user == 0 || user == self.real || user == self.saved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    #[test]
    fn the_kernel_says_who_a_process_is() {
        let pid = std::process::id();
        // SAFETY: a descriptor that was just made for this test.
        let pidfd = unsafe { OwnedFd::from_raw_fd(sd_sys::fd::pidfd_open(pid as i32).unwrap()) };
        let (found, own) = Standing::of(pidfd.as_fd()).unwrap();
        assert_eq!(found, pid);
        assert_eq!(own.parent, nix::unistd::getppid().as_raw() as u32);
        assert_eq!(
            (own.real, own.effective),
            (nix::unistd::getuid().as_raw(), nix::unistd::geteuid().as_raw())
        );
        assert_eq!(Standing::of_number(0), None);
        assert_eq!(Standing::of_number(u32::MAX), None);
    }

    #[test]
    fn who_may_signal_whom() {
        let of = |real, saved| Standing { parent: 1, real, effective: 7, saved };
        assert!(of(5, 6).may_be_signalled_by(0));
        assert!(of(5, 6).may_be_signalled_by(5) && of(5, 6).may_be_signalled_by(6));
        assert!(!of(5, 6).may_be_signalled_by(7), "its effective user is not asked");
        let text = "Name:\tPPid: Uid:\nPPid:\t12\nUid:\t1\t2\t3\t4\n";
        let parsed = Standing::parse(text);
        assert_eq!(parsed, Some(Standing { parent: 12, real: 1, effective: 2, saved: 3 }));
        assert_eq!(Standing::parse("PPid:\t1\n"), None);
    }
}
