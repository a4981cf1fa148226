//! A process's public page: what its peers may read before they connect.
//!
//! The process maps it writable and then seals it against new writable mappings, so that peers
//! can map it read-only only. They still do not believe it: a lie hurts the liar alone.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_sys::fd::Owned;

/// Listeners that one process can have accelerated.
pub const LISTENERS: usize = 1000;
/// Size of the segment.
pub const LEN: usize = 16 << 10;
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;

/// Of a listener's `backlog`: the process hands each connection to a process of its own. They are to begin as the kernel's, to be moved
/// when they last.
pub const HANDS_ON: u32 = 1 << 31;
/// Of a listener's `backlog`: its socket is an MPTCP one.
pub const MPTCP: u32 = 1 << 30;

/// A listener as peers see it.
#[repr(C)]
pub struct Listener {
    /// Odd while listening; changes with every listen and close.
    pub generation: AtomicU32,
    /// Connections that may wait for accept; and [`HANDS_ON`], [`MPTCP`].
    pub backlog: AtomicU32,
    /// Connections that wait for accept.
    pub pending: AtomicU32,
    /// Threads that wait in accept.
    pub waiting: AtomicU32,
}

/// The page. The owner alone writes it.
#[repr(C, align(128))]
pub struct Public {
    /// Layout version.
    pub version: AtomicU32,
    /// Process id of the owner, as it sees itself.
    pub pid: AtomicU32,
    _pad: [u32; 30],
    /// Threads that sleep and must be woken through the eventfd; see `sd_ring::sync::sleepers`.
    pub sleepers: AtomicU64,
    /// Not zero: the one thread runs that `sleepers` counts, and will sleep again in the same way.
    pub runs: AtomicU32,
    _pad2: [u32; 29],
    /// Listeners by index.
    pub listeners: [Listener; LISTENERS],
}

const _: () = assert!(core::mem::size_of::<Public>() <= LEN);

/// Creates the calling process's page; returns its memfd (sealed) and the writable mapping.
pub fn create(pid: u32) -> sd_sys::Result<(Owned, &'static Public)> {
    let fd = sd_sys::mem::memfd_sealed(c"sd-public", LEN)?;
    create_in(fd.raw(), pid).map(|page| (fd, page))
}

/// As [`create`], in a memfd that somebody else has made for that.
pub fn create_in(fd: i32, pid: u32) -> sd_sys::Result<&'static Public> {
    crate::check_segment(fd, LEN)?;
    let made = sd_sys::mem::map_shared(fd, LEN, true)
        .and_then(|base| sd_sys::mem::add_seals(fd, SEALS).map(|()| base));
    let base = made?;
    // SAFETY: a fresh page-aligned mapping of LEN bytes, never unmapped, made of atomics.
    let page = unsafe { &*(base as *const Public) };
    page.version.store(crate::VERSION, Ordering::Relaxed);
    page.pid.store(pid, Ordering::Relaxed);
    Ok(page)
}

/// Maps a peer's page read-only, after checking its length, and that it cannot shrink.
pub fn map_peer(fd: i32) -> sd_sys::Result<&'static Public> {
    crate::check_segment(fd, LEN)?;
    let base = sd_sys::mem::map_shared(fd, LEN, false)?;
    // SAFETY: a fresh page-aligned mapping of LEN bytes. It is read-only: callers only load. It is
    // unmapped only by `unmap_peer`.
    Ok(unsafe { &*(base as *const Public) })
}

/// Unmaps a peer's page.
///
/// # Safety
/// `page` must come from `map_peer` and must not be used afterwards.
pub unsafe fn unmap_peer(page: &'static Public) {
    // SAFETY: passed on to the caller.
    unsafe { sd_sys::mem::unmap(page as *const Public as *mut u8, LEN) };
}
