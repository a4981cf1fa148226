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
//! * [`sync`]: who sleeps and who wakes, as pure protocols; one of two sides always sees the other.
//! * [`road`]: bytes that move between the kernel's connection and a ring arrive once and in order.
//!
//! # Not here
//! How somebody sleeps, and is woken: [`doorbell`] and [`sync`] only decide *whether* he must be.
//!
//! # Tests
//! Unit and property tests against a byte-queue model, loom models of ring, doorbell and token with a
//! ring small enough to wrap (`tests/loom.rs`), loom models of [`sync`] (`tests/points`), searches of all states of the token's protocol and of the change of roads (`RUSTFLAGS="--cfg loom" cargo test -p sd-ring --release`).
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
pub mod road;
pub mod stamp;
pub mod sync;
pub mod token;

pub use facade::fence_full;
pub use mirror::Piece;
pub use receive::RxCursor;
pub use ring::{Corrupt, Effort, Geometry, Grant, Next, Region, RingMem, TxCursor};
