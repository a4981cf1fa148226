//! Sockets that outlive a program or leave it: fork, exec, spawn, SCM_RIGHTS, and the end of that sharing.
//!
//! `fork` and `spawn` (children), `exec` (the next program), `handover` and `bridge` (a connection passed to a process with or without
//! us), `tcp_pair` (the kernel's end of a bridge), `separate` (a process that gives rights up keeps what it holds and nothing else).
//!
//! *Uses*: every folder below: what a fork does to each is listed in `fork`.

pub mod bridge;
pub mod exec;
pub(crate) mod fork;
pub(crate) mod handover;
pub mod separate;
pub mod spawn;
pub(crate) mod tcp_pair;
