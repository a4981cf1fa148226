//! Sockets between engines: the only file that knows of any. A *trunk* is a kernel TCP connection, non-blocking.

use sd_link::wire::packet_len;
use sd_sys::Errno;
use sd_sys::fd::Owned;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::IntoRawFd;

/// Bytes that are read at once, and the largest packet twice.
const READ: usize = 256 << 10;
/// As long as so many bytes wait, no more packets are made.
const WAITS_MAX: usize = 64 << 10;

/// Where other engines reach this one.
pub(crate) struct Listener(std::net::TcpListener);

impl Listener {
    pub(crate) fn new(address: SocketAddr) -> std::io::Result<Listener> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Listener(listener))
    }

    pub(crate) fn raw(&self) -> i32 {
        use std::os::fd::AsRawFd;
        self.0.as_raw_fd()
    }

    /// Who has come, and from where.
    pub(crate) fn accept(&self) -> Option<(Trunk, IpAddr)> {
        let (stream, from) = self.0.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((Trunk::new(Owned::new(stream.into_raw_fd())), from.ip()))
    }
}

/// See the module.
pub(crate) struct Trunk {
    fd: Owned,
    /// Bytes from `sent` to `end` wait.
    out: Box<[u8]>,
    sent: usize,
    end: usize,
    input: Vec<u8>,
    have: usize,
    pub(crate) is_broken: bool,
}

impl Trunk {
    fn new(fd: Owned) -> Trunk {
        let set = |level, name, value| _ = sd_sys::fd::setsockopt_int(fd.raw(), level, name, value);
        set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
        set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10);
        set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2);
        set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
        Trunk {
            fd,
            out: vec![0; 2 * WAITS_MAX].into(),
            sent: 0,
            end: 0,
            input: vec![0; READ],
            have: 0,
            is_broken: false,
        }
    }

    /// Begins to connect, from this address.
    pub(crate) fn dial(to: SocketAddr, from: IpAddr) -> Result<Trunk, Errno> {
        let domain = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = sd_sys::fd::socket(domain, kind, 0)?;
        let (to, from) = (Address::of(to), Address::of(SocketAddr::new(from, 0)));
        // SAFETY: both addresses are as long as they say.
        unsafe {
            if libc::bind(fd.raw(), from.place(), from.len) != 0 {
                return Err(last_error());
            }
            if libc::connect(fd.raw(), to.place(), to.len) != 0 && last_error().0 != libc::EINPROGRESS {
                return Err(last_error());
            }
        }
        Ok(Trunk::new(fd))
    }

    pub(crate) fn raw(&self) -> i32 {
        self.fd.raw()
    }

    /// A place for a packet of at most so many bytes, if not too much waits already.
    pub(crate) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_broken || self.end >= WAITS_MAX {
            return None;
        }
        self.out.get_mut(self.end..self.end + len)
    }

    /// So much of the place was used.
    pub(crate) fn used(&mut self, len: usize) {
        self.end += len;
    }

    /// Sends what waits, as far as the kernel takes it.
    pub(crate) fn flush(&mut self) {
        while self.sent < self.end && !self.is_broken {
            let rest = &self.out[self.sent..self.end];
            // SAFETY: the bytes are there.
            let done =
                unsafe { libc::send(self.fd.raw(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
            match usize::try_from(done) {
                Ok(done) => self.sent += done,
                Err(_) => {
                    self.is_broken |= !is_later(last_error());
                    break;
                }
            }
        }
        if self.sent == self.end {
            (self.sent, self.end) = (0, 0);
        }
    }

    /// Gives each packet that has come, and says whether any bytes have.
    pub(crate) fn read(&mut self, mut each: impl FnMut(&mut [u8])) -> bool {
        let mut any = false;
        for _ in 0..4 {
            let room = &mut self.input[self.have..];
            // SAFETY: the room is there.
            let got = unsafe { libc::recv(self.fd.raw(), room.as_mut_ptr().cast(), room.len(), 0) };
            match usize::try_from(got) {
                Ok(0) => {
                    self.is_broken = true;
                    return any;
                }
                Ok(got) => {
                    self.have += got;
                    any = true;
                    let is_all = self.have < self.input.len();
                    self.split(&mut each);
                    if is_all {
                        return true;
                    }
                }
                Err(_) => {
                    self.is_broken |= !is_later(last_error());
                    return any;
                }
            }
        }
        any
    }

    fn split(&mut self, each: &mut impl FnMut(&mut [u8])) {
        let mut at = 0;
        loop {
            let rest = &mut self.input[at..self.have];
            match packet_len(rest) {
                Some(Ok(len)) if len <= rest.len() => {
                    each(&mut rest[..len]);
                    at += len;
                }
                Some(Err(_)) => {
                    self.is_broken = true;
                    break;
                }
                _ => break,
            }
        }
        self.input.copy_within(at..self.have, 0);
        self.have -= at;
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
