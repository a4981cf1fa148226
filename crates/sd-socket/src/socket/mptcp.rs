//! MPTCP sockets (IPPROTO_MPTCP, RFC 8684): what Go's servers listen on.
//!
//! One of ours always has a kernel socket of its own, an MPTCP one, so whatever the kernel does for it keeps several paths. Over shared memory
//! there is one path. What the program can tell follows Linux' rules:
//!
//! | client | listener | SO_PROTOCOL of client, accepted | MPTCP is spoken |
//! |---|---|---|---|
//! | MPTCP | MPTCP | MPTCP, MPTCP | yes |
//! | MPTCP | TCP | MPTCP, TCP | no: it has fallen back |
//! | TCP | MPTCP | TCP, TCP | no |
//!
//! A connection of the kernel's in which MPTCP is spoken, or whose client has fallen back, is not promoted: the bytes of one of its paths are not those
//! that the program sends, and no option tells where in them the program's stream is.
//!
//! A client knows of its listener by the public page (`sd_shm::public::MPTCP`), a server of its client by the slot (`FLAG_MPTCP`). Tested by
//! the subjects `mptcp/*`.

use libc::{IPPROTO_MPTCP, IPPROTO_TCP, SO_PROTOCOL, SOL_SOCKET, c_int};
use sd_shm::slab::Endpoint;

fn protocol(fd: c_int) -> sd_sys::Result<c_int> {
    sd_sys::fd::getsockopt_int(fd, SOL_SOCKET, SO_PROTOCOL)
}

/// Whether a kernel's socket is one.
pub(crate) fn is_one(fd: c_int) -> bool {
    protocol(fd) == Ok(IPPROTO_MPTCP)
}

/// Notes whether the kernel's socket of an endpoint is one.
pub(crate) fn note(endpoint: &Endpoint, fd: c_int) {
    if is_one(fd) {
        endpoint.set_mptcp();
    }
}

/// Whether a kernel's socket is one, or a TCP socket.
pub(crate) fn is_stream(fd: c_int) -> bool {
    matches!(protocol(fd), Ok(IPPROTO_TCP | IPPROTO_MPTCP))
}
