//! The 8-byte word in front of every message.
//!
//! ```text
//!  63            36 35  32 31                0
//! +----------------+------+------------------+
//! |     stamp      | kind |      length      |
//! +----------------+------+------------------+
//! ```
//! Zero means "nothing here yet". `length` is the payload's size for data; for a jump it is the
//! number of ring bytes that the jump uses up, so that both sides count the same credits. The stamp says when the
//! message was sent, or zero: see `stamp.rs`.

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Payload follows.
    Data,
    /// The next header is at the start of the small region.
    ToSmall,
    /// The next header is at the start of the large region.
    ToLarge,
    /// The sender will send no more.
    Fin,
    /// One byte follows: payload that was sent as urgent.
    Urgent,
    /// What follows goes another way: through the kernel's connection, see `road.rs`.
    Marker,
}

/// Size of a header in bytes.
pub(crate) const SIZE: u32 = 8;

const STAMP_SHIFT: u32 = 36;

/// The header word for `kind` and `len`.
#[inline(always)]
pub(crate) fn encode(kind: Kind, len: u32, stamp: u32) -> u64 {
    let kind: u64 = match kind {
        Kind::Data => 1,
        Kind::ToSmall => 2,
        Kind::ToLarge => 3,
        Kind::Fin => 4,
        Kind::Urgent => 5,
        Kind::Marker => 6,
    };
    (u64::from(stamp) << STAMP_SHIFT) | (kind << 32) | u64::from(len)
}

/// Reads a header word; `None` when no sender of ours wrote it.
#[inline(always)]
pub(crate) fn decode(word: u64) -> Option<(Kind, u32)> {
    let kind = match word >> 32 & 0xf {
        1 => Kind::Data,
        2 => Kind::ToSmall,
        3 => Kind::ToLarge,
        4 => Kind::Fin,
        5 => Kind::Urgent,
        6 => Kind::Marker,
        _ => return None,
    };
    Some((kind, word as u32))
}

/// When the message was sent; zero when the sender did not say.
#[inline(always)]
pub(crate) fn stamp(word: u64) -> u32 {
    (word >> STAMP_SHIFT) as u32
}

/// Payload size rounded up to whole words.
#[inline(always)]
pub(crate) fn padded(len: u32) -> u32 {
    (len + 7) & !7
}
