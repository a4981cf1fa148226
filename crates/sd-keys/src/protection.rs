//! Sealed or plain. Plain is what the hosts file says of a network, and never what is left when something is missing.

use crate::handshake::{Keys, Mode};
use crate::hosts::Trust;
use crate::sealed::Sealed;
use sd_link::seal::{Checksum, Seal, Session};
use std::fmt;

/// How packets to another engine are protected.
///
/// ```
/// use sd_keys::{Protection, Trust, Unprotected};
/// assert!(matches!(Protection::new(&Trust::Plain, None), Ok(Protection::Plain(_))));
/// assert!(matches!(Protection::new(&Trust::Shared, None), Err(Unprotected::NoKeys)));
/// ```
#[derive(Debug)]
pub enum Protection {
    Sealed(Box<Sealed>),
    /// The hosts file says `plain`: a checksum, and everybody may read.
    Plain(Checksum),
}

/// Why packets would not be protected as the hosts file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprotected {
    /// There was no handshake.
    NoKeys,
    /// The handshake was with another engine than this host's, or in another mode.
    OtherPeer,
    /// There was a handshake though the file says `plain`.
    KeysForPlain,
}

impl fmt::Display for Unprotected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unprotected::NoKeys => "no handshake was made",
            Unprotected::OtherPeer => "the handshake was not with the engine that the hosts file has",
            Unprotected::KeysForPlain => "the hosts file says plain, and the other engine does not",
        })
    }
}

impl std::error::Error for Unprotected {}

impl Protection {
    /// What `trust` asks for, with the keys of the handshake that it asks for.
    pub fn new(trust: &Trust, keys: Option<Keys>) -> Result<Protection, Unprotected> {
        let is_peer = |keys: &Keys| match trust {
            Trust::Key(peer) => keys.mode() == Mode::Pinned && keys.peer() == *peer,
            Trust::Shared => keys.mode() == Mode::Shared,
            Trust::Plain => false,
        };
        match keys {
            None if *trust == Trust::Plain => Ok(Protection::Plain(Checksum::default())),
            None => Err(Unprotected::NoKeys),
            Some(_) if *trust == Trust::Plain => Err(Unprotected::KeysForPlain),
            Some(keys) if is_peer(&keys) => Ok(Protection::Sealed(Box::new(Sealed::new(keys)))),
            Some(_) => Err(Unprotected::OtherPeer),
        }
    }
}

impl Seal for Protection {
    fn begin(&mut self, session: &Session) {
        match self {
            Protection::Sealed(seal) => seal.begin(session),
            Protection::Plain(seal) => seal.begin(session),
        }
    }

    fn overhead(&self) -> usize {
        match self {
            Protection::Sealed(seal) => seal.overhead(),
            Protection::Plain(seal) => seal.overhead(),
        }
    }

    fn seal(&mut self, path: u8, number: u64, packet: &mut [u8], header: usize) {
        match self {
            Protection::Sealed(seal) => seal.seal(path, number, packet, header),
            Protection::Plain(seal) => seal.seal(path, number, packet, header),
        }
    }

    fn open(&mut self, path: u8, number: u64, packet: &mut [u8], header: usize) -> bool {
        match self {
            Protection::Sealed(seal) => seal.open(path, number, packet, header),
            Protection::Plain(seal) => seal.open(path, number, packet, header),
        }
    }

    fn sign(&mut self, packet: &mut [u8]) {
        match self {
            Protection::Sealed(seal) => seal.sign(packet),
            Protection::Plain(seal) => seal.sign(packet),
        }
    }

    fn is_signed(&mut self, packet: &[u8]) -> bool {
        match self {
            Protection::Sealed(seal) => seal.is_signed(packet),
            Protection::Plain(seal) => seal.is_signed(packet),
        }
    }
}
