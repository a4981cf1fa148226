//! Takes another process's descriptor (pidfd_getfd(2)), which tracing permits, and does to it whatever could harm a
//! connection.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;

pub(crate) fn run(pid: i32, fd: RawFd, port: u16) -> io::Result<()> {
    let spoil: [fn(RawFd, u16) -> isize; 2] = [close_it, connect_it];
    for harm in spoil {
        let stolen = steal(pid, fd)?;
        println!("{}", harm(stolen, port));
        // SAFETY: a descriptor of ours.
        unsafe { libc::close(stolen) };
    }
    Ok(())
}

/// Numbers of a process's descriptors whose targets contain a text; none of one that is gone.
pub(crate) fn numbers(pid: u32, text: &str) -> Vec<RawFd> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_it =
        |path: &PathBuf| std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains(text));
    let paths = entries.map(|entry| entry.path()).filter(is_it);
    paths.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

/// Opens one of them that is a file, to be written.
pub(crate) fn open(pid: u32, number: RawFd) -> io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{number}"))
}

/// What the target of a channel's segment contains.
pub(crate) const SEGMENT: &str = "memfd:sd-channel";
/// And that of an eventfd.
pub(crate) const EVENTFD: &str = "[eventfd]";

/// A duplicate of another process's descriptor.
pub(crate) fn steal(pid: i32, fd: RawFd) -> io::Result<RawFd> {
    // SAFETY: no pointers.
    let stolen = unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        let stolen = libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0);
        libc::close(pidfd as RawFd);
        stolen as RawFd
    };
    if stolen < 0 { Err(io::Error::last_os_error()) } else { Ok(stolen) }
}

/// What would reset a connection.
fn close_it(fd: RawFd, _port: u16) -> isize {
    let abort = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of_val(&abort) as libc::socklen_t;
    // SAFETY: all pointers are valid during the calls.
    unsafe {
        let sent = libc::send(fd, b"stolen".as_ptr().cast(), 6, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        libc::recv(fd, [0u8; 64].as_mut_ptr().cast(), 64, libc::MSG_DONTWAIT);
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const abort).cast(), len);
        libc::shutdown(fd, libc::SHUT_RDWR);
        sent
    }
}

/// What makes another socket of it: it is connected to somewhere else.
fn connect_it(fd: RawFd, port: u16) -> isize {
    // SAFETY: an all-zero address is valid; all pointers are valid during the calls.
    unsafe {
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_port = port.to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let len = size_of_val(&address) as libc::socklen_t;
        libc::connect(fd, (&raw const address).cast(), len);
        libc::send(fd, b"garbage".as_ptr().cast(), 7, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    }
}
