//! A pump: a process that plays the other side of connections on local rings, and moves their bytes elsewhere (ADR 72).
//!
//! ```text
//!  client --near channel--> pump --far channel--> server          both channels are on this host: a loopback
//!            side A    side B    side A    side B
//! ```
//! It is a client of the monitor of a kind of its own, which the monitor places between two processes. What one end writes into
//! the words and rings of a slot, the pump writes at the same place of the same slot of the twin channel: it is a *mirror*. So
//! positions mean the same at both ends, and what the reader has consumed is the writer's credit: a reader that does not read
//! stops its own connection only, the pump holds no byte, has no buffer, and never waits. All that TCP promises, order, end,
//! reset, urgent data, is decided by the two ends as without a pump.
//!
//! | file | holds |
//! |---|---|
//! | `flow` | one direction of one connection: what one side of a slot says, copied |
//! | `twin` | the connections of two channels: begin, both directions, end |
//! | `twin::memory` | what connections that idle keep |
//! | `end` | the process at an end: how it is woken |
//! | `control` | the monitor |
//! | `run` | the loop |
//!
//! # Another link
//! Two places say at one end what the other has said: `Flow::carry` (bytes, credit, FIN, reset), and `Twin` where a connection begins, is
//! answered, refused, withdrawn and closed. A link to elsewhere writes records in both, of the same words in the same order,
//! and does at the other host what they do here. What it cannot do is a bit of `sd_shm::link::Link`, and the
//! monitor gives that to a channel where it places the pump (`introduce_pump` in `sd-monitor/src/shell/pumps.rs`).
//!
//! # Guarantees
//! * Neither end is trusted: what is found in a channel is clamped or checked before it is used, and what a process wrote into its
//!   channel can do no more at the other end than what it could have written there itself.
//! * An idle pump sleeps. Whoever has something for it rings its eventfd.
//! * What it has written for a connection is given back while that idles, as the two ends give back what they have written.
//! * When its monitor ends, it carries what it has to the end, then ends. A new monitor is told what that is.
//!
//! # Tests
//! Unit tests with two channels in one process, hostile ends among them; `cargo xtask posix --pump`; `tests/monitor/pumps.rs`
//! of `sd-monitor`.

pub mod control;
pub mod end;
mod flow;
mod run;
#[cfg(test)]
mod tests;
mod twin;

pub use control::Error;
pub use run::run;
