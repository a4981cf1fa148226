//! Socket semantics over shared memory: what a hooked call does.
//!
//! Exports nothing to the process; `sd-preload` calls [`calls`] and turns an [`Outcome`] into
//! libc's return value and errno. No panics, no std I/O, no allocation on data paths.
//!
//! Folders, from the top to the bottom: a file uses those below its own (`cargo xtask tidy`; what still points upwards
//! stands in `xtask/upward.txt`). The head of each `mod.rs` says more.
//!
//! | folder | holds |
//! |---|---|
//! | `calls` | the door: libc's arguments in, an [`Outcome`] out |
//! | `family` | fork, exec, spawn, passing on, leaving |
//! | `numbers` | close, dup, fcntl, ioctl |
//! | `data` | send, recv, shutdown |
//! | `poll` | poll, select |
//! | `options` | setsockopt, getsockopt |
//! | `setup` | bind, connect, listen, accept |
//! | `epoll` | epoll |
//! | `wait` | readiness, sleeping |
//! | `route` | which way a connect goes |
//! | `backlog` | listeners, and connections that wait to be accepted |
//! | `memory` | memory of rings |
//! | `socket` | what a socket is |
//! | `link` | channels to other processes |
//! | `monitor` | the connection to the monitor |
//! | `process` | the state of this process |
//! | `fd` | descriptor numbers |
#![cfg_attr(not(test), no_std)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

#[macro_use]
extern crate alloc;

use sd_sys::Errno;

mod backlog;
pub mod calls;
mod data;
mod epoll;
mod family;
mod fd;
mod link;
mod memory;
mod monitor;
mod numbers;
mod options;
mod poll;
mod process;
mod route;
mod setup;
mod socket;
mod wait;

/// The table of descriptors, for assembly: a null pointer, or that to [`DESCRIPTORS_LEN`] words, of which those are zero whose number is nobody's here.
pub use fd::table::{LEN as DESCRIPTORS_LEN, TABLE as DESCRIPTORS};

pub use family::bridge;
pub use family::confine;
pub use family::exec;
pub use family::network;
pub use family::separate;
pub use family::spawn;
pub use link::stranger;
pub use process::stats;
pub use wait::cancel;

/// What a hooked call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// Done here, with this result.
    Done(T),
    /// Not ours: the real function must be called, with the same arguments.
    Kernel,
    /// Failed with this errno.
    Errno(Errno),
}

impl<T> From<Result<T, Errno>> for Outcome<T> {
    fn from(result: Result<T, Errno>) -> Self {
        match result {
            Ok(value) => Outcome::Done(value),
            Err(socket::kernel_socket::MOVED) => Outcome::Kernel,
            Err(errno) => Outcome::Errno(errno),
        }
    }
}

impl<T> Outcome<T> {
    /// A call of ours whose connection has gone to the kernel in the middle of it, with nothing done: what it comes to there. The real function is not to be
    /// called but for who is counted (`setup::watched`).
    #[inline]
    fn or_moved(self, anew: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        if let Outcome::Kernel = self { anew() } else { self }
    }
}

/// What fuzzing reaches from outside.
#[doc(hidden)]
pub mod testing {
    /// Takes over what an exec has left, if these were its words.
    pub fn take_over(words: alloc::vec::Vec<u64>) {
        crate::family::exec::take_over_words(words);
    }
}
