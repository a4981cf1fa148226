//! Who another host's engine is, and keys for what is said to it (ADR 99).
//!
//! ```text
//!  hosts file ── Hosts ──> Trust of an address          key file ── Identity, SharedKey
//!                            │                                        │
//!                            v                                        v
//!  bytes of the other engine ── Handshake ── Keys ── Protection ──> sd_link::Link
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`hosts`] | the file that says which hosts have an engine, and how it shows that it is the one |
//! | [`identity`] | key pairs and shared keys, and the files that they are in |
//! | [`handshake`] | Noise over `snow`: three messages, no I/O; out come [`Keys`] |
//! | [`sealed`] | packets of a link: AEAD, a key for each session, direction, path and range of numbers |
//! | [`protection`] | sealed, or plain because the hosts file says so: there is no default |
//! | `primitives` | what `snow` is made of here: all of it from `aws-lc-rs` |
//!
//! # Guarantees
//! * Whoever has [`Keys`] has spoken, just now, with the holder of the pinned key or of the shared key, about the same purpose, with
//!   the same cipher. Who records all of it and later steals the files reads nothing of it.
//! * A packet is opened once it is from that engine, of this session, direction and path. No key seals two packets with one nonce,
//!   whatever the caller does.
//! * A message that is refused changes nothing: the right one is still taken.
//! * No I/O but of key files, no clock, no thread, no unsafe code. Nothing is allocated for a packet, but for the first of a path and
//!   of each [`sealed::GENERATION`].
//!
//! # Not here
//! Who begins, when to try again, how many handshakes at once: the engine's. Of packets that come twice: the link's. Lengths,
//! times and addresses are seen by all. Who holds the shared key may be anybody who holds it: pinned keys tell hosts apart.
//!
//! # Tests
//! `tests/handshake.rs` and `tests/sealed.rs`: what may not be taken, each tried. `tests/vectors.rs`: published handshakes, byte for
//! byte. `tests/links.rs`: two links over it. `tests/files.rs`, `tests/hosts.rs`. `tests/fuzz` has the targets `handshake` and `hosts`. `examples/cost.rs` measures.
#![forbid(unsafe_code)]

pub mod handshake;
pub mod hosts;
pub mod identity;
mod primitives;
pub mod protection;
pub mod sealed;

pub use handshake::{Accept, Credentials, Handshake, Keys, Mode, Progress, Purpose, Refused};
pub use hosts::{Host, Hosts, Trust};
pub use identity::{FileError, Identity, PublicKey, SharedKey};
pub use protection::{Protection, Unprotected};
pub use sealed::{Cipher, Sealed};

use zeroize::Zeroizing;

/// Bytes of any key here; wiped when they go.
pub(crate) type Secret = Zeroizing<[u8; 32]>;

#[doc(hidden)]
pub mod testing {
    //! For the tests of this crate and for fuzzing.
    pub use crate::primitives::Primitives;
}
