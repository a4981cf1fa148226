//! At which sequence numbers the streams of the kernel's connections of this process began, as the monitor has said (ADR 86).
//!
//! A connection that is restored elsewhere has a kernel that counts its bytes anew. What its process says of it then, when it offers it again, is
//! what both ends know it by: these numbers, which no restoring changes.

use crate::process::PROCESS;
use crate::socket::addr::{Name, kernel_name, kernel_peer};
use alloc::vec::Vec;
use core::ffi::c_int;
use sd_shm::slab::Endpoint;
use sd_sys::lock::Lock;

/// Numbers of the first byte that was sent, and of the first that was received.
type Numbers = (u32, u32);

/// Of an endpoint of the process's own slab.
#[derive(Clone, Copy, Default)]
struct Began {
    numbers: Option<Numbers>,
    /// The connection may have been restored since.
    restored: bool,
}

/// By the endpoint's place in the slab.
static KNOWN: Lock<Vec<Began>> = Lock::new(Vec::new());

/// A connection that the process keeps while it has no endpoints.
pub(crate) struct Kept {
    fd: c_int,
    names: [Name; 2],
    began: Option<Numbers>,
}

static KEPT: Lock<Vec<Kept>> = Lock::new(Vec::new());

fn place(endpoint: &Endpoint) -> Option<usize> {
    PROCESS.locate(endpoint).filter(|(rec, _)| PROCESS.owns(rec)).map(|(_, index)| index)
}

fn set(endpoint: &Endpoint, began: Began) {
    let Some(at) = place(endpoint) else { return };
    let mut known = KNOWN.lock();
    if known.len() <= at && began.numbers.is_some() {
        known.resize(at + 1, Began::default());
    }
    known.get_mut(at).into_iter().for_each(|place| *place = began);
}

fn get(endpoint: &Endpoint) -> Began {
    place(endpoint).and_then(|at| KNOWN.lock().get(at).copied()).unwrap_or_default()
}

/// Another connection of the kernel's is the endpoint's.
pub(super) fn forget(endpoint: &Endpoint) {
    set(endpoint, Began::default());
}

/// The monitor has said it.
pub(super) fn note(endpoint: &Endpoint, numbers: Option<Numbers>) {
    let restored = get(endpoint).restored;
    set(endpoint, Began { numbers, restored });
}

/// What is to be said of a connection that may have been restored. `None`: nothing, it was not.
pub(super) fn restored(endpoint: &Endpoint) -> Option<Numbers> {
    Some(get(endpoint)).filter(|began| began.restored)?.numbers
}

/// What the process keeps of a watched connection under a number.
pub(crate) fn keep(fd: c_int, endpoint: &Endpoint) -> Option<Kept> {
    let names = [kernel_name(fd)?.1, kernel_peer(fd)?.1];
    Some(Kept { fd, names, began: get(endpoint).numbers })
}

/// The process has no endpoints any more.
pub(crate) fn detached(kept: Vec<Kept>) {
    *KEPT.lock() = kept;
    KNOWN.lock().clear();
}

/// A connection gets an endpoint, of a process that may have kept something of it.
pub(super) fn take_up(fd: c_int, endpoint: &Endpoint) {
    let mut kept = KEPT.lock();
    let Some(at) = kept.iter().position(|kept| kept.fd == fd) else { return };
    let Kept { names, began, .. } = kept.swap_remove(at);
    let found = [kernel_name(fd), kernel_peer(fd)].map(|found| found.map(|(_, name)| name));
    if found == names.map(Some) {
        set(endpoint, Began { numbers: began, restored: began.is_some() });
    }
}

/// In the child of a fork, which has endpoints of its own.
pub(crate) fn forked() {
    // SAFETY: the child has one thread.
    unsafe {
        KNOWN.force_unlock();
        KEPT.force_unlock();
    }
    KNOWN.lock().clear();
    KEPT.lock().clear();
}
