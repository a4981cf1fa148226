//! Unix-domain datagrams with descriptors: the control path's transport.

use crate::fd::Owned;
use crate::{Errno, Result, check, syscall};

/// Most descriptors that travel with one message of ours.
pub const FDS_MAX: usize = 8;
/// Most that the kernel takes with one message of anybody's (SCM_MAX_FD of `net/scm.h`).
const FDS_ANYBODYS: usize = 253;
/// Room for the control messages of one of ours.
const CONTROL_LEN: usize = control_len(FDS_MAX);
/// A cmsghdr and a ucred, rounded up to the alignment of the next cmsghdr.
const CREDENTIALS_SPACE: usize = 32;

/// Room for so many descriptors, and for the sender's credentials before them.
const fn control_len(fds: usize) -> usize {
    CREDENTIALS_SPACE + (16 + fds * 4).next_multiple_of(8)
}

/// Descriptors that came with a message, close-on-exec; `N` is the most there may be. What is not taken is closed.
pub struct Fds<const N: usize = FDS_MAX> {
    list: [i32; N],
    count: usize,
}

impl<const N: usize> Fds<N> {
    /// None yet.
    const fn none() -> Self {
        Fds { list: [-1; N], count: 0 }
    }

    /// All of them, still owned.
    pub fn as_slice(&self) -> &[i32] {
        self.list.get(..self.count).unwrap_or(&[])
    }

    /// Hands them over, if there are exactly so many; otherwise all are closed.
    pub fn take<const M: usize>(mut self) -> Option<[Owned; M]> {
        let taken = <[i32; M]>::try_from(self.as_slice()).ok()?;
        self.count = 0;
        Some(taken.map(Owned::new))
    }

    /// Hands them over one by one, from the first on.
    pub fn hand_over(mut self, each: impl FnMut(Owned)) {
        let count = core::mem::take(&mut self.count);
        self.list.iter().take(count).copied().map(Owned::new).for_each(each);
    }

    /// Takes one more; without room it is closed, and false is returned.
    fn push(&mut self, fd: i32) -> bool {
        let Some(place) = self.list.get_mut(self.count) else {
            crate::fd::close(fd);
            return false;
        };
        *place = fd;
        self.count += 1;
        true
    }
}

impl<const N: usize> Drop for Fds<N> {
    fn drop(&mut self) {
        self.as_slice().iter().for_each(|&fd| crate::fd::close(fd));
    }
}

#[repr(C, align(8))]
struct Control<const LEN: usize>([u8; LEN]);

impl<const LEN: usize> Control<LEN> {
    /// A value at a place in the buffer; `None` when it does not fit there.
    fn at<T: Copy>(&self, offset: usize) -> Option<T> {
        let bytes = self.0.get(offset..offset.checked_add(size_of::<T>())?)?;
        // SAFETY: so many bytes are there, and only plain C structs and integers are read.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }

    /// Adds plain C values as one control message behind the first `used` bytes; how many are used then.
    fn put<T: Copy>(&mut self, used: usize, kind: i32, values: &[T]) -> usize {
        let len = 16 + size_of_val(values);
        let end = used + len.next_multiple_of(8);
        let Some(place) = self.0.get_mut(used..end) else { return used };
        let head = libc::cmsghdr { cmsg_len: len, cmsg_level: libc::SOL_SOCKET, cmsg_type: kind };
        // SAFETY: `place` has room for a header of 16 bytes and the values behind it, at any alignment.
        unsafe {
            place.as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(head);
            let values_at = place.as_mut_ptr().add(16).cast::<T>();
            for (i, value) in values.iter().enumerate() {
                values_at.add(i).write_unaligned(*value);
            }
        }
        end
    }

    /// Takes in what the kernel has put into the first `len` bytes.
    fn read<const N: usize>(&self, len: usize, got: &mut Received<N>) {
        let mut offset = 0;
        while let Some(head) = self.at::<libc::cmsghdr>(offset).filter(|_| offset + 16 <= len) {
            let body = offset + 16;
            match (head.cmsg_level, head.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let count = head.cmsg_len.saturating_sub(16) / 4;
                    let fds = (0..count).map_while(|i| self.at(body + i * 4));
                    fds.for_each(|fd| got.is_cut |= !got.fds.push(fd));
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
    send(sock, bytes, fds, None, flags)
}

/// Sends one to somebody who asks the kernel who sends it: as the effective user, which is who the kernel would take the
/// process for when it makes a socket. By itself it names the real one.
pub fn send_as_effective(sock: i32, bytes: &[u8], fds: &[i32], flags: i32) -> Result<usize> {
    match effective() {
        None => send(sock, bytes, fds, None, flags),
        Some(sender) => match send(sock, bytes, fds, Some(sender), flags) {
            // Of a user that the namespace has no number for.
            Err(Errno::EPERM | Errno::EINVAL) => send(sock, bytes, fds, None, flags),
            other => other,
        },
    }
}

/// Who the process is, where its effective user is another than the real one.
fn effective() -> Option<libc::ucred> {
    // SAFETY: no arguments.
    let number = |nr: i64| check(unsafe { syscall!(nr) }).map(|number| number as u32).ok();
    let (real, uid) = (number(libc::SYS_getuid)?, number(libc::SYS_geteuid)?);
    if real == uid {
        return None;
    }
    Some(libc::ucred { pid: crate::fd::getpid(), uid, gid: number(libc::SYS_getegid)? })
}

/// One message; the kernel checks that the sender may say that it is `sender`.
fn send(sock: i32, bytes: &[u8], fds: &[i32], sender: Option<libc::ucred>, flags: i32) -> Result<usize> {
    if fds.len() > FDS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let mut control = Control([0; CONTROL_LEN]);
    let mut used = 0;
    if let Some(sender) = sender {
        used = control.put(used, libc::SCM_CREDENTIALS, &[sender]);
    }
    if !fds.is_empty() {
        used = control.put(used, libc::SCM_RIGHTS, fds);
    }
    // SAFETY: an all-zero msghdr is valid.
    let mut hdr: libc::msghdr = unsafe { core::mem::zeroed() };
    hdr.msg_iov = &mut iov;
    hdr.msg_iovlen = 1;
    if used != 0 {
        hdr.msg_control = control.0.as_mut_ptr() as *mut _;
        hdr.msg_controllen = used;
    }
    // SAFETY: all pointers in `hdr` are valid during the call.
    check(unsafe {
        syscall!(libc::SYS_sendmsg, sock, &hdr as *const libc::msghdr, flags | libc::MSG_NOSIGNAL)
    })
}

/// A received message.
pub struct Received<const N: usize = FDS_MAX> {
    /// Bytes of the message; zero means that the peer is gone, or has sent an empty one.
    pub len: usize,
    /// Descriptors that came along.
    pub fds: Fds<N>,
    /// Who sent it, by the kernel's word, where the receiving socket has SO_PASSCRED.
    pub sender: Option<libc::ucred>,
    /// The message was longer than the buffer, or there were more descriptors than may be or than our table had
    /// room for.
    pub is_cut: bool,
}

/// Receives one message of ours. Errors as recvmsg(2); EMSGSIZE when message or descriptors were cut, or there were more
/// than [`FDS_MAX`].
pub fn recv_with_fds(sock: i32, buf: &mut [u8], flags: i32) -> Result<Received> {
    let got = recv::<FDS_MAX, CONTROL_LEN>(sock, buf, flags)?;
    if got.is_cut { Err(Errno::EMSGSIZE) } else { Ok(got) }
}

/// Receives one message, whatever it is: a cut one with the descriptors that came. For whom these are a stranger's: where there
/// is no room the kernel itself closes the rest, in the receiver's time, and close(2) of a stranger's descriptor may take as
/// long as the stranger likes.
pub fn recv_whatever(sock: i32, buf: &mut [u8], flags: i32) -> Result<Received<FDS_ANYBODYS>> {
    let mut got = recv::<FDS_ANYBODYS, { control_len(FDS_ANYBODYS) }>(sock, buf, flags)?;
    got.is_cut |= got.fds.count > FDS_MAX;
    Ok(got)
}

/// `LEN` is [`control_len`] of `N`.
fn recv<const N: usize, const LEN: usize>(sock: i32, buf: &mut [u8], flags: i32) -> Result<Received<N>> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr() as *mut _, iov_len: buf.len() };
    let mut control = Control([0; LEN]);
    // SAFETY: an all-zero msghdr is valid.
    let mut hdr: libc::msghdr = unsafe { core::mem::zeroed() };
    hdr.msg_iov = &mut iov;
    hdr.msg_iovlen = 1;
    hdr.msg_control = control.0.as_mut_ptr() as *mut _;
    hdr.msg_controllen = LEN;
    // SAFETY: all pointers in `hdr` are valid during the call.
    let len = check(unsafe {
        syscall!(libc::SYS_recvmsg, sock, &mut hdr as *mut libc::msghdr, flags | libc::MSG_CMSG_CLOEXEC)
    })?;
    let is_cut = hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    let mut got = Received { len, fds: Fds::none(), sender: None, is_cut };
    control.read(hdr.msg_controllen, &mut got);
    Ok(got)
}

/// Two Unix-domain SOCK_SEQPACKET sockets connected with each other; close-on-exec. The first says who sent
/// a message to it ([`Received::sender`]).
pub fn pair_with_credentials() -> Result<[Owned; 2]> {
    let mut pair = [-1i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two numbers.
    check(unsafe { syscall!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) })?;
    let pair = pair.map(Owned::new);
    crate::fd::setsockopt_int(pair[0].raw(), libc::SOL_SOCKET, libc::SO_PASSCRED, 1)?;
    Ok(pair)
}

/// Connects to a Unix-domain SOCK_SEQPACKET listener; close-on-exec. For room in its backlog this waits so long at most
/// (EAGAIN); sending and receiving wait as long, until [`set_timeout`] says otherwise.
pub fn connect_unix(path: &[u8], wait_ms: u32) -> Result<Owned> {
    named_unix(path, |fd, addr, len| {
        set_timeout(fd, wait_ms)?;
        // SAFETY: the kernel reads `len` bytes of the address.
        check(unsafe { syscall!(libc::SYS_connect, fd, addr, len) })
    })
}

/// How long sending, receiving and connecting may block (SO_SNDTIMEO, SO_RCVTIMEO).
pub fn set_timeout(fd: i32, ms: u32) -> Result<()> {
    let (tv_sec, tv_usec) = (i64::from(ms / 1000), i64::from(ms % 1000) * 1000);
    let (time, len) = (libc::timeval { tv_sec, tv_usec }, size_of::<libc::timeval>());
    let set = |option| {
        // SAFETY: the kernel reads one timeval.
        check(unsafe { syscall!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, option, &raw const time, len) })
            .map(drop)
    };
    set(libc::SO_SNDTIMEO).and_then(|()| set(libc::SO_RCVTIMEO))
}

/// A Unix-domain SOCK_SEQPACKET listener; close-on-exec. A name that begins with a zero byte is abstract (unix(7)).
pub fn listen_unix(path: &[u8]) -> Result<Owned> {
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
) -> Result<Owned> {
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    if path.len() >= addr.sun_path.len() {
        return Err(Errno::ENAMETOOLONG);
    }
    addr.sun_family = libc::AF_UNIX as u16;
    for (to, from) in addr.sun_path.iter_mut().zip(path) {
        *to = *from as _;
    }
    let fd = crate::fd::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)?;
    go(fd.raw(), &addr, size_of::<libc::sockaddr_un>()).map(|_| fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_full_backlog_holds_nobody_up() {
        let name = format!("\0sd-msg-test-{}", std::process::id());
        let listener = listen_unix(name.as_bytes()).unwrap();
        let mut held = Vec::new();
        let began = Instant::now();
        let error = loop {
            match connect_unix(name.as_bytes(), 50) {
                Ok(fd) => held.push(fd),
                Err(error) => break error,
            }
        };
        assert_eq!(error, Errno::EAGAIN);
        assert!((40..2000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        // And whoever is silent is not waited for.
        let began = Instant::now();
        assert_eq!(crate::fd::read(held[0].raw(), &mut [0u8]), Err(Errno::EAGAIN));
        assert!(began.elapsed() < Duration::from_secs(2));
        drop(listener);
    }
}
