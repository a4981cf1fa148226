//! Records: 12 bytes, and a body where the kind has one.
//!
//! ```text
//! 0 kind u8 | extra u8 | len of the body u16 | connection u32 | position u32
//! ```
//! All but `Ack` are safe to take twice and in any order, so a packet that seems lost is answered by new packets with what the
//! old one's records said, as it is *now*.

use super::Malformed;

/// Bytes of a record without its body.
pub const RECORD: usize = 12;

/// What a record says of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Which packets have come. It is of the path, not of a connection.
    Ack = 1,
    /// Nothing; it asks for an acknowledgement.
    Ping = 2,
    /// The sender wants a connection. Body: tenant, window, and what the engines say to each other about it.
    Open = 3,
    /// It is taken. Body: window.
    Opened = 4,
    /// It is not. Extra: why.
    Refused = 5,
    /// Bytes from this position on.
    Data = 6,
    /// The reader has consumed up to this position.
    Credit = 7,
    /// Nothing comes from this position on.
    Fin = 8,
    /// The connection ends once what is before this position was delivered. Extra: why.
    Reset = 9,
    /// The urgent byte is before this position. Extra: the byte.
    Urgent = 10,
    /// The sender of this reads no more.
    Stop = 11,
    /// What the engines say to each other about the connection, and the last of its kind that counts. Body: that; position: how many before.
    Said = 12,
    /// Bytes from this position on, which the carrier has put where they belong. Body: how many.
    Placed = 13,
}

impl RecordKind {
    fn of(number: u8) -> Option<RecordKind> {
        use RecordKind::*;
        Some(match number {
            1 => Ack,
            2 => Ping,
            3 => Open,
            4 => Opened,
            5 => Refused,
            6 => Data,
            7 => Credit,
            8 => Fin,
            9 => Reset,
            10 => Urgent,
            11 => Stop,
            12 => Said,
            13 => Placed,
            _ => return None,
        })
    }

    fn has_body(self) -> bool {
        use RecordKind::*;
        matches!(self, Ack | Open | Opened | Data | Said | Placed)
    }
}

/// One record of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub kind: RecordKind,
    pub extra: u8,
    pub connection: u32,
    pub position: u32,
    pub body: &'a [u8],
}

/// Writes a record without its body; says whether it had room.
pub fn put(out: &mut [u8], kind: RecordKind, extra: u8, len: u16, connection: u32, position: u32) -> bool {
    let Some(out) = out.first_chunk_mut::<RECORD>() else { return false };
    let first = kind as u128
        | u128::from(extra) << 8
        | u128::from(len) << 16
        | u128::from(connection) << 32
        | u128::from(position) << 64;
    for (place, byte) in out.iter_mut().zip(first.to_le_bytes()) {
        *place = byte;
    }
    true
}

/// The records of a packet; after a malformed one there are none.
#[derive(Clone, Debug)]
pub struct Records<'a>(pub &'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = decode(&mut self.0);
        if record.is_none() {
            self.0 = &[];
        }
        Some(record.ok_or(Malformed))
    }
}

fn decode<'a>(rest: &mut &'a [u8]) -> Option<Record<'a>> {
    let (head, tail) = rest.split_first_chunk::<RECORD>()?;
    let first = head.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))?;
    let position = head.last_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))?;
    let kind = RecordKind::of(first as u8)?;
    let len = usize::from((first >> 16) as u16);
    if kind.has_body() != (len > 0) {
        return None;
    }
    let (body, after) = tail.split_at_checked(len)?;
    *rest = after;
    Some(Record { kind, extra: (first >> 8) as u8, connection: (first >> 32) as u32, position, body })
}
