//! Under which names the other end has a connection whose addresses this host's kernel translates on their way (nf_conntrack): a service's
//! address that stands for one of several hosts, or a source that others see as another one.
//!
//! The kernel answers in the network namespace that translates, and to who has CAP_NET_ADMIN over it.

use super::{MAPPED, Netlink, address_of, family_of, is_v4};
use crate::fd::Number;
use crate::{Errno, Result};

/// An address, which may be an IPv4-mapped one, and a port.
pub type Name = ([u8; 16], u16);

/// `NFNL_SUBSYS_CTNETLINK`, `IPCTNL_MSG_CT_GET` (linux/netfilter/nfnetlink_conntrack.h).
const GET: u16 = 1 << 8 | 1;
/// Length of struct nfgenmsg.
const NFGEN_MSG: usize = 4;
/// Attributes of a connection: its names on the way there, and those on the way back.
const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
/// Attributes of names.
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
/// Attributes of addresses: source and destination.
const IP_V4: [u16; 2] = [1, 2];
const IP_V6: [u16; 2] = [3, 4];
/// Attributes of ports.
const PROTO_NUM: u16 = 1;
const PROTO_PORTS: [u16; 2] = [2, 3];
/// An attribute has attributes.
const NESTED: u16 = 1 << 15;
/// The greatest question: names of IPv6.
const QUESTION: usize = NFGEN_MSG + 4 + 4 + 2 * 20 + 4 + 3 * 8;

impl Netlink {
    /// One for questions about connections whose addresses are translated.
    pub fn of_translations() -> Result<Netlink> {
        Netlink::open(libc::NETLINK_NETFILTER)
    }
}

impl<F: Number + ?Sized> Netlink<F> {
    /// The names of a connection as the other end has them: the one from which it comes there, and the one to which it goes.
    /// `None`: the kernel does not know such a connection.
    pub fn translated(&self, from: Name, to: Name) -> Result<Option<[Name; 2]>> {
        if is_v4(&from.0) != is_v4(&to.0) {
            return Err(Errno::EINVAL);
        }
        let mut question = Question { bytes: [0; QUESTION], len: 0 };
        question.connection(from, to);
        let body = question.bytes.get(..question.len).unwrap_or(&[]);
        let mut names = None;
        let asked = self.ask_one(GET, 0, body, |answer| {
            names = answer.get(NFGEN_MSG..).and_then(|answer| way_back(answer, is_v4(&from.0)));
            true
        });
        match asked {
            // What comes back goes from the end that was reached to the one that it knows.
            Ok(()) => Ok(names.map(|[reached, known]| [known, reached])),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What the kernel is asked. There is room for all that is put.
struct Question {
    bytes: [u8; QUESTION],
    len: usize,
}

impl Question {
    fn connection(&mut self, from: Name, to: Name) {
        let kinds = if is_v4(&from.0) { IP_V4 } else { IP_V6 };
        self.put(&[family_of(&from.0) as u8, 0, 0, 0]);
        self.nested(TUPLE_ORIG, |it| {
            it.nested(TUPLE_IP, |it| {
                for (kind, (ip, _)) in kinds.into_iter().zip([from, to]) {
                    let (address, len) = address_of(&ip);
                    it.attribute(kind, address.get(..len).unwrap_or(&[]));
                }
            });
            it.nested(TUPLE_PROTO, |it| {
                it.attribute(PROTO_NUM, &[libc::IPPROTO_TCP as u8]);
                for (kind, (_, port)) in PROTO_PORTS.into_iter().zip([from, to]) {
                    it.attribute(kind, &port.to_be_bytes());
                }
            });
        });
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Question)) {
        let at = self.len;
        self.put(&[0; 4]);
        fill(self);
        let len = (self.len - at) as u16;
        let head = [len.to_ne_bytes(), (kind | NESTED).to_ne_bytes()];
        self.bytes.iter_mut().skip(at).zip(head.as_flattened()).for_each(|(to, from)| *to = *from);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.put(&(4 + value.len() as u16).to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
        self.len = self.len.next_multiple_of(4);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.iter_mut().skip(self.len).zip(bytes).for_each(|(to, from)| *to = *from);
        self.len += bytes.len();
    }
}

/// The names of what comes back, source and destination, among the attributes of a connection.
fn way_back(connection: &[u8], is_v4: bool) -> Option<[Name; 2]> {
    let tuple = attribute(connection, TUPLE_REPLY)?;
    let (ip, proto) = (attribute(tuple, TUPLE_IP)?, attribute(tuple, TUPLE_PROTO)?);
    (attribute(proto, PROTO_NUM)? == [libc::IPPROTO_TCP as u8]).then_some(())?;
    let [from, to] = if is_v4 { IP_V4 } else { IP_V6 }.map(|kind| attribute(ip, kind));
    let [from_port, to_port] = PROTO_PORTS.map(|kind| attribute(proto, kind));
    Some([name(from?, from_port?, is_v4)?, name(to?, to_port?, is_v4)?])
}

fn name(address: &[u8], port: &[u8], is_v4: bool) -> Option<Name> {
    let mut ip = [0; 16];
    match is_v4 {
        true => {
            ip[..12].copy_from_slice(&MAPPED);
            ip[12..].copy_from_slice(<&[u8; 4]>::try_from(address).ok()?);
        }
        false => ip = address.try_into().ok()?,
    }
    Some((ip, u16::from_be_bytes(port.try_into().ok()?)))
}

/// The value of the first attribute of a kind.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let size = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?)).max(4);
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..size)?;
        if kind & !NESTED == wanted {
            return Some(value);
        }
        attributes = attributes.get(size.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8, port: u16) -> Name {
        ([&MAPPED[..], &[10, 0, 0, last]].concat().try_into().unwrap(), port)
    }

    /// A question has its names where an answer has those of the way there.
    fn told(from: Name, to: Name) -> Vec<u8> {
        let mut question = Question { bytes: [0; QUESTION], len: 0 };
        question.connection(from, to);
        question.bytes[..question.len].to_vec()
    }

    /// As the kernel answers: both ways, with something in between that nobody asked for.
    fn answer([from, to]: [Name; 2], [reached, known]: [Name; 2]) -> Vec<u8> {
        let mut back = told(reached, known).split_off(NFGEN_MSG);
        back[2..4].copy_from_slice(&(TUPLE_REPLY | NESTED).to_ne_bytes());
        let status = [8u8, 0, 3, 0, 0, 0, 1, 0];
        [told(from, to), status.to_vec(), back].concat()
    }

    #[test]
    fn names_of_the_way_back() {
        let six = |last: u8, port| ([last; 16], port);
        for ends in [
            [v4(1, 40_000), v4(9, 80), v4(2, 8080), v4(3, 50_000)],
            [six(0x21, 40_000), six(0x29, 80), six(0x22, 8080), six(0x23, 50_000)],
        ] {
            let [from, to, reached, known] = ends;
            let bytes = answer([from, to], [reached, known]);
            let is_v4 = is_v4(&from.0);
            assert_eq!(way_back(&bytes[NFGEN_MSG..], is_v4), Some([reached, known]));
            assert_eq!(way_back(&bytes[NFGEN_MSG..], !is_v4), None, "of the other family");
            for end in NFGEN_MSG..bytes.len() - 3 {
                assert_eq!(way_back(&bytes[NFGEN_MSG..end], is_v4), None, "cut at {end}");
            }
            assert_eq!(way_back(&told(from, to)[NFGEN_MSG..], is_v4), None, "one way only");
        }
        assert_eq!(attribute(&[0; 40], 1), None, "attributes without a length come to an end");
    }

    #[test]
    fn questions_are_as_long_as_they_say() {
        let (four, six) = (told(v4(1, 2), v4(3, 4)), told(([7; 16], 2), ([8; 16], 4)));
        assert_eq!((four.len(), six.len()), (QUESTION - 24, QUESTION));
        for question in [four, six] {
            let size = u16::from_ne_bytes([question[4], question[5]]);
            assert_eq!(usize::from(size), question.len() - NFGEN_MSG);
        }
    }

    #[test]
    fn who_is_not_translated_is_not_known() {
        let Ok(netlink) = Netlink::of_translations() else { return };
        let asked = netlink.translated(v4(1, 1), v4(2, 2));
        // Or the caller has no right to ask, or the kernel has no such thing.
        assert!(
            matches!(asked, Ok(None) | Err(Errno::EPERM | Errno::EINVAL | Errno::EOPNOTSUPP)),
            "{asked:?}"
        );
        assert_eq!(netlink.translated(v4(1, 1), ([7; 16], 2)), Err(Errno::EINVAL));
    }
}
