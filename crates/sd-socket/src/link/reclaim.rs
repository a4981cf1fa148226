//! Freeing the records of channels whose other side is gone.
//!
//! A record is taken out of the table first; it is freed when no thread is inside a part of the
//! library that may still hold a reference from before. Threads count themselves in and out
//! ([`User`]), which costs nothing while there is only one.
//!
//! Nothing waits for a later call (SYNC POINT: reclaim, with `drop` and `free_all` in crates/sd-socket/src/link/reclaim.rs). A
//! thread that takes records out of the table is a [`User`], or calls [`free`] afterwards. `free` sees that some are due,
//! which was said before, and then looks whether there is a user; the last [`User`] takes itself off, and then looks whether
//! some are due. So one of the two sees the other, and frees. A `User` in a process of one thread is not counted: that
//! thread's next close or sleep frees.

use crate::link::channel::Channel;
use crate::link::kept_rings;
use crate::monitor::client;
use crate::process::{PROCESS, single_threaded};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, Ordering};
use sd_proto::Request;
use sd_ring::sync::errand::Errand;
use sd_ring::sync::reclaim::Users;
use sd_sys::lock::Lock;

/// And how many records are out of the table, for a cheap look; not zero where the monitor is to be told of some.
static USERS: Users = Users::new();
/// Out of the table, not freed yet.
static GRAVEYARD: Lock<Vec<Grave>> = Lock::new(Vec::new());

struct Grave(*mut Channel);

// SAFETY: the pointer is the only one left to a record made by Box.
unsafe impl Send for Grave {}

/// A thread that may hold references to channels.
pub(crate) struct User(bool);

impl User {
    #[inline]
    pub(crate) fn enter() -> User {
        let counted = !single_threaded();
        if counted {
            USERS.enter();
        }
        User(counted)
    }
}

impl Drop for User {
    #[inline]
    fn drop(&mut self) {
        // SYNC POINT: reclaim, with `channels` in crates/sd-socket/src/link/reclaim.rs.
        if self.0 && USERS.leave() {
            free_all();
        }
    }
}

/// The thread that is taking the process out of its family, while others run (ADR 54); or zero.
static LEAVER: AtomicI32 = AtomicI32::new(0);

/// For a call that makes a socket, ends one, or has it become another kind of thing: a [`User`], but not while another thread takes
/// the process out of its family. That one waits until such calls are over, and then has all numbers and sockets for itself. Not
/// for calls that sleep.
#[inline]
pub(crate) fn change() -> User {
    if single_threaded() { User(false) } else { change_beside_others() }
}

#[cold]
fn change_beside_others() -> User {
    loop {
        let user = User::enter();
        // SYNC POINT: leaving, with `begin` in crates/sd-socket/src/link/reclaim.rs. Counted first, by a locked instruction; the
        // leaver looks at the count after its own store.
        let leaver = LEAVER.load(Ordering::SeqCst);
        if leaver == 0 || leaver == crate::process::tid() {
            return user;
        }
        drop(user);
        let _ = sd_sys::time::sleep_ns(PAUSE_NS);
    }
}

/// As [`change`], for who may be a [`User`] already, and would be waited for: `None` while another thread takes the process out of its family.
pub(crate) fn change_if_free() -> Option<User> {
    let user = User::enter();
    // SYNC POINT: leaving, with `begin` in crates/sd-socket/src/link/reclaim.rs.
    let leaver = LEAVER.load(Ordering::SeqCst);
    (leaver == 0 || leaver == crate::process::tid()).then_some(user)
}

/// How long a call pauses before it looks whether the process has left.
const PAUSE_NS: u64 = 50_000;

/// Holds up [`change`] in all other threads.
pub(crate) struct Leaver;

impl Leaver {
    pub(crate) fn begin() -> Leaver {
        // SYNC POINT: leaving, with `change_beside_others` in crates/sd-socket/src/link/reclaim.rs.
        LEAVER.store(crate::process::tid(), Ordering::SeqCst);
        sd_ring::fence_full();
        Leaver
    }
}

impl Drop for Leaver {
    fn drop(&mut self) {
        LEAVER.store(0, Ordering::SeqCst);
    }
}

impl User {
    /// There are other threads.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        self.0
    }
}

/// No other thread is a [`User`].
pub(crate) fn is_unused() -> bool {
    USERS.is_unused()
}

/// Around a fork: the list stays whole.
pub(crate) fn keep_lock() {
    GRAVEYARD.lock_and_keep();
}

/// After [`keep_lock`].
///
/// # Safety
/// This thread has kept the lock, or is a copy of the one that has.
pub(crate) unsafe fn unlock() {
    // SAFETY: promised by the caller.
    unsafe { GRAVEYARD.unlock() };
}

/// In the child of a fork: only this thread exists.
pub(crate) fn forked() {
    USERS.forked();
    LEAVER.store(0, Ordering::Relaxed);
    LEAVING.reset();
    kept_rings::forked();
}

/// Frees what was taken out of the table: for the only thread of a process, which is not a [`User`].
pub(crate) fn empty() {
    LEAVING.reset();
    USERS.none_due();
    for Grave(channel) in GRAVEYARD.lock().drain(..) {
        // SAFETY: as in `free_all`.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// Some channel that is over has no connection any more: the monitor must agree before it is freed. One thread asks it at a time
/// (SYNC POINT: errand, with `leave_soon` and `leave` in crates/sd-socket/src/link/reclaim.rs).
static LEAVING: Errand = Errand::new();

/// See [`LEAVING`].
pub(super) fn leave_soon() {
    // SYNC POINT: errand, with `leave` in crates/sd-socket/src/link/reclaim.rs.
    LEAVING.want();
}

/// See [`LEAVING`].
#[inline]
pub(crate) fn is_leaving() -> bool {
    LEAVING.is_wanted()
}

/// Asks the monitor about each channel that is over and has no connection any more. Where connections wait, it shows them before it
/// answers; they are taken in before any thread asks again, which happens at once, for then what waits still is refused.
#[cold]
pub(crate) fn leave(take_in: fn(&'static Channel)) {
    // SYNC POINT: errand, with `leave_soon` in crates/sd-socket/src/link/reclaim.rs.
    LEAVING.run(|| {
        let _user = User::enter();
        for channel in PROCESS.channels().filter(|channel| channel.is_idle_leftover()) {
            match client::question(&Request::Leave { channel: channel.id }, &[]) {
                Some((sd_proto::Reply::Ok, _)) => channel.doom(),
                Some(_) => {
                    take_in(channel);
                    if !channel.note_refused() {
                        leave_soon();
                    }
                }
                None => {}
            }
        }
    });
}

/// Takes finished channels out of the table. What cannot be freed yet is freed by a later `sweep`.
pub(crate) fn channels() {
    let mut graves = GRAVEYARD.lock();
    for index in 0..PROCESS.channel_count.load(Ordering::Acquire) {
        if PROCESS.channel(index).is_some_and(Channel::is_finished) {
            graves.extend(PROCESS.remove_channel(index).map(Grave));
        }
    }
    // SYNC POINT: reclaim, with `drop` in crates/sd-socket/src/link/reclaim.rs.
    USERS.due(graves.len() as u32);
}

/// Leaves channels that are over, and frees what nobody can be using; to be called by a thread that is not itself a
/// [`User`].
#[inline]
pub(crate) fn sweep() {
    free();
}

/// Tells the monitor of channels whose memory this process has no use for. Another thread talks with it, or this one in a
/// caller: with the next that are freed, or the next look whether there are some.
fn say_finished() {
    while let Some(id) = kept_rings::next_new() {
        match client::tell_if_free(&Request::Finished { channel: id }) {
            Some(true) => {}
            Some(false) => kept_rings::paid(id),
            None => {
                kept_rings::is_new_again(id);
                return USERS.due(1);
            }
        }
    }
}

/// The control connection was closed past libc: what the monitor has said of them meanwhile is lost.
pub(crate) fn say_finished_again() {
    kept_rings::are_new_again();
    USERS.due(1);
}

/// Something is to be freed, or said.
#[inline]
pub(crate) fn is_due() -> bool {
    USERS.is_due()
}

/// Frees what nobody can be using; to be called by a thread that is not itself a [`User`].
#[inline]
pub(crate) fn free() {
    if is_due() {
        free_all();
    }
}

#[cold]
fn free_all() {
    let mut graves = GRAVEYARD.lock();
    // SYNC POINT: reclaim, with `enter` in crates/sd-socket/src/link/reclaim.rs.
    if !USERS.is_unused() {
        return;
    }
    USERS.none_due();
    // A thread that had found it before it was taken out may have bound a slot since; it is due again when that is over (`Channel::unused`).
    // SAFETY: records are freed here only, under the lock.
    let is_free = |Grave(channel): &mut Grave| !unsafe { &**channel }.is_used();
    for Grave(channel) in graves.extract_if(.., is_free) {
        // SAFETY: made by Box::into_raw, out of the table, and no thread was inside since.
        let channel = unsafe { Box::from_raw(channel) };
        kept_rings::give_up(&channel);
    }
    drop(graves);
    say_finished();
}
