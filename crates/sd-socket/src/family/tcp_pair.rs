//! Two kernel TCP sockets that lead to each other, for a bridge.
//!
//! TCP has no socketpair(2): one end has to listen for a moment, where anybody on this host can connect. Who is
//! accepted is known by its names, which the kernel gives to one connection only.
//!
//! Tests: below, with a stranger that fills the backlog.

use crate::socket::addr::{self, Name};
use core::sync::atomic::Ordering;
use libc::POLLIN;
use sd_proto::Ip;
use sd_shm::slab::Endpoint;
use sd_sys::fd::Owned;
use sd_sys::{Errno, Result, check, fd, syscall};

/// Who connects while a pair is made, at most, before it is made anew; how often; and how long each time takes.
const STRANGERS_MAX: i32 = 64;
const TRIES: u32 = 4;
const WAIT_MS: u32 = 250;
/// Handlers of the program's that may run during one connect; libc's own, for setuid(2), are among them.
const SIGNALS_MAX: u32 = 100;

/// Two kernel TCP sockets that are connected with each other, and with nobody else.
pub(super) fn make() -> Result<(Owned, Owned)> {
    let outer = fd::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?;
    make_from(outer.raw()).map(|inner| (outer, inner))
}

/// The other end of a pair that begins with this unconnected socket; unconnected again if that fails.
pub(super) fn make_from(outer: i32) -> Result<Owned> {
    for _ in 0..TRIES {
        let inner = attempt(outer);
        if inner.is_err() {
            disconnect(outer);
        }
        match inner {
            // Somebody was in the way.
            Err(Errno::EAGAIN | Errno::EINPROGRESS | Errno::ECONNRESET) => {}
            done => return done,
        }
    }
    Err(Errno::ENOBUFS)
}

/// The socket is as it was before it was connected.
pub(super) fn disconnect(outer: i32) {
    // SAFETY: the kernel reads a sockaddr of 16 bytes; all zeros is AF_UNSPEC.
    unsafe { syscall!(libc::SYS_connect, outer, [0u8; 16].as_ptr(), 16) };
    let _ = sd_sys::msg::set_timeout(outer, 0);
}

/// While the listener is there, anybody on this host can connect to it. So what it accepts is ours only when the kernel
/// gives it the names of `outer`, the other way round; others are turned away.
fn attempt(outer: i32) -> Result<Owned> {
    let mut bytes = [0u8; 28];
    let here = |port| Name { ip: Ip::v4([127, 0, 0, 1]), port };
    let len = addr::encode(libc::AF_INET, here(0), &mut bytes);
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let listener = fd::socket(libc::AF_INET, kind, 0)?;
    // SAFETY: the kernel reads `len` bytes of the address.
    check(unsafe { syscall!(libc::SYS_bind, listener.raw(), bytes.as_ptr(), len) })?;
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_listen, listener.raw(), STRANGERS_MAX) })?;
    let (_, name) = addr::kernel_name(listener.raw()).ok_or(Errno::EINVAL)?;
    let domain = fd::getsockopt_int(outer, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    let len = addr::encode(domain, here(name.port), &mut bytes);
    // A backlog that is full of others would have it wait for minutes.
    sd_sys::msg::set_timeout(outer, WAIT_MS)?;
    connect(outer, bytes.get(..len).ok_or(Errno::EINVAL)?)?;
    let inner = accept_from(listener.raw(), outer)?;
    sd_sys::msg::set_timeout(outer, 0).map(|()| inner)
}

/// A signal of the program's ends the wait, and no more: who asks again waits for the rest.
fn connect(outer: i32, address: &[u8]) -> Result<()> {
    for _ in 0..SIGNALS_MAX {
        // SAFETY: the kernel reads the address.
        match check(unsafe { syscall!(libc::SYS_connect, outer, address.as_ptr(), address.len()) }) {
            Err(Errno::EINTR) => {}
            Ok(_) | Err(Errno::EISCONN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EAGAIN)
}

/// The connection from `outer`.
fn accept_from(listener: i32, outer: i32) -> Result<Owned> {
    let names = |socket| Some((addr::kernel_name(socket)?.1, addr::kernel_peer(socket)?.1));
    let Some((local, remote)) = names(outer) else { return Err(Errno::ECONNRESET) };
    let end = sd_sys::time::now_ns() + u64::from(WAIT_MS) * 1_000_000;
    for _ in 0..=STRANGERS_MAX {
        // SAFETY: null addresses are allowed.
        let accepted = check(unsafe { syscall!(libc::SYS_accept4, listener, 0, 0, libc::SOCK_CLOEXEC) });
        match accepted.map(|number| Owned::new(number as i32)) {
            Ok(inner) if names(inner.raw()) == Some((remote, local)) => return Ok(inner),
            Ok(_stranger) => {}
            Err(Errno::EAGAIN) => {
                let now = sd_sys::time::now_ns();
                if now >= end {
                    break;
                }
                let _ = fd::poll_one(listener, POLLIN, ((end - now) / 1_000_000) as i32 + 1);
            }
            Err(Errno::EINTR | Errno::ECONNABORTED) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EAGAIN)
}

/// The kernel socket under the connection's numbers, if the kernel may connect it, as nobody else has it and it is not bound;
/// and what leads to its other end.
pub(super) fn pair(endpoint: &'static Endpoint) -> Option<(Owned, Owned)> {
    let fd = endpoint.fd.load(Ordering::Relaxed);
    let is_it = crate::fd::table::socket(fd).is_some_and(|found| core::ptr::eq(found, endpoint))
        && crate::socket::inode::is_own(fd);
    let is_unbound = || crate::socket::addr::kernel_name(fd).is_some_and(|(_, name)| name.port == 0);
    let outer = (is_it && is_unbound()).then(|| sd_sys::fd::dup_above(fd, 3).ok()).flatten()?;
    let flags = sd_sys::fd::fcntl(outer.raw(), libc::F_GETFL, 0).unwrap_or(0);
    let _ = sd_sys::fd::fcntl(outer.raw(), libc::F_SETFL, 0);
    match make_from(outer.raw()) {
        Ok(inner) => {
            crate::socket::recorded::replay(endpoint, outer.raw());
            Some((outer, inner))
        }
        Err(_) => {
            let _ = sd_sys::fd::fcntl(outer.raw(), libc::F_SETFL, flags);
            None
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, FromRawFd};

    fn stream(fd: sd_sys::fd::Owned) -> TcpStream {
        // SAFETY: the descriptor is nobody else's.
        unsafe { TcpStream::from_raw_fd(fd.into_raw()) }
    }

    /// A stranger's connection is first in the queue.
    #[test]
    fn strangers_are_turned_away() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut strangers: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut outer = TcpStream::connect(address).unwrap();
        let inner = accept_from(listener.as_raw_fd(), outer.as_raw_fd()).unwrap();
        let mut inner = stream(inner);
        outer.write_all(b"for inner").unwrap();
        let mut got = [0; 9];
        inner.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"for inner");
        for stranger in &mut strangers {
            assert!(matches!(stranger.read(&mut got), Ok(0) | Err(_)));
        }
    }

    #[test]
    fn a_pair_is_connected_and_blocks() {
        let (outer, inner) = make().unwrap();
        let [mut outer, mut inner] = [outer, inner].map(stream);
        assert_eq!(outer.local_addr().unwrap(), inner.peer_addr().unwrap());
        assert_eq!(outer.read_timeout().unwrap(), None);
        inner.write_all(b"x").unwrap();
        outer.read_exact(&mut [0]).unwrap();
    }

    /// libc interrupts all threads for the setuid family, and so one that makes a pair for the same reason.
    #[test]
    fn a_handler_changes_nothing() {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: a handler that does nothing, without SA_RESTART.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut());
        }
        let listener = fd::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        // SAFETY: no pointers; the kernel chooses the port.
        check(unsafe { syscall!(libc::SYS_listen, listener.raw(), 0) }).unwrap();
        let port = addr::kernel_name(listener.raw()).unwrap().1.port;
        // The backlog is full until one is accepted, so that the connect after it has to wait.
        let _first = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let outer = fd::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let mut bytes = [0; 28];
        let len = addr::encode(libc::AF_INET, Name { ip: Ip::v4([127, 0, 0, 1]), port }, &mut bytes);
        // SAFETY: no arguments.
        let this = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10 {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    // SAFETY: the thread lives as long as the scope.
                    unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                }
                // SAFETY: null addresses are allowed.
                check(unsafe { syscall!(libc::SYS_accept4, listener.raw(), 0, 0, 0) }).unwrap();
            });
            assert_eq!(connect(outer.raw(), bytes.get(..len).unwrap()), Ok(()));
        });
    }
}
