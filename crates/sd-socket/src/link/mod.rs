//! The way to another process: channels, slots, and how the process behind them is woken.
//!
//! ```text
//!  endpoint --slot--> channel (segment + doorbell) --eventfd--> peer's process
//!                         |  event bits                          `wake_target`: which process, which thread
//!                         `-- taken in, and delivered to sockets, by `epoll::dispatch`
//! ```
//! `made` takes a channel that the monitor has made; `channel` maps a segment and hands out its slots (`slots`); `peer` is the process on the other side, `stranger` one of another
//! user; `queued` and `placed` are notices that wait; `outstanding`
//! counts own requests that wait, `adopters` are others that may accept them, `admitted` what the policy lets in, `kept_rings` large
//! rings shared with other users, whose memory is kept; `reclaim` frees a slot when nobody can look at it any more.
//!
//! *Owns*: mappings of channels and slabs. *Uses*: `monitor`, `process`, `fd`.
//!
//! | task | place |
//! |---|---|
//! | freeing channels of dead peers | `reclaim` |
//! | what stands behind the other side; a new kind of link | `seam` |
//! | who is woken for an inherited connection | `wake_target` |
//! | waking processes of other users | `stranger`; the monitor's `shell/strangers.rs` (ADR 52) |
//! | which slot a connection gets | `slots` |

pub(crate) mod admitted;
mod adopters;
pub(crate) mod channel;
pub(crate) mod kept_rings;
pub(crate) mod made;
pub(crate) mod outstanding;
pub(crate) mod peer;
pub(crate) mod placed;
mod queued;
pub(crate) mod reclaim;
mod seam;
mod slots;
pub mod stranger;
mod table;
pub(crate) mod thread_wakers;
pub(crate) mod wake_target;
