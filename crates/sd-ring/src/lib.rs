//! A single-producer single-consumer byte ring with in-band headers, credits and a doorbell
//! (SocksDirect §4.2), as pure protocol over memory that somebody else provides.
//!
//! # Guarantees
//! * Bytes arrive once and in order; a message becomes visible whole, by one 8-byte store.
//! * One cache line moves per small message: the receiver polls the header word itself.
//! * The peer is not trusted: every length, jump and credit it writes is checked before use, and a
//!   bad one is reported as [`Corrupt`]; cursors live in memory of their owner only.
//! * No allocation, no system call, no lock.
//! * [`token`]: of many threads of many processes, one uses an end of the ring at a time.
//!
//! # Not here
//! Who sleeps and who wakes: [`doorbell`] only decides *whether* the other side must be woken.
//!
//! # Tests
//! Unit and property tests against a byte-queue model, loom models of ring, doorbell and token with a
//! ring small enough to wrap, and a search of all states of the token's protocol (`RUSTFLAGS="--cfg loom" cargo test -p sd-ring --release`).
#![cfg_attr(not(any(test, loom)), no_std)]

pub mod copy;
pub mod doorbell;
mod facade;
mod header;
mod lap;
mod mirror;
mod parked;
mod receive;
mod ring;
pub mod stamp;
pub mod token;

pub use facade::fence_full;
pub use mirror::Piece;
pub use receive::RxCursor;
pub use ring::{Corrupt, Effort, Geometry, Grant, Next, Region, RingMem, TxCursor};
