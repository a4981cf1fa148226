//! What this process has told the kernel's instances about a connection that the kernel has made: its registration, without asking for it.
//!
//! The kernel tells of one registration only with all others of its instance ([`super::listed`]): a millisecond where there are four thousand, and
//! event loops that change each with every message have it written anew for each connection that goes to the ring. So the last thing that was
//! told about a number is kept here, and the list is read only where that does not say enough.
//!
//! A place belongs to a connection while its number leads to it, from the first epoll_ctl(2) on. Two calls at once on one number are done by the
//! kernel in an order that nobody knows: then nothing is known, until the next. What is not seen here: what relatives of a fork tell an instance,
//! instances that have ended (their places may be used for others), and that EPOLLONESHOT has fired. There the list is asked.

use super::Epoll;
use crate::fd::table::{self, Entry};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sd_shm::slab::Endpoint;
use sd_sys::fdinfo::Registration;

/// Numbers that have places.
const NUMBERS: usize = 1 << 16;
/// [`Place::calls`]: calls under way, and that there were two at once.
const TWO: u32 = 1 << 31;

static PLACES: AtomicPtr<Place> = AtomicPtr::new(null_mut());
/// How many instances have ended.
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Of a number. All zeroes: nothing is known.
struct Place {
    calls: AtomicU32,
    events: AtomicU32,
    data: AtomicU64,
    /// The connection, and which of those that its endpoint was used for.
    endpoint: AtomicPtr<Endpoint>,
    which: AtomicU32,
    /// What [`ENDED`] was then.
    ended: AtomicU32,
    /// Null: none that is known.
    epoll: AtomicPtr<Epoll>,
    /// Only that one can have it: nobody had registered it when it was accepted.
    is_all: AtomicBool,
}

/// What is known of a number and an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    This(Registration),
    Nothing,
    Unknown,
}

fn place(number: i32) -> Option<&'static Place> {
    let at = usize::try_from(number).ok().filter(|at| *at < NUMBERS)?;
    let places = PLACES.load(Ordering::Acquire);
    // SAFETY: a mapping of NUMBERS zeroed places, each of atomics, that is never taken down.
    (!places.is_null()).then(|| unsafe { &*places.add(at) })
}

/// Makes the places, as `fd::table` its own; without memory there are none.
#[cold]
fn map() {
    const LEN: usize = NUMBERS * size_of::<Place>();
    let Ok(base) = sd_sys::mem::reserve_private(LEN) else { return };
    let made = PLACES.compare_exchange(null_mut(), base.cast(), Ordering::AcqRel, Ordering::Relaxed);
    if made.is_err() {
        // SAFETY: reserved just now, with this length, and known to nobody.
        unsafe { sd_sys::mem::unmap(base, LEN) };
    }
}

fn which(endpoint: &Endpoint) -> u32 {
    crate::socket::cold::of(endpoint).road_use.load(Ordering::Relaxed).into()
}

impl Place {
    fn is_of(&self, endpoint: &Endpoint) -> bool {
        core::ptr::eq(self.endpoint.load(Ordering::Relaxed), endpoint)
            && self.which.load(Ordering::Relaxed) == which(endpoint)
            && self.ended.load(Ordering::Relaxed) == ENDED.load(Ordering::Acquire)
    }

    fn begin(&self, endpoint: &Endpoint, ended: u32, is_all: bool) {
        self.endpoint.store(core::ptr::from_ref(endpoint).cast_mut(), Ordering::Relaxed);
        self.which.store(which(endpoint), Ordering::Relaxed);
        self.ended.store(ended, Ordering::Relaxed);
        self.epoll.store(null_mut(), Ordering::Relaxed);
        self.is_all.store(is_all, Ordering::Relaxed);
    }

    /// Of two instances only the last one is kept, and that there may be another.
    fn note(&self, epoll: &'static Epoll, event: Option<(u32, u64)>) {
        let before = self.epoll.load(Ordering::Relaxed);
        let is_this = core::ptr::eq(before, epoll);
        let Some((events, data)) = event else {
            if is_this {
                self.epoll.store(null_mut(), Ordering::Relaxed);
            }
            return;
        };
        if !is_this && !before.is_null() {
            self.is_all.store(false, Ordering::Relaxed);
        }
        self.events.store(events | super::ALWAYS, Ordering::Relaxed);
        self.data.store(data, Ordering::Relaxed);
        self.epoll.store(core::ptr::from_ref(epoll).cast_mut(), Ordering::Relaxed);
    }
}

/// A call of the kernel's that changes a registration.
pub(super) struct Call {
    place: Option<&'static Place>,
    /// What [`ENDED`] was before: the instance may end meanwhile.
    ended: u32,
}

impl Call {
    pub(super) fn begin(number: i32) -> Call {
        if PLACES.load(Ordering::Acquire).is_null() {
            map();
        }
        let (place, ended) = (place(number), ENDED.load(Ordering::Acquire));
        if let Some(place) = place {
            let two = |calls: u32| Some(if calls & !TWO == 0 { 1 } else { (calls + 1) | TWO });
            let _ = place.calls.fetch_update(Ordering::AcqRel, Ordering::Relaxed, two);
        }
        Call { place, ended }
    }

    /// It was done, or not (`None`). `event`: what it asks for now, nothing where it was taken out.
    pub(super) fn end(
        self,
        endpoint: &'static Endpoint,
        done: Option<&'static Epoll>,
        event: Option<(u32, u64)>,
    ) {
        let Some(place) = self.place else { return };
        if !place.is_of(endpoint) {
            place.begin(endpoint, self.ended, false);
        }
        done.inspect(|epoll| place.note(epoll, event));
        let calls = place.calls.load(Ordering::Acquire);
        if calls != 1 || place.calls.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            place.endpoint.store(without_provenance_mut(1), Ordering::Relaxed);
            place.calls.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A connection was accepted, which nobody has registered yet.
pub(crate) fn accepted(number: i32, endpoint: &'static Endpoint) {
    if let Some(place) = place(number).filter(|place| place.calls.load(Ordering::Acquire) & !TWO == 0) {
        place.begin(endpoint, ENDED.load(Ordering::Acquire), true);
    }
}

/// The number leads to a connection of ours from here on: its registration changes without a word here.
pub(crate) fn forget(number: i32) {
    place(number).inspect(|place| place.endpoint.store(null_mut(), Ordering::Relaxed));
}

/// For who keeps others from the connection, to which the number leads, meanwhile.
pub(super) fn about(epoll: &'static Epoll, number: i32) -> Known {
    let Entry::Kernel(endpoint) = table::get(number) else { return Known::Unknown };
    let known =
        place(number).filter(|place| place.calls.load(Ordering::Acquire) == 0 && place.is_of(endpoint));
    let Some(place) = known.filter(|_| !epoll.was_forked.load(Ordering::Relaxed)) else {
        return Known::Unknown;
    };
    if !core::ptr::eq(place.epoll.load(Ordering::Relaxed), epoll) {
        return if place.is_all.load(Ordering::Relaxed) { Known::Nothing } else { Known::Unknown };
    }
    let events = place.events.load(Ordering::Relaxed);
    match events & libc::EPOLLONESHOT as u32 {
        0 => Known::This(Registration { events, data: place.data.load(Ordering::Relaxed) }),
        _ => Known::Unknown,
    }
}

/// An instance has ended.
pub(super) fn has_ended() {
    ENDED.fetch_add(1, Ordering::AcqRel);
}
