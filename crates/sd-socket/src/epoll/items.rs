//! The registrations of an instance, in pages of their own.
//!
//! A page begins with its instance, so that a registration need not name it, and malloc adds nothing to any. Who looks
//! for one asks its source, which few instances watch: so there is no list by numbers either, and a number that was
//! closed and used again while its socket lives on by another one can be registered again, as on Linux.

use super::*;
use core::sync::atomic::AtomicU16;

/// Items lie together in so much, at a multiple of it.
const PAGE: usize = sd_sys::mem::SMALLEST_PAGE;
const PER_PAGE: usize = (PAGE - core::mem::size_of::<Head>()) / core::mem::size_of::<Item>();

/// Marks a source that is an instance.
const NESTED: u64 = 1;

/// What an item watches.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Socket(&'static Endpoint),
    /// A nested instance of ours.
    Nested(&'static Epoll),
}

impl Source {
    /// Whether the kernel instance watches the number as well: listeners and nested instances.
    pub(super) fn in_kernel(self) -> bool {
        match self {
            Source::Socket(endpoint) => endpoint.state_now() == State::Listen,
            Source::Nested(_) => true,
        }
    }

    /// Whether both instances may tell of it.
    pub(super) fn is_in_both(self) -> bool {
        self.in_kernel() || self.directions() != 0
    }

    /// The directions of a connection that the kernel's instance tells of.
    pub(super) fn directions(self) -> u32 {
        match self {
            Source::Socket(endpoint) => crate::wait::by_kernel::watched(endpoint),
            Source::Nested(_) => 0,
        }
    }

    fn word(self) -> u64 {
        match self {
            Source::Socket(endpoint) => core::ptr::from_ref(endpoint) as u64,
            Source::Nested(inner) => core::ptr::from_ref(inner) as u64 | NESTED,
        }
    }
}

/// One registration. Atomics so that it can be shared; who may write stands beside each.
#[repr(C)]
pub(crate) struct Item {
    /// A [`Source`]; zero: not in use.
    source: AtomicU64,
    /// Under the ready list's lock, like `events`.
    pub(super) data: AtomicU64,
    /// Next registration of the same source, under the lock of the source's list; if not in use, the next such item.
    pub(super) next_watcher: AtomicPtr<Item>,
    fd: AtomicI32,
    pub(super) events: AtomicU32,
    /// Row of the ledger; zero = none.
    pub(super) entry: AtomicU32,
    place: AtomicU8,
    /// Ends of the connection that were reported, see `watch::ends`.
    pub(super) told: AtomicU8,
    /// Directions that the kernel's instance was asked to tell of, see [`Item::told_roads`]; under the ready list's lock.
    roads: AtomicU16,
}

#[repr(C)]
struct Head {
    epoll: &'static Epoll,
    next: *mut Page,
}

#[repr(C)]
pub(super) struct Page {
    head: Head,
    items: [Item; PER_PAGE],
}

const _: () = assert!(core::mem::size_of::<Item>() == 40 && core::mem::size_of::<Page>() <= PAGE);

impl Item {
    #[cfg(test)]
    pub(super) const fn unused() -> Item {
        Item {
            source: AtomicU64::new(0),
            data: AtomicU64::new(0),
            next_watcher: AtomicPtr::new(core::ptr::null_mut()),
            fd: AtomicI32::new(-1),
            events: AtomicU32::new(0),
            entry: AtomicU32::new(0),
            place: AtomicU8::new(IDLE),
            told: AtomicU8::new(0),
            roads: AtomicU16::new(0),
        }
    }

    /// The instance that it belongs to.
    #[inline(always)]
    pub(super) fn epoll(&self) -> &'static Epoll {
        let page = core::ptr::from_ref(self).map_addr(|address| address & !(PAGE - 1)).cast::<Head>();
        // SAFETY: items lie in pages, whose heads are not changed any more.
        unsafe { (*page).epoll }
    }
    pub(super) fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }
    #[inline(always)]
    pub(super) fn source(&self) -> Source {
        let word = self.source.load(Ordering::Relaxed);
        match word & NESTED {
            // SAFETY: set by `Items::take`, from a reference.
            0 => Source::Socket(unsafe { &*(word as *const Endpoint) }),
            // SAFETY: as above; records are never freed.
            _ => Source::Nested(unsafe { &*((word & !NESTED) as *const Epoll) }),
        }
    }
    fn is_used(&self) -> bool {
        self.source.load(Ordering::Relaxed) != 0
    }
    pub(super) fn events(&self) -> u32 {
        self.events.load(Ordering::Relaxed)
    }
    pub(super) fn is_edge(&self) -> bool {
        self.events() & libc::EPOLLET as u32 != 0
    }
    /// EPOLLONESHOT has fired.
    pub(super) fn is_disabled(&self) -> bool {
        self.events() & !PRIVATE == 0
    }
    /// Directions of the connection that the kernel's instance was asked to tell of, as far as this process knows.
    pub(super) fn told_roads(&self) -> u32 {
        u32::from(self.roads.load(Ordering::Relaxed)) << 16
    }
    /// It has been.
    pub(super) fn set_told_roads(&self, directions: u32) {
        let before = self.roads.swap((directions >> 16) as u16, Ordering::Relaxed);
        if (before != 0) != (directions != 0) {
            self.epoll().place.has_mixed(directions != 0);
        }
    }
    pub(super) fn place(&self) -> u8 {
        self.place.load(Ordering::Relaxed)
    }
    pub(super) fn put(&self, place: u8) {
        self.place.store(place, Ordering::Relaxed);
    }
}

/// All registrations of an instance.
pub(super) struct Items {
    /// In the order of their making.
    first: *mut Page,
    last: *mut Page,
    /// First item that is not in use.
    free: *const Item,
}

// SAFETY: the pages belong to the list.
unsafe impl Send for Items {}

impl Items {
    pub(super) const fn new() -> Items {
        Items { first: core::ptr::null_mut(), last: core::ptr::null_mut(), free: core::ptr::null() }
    }

    /// Makes room for one more; false without memory.
    pub(super) fn reserve(&mut self, epoll: &'static Epoll) -> bool {
        if !self.free.is_null() {
            return true;
        }
        let Ok(page) = sd_sys::mem::map_private(PAGE) else { return false };
        let page = page.cast::<Page>();
        // SAFETY: a fresh page of zeros, which is an item that is not in use wherever one lies; and the last of the list's.
        let items = unsafe {
            page.cast::<Head>().write(Head { epoll, next: core::ptr::null_mut() });
            match self.last.is_null() {
                true => self.first = page,
                false => (*self.last).head.next = page,
            }
            &(*page).items
        };
        self.last = page;
        items.iter().rev().for_each(|item| self.push_free(item));
        true
    }

    fn push_free(&mut self, item: &Item) {
        item.next_watcher.store(self.free.cast_mut(), Ordering::Relaxed);
        self.free = item;
    }

    /// A new registration.
    pub(super) fn take(
        &mut self,
        epoll: &'static Epoll,
        fd: i32,
        source: Source,
        (events, data): (u32, u64),
        entry: u32,
    ) -> Option<&'static Item> {
        if !self.reserve(epoll) {
            return None;
        }
        // SAFETY: pages are given up only with the instance, when nobody knows an item of it any more.
        let item = unsafe { self.free.as_ref() }?;
        self.free = item.next_watcher.swap(core::ptr::null_mut(), Ordering::Relaxed);
        item.fd.store(fd, Ordering::Relaxed);
        item.events.store(events, Ordering::Relaxed);
        item.data.store(data, Ordering::Relaxed);
        item.entry.store(entry, Ordering::Relaxed);
        item.told.store(0, Ordering::Relaxed);
        item.put(IDLE);
        item.source.store(source.word(), Ordering::Relaxed);
        Some(item)
    }

    /// Takes back one that nobody knows any more.
    pub(super) fn give(&mut self, item: &Item) {
        item.set_told_roads(0);
        item.source.store(0, Ordering::Relaxed);
        self.push_free(item);
    }

    /// Those in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'static Item> + use<> {
        // SAFETY: as in `take`.
        let page = |at: *mut Page| unsafe { at.as_ref() };
        let pages = core::iter::successors(page(self.first), move |at| page(at.head.next));
        pages.flat_map(|page| &page.items).filter(|item| item.is_used())
    }

    /// Gives the memory of an instance that has ended back, but for a page that is kept for the next.
    pub(super) fn shrink(&mut self) {
        // SAFETY: the list's own page, or none.
        let Some(first) = (unsafe { self.first.as_ref() }) else { return };
        let mut at = first.head.next;
        // SAFETY: as above; nobody else knows the list.
        unsafe { (*self.first).head.next = core::ptr::null_mut() };
        while !at.is_null() {
            // SAFETY: a page of the list, no item of which is in use.
            unsafe {
                let next = (*at).head.next;
                sd_sys::mem::unmap(at.cast(), PAGE);
                at = next;
            }
        }
        self.last = self.first;
        self.free = core::ptr::null();
        first.items.iter().rev().for_each(|item| self.push_free(item));
    }
}
