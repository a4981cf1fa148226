//! Sleeping and being woken; readiness.
//!
//! `duties` (what a thread that waits does for its process), `sleep` (how long to spin, the futex of a half), `ready` (poll's mask as Linux reports it), `sleep_set` (what
//! a wait sleeps on), `cancel` (pthread_cancel), `settle` (who is woken for inherited connections).
//!
//! *Owns*: what threads have learned about spinning. *Uses*: `backlog`, `memory`, `socket`, `monitor`, `process`, `fd`.
//!
//! | task | place |
//! |---|---|
//! | readiness as Linux reports it | `ready::mask`, after the kernel's `tcp_poll` |
//! | how long to spin, when to sleep | `sleep` |
//! | one more duty of threads that wait | a line in `calls/duties.rs`; when it is done: `duties` |
//! | readiness where the kernel has a part | `by_kernel` |
//! | poll, select | folder `poll`; what they sleep on: `sleep_set`, `socket::thread_waker` |
//! | pthread_cancel | `cancel` |
//! | handlers of signals, EINTR or restart | `sleep`; sd-sys' `section.rs`, sd-preload's `body/handlers.rs` |

pub(crate) mod by_kernel;
pub mod cancel;
pub(crate) mod duties;
pub(crate) mod ready;
pub(crate) mod settle;
mod sleep;
pub(crate) mod sleep_set;

pub(crate) use sleep::*;

pub(crate) use crate::process::earlier;
