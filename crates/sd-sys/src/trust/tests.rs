//! Directories and users, as root where that takes rights.

use super::*;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// A directory that only this user can change, and that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("sd-trust-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn why(path: &Path) -> Option<Why> {
    way_to(path.as_os_str().as_bytes(), true).err().map(|doubt| doubt.why)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_of_ours_below_a_sticky_one_is_safe() {
    let scratch = Scratch::new("own");
    assert_eq!(why(&scratch.0.join("s")), None);
    let inner = scratch.0.join("a//b");
    fs::create_dir_all(&inner).unwrap();
    assert_eq!(why(&inner.join("s")), None);
    assert_eq!(why(Path::new("/s")), None, "the root directory");
}

#[test]
fn what_others_can_write_to_is_no_place_and_no_way() {
    let scratch = Scratch::new("open");
    let inner = scratch.0.join("inner");
    fs::create_dir(&inner).unwrap();
    for mode in [0o777, 0o770, 0o702] {
        set_mode(&scratch.0, mode);
        assert_eq!(why(&inner.join("s")), Some(Why::Changeable), "{mode:o}");
    }
    // Sticky is enough on the way, not for the place itself.
    set_mode(&scratch.0, 0o1777);
    assert_eq!(why(&inner.join("s")), None);
    assert_eq!(why(&scratch.0.join("s")), Some(Why::Changeable));
    assert_eq!(why(Path::new("/tmp/s")), Some(Why::Changeable));
}

#[test]
fn owners_must_be_root_or_ourselves() {
    let scratch = Scratch::new("owner");
    let inner = scratch.0.join("inner");
    fs::create_dir(&inner).unwrap();
    // Only root can give files away.
    if chown(&inner, Some(2003), None).is_ok() {
        assert_eq!(why(&inner.join("s")), Some(Why::Owner(2003)));
        assert_eq!(why(&inner.join("deeper/s")), Some(Why::Owner(2003)));
    }
}

#[test]
fn links_are_followed_with_care() {
    let scratch = Scratch::new("link");
    let (safe, open) = (scratch.0.join("safe"), scratch.0.join("open"));
    [&safe, &open].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    set_mode(&open, 0o777);
    symlink(&safe, scratch.0.join("to-safe")).unwrap();
    symlink(&open, scratch.0.join("to-open")).unwrap();
    symlink(safe.join("t"), safe.join("s")).unwrap();
    fs::create_dir(open.join("below")).unwrap();
    assert_eq!(why(&scratch.0.join("to-safe/t")), None);
    assert_eq!(why(&scratch.0.join("to-open/t")), Some(Why::Changeable));
    assert_eq!(why(&scratch.0.join("to-open/below/t")), Some(Why::Changeable));
    assert_eq!(why(&safe.join("../open/t")), Some(Why::Changeable));
    assert_eq!(why(&safe.join("../safe/t")), None);
    assert_eq!(why(&safe.join("s")), Some(Why::Link));
}

#[test]
fn what_is_no_directory_or_not_there() {
    assert_eq!(why(Path::new("/etc/hostname/s")), Some(Why::NotDirectory));
    assert_eq!(why(Path::new("/no/such/s")), Some(Why::Error(Errno::ENOENT)));
    let doubt = way_to(b"/no/such/s", false).unwrap_err();
    assert_eq!(doubt.len, 3);
    assert!(way_to(&[b'x'; 300], false).is_err());
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
            let mut walk = Walk { believes_outside: false, is_sticky: false };
            let is_own = look(path).and_then(|it| walk.directory(&it, (libc::AT_FDCWD, path), true)).is_ok();
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
fn users_who_are_shown_alike_are_told_apart() {
    const NOBODY: u32 = OVERFLOW_UID;
    if fd::geteuid() != 0 {
        return;
    }
    for (map, outside, inside) in [("0 100000 65536", 0, Some(NOBODY)), ("0 100000 9", 2004, None)] {
        let own = inside.map_or(outside, |inside| FIRST + inside);
        let scratch = Scratch::new(&format!("alike-{own}"));
        set_mode(&scratch.0, 0o755);
        let paths = [own, THEIRS].map(|owner| {
            let path = scratch.0.join(owner.to_string());
            fs::create_dir(&path).unwrap();
            chown(&path, Some(owner), None).unwrap();
            set_mode(&path, 0o755);
            path
        });
        let paths = [&paths[0], &paths[1]].map(|path| path.as_os_str().as_bytes());
        let listening = [own, THEIRS].map(Listening::new);
        let found = own_ones(map, outside, inside, paths, [&listening[0], &listening[1]]);
        assert_eq!(found, 0b10101, "{map}: own directory and listener, not the other's: {found:b}");
    }
}
