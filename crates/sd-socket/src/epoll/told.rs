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
use sd_sys::lock::Lock;

/// Numbers that have places.
const NUMBERS: usize = 1 << 16;
/// [`Place::calls`]: calls under way, and that there were two at once.
const TWO: u32 = 1 << 31;

static PLACES: AtomicPtr<Place> = AtomicPtr::new(null_mut());
static MAPS: Lock<()> = Lock::new(());
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
    /// No other instance has it, as it was registered nowhere when it began.
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

#[cold]
fn map() {
    let _one = MAPS.lock();
    if PLACES.load(Ordering::Acquire).is_null()
        && let Ok(at) = sd_sys::mem::reserve_private(NUMBERS * size_of::<Place>())
    {
        PLACES.store(at.cast(), Ordering::Release);
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

    fn begin(&self, endpoint: &Endpoint, is_all: bool) {
        self.endpoint.store(core::ptr::from_ref(endpoint).cast_mut(), Ordering::Relaxed);
        self.which.store(which(endpoint), Ordering::Relaxed);
        self.ended.store(ENDED.load(Ordering::Acquire), Ordering::Relaxed);
        self.epoll.store(null_mut(), Ordering::Relaxed);
        self.is_all.store(is_all, Ordering::Relaxed);
    }

    /// One that was registered nowhere is in no instance but the one that it was told to last.
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
}

impl Call {
    pub(super) fn begin(number: i32) -> Call {
        if PLACES.load(Ordering::Acquire).is_null() {
            map();
        }
        let place = place(number);
        if let Some(place) = place {
            let two = |calls: u32| Some(if calls & !TWO == 0 { 1 } else { (calls + 1) | TWO });
            let _ = place.calls.fetch_update(Ordering::AcqRel, Ordering::Relaxed, two);
        }
        Call { place }
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
            place.begin(endpoint, false);
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
pub(crate) fn is_fresh(number: i32, endpoint: &'static Endpoint) {
    if let Some(place) = place(number).filter(|place| place.calls.load(Ordering::Acquire) & !TWO == 0) {
        place.begin(endpoint, true);
    }
}

/// The number leads to a connection of ours from here on: its registration changes without a word here.
pub(crate) fn is_moved(number: i32) {
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

/// In the child of a fork, which has one thread.
pub(crate) fn forked() {
    // SAFETY: nobody else is there.
    unsafe { MAPS.force_unlock() };
}
