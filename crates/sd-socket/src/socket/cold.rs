//! What few endpoints have, and their addresses: `sd_shm::slab::Cold`.

use crate::process::{PROCESS, SlabRec};
use crate::socket::endpoint::EndpointExt;
use core::sync::atomic::Ordering;
use sd_proto::Ip;
use sd_shm::slab::{Cold, End, Endpoint, HAS_COLD, Slab};

/// What the others have.
static NOTHING: Cold = Cold::new();

/// For a look.
#[inline]
pub(crate) fn of(endpoint: &Endpoint) -> &'static Cold {
    match endpoint.flags.load(Ordering::Acquire) & HAS_COLD {
        0 => &NOTHING,
        _ => own(endpoint).unwrap_or(&NOTHING),
    }
}

/// For a change: the endpoint has something from now on.
pub(crate) fn change(endpoint: &Endpoint, change: impl FnOnce(&Cold)) {
    if let Some(cold) = own(endpoint) {
        note(endpoint);
        change(cold);
    }
}

/// The endpoint's place in one of the arrays beside is not empty any more.
#[inline]
pub(crate) fn note(endpoint: &Endpoint) {
    if endpoint.flags.load(Ordering::Relaxed) & HAS_COLD == 0 {
        endpoint.flags.fetch_or(HAS_COLD, Ordering::AcqRel);
    }
}

#[inline]
pub(super) fn own(endpoint: &Endpoint) -> Option<&'static Cold> {
    let of_slab = |slab: Slab| slab.cold(slab.index_of(endpoint)?);
    PROCESS.own().and_then(SlabRec::slab).and_then(of_slab).or_else(|| inherited(endpoint))
}

/// Of an endpoint in another slab than this process's own.
#[cold]
#[inline(never)]
fn inherited(endpoint: &Endpoint) -> Option<&'static Cold> {
    let (rec, index) = PROCESS.locate(endpoint)?;
    rec.slab()?.cold(index)
}

/// The address of one end.
pub(crate) fn ip(endpoint: &Endpoint, end: End) -> Ip {
    let word = crate::socket::parked::address(endpoint, end);
    let long = || {
        let (rec, index) = PROCESS.locate(endpoint)?;
        Some(rec.slab()?.whole_address(index, end, word))
    };
    Ip(sd_shm::slab::short_address(word).or_else(long).unwrap_or_default())
}

/// Notes it.
pub(crate) fn set_ip(endpoint: &Endpoint, end: End, ip: Ip) {
    if !endpoint.rx().set_short_address(end, ip.0)
        && let Some(slab) = PROCESS.locate(endpoint).and_then(|(rec, _)| rec.slab())
    {
        slab.set_address(endpoint, end, ip.0);
    }
}

/// Status flags other than O_NONBLOCK; only O_ASYNC has a meaning for our sockets.
pub(crate) fn other_flags(endpoint: &Endpoint) -> u32 {
    of(endpoint).status.load(Ordering::Relaxed)
}

/// Sets the status flags other than O_NONBLOCK; what they were.
pub(crate) fn set_other_flags(endpoint: &Endpoint, flags: u32) -> u32 {
    let old = other_flags(endpoint);
    if old != flags {
        change(endpoint, |cold| cold.status.store(flags, Ordering::Relaxed));
    }
    old
}

/// Something is in the error queue: sends with MSG_ZEROCOPY that are done.
pub(crate) fn has_notices(endpoint: &Endpoint) -> bool {
    let cold = of(endpoint);
    cold.zero_copies_told.load(Ordering::Acquire) != cold.zero_copies.load(Ordering::Acquire)
}
