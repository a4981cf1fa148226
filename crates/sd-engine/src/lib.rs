//! The engine: a process of each host that carries promoted connections to other hosts' engines (ADR 100).
//!
//! ```text
//!  client --channel--> engine ═══════ records of all connections, one carrier ═══════ engine --channel--> server
//!         A     the engine is B       (sd-link: position, bytes, words)       the engine is A     B
//! ```
//! It is half of a pump (ADR 72): to a local process it is the other side of a channel. What the process writes into its ring and words the
//! engine sends, and the other host's engine writes it at the same place of the same ring there. So positions mean the same at both ends,
//! and what the reader there has consumed is the writer's credit here.
//!
//! | file | holds |
//! |---|---|
//! | `hosts` | the file that names the other hosts |
//! | `words` | what engines say to each other besides bytes |
//! | `laps` | where a byte of the ring stands in the stream between engines |
//! | `outgoing`, `incoming` | one direction: ring to stream, stream to ring |
//! | `connection` | one connection: what is said, what was heard |
//! | `connections` | all of them, by number |
//! | `seat` | a channel with a local process |
//! | `desk` | all connections and channels: the ends of links |
//! | `looks` | which of them are looked at, and when |
//! | `socket` | sockets between engines, until they are carriers (`sd_carrier`) |
//! | `greeting` | what is said on a new trunk: who both are (`sd_keys`), and whether a link goes on |
//! | `peer` | another engine |
//! | `silence` | how long that one may say nothing |
//! | `carriers`, `choice` | a trunk and datagrams to it; which of both is used |
//! | `rdma`, `placing` | an end for RDMA; rings that are lent to it, so that large messages are not copied |
//! | `standing` | how it stands with that one: for the log and for the monitor |
//! | `patience` | how long it looks in vain before it sleeps |
//! | `policy` | for which connections this road pays; pure |
//! | `advice` | asks `policy`, and tells ends and monitor what it says |
//! | `names` | addresses of names, which a thread looks up |
//! | `leave` | connections that are carried no more, and engines that are left |
//! | `run`, `run/reload`, `run/retire` | the loop; another hosts file; the end in order |
//! | `testing` | what others may say and write, for fuzzing |
//!
//! # The stream
//! Of each message the stream has header and payload as they lie in the ring, of a jump its header alone. So it says by itself where each byte
//! goes, and a position in it is one of the ring.
//!
//! # Guarantees
//! * Neither the local process nor the other engine is trusted. What is found in a ring, and what comes, is followed by a cursor that
//!   checks; whatever either says, stores stay in the rings and words of connections between the two.
//! * Only engines that the file names are spoken to, and only about connections from the networks that it gives them.
//! * An idle engine sleeps.
//! * When an engine, or the way between two, is gone for good, their connections go back to the kernel's (ADR 101), or are reset.
//!
//! # Tests
//! Unit tests here; `cargo xtask fuzz --only engine` (`testing`); `between-hosts` of `tests/apps`: two hosts with programs that know nothing of it.

mod advice;
mod carriers;
mod choice;
mod connection;
mod connections;
mod desk;
mod greeting;
mod hosts;
mod incoming;
mod laps;
mod leave;
mod looks;
mod names;
mod namespaces;
mod outgoing;
mod patience;
mod peer;
mod placing;
mod policy;
mod presence;
mod rdma;
mod run;
mod seat;
mod silence;
mod socket;
mod standing;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod translations;
mod words;
mod worth;

pub use hosts::{Hosts, Mistake};
pub use presence::await_end;
pub use run::{Ended, Error, run};
