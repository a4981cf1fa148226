//! Which way a connect goes: over shared memory, to whom, or to the kernel, and why.
//!
//! `decide` (and its cache, valid for one route epoch), `target` and `deal` (which of those that listen), `places` and `ports`
//! (source addresses), `local` (is an address this host's?), `leave` (channels that are over).
//!
//! *Owns*: learned routes, leased ports. *Uses*: `socket`, `link`, `monitor`, `process`.
//!
//! | task | place |
//! |---|---|
//! | the kernel or shared memory, and the reason | `decide` |
//! | the table of learned routes | `places` |
//! | is an address this host's; the source address | `local`; what is not, for a moment: `elsewhere` |
//! | source ports | `ports`; the monitor's `core/ports.rs` |
//! | which listener gets it | `target`, `deal` |
//! | what the monitor publishes | sd-shm's `directory.rs`, the monitor's `shell/directories.rs` |

mod deal;
mod decide;
pub(crate) mod elsewhere;
pub(crate) mod leave;
pub(crate) mod local;
mod places;
mod ports;
pub(crate) mod soon;
pub(crate) mod target;

pub(crate) use decide::*;
