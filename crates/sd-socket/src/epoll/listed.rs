//! What the kernel's instances list, remembered for a moment.
//!
//! The kernel tells of one registration only with all others of its instance ([`sd_sys::fdinfo`]). Where many connections go to the ring
//! one after the other, each would have the whole list written anew: half a second of a processor for a thousand. So a list serves for all
//! that follow within [`FRESH_NS`], but not for a number about which this process has said something to the kernel since.
//!
//! That is seen by [`changed`], before and after each such call. What is said between a list's beginning and its reading is in it or not,
//! and its number's mark is as young as the list either way. Behind the call the mark is as young as any list that was read before it, as
//! reading and changing take the instance's lock one after the other.

use super::Epoll;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_sys::fdinfo::{self, Listed, Registration};
use sd_sys::lock::Lock;
use sd_sys::{Errno, fd, time};

/// Relatives, who share an instance after a fork, say what they say without a mark here.
const FRESH_NS: u64 = 5_000_000;
/// Of a shorter list nothing is remembered: it is read as fast.
const SHORT: usize = 32;
/// Lists that are remembered, of as many instances.
const LISTS_MAX: usize = 8;
/// Numbers that have marks. Others are looked for in a new list each time.
const NUMBERS: usize = 1 << 16;

/// How many lists were begun.
static BEGUN: AtomicU32 = AtomicU32::new(0);
/// For each number, what [`BEGUN`] was when something was said about it.
static MARKS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];
static LISTS: Lock<Vec<List>> = Lock::new(Vec::new());
/// How many instances have ended. Changed under the lock of [`LISTS`].
static ENDED: AtomicU32 = AtomicU32::new(0);

struct List {
    epoll: &'static Epoll,
    begun: u32,
    at_ns: u64,
    /// By number.
    all: Vec<Listed>,
}

/// The kernel is told something about a number, or was.
#[inline]
pub(crate) fn changed(number: i32) {
    if let Some(mark) = usize::try_from(number).ok().and_then(|at| MARKS.get(at)) {
        mark.store(BEGUN.load(Ordering::Acquire), Ordering::Release);
    }
}

/// The registration of `fd` in an instance to which `number` leads.
pub(super) fn registration(
    epoll: &'static Epoll,
    number: i32,
    fd: i32,
) -> sd_sys::Result<Option<Registration>> {
    let (_, inode) = fd::identity(fd)?;
    let mark = usize::try_from(fd).ok().and_then(|at| MARKS.get(at)).ok_or(Errno::EBADF);
    let Ok(mark) = mark else { return fdinfo::registration(number, fd) };
    let now = time::now_ns();
    let ended = {
        let mut lists = LISTS.lock();
        lists.retain(|list| now.saturating_sub(list.at_ns) < FRESH_NS);
        let is_it = |list: &&List| {
            let mark = mark.load(Ordering::Acquire);
            core::ptr::eq(list.epoll, epoll) && (mark.wrapping_sub(list.begun) as i32) < 0
        };
        if let Some(list) = lists.iter().find(is_it) {
            return Ok(find(&list.all, fd, inode));
        }
        ENDED.load(Ordering::Relaxed)
    };
    // Without the lock: whoever holds the kernel's lock of this instance for long holds up nobody at others.
    let begun = BEGUN.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    let mut all = fdinfo::all(number)?;
    all.sort_unstable_by_key(|listed| listed.fd);
    let found = find(&all, fd, inode);
    let mut lists = LISTS.lock();
    lists.retain(|list| !core::ptr::eq(list.epoll, epoll));
    // If one has ended meanwhile it may be this one, whose place another one has.
    let is_there = ENDED.load(Ordering::Relaxed) == ended;
    if all.len() > SHORT && lists.len() < LISTS_MAX && is_there {
        lists.push(List { epoll, begun, at_ns: now, all });
    }
    Ok(found)
}

/// A number can be listed twice, for a file that it led to before and which is open elsewhere.
fn find(all: &[Listed], fd: i32, inode: u64) -> Option<Registration> {
    let first = all.partition_point(|listed| listed.fd < fd);
    let of_number = all.get(first..)?.iter().take_while(|listed| listed.fd == fd);
    of_number.into_iter().find(|listed| listed.inode == inode).map(|listed| listed.registration)
}

/// In the child of a fork, which has one thread: the parent says things without a mark here.
pub(crate) fn forked() {
    // SAFETY: nobody else is there.
    unsafe { LISTS.force_unlock() };
    LISTS.lock().clear();
}

/// The instance is gone: its place may be used for another.
pub(super) fn forget(epoll: &'static Epoll) {
    let mut lists = LISTS.lock();
    ENDED.fetch_add(1, Ordering::Relaxed);
    lists.retain(|list| !core::ptr::eq(list.epoll, epoll));
}
