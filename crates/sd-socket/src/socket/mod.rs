//! What a socket is: its 64 bytes in the slab, and what few sockets need besides.
//!
//! `endpoint` (flags, words, rings), `handle` (an endpoint and what this process has of it, looked up once), `life` (from its
//! allocation to its end; folders above register what they do then), `cold` (time-outs, IPv6 addresses, urgent data), `errors` (what a call on a broken connection
//! returns), `names` and `addr` (getsockname, getpeername), `signals` (SIGIO, SIGURG), `inode` (fstat).
//! `apart` reads what another user's process sends where a look could make memory at our expense.
//! `kernel_socket` is what the kernel has behind a number of ours, `recorded` and `notes` the options for it, `ring_view` what lies in
//! the rings, `bell` how those are woken who wait for it, `parked` what is left of a half without memory.
//! `thread_waker` is what a thread sleeps on that a peer wakes alone.
//! `token` lets one thread at a time use a half of a connection; `pin` keeps a socket from going away under a call (the kernel's fget
//! and fput).
//!
//! *Owns*: endpoints and their tokens. *Uses*: `link`, `monitor`, `process`, `fd`. *Locks*: the token of a half; of one way only, ordered by
//! channel and slot.
//!
//! | task | place |
//! |---|---|
//! | end of a connection | `life` (`release`, `hang_up`), `time_wait` |
//! | placeholders, a kernel socket of its own | `kernel_socket` |
//! | FIONREAD, SIOCOUTQ, SIOCATMARK, the urgent mark | `ring_view` |
//! | a field few sockets need | `cold` |
//! | a field in shared memory | sd-shm, whose `VERSION` is raised |
//! | who may send, who may receive | `token` (membarrier, thread records); the protocol is in sd-ring's `token.rs`: first extend `tests/token_model.rs` |
//! | what strangers can make us pay for | `apart`, `link::kept_rings` (ADR 59) |
//! | errors of a broken connection | `errors` |
//! | getsockname, getpeername | `names` |
//! | what is MPTCP, and what is not | `mptcp` (ADR 106) |
//! | a thread that a peer wakes alone | `thread_waker`; the other end: `link::thread_wakers` |
//! | a connection that the kernel has made, and whose bytes are moved | `road`; back again: `way_back`, `resend`, and `broken` where the way to another host is gone; which end is believed: `far_end`; what `sd ss` tells of it: `history`; what keeps the kernel's connection alive meanwhile: `beneath` |
//! | SIGURG, SIGIO | `signals`; the monitor's `shell/signals.rs` |

pub(crate) mod addr;
pub(crate) mod apart;
pub(crate) mod bell;
pub(crate) mod beneath;
pub(crate) mod broken;
pub(crate) mod cold;
pub(crate) mod confine;
pub(crate) mod endpoint;
pub(crate) mod errors;
pub(crate) mod far_end;
pub(crate) mod handle;
pub(crate) mod history;
pub(crate) mod inode;
pub(crate) mod kernel_socket;
pub(crate) mod life;
pub(crate) mod mptcp;
pub(crate) mod names;
pub(crate) mod notes;
pub(crate) mod parked;
pub(crate) mod pin;
pub(crate) mod recorded;
pub(crate) mod resend;
pub(crate) mod ring_view;
pub(crate) mod road;
pub(crate) mod signals;
pub(crate) mod thread_waker;
pub(crate) mod time_wait;
pub(crate) mod token;
pub(crate) mod way_back;
