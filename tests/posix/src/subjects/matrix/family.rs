//! Which family the sockets of the matrix are of.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::sys::*;

/// Which sockets and addresses the states are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Family {
    V4 = 0,
    V6 = 1,
    /// IPv6 sockets with IPv4 addresses.
    Mapped = 2,
}

static FAMILY: AtomicU8 = AtomicU8::new(Family::V4 as u8);

/// For the rest of the process.
pub(super) fn use_family(family: Family) {
    FAMILY.store(family as u8, Ordering::Relaxed);
}

fn is_of(family: Family) -> bool {
    FAMILY.load(Ordering::Relaxed) == family as u8
}

/// A fresh socket.
pub(super) fn tcp() -> i32 {
    if is_of(Family::V4) { crate::setup::tcp() } else { crate::setup::tcp6() }
}

/// This host's address, without a port.
pub(super) fn local() -> Addr {
    match (is_of(Family::V6), is_of(Family::Mapped)) {
        (true, _) => Addr::local6(0),
        (_, true) => Addr::mapped(0),
        _ => Addr::local(0),
    }
}
