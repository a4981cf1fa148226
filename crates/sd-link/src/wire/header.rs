//! The first 24 bytes of a packet.
//!
//! ```text
//! 0 magic u16 | version and kind u8 | path u8 | len u16 | age u16 | tag u64 | number u62, phase of the keys u1, 0 u1
//! ```

use super::{Malformed, take};
use crate::seal::PHASE;

/// Bytes of a header.
pub const HEADER: usize = 24;
const MAGIC: u16 = 0x5DE1;
const VERSION: u8 = 1;
/// No packet has this number or a greater one.
const NUMBER_END: u64 = PHASE;

/// What a packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// [`super::Hello`].
    Hello = 1,
    /// Records of a session.
    Records = 2,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: PacketKind,
    /// By which of the carriers of this pair of engines.
    pub path: u8,
    /// Bytes of the whole packet, with header and seal.
    pub len: u16,
    /// The sender waits for the acknowledgement of no packet before `number - age`.
    pub age: u16,
    /// Which session, and which direction of it.
    pub tag: u64,
    /// Each packet of a path has a number of its own; what is sent again is in another packet.
    pub number: u64,
    /// Of the keys.
    pub phase: bool,
}

impl Header {
    /// The number as a seal has it.
    pub fn sealed_number(&self) -> u64 {
        self.number | if self.phase { PHASE } else { 0 }
    }

    pub fn encode(&self, out: &mut [u8; HEADER]) {
        let kind = VERSION << 4 | self.kind as u8;
        let first = u64::from(MAGIC)
            | u64::from(kind) << 16
            | u64::from(self.path) << 24
            | u64::from(self.len) << 32
            | u64::from(self.age) << 48;
        let words = [first, self.tag, self.sealed_number()];
        for (place, word) in out.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Of a packet that came whole: its length must be the one it says.
    pub fn decode(packet: &[u8]) -> Result<Header, Malformed> {
        let mut rest = packet;
        let first = u64::from_le_bytes(take(&mut rest)?);
        let tag = u64::from_le_bytes(take(&mut rest)?);
        let word = u64::from_le_bytes(take(&mut rest)?);
        let (number, phase) = (word & !PHASE, word & PHASE != 0);
        let len = (first >> 32) as u16;
        let kind = match (first >> 16) as u8 ^ VERSION << 4 {
            1 => PacketKind::Hello,
            2 => PacketKind::Records,
            _ => return Err(Malformed),
        };
        if first as u16 != MAGIC || usize::from(len) != packet.len() || number >= NUMBER_END {
            return Err(Malformed);
        }
        Ok(Header { kind, path: (first >> 24) as u8, len, age: (first >> 48) as u16, tag, number, phase })
    }
}

/// Of a stream of packets: how long the first one is; `None` while too little is there to say.
pub fn packet_len(stream: &[u8]) -> Option<Result<usize, Malformed>> {
    let first = stream.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))?;
    let len = usize::from((first >> 32) as u16);
    Some(if first as u16 == MAGIC && len >= HEADER { Ok(len) } else { Err(Malformed) })
}
