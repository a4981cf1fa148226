//! Tokens of this process's threads: `sd_ring::token` with membarrier, futex and thread ids.
//!
//! While the process has one thread and never forked, nobody else can come, and nothing is asked. Else
//! a thread finds its record (in the family's oldest slab) by one word of thread-local storage.

use crate::process::{PROCESS, single_threaded, tid};
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sd_ring::token::{Before, Me, Thread, Token, Way, World};
use sd_shm::slab::{Slab, THREADS};
use sd_sys::futex::{self, Scope};

/// Thread ids of a process in another PID namespace than its parent mean nothing to its family: nobody
/// can ask whether they live.
const FOREIGN: u32 = 1 << 30;

static IS_FOREIGN: AtomicBool = AtomicBool::new(false);
/// membarrier reaches this process.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

// The address of the thread's record. Initial-exec, so that reading it is no call: the library is always
// loaded at program start.
global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".hidden sd_token_thread",
    ".globl sd_token_thread",
    ".type sd_token_thread,@object",
    ".balign 8",
    "sd_token_thread: .zero 8",
    ".size sd_token_thread, 8",
    ".popsection",
);

/// Address of the thread-local word.
#[inline(always)]
fn cell() -> *mut *const Thread {
    let at: *mut *const Thread;
    // SAFETY: reads the thread pointer and the word's offset from it, and changes nothing else.
    unsafe {
        asm!("mov {at}, qword ptr fs:[0]", "add {at}, qword ptr [rip + sd_token_thread@GOTTPOFF]",
            at = out(reg) at, options(pure, nomem, nostack));
    }
    at
}

/// The thread's record, once it has one.
#[inline(always)]
fn mine() -> Option<&'static Thread> {
    // SAFETY: the word is this thread's own; it is null or a record in a slab that stays mapped.
    unsafe { cell().read_volatile().as_ref() }
}

/// Once, while there is one thread.
pub(crate) fn start() {
    IS_REGISTERED.store(sd_sys::membarrier::register().is_ok(), Ordering::Relaxed);
}

/// In the child of a fork, which has a record of its own.
pub(crate) fn forked() {
    // SAFETY: the word is this thread's own.
    unsafe { cell().write_volatile(core::ptr::null()) };
    if sd_sys::fd::getppid() == 0 {
        IS_FOREIGN.store(true, Ordering::Relaxed);
    }
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
            // SAFETY: the word is this thread's own.
            unsafe { cell().write_volatile(thread) };
            return Some(thread);
        }
    }
    None
}

fn me() -> Me<'static> {
    let id = id();
    Me { id, thread: mine().or_else(|| register(id)) }
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
        IS_REGISTERED.load(Ordering::Relaxed)
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

/// Exclusive use of one half of an endpoint, until dropped.
pub(crate) struct Half<'a> {
    token: &'a Token,
    way: Way,
    how: How,
}

enum How {
    /// There is only one thread.
    Alone,
    /// As the token's holder.
    Holder(&'static Thread),
    Lock,
}

impl<'a> Half<'a> {
    /// Waits for the token if need be. `repair` makes good what a thread left that died with it.
    #[inline(always)]
    pub(crate) fn take(token: &'a Token, way: Way, repair: impl FnOnce()) -> Half<'a> {
        if is_alone() {
            return Half { token, way, how: How::Alone };
        }
        if let Some(mine) = mine()
            && token.enter(way, mine)
        {
            return Half { token, way, how: How::Holder(mine) };
        }
        if lock(token, way) == Before::Died {
            repair();
        }
        Half { token, way, how: How::Lock }
    }
}

/// The same for whoever needs neither to wait nor to lock.
pub(crate) struct Quick<'a> {
    token: &'a Token,
    way: Way,
    /// None: there is only one thread.
    holder: Option<&'static Thread>,
}

impl<'a> Quick<'a> {
    /// `None` when the thread is not the token's holder.
    #[inline(always)]
    pub(crate) fn take(token: &'a Token, way: Way) -> Option<Quick<'a>> {
        if is_alone() {
            return Some(Quick { token, way, holder: None });
        }
        let mine = mine()?;
        token.enter(way, mine).then_some(Quick { token, way, holder: Some(mine) })
    }
}

impl Drop for Quick<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(mine) = self.holder {
            self.token.leave(self.way, mine);
        }
    }
}

#[inline(never)]
fn lock(token: &Token, way: Way) -> Before {
    token.lock(way, me(), &Family)
}

#[inline(never)]
fn unlock(token: &Token) {
    token.unlock(me(), &Family);
}

impl Drop for Half<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match self.how {
            How::Alone => {}
            How::Holder(mine) => self.token.leave(self.way, mine),
            How::Lock => unlock(self.token),
        }
    }
}
