//! The interest list of an instance that processes share after a fork.
//!
//! In Linux the list belongs to the open file, so parent and child register, change and remove for
//! each other. Here each process has a list of its own; the *ledger*, memory made before the first
//! fork and inherited, holds what all of them registered. Whoever changes something writes it there
//! and raises the version; a process that finds another version than it knows brings its own list up
//! to date, before the next call on the instance and after each sleep. An eventfd wakes those that
//! sleep. Nothing of this is needed until a child really uses the instance, so until then a process
//! that has forked only writes.
//!
//! A registration is told to the processes that hold its socket. Nested instances stay private.

use super::*;
use crate::fd::hidden::Hidden;
use crate::process::tid;
use crate::process::waker::View;
use alloc::vec::Vec;

const ENTRIES: usize = 1 << 16;
const LEN: usize = core::mem::size_of::<Ledger>();

/// A registration of a socket.
#[repr(C)]
struct Row {
    /// Whose slab the socket is in; zero = the entry is free.
    pid: AtomicU32,
    /// Number of the socket in the slab; of a free row, the next free one.
    index: AtomicU32,
    fd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

/// The mapping. All but `events` (see `fire`) is changed under `lock`.
#[repr(C)]
pub(super) struct Ledger {
    /// Thread id of the holder.
    lock: AtomicU32,
    version: AtomicU32,
    /// Entries 0..high have been used.
    high: AtomicU32,
    /// First free row below that; zero = none.
    free: AtomicU32,
    /// A second process uses the instance.
    shared: AtomicU32,
    entries: [Row; ENTRIES],
}

struct Locked<'a>(&'a Ledger);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::Release);
    }
}

impl Ledger {
    /// A holder writes a few words and never sleeps; a dead one is replaced.
    fn lock(&self) -> Locked<'_> {
        let me = tid() as u32;
        let mut rounds = 0u32;
        loop {
            let holder = self.lock.load(Ordering::Relaxed);
            rounds += 1;
            let gone = holder == 0
                || holder == me
                || rounds.is_multiple_of(4096) && sd_sys::fd::task_is_dead(holder as i32);
            if gone && self.lock.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Locked(self);
            }
            if rounds > 100 {
                sd_sys::time::yield_now();
            }
        }
    }

    fn entry(&self, number: u32) -> Option<&Row> {
        self.entries.get((number as usize).checked_sub(1)?)
    }

    fn used(&self) -> impl Iterator<Item = (u32, &Row)> {
        let high = self.high.load(Ordering::Acquire) as usize;
        (1..).zip(self.entries.iter().take(high))
    }
}

impl Row {
    fn is_of(&self, fd: i32, pid: u32, index: u32) -> bool {
        self.pid.load(Ordering::Relaxed) == pid
            && self.index.load(Ordering::Relaxed) == index
            && self.fd.load(Ordering::Relaxed) == fd
    }

    /// The socket, if this process holds it.
    fn socket(&self) -> Option<&'static Endpoint> {
        let pid = self.pid.load(Ordering::Relaxed);
        let count = PROCESS.slab_count.load(Ordering::Acquire);
        let slab_of = |rec: &&crate::process::SlabRec| {
            rec.slab().is_some_and(|slab| slab.header().pid.load(Ordering::Relaxed) == pid)
        };
        let rec = PROCESS.slabs.iter().take(count).find(slab_of)?;
        let endpoint = rec.slab()?.endpoint(self.index.load(Ordering::Relaxed) as usize)?;
        let held = endpoint.holders.load(Ordering::Acquire) & rec.bit.load(Ordering::Relaxed) != 0;
        held.then_some(endpoint)
    }
}

/// What the ledger calls a socket: the owner of its slab, and its number there.
fn name(source: Source) -> Option<(u32, u32)> {
    let Source::Socket(endpoint) = source else { return None };
    let (rec, index) = PROCESS.locate(endpoint)?;
    Some((rec.slab()?.header().pid.load(Ordering::Relaxed), index as u32))
}

fn of(epoll: &Epoll) -> Option<&'static Ledger> {
    // SAFETY: null or a mapping that stays until the instance's last number and user are gone.
    unsafe { epoll.ledger.load(Ordering::Acquire).as_ref() }
}

/// Before a fork of a process that has sockets of ours: a ledger, also for an instance that has none of them. A child may register one.
pub(super) fn prepare(epoll: &Epoll) {
    let mut interest = epoll.interest.lock();
    if of(epoll).is_some() {
        return;
    }
    let Ok(event_fd) = sd_sys::fd::eventfd(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) else { return };
    let Ok(base) = sd_sys::mem::map_shared_anonymous(LEN) else { return };
    epoll.ledger_fd.put(Hidden::of(event_fd));
    epoll.ledger.store(base as *mut Ledger, Ordering::Release);
    PROCESS.ledgers.fetch_add(1, Ordering::AcqRel);
    sleep_fd::watch_ledger(epoll);
    // Who waits in the kernel for an instance that has nothing of ours is to wait here.
    sleep_fd::prepare(epoll, &mut interest, View::now());
    sleep_fd::kick(epoll, &interest);
    interest.items.iter().for_each(|item| added(epoll, item));
}

/// The instance is gone from this process.
pub(super) fn leave(epoll: &Epoll) {
    let base = epoll.ledger.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if !base.is_null() {
        // SAFETY: nobody is inside the instance any more.
        unsafe { sd_sys::mem::unmap(base as *mut u8, LEN) };
        PROCESS.ledgers.fetch_sub(1, Ordering::AcqRel);
    }
    epoll.ledger_fd.close();
    epoll.inherited.store(false, Ordering::Relaxed);
    epoll.ledger_seen.store(0, Ordering::Relaxed);
}

/// Gives the ledger up while threads may be inside: they find one in which nothing stands. The number of its eventfd stays.
pub(super) fn abandon(epoll: &Epoll) -> Option<()> {
    let base = epoll.ledger.swap(core::ptr::null_mut(), Ordering::AcqRel);
    epoll.inherited.store(false, Ordering::Relaxed);
    if base.is_null() {
        return Some(());
    }
    // SAFETY: mapped with that length; all zero is a ledger without entries.
    unsafe { sd_sys::mem::replace_by_zeros(base as *mut u8, LEN) }.ok()
}

/// This process made a change, under the lock: the others shall look.
fn changed(epoll: &Epoll, ledger: &Ledger) {
    let before = ledger.version.fetch_add(1, Ordering::AcqRel);
    let _ = epoll.ledger_seen.compare_exchange(before, before + 1, Ordering::AcqRel, Ordering::Relaxed);
    if ledger.shared.load(Ordering::Relaxed) != 0 {
        sd_sys::fd::eventfd_signal(epoll.ledger_fd.raw());
    }
}

/// Enters a registration. Without room it stays private.
pub(super) fn added(epoll: &Epoll, item: &Item) {
    let (Some(ledger), Some((pid, index))) = (of(epoll), name(item.source())) else { return };
    let _lock = ledger.lock();
    let high = ledger.high.load(Ordering::Relaxed);
    let free = ledger.free.load(Ordering::Relaxed);
    let number = if free != 0 { free } else { high + 1 };
    let Some(entry) = ledger.entry(number) else { return };
    if free != 0 {
        ledger.free.store(entry.index.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    entry.index.store(index, Ordering::Relaxed);
    entry.fd.store(item.fd(), Ordering::Relaxed);
    entry.events.store(item.events(), Ordering::Relaxed);
    entry.data.store(item.data.load(Ordering::Relaxed), Ordering::Relaxed);
    entry.pid.store(pid, Ordering::Release);
    ledger.high.fetch_max(number, Ordering::AcqRel);
    item.entry.store(number, Ordering::Relaxed);
    changed(epoll, ledger);
}

/// Enters a registration that may stand there still, as relatives have it.
pub(super) fn put_back(epoll: &Epoll, item: &Item) {
    let (Some(ledger), Some((pid, index))) = (of(epoll), name(item.source())) else { return };
    let known = {
        let _lock = ledger.lock();
        ledger.used().find(|(_, row)| row.is_of(item.fd(), pid, index)).map(|(number, _)| number)
    };
    match known {
        Some(number) => item.entry.store(number, Ordering::Relaxed),
        None => added(epoll, item),
    }
}

fn entry_of(item: &Item) -> Option<(&'static Ledger, &'static Row)> {
    let ledger = of(item.epoll())?;
    Some((ledger, ledger.entry(item.entry.load(Ordering::Relaxed))?))
}

/// The row is still the item's: another process may have removed the registration, and the row may be another one's since.
fn is_of_item(entry: &Row, item: &Item) -> bool {
    name(item.source()).is_some_and(|(pid, index)| entry.is_of(item.fd(), pid, index))
}

/// A registration was changed.
pub(super) fn modified(item: &Item) {
    let Some((ledger, entry)) = entry_of(item) else { return };
    let _lock = ledger.lock();
    if !is_of_item(entry, item) {
        return;
    }
    entry.events.store(item.events(), Ordering::Relaxed);
    entry.data.store(item.data.load(Ordering::Relaxed), Ordering::Relaxed);
    changed(item.epoll(), ledger);
}

/// A registration was removed; if only because this process closed the socket, it lives on for others
/// that have the socket.
pub(super) fn removed(item: &Item, only_closed: bool) {
    let (Some((ledger, entry)), Source::Socket(endpoint)) = (entry_of(item), item.source()) else { return };
    let own = PROCESS.locate(endpoint).map_or(0, |(rec, _)| rec.bit.load(Ordering::Relaxed));
    if only_closed && endpoint.holders.load(Ordering::Acquire) & !own != 0 {
        return;
    }
    let _lock = ledger.lock();
    if !is_of_item(entry, item) {
        return;
    }
    entry.pid.store(0, Ordering::Release);
    entry.index.store(ledger.free.load(Ordering::Relaxed), Ordering::Relaxed);
    ledger.free.store(item.entry.load(Ordering::Relaxed), Ordering::Relaxed);
    changed(item.epoll(), ledger);
}

/// EPOLLONESHOT fires once, whichever process is told: false when another was.
pub(super) fn fire(item: &Item) -> bool {
    item.events.fetch_and(PRIVATE, Ordering::Relaxed);
    match entry_of(item) {
        // Another process has removed it: this one has still to hear of that.
        Some((_, entry)) if !is_of_item(entry, item) => false,
        Some((_, entry)) => entry.events.fetch_and(PRIVATE, Ordering::AcqRel) & !PRIVATE != 0,
        None => true,
    }
}

/// Another process uses the instance, and may have registered kernel descriptors.
pub(super) fn is_shared(epoll: &Epoll) -> bool {
    of(epoll).is_some_and(|ledger| ledger.shared.load(Ordering::Relaxed) != 0)
}

/// Before a look at the instance.
#[inline]
pub(super) fn catch_up(epoll: &'static Epoll) {
    if let Some(ledger) = of(epoll)
        && (epoll.inherited.load(Ordering::Relaxed)
            || ledger.version.load(Ordering::Acquire) != epoll.ledger_seen.load(Ordering::Relaxed))
    {
        synchronize(epoll, &mut epoll.interest.lock());
    }
}

/// What has to be done to one's own list.
struct Changes {
    gone: Vec<&'static Item>,
    other: Vec<(&'static Item, u32, u64)>,
    new: Vec<(u32, i32, &'static Endpoint, u32, u64)>,
}

/// Brings this process's list up to date.
pub(super) fn synchronize(epoll: &'static Epoll, interest: &mut Interest) {
    let Some(ledger) = of(epoll) else { return };
    if epoll.inherited.swap(false, Ordering::Relaxed) {
        ledger.shared.store(1, Ordering::SeqCst);
    }
    let version = ledger.version.load(Ordering::Acquire);
    if epoll.ledger_seen.load(Ordering::Relaxed) == version {
        return;
    }
    let Changes { gone, other, new } = compare(epoll, interest, ledger);
    for item in gone {
        let is_again = |(_, fd, endpoint, ..): &(_, i32, &'static Endpoint, _, _)| {
            *fd == item.fd() && matches!(item.source(), Source::Socket(own) if core::ptr::eq(own, *endpoint))
        };
        if !new.iter().any(is_again) {
            roads::removed(item);
        }
        control::forget(epoll, interest, item);
    }
    for (item, events, data) in other {
        roads::change(item, (events, data));
    }
    for (number, fd, endpoint, events, data) in new {
        let source = Source::Socket(endpoint);
        if watch::find(epoll, fd, source).is_none() {
            control::insert(epoll, interest, fd, source, (events, data), number);
        }
    }
}

fn compare(epoll: &Epoll, interest: &Interest, ledger: &Ledger) -> Changes {
    let mut changes = Changes { gone: Vec::new(), other: Vec::new(), new: Vec::new() };
    let _lock = ledger.lock();
    epoll.ledger_seen.store(ledger.version.load(Ordering::Relaxed), Ordering::Relaxed);
    for item in interest.items.iter() {
        let number = item.entry.load(Ordering::Relaxed);
        let (Some(entry), Some((pid, index))) = (ledger.entry(number), name(item.source())) else { continue };
        let (events, data) = (entry.events.load(Ordering::Relaxed), entry.data.load(Ordering::Relaxed));
        if !entry.is_of(item.fd(), pid, index) {
            changes.gone.push(item);
        } else if events != item.events() || data != item.data.load(Ordering::Relaxed) {
            changes.other.push((item, events, data));
        }
    }
    for (number, entry) in ledger.used().filter(|(_, entry)| entry.pid.load(Ordering::Acquire) != 0) {
        if let Some(endpoint) = entry.socket() {
            let (events, data) = (entry.events.load(Ordering::Relaxed), entry.data.load(Ordering::Relaxed));
            changes.new.push((number, entry.fd.load(Ordering::Relaxed), endpoint, events, data));
        }
    }
    changes
}
