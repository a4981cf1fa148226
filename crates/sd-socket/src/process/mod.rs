//! What one process knows of itself: the lowest folder but one.
//!
//! The static [`PROCESS`] (slabs, channels, the control connection, locks), descriptors of ours that the program must not
//! see (`fd::hidden`), the environment, and whether the library may do anything (`env`), fences that reach every thread of the family (`fence`), children of vfork (`borrowed`), counters for `sd ss` (`stats`), which network namespace a thread is in (`network`),
//! questions to the kernel about routes and sockets (`netlink`), for how long idle memory is kept (`retention`), the eventfds that
//! wake it and which of its threads sleep (`waker`).
//!
//! `above` is how a low folder has something done by a higher one.
//!
//! *Owns*: the process-wide state, and the record of who sleeps. *Uses*: `fd`.
//!
//! | task | place |
//! |---|---|
//! | where the monitor's socket is | `env`; whom to believe: sd-sys' `trust.rs` |
//! | unshare, setns, clone, chroot: another network namespace, another root | `family::network` |
//! | a process that is about to be checkpointed | `detaching`; `family::detach` |
//! | how long memory of idle connections is kept | `retention` |
//! | seccomp filters of the program's | `family::confine`; what they forbid: sd-sys' `confine.rs` |

pub(crate) mod above;
pub(crate) mod borrowed;
pub(crate) mod detaching;
pub(crate) mod env;
pub(crate) mod fence;
pub(crate) mod lingering;
pub(crate) mod netlink;
pub(crate) mod network;
pub(crate) mod retention;
mod state;
pub mod stats;

pub(crate) mod waker;

pub(crate) use state::*;
