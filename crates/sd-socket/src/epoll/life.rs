//! An instance's life: made, duplicated, forked, closed.

use super::*;
use crate::fd::hidden::HiddenCell;
use crate::process::waker::View;
use alloc::boxed::Box;
use alloc::vec::Vec;
use sd_sys::Errno;

struct Records {
    all: Vec<&'static Epoll>,
    free: Vec<&'static Epoll>,
}

static RECORDS: Lock<Records> = Lock::new(Records { all: Vec::new(), free: Vec::new() });

/// A thread inside a wait: keeps the record as it is.
pub(crate) struct User {
    epoll: &'static Epoll,
    pid: i32,
}

impl User {
    /// `None`: another thread has just closed that number. What it leads to now is to be asked again.
    #[inline(always)]
    pub(crate) fn enter(epoll: &'static Epoll, fd: i32) -> Option<User> {
        if !crate::process::single_threaded() {
            return User::enter_beside_others(epoll, fd);
        }
        epoll.references.fetch_add(1, Ordering::SeqCst);
        Some(User { epoll, pid: PROCESS.pid.load(Ordering::Relaxed) })
    }

    #[inline(never)]
    fn enter_beside_others(epoll: &'static Epoll, fd: i32) -> Option<User> {
        retain(epoll).then_some(())?;
        let user = User { epoll, pid: PROCESS.pid.load(Ordering::Relaxed) };
        // It may have become another instance's meanwhile.
        let leads_there = matches!(table::get(fd), Entry::Epoll(e) if core::ptr::eq(e.epoll(), epoll));
        leads_there.then_some(user)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // A child that was forked by a signal handler inside the wait starts with nobody inside.
        if self.pid == PROCESS.pid.load(Ordering::Relaxed) {
            release(self.epoll);
        }
    }
}

fn fresh() -> &'static Epoll {
    Box::leak(Box::new(Epoll {
        fd: AtomicI32::new(-1),
        numbers: AtomicU32::new(0),
        references: AtomicU32::new(0),
        interest: Lock::new(Interest {
            items: Items::new(),
            wakers: View::default(),
            registration: 0,
            losses: 0,
        }),
        ready_list: Lock::new(ReadyList {
            queue: VecDeque::new(),
            hot: Vec::new(),
            scanned: Vec::new(),
            once: Vec::new(),
            kernel_queued: false,
            timed: 0,
            newest: 0,
            ordered: 0,
        }),
        load: AtomicUsize::new(0),
        outers: AtomicPtr::new(core::ptr::null_mut()),
        members: AtomicU32::new(0),
        nested: AtomicU32::new(0),
        kernel_count: AtomicU32::new(0),
        sleep_fd: HiddenCell::empty(),
        flat: AtomicBool::new(false),
        place: inside::Place::new(),
        has_both: AtomicBool::new(false),
        sleepers: AtomicU32::new(0),
        waiters: AtomicU32::new(0),
        strangers: AtomicU32::new(0),
        kicked: AtomicBool::new(false),
        spin: AtomicU32::new(0),
        kernel_asked: AtomicU64::new(0),
        ledger: AtomicPtr::new(core::ptr::null_mut()),
        ledger_fd: HiddenCell::empty(),
        ledger_seen: AtomicU32::new(0),
        inherited: AtomicBool::new(false),
        was_forked: AtomicBool::new(false),
    }))
}

/// Some instance is, or was, known.
static ARE_KNOWN: AtomicBool = AtomicBool::new(false);

/// See [`ARE_KNOWN`].
pub(crate) fn are_known() -> bool {
    ARE_KNOWN.load(Ordering::Acquire)
}

/// A kernel epoll instance was made: remember it. Before the process has registered with a monitor too: once it does there are
/// sockets of ours, which threads that sleep in the instance by then have to be told of. Most programs that make one never have such
/// sockets, so it is no reason to register.
pub(crate) fn created(fd: i32) {
    // Where there is a slab, of its parent's perhaps, there may be sockets of ours, with a monitor or without. A program that confines
    // itself is to register while it may, or never.
    let may_have_ours = PROCESS.slab_count.load(Ordering::Acquire) != 0
        || crate::monitor::client::is_there()
        || crate::monitor::client::may_come()
        || sd_sys::confine::is_on() && crate::monitor::client::connected().is_some();
    if !may_have_ours {
        return;
    }
    // For `User`; without a slab nobody has set it yet.
    let _ = PROCESS.pid.compare_exchange(0, sd_sys::fd::getpid(), Ordering::Relaxed, Ordering::Relaxed);
    ARE_KNOWN.store(true, Ordering::Release);
    crate::socket::kernel_socket::dropped_behind_our_back(fd);
    let epoll = {
        let mut records = RECORDS.lock();
        records.free.pop().unwrap_or_else(|| {
            let epoll = fresh();
            records.all.push(epoll);
            epoll
        })
    };
    epoll.fd.store(fd, Ordering::Relaxed);
    epoll.kernel_count.store(0, Ordering::Relaxed);
    epoll.flat.store(false, Ordering::Relaxed);
    epoll.place.begin_anew();
    epoll.has_both.store(false, Ordering::Relaxed);
    epoll.was_forked.store(false, Ordering::Relaxed);
    epoll.spin.store(0, Ordering::Relaxed);
    epoll.numbers.store(1, Ordering::Relaxed);
    epoll.references.store(1, Ordering::Release);
    if !table::set_epoll(fd, epoll.instance()) {
        drop_fd(epoll, fd);
    }
}

/// Whether a number is an epoll instance, of a process that has placeholders: one says that it does not know those.
pub(crate) fn is_instance(number: i32) -> bool {
    let placeholder = PROCESS.placeholders.iter().map(HiddenCell::raw).find(|fd| *fd >= 0);
    let answer = placeholder.map(|fd| sd_sys::fd::epoll_ctl(number, libc::EPOLL_CTL_DEL, fd, 0, 0));
    answer == Some(Err(Errno::ENOENT))
}

/// An instance that nobody has told us of: it came by exec, or in a message. No other thread of the process sleeps in it.
pub(crate) fn found(fd: i32) {
    created(fd);
    if let Entry::Epoll(epoll) = table::get(fd) {
        let epoll = epoll.epoll();
        epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        epoll.has_both.store(true, Ordering::Relaxed);
        inside::others_look(epoll);
    }
}

/// The number `fd` is a duplicate of `old`, which led to the instance. It is counted before anybody finds it.
pub(crate) fn add_fd(epoll: &'static Epoll, old: i32, fd: i32) {
    if !retain(epoll) {
        return;
    }
    epoll.numbers.fetch_add(1, Ordering::AcqRel);
    // Another thread may have closed the old one, and the record may be another instance's by now.
    let is_still = matches!(table::get(old), Entry::Epoll(it) if core::ptr::eq(it.epoll(), epoll));
    if !is_still || !table::set_epoll(fd, epoll.instance()) {
        drop_fd(epoll, fd);
    }
}

/// One more reference, unless it has none: then it is free, or about to be.
fn retain(epoll: &Epoll) -> bool {
    let one_more = |references: u32| (references != 0).then(|| references + 1);
    epoll.references.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
}

/// `fd` does not lead to the instance any more.
pub(crate) fn drop_fd(epoll: &'static Epoll, fd: i32) {
    if epoll.numbers.fetch_sub(1, Ordering::AcqRel) != 1 && epoll.fd() == fd {
        table::for_each(0, u32::MAX, |other, entry| {
            if matches!(entry, Entry::Epoll(e) if core::ptr::eq(e.epoll(), epoll)) {
                epoll.fd.store(other, Ordering::Relaxed);
            }
        });
    }
    release(epoll);
}

fn release(epoll: &'static Epoll) {
    if epoll.references.fetch_sub(1, Ordering::AcqRel) == 1 {
        end(epoll);
    }
}

/// The last number is closed, and no thread is inside.
#[inline(never)]
fn end(epoll: &'static Epoll) {
    watch::forget_instance(epoll);
    listed::forget(epoll);
    told::has_ended();
    {
        let mut interest = epoll.interest.lock();
        for item in interest.items.iter() {
            control::forget(epoll, &mut interest, item);
        }
        interest.items.shrink();
        ledger::leave(epoll);
        interest.wakers = View::default();
        interest.registration = 0;
        sleep_fd::close(epoll);
        let mut ready_list = epoll.ready_list.lock();
        ready_list.queue.clear();
        ready_list.kernel_queued = false;
        epoll.load.store(0, Ordering::Relaxed);
    }
    RECORDS.lock().free.push(epoll);
}

/// Before a fork and all fork handlers, when memory can be allocated.
pub(crate) fn before_fork() {
    let all: Vec<&'static Epoll> = RECORDS.lock().all.clone();
    let has_sockets = !all.is_empty() && table::has_sockets();
    // Records that are free are no instances.
    for epoll in all.into_iter().filter(|epoll| retain(epoll)) {
        inside::others_look(epoll);
        if has_sockets {
            ledger::prepare(epoll);
        }
        release(epoll);
    }
}

/// What relatives have changed is done in all lists of this process.
pub(super) fn catch_up_all() {
    if PROCESS.ledgers.load(Ordering::Acquire) != 0 {
        let all: Vec<&'static Epoll> = RECORDS.lock().all.clone();
        all.into_iter().for_each(ledger::catch_up);
    }
}

/// Before a fork: no thread is in the middle of a change.
pub(crate) fn keep_locks() {
    RECORDS.lock_and_keep();
    // SAFETY: just locked.
    let records = unsafe { RECORDS.kept() };
    records.all.iter().for_each(|epoll| epoll.was_forked.store(true, Ordering::Relaxed));
    records.all.iter().for_each(|epoll| epoll.interest.lock_and_keep());
    watch::stripes().for_each(Lock::lock_and_keep);
    // With this one held nobody takes two ready lists.
    NESTING.lock_and_keep();
    records.all.iter().for_each(|epoll| epoll.ready_list.lock_and_keep());
}

/// Ends `keep_locks`.
///
/// # Safety
/// The calling thread (or the one it is a copy of) called `keep_locks`.
pub(crate) unsafe fn unlock() {
    // SAFETY: passed on to the caller.
    unsafe {
        let records = RECORDS.kept();
        records.all.iter().for_each(|epoll| epoll.ready_list.unlock());
        NESTING.unlock();
        watch::stripes().for_each(|stripe| stripe.unlock());
        records.all.iter().for_each(|epoll| epoll.interest.unlock());
        RECORDS.unlock();
    }
}

/// A thread was cancelled: it may sleep in the kernel's part of an instance that has nothing of ours (SYNC POINT: cancel, with `check` in
/// crates/sd-socket/src/wait/cancel.rs). Those who do go on in the library's way, where they find out who was meant.
pub(crate) fn cancelled(is_other: bool) {
    let all: Vec<&'static Epoll> = RECORDS.lock().all.clone();
    all.iter().for_each(|epoll| sleep_fd::kick(epoll, &epoll.interest.lock()));
    if is_other {
        await_back(&all);
    }
}

/// Until no instance has what tells its sleepers to come back: the program would see it as ready. They need a turn of the scheduler
/// each; one that does not get it, as it is stopped, is not waited for.
fn await_back(all: &[&Epoll]) {
    const PAUSE_NS: u64 = 20_000;
    const LONGEST_NS: u64 = 20_000_000;
    let end = sd_sys::time::now_ns() + LONGEST_NS;
    while all.iter().any(|epoll| epoll.kicked.load(Ordering::SeqCst)) && sd_sys::time::now_ns() < end {
        let _ = sd_sys::time::sleep_ns(PAUSE_NS);
    }
}

/// In the child of a fork: nobody waits. Allocates nothing.
pub(crate) fn forked() {
    for epoll in &RECORDS.lock().all {
        epoll.sleepers.store(0, Ordering::Relaxed);
        epoll.waiters.store(0, Ordering::Relaxed);
        epoll.strangers.store(0, Ordering::Relaxed);
        // Those of the parent undo it.
        epoll.kicked.store(false, Ordering::Relaxed);
        epoll.references.store(epoll.numbers.load(Ordering::Relaxed), Ordering::Relaxed);
        // The parent's; ours will watch our own eventfd.
        sleep_fd::close(epoll);
        let mut interest = epoll.interest.lock();
        interest.wakers = View::default();
        interest.registration = 0;
        epoll.inherited.store(!epoll.ledger.load(Ordering::Relaxed).is_null(), Ordering::Relaxed);
    }
}

/// Then, when memory can be allocated again: its own descriptors are watched, and what has to be
/// scanned now is listed.
pub(crate) fn forked_late() {
    let all: Vec<&'static Epoll> = RECORDS.lock().all.clone();
    for &epoll in &all {
        let mut interest = epoll.interest.lock();
        if epoll.inherited.load(Ordering::Relaxed) || interest.items.iter().next().is_some() {
            sleep_fd::prepare(epoll, &mut interest, View::now());
        }
        scan(epoll, &interest, |source| matches!(source, Source::Socket(e) if ready::is_polled(e)));
    }
    // An instance around one that has something to scan is scanned too, and so on.
    for _ in 0..4 {
        for &epoll in &all {
            let interest = epoll.interest.lock();
            scan(
                epoll,
                &interest,
                |source| matches!(source, Source::Nested(inner) if !inner.ready_list.lock().scanned.is_empty()),
            );
        }
    }
}

/// The process has left its family, and no socket of ours is registered: what it shared with relatives goes.
pub(crate) fn separated() {
    let all: Vec<&'static Epoll> = RECORDS.lock().all.clone();
    for epoll in all.into_iter().filter(|epoll| epoll.numbers.load(Ordering::Relaxed) != 0) {
        let mut interest = epoll.interest.lock();
        ledger::leave(epoll);
        sleep_fd::close(epoll);
        interest.wakers = View::default();
        interest.registration = 0;
        // Relatives may have registered something in the kernel's instance.
        epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        epoll.has_both.store(true, Ordering::Relaxed);
        if interest.items.iter().next().is_some() {
            sleep_fd::prepare(epoll, &mut interest, View::default());
        }
    }
}

/// What [`separated`] does, while threads may be inside; `None`: the kernel has no memory for it.
pub(crate) fn separated_with_threads() -> Option<()> {
    let all: Vec<&'static Epoll> = RECORDS.lock().all.clone();
    for epoll in all.into_iter().filter(|epoll| epoll.numbers.load(Ordering::Relaxed) != 0) {
        let _interest = epoll.interest.lock();
        ledger::abandon(epoll)?;
        epoll.kernel_count.fetch_add(1, Ordering::Relaxed);
        epoll.has_both.store(true, Ordering::Relaxed);
    }
    Some(())
}

/// A registration that the kernel's instance has kept is one of ours as well.
pub(crate) fn put_back(registered: watch::Removed, endpoint: &'static Endpoint) {
    let watch::Removed { epoll, fd, events, data } = registered;
    let mut interest = epoll.interest.lock();
    if interest.items.reserve(epoll) && sleep_fd::prepare(epoll, &mut interest, View::now()) {
        let has_fired = events & !PRIVATE == 0;
        let wish = (if has_fired { events } else { events | ALWAYS }, data);
        epoll.has_both.store(true, Ordering::Relaxed);
        let item = control::insert(epoll, &mut interest, fd, Source::Socket(endpoint), wish, 0);
        if let Some(item) = item {
            roads::told(item, Source::Socket(endpoint).directions());
            ledger::put_back(epoll, item);
        }
    }
}

fn scan(epoll: &Epoll, interest: &Interest, needed: impl Fn(Source) -> bool) {
    for item in interest.items.iter().filter(|item| needed(item.source())) {
        let mut ready_list = epoll.ready_list.lock();
        if !ready_list.scanned.iter().any(|known| core::ptr::eq(known.item, item)) {
            ready_list.scanned.push(Scanned { item, arrived: 0 });
            epoll.load.store(ready_list.len(), Ordering::Release);
        }
        if !item.is_edge() {
            epoll.push(&mut ready_list, item, 0);
        } else if let Some(known) =
            ready_list.scanned.iter_mut().find(|known| core::ptr::eq(known.item, item))
        {
            collect::has_edge(item, &mut known.arrived);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn nobody_enters_what_another_thread_has_closed() {
        assert!(table::init() && !crate::process::single_threaded());
        let [first, second] = [0; 2].map(|_| sd_sys::fd::eventfd(0).unwrap());
        let epoll = fresh();
        epoll.references.store(1, Ordering::Relaxed);
        assert!(table::set_epoll(first.raw(), epoll.instance()));
        drop(User::enter(epoll, first.raw()).unwrap());
        assert_eq!(epoll.references.load(Ordering::Relaxed), 1);
        // Closed, and the record is on its way to the free ones.
        table::clear(first.raw());
        epoll.references.store(0, Ordering::Relaxed);
        assert!(User::enter(epoll, first.raw()).is_none());
        assert_eq!(epoll.references.load(Ordering::Relaxed), 0, "it would be freed a second time");
        // It has become another instance's.
        assert!(table::set_epoll(second.raw(), epoll.instance()));
        epoll.references.store(1, Ordering::Relaxed);
        assert!(User::enter(epoll, first.raw()).is_none() && User::enter(epoll, second.raw()).is_some());
        assert_eq!(epoll.references.load(Ordering::Relaxed), 1);
        table::clear(second.raw());
    }
}
