//! Unix-domain datagrams with descriptors: the control path's transport.

use crate::{Errno, Result, check, syscall};

/// Most descriptors that travel with one message.
pub const FDS_MAX: usize = 8;
/// Room for a message with so many descriptors, and for the sender's credentials before them: the kernel
/// puts no more into a buffer of this size, and says so (MSG_CTRUNC).
const CONTROL_LEN: usize = CREDENTIALS_SPACE + 16 + FDS_MAX * 4;
/// A cmsghdr and a ucred, rounded up to the alignment of the next cmsghdr.
const CREDENTIALS_SPACE: usize = 32;
/// As many descriptors may come where no credentials take their room.
const FDS_ROOM: usize = FDS_MAX + CREDENTIALS_SPACE / 4;

#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

impl Control {
    /// A value at a place in the buffer; `None` when it does not fit there.
    fn at<T: Copy>(&self, offset: usize) -> Option<T> {
        let bytes = self.0.get(offset..offset.checked_add(size_of::<T>())?)?;
        // SAFETY: so many bytes are there, and only plain C structs and integers are read.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    /// Takes in what the kernel has put into the first `len` bytes.
    fn read(&self, len: usize, got: &mut Received) {
        let mut offset = 0;
        while let Some(head) = self.at::<libc::cmsghdr>(offset).filter(|_| offset + 16 <= len) {
            let body = offset + 16;
            match (head.cmsg_level, head.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    got.fd_count = (head.cmsg_len.saturating_sub(16) / 4).min(FDS_ROOM);
                    for (i, fd) in got.fds.iter_mut().enumerate().take(got.fd_count) {
                        *fd = self.at(body + i * 4).unwrap_or(-1);
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => got.sender = self.at(body),
                _ => {}
            }
            offset += head.cmsg_len.max(16).next_multiple_of(8);
        }
    }
}

/// Sends one message with descriptors, MSG_NOSIGNAL.
pub fn send_with_fds(sock: i32, bytes: &[u8], fds: &[i32], flags: i32) -> Result<usize> {
    if fds.len() > FDS_MAX {
        return Err(Errno(libc::EINVAL));
    }
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_LEN]);
    // SAFETY: an all-zero msghdr is valid.
    let mut hdr: libc::msghdr = unsafe { core::mem::zeroed() };
    hdr.msg_iov = &mut iov;
    hdr.msg_iovlen = 1;
    if !fds.is_empty() {
        let head = libc::cmsghdr {
            cmsg_len: 16 + fds.len() * 4,
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        // SAFETY: at most CONTROL_LEN bytes, into a buffer of that size, aligned to 8.
        unsafe {
            (control.0.as_mut_ptr() as *mut libc::cmsghdr).write(head);
            core::ptr::copy_nonoverlapping(
                fds.as_ptr() as *const u8,
                control.0.as_mut_ptr().add(16),
                fds.len() * 4,
            );
        }
        hdr.msg_control = control.0.as_mut_ptr() as *mut _;
        hdr.msg_controllen = (16 + fds.len() * 4).next_multiple_of(8);
    }
    // SAFETY: all pointers in `hdr` are valid during the call.
    check(unsafe {
        syscall!(libc::SYS_sendmsg, sock, &hdr as *const libc::msghdr, flags | libc::MSG_NOSIGNAL)
    })
}

/// A received message.
pub struct Received {
    /// Bytes of the message; zero means that the peer is gone.
    pub len: usize,
    /// Descriptors that came along, close-on-exec; the receiver owns them.
    pub fds: [i32; FDS_ROOM],
    /// How many of `fds` are valid.
    pub fd_count: usize,
    /// Who sent it, by the kernel's word, where the receiving socket has SO_PASSCRED.
    pub sender: Option<libc::ucred>,
}

/// Receives one message. Errors as recvmsg(2); EMSGSIZE when message or descriptors were cut, or there were more
/// than [`FDS_MAX`].
pub fn recv_with_fds(sock: i32, buf: &mut [u8], flags: i32) -> Result<Received> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr() as *mut _, iov_len: buf.len() };
    let mut control = Control([0; CONTROL_LEN]);
    // SAFETY: an all-zero msghdr is valid.
    let mut hdr: libc::msghdr = unsafe { core::mem::zeroed() };
    hdr.msg_iov = &mut iov;
    hdr.msg_iovlen = 1;
    hdr.msg_control = control.0.as_mut_ptr() as *mut _;
    hdr.msg_controllen = CONTROL_LEN;
    // SAFETY: all pointers in `hdr` are valid during the call.
    let len = check(unsafe {
        syscall!(libc::SYS_recvmsg, sock, &mut hdr as *mut libc::msghdr, flags | libc::MSG_CMSG_CLOEXEC)
    })?;
    let mut got = Received { len, fds: [-1; FDS_ROOM], fd_count: 0, sender: None };
    control.read(hdr.msg_controllen, &mut got);
    if got.fd_count > FDS_MAX || hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        got.fds[..got.fd_count].iter().for_each(|&fd| crate::fd::close(fd));
        return Err(Errno(libc::EMSGSIZE));
    }
    Ok(got)
}

/// Two Unix-domain SOCK_SEQPACKET sockets connected with each other; close-on-exec. The first says who sent
/// a message to it ([`Received::sender`]).
pub fn pair_with_credentials() -> Result<[i32; 2]> {
    let mut pair = [-1i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two numbers.
    check(unsafe { syscall!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) })?;
    match crate::fd::setsockopt_int(pair[0], libc::SOL_SOCKET, libc::SO_PASSCRED, 1) {
        Ok(()) => Ok(pair),
        Err(error) => {
            pair.iter().for_each(|&fd| crate::fd::close(fd));
            Err(error)
        }
    }
}

/// Connects to a Unix-domain SOCK_SEQPACKET listener; close-on-exec.
pub fn connect_unix(path: &[u8]) -> Result<i32> {
    named_unix(path, |fd, addr, len| {
        // SAFETY: the kernel reads `len` bytes of the address.
        check(unsafe { syscall!(libc::SYS_connect, fd, addr, len) })
    })
}

/// A Unix-domain SOCK_SEQPACKET listener; close-on-exec. A name that begins with a zero byte is abstract (unix(7)).
pub fn listen_unix(path: &[u8]) -> Result<i32> {
    named_unix(path, |fd, addr, len| {
        // SAFETY: the kernel reads `len` bytes of the address.
        unsafe {
            check(syscall!(libc::SYS_bind, fd, addr, len))?;
            check(syscall!(libc::SYS_listen, fd, 8))
        }
    })
}

fn named_unix(
    path: &[u8],
    go: impl FnOnce(i32, *const libc::sockaddr_un, usize) -> Result<usize>,
) -> Result<i32> {
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    if path.len() >= addr.sun_path.len() {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    addr.sun_family = libc::AF_UNIX as u16;
    for (to, from) in addr.sun_path.iter_mut().zip(path) {
        *to = *from as _;
    }
    let fd = crate::fd::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)?;
    go(fd, &addr, size_of::<libc::sockaddr_un>()).map(|_| fd).inspect_err(|_| crate::fd::close(fd))
}
