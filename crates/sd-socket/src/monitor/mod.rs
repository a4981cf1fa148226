//! This process's connection to its monitor.
//!
//! `client` asks and is answered (one request at a time, with a time-out); `sink` is whom it hands to what the monitor says unasked; `budget`
//! makes files of memory, or has the monitor make them; `spare` keeps descriptors in reserve; `proof` asks the kernel whether a listener is there.
//!
//! *Owns*: the control connection. *Uses*: `process`, `fd`. *Lock*: the control connection's comes after
//! all locks of `epoll` and before those of a channel.
//!
//! | task | place |
//! |---|---|
//! | a control message | sd-proto, whose `VERSION` is raised; `client` here, `shell/requests.rs` in the monitor |
//! | a monitor that does not answer | `client::slow`; one that is gone: `client::absent` |
//! | what the monitor sends unasked | `setup::mail` |
//! | is another user's listener still there | `proof`; questions: sd-sys' `netlink.rs` |

pub(crate) mod budget;
pub(crate) mod client;
pub(crate) mod proof;
pub(crate) mod sink;
pub(crate) mod spare;
