//! Control messages between library, monitor and command line: plain values and their bytes.
//!
//! One message is one datagram on a Unix-domain SOCK_SEQPACKET socket; descriptors travel beside it
//! (SCM_RIGHTS) in the order that each message names. The first byte is the kind, fields follow in
//! little-endian order without padding. Decoding accepts exactly what encoding makes: a short,
//! long or senseless message is an error, never a guess. No unsafe code, no allocation.
#![forbid(unsafe_code)]
#![no_std]

mod ip;
mod name;
mod numbered;
mod peer;
mod reply;
mod request;
mod route;
mod table;
mod wire;

pub use ip::Ip;
pub use name::Name;
pub use peer::{Carrier, PeerState};
pub use reply::Reply;
pub use request::Request;
pub use route::{Admission, ErrorCode, Route, Socket};

/// Largest encoded message.
pub const MESSAGE_MAX: usize = 256;
/// Must be equal on both sides; sent in [`Request::Hello`]. Tests build the next version, to see both beside each other.
pub const VERSION: u32 = 31 + cfg!(sd_next_version) as u32;

/// An offer that is older is not looked at: whoever made it may not wait for the answer any more, and may be in a call on its socket.
pub const OFFER_MAX_MS: u64 = 1_000;

/// A message could not be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;
