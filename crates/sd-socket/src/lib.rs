//! Socket semantics over shared memory: what a hooked call does.
//!
//! Exports nothing to the process; `sd-preload` calls [`calls`] and turns an [`Outcome`] into
//! libc's return value and errno. No panics, no std I/O, no allocation on data paths.

pub mod calls;

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
