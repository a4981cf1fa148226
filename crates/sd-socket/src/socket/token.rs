//! Tokens of this process's threads: `sd_ring::token` with membarrier, futex and thread ids.
//!
//! While the process has one thread and never forked, nobody else can come, and nothing is asked. Else
//! a thread finds its record (in the family's oldest slab) by one word of thread-local storage.

use crate::process::{PROCESS, single_threaded, tid};
use crate::socket::endpoint::{self, EndpointExt};
use crate::socket::parked;
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sd_ring::road::RoadWord;
use sd_ring::token::{Before, Me, Thread, Token, Way, World};
use sd_ring::{RxCursor, TxCursor};
use sd_shm::channel::GEOMETRY;
use sd_shm::slab::{Endpoint, Slab, State, THREADS};
use sd_sys::futex::{self, Scope};
use sd_sys::section::Section;
use sd_sys::thread;

/// Thread ids of a process in another PID namespace than its parent mean nothing to its family: nobody
/// can ask whether they live.
const FOREIGN: u32 = 1 << 30;

static IS_FOREIGN: AtomicBool = AtomicBool::new(false);

/// Stands for the record of the only thread, which enters without a question.
static ONLY: Thread = Thread::nobody();

// A thread without a record has one that enters no token. It is made where the words of threads are (`sd_sys::thread`).
const _: () = assert!(align_of::<Thread>() <= align_of::<thread::Record>() && is_nobody_made_well());

const fn is_nobody_made_well() -> bool {
    // SAFETY: any bytes are words that may be uninitialised; the compiler compares the sizes.
    let words: [MaybeUninit<u64>; 8] = unsafe { core::mem::transmute(Thread::nobody()) };
    // Behind the fifth word is padding.
    let ([a, b, c, d, e, ..], [f, g, h, i, j, ..]) = (words, thread::NOBODY_WORDS);
    // SAFETY: fields of a `Thread`, which the compiler finds out, since it runs this.
    unsafe {
        a.assume_init() == f
            && b.assume_init() == g
            && c.assume_init() == h
            && d.assume_init() == i
            && e.assume_init() == j
    }
}

/// The thread's record, or that of nobody.
#[inline(always)]
fn mine() -> &'static Thread {
    // SAFETY: the word is `thread::NOBODY`, which has the words of a `Thread`, or a record in a slab that stays mapped.
    unsafe { &*thread::record().cast() }
}

/// Changes which record is the thread's.
fn set_mine(record: Option<&'static Thread>) {
    thread::set_record(record.map_or(&raw const thread::NOBODY, |record| core::ptr::from_ref(record).cast()));
}

fn is_nobody(record: &Thread) -> bool {
    core::ptr::eq(core::ptr::from_ref(record).cast(), &raw const thread::NOBODY)
}

/// In the child of a fork, which has a record of its own.
pub(crate) fn forked() {
    set_mine(None);
    if sd_sys::fd::getppid() == 0 {
        IS_FOREIGN.store(true, Ordering::Relaxed);
    }
}

/// The only thread of a process that has left its family: its record there is another's.
pub(crate) fn separated() {
    let mine = mine();
    if !is_nobody(mine) && !core::ptr::eq(mine, &ONLY) {
        mine.id.store(0, Ordering::Release);
    }
    set_mine(None);
}

fn table() -> Option<Slab> {
    PROCESS.slabs.first()?.slab()
}

/// This thread's id in tokens.
pub(crate) fn id() -> u32 {
    let foreign = if IS_FOREIGN.load(Ordering::Relaxed) { FOREIGN } else { 0 };
    tid() as u32 | foreign
}

/// Whether no other thread can come to any socket of this process. glibc clears its flag before a
/// second thread starts.
#[inline(always)]
pub(crate) fn is_alone() -> bool {
    single_threaded() && !PROCESS.forked.load(Ordering::Relaxed)
}

/// Whether a thread is dead, or stopped by a signal.
pub(crate) fn cannot_go_on(id: u32) -> bool {
    let askable = id & FOREIGN == 0 && !IS_FOREIGN.load(Ordering::Relaxed);
    askable && (sd_sys::fd::task_is_dead(id as i32) || sd_sys::fd::task_is_stopped(id as i32))
}

/// Whether a thread is dead, as far as that can be asked.
pub(crate) fn is_dead(id: u32) -> bool {
    Family.is_dead(id)
}

/// Finds a record for this thread: a fresh one, or that of a thread that is dead.
#[cold]
fn register(id: u32) -> Option<&'static Thread> {
    let table = table()?;
    let high = &table.header().threads;
    let fresh = high.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
        ((n as usize) < THREADS).then_some(n.wrapping_add(1))
    });
    let numbers = match fresh {
        Ok(before) => before + 1..=before + 1,
        Err(_) => 1..=THREADS as u32,
    };
    for number in numbers {
        let thread = table.thread(number)?;
        let old = thread.id.load(Ordering::Acquire);
        // Who died inside a token leaves its record to those who will see to that.
        let is_free = old == 0 || (thread.is_outside() && Family.is_dead(old));
        if is_free && thread.id.compare_exchange(old, id, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            thread.number.store(number, Ordering::Release);
            set_mine(Some(thread));
            return Some(thread);
        }
    }
    None
}

fn me() -> Me<'static> {
    let id = id();
    let mine = mine();
    Me { id, thread: if is_nobody(mine) { register(id) } else { Some(mine) } }
}

/// The processes that share sockets with this one.
struct Family;

impl World for Family {
    fn fence_heavy(&self) {
        if sd_sys::membarrier::fence_all().is_err() {
            // A filter of the program's forbids it now. No processor keeps a store back for so long.
            let _ = sd_sys::time::sleep_ns(1_000_000);
        }
    }
    fn may_hold(&self) -> bool {
        crate::process::fence::reaches()
    }
    fn is_dead(&self, id: u32) -> bool {
        let askable = id & FOREIGN == 0 && !IS_FOREIGN.load(Ordering::Relaxed);
        askable && sd_sys::fd::task_is_dead(id as i32)
    }
    fn threads(&self) -> u32 {
        table().map_or(0, |table| table.header().threads.load(Ordering::Acquire))
    }
    fn thread(&self, number: u32) -> Option<&Thread> {
        table()?.thread(number)
    }
    fn relax(&self, round: u32) {
        match round {
            0..64 => core::hint::spin_loop(),
            64..192 => sd_sys::time::yield_now(),
            _ => drop(sd_sys::time::sleep_ns(100_000)),
        }
    }
    fn sleep(&self, word: &AtomicU32, value: u32, timeout_ns: u64) {
        let _ = futex::wait(word, value, Some(timeout_ns), Scope::Shared);
    }
    fn wake(&self, word: &AtomicU32) {
        futex::wake(word, 1, Scope::Shared);
    }
}

/// One way through a connection: which half a guard is of, and so which cursor it gives.
pub(crate) trait Direction {
    const WAY: Way;
    type Cursor;
    fn place(endpoint: &Endpoint) -> &UnsafeCell<Self::Cursor>;
    /// Makes a parked half what it was.
    fn unpark(endpoint: &Endpoint, cursor: &mut Self::Cursor);
    /// Makes good what a thread left that died with the token.
    fn repair(endpoint: &Endpoint, cursor: &mut Self::Cursor);
}

/// To the peer.
pub(crate) enum Tx {}

/// From the peer.
pub(crate) enum Rx {}

impl Direction for Tx {
    const WAY: Way = Way::Send;
    type Cursor = TxCursor;
    #[inline(always)]
    fn place(endpoint: &Endpoint) -> &UnsafeCell<TxCursor> {
        &endpoint.tx().cursor
    }
    fn unpark(endpoint: &Endpoint, cursor: &mut TxCursor) {
        parked::unpark_tx(endpoint, cursor);
    }
    #[cold]
    fn repair(endpoint: &Endpoint, cursor: &mut TxCursor) {
        // One that is parked still stands nowhere in the ring.
        if !cursor.is_parked() && cursor.recover(&GEOMETRY, &endpoint.tx_mem()).is_err() {
            endpoint::corrupt(endpoint);
        }
        // It may have died on the way back to the kernel's connection.
        if endpoint.state_now() == State::Connected && endpoint.own_words().road().has(RoadWord::LEAVING) {
            parked::leave_tx(endpoint, cursor, true);
        }
    }
}

impl Direction for Rx {
    const WAY: Way = Way::Receive;
    type Cursor = RxCursor;
    #[inline(always)]
    fn place(endpoint: &Endpoint) -> &UnsafeCell<RxCursor> {
        &endpoint.rx().cursor
    }
    fn unpark(endpoint: &Endpoint, cursor: &mut RxCursor) {
        parked::unpark_rx(endpoint, cursor);
    }
    #[cold]
    fn repair(endpoint: &Endpoint, cursor: &mut RxCursor) {
        if !parked::is_parked(endpoint, Way::Receive) {
            cursor.recover();
        }
    }
}

/// Who takes several halves of one way takes them in this order; both ends of a connection may be this process's.
pub(crate) fn order(endpoint: &Endpoint) -> (u64, u16, *const Endpoint) {
    (endpoint.channel_id.load(Ordering::Relaxed), endpoint.slot.load(Ordering::Relaxed), endpoint)
}

/// The cursor of a half.
///
/// # Safety
/// The caller has the half's token, and no other reference to the cursor is in use.
#[inline(always)]
#[allow(clippy::mut_from_ref)]
pub(crate) unsafe fn cursor<D: Direction>(endpoint: &Endpoint) -> &mut D::Cursor {
    // SAFETY: promised by the caller; the cell is not shared with any peer.
    unsafe { &mut *D::place(endpoint).get() }
}

/// Exclusive use of one half of an endpoint, until dropped. A thread takes a half that it has not taken already.
pub(crate) struct Half<'a, D: Direction> {
    endpoint: &'a Endpoint,
    /// The token's holder, or `ONLY`; None: the thread has the lock.
    holder: Option<&'static Thread>,
    direction: PhantomData<D>,
    /// Ends after the use of the token.
    _section: Section,
}

impl<'a, D: Direction> Half<'a, D> {
    /// Waits for the token if need be. What a thread left that died with it is made good. A parked half is made what it was.
    #[inline(always)]
    pub(crate) fn take(endpoint: &'a Endpoint) -> Half<'a, D> {
        let section = Section::enter();
        let holder = enter(endpoint, D::WAY);
        let died = holder.is_none() && lock(endpoint, D::WAY) == Before::Died;
        let mut half = Half { endpoint, holder, direction: PhantomData, _section: section };
        if parked::is_parked(endpoint, D::WAY) {
            D::unpark(endpoint, half.cursor());
        }
        if died {
            D::repair(endpoint, half.cursor());
        }
        half
    }

    /// Takes the half for a caller that leaves a parked half parked.
    pub(crate) fn take_as_is(endpoint: &'a Endpoint) -> Half<'a, D> {
        let section = Section::enter();
        let holder = enter(endpoint, D::WAY);
        if holder.is_none() {
            hold_one::<D>(endpoint);
        }
        Half { endpoint, holder, direction: PhantomData, _section: section }
    }

    #[inline(always)]
    pub(crate) fn cursor(&mut self) -> &mut D::Cursor {
        // SAFETY: this is the token, and lends itself with the cursor.
        unsafe { cursor::<D>(self.endpoint) }
    }
}

/// A half taken by a thread that needs neither to wait nor to lock.
pub(crate) struct Quick<'a, D: Direction> {
    endpoint: &'a Endpoint,
    /// See [`Half`].
    holder: &'static Thread,
    direction: PhantomData<D>,
    /// Ends after the use of the token.
    _section: Section,
}

impl<'a, D: Direction> Quick<'a, D> {
    /// `None` when the thread is not the token's holder.
    #[inline(always)]
    pub(crate) fn take(endpoint: &'a Endpoint) -> Option<Quick<'a, D>> {
        let section = Section::enter();
        let holder = enter(endpoint, D::WAY)?;
        Some(Quick { endpoint, holder, direction: PhantomData, _section: section })
    }

    #[inline(always)]
    pub(crate) fn cursor(&mut self) -> &mut D::Cursor {
        // SAFETY: as for [`Half`].
        unsafe { cursor::<D>(self.endpoint) }
    }
}

impl<D: Direction> Drop for Quick<'_, D> {
    #[inline(always)]
    fn drop(&mut self) {
        self.holder.leave(D::WAY);
    }
}

/// The way in without the lock, if this thread has it: the record to leave with.
#[inline(always)]
fn enter(endpoint: &Endpoint, way: Way) -> Option<&'static Thread> {
    if is_alone() {
        return Some(&ONLY);
    }
    let mine = mine();
    of(endpoint, way).enter(way, mine).then_some(mine)
}

#[inline(always)]
fn of(endpoint: &Endpoint, way: Way) -> &Token {
    match way {
        Way::Send => &endpoint.tokens().tx,
        Way::Receive => &endpoint.tokens().rx,
    }
}

#[inline(never)]
fn lock(endpoint: &Endpoint, way: Way) -> Before {
    crate::socket::cold::note(endpoint);
    of(endpoint, way).lock(way, me(), &Family)
}

/// Waits until nobody uses a half, and keeps it so, beyond this call. The caller is in a section.
pub(crate) fn hold(endpoint: &Endpoint, way: Way) {
    match way {
        Way::Send => hold_one::<Tx>(endpoint),
        Way::Receive => hold_one::<Rx>(endpoint),
    }
}

fn hold_one<D: Direction>(endpoint: &Endpoint) {
    if lock(endpoint, D::WAY) == Before::Died && !parked::is_parked(endpoint, D::WAY) {
        // SAFETY: the token was taken just now.
        D::repair(endpoint, unsafe { cursor::<D>(endpoint) });
    }
}

/// Ends a [`hold`].
pub(crate) fn let_go(endpoint: &Endpoint, way: Way) {
    unlock(of(endpoint, way));
}

/// Whether an id is that of a thread of this process.
pub(crate) fn is_of_this_process(id: u32) -> bool {
    let is_foreign = id & FOREIGN != 0;
    let (process, thread) = (sd_sys::fd::getpid(), (id & !FOREIGN) as i32);
    is_foreign == IS_FOREIGN.load(Ordering::Relaxed)
        && id != 0
        // SAFETY: no pointers, and no signal.
        && sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_tgkill, process, thread, 0) }).is_ok()
}

/// The connection is passed to another family.
pub(crate) fn keep_unheld(endpoint: &Endpoint) {
    crate::socket::cold::note(endpoint);
    for way in [Way::Receive, Way::Send] {
        let _ = of(endpoint, way).keep_unheld(way, me(), &Family);
    }
}

#[inline(never)]
fn unlock(token: &Token) {
    token.unlock(me(), &Family);
}

impl<D: Direction> Drop for Half<'_, D> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.holder {
            Some(holder) => holder.leave(D::WAY),
            None => unlock(of(self.endpoint, D::WAY)),
        }
    }
}
