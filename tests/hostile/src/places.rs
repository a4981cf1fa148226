//! Findings 9 and 13: whoever connects to a Unix socket of mallory's choice.

use crate::client::{own, send_with_fds};
use sd_sys::Errno;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

fn named(name: &[u8]) -> (libc::sockaddr_un, u32) {
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    // The library passes whole addresses, zeros included, so abstract names have them too.
    (address, size_of::<libc::sockaddr_un>() as u32)
}

fn unix(kind: i32) -> io::Result<OwnedFd> {
    own(sd_sys::fd::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0))
}

fn check(done: i32) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A listener whose backlog has no room.
fn full(name: &[u8]) -> io::Result<Vec<OwnedFd>> {
    let (address, len) = named(name);
    let listener = listen(name, 0)?;
    let mut all = vec![listener];
    loop {
        let client = unix(libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK)?;
        // SAFETY: the kernel reads one address.
        let done = unsafe { libc::connect(client.as_raw_fd(), (&raw const address).cast(), len) };
        if done < 0 {
            return Ok(all);
        }
        all.push(client);
    }
}

fn listen(name: &[u8], backlog: i32) -> io::Result<OwnedFd> {
    let (address, len) = named(name);
    let listener = unix(libc::SOCK_SEQPACKET)?;
    // SAFETY: the kernel reads one address.
    unsafe {
        check(libc::bind(listener.as_raw_fd(), (&raw const address).cast(), len))?;
        check(libc::listen(listener.as_raw_fd(), backlog))?;
    }
    Ok(listener)
}

/// Makes the directory in which a user's library may look for the monitor, and a socket in it that nobody can
/// connect to.
pub(crate) fn squat_directory(user: u32) -> io::Result<()> {
    let folder = format!("/tmp/socksdirect-{user}");
    std::fs::create_dir_all(&folder)?;
    let path = format!("{folder}/monitor.sock");
    let _ = std::fs::remove_file(&path);
    let _held = full(path.as_bytes())?;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    crate::stand()
}

/// A program that is sent descriptors, as brokers are: says how long each recvmsg took in microseconds.
pub(crate) fn receiver(path: &str) -> io::Result<()> {
    let (address, len) = named(path.as_bytes());
    let listener = unix(libc::SOCK_STREAM)?;
    // SAFETY: the kernel reads one address.
    unsafe {
        check(libc::bind(listener.as_raw_fd(), (&raw const address).cast(), len))?;
        check(libc::listen(listener.as_raw_fd(), 8))?;
    }
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    // One socket of its own: it is a program of ours.
    let own_listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening");
    loop {
        // SAFETY: null addresses are allowed.
        let socket =
            unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
        let socket = own(if socket < 0 { Err(Errno::EMFILE) } else { Ok(sd_sys::fd::Owned::new(socket)) })?;
        let mut look = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut look, 1, 10_000) };
        let start = Instant::now();
        let got = receive(socket.as_raw_fd());
        println!("{} {got:?}", start.elapsed().as_micros());
        drop(got);
        std::hint::black_box(&own_listener);
    }
}

/// By the C library's recvmsg, which the library hooks.
pub(crate) fn receive(socket: i32) -> io::Result<Vec<OwnedFd>> {
    let (mut byte, mut control) = ([0u8; 16], [0u64; 32]);
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 16 };
    // SAFETY: an all-zero msghdr is valid; all pointers are valid during the calls.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut iov, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        check(libc::recvmsg(socket, &mut header, 0) as i32)?;
        let mut fds = Vec::new();
        let head = libc::CMSG_FIRSTHDR(&header);
        if !head.is_null() {
            let count = ((*head).cmsg_len - 16) / 4;
            let numbers = libc::CMSG_DATA(head).cast::<i32>();
            fds.extend(
                (0..count)
                    .filter_map(|at| own(Ok(sd_sys::fd::Owned::new(numbers.add(at).read_unaligned()))).ok()),
            );
        }
        Ok(fds)
    }
}

/// Passes a loopback connection to a receiver, and listens under the name that the library asks for the rest of it:
/// accepts and says nothing (`silent`), or has no room (`full`).
pub(crate) fn keeper(path: &str, way: &str) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let outer = TcpStream::connect(listener.local_addr()?)?;
    let (inner, _) = listener.accept()?;
    let mut held = Vec::new();
    for stream in [&outer, &inner] {
        let cookie = sd_sys::fd::getsockopt_u64(stream.as_raw_fd(), libc::SOL_SOCKET, 57)
            .map_err(|e| io::Error::from_raw_os_error(e.0))?;
        let name = [b"\0sd-bridge-".to_vec(), format!("{cookie:016x}").into_bytes()].concat();
        held.extend(if way == "full" { full(&name)? } else { vec![listen(&name, 64)?] });
    }
    let (address, len) = named(path.as_bytes());
    let socket = unix(libc::SOCK_STREAM)?;
    // SAFETY: the kernel reads one address.
    unsafe { check(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len))? };
    send_with_fds(socket.as_raw_fd(), b"a connection", &[outer.as_raw_fd()])?;
    crate::stand()
}
