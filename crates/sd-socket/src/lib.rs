//! Socket semantics over shared memory: what a hooked call does.
//!
//! Exports nothing to the process; `sd-preload` calls [`calls`] and turns an [`Outcome`] into
//! libc's return value and errno. No panics, no std I/O, no allocation on data paths.
//!
//! | module | holds |
//! |---|---|
//! | `process` | this process's state: slabs, channels, locks |
//! | `table`, `fds` | descriptor numbers: what they lead to; close, dup, fcntl, ioctl |
//! | `endpoint`, `channel` | a socket; a channel to another process |
//! | `connect`, `syn_sent`, `listen`, `accept`, `defer`, `time_wait`, `route`, `control` | connection set-up, with the monitor's help |
//! | `token`, `whole` | one thread at a time uses a half of a connection; one send's bytes stay together |
//! | `transfer`, `stream`, `unconnected`, `ends`, `iov`, `message`, `files` | sending, receiving, shutting down |
//! | `urgent`, `signals`, `zero_copy` | MSG_OOB; SIGURG and SIGIO; MSG_ZEROCOPY |
//! | `ready`, `epoll`, `poll`, `select`, `wait` | readiness and waiting |
//! | `cancel` | what ends a wait early: pthread_cancel (handlers of signals: `wait`) |
//! | `options`, `extras`, `tcp_info`, `names`, `addr`, `inode` | what a socket is told and asked |
//! | `separate` | a process that gives rights up leaves its family |
//! | `stranger`, `kept_rings` | how processes of other users are woken; rings between users |
//! | `confine`, `network` | under a seccomp filter of the program's; in another network namespace |
//! | `fork`, `exec`, `spawn`, `handover`, `bridge` | sharing with children; the next program; starting programs; passing on; kernel sockets for those that are not accelerated |
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod accept;
mod addr;
mod admission;
mod adopt;
mod answers;
mod arrival;
mod before_monitor;
mod berth;
mod bind;
pub mod bridge;
pub mod calls;
pub mod cancel;
mod channel;
pub mod confine;
mod connect;
mod control;
mod deal;
mod defer;
mod endpoint;
mod ends;
mod env;
mod epoll;
pub mod exec;
mod extras;
mod fast;
mod faults;
mod fds;
mod files;
mod first_contact;
mod fork;
mod handover;
mod home;
mod idle;
mod inode;
mod iov;
mod kept;
mod kept_rings;
mod listen;
mod local;
mod mail;
mod memory;
mod message;
mod names;
pub mod network;
mod options;
mod outstanding;
mod parked;
mod patience;
mod peer;
mod placed;
mod places;
mod poll;
mod ports;
mod process;
mod proof;
mod queued;
mod rare;
mod ready;
mod reclaim;
mod remember;
mod room;
mod route;
mod select;
pub mod separate;
mod signals;
mod sleep_set;
mod slots;
mod spare;
pub mod spawn;
pub mod stats;
pub mod stranger;
mod stream;
mod sweep;
mod syn_sent;
mod table;
mod target;
mod tcp_info;
mod tcp_pair;
mod time_wait;
mod token;
mod transfer;
mod unconnected;
mod urgent;
mod wait;
mod waker;
mod whole;
mod withdrawn;
mod zero_copy;

/// What a hooked call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// Done here, with this result.
    Done(T),
    /// Not ours: the real function must be called, with the same arguments.
    Kernel,
    /// Failed with this errno.
    Errno(i32),
}

impl<T> From<Result<T, i32>> for Outcome<T> {
    fn from(result: Result<T, i32>) -> Self {
        match result {
            Ok(value) => Outcome::Done(value),
            Err(withdrawn::MOVED) => Outcome::Kernel,
            Err(errno) => Outcome::Errno(errno),
        }
    }
}

/// What fuzzing reaches from outside.
#[doc(hidden)]
pub mod testing {
    /// Takes over what an exec has left, if these were its words.
    pub fn take_over(words: Vec<u64>) {
        crate::exec::take_over_words(words);
    }
}
