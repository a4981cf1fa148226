//! Bytes: send and recv in all their forms, shutdown.
//!
//! ```text
//!  calls --fits at once--> fast      else --> stream (recv), space (a sender waits for room)
//!                                               `claim`: one large send's bytes stay together
//! ```
//! `message` is sendmmsg and recvmmsg, `files` sendfile and splice, `iov`
//! checks the program's pointers (`nowhere`: what comes before EFAULT), `urgent` MSG_OOB, `zero_copy` MSG_ZEROCOPY.
//!
//! *Owns*: nothing that lasts. *Uses*: `setup`, `epoll`, `wait`, `memory`, `socket`, `process`, `fd`. *Locks*: the tokens of `socket`.
//!
//! | task | place |
//! |---|---|
//! | send, recv | `stream`; the short way, when nothing is in the way: `fast`; a sender that waits for room: `space` |
//! | sendmmsg, recvmmsg, SCM_RIGHTS | `message` (`pass_rights`) |
//! | sendfile, splice | `files` |
//! | bytes that go through the kernel's connection still | `by_kernel`; the roads: `socket::road` |
//! | shutdown | `shutdown`; FIONREAD, SIOCOUTQ, SIOCATMARK: `socket::ring_view` |
//! | MSG_OOB | `urgent`; SIGURG: `socket::signals` |
//! | MSG_ZEROCOPY and its notices | `zero_copy` |
//! | bytes that a bridge has passed on | `discard`; `family::bridge` |
//! | pointers of the caller | `iov`; whether they can be touched: sd-sys' `user.rs` (ADR 49) |

mod by_kernel;
pub(crate) mod calls;
mod claim;
pub(crate) mod discard;
mod fast;
pub(crate) mod files;
pub(crate) mod iov;
mod message;
mod nowhere;
pub(crate) mod shutdown;
mod space;
pub(crate) mod stream;
mod urgent;
mod zero_copy;
