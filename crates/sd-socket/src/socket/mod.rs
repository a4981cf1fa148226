//! What a socket is: its 64 bytes in the slab, and what few sockets need besides.
//!
//! `endpoint` (flags, life and end), `cold` (time-outs, IPv6 addresses, urgent data), `errors` (what a call on a broken connection
//! returns), `names` and `addr` (getsockname, getpeername), `signals` (SIGIO, SIGURG), `inode` (fstat).
//!
//! *Owns*: endpoints. *Uses*: `link`, `process`, `fd`.
//!
//! | task | place |
//! |---|---|
//! | end of a connection | `endpoint` (`release`, `hang_up`) |
//! | a field few sockets need | `cold` |
//! | a field in shared memory | sd-shm, whose `VERSION` is raised |
//! | errors of a broken connection | `errors` |
//! | getsockname, getpeername | `names` |
//! | SIGURG, SIGIO | `signals`; the monitor's `shell/signals.rs` |

pub(crate) mod addr;
pub(crate) mod cold;
pub(crate) mod endpoint;
pub(crate) mod errors;
pub(crate) mod inode;
pub(crate) mod names;
pub(crate) mod signals;
