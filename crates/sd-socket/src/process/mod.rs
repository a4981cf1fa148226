//! What one process knows of itself: the lowest folder but one.
//!
//! The static [`PROCESS`] (slabs, channels, the control connection, locks), descriptors of ours that the program must not
//! see ([`hide_fd`]), the environment (`env`), counters for `sd ss` (`stats`), which network namespace a thread is in (`network`) and
//! whether the program has confined itself by seccomp (`confine`).
//!
//! *Owns*: the process-wide state. *Uses*: `fd`, for the highest number in use. Knows types of higher folders, but calls nothing there.
//!
//! | task | place |
//! |---|---|
//! | where the monitor's socket is | `env`; whom to believe: sd-sys' `trust.rs` |
//! | unshare, setns, clone: another network namespace | `network` |
//! | seccomp filters of the program's | `confine`; what they forbid: sd-sys' `confine.rs` |

pub mod confine;
pub(crate) mod env;
pub mod network;
mod state;
pub mod stats;

pub(crate) use state::*;
