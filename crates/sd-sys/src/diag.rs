//! What the kernel tells of a TCP socket that the caller need not have (sock_diag(7)).

use crate::fd::Owned;
use crate::{Errno, Result, check, syscall};
use core::net::{IpAddr, Ipv4Addr};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const INET_DIAG_INFO: u16 = 2;
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
/// Of the answer, behind the header: bytes that wait to be read, the socket's inode, the attributes.
const RQUEUE_AT: usize = HEADER_LEN + 56;
const INODE_AT: usize = HEADER_LEN + 68;
const ATTRIBUTES_AT: usize = HEADER_LEN + 72;
/// `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info`.
const ACKED_AT: usize = 120;
const RECEIVED_AT: usize = 128;

/// A socket for questions.
#[derive(Debug)]
pub struct Diag(Owned);

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Bytes that were read from it; `None` when that is not known any more.
    pub read: Option<u64>,
    /// Some process has it.
    pub is_open: bool,
}

impl Diag {
    /// Fails where the kernel does not have that.
    pub fn open() -> Result<Diag> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        crate::fd::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG).map(Diag)
    }

    /// The end at `local` of a connection between two ports of 127.0.0.1.
    pub fn reader(&self, local: u16, remote: u16) -> Result<Reader> {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut answer = [0u8; 1024];
        parse(self.ask((here, local), (here, remote), &mut answer)?)
    }

    /// Bytes that the end at `local` has received, and sent as far as that is acknowledged; `None` where the network namespace of this socket has no
    /// such connection.
    pub fn carried(&self, local: (IpAddr, u16), remote: (IpAddr, u16)) -> Option<u64> {
        let mut answer = [0u8; 1024];
        let answer = self.ask(local, remote, &mut answer).ok()?;
        (half(answer, 4) == Some(SOCK_DIAG_BY_FAMILY)).then_some(())?;
        let info = info(answer.get(ATTRIBUTES_AT..)?)?;
        Some(number(info, ACKED_AT)?.wrapping_add(number(info, RECEIVED_AT)?))
    }

    fn ask<'a>(
        &self,
        local: (IpAddr, u16),
        remote: (IpAddr, u16),
        answer: &'a mut [u8; 1024],
    ) -> Result<&'a [u8]> {
        let (v4, v6);
        let (family, names): (i32, [&[u8]; 2]) = match (local.0, remote.0) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                v4 = [local.octets(), remote.octets()];
                (libc::AF_INET, [&v4[0], &v4[1]])
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                v6 = [local.octets(), remote.octets()];
                (libc::AF_INET6, [&v6[0], &v6[1]])
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        let mut request = [0u8; REQUEST_LEN];
        let words: [(usize, &[u8]); 12] = [
            (0, &(REQUEST_LEN as u32).to_ne_bytes()),
            (4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes()),
            (6, &NLM_F_REQUEST.to_ne_bytes()),
            (HEADER_LEN, &[family as u8]),
            (HEADER_LEN + 1, &[libc::IPPROTO_TCP as u8]),
            (HEADER_LEN + 2, &[1 << (INET_DIAG_INFO - 1)]),
            (HEADER_LEN + 4, &u32::MAX.to_ne_bytes()),
            (HEADER_LEN + 8, &local.1.to_be_bytes()),
            (HEADER_LEN + 10, &remote.1.to_be_bytes()),
            (HEADER_LEN + 12, names[0]),
            (HEADER_LEN + 28, names[1]),
            // No cookie.
            (HEADER_LEN + 48, &u64::MAX.to_ne_bytes()),
        ];
        for (at, bytes) in words {
            request[at..at + bytes.len()].copy_from_slice(bytes);
        }
        // SAFETY: the kernel reads the request and writes at most the answer; a netlink socket answers at once.
        let got = unsafe {
            check(syscall!(libc::SYS_sendto, self.0.raw(), request.as_ptr(), REQUEST_LEN, 0, 0, 0))?;
            let (at, len) = (answer.as_mut_ptr(), answer.len());
            check(syscall!(libc::SYS_recvfrom, self.0.raw(), at, len, libc::MSG_DONTWAIT, 0, 0))?
        };
        Ok(answer.get(..got).unwrap_or(&[]))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn parse(answer: &[u8]) -> Result<Reader> {
    if half(answer, 4) == Some(libc::NLMSG_ERROR as u16) {
        let error = word(answer, HEADER_LEN).map_or(libc::EPROTO, |error| -(error as i32));
        return if error == libc::ENOENT {
            Ok(Reader { read: None, is_open: false })
        } else {
            Err(Errno(error))
        };
    }
    let (Some(queued), Some(inode)) = (word(answer, RQUEUE_AT), word(answer, INODE_AT)) else {
        return Err(Errno::EPROTO);
    };
    let info = info(answer.get(ATTRIBUTES_AT..).unwrap_or(&[]));
    let received = info.and_then(|info| number(info, RECEIVED_AT));
    Ok(Reader { read: received.map(|all| all.saturating_sub(u64::from(queued))), is_open: inode != 0 })
}

fn number(info: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?))
}

/// The attribute with `struct tcp_info`.
fn info(mut attributes: &[u8]) -> Option<&[u8]> {
    loop {
        let len = usize::from(half(attributes, 0)?).max(4);
        let info = attributes.get(4..len)?;
        if half(attributes, 2)? == INET_DIAG_INFO {
            return Some(info);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::{Diag, Reader};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_was_read_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut to, _) = listener.accept().unwrap();
        let diag = Diag::open().unwrap();
        let ports = (to.local_addr().unwrap().port(), from.local_addr().unwrap().port());
        from.write_all(b"twelve bytes").unwrap();
        let ask = || diag.reader(ports.0, ports.1).unwrap();
        assert_eq!(ask(), Reader { read: Some(0), is_open: true });
        to.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(ask(), Reader { read: Some(5), is_open: true });
        to.read_exact(&mut [0; 7]).unwrap();
        assert_eq!(ask(), Reader { read: Some(12), is_open: true });
        drop(to);
        assert!(!ask().is_open);
    }

    #[test]
    fn both_directions_are_counted() {
        for name in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(name) else { continue };
            let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut two, _) = listener.accept().unwrap();
            let (local, remote) = (one.local_addr().unwrap(), one.peer_addr().unwrap());
            let diag = Diag::open().unwrap();
            let ask = |port| diag.carried((local.ip(), local.port()), (remote.ip(), port));
            let before = ask(remote.port()).unwrap();
            one.write_all(b"seven b").unwrap();
            two.read_exact(&mut [0; 7]).unwrap();
            two.write_all(b"five.").unwrap();
            one.read_exact(&mut [0; 5]).unwrap();
            assert_eq!((ask(remote.port()).unwrap() - before, ask(1)), (12, None));
        }
    }
}
