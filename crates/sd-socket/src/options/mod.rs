//! What a socket is told and asked: setsockopt, getsockopt, TCP_INFO.
//!
//! `common` has the options, `remember` notes those that the library has to know, `replay` gives them to a kernel socket that takes a socket's place, `connection` answers what needs a
//! connection, `tcp_info` fills struct tcp_info.
//!
//! *Uses*: every folder below.
//!
//! | task | place |
//! |---|---|
//! | an option of setsockopt | `common`; what is noted of it: `remember` |
//! | an option that only kernel sockets keep | `replay` |
//! | what only a connection can answer | `connection`, `tcp_info` |

mod common;
mod connection;
pub(crate) mod replay;
mod tcp_info;

pub(crate) use common::*;
pub(crate) mod remember;
