//! The connections of a server that hands on each to a child, and has left its monitor for that (ADR 94; `family::hands_on` leaves).
//!
//! They are the kernel's. A child counts its own as one that was made without a monitor ([`super::unregistered`]), and takes it up when that has
//! shown to last, if nobody else has it. Who has it stands in a page that the server writes, and that its children have:
//!
//! ```text
//!  accept ── a serial number, and a record of the page ──> fork: one more child has it ──> close: the server has it no more
//!  child:  the record of that number says one child, and closed: it is alone with it
//! ```
//! Records are used again ([`RECORDS`]), so a child that asks late stays with the kernel, as does one whose connection has got another number, or has
//! gone to another program or in a message: then the server's close is not noted. A process that gives rights up has no page.
//!
//! A child is done soon. So the first sockets that it makes are the kernel's too, also where they listen (an FTP server's) with all that is accepted there.
//!
//! Tested by `cargo xtask sharing --only hands-on`.

use super::first::MESSAGES_MIN;
use super::unregistered;
use crate::fd::table::{self, Entry};
use crate::process::single_threaded;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use libc::c_int;

/// What this process is: one of the next three.
static ROLE: AtomicU32 = AtomicU32::new(NEITHER);
const NEITHER: u32 = 0;
const SERVER: u32 = 1;
const CHILD: u32 = 2;
/// Its process id. A child of a clone that was not seen has the server's role.
static SERVER_PID: AtomicI32 = AtomicI32::new(0);

/// A serial number; twice how many children have it; whether the server has closed it.
type Record = AtomicU64;
const FORKED: u64 = 2;
const CLOSED: u64 = 1;
/// So many connections are known at a time.
const RECORDS: usize = 256;
const LEN: usize = RECORDS * size_of::<Record>();
static PAGE: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());
/// The serial number of the latest connection; zero is none.
static LATEST: AtomicU32 = AtomicU32::new(0);

/// Those that the server has now, or had when this process was forked: a serial number, and the number that leads there. One that comes when all are
/// in use is the kernel's alone.
static HELD: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
const SERIAL_SHIFT: u32 = 32;

/// Sockets that a child has made.
static MADE: AtomicU32 = AtomicU32::new(0);
/// A child that makes more is as any process.
const BRIEF: u32 = 8;

fn record(serial: u32) -> Option<&'static Record> {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: null, or a mapping of so many records, which stays.
    (!page.is_null()).then(|| unsafe { &*page.add(serial as usize % RECORDS) })
}

fn is_server() -> bool {
    ROLE.load(Ordering::Relaxed) == SERVER && SERVER_PID.load(Ordering::Relaxed) == sd_sys::fd::getpid()
}

fn number(held: u64) -> c_int {
    held as u32 as c_int
}

/// Serial numbers and numbers of connections that are counted.
fn held() -> impl Iterator<Item = (u32, c_int)> {
    let is_one = |held: &u64| *held != 0 && matches!(table::get(number(*held)), Entry::Early);
    let all = HELD.iter().map(|held| held.load(Ordering::Relaxed)).filter(is_one);
    all.map(|held| ((held >> SERIAL_SHIFT) as u32, number(held)))
}

fn serial(fd: c_int) -> Option<u32> {
    held().find(|(_, number)| *number == fd).map(|(serial, _)| serial)
}

/// This process has left its monitor, as it hands on what it accepts. Without the page its children's connections stay the kernel's.
pub(crate) fn begin() {
    if PAGE.load(Ordering::Relaxed).is_null()
        && let Ok(page) = sd_sys::mem::map_shared_anonymous(LEN)
    {
        PAGE.store(page.cast(), Ordering::Release);
    }
    SERVER_PID.store(sd_sys::fd::getpid(), Ordering::Relaxed);
    ROLE.store(SERVER, Ordering::Release);
}

/// The kernel's accept has returned this number, which this returns.
#[inline]
pub fn accepted(fd: c_int) -> c_int {
    if ROLE.load(Ordering::Relaxed) == SERVER {
        note(fd);
    }
    fd
}

#[cold]
#[inline(never)]
fn note(fd: c_int) {
    let is_tcp =
        || sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    if fd < 0 || table::is_ours(fd) || !is_server() || !single_threaded() || !is_tcp() {
        return;
    }
    let serial = LATEST.load(Ordering::Relaxed).wrapping_add(1).max(1);
    let is_free = |one: &&AtomicU64| {
        let now = one.load(Ordering::Relaxed);
        now == 0 || number(now) == fd || !matches!(table::get(number(now)), Entry::Early)
    };
    let (Some(record), Some(place)) = (record(serial), HELD.iter().find(is_free)) else { return };
    LATEST.store(serial, Ordering::Relaxed);
    record.store(u64::from(serial) << SERIAL_SHIFT, Ordering::Release);
    place.store(u64::from(serial) << SERIAL_SHIFT | u64::from(fd as u32), Ordering::Relaxed);
    unregistered::begin_handed(fd);
}

/// Before any fork.
pub(crate) fn before_fork() {
    match ROLE.load(Ordering::Relaxed) {
        NEITHER => {}
        SERVER => held().for_each(|(serial, _)| change(serial, |record| record.wrapping_add(FORKED))),
        // A child's child is nobody's that is counted.
        _ => held().for_each(|(_, fd)| unregistered::stays(fd)),
    }
}

/// In the child of a fork.
pub(crate) fn forked() {
    if ROLE.load(Ordering::Relaxed) == SERVER {
        ROLE.store(CHILD, Ordering::Relaxed);
    }
}

/// The number that leads to a connection is about to be closed.
pub(crate) fn closed(fd: c_int) {
    if ROLE.load(Ordering::Relaxed) == SERVER
        && is_server()
        && let Some(serial) = serial(fd)
    {
        change(serial, |record| record | CLOSED);
    }
}

/// Only the server writes, with one thread or more.
fn change(serial: u32, to: impl Fn(u64) -> u64) {
    let Some(record) = record(serial) else { return };
    let change = |now: u64| (now >> SERIAL_SHIFT == u64::from(serial)).then(|| to(now));
    let _ = record.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
}

/// Whether a connection that is counted may be one of this process's own, after so many messages.
pub(super) fn may_take_up(fd: c_int, messages: u32) -> bool {
    let role = ROLE.load(Ordering::Relaxed);
    let Some(serial) = (role != NEITHER).then(|| serial(fd)).flatten() else { return true };
    let alone = if is_server() { 0 } else { FORKED | CLOSED };
    let is = |record: &Record| record.load(Ordering::Acquire) == u64::from(serial) << SERIAL_SHIFT | alone;
    messages >= MESSAGES_MIN && record(serial).is_some_and(is) && crate::process::env::monitor_promotes()
}

/// The process is about to give rights up: what others rely on is not to be written by it.
pub(crate) fn forget() {
    match ROLE.load(Ordering::Relaxed) {
        NEITHER => return,
        SERVER => ROLE.store(NEITHER, Ordering::Relaxed),
        _ => {}
    }
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: mapped by `begin`; a record of zeros is nobody's.
    let replaced = page.is_null() || unsafe { sd_sys::mem::replace_by_zeros(page.cast(), LEN) }.is_ok();
    if !replaced {
        PAGE.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// The child of such a server, which has made few sockets: those are not worth to register for.
pub(crate) fn is_brief() -> bool {
    ROLE.load(Ordering::Relaxed) == CHILD && MADE.load(Ordering::Relaxed) <= BRIEF
}

/// The process makes a socket. Whether it is such a child.
pub(super) fn makes_one() -> bool {
    if ROLE.load(Ordering::Relaxed) == CHILD {
        MADE.fetch_add(1, Ordering::Relaxed);
    }
    is_brief()
}
