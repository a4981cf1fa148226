//! Connections that are made while there is no monitor, and that a monitor is told of when it comes (ADR 85).
//!
//! A TCP socket that is made without a monitor is the kernel's. It has no endpoint, since there may never be a slab. Its number's word in the
//! table counts instead:
//!
//! ```text
//!  socket ── no monitor ──> Entry::Early: threads in calls on it, messages, since when
//!     │ 16 messages in a short time, at most ten looks of the process a second: is there a monitor?
//!     │    └─ yes ──> the process registers; Entry::Kernel, and offered at once
//!     └ listen, fork, a duplicate, a way that is not looked after ──> the kernel's business alone, as Entry::None
//! ```
//! Nobody polls: who makes no calls on such a connection does not look, and a call pays two changes of a word that is its own.
//!
//! So calls on it are counted from the beginning, and who takes it up knows that no thread is in one. Connections that a listener of such a
//! process accepts have an endpoint, as the process has a slab for the listener (`before_monitor`); they are watched like any other.
//!
//! Tested by `cargo xtask sharing --only before-monitor`.

use super::watched::{BUSY_MS, MESSAGES};
use crate::fd::table;
use crate::monitor::client;
use crate::process::detaching;
use crate::setup::first::Left;
use crate::socket::life;
use crate::socket::road::{now_ms, promotes};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::c_int;
use sd_shm::slab::{Endpoint, Promotes, Reason};
use sd_sys::section::Section;

/// The process has, or had, such a socket.
static ARE_THERE: AtomicBool = AtomicBool::new(false);
/// When the process has looked for a monitor last, because of a connection.
static LOOKED_AT_MS: AtomicU32 = AtomicU32::new(0);
const LOOK_EVERY_MS: u32 = 100;

// A word of the table, without its lowest three bits.
const INSIDE_ONE: u64 = 1 << 3;
const INSIDE: u64 = 0xffff << 3;
const MESSAGE_ONE: u64 = 1 << 19;
const MESSAGES_ALL: u64 = 0xfff << 19;
/// This end has accepted: of a process that was detached.
const PASSIVE: u64 = 1 << 31;
const SINCE_SHIFT: u32 = 32;

fn fresh() -> u64 {
    u64::from(now_ms()) << SINCE_SHIFT
}

/// The kernel has made a TCP socket, while there is no monitor.
pub(super) fn begin(fd: c_int) {
    table::set_early(fd, fresh());
    ARE_THERE.store(true, Ordering::Relaxed);
}

/// A connection of a process that has left its monitor for a checkpoint.
pub(crate) fn begin_as(fd: c_int, is_active: bool) {
    table::set_early(fd, fresh() | if is_active { 0 } else { PASSIVE });
    ARE_THERE.store(true, Ordering::Relaxed);
}

/// A connection that a server has accepted to hand it on ([`super::handed_on`]): a fork does not end the count.
pub(super) fn begin_handed(fd: c_int) {
    table::set_early(fd, fresh() | PASSIVE);
}

/// Before a call of the kernel's. True: it is such a connection, and the call is counted.
pub(super) fn enter(fd: c_int) -> bool {
    while let Some(now) = table::early(fd) {
        if now & INSIDE != INSIDE && table::change_early(fd, now, now + INSIDE_ONE) {
            return true;
        }
        if now & INSIDE == INSIDE {
            // Nobody could count on it.
            stays(fd);
        }
    }
    false
}

/// After the call.
pub(super) fn left(fd: c_int, is_message: bool) -> Left {
    while let Some(now) = table::early(fd) {
        let fewer = now - if now & INSIDE != 0 { INSIDE_ONE } else { 0 };
        let next = if is_message { one_message_more(fewer) } else { (fewer, false) };
        if table::change_early(fd, now, next.0) {
            let taken = if next.1 { take_up(fd, next.0) } else { None };
            return taken.map_or(Left::First, Left::TakenUp);
        }
    }
    Left::Other
}

/// What the word is when one more message has gone over the connection, and whether so many have in a short time.
fn one_message_more(word: u64) -> (u64, bool) {
    let messages = (word & MESSAGES_ALL).wrapping_add(MESSAGE_ONE) & MESSAGES_ALL;
    let word = word & !MESSAGES_ALL | messages;
    if !(messages / MESSAGE_ONE).is_multiple_of(u64::from(MESSAGES)) {
        return (word, false);
    }
    let now = now_ms();
    let since = now.wrapping_sub((word >> SINCE_SHIFT) as u32);
    (word & (INSIDE | MESSAGES_ALL | PASSIVE) | u64::from(now) << SINCE_SHIFT, since <= BUSY_MS)
}

/// Whether it is time to look for a monitor again, because of a connection that might be offered.
pub(super) fn may_look() -> bool {
    let (now, before) = (now_ms(), LOOKED_AT_MS.load(Ordering::Relaxed));
    client::is_there()
        || now.wrapping_sub(before) >= LOOK_EVERY_MS
            && LOOKED_AT_MS.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && (!detaching::is_done() || goes_on())
}

/// Whether a process that was detached goes on, restored elsewhere perhaps.
#[cold]
fn goes_on() -> bool {
    let may = detaching::may_go_on();
    if may {
        client::set_ending(false);
    }
    may
}

/// Makes it one of the process's kernel connections, if there is a monitor that moves them, and nobody has made a call since `word`.
#[cold]
fn take_up(fd: c_int, word: u64) -> Option<&'static Endpoint> {
    let messages = ((word & MESSAGES_ALL) / MESSAGE_ONE) as u32;
    if word & INSIDE != 0 || !super::handed_on::may_take_up(fd, messages) || !may_look() {
        return None;
    }
    // A handler of a signal would find half of it.
    let _section = Section::enter();
    drop(client::connected()?);
    detaching::IS_BACK.get().inspect(|is_back| is_back());
    if promotes() == Promotes::Nothing {
        stays(fd);
        return None;
    }
    if sd_sys::tcp::info(fd).ok()?.state != sd_sys::tcp::ESTABLISHED {
        return None;
    }
    let endpoint = super::watched::endpoint_of(fd, Reason::NoMonitor, word & PASSIVE == 0)?;
    super::began::take_up(fd, endpoint);
    if !table::end_early(fd, word, endpoint) {
        life::release(endpoint);
        return None;
    }
    Some(endpoint)
}

/// It is used in a way that is not looked after, or others have it too: the kernel's business alone from now on.
pub(crate) fn stays(fd: c_int) {
    while let Some(now) = table::early(fd) {
        if table::clear_early(fd, now) {
            break;
        }
    }
}

/// Whether a fork has to be looked after.
pub(crate) fn are_there() -> bool {
    ARE_THERE.load(Ordering::Relaxed)
}

/// Before a fork, and in both processes after it, since other threads may have made one meanwhile: the child has them too.
pub(crate) fn all_stay() {
    if ARE_THERE.swap(false, Ordering::Relaxed) {
        table::for_each(0, u32::MAX, |fd, entry| {
            if matches!(entry, table::Entry::Early) {
                stays(fd);
            }
        });
    }
}
