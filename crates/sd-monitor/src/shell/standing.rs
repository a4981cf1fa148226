//! Who a process is, as the kernel says at this moment: its parent and its users.
//!
//! A pidfd is asked itself (PIDFD_GET_INFO, Linux 6.13). Before that it says which process is meant, and its number where to
//! look; that it has not ended afterwards says that the number was its own all the while. Then /proc is read, which for a
//! moment keeps the process's memory: if the process ends just then, it is the monitor that has to give all of it back.

use super::descriptors::{check_pidfd, has_ended, pid_of_pidfd, std_fd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `struct pidfd_info` of `linux/pidfd.h`, in its first form.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    pid: u32,
    tgid: u32,
    parent: u32,
    /// Real, effective, saved, that for files: user and group of each.
    ids: [u32; 8],
    exit_code: i32,
}

const PIDFD_GET_INFO: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;
const PIDFD_INFO_PID: u64 = 1;
const PIDFD_INFO_CREDS: u64 = 2;
const _: () = assert!(size_of::<Info>() == 64);

/// What the kernel knows of a pidfd's process; `None` where it cannot be asked so.
fn info(pidfd: BorrowedFd<'_>) -> Option<Info> {
    let wanted = PIDFD_INFO_PID | PIDFD_INFO_CREDS;
    let mut info = Info { mask: wanted, ..Info::default() };
    // SAFETY: the kernel writes one struct of the size that the number of the request names.
    let done = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) } == 0;
    (done && info.mask & wanted == wanted).then_some(info)
}

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
        check_pidfd(pidfd).ok()?;
        let (pid, standing) = match info(pidfd) {
            Some(Info { pid, parent, ids: [real, _, effective, _, saved, ..], .. }) => {
                (pid, Standing { parent, real, effective, saved })
            }
            None => Standing::read(pidfd)?,
        };
        (pid != 0 && !has_ended(pidfd)).then_some((pid, standing))
    }

    /// That of whoever has this number now.
    pub(crate) fn of_number(pid: u32) -> Option<Standing> {
        let pidfd = sd_sys::fd::pidfd_open(i32::try_from(pid).ok().filter(|pid| *pid != 0)?).ok()?;
        let pidfd = std_fd(pidfd);
        Standing::of(pidfd.as_fd()).map(|(_, standing)| standing)
    }

    /// By /proc, which is right if the process has not ended afterwards.
    fn read(pidfd: BorrowedFd<'_>) -> Option<(u32, Standing)> {
        let pid = pid_of_pidfd(pidfd).ok().filter(|pid| *pid != 0)?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some((pid, Standing::parse(&status)?))
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
    #[test]
    fn the_kernel_says_who_a_process_is() {
        let pid = std::process::id();
        let pidfd = std_fd(sd_sys::fd::pidfd_open(pid as i32).unwrap());
        let (found, own) = Standing::of(pidfd.as_fd()).unwrap();
        assert_eq!(found, pid);
        assert_eq!(own.parent, nix::unistd::getppid().as_raw() as u32);
        assert_eq!(
            (own.real, own.effective),
            (nix::unistd::getuid().as_raw(), nix::unistd::geteuid().as_raw())
        );
        assert_eq!(Standing::read(pidfd.as_fd()), Some((found, own)), "both ways to ask agree");
        assert_eq!(Standing::of_number(pid), Some(own));
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
