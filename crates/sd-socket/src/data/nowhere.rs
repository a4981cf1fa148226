//! Calls with memory that is none: what comes before EFAULT.

use crate::data::iov::{Pieces, is_beyond};
use crate::data::stream;
use crate::socket::errors::before_send;
use libc::c_void;
use sd_shm::slab::Endpoint;
use sd_sys::Errno;

/// A send from a bad pointer.
#[cold]
pub(super) fn send_from(endpoint: &'static Endpoint, buf: *const c_void, len: usize, flags: i32) -> Errno {
    if is_beyond(buf, len) { Errno::EFAULT } else { send_from_nowhere(endpoint, flags) }
}

/// A send from memory that is none.
#[cold]
pub(super) fn send_from_nowhere(endpoint: &'static Endpoint, flags: i32) -> Errno {
    let stopped = before_send(endpoint, flags).and_then(|()| crate::data::space::wait(endpoint, flags));
    stopped.err().unwrap_or(Errno::EFAULT)
}

/// A recv into memory that is none: it fails when there is something to put there.
#[cold]
pub(super) fn recv_to_nowhere(endpoint: &'static Endpoint, flags: i32) -> Result<usize, Errno> {
    let look = flags & (libc::MSG_DONTWAIT) | libc::MSG_PEEK | libc::MSG_TRUNC;
    match stream::recv(endpoint, Pieces::one(core::ptr::null_mut(), 1), look) {
        Ok(0) => Ok(0),
        Ok(_) => Err(Errno::EFAULT),
        Err(errno) => Err(errno),
    }
}
