//! Sockets that outlive a program or leave it: fork, exec, spawn, SCM_RIGHTS, and the end of that sharing.
//!
//! `fork` and `spawn` (children), `exec` (the next program), `handover` and `bridge` (a connection passed to a process with or without
//! us), `tcp_pair` (the kernel's end of a bridge), `separate` (a process that gives rights up keeps what it holds and nothing else).
//!
//! `network` (a thread goes to another network namespace) and `confine` (the program takes calls from itself) are here as they end
//! what the process shares.
//!
//! *Uses*: every folder below: what a fork does to each is listed in `fork`.
//!
//! | task | place |
//! |---|---|
//! | fork | `fork`; which libc functions fork: sd-preload's `body/{process,clone}.rs` |
//! | memory in the child of a bare clone | sd-sys' `heap.rs` |
//! | posix_spawn, system, popen | `spawn`; sd-preload's `body/{spawn,file_actions,shell}.rs` |
//! | exec | `exec`: will the program load us (`target`), also with a cleared environment (`cleared`), what it needs (`image`), its start (`attach`), whose it is (`proof`) |
//! | SCM_RIGHTS to a process that loads us | `handover` |
//! | kernel sockets for the others | `bridge`; made by the monitor: `bridge::helper`, sd-cli's `helper.rs`, the monitor's `shell/helpers.rs`; its ends: `tcp_pair`, `socket::inode`; who reads while others have the connection: `bridge::{others,lent}` |
//! | checkpoints: a process lets go of what it shares, and comes back | `detach`; `setup::detach`, `process::detaching` |
//! | a server that hands on all that it accepts leaves its monitor | `hands_on`; `setup::{handed_on,inherited}` (ADR 94) |
//! | setuid, capset, no_new_privs | `separate`; with threads: `separate::threads`, sd-shm's `leaving.rs`; which calls give something up: sd-preload's `body/privileges.rs` |

pub mod bridge;
pub mod confine;
pub(crate) mod detach;
pub mod exec;
pub(crate) mod fork;
pub(crate) mod handover;
pub(crate) mod hands_on;
pub mod network;
pub(crate) mod rights;
pub mod separate;
pub mod spawn;
mod tcp_pair;
