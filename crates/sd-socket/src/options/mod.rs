//! What a socket is told and asked: setsockopt, getsockopt, TCP_INFO.
//!
//! `common` has the options, `replay` gives them to a kernel socket that takes a socket's place, `connection` answers what needs a
//! connection, `tcp_info` fills struct tcp_info.
//!
//! *Uses*: every folder below.

mod common;
mod connection;
pub(crate) mod replay;
mod tcp_info;

pub(crate) use common::*;
