//! Raw Linux system calls: the only door through which SocksDirect enters the kernel.
//!
//! The preload library must never call a libc wrapper that it hooks itself, so everything it
//! needs is here, as a thin function around the instruction of a system call. No function
//! touches `errno`; failures come back as [`Errno`]. Nothing here allocates or keeps state except
//! [`lock::Lock`], a futex lock that survives `fork` by being re-made in the child, [`section`], which puts handlers
//! of signals off, [`heap`], the allocator of a process that cannot use libc's, [`user`], and [`confine`], [`space`] and [`numbers`], which know the filters and the limits that the program
//! puts on itself, [`ringer`], which keeps a context for asynchronous I/O, [`scratch`], which keeps some room, and [`witness`], which keeps a mapping.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod arch;
pub mod budget;
pub mod cgroup;
pub mod confine;
pub mod diag;
mod eventfd;
pub mod fd;
pub mod fdinfo;
pub mod filters;
#[cfg(sd_freestanding)]
pub mod freestanding;
pub mod futex;
pub mod heap;
pub mod libcs;
pub mod lock;
pub mod mem;
pub mod membarrier;
pub mod msg;
pub mod netlink;
pub mod numbers;
pub mod origins;
pub mod procfs;
pub mod raw;
pub mod rights;
pub mod ringer;
pub mod scratch;
pub mod section;
pub mod space;
pub mod tcp;
pub mod thread;
pub mod time;
pub mod trust;
pub mod user;
pub mod witness;

/// An errno value as the kernel returned it (positive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Errno(pub i32);

/// The values that have a name here: `Errno::EAGAIN` in a `match` as in an expression.
macro_rules! named {
    ($($name:ident)+) => {
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)+
        }
    };
}

named! {
    EACCES EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EALREADY EBADF ECONNABORTED ECONNREFUSED ECONNRESET EDOM
    EEXIST EFAULT EFBIG EHOSTUNREACH EINPROGRESS EINTR EINVAL EIO EISCONN EISDIR ELOOP EMFILE EMSGSIZE ENAMETOOLONG
    ENETUNREACH ENOBUFS ENODEV ENOENT ENOMEM ENOSPC ENOSYS ENOTCONN EOPNOTSUPP EPERM EPIPE EPROTO ESPIPE ESRCH
    ETIMEDOUT
}

/// Result of a raw call.
pub type Result<T> = core::result::Result<T, Errno>;

/// Turns a raw return value (-4095..=-1 is an error) into a `Result`.
#[inline(always)]
pub fn check(ret: isize) -> Result<usize> {
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}
