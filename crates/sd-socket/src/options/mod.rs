//! What a socket is told and asked: setsockopt, getsockopt, TCP_INFO.
//!
//! `common` has the options, `setup::remember` notes those that the library has to know, `connection` answers what needs a
//! connection, `tcp_info` fills struct tcp_info.
//!
//! *Uses*: `setup`, `epoll`, `wait`, `backlog`, `socket`, `fd`.
//!
//! | task | place |
//! |---|---|
//! | an option of setsockopt | `common`; what is noted of it, and what an accepted connection inherits: `setup::remember`; a plain number: a row of `NUMBERS` in `socket::recorded` |
//! | an option that only kernel sockets keep | `socket::notes`; set on a kernel socket: `socket::recorded` |
//! | what only a connection can answer | `connection`, `tcp_info`, `mptcp` |

mod common;
mod connection;
mod mptcp;
mod tcp_info;

pub(crate) use common::*;
