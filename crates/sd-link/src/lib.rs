//! Connections of two hosts over one road: what two engines say to each other, without any I/O (ADR 75). `sd-engine` is its user.
//!
//! ```text
//!  rings of local processes                                              rings of local processes
//!        │ Ends::read                                                          ^ Ends::write, told
//!        v                                                                     │
//!  session: credits, turns ── records of many connections in one packet ──> session
//!        │                                                                     ^
//!  path: numbers, window, recovery ── seal ── caller ══ network ══ caller ── path: acknowledgements
//! ```
//!
//! A record with bytes says *connection, position, bytes*: a write into the other host's copy of the ring. So it does not matter in
//! which order packets come, by which path, or how often. A packet that is lost stops no connection but those that had bytes in it.
//!
//! | module | holds |
//! |---|---|
//! | `link` | a session with one other engine: greeting, packets in and out, time |
//! | `session` | connections: records, credits, ends, whose turn it is |
//! | `path` | a carrier: what is under way, what has come, round-trip time, loss |
//! | [`congestion`] | how much may be under way: controllers behind one trait |
//! | [`seal`] | what shows that a packet is as it was sent: one trait |
//! | [`wire`] | bytes of packets and records |
//!
//! # Guarantees
//! * No I/O, clock, thread, randomness of its own or unsafe code. Time, seeds and bytes come from the caller.
//! * A reader that does not read stops its own connection only: its sender has no credit, and nobody waits for it.
//! * Bytes are given once, in order, and none is missing before an end; or the connection is reset or lost, and that is told.
//! * No bytes are kept here. What is lost is read again from the sender's ring, where it lies until its reader has consumed it.
//! * Memory is bounded by [`Config::connections_max`] and by [`PathConfig`]; a packet for which there is none counts as lost.
//! * Whatever comes, the worst is [`Taken::Down`]: the session ends. A packet that is not of the session changes nothing.
//!
//! # Not here
//! Encryption and authentication (another [`seal::Seal`], with keys of a handshake before the link: `sd-keys`); path MTU; pacing; a choice of
//! path for each connection, so that a stream that stands still stops few of them.
//!
//! # Tests
//! `tests/simulation`: two links, everything that networks do, from a seed. `tests/hostile.rs`: packets that no honest engine sends.
//! `tests/controllers.rs`: what each controller must do. `examples/cost.rs` measures.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

pub mod congestion;
mod link;
mod path;
pub mod seal;
mod session;
pub mod wire;

pub use link::{Cause, Config, Counters, Link, Taken};
pub use path::{AckPolicy, Health, PathConfig, Recovery};
pub use session::{
    CONNECTIONS_MAX, Connection, Ends, Error, Limits, NO_TENANT, NOBODY, News, WORDS_MAX, Way,
};

/// Time: nanoseconds since any moment, as the caller counts them.
pub type Nanos = u64;
/// A connection's window is at most this.
pub const WINDOW_MAX: u32 = 1 << 30;
