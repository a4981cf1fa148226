//! Memory of rings: lent to connections, and taken back.
//!
//! `idle` and `park` give memory of unused connections back, when sleepers (`rounds`) and busy threads (`sweep`) say so;
//! `process::retention` says after which time.
//!
//! *Owns*: when memory is given back. *Uses*: `socket`, `link`, `process`.
//!
//! | task | place |
//! |---|---|
//! | how long memory of idle connections is kept | `process::retention` |
//! | rings given back | `idle`; of a quiet process: `rounds`; of a busy one: `sweep`; between users: `link::kept_rings` |
//! | cursors given back | `park`; made good again: `socket::parked`; sd-ring's `parked.rs` |
//! | how large rings may become | sd-sys' `budget.rs` and `cgroup.rs` |

pub(crate) mod idle;
mod park;
pub(crate) mod rounds;
pub(crate) mod sweep;
