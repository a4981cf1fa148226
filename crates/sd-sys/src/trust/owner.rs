//! Whose something is, where several users have one number: those without one in this user namespace are all shown as 65534, and so is
//! the user inside who has that.

use super::{OVERFLOW_UID, open, read_file, terminated};
use crate::scratch::Scratch;
use crate::{Errno, check, fd, syscall};

const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_FOWNER: u32 = 3;

/// Whether the process at the other end of a connection is this user's.
pub fn is_same_user(socket: i32) -> bool {
    let Ok((_, uid)) = fd::peer(socket) else { return false };
    uid == fd::geteuid() && (says_who(uid) || crate::rights::of_peer(socket, owns_process))
}

/// Root's, or this user's, as far as numbers tell.
pub(super) fn is_own(uid: u32) -> bool {
    uid == 0 || uid == fd::geteuid() && says_who(uid)
}

/// The number is one user's.
fn says_who(uid: u32) -> bool {
    uid != OVERFLOW_UID || Outside::of_process() == Outside::None
}

/// Root's, or this user's.
pub(super) fn is_own_directory(found: &libc::stat, at: i32, path: &[u8]) -> bool {
    is_own(found.st_uid) || found.st_uid == fd::geteuid() && owns(at, path)
}

/// The kernel lets this process do what only a file's owner may.
fn owns(at: i32, path: &[u8]) -> bool {
    let flags = libc::O_DIRECTORY | libc::O_NOATIME | libc::O_NONBLOCK;
    !has_capability(CAP_FOWNER) && open(at, path, flags).is_ok()
}

fn owns_process(pid: i32) -> bool {
    let path = crate::procfs::of_process(pid, b"");
    owns(libc::AT_FDCWD, path.split(|byte| *byte == 0).next().unwrap_or(&[]))
}

/// Whether users from outside of this user namespace can be told from those inside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outside {
    /// There are none: every user has its number.
    None,
    /// One of them is shown as 65534, and so is a user inside.
    Ambiguous,
    /// One of them is shown as 65534, and nobody else is.
    Clear,
}

impl Outside {
    pub(super) fn of_process() -> Outside {
        let Ok(mut text) = Scratch::take() else { return Outside::Ambiguous };
        let Some(text) = read_file(b"/proc/self/uid_map", &mut text) else { return Outside::None };
        let mut is_inside = false;
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0u64));
            let (first, _, count) = (words.next(), words.next(), words.next());
            let (Some(first), Some(count)) = (first, count) else { return Outside::None };
            if first == 0 && count >= u64::from(u32::MAX) {
                return Outside::None;
            }
            is_inside |= (first..first + count).contains(&u64::from(OVERFLOW_UID));
        }
        if is_inside { Outside::Ambiguous } else { Outside::Clear }
    }

    /// Whether a directory that belongs to [`OVERFLOW_UID`] was made by somebody outside.
    pub(super) fn made(self, path: &[u8]) -> bool {
        match self {
            Outside::None => false,
            Outside::Clear => true,
            Outside::Ambiguous => is_closed_to_insiders(path),
        }
    }
}

/// Nobody inside of this user namespace can write to the directory, whoever its owner is.
fn is_closed_to_insiders(path: &[u8]) -> bool {
    let Some(text) = terminated(path) else { return false };
    // SAFETY: an all-zero statfs is valid; the kernel reads the path and writes one.
    let is_read_only = unsafe {
        let mut found: libc::statfs64 = core::mem::zeroed();
        check(syscall!(libc::SYS_statfs, text.as_ptr(), &raw mut found)).is_ok()
            && found.f_flags & libc::ST_RDONLY as libc::__fsword_t != 0
    };
    let (here, flags) = (libc::AT_FDCWD, libc::AT_EACCESS);
    // SAFETY: the kernel reads the path.
    let call = || unsafe { syscall!(libc::SYS_faccessat2, here, text.as_ptr(), libc::W_OK, flags) };
    is_read_only || has_capability(CAP_DAC_OVERRIDE) && check(call()) == Err(Errno::EACCES)
}

/// Whether this process has one of the first 32 in its user namespace.
fn has_capability(which: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let mut data = [0u32; 6];
    // SAFETY: the kernel reads the header and writes two records of three words.
    let got = check(unsafe { syscall!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) });
    got.is_ok() && data.first().is_some_and(|effective| effective >> which & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::super::look;
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, chown};

    fn set_mode(path: &std::path::Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A user from outside of the namespace, below.
    const THEIRS: u32 = 2003;
    /// The first user inside.
    const FIRST: u32 = 100_000;

    /// A process of a user's that listens at an abstract name, until it is dropped.
    struct Listening(i32, Vec<u8>);

    impl Listening {
        fn new(user: u32) -> Listening {
            let name = format!("\0sd-trust-{user}-{}", std::process::id()).into_bytes();
            let (mut ready, says) = std::io::pipe().unwrap();
            // SAFETY: the child makes system calls only.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: plain system calls; a process that has changed its user is not dumpable otherwise.
                unsafe { (libc::setresuid(user, user, user), libc::prctl(libc::PR_SET_DUMPABLE, 1)) };
                let listener = crate::msg::listen_unix(&name);
                // SAFETY: writes one byte, then waits for its end.
                unsafe {
                    libc::write(says.as_raw_fd(), [u8::from(listener.is_ok())].as_ptr().cast(), 1);
                    loop {
                        libc::pause();
                    }
                }
            }
            let mut byte = [0];
            std::io::Read::read_exact(&mut ready, &mut byte).unwrap();
            assert_eq!(byte, [1]);
            Listening(child, name)
        }
    }

    impl Drop for Listening {
        fn drop(&mut self) {
            // SAFETY: the child from above, which is waited for.
            unsafe { (libc::kill(self.0, libc::SIGKILL), libc::waitpid(self.0, core::ptr::null_mut(), 0)) };
        }
    }

    /// What a process says that is shown as 65534 to itself: which of the directories and of the listeners is its own, and that it could ask.
    /// It is user `outside` before it makes the namespace, and user `inside` there, or nobody.
    fn own_ones(map: &str, outside: u32, inside: Option<u32>, paths: [&[u8]; 2], all: [&Listening; 2]) -> u8 {
        let ((mut ready, says), (hears, mut go)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut found = 0;
            // SAFETY: plain system calls with buffers of their own; the last one takes all capabilities away.
            unsafe {
                libc::setresuid(outside, outside, outside);
                let is_new = libc::unshare(libc::CLONE_NEWUSER) == 0;
                libc::write(says.as_raw_fd(), [u8::from(is_new)].as_ptr().cast(), 1);
                libc::read(hears.as_raw_fd(), [0u8].as_mut_ptr().cast(), 1);
                inside.inspect(|user| _ = libc::setresuid(*user, *user, *user));
                let (header, none) = ([0x2008_0522u32, 0], [0u32; 6]);
                syscall!(libc::SYS_capset, header.as_ptr(), none.as_ptr());
            }
            for (at, path) in paths.into_iter().enumerate() {
                let is_own = look(path).is_ok_and(|it| is_own_directory(&it, libc::AT_FDCWD, path));
                found |= u8::from(is_own) << at;
            }
            for (at, Listening(_, name)) in all.into_iter().enumerate() {
                let end = crate::msg::connect_unix(name, 1000);
                found |= u8::from(end.is_ok_and(|end| is_same_user(end.raw()))) << (2 + at);
            }
            found |= u8::from(fd::geteuid() == OVERFLOW_UID) << 4;
            // SAFETY: ends this process.
            unsafe { libc::_exit(found.into()) };
        }
        let (mut byte, mut status) = ([0], 0);
        std::io::Read::read_exact(&mut ready, &mut byte).unwrap();
        if byte == [1] {
            ["uid_map", "gid_map"]
                .iter()
                .for_each(|file| fs::write(format!("/proc/{child}/{file}"), map).unwrap());
        }
        std::io::Write::write_all(&mut go, &byte).unwrap();
        // SAFETY: the child from above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        libc::WEXITSTATUS(status) as u8
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes processes")]
    fn users_who_are_shown_alike_are_told_apart() {
        const NOBODY: u32 = OVERFLOW_UID;
        if fd::geteuid() != 0 {
            return;
        }
        for (map, outside, inside) in [("0 100000 65536", 0, Some(NOBODY)), ("0 100000 9", 2004, None)] {
            let own = inside.map_or(outside, |inside| FIRST + inside);
            let scratch = std::env::temp_dir().join(format!("sd-trust-alike-{own}-{}", std::process::id()));
            fs::create_dir(&scratch).unwrap();
            set_mode(&scratch, 0o755);
            let paths = [own, THEIRS].map(|owner| {
                let path = scratch.join(owner.to_string());
                fs::create_dir(&path).unwrap();
                chown(&path, Some(owner), None).unwrap();
                set_mode(&path, 0o755);
                path
            });
            let paths = [&paths[0], &paths[1]].map(|path| path.as_os_str().as_bytes());
            let listening = [own, THEIRS].map(Listening::new);
            let found = own_ones(map, outside, inside, paths, [&listening[0], &listening[1]]);
            fs::remove_dir_all(&scratch).unwrap();
            assert_eq!(found, 0b10101, "{map}: own directory and listener, not the other's: {found:b}");
        }
    }
}
