//! poll and select: waits for a few sockets of ours and the kernel's descriptors.
//!
//! `waiting` is poll(2), which select(2) (`select`) is turned into. It looks at our sockets first, then asks the kernel about the
//! others; a sleep is one ppoll on the program's descriptors and a set (`wait::sleep_set`) or a thread waker
//! (`socket::thread_waker`) for ours.
//!
//! *Owns*: nothing. *Uses*: `setup`, `backlog`, `epoll`, `wait`, `socket`, `monitor`, `process`, `fd`.
//!
//! | task | place |
//! |---|---|
//! | poll, ppoll | `waiting`; what threads wait for on connections of the kernel's that may be moved: `by_kernel` |
//! | select, pselect | `select` |
//! | who may spin | `spinner` |

mod by_kernel;
mod select;
mod spinner;
mod waiting;

pub(crate) use by_kernel::left;
pub(crate) use select::select;
pub(crate) use spinner::forked;
pub(crate) use waiting::poll;
