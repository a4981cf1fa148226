//! A socket that a service manager has made and listens on (sd_listen_fds(3), "socket activation").
//!
//! ```text
//! systemd: socket, bind, listen --fork--> LISTEN_PID, LISTEN_FDS, descriptor 3 --exec--> monitor
//! ```
//! The file, its mode and the connections that wait there are the manager's, and stay when the monitor ends: the next one
//! takes them over. Whatever else was handed over, or a socket of another kind, is an error, and the monitor does not start.

use crate::Error;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockType, SockaddrLike, SockaddrStorage, UnixAddr, sockopt};
use nix::sys::socket::{getsockname, getsockopt, setsockopt};
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// SD_LISTEN_FDS_START of sd-daemon.h.
const FIRST: RawFd = 3;

/// A socket that was handed over, and its place in the file system.
pub(super) struct Handed {
    pub(super) listener: OwnedFd,
    pub(super) path: PathBuf,
}

/// The socket that a service manager has handed to this process, if one has. To be called once, before anything is opened.
pub(super) fn handed() -> Result<Option<Handed>, Error> {
    match handed_count() {
        0 => Ok(None),
        1 => {
            // SAFETY: the manager says that this descriptor is for this process, which has taken it nowhere else.
            let listener = unsafe { OwnedFd::from_raw_fd(FIRST) };
            check(listener).map(Some)
        }
        count => Err(unfit(format!("{count} sockets, and there can be one"))),
    }
}

/// Where that socket is, for who has to say it to others before [`handed`] takes it: processes that are started from here on do not inherit it.
pub(crate) fn handed_path() -> Option<PathBuf> {
    if handed_count() != 1 {
        return None;
    }
    // SAFETY: the manager says that this descriptor is for this process, which has not closed it yet.
    let listener = unsafe { BorrowedFd::borrow_raw(FIRST) };
    fcntl(listener, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
    let address: SockaddrStorage = getsockname(FIRST).ok()?;
    address.as_unix_addr().and_then(UnixAddr::path).map(Path::to_owned)
}

/// How many descriptors were handed to this process.
fn handed_count() -> u32 {
    let variable = |name| std::env::var_os(name);
    count(variable("LISTEN_PID").as_deref(), variable("LISTEN_FDS").as_deref(), std::process::id())
}

/// How many descriptors were handed to the process of this number. A parent's variables are for that parent.
fn count(pid: Option<&OsStr>, count: Option<&OsStr>, own: u32) -> u32 {
    let number = |text: Option<&OsStr>| text?.to_str()?.parse::<u32>().ok();
    number(count).filter(|_| number(pid) == Some(own)).unwrap_or(0)
}

/// Listening, of the kind that clients connect to, and with a name; sets it up as one of the monitor's own.
fn check(listener: OwnedFd) -> Result<Handed, Error> {
    let system = |errno: Errno| unfit(errno.to_string());
    let address: SockaddrStorage = getsockname(listener.as_raw_fd()).map_err(system)?;
    if address.family() != Some(AddressFamily::Unix)
        || getsockopt(&listener, sockopt::SockType).map_err(system)? != SockType::SeqPacket
        || !getsockopt(&listener, sockopt::AcceptConn).map_err(system)?
    {
        return Err(unfit("it is no listening Unix socket of sequential packets".to_owned()));
    }
    let path = address.as_unix_addr().and_then(UnixAddr::path).map(Path::to_owned);
    let Some(path) = path.filter(|path| path.is_absolute()) else {
        return Err(unfit("it has no place in the file system".to_owned()));
    };
    // What clients have sent by now came without its sender, unless the manager has set this before (PassCredentials=).
    setsockopt(&listener, sockopt::PassCred, &true).map_err(system)?;
    fcntl(listener.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(system)?;
    let flags = fcntl(listener.as_fd(), FcntlArg::F_GETFL).map_err(system)?;
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
    fcntl(listener.as_fd(), FcntlArg::F_SETFL(flags)).map_err(system)?;
    Ok(Handed { listener, path })
}

fn unfit(why: String) -> Error {
    Error::Handed(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, SockFlag, bind, listen, socket};

    #[test]
    fn what_is_for_another_process_is_none() {
        let text = |text| Some(OsStr::new(text));
        assert_eq!(count(text("12"), text("1"), 12), 1);
        assert_eq!(count(text("12"), text("2"), 12), 2);
        assert_eq!(count(text("11"), text("1"), 12), 0, "the parent's");
        assert_eq!(count(None, text("1"), 12), 0);
        assert_eq!(count(text("12"), None, 12), 0);
        assert_eq!(count(text("x"), text("1"), 12), 0);
        assert_eq!(count(text("12"), text("-1"), 12), 0);
    }

    fn unix(kind: SockType) -> OwnedFd {
        socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap()
    }

    #[test]
    fn only_a_listening_socket_of_the_right_kind_is_taken() {
        let path = std::env::temp_dir().join(format!("sd-activation-{}", std::process::id()));
        let address = UnixAddr::new(&path).unwrap();
        let refused = |socket: OwnedFd| matches!(check(socket), Err(Error::Handed(_)));
        assert!(refused(std::net::TcpListener::bind("127.0.0.1:0").unwrap().into()));
        assert!(refused(std::fs::File::open("/dev/null").unwrap().into()));
        assert!(refused(std::os::unix::net::UnixListener::bind(&path).unwrap().into()), "a stream");
        std::fs::remove_file(&path).unwrap();
        let silent = unix(SockType::SeqPacket);
        bind(silent.as_raw_fd(), &address).unwrap();
        let again = silent.try_clone().unwrap();
        assert!(refused(silent), "it does not listen");
        listen(&again, Backlog::MAXCONN).unwrap();
        let handed = check(again).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(handed.path, path);
        assert!(getsockopt(&handed.listener, sockopt::PassCred).unwrap());
        std::fs::remove_file(&path).unwrap();
        let unnamed = unix(SockType::SeqPacket);
        bind(unnamed.as_raw_fd(), &UnixAddr::new_abstract(path.as_os_str().as_encoded_bytes()).unwrap())
            .unwrap();
        listen(&unnamed, Backlog::MAXCONN).unwrap();
        assert!(refused(unnamed), "an abstract name");
    }
}
