//! The first connection of a process, which may live for milliseconds (ADR 79).
//!
//! Who has not registered with a monitor pays for that with his first socket: a slab, two questions that he sleeps for, a channel, and
//! the end of all that. Where the monitor moves connections that last to shared memory (ADR 82), the first is the kernel's. The process
//! registers, and offers it, once it has shown that it lives:
//!
//! ```text
//!  socket ── the monitor promotes? (the mode of its socket) ──> a kernel socket, Entry::First: its messages are counted
//!     │ 16 messages in a short time ──> taken up: Hello; Entry::Kernel, and offered at once
//!     │ a second socket beside it, listen, 16 messages on one after the other ──> the next socket registers, as ever
//!     └ close ──> nobody was told of anything
//! ```
//! It is taken up before a fork and a duplicate as well, which others could use without counting. What goes to a program that is
//! started, or to another process in a message, stays the kernel's, as do sockets that are used in ways that are not looked after.
//!
//! Threads in calls on it are counted in [`WORD`]; who takes it up closes the word, and hands the count over to the endpoint's.
//!
//! Tested by `cargo xtask sharing --only short-lived`.

use super::watched::{BUSY_MS, MESSAGES};
use crate::Outcome;
use crate::fd::table::{self, Entry};
use crate::monitor::client;
use crate::process::PROCESS;
use crate::socket::kernel_socket::dropped_behind_our_back;
use crate::socket::life;
use crate::socket::road::{CLOSED, INSIDE, NEVER, word};
use crate::socket::road::{now_ms, promotes};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use libc::c_int;
use sd_shm::slab::{Endpoint, Promotes, Reason};
use sd_sys::section::Section;

/// The latest number that led to such a socket; the table says whether it does.
static NUMBER: AtomicI32 = AtomicI32::new(-1);
/// Of the connection there: `INSIDE`, `CLOSED`, `NEVER`.
static WORD: AtomicU32 = AtomicU32::new(0);
/// Messages on all such connections of the process, one after the other.
static COUNT: AtomicU32 = AtomicU32::new(0);
static LOOKED_AT_MS: AtomicU32 = AtomicU32::new(0);
/// The process makes no such socket any more.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Who looks while another thread takes it up looks again after so long.
const PAUSE_NS: u64 = 50_000;

fn is_first(fd: c_int) -> bool {
    matches!(table::get(fd), Entry::First)
}

/// Whether the next TCP socket may be such a one.
pub(super) fn may_begin() -> bool {
    PROCESS.slab_count.load(Ordering::Acquire) == 0
        && !IS_OVER.load(Ordering::Relaxed)
        && !is_first(NUMBER.load(Ordering::Relaxed))
        && COUNT.load(Ordering::Relaxed) < MESSAGES
        && WORD.load(Ordering::Relaxed) & (INSIDE | CLOSED) == 0
        && !sd_sys::confine::is_on()
        && !client::is_closed_for_good()
        && crate::process::env::monitor_promotes()
        && table::init()
}

/// socket(2). Makes no calls but those that the program or its loader makes, so that no filter needs to be asked about.
pub(super) fn socket(domain: c_int, ty: c_int, protocol: c_int) -> Outcome<c_int> {
    let made = sd_sys::fd::socket(domain, ty, protocol);
    match made.and_then(|fd| sd_sys::numbers::give(fd.into_raw())) {
        Ok(fd) => {
            dropped_behind_our_back(fd);
            if table::set_first(fd) {
                WORD.store(0, Ordering::Relaxed);
                LOOKED_AT_MS.store(now_ms(), Ordering::Relaxed);
                NUMBER.store(fd, Ordering::Relaxed);
            }
            Outcome::Done(fd)
        }
        Err(errno) => Outcome::Errno(errno),
    }
}

/// Before a call of the kernel's. True: it is such a connection, and the call is counted.
pub(super) fn enter(fd: c_int, is_odd: bool) -> bool {
    while is_first(fd) {
        let now = WORD.load(Ordering::Acquire);
        let entered = (now + 1) | if is_odd { NEVER } else { 0 };
        if now & CLOSED != 0 {
            let _ = sd_sys::time::sleep_ns(PAUSE_NS);
        } else if WORD.compare_exchange(now, entered, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return true;
        }
    }
    false
}

/// What a call was made on.
pub(super) enum Left {
    /// Something else.
    Other,
    /// Such a connection.
    First,
    /// One that this call has made one of the process's kernel connections, to be offered.
    TakenUp(&'static Endpoint),
}

/// After the call.
pub(super) fn left(fd: c_int, is_message: bool) -> Left {
    while is_first(fd) {
        let now = WORD.load(Ordering::Acquire);
        if now & CLOSED != 0 {
            // Who takes it up has counted this thread, which leaves the endpoint then.
            let _ = sd_sys::time::sleep_ns(PAUSE_NS);
            continue;
        }
        let less = now - u32::from(now & INSIDE != 0);
        if WORD.compare_exchange(now, less, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        let taken = if is_message && is_due(less) { take_up(fd) } else { None };
        return taken.map_or(Left::First, Left::TakenUp);
    }
    Left::Other
}

/// Whether it has shown that it lasts, now that one more message has gone over it.
fn is_due(word: u32) -> bool {
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    if !count.is_multiple_of(MESSAGES) || word & NEVER != 0 {
        return false;
    }
    let now = now_ms();
    now.wrapping_sub(LOOKED_AT_MS.swap(now, Ordering::Relaxed)) <= BUSY_MS
}

/// Makes it one of the process's kernel connections; the process registers, unless it has.
#[cold]
fn take_up(fd: c_int) -> Option<&'static Endpoint> {
    // A handler of a signal would wait for this thread.
    let _section = Section::enter();
    let before = WORD.fetch_or(CLOSED, Ordering::AcqRel);
    if before & CLOSED != 0 || !is_first(fd) {
        return None;
    }
    let is_named = before & NEVER == 0
        && sd_sys::tcp::info(fd).is_ok_and(|info| info.state == sd_sys::tcp::ESTABLISHED)
        && client::connected().map(drop).is_some()
        && promotes() != Promotes::Nothing;
    let taken = if is_named { name(fd, before & INSIDE) } else { None };
    if taken.is_some() {
        IS_OVER.store(true, Ordering::Relaxed);
        WORD.store(0, Ordering::Release);
    } else {
        WORD.fetch_and(!CLOSED, Ordering::AcqRel);
    }
    taken
}

/// An endpoint for it, which so many threads are in calls on.
fn name(fd: c_int, inside: u32) -> Option<&'static Endpoint> {
    let endpoint = super::watched::endpoint_of(fd, Reason::Young, true)?;
    word(endpoint).inspect(|word| _ = word.fetch_add(inside, Ordering::AcqRel));
    if !table::end_first(fd, Some(endpoint)) {
        life::release(endpoint);
        return None;
    }
    Some(endpoint)
}

/// It is used in a way that is not looked after: it stays the kernel's, and the next socket registers.
pub(crate) fn stays(fd: c_int) {
    if is_first(fd) {
        IS_OVER.store(true, Ordering::Relaxed);
        table::end_first(fd, None);
    }
}

/// It is about to listen. Whether it was such a socket, which this process has made.
pub(super) fn listens(fd: c_int) -> bool {
    let was = is_first(fd);
    stays(fd);
    was
}

/// It gets another number: calls on that have to be counted too, so it is taken up. Else it stays the kernel's.
pub(crate) fn duplicated(fd: c_int) {
    if is_first(fd) && take_up(fd).is_none() {
        stays(fd);
    }
}

/// Before a program is started in a way that no hook sees: it may find the connection, on a number that is open or among `duplicated`.
pub(crate) fn before_spawn(duplicated: &[c_int]) {
    let fd = NUMBER.load(Ordering::Relaxed);
    if is_first(fd) && (duplicated.contains(&fd) || table::survives_exec(fd)) {
        stays(fd);
    }
}

/// Whether there is one.
pub(crate) fn is_there() -> bool {
    is_first(NUMBER.load(Ordering::Relaxed))
}

/// Before a fork, while memory may be allocated: the child has it too.
pub(crate) fn before_fork() {
    duplicated(NUMBER.load(Ordering::Relaxed));
}

/// In the child of a fork: another thread of the parent may have made one meanwhile, or was in a call on one.
pub(crate) fn forked() {
    stays(NUMBER.load(Ordering::Relaxed));
    WORD.store(0, Ordering::Relaxed);
}
