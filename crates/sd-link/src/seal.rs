//! What shows that a packet is as it was sent, and from whom.
//!
//! A part of its own, chosen when a link is made: [`Checksum`] for networks that are trusted, authenticated encryption elsewhere (`sd-keys`).

/// Packets so far below the highest number of their path are taken no more. So a seal that changes its keys need not keep old ones.
pub const LATE_MAX: u64 = 4096;

/// The bit of a packet's number, as seals have it, that is turned over where keys change for their age: the packets of a path have it, in the order of
/// their numbers, for a while, then not for a while, and so on. What a packet has of it is authenticated with its header.
pub const PHASE: u64 = 1 << 62;

/// A session: what both ends said when they greeted each other. No two sessions of a link are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Epoch and nonce of this engine, then of the other one.
    pub send: [u64; 4],
    /// The same as the other engine has it: its own first.
    pub receive: [u64; 4],
}

/// Seals and opens packets of one session after the other, and signs the greetings before each.
///
/// ```
/// use sd_link::seal::{Checksum, Seal, Session};
/// let (mut a, mut b) = (Checksum::default(), Checksum::default());
/// let (one, two) = ([1, 2, 3, 4], [3, 4, 1, 2]);
/// (a.begin(&Session { send: one, receive: two }), b.begin(&Session { send: two, receive: one }));
/// let mut packet = *b"header: body........";
/// a.seal(0, 5, &mut packet, 7);
/// assert!(b.open(0, 5, &mut packet, 7));
/// packet[9] ^= 1;
/// assert!(!b.open(0, 5, &mut packet, 7));
/// ```
pub trait Seal {
    /// A session begins, and numbers begin anew on each path.
    fn begin(&mut self, session: &Session);
    /// Bytes that a seal, or a signature, takes at the end of a packet.
    fn overhead(&self) -> usize;
    /// Seals a packet, of which the first `header` bytes stay readable and the last [`Seal::overhead`] are for the seal.
    /// On each path numbers rise from packet to packet, so none is used twice there; two paths use the same ones. Beside the number is [`PHASE`].
    fn seal(&mut self, path: u8, number: u64, packet: &mut [u8], header: usize);
    /// Whether the packet is as it was sealed; its body is then readable.
    fn open(&mut self, path: u8, number: u64, packet: &mut [u8], header: usize) -> bool;
    /// Signs a greeting: it belongs to no session yet, has no number, and stays readable.
    fn sign(&mut self, packet: &mut [u8]);
    /// Whether the other engine has signed this greeting, be it now or long ago.
    fn is_signed(&mut self, packet: &[u8]) -> bool;
}

/// 64 bits that find errors, and packets of other sessions; no protection against who can see packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum {
    send: u64,
    receive: u64,
}

impl Checksum {
    fn put(key: u64, packet: &mut [u8]) {
        if let Some((body, sum)) = packet.split_last_chunk_mut::<8>() {
            *sum = hash(key, body).to_le_bytes();
        }
    }

    fn fits(key: u64, packet: &[u8]) -> bool {
        let parts = packet.split_last_chunk::<8>();
        parts.is_some_and(|(body, sum)| u64::from_le_bytes(*sum) == hash(key, body))
    }
}

impl Seal for Checksum {
    fn begin(&mut self, session: &Session) {
        *self = Checksum { send: hash_words(2, &session.send), receive: hash_words(2, &session.receive) };
    }

    fn overhead(&self) -> usize {
        8
    }

    fn seal(&mut self, _: u8, _: u64, packet: &mut [u8], _: usize) {
        Checksum::put(self.send, packet);
    }

    fn open(&mut self, _: u8, _: u64, packet: &mut [u8], _: usize) -> bool {
        Checksum::fits(self.receive, packet)
    }

    fn sign(&mut self, packet: &mut [u8]) {
        Checksum::put(0, packet);
    }

    fn is_signed(&mut self, packet: &[u8]) -> bool {
        Checksum::fits(0, packet)
    }
}

const ODD: [u64; 4] =
    [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3];

/// Multiplies two words and folds the halves of the product.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// A hash of the wyhash kind: two lanes of 16 bytes, which do not wait for each other.
pub(crate) fn hash(key: u64, bytes: &[u8]) -> u64 {
    let (mut a, mut b) = (key ^ ODD[0], key.rotate_left(32) ^ ODD[1]);
    let mut chunks = bytes.chunks_exact(32);
    for chunk in &mut chunks {
        a = fold(word(chunk, 0) ^ ODD[2], word(chunk, 8) ^ a);
        b = fold(word(chunk, 16) ^ ODD[3], word(chunk, 24) ^ b);
    }
    let mut last = [0; 32];
    for (place, byte) in last.iter_mut().zip(chunks.remainder()) {
        *place = *byte;
    }
    a = fold(word(&last, 0) ^ ODD[2], word(&last, 8) ^ a);
    b = fold(word(&last, 16) ^ ODD[3], word(&last, 24) ^ b);
    fold(a ^ b.rotate_left(29) ^ ODD[0], bytes.len() as u64 ^ b ^ ODD[1])
}

pub(crate) fn hash_words(key: u64, words: &[u64]) -> u64 {
    words.iter().fold(key, |sum, word| hash(sum, &word.to_le_bytes()))
}

/// Numbers that look random, from a seed that is.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Never 0.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash(self.0, &self.0.to_le_bytes()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_counts() {
        let mut bytes = [7u8; 100];
        let sum = hash(3, &bytes);
        assert_ne!(sum, hash(4, &bytes));
        assert_ne!(sum, hash(3, &bytes[..99]));
        for bit in 0..800 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum, hash(3, &bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
