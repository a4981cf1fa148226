//! The descriptor table (§4.5.1): what a number leads to.
//!
//! One atomic word per number: zero = the kernel's, else a tag and an address. A number of ours
//! is always held in the kernel too (a placeholder), so the kernel's lowest-number rule, limits,
//! exec inheritance and /proc stay true.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use sd_ring::sync::copies;
use sd_shm::slab::Endpoint;

/// Numbers that can be ours; larger ones stay with the kernel.
pub const LEN: usize = 1 << 24;

/// Highest number of the program's that was ever set, and the range of the library's own: what lies between them, up to
/// millions of numbers, is never looked at.
static HIGH: AtomicI32 = AtomicI32::new(-1);
static HIDDEN_FIRST: AtomicI32 = AtomicI32::new(LEN as i32);
static HIDDEN_LAST: AtomicI32 = AtomicI32::new(-1);

/// Null, or [`LEN`] words.
pub static TABLE: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

const TAG: u64 = 7;
const SOCKET: u64 = 1;
const EPOLL: u64 = 2;
const KERNEL: u64 = 3;
const HIDDEN: u64 = 4;
const FIRST: u64 = 5;
const EARLY: u64 = 6;

/// A record of `epoll`, which knows what lies there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance(pub(crate) *const u8);

/// What a number leads to.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// The kernel's business alone.
    None,
    /// A socket of ours.
    Socket(&'static Endpoint),
    /// An epoll instance that may watch sockets of ours.
    Epoll(Instance),
    /// A kernel socket that `sd ss` lists with a reason.
    Kernel(&'static Endpoint),
    /// The kernel's socket of a process that has not registered with a monitor: calls on it are counted (`setup::first`).
    First(usize),
    /// A kernel's socket that has no endpoint yet: the word counts calls on it (`setup::unregistered`).
    Early,
    /// A descriptor of the library's own; the program must not see or close it.
    Hidden,
}

#[inline(always)]
fn word(fd: i32) -> Option<&'static AtomicU64> {
    let base = TABLE.load(Ordering::Acquire);
    if base.is_null() || fd as u32 as usize >= LEN {
        return None;
    }
    // SAFETY: the table has LEN entries and lives as long as the process.
    Some(unsafe { &*base.add(fd as u32 as usize) })
}

/// Whether a hooked call on `fd` needs a closer look.
#[inline(always)]
pub(crate) fn is_ours(fd: i32) -> bool {
    word(fd).is_some_and(|w| w.load(Ordering::Relaxed) != 0)
}

/// What `fd` leads to.
#[inline(always)]
pub(crate) fn get(fd: i32) -> Entry {
    let Some(w) = word(fd) else { return Entry::None };
    let value = w.load(Ordering::Acquire);
    let address = value & !TAG;
    match value & TAG {
        // SAFETY: entries are made by `set_*` from endpoints of mapped slabs, which stay mapped.
        SOCKET => Entry::Socket(unsafe { &*(address as *const Endpoint) }),
        EPOLL => Entry::Epoll(Instance(address as *const u8)),
        // SAFETY: as above.
        KERNEL => Entry::Kernel(unsafe { &*(address as *const Endpoint) }),
        HIDDEN => Entry::Hidden,
        FIRST => Entry::First((value >> 3) as usize),
        EARLY => Entry::Early,
        _ => Entry::None,
    }
}

/// The socket behind `fd`, the common question.
#[inline(always)]
pub(crate) fn socket(fd: i32) -> Option<&'static Endpoint> {
    let value = word(fd)?.load(Ordering::Acquire);
    if value & TAG != SOCKET {
        return None;
    }
    // SAFETY: see `get`.
    Some(unsafe { &*((value & !TAG) as *const Endpoint) })
}

/// Whether there is a table, so whether any number was ever ours.
pub(crate) fn is_active() -> bool {
    !TABLE.load(Ordering::Acquire).is_null()
}

/// Whether any number leads to a socket of ours.
pub(crate) fn has_sockets() -> bool {
    let mut found = false;
    if is_active() {
        for_each(0, LEN as u32, |_, entry| found |= matches!(entry, Entry::Socket(_)));
    }
    found
}

/// Makes the table; idempotent, whoever makes it at the same time.
pub(crate) fn init() -> bool {
    if !TABLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    match sd_sys::mem::reserve_private(LEN * 8) {
        Ok(base) => {
            let none = core::ptr::null_mut();
            let made = TABLE.compare_exchange(none, base.cast(), Ordering::AcqRel, Ordering::Acquire);
            if made.is_err() {
                // SAFETY: reserved just now, with this length, and known to nobody.
                unsafe { sd_sys::mem::unmap(base, LEN * 8) };
            }
            true
        }
        Err(_) => false,
    }
}

fn note_high(fd: i32) {
    if fd > HIGH.load(Ordering::Relaxed) {
        HIGH.fetch_max(fd, Ordering::Relaxed);
    }
}

fn set(fd: i32, value: u64) -> bool {
    match word(fd) {
        Some(w) => {
            note_high(fd);
            w.store(value, Ordering::Release);
            true
        }
        None => false,
    }
}

/// `fd` leads to a socket of ours. False when the number is too large.
pub(crate) fn set_socket(fd: i32, endpoint: &'static Endpoint) -> bool {
    set(fd, endpoint as *const Endpoint as u64 | SOCKET)
}

/// `fd` is a kernel socket with a reason.
pub(crate) fn set_kernel(fd: i32, endpoint: &'static Endpoint) -> bool {
    set(fd, endpoint as *const Endpoint as u64 | KERNEL)
}

/// Numbers that lead to an endpoint lead to it as a socket of ours from now on, or as one of the kernel's. `are_more` than these are counted now: another
/// thread has made a duplicate (SYNC POINT: copies, with `copy` in crates/sd-socket/src/fd/table.rs).
pub(crate) fn turn(
    numbers: &[i32],
    endpoint: &'static Endpoint,
    is_ours: bool,
    are_more: impl FnOnce() -> bool,
) {
    let address = endpoint as *const Endpoint as u64;
    let kinds = if is_ours { (KERNEL, SOCKET) } else { (SOCKET, KERNEL) };
    let all = || (0..=HIGH.load(Ordering::Relaxed)).filter_map(word);
    let known = numbers.iter().filter_map(|fd| word(*fd));
    copies::turn(known, (address | kinds.0, address | kinds.1), || are_more().then(all));
}

/// `new` leads to where `old` does, if that is this endpoint, which the caller has counted the new number for. False: it is not, or `new` is too large (SYNC POINT: copies,
/// with `turn` in crates/sd-socket/src/fd/table.rs).
pub(crate) fn copy(old: i32, new: i32, endpoint: &'static Endpoint) -> bool {
    let (Some(from), Some(to)) = (word(old), word(new)) else { return false };
    let address = endpoint as *const Endpoint as u64;
    let leads_there = |value: u64| value == address | SOCKET || value == address | KERNEL;
    let value = from.load(Ordering::Acquire);
    if !leads_there(value) {
        return false;
    }
    note_high(new);
    copies::copy(from, to, value, leads_there);
    true
}

/// `fd` is a socket of a process that has not registered, of which so much is known elsewhere.
pub(crate) fn set_first(fd: i32, record: usize) -> bool {
    set(fd, FIRST | (record as u64) << 3)
}

/// It leads to an endpoint from now on, or is the kernel's business alone. False when another thread has closed the number.
pub(crate) fn end_first(fd: i32, record: usize, leads_to: Entry) -> bool {
    exchange(fd, FIRST | (record as u64) << 3, endpoint_word(leads_to))
}

fn endpoint_word(leads_to: Entry) -> u64 {
    match leads_to {
        Entry::Socket(endpoint) => endpoint as *const Endpoint as u64 | SOCKET,
        Entry::Kernel(endpoint) => endpoint as *const Endpoint as u64 | KERNEL,
        _ => 0,
    }
}

/// `fd` is a kernel's socket without an endpoint. The lowest three bits of `count` are not kept.
pub(crate) fn set_early(fd: i32, count: u64) -> bool {
    set(fd, count & !TAG | EARLY)
}

/// What is counted of such a socket.
#[inline]
pub(crate) fn early(fd: i32) -> Option<u64> {
    let value = word(fd)?.load(Ordering::Acquire);
    (value & TAG == EARLY).then_some(value & !TAG)
}

/// Another count in the place of this one. False when somebody has changed it meanwhile.
#[inline]
pub(crate) fn change_early(fd: i32, now: u64, next: u64) -> bool {
    exchange(fd, now | EARLY, next & !TAG | EARLY)
}

/// It leads to an endpoint from now on, if this is its count still.
pub(crate) fn end_early(fd: i32, now: u64, leads_to: Entry) -> bool {
    exchange(fd, now | EARLY, endpoint_word(leads_to))
}

/// It is the kernel's business alone from now on, if this is its count still.
pub(crate) fn clear_early(fd: i32, now: u64) -> bool {
    exchange(fd, now | EARLY, 0)
}

fn exchange(fd: i32, old: u64, new: u64) -> bool {
    word(fd).is_some_and(|word| word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

/// `fd` leads to another endpoint of the kernel's socket. False when another thread has closed the number.
pub(crate) fn replace_kernel(fd: i32, old: &'static Endpoint, new: &'static Endpoint) -> bool {
    let value = |endpoint: &'static Endpoint| endpoint as *const Endpoint as u64 | KERNEL;
    word(fd).is_some_and(|word| {
        word.compare_exchange(value(old), value(new), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })
}

/// `fd` is an epoll instance.
pub(crate) fn set_epoll(fd: i32, instance: Instance) -> bool {
    set(fd, instance.0 as u64 | EPOLL)
}

/// `fd` is the library's own (or no longer).
pub(crate) fn set_hidden(fd: i32, hidden: bool) {
    if let Some(word) = word(fd) {
        HIDDEN_FIRST.fetch_min(fd, Ordering::Relaxed);
        HIDDEN_LAST.fetch_max(fd, Ordering::Relaxed);
        word.store(if hidden { HIDDEN } else { 0 }, Ordering::Release);
    }
}

/// Whether `fd` is the library's own, as far as it knows.
pub(super) fn is_hidden(fd: i32) -> bool {
    matches!(get(fd), Entry::Hidden)
}

/// The highest number that ever was.
pub(super) fn hidden_last() -> i32 {
    HIDDEN_LAST.load(Ordering::Relaxed)
}

/// `fd` is the kernel's again.
pub(crate) fn clear(fd: i32) {
    if let Some(word) = word(fd) {
        word.store(0, Ordering::Release);
    }
}

/// Calls `each` for every number in `first..=last` that has an entry, in order.
pub(crate) fn for_each(first: u32, last: u32, mut each: impl FnMut(i32, Entry)) {
    let first = first.min(LEN as u32) as i32;
    // Numbers above the limit in force may still be open (the limit was lowered), but not above LEN.
    let last = last.min(LEN as u32 - 1) as i32;
    let mut walk = |from: i32, to: i32| {
        for fd in from..=to {
            match get(fd) {
                Entry::None => {}
                entry => each(fd, entry),
            }
        }
    };
    let high = HIGH.load(Ordering::Relaxed);
    walk(first, last.min(high));
    let hidden = HIDDEN_FIRST.load(Ordering::Relaxed).max(high + 1);
    walk(first.max(hidden), last.min(HIDDEN_LAST.load(Ordering::Relaxed)));
}

/// Whether the next program finds the number open.
pub(crate) fn survives_exec(fd: i32) -> bool {
    sd_sys::fd::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags as i32 & libc::FD_CLOEXEC == 0)
}
