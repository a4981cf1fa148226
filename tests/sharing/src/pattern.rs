//! Bytes by which a reader knows that it has the right ones, and a cheap source of chance.

/// The byte at a place in every stream.
pub(crate) fn byte_at(place: usize) -> u8 {
    (place.wrapping_mul(131) >> 3) as u8
}

/// A part of the stream.
pub(crate) fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte_at).collect()
}

/// xorshift64*; the seed makes a run repeatable.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Values that code which trusts them would fall over.
    pub(crate) fn nasty(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => self.below(5000),
            4 => u64::from(u32::MAX) << 32,
            5 => 0x7fff_ffff_7fff_ffff,
            6 => (self.below(8) << 32) | self.below(1 << 22),
            _ => self.next(),
        }
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}
