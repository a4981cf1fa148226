//! TCP sockets between engines before they are carriers: who comes, and whom this engine calls. None of them blocks.

use sd_sys::Errno;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Where other engines reach this one.
pub(crate) struct Listener(std::net::TcpListener);

impl Listener {
    pub(crate) fn new(address: SocketAddr) -> std::io::Result<Listener> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Listener(listener))
    }

    pub(crate) fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Who has come, and from where.
    pub(crate) fn accept(&self) -> Option<(OwnedFd, IpAddr)> {
        let (stream, from) = self.0.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        let socket = OwnedFd::from(stream);
        keep_alive(&socket);
        Some((socket, from.ip()))
    }
}

/// Begins to connect, from this address.
pub(crate) fn dial(to: SocketAddr, from: IpAddr) -> Result<OwnedFd, Errno> {
    let domain = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let fd = sd_sys::fd::socket(domain, kind, 0)?;
    // SAFETY: a descriptor of ours, which nobody else has any more.
    let socket = unsafe { OwnedFd::from_raw_fd(fd.into_raw()) };
    let (to, from) = (Address::of(to), Address::of(SocketAddr::new(from, 0)));
    // SAFETY: both addresses are as long as they say.
    unsafe {
        if libc::bind(socket.as_raw_fd(), from.place(), from.len) != 0 {
            return Err(last_error());
        }
        if libc::connect(socket.as_raw_fd(), to.place(), to.len) != 0 && last_error().0 != libc::EINPROGRESS {
            return Err(last_error());
        }
    }
    keep_alive(&socket);
    Ok(socket)
}

/// An engine whose host is gone is found within a quarter of a minute.
fn keep_alive(socket: &OwnedFd) {
    let set = |level, name, value| _ = sd_sys::fd::setsockopt_int(socket.as_raw_fd(), level, name, value);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
}

/// What has befallen it since this was asked last: an errno, or 0.
pub(crate) fn error(socket: &OwnedFd) -> i32 {
    sd_sys::fd::getsockopt_int(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0)
}

/// Sends some of it; how much. `None`: it has ended.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> Option<usize> {
    // SAFETY: the bytes are there.
    let done =
        unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    usize::try_from(done).ok().or_else(|| is_later(last_error()).then_some(0))
}

/// Takes as much as has come; how much. `None`: it has ended.
pub(crate) fn receive(socket: &OwnedFd, room: &mut [u8]) -> Option<usize> {
    // SAFETY: the room is there.
    let got = unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
    match usize::try_from(got) {
        Ok(0) => None,
        Ok(got) => Some(got),
        Err(_) => is_later(last_error()).then_some(0),
    }
}

fn is_later(error: Errno) -> bool {
    matches!(error.0, libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM)
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
