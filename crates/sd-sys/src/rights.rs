//! Whether another process has all rights that this one has, as far as the kernel tells.
//!
//! Before memory is given to a process of the same user: one that has confined itself may not do to this one what others of the
//! user may. What ptrace(2) asks of a tracer is asked here of its files below /proc: the same ids, in the same user
//! namespace, at least the same capabilities; and besides no confinement that this process has not. Landlock is not shown
//! there, but takes no_new_privs or a capability. When in doubt the answer is no.

use crate::scratch::Scratch;
use crate::{Errno, check, fd, procfs, syscall};

/// Not in libc yet; since Linux 6.5.
const SO_PEERPIDFD: i32 = 77;

/// What is compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rights {
    /// Real, effective, saved, and that for files; users first.
    ids: [[u32; 4]; 2],
    permitted: u64,
    no_new_privileges: u32,
    /// Mode, and how many filters.
    seccomp: [u32; 2],
}

/// Whether the process at the other end of a Unix socket has.
pub fn peer_has_ours(socket: i32) -> bool {
    of_peer(socket, has_ours)
}

/// Whether something is so of the process at the other end of a Unix socket.
pub(crate) fn of_peer(socket: i32, is_so: impl FnOnce(i32) -> bool) -> bool {
    let Ok((pid, _)) = fd::peer(socket) else { return false };
    // Of this process until its end: where there is no such option, of whoever has the number now.
    let pidfd = fd::getsockopt_int(socket, libc::SOL_SOCKET, SO_PEERPIDFD);
    let is_so = is_so(pid);
    let is_gone =
        pidfd.map(fd::Owned::new).is_ok_and(|pidfd| fd::poll_one(pidfd.raw(), libc::POLLIN, 0) != Ok(0));
    is_so && !is_gone && pidfd != Err(Errno::ESRCH)
}

fn has_ours(pid: i32) -> bool {
    let [Some(ours), Some(theirs)] = [fd::getpid(), pid].map(of) else { return false };
    let [Some(here), Some(there)] = [fd::getpid(), pid].map(user_namespace) else { return false };
    here == there && theirs.include(&ours)
}

impl Rights {
    fn include(&self, other: &Rights) -> bool {
        let [mode, filters] = self.seccomp;
        let [other_mode, other_filters] = other.seccomp;
        self.ids == other.ids
            && other.permitted & !self.permitted == 0
            && self.no_new_privileges <= other.no_new_privileges
            && mode <= other_mode
            && filters <= other_filters
    }

    fn parse(text: &str) -> Option<Rights> {
        let line = |name| text.lines().find_map(|line: &str| line.strip_prefix(name));
        let number = |name| line(name).map_or(Some(0), |value| value.trim().parse().ok());
        let ids = |name| {
            let mut ids = [0; 4];
            let mut words = line(name)?.split_whitespace();
            for id in &mut ids {
                *id = words.next()?.parse().ok()?;
            }
            Some(ids)
        };
        Some(Rights {
            ids: [ids("Uid:")?, ids("Gid:")?],
            permitted: u64::from_str_radix(line("CapPrm:")?.trim(), 16).ok()?,
            no_new_privileges: number("NoNewPrivs:")?,
            seccomp: [number("Seccomp:")?, number("Seccomp_filters:")?],
        })
    }
}

fn of(pid: i32) -> Option<Rights> {
    let mut text = Scratch::take().ok()?;
    let got = fd::read_file(&procfs::of_process(pid, b"/status"), &mut text);
    // A process's own name may be any bytes.
    let text = text.get(..got.ok()?)?;
    let start = text.iter().position(|byte| *byte == b'\n')?;
    Rights::parse(core::str::from_utf8(text.get(start..)?).ok()?)
}

/// The identity of its user namespace.
fn user_namespace(pid: i32) -> Option<(u64, u64)> {
    let path = procfs::of_process(pid, b"/ns/user");
    // SAFETY: an all-zero stat is valid.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a C string; the kernel writes one stat.
    check(unsafe { syscall!(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut found, 0) })
        .ok()?;
    Some((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "\nUid:\t0\t0\t0\t0\nGid:\t5\t5\t5\t5\nCapPrm:\t000001ffffffffff\nNoNewPrivs:\t0\n\
        Seccomp:\t0\nSeccomp_filters:\t0\n";

    #[test]
    fn who_has_less_is_told() {
        let ours = Rights::parse(STATUS).unwrap();
        assert!(ours.include(&ours));
        for (from, to) in [
            ("NoNewPrivs:\t0", "NoNewPrivs:\t1"),
            ("Seccomp:\t0", "Seccomp:\t2"),
            ("Seccomp_filters:\t0", "Seccomp_filters:\t1"),
            ("1ff", "0ff"),
            ("Uid:\t0\t0\t0", "Uid:\t0\t0\t9"),
            ("Gid:\t5", "Gid:\t6"),
        ] {
            let less = Rights::parse(&STATUS.replace(from, to)).unwrap();
            assert!(!less.include(&ours), "{to}");
        }
        assert!(Rights::parse(&STATUS.replace("CapPrm", "Cap")).is_none());
    }

    #[test]
    fn this_process_has_its_own() {
        assert!(has_ours(fd::getpid()));
    }
}
