//! Looks for segments of ours among the open files of all processes.
//!
//! Opening what a process has open could block, or do something, if it were not a memfd, and the
//! process may exchange it at any time. So it is first opened as a mere place (O_PATH), which
//! touches nothing, and must lie on the kernel's own file system of memfds, which nobody can mount;
//! only then is that very file opened.

use super::descriptors::{Identity, std_fd};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// As the kernel names a slab.
const SLAB: &str = "/memfd:sd-slab (deleted)";

/// What a file's name says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Slab,
    Channel,
}

impl Kind {
    fn of_link(target: &OsStr) -> Option<Kind> {
        match target.to_str()? {
            SLAB => Some(Kind::Slab),
            "/memfd:sd-channel (deleted)" => Some(Kind::Channel),
            _ => None,
        }
    }
}

/// An open file of a process. Nothing is held of it.
pub(crate) struct Found {
    pub(crate) pid: u32,
    pub(crate) kind: Kind,
    pub(crate) identity: Identity,
    path: PathBuf,
}

/// See the module.
pub(crate) struct Processes {
    /// Where memfds are.
    device: u64,
}

impl Processes {
    /// `None` when /proc shows another namespace's processes, or none.
    pub(crate) fn new() -> Option<Processes> {
        let own = fs::read_link("/proc/self").ok()?;
        if own.to_str()? != std::process::id().to_string() {
            return None;
        }
        let probe = sd_sys::mem::memfd_sealed(c"sd-probe", 0).ok()?;
        let probe = std_fd(probe);
        let (device, _) = identity(&probe)?;
        Some(Processes { device })
    }

    /// Every segment that a process has open which we may look at; of a client with many descriptors only if one is a
    /// slab of which `is_ours` says that it is this monitor's.
    pub(crate) fn segments(&self, is_ours: impl Fn(&Found) -> bool) -> Vec<Found> {
        let mut found = Vec::new();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            if pid != std::process::id() {
                self.look_at(pid, &is_ours, &mut found);
            }
        }
        found
    }

    fn look_at(&self, pid: u32, is_ours: impl Fn(&Found) -> bool, found: &mut Vec<Found>) {
        if has_many_files(pid) && !maps_a_slab(pid) {
            return;
        }
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        // A client has its own slab close behind those that it has inherited.
        const CLOSE: usize = 500;
        let (mut left, mut is_client) = (usize::MAX, false);
        for path in files.map(|entry| entry.path()) {
            if left == 0 {
                return;
            }
            left -= 1;
            let kind = fs::read_link(&path).ok().and_then(|target| Kind::of_link(target.as_os_str()));
            if let Some(kind) = kind
                && let Some((_, identity)) = self.place(&path)
            {
                let one = Found { pid, kind, identity, path };
                if kind == Kind::Slab {
                    is_client |= is_ours(&one);
                    left = if is_client { usize::MAX } else { CLOSE };
                }
                found.push(one);
            }
        }
    }

    /// The file, opened; `None` when it is another by now.
    pub(crate) fn open(&self, found: &Found) -> Option<File> {
        let (place, identity) = self.place(&found.path)?;
        if identity != found.identity {
            return None;
        }
        let path = format!("/proc/self/fd/{}", place.as_raw_fd());
        // Its owner may have a lease of it (fcntl(2), F_SETLEASE), which is waited for otherwise.
        OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(path).ok()
    }

    fn place(&self, path: &Path) -> Option<(OwnedFd, Identity)> {
        let place = nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
        let identity = identity(&place).filter(|(device, _)| *device == self.device)?;
        Some((place, identity))
    }
}

/// So many that a look at the process's mappings takes less time than one at each of them.
fn has_many_files(pid: u32) -> bool {
    const MANY: u64 = 1000;
    // The directory's size is their number (since Linux 6.2; before, zero).
    fs::metadata(format!("/proc/{pid}/fd")).is_ok_and(|folder| folder.len() > MANY)
}

/// How long the list of a process's mappings is waited for: its reader needs a lock that the process may have while
/// it waits for a page that somebody else serves.
const MAPS_WAIT: Duration = Duration::from_millis(50);
/// Lists that did not come in time; after so many no other is asked for.
static LATE: AtomicU32 = AtomicU32::new(0);
const LATE_MAX: u32 = 4;

/// Whether the process has a slab mapped, as all clients have; yes if that cannot be seen, or not soon.
fn maps_a_slab(pid: u32) -> bool {
    if LATE.load(Ordering::Relaxed) >= LATE_MAX {
        return true;
    }
    let (tell, answer) = channel();
    let reader = move || {
        let name = format!(" {SLAB}");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
        let _ = tell.send(maps.map_or(true, |maps| maps.lines().any(|line| line.ends_with(&name))));
    };
    if std::thread::Builder::new().name("maps".into()).spawn(reader).is_err() {
        return true;
    }
    answer.recv_timeout(MAPS_WAIT).unwrap_or_else(|_| {
        LATE.fetch_add(1, Ordering::Relaxed);
        true
    })
}

/// Device and inode number, without asking a server of a file system.
fn identity(fd: &OwnedFd) -> Option<Identity> {
    // SAFETY: an all-zero statx is valid.
    let mut found: libc::statx = unsafe { core::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is a C string, and the kernel writes one statx.
    let done = unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_INO, &mut found) };
    (done == 0).then(|| (libc::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn whoever_maps_a_slab_is_looked_at() {
        let own = std::process::id();
        assert!(!has_many_files(own));
        let (_fd, _mapped) = sd_shm::slab::Slab::create(1).unwrap();
        assert!(maps_a_slab(own));
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!maps_a_slab(other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn segments_of_another_name_or_place_are_not_found() {
        let Some(processes) = Processes::new() else { return };
        let (fd, _) = sd_shm::slab::Slab::create(1).unwrap();
        let number = fd.raw();
        let slab = std_fd(fd);
        let null = File::open("/dev/null").unwrap();
        let mut found = Vec::new();
        processes.look_at(std::process::id(), |_| true, &mut found);
        let mine = Some(format!("/proc/{}/fd/{number}", std::process::id()).into());
        let found = found.iter().find(|one| Some(&one.path) == mine.as_ref()).expect("the slab");
        assert_eq!((found.kind, Some(found.identity)), (Kind::Slab, identity(&slab)));
        let opened = processes.open(found).unwrap();
        assert_eq!(super::super::segments::Slab::check(opened.as_fd()), Ok(found.identity));
        let path = PathBuf::from(format!("/proc/self/fd/{}", null.as_raw_fd()));
        assert!(processes.place(&path).is_none());
        assert_eq!(Kind::of_link(OsStr::new("/memfd:sd-slab2 (deleted)")), None);
    }
    #[test]
    fn clients_of_other_monitors_are_passed_over() {
        let Some(processes) = Processes::new() else { return };
        let (fd, _) = sd_shm::slab::Slab::create(1).unwrap();
        let slab = std_fd(fd);
        // Behind any number that another test may have.
        let channel = sd_sys::mem::memfd_sealed(c"sd-channel", 0).unwrap();
        let others: Vec<File> = (0..700).map_while(|_| File::open("/dev/null").ok()).collect();
        let Ok(last) = sd_sys::fd::dup_above(channel.raw(), others.last().map_or(0, AsRawFd::as_raw_fd))
        else {
            return;
        };
        let finds = |is_ours: bool| {
            let mut found = Vec::new();
            processes.look_at(std::process::id(), |_| is_ours, &mut found);
            found.iter().any(|one| one.path.ends_with(last.raw().to_string()))
        };
        assert!(finds(true));
        assert!(others.len() < 700 || !finds(false));
        drop(slab);
    }
}
