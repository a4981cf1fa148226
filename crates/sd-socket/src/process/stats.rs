//! Counters in the slab's first page; a plain store each, shown by `sd ss`.

use crate::process::PROCESS;
use core::sync::atomic::Ordering;

/// What is counted; the number is the index in the slab header.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Counter {
    /// Connections made over shared memory.
    ShmConnect = 0,
    /// Connections accepted over shared memory.
    ShmAccept = 1,
    /// Connections that went to the kernel.
    KernelConnect = 2,
    /// Connections accepted from regular peers.
    KernelAccept = 3,
    /// Connections reset because the peer broke the protocol.
    CorruptPeer = 4,
    /// Waits that ended while spinning.
    SpinHit = 5,
    /// Waits that slept in the kernel.
    Sleep = 6,
    /// Descriptors that were closed behind our back.
    LostFd = 7,
}

/// Adds one. Lost updates between threads are accepted.
#[inline]
pub(crate) fn count(counter: Counter) {
    if let Some(cell) = PROCESS.header().counters.get(counter as usize) {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}
