//! Where an end is, as one engine tells another.
//!
//! ```text
//! 0 gid 16 | lid u16 | number u32 | first packet u32 | bytes of a packet u16 | window: place u64 | len u64 | key u32      little-endian
//! ```

use sd_verbs::{Address, Mtu, Window};
use std::net::{IpAddr, Ipv6Addr};

/// What the other engine is to know: told over the connection on which engines greet each other, and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsEnd {
    pub address: Address,
    pub window: Window,
}

impl VerbsEnd {
    /// Bytes of an end that is told.
    pub const LEN: usize = 16 + 2 + 4 + 4 + 2 + 8 + 8 + 4;

    /// As it is told, little-endian.
    pub fn encode(&self) -> [u8; VerbsEnd::LEN] {
        let VerbsEnd { address, window } = self;
        let mut out = [0; VerbsEnd::LEN];
        let parts: [&[u8]; 8] = [
            &address.gid,
            &address.lid.to_le_bytes(),
            &address.number.to_le_bytes(),
            &address.first.to_le_bytes(),
            &(address.mtu.bytes() as u16).to_le_bytes(),
            &window.addr.to_le_bytes(),
            &window.len.to_le_bytes(),
            &window.key.to_le_bytes(),
        ];
        for (place, byte) in out.iter_mut().zip(parts.concat()) {
            *place = byte;
        }
        out
    }

    /// What was told; `None`: it is no end.
    pub fn decode(bytes: &[u8; VerbsEnd::LEN]) -> Option<VerbsEnd> {
        let mut rest = &bytes[..];
        let gid = take(&mut rest)?;
        let lid = u16::from_le_bytes(take(&mut rest)?);
        let [number, first] = [u32::from_le_bytes(take(&mut rest)?), u32::from_le_bytes(take(&mut rest)?)];
        let mtu = Mtu::within(u16::from_le_bytes(take(&mut rest)?).into())?;
        let [addr, len] = [u64::from_le_bytes(take(&mut rest)?), u64::from_le_bytes(take(&mut rest)?)];
        let window = Window { addr, len, key: u32::from_le_bytes(take(&mut rest)?) };
        Some(VerbsEnd { address: Address { gid, lid, number, first, mtu }, window })
    }

    /// Whether it is of a port that has this address.
    pub fn is_at(&self, address: IpAddr) -> bool {
        IpAddr::from(Ipv6Addr::from(self.address.gid)).to_canonical() == address.to_canonical()
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (here, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(*here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 7]);
        let mtu = Mtu::within(1024).unwrap();
        let address = Address { gid, lid: 0x1234, number: 0xab_cdef, first: 77, mtu };
        let end = VerbsEnd { address, window: Window { addr: u64::MAX - 3, len: 1 << 20, key: 0x8765_4321 } };
        assert_eq!(VerbsEnd::decode(&end.encode()), Some(end));
        let is_at = |text: &str| end.is_at(text.parse().unwrap());
        assert!(is_at("10.0.0.7") && is_at("::ffff:10.0.0.7") && !is_at("10.0.0.8") && !is_at("::10.0.0.7"));
        assert_eq!(VerbsEnd::decode(&[0; VerbsEnd::LEN]), None, "no packet is that short");
    }
}
