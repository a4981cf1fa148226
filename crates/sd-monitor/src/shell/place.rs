//! The socket's place in the file system: a directory that only its owner can change, a lock
//! against a second monitor, and the socket; or a socket that was handed over, where all of this is its maker's.

use super::activation::Handed;
use crate::Error;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// See [`crate::default_socket_path`].
pub(crate) fn default_socket_path() -> PathBuf {
    let system = sd_sys::trust::SYSTEM_SOCKET.strip_suffix(b"\0").unwrap_or_default();
    let system = Path::new(OsStr::from_bytes(system));
    if system.exists() { system.to_owned() } else { own_socket_path() }
}

/// See [`crate::own_socket_path`].
pub(crate) fn own_socket_path() -> PathBuf {
    let uid = nix::unistd::geteuid();
    let variable = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let by_user = || Some(PathBuf::from(format!("/run/user/{uid}"))).filter(|path| path.exists());
    let by_home = || variable("HOME").filter(|_| !uid.is_root()).map(|home| home.join(".local/state"));
    let parent = variable("XDG_RUNTIME_DIR").or_else(by_user).or_else(by_home);
    match parent {
        Some(directory) => directory.join("socksdirect/monitor.sock"),
        None => PathBuf::from(format!("/run/socksdirect/{uid}/monitor.sock")),
    }
}

/// The bound socket. Dropping it removes the files that it has made.
pub(crate) struct Place {
    path: PathBuf,
    /// Device and inode of the socket file, so that a successor's file is never removed. `None`: it is not the monitor's to remove.
    identity: Option<(u64, u64)>,
    /// Equal for all monitors that are ever bound at this place; another place has another number.
    pub(crate) number: u64,
    lock: Option<Lock>,
    pub(crate) listener: OwnedFd,
}

impl Place {
    /// Takes the place, or says who has it.
    pub(crate) fn take(path: &Path) -> Result<Place, Error> {
        let system = |what| move |error| Error::System(what, path.to_owned(), error);
        let address = UnixAddr::new(path).map_err(|e| system("use as a socket")(e.into()))?;
        check_directory(path)?;
        let lock = patiently(&address, || Lock::take(path))?;
        patiently(&address, || remove_stale(path, &address, SockType::SeqPacket))?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(|e| system("make a socket for")(e.into()))?;
        // What clients send before they are accepted says who sent it, too.
        nix::sys::socket::setsockopt(&listener, nix::sys::socket::sockopt::PassCred, &true)
            .map_err(|e| system("set up")(e.into()))?;
        nix::sys::socket::bind(listener.as_raw_fd(), &address).map_err(|e| system("bind to")(e.into()))?;
        let identity = fs::symlink_metadata(path).map(identity).map(Some).map_err(system("look at"))?;
        let number = number(path).map_err(system("look at the directory of"))?;
        let place = Place { path: path.to_owned(), identity, number, lock: Some(lock), listener };
        nix::sys::socket::listen(&place.listener, Backlog::MAXCONN)
            .map_err(|e| system("listen on")(e.into()))?;
        // Who may come is decided by the directory, and by what each request needs. After listen: a client that was refused
        // tries again when it sees another file there, or another mode (`control/absent.rs` in sd-socket).
        fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(system("set the mode of"))?;
        Ok(place)
    }

    /// That of a socket which was handed over. Who made it sees to it that nobody else serves it; clients look at its directory
    /// as they do at any.
    pub(super) fn of(Handed { listener, path }: Handed) -> Result<Place, Error> {
        check_way(&path)?;
        let number =
            number(&path).map_err(|error| Error::System("look at the directory of", path.clone(), error))?;
        Ok(Place { path, identity: None, number, lock: None, listener })
    }

    /// Says whether connections are moved to shared memory where programs see it without asking (`sd_sys::trust::PROMOTES`).
    pub(super) fn say_promotes(&self, does: bool) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.path)?;
        let mode = found.mode() & 0o7777;
        let wanted = if does { mode | sd_sys::trust::PROMOTES } else { mode & !sd_sys::trust::PROMOTES };
        // Another mode is another socket to who looks for one.
        if !found.file_type().is_socket() || wanted == mode {
            return Ok(());
        }
        fs::set_permissions(&self.path, Permissions::from_mode(wanted))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.identity.is_some() && fs::symlink_metadata(&self.path).map(identity).ok() == self.identity {
            let _ = fs::remove_file(&self.path);
        }
        // After the socket, so that nobody takes the lock and then finds the old socket.
        drop(self.lock.take());
    }
}

/// However the directory is spelled, and in whichever mount namespace it is seen.
fn number(path: &Path) -> io::Result<u64> {
    let (device, inode) = identity(fs::metadata(directory_of(path))?);
    let name = path.file_name().unwrap_or_default().as_bytes();
    let bytes = device.to_le_bytes().into_iter().chain(inode.to_le_bytes()).chain(name.iter().copied());
    // FNV-1a: a monitor of another version must find the same number.
    Ok(bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}

pub(super) fn identity(metadata: fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// See [`crate::make_socket_directory`].
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    let way = if nix::unistd::geteuid().is_root() { 0o755 } else { 0o700 };
    if let Some(above) = directory.parent().filter(|above| !above.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(way).create(above)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Makes the directory unless it is there; what others could exchange is refused.
pub(super) fn check_directory(path: &Path) -> Result<(), Error> {
    let directory = directory_of(path);
    make_directory(directory)
        .map_err(|error| Error::System("make the directory", directory.to_owned(), error))?;
    check_way(path)
}

/// Refuses a place that others could exchange.
fn check_way(path: &Path) -> Result<(), Error> {
    sd_sys::trust::way_to(path.as_os_str().as_bytes(), true).map_err(|doubt| {
        let part = path.as_os_str().as_bytes().get(..doubt.len).unwrap_or_default();
        Error::Directory(PathBuf::from(OsStr::from_bytes(part)), doubt.why.to_string())
    })
}

/// The directory in which a socket is.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// So often, and so long each time, somebody who has the place is waited for: a monitor that starts or ends, or a helper that a killed monitor had
/// just forked, which has its descriptors until it executes its program.
const TRIES: u32 = 25;
const PAUSE: Duration = Duration::from_millis(10);

/// Not where a living monitor is found: its end, however soon, is not for a monitor that was started beside it.
fn patiently<T>(address: &UnixAddr, attempt: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..TRIES {
        match attempt() {
            Err(Error::AlreadyRunning(_)) if !is_served(address) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    attempt()
}

/// Whether the process that listens there lives. One that cannot be seen from here counts as dead.
fn is_served(address: &UnixAddr) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None);
    probe.is_ok_and(|probe| {
        let connected = nix::sys::socket::connect(probe.as_raw_fd(), address).is_ok();
        // Who called listen(2), also where others hold the socket.
        let owner = sd_sys::fd::peer(probe.as_raw_fd()).map_or(0, |(pid, _)| pid);
        connected && owner > 0 && !sd_sys::fd::task_is_dead(owner)
    })
}

/// Removes the socket of a monitor that died.
pub(super) fn remove_stale(path: &Path, address: &UnixAddr, kind: SockType) -> Result<(), Error> {
    let system = |what| move |error| Error::System(what, path.to_owned(), error);
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look at")(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(Error::InTheWay(path.to_owned())),
        Ok(_) => {}
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = nix::sys::socket::socket(AddressFamily::Unix, kind, flags, None)
        .map_err(|e| system("make a socket for")(e.into()))?;
    match nix::sys::socket::connect(probe.as_raw_fd(), address) {
        Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(system("remove the stale")),
        // EAGAIN: somebody listens and is busy.
        Ok(()) | Err(Errno::EAGAIN) => Err(Error::AlreadyRunning(path.to_owned())),
        Err(error) => Err(system("connect to")(error.into())),
    }
}

/// An flock(2) on a file beside the socket; the kernel lets it go when the process ends.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn take(socket: &Path) -> Result<Lock, Error> {
        let mut path = socket.to_owned().into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let system = |what| {
            let path = path.clone();
            move |error| Error::System(what, path, error)
        };
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)
                .map_err(system("open"))?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(Error::AlreadyRunning(socket.to_owned())),
                Err(TryLockError::Error(error)) => return Err(system("lock")(error)),
                Ok(()) => {}
            }
            // A monitor that ends removes the file; then the lock is one on a file without a name.
            let ours = file.metadata().map(identity).map_err(system("look at"))?;
            if fs::symlink_metadata(&path).is_ok_and(|found| identity(found) == ours) {
                return Ok(Lock { path, _file: file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sd-place-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn one_monitor_at_a_time_and_nothing_left() {
        let directory = scratch("one");
        let path = directory.join("monitor.sock");
        let place = Place::take(&path).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        assert!(matches!(Place::take(&path), Err(Error::AlreadyRunning(_))));
        drop(place);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        drop(Place::take(&path).unwrap());
        fs::remove_dir_all(&directory).unwrap();
    }

    /// Who has it for a moment, as a helper that has not executed its program yet.
    #[test]
    fn who_lets_go_soon_is_waited_for() {
        let directory = scratch("soon");
        let path = directory.join("monitor.sock");
        check_directory(&path).unwrap();
        let file = File::create(directory.join("monitor.sock.lock")).unwrap();
        file.try_lock().unwrap();
        let helper = std::thread::spawn(move || {
            std::thread::sleep(PAUSE);
            drop(file);
        });
        drop(Place::take(&path).unwrap());
        helper.join().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    /// Who ends only after somebody found it alive has no successor of that somebody's.
    #[test]
    fn a_living_monitor_is_not_waited_for() {
        let directory = scratch("alive");
        let path = directory.join("monitor.sock");
        let place = Place::take(&path).unwrap();
        let attempts = Cell::new(0);
        let address = UnixAddr::new(&path).unwrap();
        let found = patiently(&address, || {
            attempts.set(attempts.get() + 1);
            Lock::take(&path)
        });
        assert!(matches!(found, Err(Error::AlreadyRunning(_))));
        assert_eq!(attempts.get(), 1);
        drop(place);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn that_it_promotes_is_seen() {
        let directory = scratch("promotes");
        let path = directory.join("monitor.sock");
        let place = Place::take(&path).unwrap();
        let text = [path.as_os_str().as_bytes(), b"\0"].concat();
        for does in [false, true, true, false] {
            place.say_promotes(does).unwrap();
            assert_eq!(sd_sys::trust::promotes(&text), does);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        }
        drop(place);
        place_of_a_file(&path, &text);
        fs::remove_dir_all(&directory).unwrap();
    }

    fn place_of_a_file(path: &Path, text: &[u8]) {
        fs::write(path, "no socket").unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o1666)).unwrap();
        assert!(!sd_sys::trust::promotes(text), "only a socket says so");
        assert!(!sd_sys::trust::promotes(b"/nothing/is/here\0"));
    }

    #[test]
    fn a_stale_socket_is_replaced_but_nothing_else() {
        let directory = scratch("stale");
        let path = directory.join("monitor.sock");
        let mut place = Place::take(&path).unwrap();
        place.identity = Some((0, 0));
        drop(place);
        assert!(path.exists(), "left behind as by kill -9");
        drop(Place::take(&path).unwrap());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Place::take(&path), Err(Error::InTheWay(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn directories_that_others_can_change_are_refused() {
        let directory = scratch("open");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Place::take(&directory.join("s")), Err(Error::Directory(..))));
        fs::set_permissions(&directory, Permissions::from_mode(0o1777)).unwrap();
        assert!(matches!(Place::take(&directory.join("s")), Err(Error::Directory(..))), "sticky");
        drop(Place::take(&directory.join("deep/er/s")).unwrap());
        let mode = |name| fs::metadata(directory.join(name)).unwrap().mode() & 0o777;
        let way = if nix::unistd::geteuid().is_root() { 0o755 } else { 0o700 };
        assert_eq!([mode("deep"), mode("deep/er")], [way, 0o700]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
