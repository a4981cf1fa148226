//! Connections of the kernel's that have no endpoint: they were made without a monitor (ADR 85), or have not lasted yet (ADR 97).
//!
//! Their number's word in the table counts instead:
//!
//! ```text
//!  socket, accept ── the kernel's, and it promotes what lasts, or there is no monitor ──> Entry::Early: threads in calls on it, messages, since when
//!     │ 16 messages: if they were slow, and the process has not registered, the next 16
//!     │    └─ Entry::Kernel, and offered at once if they were fast. Who has not registered looks for a monitor, ten times a second at most
//!     ├ fork, a duplicate ──> Entry::Kernel, if the process has registered
//!     ├ bind, listen, a connect to this host ──> a socket of ours, if the process has registered
//!     └ else, and for a way that is not looked after ──> the kernel's business alone, as Entry::None
//! ```
//! Nobody polls: who makes no calls on such a connection does not look, and a call pays two changes of a word that is its own.
//!
//! Calls on it are counted from the beginning; whoever takes it up hands the threads that are in one over to the endpoint's word. Connections that
//! a listener without a monitor accepts have an endpoint, as the process has a slab for the listener (`before_monitor`).
//!
//! Tested by `cargo xtask sharing --only young`, and `--only before-monitor`.

use super::crowd::BUSY_MS;
use super::watched::MESSAGES;
use crate::fd::table::{self, Entry};
use crate::monitor::client;
use crate::process::detaching;
use crate::setup::first::Left;
use crate::socket::road::{self, now_ms, promotes};
use crate::socket::{cold, history, life, mptcp};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::c_int;
use sd_shm::slab::{Awaits, Endpoint, Promotes, Reason};
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

/// The kernel has made a TCP socket, which this process will connect perhaps.
pub(super) fn begin(fd: c_int) {
    begin_as(fd, true);
}

/// The kernel has made a connection; `is_active`: this end has connected.
pub(crate) fn begin_as(fd: c_int, is_active: bool) {
    // Before the word: a fork of another thread finds it then.
    ARE_THERE.store(true, Ordering::Release);
    table::set_early(fd, fresh() | if is_active { 0 } else { PASSIVE });
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
        let next = if is_message { one_message_more(fewer) } else { (fewer, None) };
        if table::change_early(fd, now, next.0) {
            let taken = next.1.and_then(|pace| take_up(fd, next.0, pace));
            return taken.unwrap_or(Left::First);
        }
    }
    Left::Other
}

/// How fast the latest messages were.
enum Pace {
    Busy,
    Slow,
}

/// What the word is when one more message has gone over the connection, and how fast they were if there are enough.
fn one_message_more(word: u64) -> (u64, Option<Pace>) {
    let messages = (word & MESSAGES_ALL).wrapping_add(MESSAGE_ONE) & MESSAGES_ALL;
    let word = word & !MESSAGES_ALL | messages;
    if !(messages / MESSAGE_ONE).is_multiple_of(u64::from(MESSAGES)) {
        return (word, None);
    }
    let now = now_ms();
    let since = now.wrapping_sub((word >> SINCE_SHIFT) as u32);
    let pace = if since <= BUSY_MS { Pace::Busy } else { Pace::Slow };
    (word & (INSIDE | MESSAGES_ALL | PASSIVE) | u64::from(now) << SINCE_SHIFT, Some(pace))
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

/// Makes it one of the process's kernel connections, if there is a monitor that moves them, and nobody has made a call since `word`. A slow
/// one is nothing to register for.
#[cold]
fn take_up(fd: c_int, word: u64, pace: Pace) -> Option<Left> {
    let messages = ((word & MESSAGES_ALL) / MESSAGE_ONE) as u32;
    if !super::handed_on::may_take_up(fd, messages) {
        return None;
    }
    let is_registered = client::is_there();
    if !is_registered && (matches!(pace, Pace::Slow) || !may_look()) {
        return None;
    }
    // A handler of a signal would find half of it.
    let _section = Section::enter();
    drop(client::connected()?);
    detaching::IS_BACK.get().inspect(|is_back| is_back());
    if promotes() == Promotes::Nothing || mptcp::is_one(fd) {
        stays(fd);
        return None;
    }
    if sd_sys::tcp::info(fd).ok()?.state != sd_sys::tcp::ESTABLISHED {
        return None;
    }
    let endpoint = name(fd, word, is_registered)?;
    match pace {
        Pace::Busy => Some(Left::TakenUp(endpoint)),
        Pace::Slow => {
            history::awaits(endpoint, Awaits::Rate);
            Some(Left::First)
        }
    }
}

/// An endpoint for it, which so many threads are in calls on.
fn name(fd: c_int, word: u64, was_registered: bool) -> Option<&'static Endpoint> {
    let is_active = word & PASSIVE == 0;
    let reason = match (was_registered, is_active) {
        (false, _) => Reason::NoMonitor,
        (true, true) => Reason::Remote,
        (true, false) => Reason::RegularPeer,
    };
    let endpoint = super::watched::endpoint_of(fd, reason, is_active)?;
    let messages = (word & MESSAGES_ALL) / MESSAGE_ONE;
    cold::change(endpoint, |cold| cold.messages.store(messages as u32, Ordering::Relaxed));
    let inside = ((word & INSIDE) / INSIDE_ONE) as u32;
    road::word(endpoint).inspect(|word| _ = word.fetch_add(inside, Ordering::AcqRel));
    super::began::take_up(fd, endpoint);
    if !table::end_early(fd, word, Entry::Kernel(endpoint)) {
        life::release(endpoint);
        return None;
    }
    Some(endpoint)
}

/// It gets another number, or is a child's too: calls on that have to be counted in an endpoint. Where there is no monitor it stays the kernel's.
pub(crate) fn shared(fd: c_int) {
    if table::early(fd).is_none() {
        return;
    }
    // A handler of a signal would find half of it.
    let _section = Section::enter();
    while let Some(now) = table::early(fd) {
        let is_followed = client::is_there()
            && sd_sys::tcp::info(fd).is_ok_and(|info| info.state != sd_sys::tcp::CLOSE)
            && (name(fd, now, true).is_some() || table::early(fd) != Some(now));
        if !is_followed && table::clear_early(fd, now) {
            break;
        }
    }
}

/// It is about to be bound, to listen, to be told an option that only a socket of ours keeps, or to connect to this host: it becomes a
/// socket of ours. Not if it is, or was, connected, or if the process has not registered.
pub(crate) fn becomes_ours(fd: c_int) {
    let Some(word) = table::early(fd).filter(|word| word & (INSIDE | PASSIVE) == 0) else { return };
    // A handler of a signal would find half of it.
    let _section = Section::enter();
    if client::is_there() && super::first::is_fresh(fd) {
        super::first::own(fd, |endpoint| table::end_early(fd, word, Entry::Socket(endpoint)));
    }
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

/// Before a fork, while memory may be allocated: the child has them too.
pub(crate) fn before_fork() {
    each(shared);
}

/// In both processes after a fork: other threads may have made one meanwhile.
pub(crate) fn all_stay() {
    each(stays);
}

fn each(mut ends: impl FnMut(c_int)) {
    // Another thread may be about to set a word.
    let are_there = match crate::process::single_threaded() {
        true => ARE_THERE.swap(false, Ordering::Acquire),
        false => are_there(),
    };
    if are_there {
        table::for_each(0, u32::MAX, |fd, entry| {
            if matches!(entry, Entry::Early) {
                ends(fd);
            }
        });
    }
}
