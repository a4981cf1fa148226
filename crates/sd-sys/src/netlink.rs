//! Questions to the kernel about the sockets and routes of a network namespace: who listens at an address at this moment
//! (sock_diag(7)), whether an address is one of the namespace's own (rtnetlink(7)), and how names are translated ([`translated`]).
//!
//! An answer is believed only if the kernel sent it (port id 0) and it carries the question's number, which nobody can
//! foresee. Each question is answered by the time it has been sent, so nothing here waits.

mod tcp;
pub mod translated;

pub use tcp::Tcp;

use crate::fd::{Number, Owned};
use crate::{Errno, Result, check, syscall};

/// struct nlmsghdr.
const HEADER: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const RTM_GETROUTE: u16 = 26;
const RTN_LOCAL: u8 = 2;
/// Length of struct rtmsg.
const ROUTE_MSG: usize = 12;
const TCP_TIME_WAIT: u8 = 6;
const TCP_LISTEN: u8 = 10;
/// Length of struct inet_diag_msg.
const DIAG_MSG: usize = 72;
/// Room for any one answer; a dump needs [`DUMP_ROOM`].
const ROOM: usize = 1024;
/// Room for a part of a dump.
const DUMP_ROOM: usize = 16 << 10;

/// A TCP listener as it was when somebody proved that he has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its address, an IPv6 or IPv4-mapped address.
    pub ip: [u8; 16],
    /// Its port.
    pub port: u16,
    /// SO_COOKIE.
    pub cookie: u64,
}

/// One that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// SO_COOKIE.
    pub cookie: u64,
    /// The user whose socket it is.
    pub owner: u32,
    /// The socket's inode. A TCP socket that an MPTCP one listens by has the inode of that, but a cookie of its own.
    pub inode: u32,
}

/// What the kernel says of a [`Listener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It listens still; the user whose socket it is.
    Listening(u32),
    /// Nothing listens at its address and port.
    Nobody,
    /// Another socket listens there, and perhaps this one beside it.
    Another,
}

/// A netlink socket; questions are about the network namespace in which it was made. Not for several threads at a time.
pub struct Netlink<F: ?Sized = Owned>(F);

impl Netlink {
    /// One for questions about sockets.
    pub fn of_sockets() -> Result<Netlink> {
        Netlink::open(libc::NETLINK_SOCK_DIAG)
    }

    /// One for questions about routes.
    pub fn of_routes() -> Result<Netlink> {
        Netlink::open(libc::NETLINK_ROUTE)
    }

    fn open(protocol: i32) -> Result<Netlink> {
        crate::fd::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol).map(Netlink)
    }

    /// With its descriptor in another's hands.
    pub fn held_by<F: Number>(self, hold: impl FnOnce(Owned) -> F) -> Netlink<F> {
        Netlink(hold(self.0))
    }
}

impl<F> Netlink<F> {
    /// Over a descriptor of such a socket.
    pub fn over(fd: F) -> Netlink<F> {
        Netlink(fd)
    }

    /// Gives up the descriptor.
    pub fn into_fd(self) -> F {
        self.0
    }
}

impl<F: Number + ?Sized> Netlink<F> {
    /// Whether the kernel answers questions about TCP; otherwise it would say that nobody listens anywhere.
    pub fn knows_tcp(&self) -> bool {
        // A list of the sockets in none of the states: an end, or an error.
        let body = diag_request(libc::AF_INET, 0, &Listener { ip: [0; 16], port: 0, cookie: 0 });
        self.ask_one(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP as u16, &body, |_| false).is_ok()
    }

    /// Asks for a listener. An error: it cannot be known.
    pub fn find(&self, listener: &Listener) -> Result<Found> {
        let body = diag_request(family_of(&listener.ip), 1 << TCP_LISTEN, listener);
        let mut found = Found::Another;
        let asked = self.ask_one(SOCK_DIAG_BY_FAMILY, 0, &body, |answer| {
            let it = listening(answer, listener.port).filter(|it| it.cookie == listener.cookie);
            found = it.map_or(Found::Another, |it| Found::Listening(it.owner));
            true
        });
        match asked {
            Ok(()) => Ok(found),
            Err(Errno::ENOENT) => Ok(Found::Nobody),
            Err(error) => Err(error),
        }
    }

    /// Whether a connection of the kernel's has these four numbers, which another one could not have beside it.
    pub fn is_connected(&self, from: ([u8; 16], u16), to: ([u8; 16], u16)) -> Result<bool> {
        self.connection(from, to).map(|found| found.is_some())
    }

    /// The cookie of the socket at the first end of that connection, if there is one.
    pub fn connection(
        &self,
        (ip, port): ([u8; 16], u16),
        (to_ip, to_port): ([u8; 16], u16),
    ) -> Result<Option<u64>> {
        let listener = Listener { ip, port, cookie: 0 };
        let mut body = diag_request(family_of(&ip), u32::MAX, &listener);
        body[10..12].copy_from_slice(&to_port.to_be_bytes());
        body[28..44].copy_from_slice(&address_of(&to_ip).0);
        let mut connection = None;
        // Where there is none the kernel finds who listens at the own end.
        let asked = self.ask_one(SOCK_DIAG_BY_FAMILY, 0, &body, |answer| {
            let is_it = |answer: &[u8; DIAG_MSG]| {
                !matches!(answer[1], TCP_LISTEN | TCP_TIME_WAIT) && answer[6..8] == to_port.to_be_bytes()
            };
            let cookie =
                |answer: &[u8; DIAG_MSG]| Some(u64::from_ne_bytes(*answer.get(44..)?.first_chunk()?));
            connection = answer.first_chunk().filter(|answer| is_it(answer)).and_then(cookie);
            true
        });
        match asked {
            Ok(()) => Ok(connection),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells `take` of all that listen on a port, at any address.
    pub fn list(&self, port: u16, mut take: impl FnMut(Listed)) -> Result<()> {
        let mut buf = [0; DUMP_ROOM];
        for family in [libc::AF_INET, libc::AF_INET6] {
            let body = diag_request(family, 1 << TCP_LISTEN, &Listener { ip: [0; 16], port, cookie: 0 });
            self.ask(SOCK_DIAG_BY_FAMILY, libc::NLM_F_DUMP as u16, &body, &mut buf, |answer| {
                listening(answer, port).into_iter().for_each(&mut take);
                false
            })?;
        }
        Ok(())
    }

    /// Whether an address is one of the namespace's own, so that what is sent there never leaves it.
    pub fn is_local(&self, ip: [u8; 16]) -> Result<bool> {
        self.route(ip).map(|route| route.is_some())
    }

    /// The address from which the kernel would connect to an address, if that is one of the namespace's own.
    pub fn source_to(&self, ip: [u8; 16]) -> Result<Option<[u8; 16]>> {
        match self.route(ip)? {
            Some(None) => Err(Errno::EOPNOTSUPP),
            Some(source) => Ok(source),
            None => Ok(None),
        }
    }

    /// The route to one of the namespace's own addresses: the source, where the kernel says so. `None`: it is elsewhere, or
    /// nowhere.
    fn route(&self, ip: [u8; 16]) -> Result<Option<Option<[u8; 16]>>> {
        let family = family_of(&ip);
        let (address, len) = address_of(&ip);
        // struct rtmsg, struct rtattr, the address.
        let mut body = [0u8; ROUTE_MSG + 20];
        body[0] = family as u8;
        body[1] = len as u8 * 8;
        body[12..14].copy_from_slice(&(4 + len as u16).to_ne_bytes());
        body[14..16].copy_from_slice(&libc::RTA_DST.to_ne_bytes());
        body[16..].copy_from_slice(&address);
        let body = body.get(..16 + len).unwrap_or(&[]);
        let mut route = None;
        let asked = self.ask_one(RTM_GETROUTE, 0, body, |answer| {
            let is_local = answer.get(7) == Some(&RTN_LOCAL);
            route = is_local.then(|| source_in(answer.get(ROUTE_MSG..).unwrap_or(&[]), len));
            true
        });
        match asked {
            Ok(()) => Ok(route),
            Err(Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`Netlink::ask`], where one answer is enough. Not part of who asks: it has room for that on the stack, which may be small.
    #[inline(never)]
    fn ask_one(&self, kind: u16, flags: u16, body: &[u8], take: impl FnMut(&[u8]) -> bool) -> Result<()> {
        self.ask(kind, flags, body, &mut [0; ROOM], take)
    }

    /// Sends a question; `take` gets the bodies of the answers, until it says that it was the last.
    fn ask(
        &self,
        kind: u16,
        flags: u16,
        body: &[u8],
        buf: &mut [u8],
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let number = (crate::time::ticks() as u32).rotate_left(7)
            ^ core::ptr::from_ref(self).cast::<()>() as usize as u32;
        let mut question = [0u8; HEADER + 80];
        let len = HEADER + body.len();
        question[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        question[4..6].copy_from_slice(&kind.to_ne_bytes());
        question[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
        question[8..12].copy_from_slice(&number.to_ne_bytes());
        question.get_mut(HEADER..len).ok_or(Errno::EINVAL)?.copy_from_slice(body);
        // SAFETY: the kernel reads `len` bytes of the question, which has so many: a slice of them was just written.
        check(unsafe {
            syscall!(libc::SYS_sendto, self.0.raw(), question.as_ptr(), len, libc::MSG_DONTWAIT)
        })?;
        loop {
            let (got, sender) = self.receive(buf)?;
            if sender == 0
                && let Some(result) = read_answers(buf.get(..got).unwrap_or(&[]), number, &mut take)
            {
                return result;
            }
        }
    }

    /// A datagram: its length, and the port id of its sender.
    fn receive(&self, buf: &mut [u8]) -> Result<(usize, u32)> {
        // SAFETY: an all-zero sockaddr_nl is valid.
        let mut from: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
        let mut from_len = size_of::<libc::sockaddr_nl>() as u32;
        // SAFETY: the kernel writes at most `buf.len()` bytes, and one address of the length given.
        let got = check(unsafe {
            syscall!(
                libc::SYS_recvfrom,
                self.0.raw(),
                buf.as_mut_ptr(),
                buf.len(),
                libc::MSG_DONTWAIT,
                &mut from as *mut libc::sockaddr_nl,
                &mut from_len as *mut u32
            )
        })?;
        Ok((got, from.nl_pid))
    }
}

/// The messages of a datagram; `None` when more is to come, or it was not the answer.
fn read_answers(mut bytes: &[u8], number: u32, take: &mut impl FnMut(&[u8]) -> bool) -> Option<Result<()>> {
    while let Some((len, kind, sequence)) = header(bytes) {
        let body = bytes.get(HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        if sequence != number {
            continue;
        }
        match i32::from(kind) {
            libc::NLMSG_DONE => return Some(Ok(())),
            libc::NLMSG_ERROR => {
                let error = i32::from_ne_bytes(*body.first_chunk()?);
                return Some(if error == 0 { Ok(()) } else { Err(Errno(error.wrapping_neg())) });
            }
            _ if take(body) => return Some(Ok(())),
            _ => {}
        }
    }
    None
}

/// Length, kind and number of the first message.
fn header(bytes: &[u8]) -> Option<(usize, u16, u32)> {
    let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let sequence = u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
    (HEADER..=bytes.len()).contains(&len).then_some((len, kind, sequence))
}

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

fn is_v4(ip: &[u8; 16]) -> bool {
    ip.starts_with(&MAPPED)
}

/// RTA_PREFSRC among the attributes of a route whose addresses have `len` bytes.
fn source_in(mut attributes: &[u8], len: usize) -> Option<[u8; 16]> {
    loop {
        let size = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        if kind == libc::RTA_PREFSRC {
            let mut ip = [0; 16];
            ip[..12].copy_from_slice(&MAPPED);
            ip.get_mut(16 - len..)?.copy_from_slice(attributes.get(4..size).filter(|it| it.len() == len)?);
            return Some(ip);
        }
        attributes = attributes.get(size.max(4).next_multiple_of(4)..)?;
    }
}

fn family_of(ip: &[u8; 16]) -> i32 {
    if is_v4(ip) { libc::AF_INET } else { libc::AF_INET6 }
}

/// The address as its family has it, and its length.
fn address_of(ip: &[u8; 16]) -> ([u8; 16], usize) {
    if !is_v4(ip) {
        return (*ip, 16);
    }
    let mut address = [0; 16];
    address[..4].copy_from_slice(&ip[12..]);
    (address, 4)
}

/// struct inet_diag_req_v2.
fn diag_request(family: i32, states: u32, listener: &Listener) -> [u8; 56] {
    let mut body = [0u8; 56];
    body[0] = family as u8;
    body[1] = libc::IPPROTO_TCP as u8;
    body[4..8].copy_from_slice(&states.to_ne_bytes());
    body[8..10].copy_from_slice(&listener.port.to_be_bytes());
    body[12..28].copy_from_slice(&address_of(&listener.ip).0);
    // With a cookie the kernel would not say that another one listens there.
    body[48..].fill(0xff);
    body
}

/// If this struct inet_diag_msg is of a listener on that port: what it is.
fn listening(answer: &[u8], port: u16) -> Option<Listed> {
    let answer: &[u8; DIAG_MSG] = answer.first_chunk()?;
    let cookie = u64::from_ne_bytes(*answer.get(44..)?.first_chunk()?);
    let owner = u32::from_ne_bytes(*answer.get(64..)?.first_chunk()?);
    let inode = u32::from_ne_bytes(*answer.get(68..)?.first_chunk()?);
    let is_it = answer[1] == TCP_LISTEN && answer[4..6] == port.to_be_bytes();
    is_it.then_some(Listed { cookie, owner, inode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, SocketAddr, TcpListener};
    use std::os::fd::AsRawFd;

    fn of(socket: &TcpListener) -> Listener {
        let (ip, port) = match socket.local_addr().unwrap() {
            SocketAddr::V4(name) => (name.ip().to_ipv6_mapped().octets(), name.port()),
            SocketAddr::V6(name) => (name.ip().octets(), name.port()),
        };
        let cookie =
            crate::fd::getsockopt_u64(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).unwrap();
        Listener { ip, port, cookie }
    }

    #[test]
    fn knows_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = of(&listener);
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let port = client.local_addr().unwrap().port();
        let netlink = Netlink::of_sockets().unwrap();
        assert_eq!(netlink.is_connected((to.ip, port), (to.ip, to.port)), Ok(true));
        assert_eq!(netlink.is_connected((to.ip, port), (to.ip, to.port ^ 1)), Ok(false));
        assert_eq!(netlink.is_connected((to.ip, to.port), (to.ip, 1)), Ok(false), "it listens");
    }

    fn ip(text: &str) -> [u8; 16] {
        match text.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        }
    }

    fn lists(netlink: &Netlink, listener: &Listener) -> bool {
        let mut is_there = false;
        netlink.list(listener.port, |it| is_there |= it.cookie == listener.cookie).unwrap();
        is_there
    }

    #[test]
    fn listeners_are_found_while_they_listen() {
        let netlink = Netlink::of_sockets().unwrap();
        assert!(netlink.knows_tcp());
        // SAFETY: no pointer is passed.
        let user = unsafe { libc::geteuid() };
        for name in ["127.0.0.1:0", "0.0.0.0:0", "127.9.8.7:0", "[::1]:0", "[::]:0", "[::ffff:127.0.0.1]:0"] {
            let Ok(socket) = TcpListener::bind(name) else { continue };
            let listener = of(&socket);
            let other = Listener { cookie: listener.cookie + 1, ..listener };
            assert_eq!(netlink.find(&listener), Ok(Found::Listening(user)), "{name}");
            assert!(lists(&netlink, &listener), "{name}");
            assert_eq!(netlink.find(&other), Ok(Found::Another), "{name}");
            drop(socket);
            assert_eq!(netlink.find(&listener), Ok(Found::Nobody), "{name}");
            assert!(!lists(&netlink, &listener), "{name}");
        }
    }

    #[test]
    fn a_wildcard_is_found_beside_others() {
        let netlink = Netlink::of_sockets().unwrap();
        let all = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = all.local_addr().unwrap().port();
        let found = netlink.find(&of(&all));
        assert!(matches!(found, Ok(Found::Listening(_))));
        if let Ok(six) = TcpListener::bind(("::1", port)) {
            assert!(matches!(netlink.find(&of(&six)), Ok(Found::Listening(_))));
            assert_eq!(netlink.find(&of(&all)), found);
        }
    }

    #[test]
    fn local_addresses() {
        let netlink = Netlink::of_routes().unwrap();
        assert_eq!(netlink.is_local(ip("127.0.0.1")), Ok(true));
        assert_eq!(netlink.is_local(ip("127.200.3.4")), Ok(true));
        for elsewhere in ["93.184.216.34", "203.0.113.9", "2001:db8::7", "255.255.255.255", "224.0.0.1"] {
            assert_eq!(netlink.is_local(ip(elsewhere)), Ok(false), "{elsewhere}");
            assert_eq!(netlink.source_to(ip(elsewhere)), Ok(None), "{elsewhere}");
        }
    }

    /// As an unconnected UDP socket says.
    #[test]
    fn the_kernel_says_where_it_would_connect_from() {
        let netlink = Netlink::of_routes().unwrap();
        let outside = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        let own = outside.connect("192.0.2.1:9").and_then(|()| outside.local_addr()).map(|name| name.ip());
        let own = own.ok().map(|ip| ip.to_string()).filter(|_| outside.connect("192.0.2.1:9").is_ok());
        for to in ["127.0.0.1", "127.200.3.4", "::1"].map(String::from).into_iter().chain(own) {
            let any = if to.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
            let Ok(socket) = std::net::UdpSocket::bind(any) else { continue };
            if socket.connect((to.as_str(), 9)).is_err() {
                continue;
            }
            let source = ip(&socket.local_addr().unwrap().ip().to_string());
            assert_eq!(netlink.source_to(ip(&to)), Ok(Some(source)), "{to}");
        }
    }

    #[test]
    fn attributes_of_routes() {
        let attribute = |kind: u16, bytes: &[u8]| {
            [&(4 + bytes.len() as u16).to_ne_bytes()[..], &kind.to_ne_bytes(), bytes].concat()
        };
        let source = attribute(libc::RTA_PREFSRC, &[127, 0, 0, 1]);
        let all = [attribute(libc::RTA_DST, &[127, 9, 8, 7]), source.clone()].concat();
        assert_eq!(source_in(&all, 4), Some(ip("127.0.0.1")));
        assert_eq!(source_in(&all, 16), None, "of another family");
        assert_eq!(source_in(&all[..12], 4), None, "cut");
        assert_eq!(source_in(&[0; 40], 4), None, "attributes without a length come to an end");
        assert_eq!(source_in(&attribute(libc::RTA_PREFSRC, &[7; 16]), 16), Some([7; 16]));
        assert_eq!(source_in(&[], 4), None);
    }

    #[test]
    fn answers_of_others_are_not_taken() {
        let mut bytes = [0u8; 40];
        bytes[..4].copy_from_slice(&20u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        bytes[8..12].copy_from_slice(&7u32.to_ne_bytes());
        bytes[16..20].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        assert_eq!(read_answers(&bytes[..20], 7, &mut |_| true), Some(Err(Errno::ENOENT)));
        assert_eq!(read_answers(&bytes[..20], 8, &mut |_| true), None);
        assert_eq!(read_answers(&bytes[..19], 7, &mut |_| true), None);
        bytes[..4].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(read_answers(&bytes, 7, &mut |_| true), None, "too short for a header");
    }
}
