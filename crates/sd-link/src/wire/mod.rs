//! What stands in a packet: a header, then records one after the other, then the seal.
//!
//! Fields are little-endian and not padded. Decoding accepts exactly what encoding makes, never panics, and allocates nothing.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod ack;
mod header;
mod hello;
mod record;

pub use ack::{Ack, RANGES_MAX, ack_max};
pub use header::{HEADER, Header, PacketKind, packet_len};
pub use hello::{HELLO, Hello};
pub use record::{RECORD, Record, RecordKind, Records, put};

/// Bytes that no encoder makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The position near `near` of which `low` is the lower half.
///
/// Both ends are never further apart than a window of [`crate::WINDOW_MAX`], so the nearest one is the one that was meant.
pub fn expand(low: u32, near: u64) -> u64 {
    let distance = i64::from(low.wrapping_sub(near as u32) as i32);
    near.saturating_add_signed(distance)
}

/// Takes a fixed number of bytes off the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(Malformed)?;
    *rest = tail;
    Ok(*head)
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn positions_near_the_wrap() {
        for near in [0, 5, u64::from(u32::MAX) - 2, 1 << 32, (7 << 32) + 9, 7 << 40] {
            for distance in [-(1 << 30), -3, 0, 4, 1 << 30] {
                let Some(meant) = near.checked_add_signed(distance) else { continue };
                assert_eq!(expand(meant as u32, near), meant);
            }
        }
        assert_eq!(expand(u32::MAX, 3), 0, "nothing is before the beginning");
    }
}
