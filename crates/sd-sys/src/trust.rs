//! Whether a monitor's socket can be believed: by the way that leads to it, and by who is at its other end.
//!
//! Nothing is sent to a socket that a stranger could have put there. So each directory on the way belongs to root or
//! to this user and cannot be changed by anybody else; a sticky one (/tmp) is passed only on the way to what belongs to
//! root or this user, and is no place for the socket itself. And the process at the other end is root's or this user's.
//!
//! **Shifted user namespaces.** In a container the host's root has no number: it is shown as 65534, as is every user
//! from outside, so a number proves nothing. What does is the way: where nobody inside could have put the socket,
//! whoever set the container up did. So a user from outside is believed when the program names the socket itself
//! (SD_MONITOR) and the way is safe. A directory that belongs to 65534 is one from outside only if no user inside has
//! that number, or if it cannot be written to from inside: it is mounted read-only, or refuses even a user with
//! CAP_DAC_OVERRIDE, which the kernel grants over all users inside.
//!
//! Who is shown as 65534 himself cannot tell by numbers what is his own. The kernel can: it opens a file with O_NOATIME for its owner, and
//! for nobody else without CAP_FOWNER. So a directory, and the directory in /proc of the process at the other end, are asked for that.

mod owner;

use crate::fd::Owned;
use crate::{Errno, check, fd, syscall};
pub use owner::is_same_user;
use owner::{Outside, is_own, is_own_directory};

/// How a user without a number in this user namespace is shown (user_namespaces(7)).
pub const OVERFLOW_UID: u32 = 65534;
/// Longest path of a Unix socket, with a zero byte.
const PATH_MAX: usize = 108;
/// Directories above each other that are looked at, at most.
const DEPTH_MAX: usize = 64;

/// Where a monitor for all users of the host has its socket, with a zero byte at its end: root's, or nobody's.
pub const SYSTEM_SOCKET: &[u8] = b"/run/socksdirect/monitor.sock\0";

/// What is wrong with the way to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Of the path, so many bytes name what is wrong.
    pub len: usize,
    pub why: Why,
}

/// See [`Doubt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It cannot be looked at.
    Error(Errno),
    NotDirectory,
    /// It belongs to somebody else.
    Owner(u32),
    /// Others can write to it.
    Changeable,
    /// It is a symbolic link where none can be followed safely.
    Link,
}

impl core::fmt::Display for Why {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Why::Error(Errno::EACCES) => write!(f, "no access"),
            Why::Error(Errno::ENOENT) => write!(f, "does not exist"),
            Why::Error(Errno(number)) => write!(f, "cannot be looked at (error {number})"),
            Why::NotDirectory => write!(f, "is not a directory"),
            Why::Owner(OVERFLOW_UID) if Outside::of_process() != Outside::None => {
                write!(f, "belongs to user {OVERFLOW_UID}, whoever that is outside of this user namespace")
            }
            Why::Owner(uid) => write!(f, "belongs to user {uid}"),
            Why::Changeable => write!(f, "can be changed by others"),
            Why::Link => write!(f, "is a symbolic link"),
        }
    }
}

/// Looks at the directories that lead to the socket at `path`. `named`: by the program's environment or the command
/// line, not by default.
pub fn way_to(path: &[u8], named: bool) -> core::result::Result<(), Doubt> {
    let doubt = |len| move |why| Doubt { len, why };
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let mut len = slash.unwrap_or(0);
    while len > 0 && path.get(len - 1) == Some(&b'/') {
        len -= 1;
    }
    // A path that begins at the working directory, links and `..` lead on in ways that the names do not show.
    let mut is_plain = path.first() == Some(&b'/');
    let mut walk = Walk { believes_outside: named, is_sticky: false };
    if is_plain {
        let root = (libc::AT_FDCWD, b"/".as_slice());
        walk.directory(&look(b"/").map_err(doubt(1))?, root, len == 0).map_err(doubt(1))?;
    }
    let mut begin = 0;
    for end in 1..=len {
        if end < len && path.get(end) != Some(&b'/') {
            continue;
        }
        let (prefix, name) = (path.get(..end).unwrap_or(&[]), path.get(begin..end).unwrap_or(&[]));
        begin = end + 1;
        if name.is_empty() {
            continue;
        }
        let found = look(prefix).map_err(doubt(end))?;
        is_plain &= name != b".." && !is_link(&found);
        match is_link(&found) {
            true => walk.link(&found),
            false => walk.directory(&found, (libc::AT_FDCWD, prefix), end == len),
        }
        .map_err(doubt(end))?;
    }
    if !is_plain {
        let directory = if slash.is_none() { b"." } else { path.get(..len.max(1)).unwrap_or(&[]) };
        walk.up_from(directory).map_err(doubt(len))?;
    }
    match look(path) {
        Ok(found) if is_link(&found) => Err(doubt(path.len())(Why::Link)),
        // Then there is no monitor, which is for the caller to find.
        Ok(_) | Err(Why::Error(Errno::ENOENT)) => Ok(()),
        Err(why) => Err(doubt(path.len())(why)),
    }
}

/// Whether the process at the other end of a connection to such a socket may be the monitor: its user, if not.
pub fn other_end(socket: i32, named: bool) -> core::result::Result<(), u32> {
    let Ok((_, uid)) = fd::peer(socket) else { return Err(u32::MAX) };
    let is_from_outside = || named && uid == OVERFLOW_UID && Outside::of_process() != Outside::None;
    if uid == 0 || is_same_user(socket) || is_from_outside() { Ok(()) } else { Err(uid) }
}

fn is_link(found: &libc::stat) -> bool {
    found.st_mode & libc::S_IFMT == libc::S_IFLNK
}

/// Down the names, then up the directories that they lead to.
struct Walk {
    /// A directory may belong to a user from outside of this user namespace.
    believes_outside: bool,
    /// The directory above is a sticky one that all can write to.
    is_sticky: bool,
}

impl Walk {
    /// The next directory down; `is_last`: the socket is in it.
    fn directory(
        &mut self,
        found: &libc::stat,
        (at, path): (i32, &[u8]),
        is_last: bool,
    ) -> core::result::Result<(), Why> {
        if found.st_mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(Why::NotDirectory);
        }
        let is_ours = is_own_directory(found, at, path);
        // What the namespace is like is only asked for where it matters: that is a file of /proc.
        let may_be_outside = || found.st_uid == OVERFLOW_UID && Outside::of_process().made(path);
        let is_believed = is_ours || !self.is_sticky && self.believes_outside && may_be_outside();
        if !is_believed {
            return Err(Why::Owner(found.st_uid));
        }
        self.is_sticky = found.st_mode & 0o022 != 0;
        let is_passable = is_ours && !is_last && found.st_mode & libc::S_ISVTX != 0;
        if self.is_sticky && !is_passable { Err(Why::Changeable) } else { Ok(()) }
    }

    fn link(&mut self, found: &libc::stat) -> core::result::Result<(), Why> {
        self.is_sticky = false;
        if is_own(found.st_uid) { Ok(()) } else { Err(Why::Owner(found.st_uid)) }
    }

    /// From the directory in which the socket really is up to the root.
    fn up_from(&mut self, directory: &[u8]) -> core::result::Result<(), Why> {
        // A user from outside is believed by names only.
        self.believes_outside = false;
        let mut here = open(libc::AT_FDCWD, directory, libc::O_PATH | libc::O_DIRECTORY)?;
        let mut below: Option<libc::stat> = None;
        for _ in 0..DEPTH_MAX {
            let found = status(here.raw());
            let checked = found.and_then(|found| {
                self.is_sticky = false;
                self.directory(&found, (here.raw(), b"."), below.is_none())?;
                match &below {
                    Some(below) if self.is_sticky && !is_own(below.st_uid) => Err(Why::Changeable),
                    _ => Ok(found),
                }
            });
            let above = checked
                .and_then(|found| Ok((found, open(here.raw(), b"..", libc::O_PATH | libc::O_DIRECTORY)?)));
            let (found, above) = above?;
            if below.is_some_and(|below| (below.st_dev, below.st_ino) == (found.st_dev, found.st_ino)) {
                return Ok(());
            }
            (here, below) = (above, Some(found));
        }
        Err(Why::Error(Errno::ELOOP))
    }
}

fn terminated(path: &[u8]) -> Option<[u8; PATH_MAX]> {
    let mut text = [0u8; PATH_MAX];
    text.get_mut(..path.len())?.copy_from_slice(path);
    (path.len() < PATH_MAX).then_some(text)
}

/// lstat(2).
fn look(path: &[u8]) -> core::result::Result<libc::stat, Why> {
    let text = terminated(path).ok_or(Why::Error(Errno::ENAMETOOLONG))?;
    // SAFETY: an all-zero stat is valid; the kernel reads the path and writes one.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        check(syscall!(libc::SYS_newfstatat, libc::AT_FDCWD, text.as_ptr(), &raw mut found, flags))
            .map(|_| found)
            .map_err(Why::Error)
    }
}

/// What is at the place of a socket, so that another one there can be told from it; `None`: nothing. Its inode, its last change,
/// and its mode.
pub fn seen(path: &[u8]) -> Option<[u64; 4]> {
    let found = look(path).ok()?;
    Some([found.st_ino, found.st_ctime as u64, found.st_ctime_nsec as u64, found.st_mode.into()])
}

/// Of the mode of a monitor's socket: it moves connections that last to shared memory. On a socket the bit means nothing else, and it is
/// seen wherever the socket is mounted.
pub const PROMOTES: u32 = libc::S_ISVTX;

/// Whether the monitor at `path`, which ends in a zero byte, says that.
pub fn promotes(path: &[u8]) -> bool {
    look(path)
        .is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFSOCK && found.st_mode & PROMOTES != 0)
}

/// fstat(2).
fn status(directory: i32) -> core::result::Result<libc::stat, Why> {
    // SAFETY: an all-zero stat is valid; the kernel writes one.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        check(syscall!(libc::SYS_fstat, directory, &raw mut found)).map(|_| found).map_err(Why::Error)
    }
}

fn open(at: i32, path: &[u8], flags: i32) -> core::result::Result<Owned, Why> {
    let text = terminated(path).ok_or(Why::Error(Errno::ENAMETOOLONG))?;
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the kernel reads the path.
    check(unsafe { syscall!(libc::SYS_openat, at, text.as_ptr(), flags) })
        .map(|fd| Owned::new(fd as i32))
        .map_err(Why::Error)
}

fn read_file<'a>(path: &[u8], text: &'a mut [u8]) -> Option<&'a str> {
    let got = fd::read_file(&terminated(path)?, text).ok()?;
    core::str::from_utf8(text.get(..got)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
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
}
