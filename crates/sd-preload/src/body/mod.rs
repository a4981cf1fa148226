//! What the hooks do that is more than one call of `sd_socket::calls`, by topic.
//!
//! glibc's own composite functions (daemon, forkpty, bindresvport, ...) reach the kernel without passing our
//! hooks, so those that may meet a socket of ours are written again here, out of hooks.

pub(crate) mod clone;
pub(crate) mod confine;
pub(crate) mod create;
pub(crate) mod exec;
pub(crate) mod file_actions;
pub(crate) mod fortify;
pub(crate) mod handlers;
mod ids;
pub(crate) mod limits;
pub(crate) mod names;
pub(crate) mod network;
pub(crate) mod privileges;
pub(crate) mod process;
pub(crate) mod raw;
pub(crate) mod ready;
pub(crate) mod rights;
pub(crate) mod shell;
pub(crate) mod spawn;
pub(crate) mod stdio;
pub(crate) mod vector;
