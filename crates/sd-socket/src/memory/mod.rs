//! Memory of rings: lent to connections, and taken back.
//!
//! `budget` is the limit of the process (cgroups, ADR 56); `idle`, `parked` and `sweep` give memory of unused connections back;
//! `retention` says after which time; `kept_rings` counts large rings shared with other users, whose memory is kept.
//!
//! *Owns*: the accounts of ring memory. *Uses*: `socket`, `link`, `process`.
//!
//! | task | place |
//! |---|---|
//! | how long memory of idle connections is kept | `retention` |
//! | rings given back | `idle`; of a busy process: `sweep`; between users: `kept_rings` |
//! | cursors given back | `parked`; sd-ring's `parked.rs` |
//! | how large rings may become | `budget`; sd-sys' `budget.rs` and `cgroup.rs` |

mod budget;
pub(crate) mod idle;
pub(crate) mod kept_rings;
pub(crate) mod parked;
pub(crate) mod retention;
pub(crate) mod sweep;

pub(crate) use budget::*;
