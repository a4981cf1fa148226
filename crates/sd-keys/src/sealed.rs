//! Packets of a link, sealed: [`sd_link::seal::Seal`] by an AEAD.
//!
//! ```text
//! secret of the handshake and direction ── greeting key (HMAC-SHA-256, 16 bytes of it)
//!   └─ session: epochs and nonces of both ── path ── generation 0 ── 1 ── 2 ── ...
//!                                                        └─ key, iv
//! ```
//! Every arrow is HKDF-Expand with SHA-256 and a label. The header is authenticated, the body encrypted as well; the nonce is iv
//! XOR the packet's number. Numbers rise on each path and begin anew with each session; a path of a session has keys of its own.
//!
//! **Rotation**: numbers from `g * GENERATION` to `(g + 1) * GENERATION` belong to generation `g + p`, where `p` is how often the phase of the path's
//! packets has changed, as it does when keys are old ([`sd_link::seal::PHASE`]). So both ends know from a packet which key it has, and nothing more is said
//! about it. A receiver has the keys of the current generation and of the two after it, as of two changes in a row all packets between may be lost (time
//! changes keys only if one that has them was acknowledged); one of these becomes the current one when a packet was opened with it. Those of the one before
//! it has until [`sd_link::seal::LATE_MAX`] numbers have passed, as no later packet would be taken. So a forged number leads to no work.
//!
//! A sender refuses a number that is not above the last: the packet is wiped and goes out as nothing that anybody would open.

use crate::Secret;
use crate::handshake::Keys;
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{constant_time, hkdf, hmac};
use sd_link::seal::{LATE_MAX, PHASE, Seal, Session};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a seal, and of a greeting's signature.
pub const SEAL: usize = 16;
/// Packets of a path that have the same key: far below what GCM bears (2^24.5 of 16 KiB, RFC 8446 section 5.5).
pub const GENERATION: u64 = 1 << 16;

/// How packets are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cipher {
    /// Where processors have instructions for it, as all of the last ten years.
    Aes128Gcm = 1,
    /// Where they have not.
    ChaCha20Poly1305 = 2,
}

impl Cipher {
    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Cipher::Aes128Gcm => &aead::AES_128_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand. Its one fault is a length above 255 hashes.
fn expand<const N: usize>(secret: &[u8], info: &[&[u8]]) -> Zeroizing<[u8; N]> {
    let mut out = Zeroizing::new([0; N]);
    let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret);
    let filled = prk.expand(info, Len(N)).and_then(|okm| okm.fill(out.as_mut_slice()));
    debug_assert!(filled.is_ok(), "32 bytes can be had");
    out
}

/// The key of a range of numbers.
struct Generation {
    key: LessSafeKey,
    iv: Zeroizing<[u8; 12]>,
}

impl Generation {
    fn new(cipher: Cipher, chain: &Secret) -> Option<Generation> {
        let bytes = expand::<32>(chain.as_slice(), &[b"sd key"]);
        let key = UnboundKey::new(cipher.algorithm(), &bytes[..cipher.algorithm().key_len()]).ok()?;
        Some(Generation { key: LessSafeKey::new(key), iv: expand(chain.as_slice(), &[b"sd iv"]) })
    }

    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = *self.iv;
        for (place, byte) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *place ^= byte;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    fn open(&self, number: u64, packet: &mut [u8], header: usize) -> bool {
        let Some((header, body)) = packet.split_at_mut_checked(header) else { return false };
        self.key.open_in_place(self.nonce(number), Aad::from(&*header), body).is_ok()
    }
}

fn after(chain: &Secret) -> Secret {
    expand(chain.as_slice(), &[b"sd next"])
}

/// A number, and the phase beside it.
fn split(number: u64) -> (u64, bool) {
    (number & !PHASE, number & PHASE != 0)
}

/// The packets that this engine sends by a path.
struct Sender {
    cipher: Cipher,
    chain: Secret,
    number: u64,
    /// Changes of the phase.
    turns: u64,
    /// The least number that was not used.
    free: u64,
    generation: Option<Generation>,
}

impl Sender {
    fn new(cipher: Cipher, chain: Secret) -> Sender {
        let generation = Generation::new(cipher, &chain);
        Sender { cipher, chain, number: 0, turns: 0, free: 0, generation }
    }

    fn seal(&mut self, sealed: u64, packet: &mut [u8], header: usize) -> Option<()> {
        let (number, is_odd) = split(sealed);
        if !(self.free..PHASE).contains(&number) {
            return None;
        }
        self.free = number.checked_add(1)?;
        self.turns += u64::from((self.turns & 1 != 0) != is_odd);
        let of = number / GENERATION + self.turns;
        if of != self.number {
            self.turn(of);
        }
        let generation = self.generation.as_ref()?;
        let (header, rest) = packet.split_at_mut_checked(header)?;
        let (body, seal) = rest.split_last_chunk_mut::<SEAL>()?;
        let nonce = generation.nonce(sealed);
        let tag = generation.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), body).ok()?;
        *seal = tag.as_ref().try_into().ok()?;
        Some(())
    }

    #[cold]
    fn turn(&mut self, to: u64) {
        while self.number < to {
            self.chain = after(&self.chain);
            self.number += 1;
        }
        self.generation = Generation::new(self.cipher, &self.chain);
    }
}

/// The packets that come by a path.
struct Receiver {
    cipher: Cipher,
    /// Of the last of `keys`.
    chain: Secret,
    /// The current generation, and the first number that was opened with it.
    number: u64,
    since: u64,
    /// Changes of the phase, and the least number that was opened since the last.
    turns: u64,
    turned_at: u64,
    before: Option<Generation>,
    /// The current one, and those after it.
    keys: [Option<Generation>; KEYS],
}

/// Generations that a receiver has keys of, from the current one on.
const KEYS: usize = 3;

impl Receiver {
    fn new(cipher: Cipher, first: &Secret) -> Receiver {
        let mut chain = first.clone();
        let keys = std::array::from_fn(|at| {
            if at > 0 {
                chain = after(&chain);
            }
            Generation::new(cipher, &chain)
        });
        Receiver { cipher, chain, number: 0, since: 0, turns: 0, turned_at: 0, before: None, keys }
    }

    /// Changes of the phase before a packet: it may be one of before the last change, or the first one behind the next.
    fn turns_at(&self, number: u64, is_odd: bool) -> Option<u64> {
        match (self.turns & 1 != 0) == is_odd {
            true => Some(self.turns),
            false if number < self.turned_at => self.turns.checked_sub(1),
            false => Some(self.turns + 1),
        }
    }

    fn open(&mut self, sealed: u64, packet: &mut [u8], header: usize) -> bool {
        let (number, is_odd) = split(sealed);
        let Some(turns) = self.turns_at(number, is_odd) else { return false };
        let Some(of) = (number / GENERATION).checked_add(turns) else { return false };
        let Some(ahead) = of.checked_sub(self.number) else {
            let is_before = of + 1 == self.number;
            return is_before && self.before.as_ref().is_some_and(|key| key.open(sealed, packet, header));
        };
        let key = usize::try_from(ahead).ok().and_then(|at| self.keys.get(at)?.as_ref());
        if !key.is_some_and(|key| key.open(sealed, packet, header)) {
            return false;
        }
        if turns != self.turns {
            (self.turns, self.turned_at) = (turns, number);
        }
        self.turned_at = self.turned_at.min(number);
        if ahead > 0 {
            self.turn(ahead, number);
        } else if self.before.is_some() && number >= self.since.saturating_add(LATE_MAX) {
            self.before = None;
        }
        true
    }

    #[cold]
    fn turn(&mut self, by: u64, at: u64) {
        (self.number, self.since) = (self.number + by, at);
        for _ in 0..by {
            self.chain = after(&self.chain);
            self.keys.rotate_left(1);
            let new = Generation::new(self.cipher, &self.chain);
            self.before = self.keys.last_mut().and_then(|last| std::mem::replace(last, new));
        }
    }
}

/// One direction of a link.
struct Direction {
    root: Secret,
    greeting: hmac::Key,
    session: Option<Secret>,
}

impl Direction {
    fn new(secret: &Secret, binding: &[u8; 32]) -> Direction {
        let root = expand(secret.as_slice(), &[b"sd link", binding]);
        let greeting = expand::<32>(root.as_slice(), &[b"sd greeting"]);
        Direction { greeting: hmac::Key::new(hmac::HMAC_SHA256, greeting.as_slice()), root, session: None }
    }

    fn begin(&mut self, words: &[u64; 4]) {
        let words = words.map(u64::to_le_bytes);
        self.session = Some(expand(self.root.as_slice(), &[b"sd session", words.as_flattened()]));
    }

    fn chain(&self, path: u8) -> Option<Secret> {
        Some(expand(self.session.as_ref()?.as_slice(), &[b"sd path", &[path]]))
    }
}

struct Path {
    sender: Sender,
    receiver: Receiver,
}

/// Seals packets with keys of a handshake.
pub struct Sealed {
    cipher: Cipher,
    send: Direction,
    receive: Direction,
    begun: Option<Session>,
    /// By its number; made when first used in a session.
    paths: Vec<Option<Box<Path>>>,
}

impl Sealed {
    /// The keys are used up: no other link has them.
    pub fn new(keys: Keys) -> Sealed {
        let [send, receive] =
            [&keys.send, &keys.receive].map(|secret| Direction::new(secret, &keys.binding()));
        Sealed { cipher: keys.cipher, send, receive, begun: None, paths: Vec::new() }
    }

    #[inline]
    fn path(&mut self, path: u8) -> Option<&mut Path> {
        if self.paths.get(usize::from(path)).is_none_or(Option::is_none) {
            self.make_path(path)?;
        }
        self.paths.get_mut(usize::from(path))?.as_deref_mut()
    }

    #[cold]
    fn make_path(&mut self, path: u8) -> Option<()> {
        let at = usize::from(path);
        if self.paths.len() <= at {
            self.paths.resize_with(at + 1, || None);
        }
        let sender = Sender::new(self.cipher, self.send.chain(path)?);
        let receiver = Receiver::new(self.cipher, &self.receive.chain(path)?);
        *self.paths.get_mut(at)? = Some(Box::new(Path { sender, receiver }));
        Some(())
    }
}

impl Seal for Sealed {
    fn begin(&mut self, session: &Session) {
        // The same one again would begin its numbers again.
        if self.begun.replace(*session) == Some(*session) {
            return;
        }
        self.paths.clear();
        self.send.begin(&session.send);
        self.receive.begin(&session.receive);
    }

    fn overhead(&self) -> usize {
        SEAL
    }

    fn seal(&mut self, path: u8, number: u64, packet: &mut [u8], header: usize) {
        let is_sealed = self.path(path).and_then(|path| path.sender.seal(number, packet, header));
        if is_sealed.is_none() {
            packet.get_mut(header..).unwrap_or_default().zeroize();
        }
    }

    fn open(&mut self, path: u8, number: u64, packet: &mut [u8], header: usize) -> bool {
        self.path(path).is_some_and(|path| path.receiver.open(number, packet, header))
    }

    fn sign(&mut self, packet: &mut [u8]) {
        if let Some((body, seal)) = packet.split_last_chunk_mut::<SEAL>() {
            let tag = hmac::sign(&self.send.greeting, body);
            seal.copy_from_slice(&tag.as_ref()[..SEAL]);
        }
    }

    fn is_signed(&mut self, packet: &[u8]) -> bool {
        let Some((body, seal)) = packet.split_last_chunk::<SEAL>() else { return false };
        let tag = hmac::sign(&self.receive.greeting, body);
        constant_time::verify_slices_are_equal(&tag.as_ref()[..SEAL], seal).is_ok()
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({:?})", self.cipher)
    }
}
