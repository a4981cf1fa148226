//! RDMA by verbs: safe types over libibverbs, as far as the engine's carrier wants them (ADR 110).
//!
//! ```text
//!  Device::all ── open ──> Context ── Domain ──> Source, Landing       memory that the device reads, and that peers write
//!                             ├────── Event                            what the device tells unasked, and a descriptor for that
//!                             ├────── Queue                            completions, and a descriptor to wait for them
//!                             └────── Pair ── connect ── write_with_immediate ──> the peer's Landing, and a completion there
//! ```
//!
//! A [`Pair`] is one end of a reliable connection (RC). It writes from a [`Source`] of this host into a [`Landing`] of the other one, and
//! both are told: here that the write is done, there its 32 bits and how long it was. Nothing else of verbs is here.
//!
//! # Guarantees
//! * Hosts without RDMA do not load libibverbs; there, and where nothing is found, the error is [`Error::NoDevice`].
//! * No call blocks, none panics. What a device says is a number until it is known.
//! * A device reaches no memory but what is registered, and none after that is dropped: it is unregistered first, and where that
//!   fails it stays mapped.
//! * What a peer can write, a [`Landing`], is never a reference: it is copied out.
//!
//! # Not here
//! Which peers are believed, and how queue pairs' numbers and keys reach them: the engine's control connection. Shared receive queues,
//! reads, atomics, datagrams, rdma_cm. A child of fork may use nothing of this: the kernel refuses it (EACCES), and its
//! memory may be missing; an engine does not fork.
//!
//! # Tests
//! Here what needs no device; `tests/layout.rs` asks a compiler of C for the ABI; `tests/device.rs` wants a device, and is run in a guest by
//! `cargo xtask rdma`.

mod abi;
mod device;
mod error;
mod event;
mod library;
mod memory;
mod pair;
mod queue;

#[doc(hidden)]
pub use abi::LAYOUTS;
pub use device::{Context, Device, Domain, Mtu, Port};
pub use error::{Absent, Error};
pub use event::Event;
pub use memory::{Landing, Lending, Lent, Source, Window};
pub use pair::{Address, Pair, PairConfig};
pub use queue::{Completion, Done, Failure, Outcome, Queue};

pub type Result<T> = std::result::Result<T, Error>;
