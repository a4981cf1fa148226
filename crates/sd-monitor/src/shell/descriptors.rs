//! Is a descriptor that a client sent what it says? Nothing is mapped, written or believed before.
//!
//! | descriptor | what could go wrong otherwise |
//! |---|---|
//! | segment | a short, shrinking or huge-page file makes an access fault |
//! | eventfd | writing to a pipe or a file could block |
//! | pidfd | the wait for its process would be for something else; questions about other files wait for locks |
//! | listener | a port that the client does not own |

use crate::core::offers::{Facts, Numbers};
use nix::sys::socket::SockaddrStorage;
use sd_proto::{Ip, OFFER_MAX_MS};
use sd_sys::origins::Origins;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The descriptor is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfit;

/// Device and inode number: the same for every descriptor of one segment.
pub(crate) type Identity = (u64, u64);

/// What the standard library owns from now on.
pub fn std_fd(fd: sd_sys::fd::Owned) -> OwnedFd {
    // SAFETY: the descriptor is nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}

/// Checks for a memfd of exactly `len` bytes with these seals.
pub(crate) fn check_segment(fd: BorrowedFd<'_>, len: usize, seals: i32) -> Result<Identity, Unfit> {
    // First, as only files in memory answer it: a file system served by a process could keep us waiting.
    let sealed = sd_sys::mem::get_seals(fd.as_raw_fd()).map_err(|_| Unfit)?;
    // memfds lie in tmpfs, but for those of huge pages, where an access may find no page.
    let is_tmpfs =
        nix::sys::statfs::fstatfs(fd).is_ok_and(|fs| fs.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC);
    let found = nix::sys::stat::fstat(fd).map_err(|_| Unfit)?;
    if is_tmpfs && found.st_size as u64 == len as u64 && sealed & seals == seals {
        Ok((found.st_dev, found.st_ino))
    } else {
        Err(Unfit)
    }
}

/// Checks for an eventfd.
pub(crate) fn check_eventfd(fd: BorrowedFd<'_>) -> Result<(), Unfit> {
    if is_called(fd, "anon_inode:[eventfd]") { Ok(()) } else { Err(Unfit) }
}

/// What the kernel calls a file, which takes no lock of the file's. Names of files that processes can choose begin with
/// a slash.
fn is_called(fd: BorrowedFd<'_>, name: &str) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == name)
}

/// Checks for a pidfd. Before anything else is asked about it: fdinfo of an epoll instance waits for its lock, which
/// another thread of its owner's may have for as long as it likes.
pub(crate) fn check_pidfd(fd: BorrowedFd<'_>) -> Result<(), Unfit> {
    if is_called(fd, "anon_inode:[pidfd]") { Ok(()) } else { Err(Unfit) }
}

/// The process id behind a pidfd; zero when it has ended or lies in another pid namespace.
pub(crate) fn pid_of_pidfd(fd: BorrowedFd<'_>) -> Result<u32, Unfit> {
    check_pidfd(fd)?;
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    // The kernel gives all of it at once; there is one such question for each fork of a client's.
    let mut bytes = [0; 512];
    let len = std::fs::File::open(path).and_then(|mut file| file.read(&mut bytes)).map_err(|_| Unfit)?;
    let info = str::from_utf8(bytes.get(..len).unwrap_or(&[])).map_err(|_| Unfit)?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).ok_or(Unfit)?;
    Ok(pid.trim().parse::<u32>().unwrap_or(0))
}

/// Whether the process behind a pidfd has ended.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    ends_within(pidfd, 0)
}

/// As [`has_ended`], for who waits a moment.
pub(crate) fn ends_within(pidfd: BorrowedFd<'_>, ms: i32) -> bool {
    sd_sys::fd::poll_one(pidfd.as_raw_fd(), libc::POLLIN, ms).is_ok_and(|events| events != 0)
}

/// Checks for a socket of a pair as [`sd_proto::Request::Fork`] wants it: a Unix-domain SOCK_SEQPACKET one that the sender has
/// made. One that is connected to somebody else's socket would have us tell them things in our own name: in the end to
/// ourselves, and our answers would be requests of root's.
pub(crate) fn check_pair(fd: BorrowedFd<'_>, sender: u32) -> Result<(), Unfit> {
    let option = |name| sd_sys::fd::getsockopt_int(fd.as_raw_fd(), libc::SOL_SOCKET, name).map_err(|_| Unfit);
    let is_pair = option(libc::SO_DOMAIN)? == libc::AF_UNIX
        && option(libc::SO_TYPE)? == libc::SOCK_SEQPACKET
        && option(libc::SO_ACCEPTCONN)? == 0;
    let peer = nix::sys::socket::getsockopt(&fd, nix::sys::socket::sockopt::PeerCredentials);
    let is_own = peer.is_ok_and(|peer| peer.pid().max(0) as u32 == sender);
    if is_pair && is_own { Ok(()) } else { Err(Unfit) }
}

/// The network namespace of a TCP socket. None of these questions takes the socket's lock, with which another thread of
/// its owner's could keep us waiting.
pub(crate) fn netns_of_tcp(fd: BorrowedFd<'_>) -> Result<u64, Unfit> {
    check_tcp(fd)?;
    Ok(netns_of(fd))
}

/// That of any socket; zero: the kernel does not tell.
pub(super) fn netns_of(fd: BorrowedFd<'_>) -> u64 {
    // Kernels before 5.14 have no such option; then all namespaces look alike.
    sd_sys::fd::netns_of(fd.as_raw_fd()).unwrap_or(0)
}

/// A TCP socket, or one that listens and connects by TCP sockets of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Mptcp,
}

fn check_tcp(fd: BorrowedFd<'_>) -> Result<i32, Unfit> {
    check_stream(fd).and_then(|(domain, kind)| if kind == Kind::Tcp { Ok(domain) } else { Err(Unfit) })
}

/// Its domain, and what it is.
fn check_stream(fd: BorrowedFd<'_>) -> Result<(i32, Kind), Unfit> {
    let option = |name| sd_sys::fd::getsockopt_int(fd.as_raw_fd(), libc::SOL_SOCKET, name).map_err(|_| Unfit);
    let domain = option(libc::SO_DOMAIN)?;
    let kind = match option(libc::SO_PROTOCOL)? {
        libc::IPPROTO_TCP => Kind::Tcp,
        libc::IPPROTO_MPTCP => Kind::Mptcp,
        _ => return Err(Unfit),
    };
    let is_stream =
        option(libc::SO_TYPE)? == libc::SOCK_STREAM && [libc::AF_INET, libc::AF_INET6].contains(&domain);
    if is_stream { Ok((domain, kind)) } else { Err(Unfit) }
}

/// The user who has made a TCP or MPTCP socket, without its lock.
pub(crate) fn owner_of_tcp(fd: BorrowedFd<'_>) -> Result<u32, Unfit> {
    // First, as a file system that a process serves could keep us waiting.
    check_stream(fd)?;
    nix::sys::stat::fstat(fd).map(|found| found.st_uid).map_err(|_| Unfit)
}

/// What a kernel listener proves: its process owns this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) netns: u64,
    pub(crate) ip: Ip,
    pub(crate) port: u16,
    pub(crate) v6only: bool,
    /// By which the kernel knows it, as long as it exists.
    pub(crate) cookie: u64,
    /// The user whose socket it is.
    pub(crate) owner: u32,
    /// It is an MPTCP socket, with this inode; see [`super::proof::Namespaces::as_listed`].
    pub(crate) mptcp_inode: Option<u32>,
}

/// Checks for a listening TCP or MPTCP socket that is reachable at its address from the whole namespace. May wait for the
/// socket's lock, and so is not for the main thread.
pub(crate) fn check_listener(fd: BorrowedFd<'_>) -> Result<Owned, Unfit> {
    let kind = check_stream(fd)?;
    let raw = fd.as_raw_fd();
    let option = |level, name| sd_sys::fd::getsockopt_int(raw, level, name);
    if option(libc::SOL_SOCKET, libc::SO_ACCEPTCONN) != Ok(1) {
        return Err(Unfit);
    }
    owned(fd, kind)
}

/// Checks for a TCP or MPTCP socket that could listen at its address.
pub(crate) fn check_bound(fd: BorrowedFd<'_>) -> Result<Owned, Unfit> {
    let kind = check_stream(fd)?;
    match nix::sys::socket::getpeername::<SockaddrStorage>(fd.as_raw_fd()) {
        Err(nix::errno::Errno::ENOTCONN) => owned(fd, kind),
        // Closing a connected one could take long.
        _ => Err(Unfit),
    }
}

fn owned(fd: BorrowedFd<'_>, (domain, kind): (i32, Kind)) -> Result<Owned, Unfit> {
    let raw = fd.as_raw_fd();
    let option = |level, name| sd_sys::fd::getsockopt_int(raw, level, name);
    if option(libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX).is_ok_and(|index| index != 0) {
        return Err(Unfit);
    }
    let v6only = domain == libc::AF_INET6 && option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) != Ok(0);
    let (ip, port) = name_of(fd)?;
    let cookie = sd_sys::fd::getsockopt_u64(raw, libc::SOL_SOCKET, libc::SO_COOKIE).map_err(|_| Unfit)?;
    let found = nix::sys::stat::fstat(fd).map_err(|_| Unfit)?;
    let mptcp_inode = (kind == Kind::Mptcp).then_some(found.st_ino as u32);
    Ok(Owned { netns: netns_of(fd), ip, port, v6only, cookie, owner: found.st_uid, mptcp_inode })
}

/// Checks for an established TCP connection that is bound to no device. As [`check_listener`], not for the main thread. Nobody may be in
/// a call on it (`sd_sys::origins`), and who asked long ago may be by now: then its numbers are to be asked for later.
pub(crate) fn check_connected(fd: BorrowedFd<'_>, asked_ms: u64) -> Result<Facts, Unfit> {
    check_tcp(fd)?;
    let raw = fd.as_raw_fd();
    let Owned { netns, ip, port, cookie, .. } = owned(fd, (libc::AF_INET, Kind::Tcp))?;
    let name: SockaddrStorage = nix::sys::socket::getpeername(raw).map_err(|_| Unfit)?;
    let remote = of_storage(&name)?;
    let info = sd_sys::tcp::info(raw).map_err(|_| Unfit)?;
    // Data that came with the SYN the kernel counts in another way.
    if info.state != sd_sys::tcp::ESTABLISHED || info.options & sd_sys::tcp::SYN_DATA != 0 {
        return Err(Unfit);
    }
    // Last of all. A monitor that is stopped between this look and the answer, for longer than the rest of the sender's patience, is out of luck.
    let is_late = sd_sys::time::real_ms().saturating_sub(asked_ms) > OFFER_MAX_MS;
    let numbers = if is_late { Numbers::Later } else { numbers(raw) };
    Ok(Facts { netns, cookie, local: (ip, port), remote, numbers })
}

fn numbers(connection: i32) -> Numbers {
    match sd_sys::origins::origins(connection) {
        Ok(Origins { sent, received }) => Numbers::Known { sent, received },
        Err(sd_sys::Errno::EAGAIN) => Numbers::Later,
        Err(sd_sys::Errno::ENOBUFS) => Numbers::Full,
        Err(_) => Numbers::Untold,
    }
}

fn name_of(fd: BorrowedFd<'_>) -> Result<(Ip, u16), Unfit> {
    let name: SockaddrStorage = nix::sys::socket::getsockname(fd.as_raw_fd()).map_err(|_| Unfit)?;
    of_storage(&name)
}

fn of_storage(name: &SockaddrStorage) -> Result<(Ip, u16), Unfit> {
    match (name.as_sockaddr_in(), name.as_sockaddr_in6()) {
        (Some(name), _) => Ok((Ip::v4(name.ip().octets()), name.port())),
        (_, Some(name)) => Ok((Ip(name.ip().octets()), name.port())),
        _ => Err(Unfit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::{AsFd, OwnedFd};

    fn owned(fd: sd_sys::fd::Owned) -> OwnedFd {
        std_fd(fd)
    }

    #[test]
    fn segments() {
        let good = File::from(owned(sd_sys::mem::memfd_sealed(c"t", 8192).unwrap()));
        assert!(check_segment(good.as_fd(), 8192, libc::F_SEAL_SHRINK).is_ok());
        assert_eq!(check_segment(good.as_fd(), 4096, libc::F_SEAL_SHRINK), Err(Unfit));
        assert_eq!(check_segment(good.as_fd(), 8193, libc::F_SEAL_SHRINK), Err(Unfit));
        assert_eq!(check_segment(good.as_fd(), 8192, libc::F_SEAL_WRITE), Err(Unfit));
        let null = File::open("/dev/null").unwrap();
        assert_eq!(check_segment(null.as_fd(), 0, 0), Err(Unfit));
    }

    #[test]
    fn eventfds_and_pidfds() {
        let event = owned(sd_sys::fd::eventfd(libc::EFD_CLOEXEC).unwrap());
        let pid = owned(sd_sys::fd::pidfd_open(std::process::id() as i32).unwrap());
        assert_eq!(check_eventfd(event.as_fd()), Ok(()));
        assert_eq!(check_eventfd(pid.as_fd()), Err(Unfit));
        assert_eq!(pid_of_pidfd(pid.as_fd()), Ok(std::process::id()));
        assert_eq!(pid_of_pidfd(event.as_fd()), Err(Unfit));
        assert!(!has_ended(pid.as_fd()));
    }

    #[test]
    fn what_can_be_locked_is_not_asked() {
        let epoll = owned(sd_sys::fd::epoll_create().unwrap());
        assert_eq!(check_pidfd(epoll.as_fd()), Err(Unfit));
        assert_eq!(pid_of_pidfd(epoll.as_fd()), Err(Unfit));
    }

    #[test]
    fn listeners() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let owned = check_listener(listener.as_fd()).unwrap();
        assert_eq!(owned.ip, Ip::v4([127, 0, 0, 1]));
        assert_eq!(owned.port, listener.local_addr().unwrap().port());
        assert!(!owned.v6only && owned.netns == netns_of(listener.as_fd()));
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(check_listener(stream.as_fd()), Err(Unfit));
        let datagram = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(check_listener(datagram.as_fd()), Err(Unfit));
        assert_eq!(netns_of_tcp(datagram.as_fd()), Err(Unfit));
        assert_eq!(netns_of_tcp(listener.as_fd()), Ok(owned.netns));
        if let Ok(dual) = TcpListener::bind("[::]:0") {
            let owned = check_listener(dual.as_fd()).unwrap();
            assert!(owned.ip == Ip([0; 16]) && !owned.v6only);
        }
    }
}
