//! Sockets between engines before they are carriers: who comes, whom this engine calls, and where datagrams go. None of them blocks.

use crate::presence::Presence;
use sd_sys::Errno;
use sd_sys::fd::Owned;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Where other engines reach this one.
pub(crate) struct Listener {
    socket: std::net::TcpListener,
    /// Who waits for the address waits for the end of this.
    pub(crate) presence: Option<Presence>,
}

impl Listener {
    pub(crate) fn new(address: SocketAddr) -> std::io::Result<Listener> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Listener { socket: listener, presence: Presence::hold(address) })
    }

    pub(crate) fn raw(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Who has come, and from where.
    pub(crate) fn accept(&self) -> Option<(OwnedFd, IpAddr)> {
        let (stream, from) = self.socket.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        let socket = OwnedFd::from(stream);
        keep_alive(&socket);
        Some((socket, from.ip()))
    }
}

/// Begins to connect, from this address.
pub(crate) fn dial(to: SocketAddr, from: IpAddr) -> Result<OwnedFd, Errno> {
    let socket = new(libc::SOCK_STREAM, to)?;
    connect(&socket, SocketAddr::new(from, 0), to)?;
    keep_alive(&socket);
    Ok(socket)
}

/// A socket for datagrams between two engines, each at the address and port where it listens. Those to other engines have the same port here: the
/// kernel gives each what comes from the address that it is connected to.
pub(crate) fn datagrams(from: SocketAddr, to: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = new(libc::SOCK_DGRAM, to)?;
    // Only processes of this user can have the port then.
    sd_sys::fd::setsockopt_int(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    connect(&socket, from, to)?;
    Ok(socket)
}

fn new(kind: i32, to: SocketAddr) -> Result<OwnedFd, Errno> {
    let domain = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = sd_sys::fd::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)?;
    Ok(std_fd(fd))
}

/// What the standard library owns from now on.
pub(crate) fn std_fd(fd: Owned) -> OwnedFd {
    // SAFETY: a descriptor of ours, which nobody else has any more.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}

/// Binds it to `from`, any address of its own kind included, and connects it, or begins to.
fn connect(socket: &OwnedFd, mut from: SocketAddr, to: SocketAddr) -> Result<(), Errno> {
    if from.ip().is_unspecified() && to.is_ipv4() {
        from.set_ip(Ipv4Addr::UNSPECIFIED.into());
    }
    let (to, from) = (Address::of(to), Address::of(from));
    // SAFETY: both addresses are as long as they say.
    unsafe {
        if libc::bind(socket.as_raw_fd(), from.place(), from.len) != 0 {
            return Err(last_error());
        }
        if libc::connect(socket.as_raw_fd(), to.place(), to.len) != 0 && last_error().0 != libc::EINPROGRESS {
            return Err(last_error());
        }
    }
    Ok(())
}

/// An engine whose host is gone is found within a quarter of a minute.
fn keep_alive(socket: &OwnedFd) {
    let set = |level, name, value| _ = sd_sys::fd::setsockopt_int(socket.as_raw_fd(), level, name, value);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
}

/// Sends some of it; how much.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the bytes are there.
    let done =
        unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    usize::try_from(done).or_else(|_| nothing_yet(last_error()))
}

/// Takes as much as has come; how much. [`ENDED`]: nothing follows.
pub(crate) fn receive(socket: &OwnedFd, room: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the room is there.
    let got = unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
    match usize::try_from(got) {
        Ok(0) => Err(ENDED),
        Ok(got) => Ok(got),
        Err(_) => nothing_yet(last_error()),
    }
}

/// The other end has sent its FIN.
pub(crate) const ENDED: Errno = Errno(0);

fn nothing_yet(error: Errno) -> Result<usize, Errno> {
    match error.0 {
        libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM => Ok(0),
        _ => Err(error),
    }
}

fn last_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// An address as the kernel takes it.
struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    fn of(address: SocketAddr) -> Address {
        // SAFETY: plain numbers.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let place = &raw mut storage;
        // SAFETY: a storage has room for either, and is aligned for both.
        let len = unsafe {
            match address {
                SocketAddr::V4(v4) => {
                    let to = &mut *place.cast::<libc::sockaddr_in>();
                    to.sin_family = libc::AF_INET as u16;
                    to.sin_port = v4.port().to_be();
                    to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                    size_of::<libc::sockaddr_in>()
                }
                SocketAddr::V6(v6) => {
                    let to = &mut *place.cast::<libc::sockaddr_in6>();
                    to.sin6_family = libc::AF_INET6 as u16;
                    to.sin6_port = v6.port().to_be();
                    to.sin6_addr.s6_addr = v6.ip().octets();
                    size_of::<libc::sockaddr_in6>()
                }
            }
        };
        Address { storage, len: len as libc::socklen_t }
    }

    fn place(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }
}

/// News of it end a sleep, and are noted where it is a peer's.
pub(crate) fn watch(sleeper: &Owned, fd: i32, of: u64) {
    let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32;
    let _ = sd_sys::fd::epoll_ctl(sleeper.raw(), libc::EPOLL_CTL_ADD, fd, events, of);
}
