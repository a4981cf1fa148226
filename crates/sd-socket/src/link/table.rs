//! The channels of this process.

use crate::link::channel::Channel;
use crate::process::{LISTENER, Priv, Process};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};
use sd_shm::events::EventSet;

/// Channels that one process can have.
const CHANNELS_MAX: usize = 1 << 16;

/// A place in the table of channels.
struct Place {
    channel: AtomicPtr<Channel>,
    /// What is announced to this process there; null when nothing is. Each wait looks at all of them, so nothing else
    /// has to be loaded on the way.
    events: AtomicPtr<EventSet>,
}

impl Process {
    /// Place number `index` of the table.
    fn place(&self, index: usize) -> Option<&'static Place> {
        let base = self.channels.load(Ordering::Acquire).cast::<Place>();
        if base.is_null() || index >= CHANNELS_MAX {
            return None;
        }
        // SAFETY: an array of CHANNELS_MAX places, made of atomics, that is never unmapped.
        Some(unsafe { &*base.add(index) })
    }

    /// The places that may be in use.
    #[inline]
    fn places(&self) -> impl Iterator<Item = &'static Place> {
        let count = self.channel_count.load(Ordering::Acquire);
        let base = self.channels.load(Ordering::Acquire).cast::<Place>();
        // SAFETY: as for `place`; the array is made before anything in it is counted.
        (0..count).map(move |index| unsafe { &*base.add(index) })
    }

    /// Channel number `index`.
    pub(crate) fn channel(&self, index: usize) -> Option<&'static Channel> {
        self.place(index)?.channel()
    }

    /// All channels.
    pub(crate) fn channels(&self) -> impl Iterator<Item = &'static Channel> {
        self.places().filter_map(Place::channel)
    }

    /// The channels in which something is announced to this process.
    #[inline]
    pub(crate) fn announcing(&self) -> impl Iterator<Item = &'static Channel> {
        self.places().filter(|place| place.announces()).filter_map(Place::channel)
    }

    /// In the child of a fork: everything is announced to the parent.
    pub(crate) fn forget_announcements(&self) {
        self.places().for_each(|place| place.events.store(core::ptr::null_mut(), Ordering::Relaxed));
    }

    /// Adds a channel; under `control`.
    pub(crate) fn add_channel(&self, channel: Box<Channel>) -> Option<&'static Channel> {
        if self.channels.load(Ordering::Acquire).is_null() {
            let base = sd_sys::mem::reserve_private(CHANNELS_MAX * core::mem::size_of::<Place>()).ok()?;
            self.channels.store(base, Ordering::Release);
        }
        let count = self.channel_count.load(Ordering::Relaxed);
        let free = (0..count).find(|&i| self.channel(i).is_none()).unwrap_or(count);
        let place = self.place(free)?;
        // SAFETY: given away for good, and freed only after it was taken out of the table.
        let channel = unsafe { &*Box::into_raw(channel) };
        place.channel.store(core::ptr::from_ref(channel).cast_mut(), Ordering::Release);
        let events = channel
            .announced_events()
            .map_or(core::ptr::null_mut(), |set| core::ptr::from_ref(set).cast_mut());
        place.events.store(events, Ordering::Release);
        self.channel_count.fetch_max(free + 1, Ordering::AcqRel);
        Some(channel)
    }

    /// Takes a channel out of the table; the caller frees it.
    pub(crate) fn remove_channel(&self, index: usize) -> Option<*mut Channel> {
        let place = self.place(index)?;
        place.events.store(core::ptr::null_mut(), Ordering::Release);
        let old = place.channel.swap(core::ptr::null_mut(), Ordering::AcqRel);
        (!old.is_null()).then_some(old)
    }
}

impl Place {
    fn channel(&self) -> Option<&'static Channel> {
        // SAFETY: null, or a Channel that is not freed while a thread is counted as a `reclaim::User`, or uses it for an
        // endpoint.
        unsafe { self.channel.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    fn announces(&self) -> bool {
        // SAFETY: null, or events in the mapping of the place's channel, which lives as long as that, see `channel`.
        unsafe { self.events.load(Ordering::Acquire).as_ref() }.is_some_and(|events| !events.is_empty())
    }
}

impl Priv {
    /// The channel that it is connected through.
    #[inline]
    pub(crate) fn channel(&self) -> Option<&'static Channel> {
        let role = self.role.load(Ordering::Acquire);
        // SAFETY: null, or set by `set_channel` to a record that is not freed while the endpoint uses it; a child has a
        // copy of the record at the same address.
        if role.addr() & LISTENER == 0 { unsafe { role.cast::<Channel>().as_ref() } } else { None }
    }

    /// For an endpoint that nobody else knows yet.
    pub(crate) fn set_channel(&self, channel: &'static Channel) {
        self.role.store(core::ptr::from_ref(channel).cast_mut().cast(), Ordering::Release);
    }

    /// Whether it had one before is told.
    pub(crate) fn change_channel(&self, channel: &'static Channel) -> bool {
        let role = core::ptr::from_ref(channel).cast_mut().cast();
        !self.role.swap(role, Ordering::AcqRel).is_null()
    }
}
