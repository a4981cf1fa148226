//! Addresses, and which listener a connection to one is for.

use core::net::{IpAddr, Ipv6Addr};

/// An IPv6 address, or an IPv4 one mapped into ::ffff:0:0/96, in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Ip(pub [u8; 16]);

impl Ip {
    /// The mapped form of an IPv4 address.
    pub const fn v4(a: [u8; 4]) -> Ip {
        Ip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3]])
    }

    /// The IPv4 address inside, if it is one.
    pub fn to_v4(self) -> Option<[u8; 4]> {
        let b = self.0;
        (b[..12] == Ip::v4([0; 4]).0[..12]).then_some([b[12], b[13], b[14], b[15]])
    }

    /// An IPv4 address where it is a mapped one.
    pub fn to_addr(self) -> IpAddr {
        self.to_v4().map_or_else(|| Ipv6Addr::from(self.0).into(), IpAddr::from)
    }

    /// As two words in memory order.
    pub fn halves(self) -> [u64; 2] {
        let (mut first, mut second) = ([0; 8], [0; 8]);
        first.copy_from_slice(&self.0[..8]);
        second.copy_from_slice(&self.0[8..]);
        [first, second].map(u64::from_ne_bytes)
    }

    /// The other way.
    pub fn from_halves([first, second]: [u64; 2]) -> Ip {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first.to_ne_bytes());
        bytes[8..].copy_from_slice(&second.to_ne_bytes());
        Ip(bytes)
    }

    /// 0.0.0.0 or ::.
    pub fn is_unspecified(self) -> bool {
        self == Ip([0; 16]) || self == Ip::v4([0; 4])
    }

    /// How well a listener at this address fits a connection to `ip` on its port: 0 is best, `None` not at all. The order
    /// is that of the kernel's `inet_lookup_listener`: the exact address, then the wildcard of the same family, then `::`
    /// for both.
    pub fn rank_for(self, ip: Ip, v6only: bool) -> Option<u8> {
        if self == ip {
            return Some(0);
        }
        if !self.is_unspecified() {
            return None;
        }
        match (self.to_v4(), ip.to_v4()) {
            (Some(_), Some(_)) | (None, None) => Some(1),
            (None, Some(_)) if !v6only => Some(2),
            _ => None,
        }
    }

    /// 127.0.0.0/8 or ::1.
    pub fn is_loopback(self) -> bool {
        self.to_v4().map_or(self.0 == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], |a| a[0] == 127)
    }
}

impl From<IpAddr> for Ip {
    fn from(address: IpAddr) -> Ip {
        match address {
            IpAddr::V4(v4) => Ip::v4(v4.octets()),
            IpAddr::V6(v6) => Ip(v6.octets()),
        }
    }
}
