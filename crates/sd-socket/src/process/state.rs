//! The state of this process: one static, made of atomics and locks, valid from the first
//! instruction on and re-made in the child of a fork.

use crate::fd::hidden::{Hidden, HiddenCell};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sd_shm::public::Public;
use sd_shm::slab::{ENDPOINTS, Endpoint, Header, Slab, State};
use sd_sys::lock::Lock;

/// Slabs (own and inherited) that one process can have; deeper forks pass to the kernel.
pub(super) const SLABS_MAX: usize = 64;
/// Own and inherited public pages, and those of families that passed connections on.
const WAKERS_MAX: usize = 128;
/// Marks a role that is a listener record.
pub(crate) const LISTENER: usize = 1;

/// What only this process knows of an endpoint; private memory, copied by fork.
#[repr(C)]
pub(crate) struct Priv {
    /// Descriptors of this process that lead to the endpoint.
    pub(crate) fds: AtomicU32,
    /// Of a free endpoint of the own slab the next free one + 1; of one in use its note (see `extras`).
    pub(crate) next: AtomicU32,
    /// First item of `epoll` that watches it.
    pub(crate) watchers: AtomicPtr<Watcher>,
    /// The channel that it is connected through, or its listener record, marked by [`LISTENER`]: `link` and `setup` read and write it.
    pub(crate) role: AtomicPtr<u8>,
}

const _: () = assert!(core::mem::size_of::<Priv>() == 24);

/// What `epoll` keeps of an endpoint that is watched.
pub(crate) struct Watcher;

impl Priv {
    /// It has neither.
    pub(crate) fn clear_role(&self) {
        self.role.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// A slab that this process has mapped.
pub(crate) struct SlabRec {
    base: AtomicPtr<u8>,
    privs: AtomicPtr<Priv>,
    /// This process's bit in `holders`.
    pub(crate) bit: AtomicU64,
    /// The segment, for the next image of the process (see `exec`).
    pub(crate) fd: HiddenCell,
}

impl SlabRec {
    #[allow(clippy::declare_interior_mutable_const)] // Only an initial value.
    const EMPTY: SlabRec = SlabRec {
        base: AtomicPtr::new(core::ptr::null_mut()),
        privs: AtomicPtr::new(core::ptr::null_mut()),
        bit: AtomicU64::new(0),
        fd: HiddenCell::empty(),
    };

    #[inline]
    pub(crate) fn slab(&self) -> Option<Slab> {
        Slab::from_base(self.base.load(Ordering::Acquire))
    }

    pub(crate) fn private(&self, index: usize) -> Option<&'static Priv> {
        let base = self.privs.load(Ordering::Acquire);
        if base.is_null() || index >= ENDPOINTS {
            return None;
        }
        // SAFETY: `privs` is a mapping of ENDPOINTS entries that lives as long as the process has the slab.
        Some(unsafe { &*base.add(index) })
    }

    /// The process has the slab no more: nothing leads to an endpoint of it, and there is one thread (see `separate`).
    pub(crate) fn forget(&self) {
        let (base, privs) = (self.base.swap(core::ptr::null_mut(), Ordering::AcqRel), &self.privs);
        let privs = privs.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if let Some(slab) = Slab::from_base(base) {
            // SAFETY: as the caller says.
            unsafe { slab.unmap() };
        }
        if !privs.is_null() {
            // SAFETY: as the caller says; mapped with this length by `add_inherited_slab`.
            unsafe { sd_sys::mem::unmap(privs.cast(), ENDPOINTS * core::mem::size_of::<Priv>()) };
        }
        self.bit.store(0, Ordering::Relaxed);
        self.fd.close();
    }
}

/// Somebody to be woken by: an eventfd and the page where this process says that it sleeps.
pub(crate) struct Waker {
    pub(crate) public: AtomicPtr<Public>,
    pub(crate) event_fd: HiddenCell,
}

/// See the module.
pub(crate) struct Process {
    pub(crate) pid: AtomicI32,
    /// Has ever forked, or is a forked child: sockets may be shared with another process.
    pub(crate) forked: AtomicBool,
    pub(crate) slabs: [SlabRec; SLABS_MAX],
    pub(crate) slab_count: AtomicUsize,
    /// Index of the own slab + 1; zero before registration.
    pub(crate) own_slab: AtomicUsize,
    /// Of the own slab, or [`NO_HEADER`].
    header: AtomicPtr<Header>,
    pub(crate) wakers: [Waker; WAKERS_MAX],
    pub(crate) waker_count: AtomicUsize,
    /// Own public page.
    pub(crate) public: AtomicPtr<Public>,
    /// Unconnected kernel sockets whose duplicates hold descriptor numbers: IPv4, IPv6.
    pub(crate) placeholders: [HiddenCell; 2],
    /// The table of channels (`link::table`).
    pub(crate) channels: AtomicPtr<u8>,
    pub(crate) channel_count: AtomicUsize,
    /// Guards allocation of endpoints and changes to the arrays above.
    pub(crate) alloc: Lock<Alloc>,
    /// Last value seen of the own slab's mail counter.
    pub(crate) mail_seen: AtomicU32,
    /// Ledgers of epoll instances that it shares with relatives.
    pub(crate) ledgers: AtomicU32,
}

/// Free endpoints of the own slab.
pub(crate) struct Alloc {
    /// First free endpoint + 1; zero = none.
    pub(crate) free: u32,
    /// Given up here while a child still held them.
    pub(crate) orphans: Vec<u32>,
}

#[allow(clippy::declare_interior_mutable_const)] // Only an initial value.
const NO_WAKER: Waker =
    Waker { public: AtomicPtr::new(core::ptr::null_mut()), event_fd: HiddenCell::empty() };

/// What [`Process::header`] says without a slab: no mail, no policy.
static NO_HEADER: Header = Header::empty();

/// The one instance.
pub(crate) static PROCESS: Process = Process {
    pid: AtomicI32::new(0),
    forked: AtomicBool::new(false),
    slabs: [SlabRec::EMPTY; SLABS_MAX],
    slab_count: AtomicUsize::new(0),
    own_slab: AtomicUsize::new(0),
    header: AtomicPtr::new((&raw const NO_HEADER).cast_mut()),
    wakers: [NO_WAKER; WAKERS_MAX],
    waker_count: AtomicUsize::new(0),
    public: AtomicPtr::new(core::ptr::null_mut()),
    placeholders: [HiddenCell::empty(), HiddenCell::empty()],
    channels: AtomicPtr::new(core::ptr::null_mut()),
    channel_count: AtomicUsize::new(0),
    alloc: Lock::new(Alloc { free: 0, orphans: Vec::new() }),
    mail_seen: AtomicU32::new(0),
    ledgers: AtomicU32::new(0),
};

impl Process {
    /// Own public page, once registered.
    pub(crate) fn public(&self) -> Option<&'static Public> {
        // SAFETY: set once to a mapping that lives as long as the process.
        unsafe { self.public.load(Ordering::Acquire).as_ref() }
    }

    /// Own slab, once registered.
    #[inline]
    pub(crate) fn own(&self) -> Option<&SlabRec> {
        self.slabs.get(self.own_slab.load(Ordering::Acquire).checked_sub(1)?)
    }

    /// The slab that holds `endpoint`, and its number there.
    pub(crate) fn locate(&self, endpoint: &Endpoint) -> Option<(&SlabRec, usize)> {
        let slabs = self.slabs.get(..self.slab_count.load(Ordering::Acquire))?;
        slabs
            .iter()
            .rev()
            .find_map(|rec| rec.slab().and_then(|slab| slab.index_of(endpoint)).map(|index| (rec, index)))
    }

    /// The private part of an endpoint.
    pub(crate) fn private(&self, endpoint: &Endpoint) -> Option<&'static Priv> {
        self.locate(endpoint).and_then(|(rec, index)| rec.private(index))
    }

    /// Slab number `at` of those that this process has mapped.
    pub(crate) fn slab_at(&self, at: usize) -> Option<(&SlabRec, Slab)> {
        let rec = self.slabs.get(..self.slab_count.load(Ordering::Acquire))?.get(at)?;
        Some((rec, rec.slab()?))
    }

    /// Whether this process makes its sockets in that slab.
    #[inline]
    pub(crate) fn owns(&self, rec: &SlabRec) -> bool {
        rec.base.load(Ordering::Relaxed).cast() == self.header.load(Ordering::Relaxed)
    }

    /// Whether that is where this process makes its sockets.
    pub(crate) fn owns_slab(&self, at: usize) -> bool {
        self.own_slab.load(Ordering::Relaxed) == at + 1
    }

    /// The connections that are open in this process, and the slabs that hold them.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (&SlabRec, &'static Endpoint)> {
        let slabs = self.slabs.iter().take(self.slab_count.load(Ordering::Acquire));
        slabs.filter_map(|rec| Some((rec, rec.slab()?))).flat_map(|(rec, slab)| {
            let high = slab.header().high.load(Ordering::Acquire) as usize;
            let is_open =
                |index: &usize| rec.private(*index).is_some_and(|p| p.fds.load(Ordering::Acquire) > 0);
            let open = (0..high).filter(is_open).filter_map(move |index| slab.endpoint(index));
            let is_connected = |endpoint: &&Endpoint| {
                State::from_u32(u32::from(endpoint.state.load(Ordering::Acquire))) == State::Connected
            };
            open.filter(is_connected).map(move |endpoint| (rec, endpoint))
        })
    }

    /// Adds the own slab; under `alloc`. False when there are too many.
    pub(crate) fn add_slab(&self, slab: Slab, fd: Hidden) -> bool {
        let added = self.add_inherited_slab(slab, fd, 1);
        if added {
            self.header.store(core::ptr::from_ref(slab.header()).cast_mut(), Ordering::Release);
            self.own_slab.store(self.slab_count.load(Ordering::Relaxed), Ordering::Release);
        }
        added
    }

    /// The process has no slab of its own any more; before it is unmapped.
    pub(crate) fn disown_slab(&self) {
        self.header.store((&raw const NO_HEADER).cast_mut(), Ordering::Release);
        self.own_slab.store(0, Ordering::Release);
    }

    /// That of the own slab; before registration one in which nothing is ever said.
    #[inline]
    pub(crate) fn header(&self) -> &'static Header {
        // SAFETY: a static, or the first page of the own slab, which stays mapped for as long as this leads there.
        unsafe { &*self.header.load(Ordering::Acquire) }
    }

    /// Number of the policy that accept has to ask about; zero: it admits all.
    #[inline]
    pub(crate) fn policy(&self) -> u32 {
        self.header().policy.load(Ordering::Acquire)
    }

    /// Adds a slab in which this process has `bit`. False when there are too many.
    pub(crate) fn add_inherited_slab(&self, slab: Slab, fd: Hidden, bit: u64) -> bool {
        let count = self.slab_count.load(Ordering::Relaxed);
        let Some(rec) = self.slabs.get(count) else { return false };
        let len = ENDPOINTS * core::mem::size_of::<Priv>();
        let Ok(privs) = sd_sys::mem::reserve_private(len) else { return false };
        // Before any token of the slab's is taken.
        super::fence::ask_for();
        rec.privs.store(privs as *mut Priv, Ordering::Relaxed);
        rec.bit.store(bit, Ordering::Relaxed);
        rec.fd.put(fd);
        rec.base.store(slab.base(), Ordering::Release);
        self.slab_count.store(count + 1, Ordering::Release);
        true
    }
}

pub(crate) use sd_sys::section::is_only_thread as single_threaded;
pub(crate) use sd_sys::thread::id as tid;

/// The earlier of two pauses.
pub(crate) fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
