//! Options that only a kernel socket keeps, remembered for the day on which there is another one.
//!
//! An accepted connection inherits most of them (`sk_clone_lock` in the kernel), but has no kernel socket, and few programs
//! ever ask. And a kernel socket that was bound to a port which an accelerated connection has is exchanged for a fresh one
//! (`bind`). So a socket notes what was set on it, its connections share the note of what they inherit, and it is carried
//! out on the day there is a fresh kernel socket (`recorded::replay`). A socket names its note by a
//! number in the process's private part of the endpoint: a fork copies both. What one process of several sets after a
//! fork is inherited in that process only. Tested by the subjects `accept/options_inherited`,
//! `options/buffer_sizes_inherited` and `bind/chosen_port_keeps_options`.

use crate::process::PROCESS;
use crate::socket::handle::Socket;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use libc::{IPPROTO_TCP, SOL_SOCKET, c_int, c_void};
use sd_shm::slab::Endpoint;
use sd_sys::lock::Lock;

/// Longest value that is kept: TCP_CONGESTION's, and a name of an interface.
const VALUE_MAX: usize = 16;
/// Options in a note, and notes: no honest program has more.
const OPTIONS_MAX: usize = 64;
const NOTES_MAX: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Extra {
    level: c_int,
    name: c_int,
    value: [u8; VALUE_MAX],
    len: usize,
}

/// What was set on a socket, in that order.
struct Note {
    options: Box<[Extra]>,
    /// Number of the note of those that connections inherit.
    inherited: u32,
}

/// Notes are never changed and never freed: equal ones are one. A socket's number is the place in the list plus one.
static NOTES: Lock<Vec<Note>> = Lock::new(Vec::new());

/// Programs of the kernel's: what the value points to, or names, may be gone.
fn is_program(level: c_int, name: c_int) -> bool {
    const NAMES: [c_int; 6] = [
        libc::SO_ATTACH_FILTER,
        libc::SO_DETACH_FILTER,
        libc::SO_LOCK_FILTER,
        libc::SO_ATTACH_BPF,
        libc::SO_ATTACH_REUSEPORT_CBPF,
        libc::SO_ATTACH_REUSEPORT_EBPF,
    ];
    level == SOL_SOCKET && NAMES.contains(&name)
}

fn is_inherited(option: &Extra) -> bool {
    let Extra { level, name, .. } = *option;
    let own: &[c_int] = match level {
        SOL_SOCKET => &[libc::SO_PRIORITY, libc::SO_INCOMING_CPU],
        IPPROTO_TCP => &[libc::TCP_QUICKACK, libc::TCP_DEFER_ACCEPT, libc::TCP_FASTOPEN, libc::TCP_ULP],
        _ => &[],
    };
    !own.contains(&name) && !is_program(level, name)
}

/// An option was set on the kernel socket of an endpoint.
///
/// # Safety
/// `value` points to `len` readable bytes.
pub(crate) unsafe fn note(endpoint: &Endpoint, level: c_int, name: c_int, value: *const c_void, len: usize) {
    let len = if is_program(level, name) { 0 } else { len };
    let Some(private) = PROCESS.private(endpoint).filter(|_| len <= VALUE_MAX) else { return };
    let mut bytes = [0; VALUE_MAX];
    // SAFETY: as the caller says, and there is room.
    unsafe { core::ptr::copy_nonoverlapping(value.cast(), bytes.as_mut_ptr(), len) };
    let extra = Extra { level, name, value: bytes, len };
    let mut notes = NOTES.lock();
    let mut changed = noted(&notes, private.next.load(Ordering::Relaxed)).to_vec();
    // In the order in which they were set: some change others.
    changed.retain(|old| (old.level, old.name) != (level, name));
    changed.push(extra);
    if let Some(number) = number_of(&mut notes, &changed) {
        private.next.store(number, Ordering::Relaxed);
    }
}

/// The number of the note of these options, a new one perhaps; `None` when there are too many.
fn number_of(notes: &mut Vec<Note>, options: &[Extra]) -> Option<u32> {
    if options.is_empty() {
        return Some(0);
    }
    if let Some(place) = notes.iter().position(|known| *known.options == *options) {
        return Some(place as u32 + 1);
    }
    let inherited: Vec<Extra> = options.iter().copied().filter(is_inherited).collect();
    let is_whole = inherited.len() == options.len();
    let inherited = if is_whole { None } else { Some(number_of(notes, &inherited)?) };
    if options.len() > OPTIONS_MAX || notes.len() >= NOTES_MAX {
        return None;
    }
    let number = notes.len() as u32 + 1;
    notes.push(Note { options: options.into(), inherited: inherited.unwrap_or(number) });
    Some(number)
}

fn note_of(notes: &[Note], number: u32) -> Option<&Note> {
    notes.get((number as usize).checked_sub(1)?)
}

fn noted(notes: &[Note], number: u32) -> &[Extra] {
    note_of(notes, number).map_or(&[], |note| &note.options)
}

/// A connection has most of what its listener has.
#[inline]
pub(crate) fn inherit(from: Socket, to: Socket) {
    let number = match from.private.next.load(Ordering::Relaxed) {
        0 => 0,
        number => note_of(&NOTES.lock(), number).map_or(0, |note| note.inherited),
    };
    to.private.next.store(number, Ordering::Relaxed);
}

/// Something is noted of a socket.
pub(crate) fn is_noted(endpoint: &Endpoint) -> bool {
    PROCESS.private(endpoint).is_some_and(|private| private.next.load(Ordering::Relaxed) != 0)
}

/// Calls `each` with level, name and value of what is noted of a socket; false when nothing is.
pub(super) fn each(endpoint: &Endpoint, mut each: impl FnMut(c_int, c_int, &[u8])) -> bool {
    let number = PROCESS.private(endpoint).map_or(0, |private| private.next.load(Ordering::Relaxed));
    if number != 0 {
        for extra in noted(&NOTES.lock(), number).iter().filter(|extra| !is_program(extra.level, extra.name))
        {
            each(extra.level, extra.name, extra.value.get(..extra.len).unwrap_or(&[]));
        }
    }
    number != 0
}

/// A filter or the like was attached, or taken away: no other kernel socket can have that.
pub(crate) fn has_program(endpoint: &Endpoint) -> bool {
    let number = PROCESS.private(endpoint).map_or(0, |private| private.next.load(Ordering::Relaxed));
    number != 0 && noted(&NOTES.lock(), number).iter().any(|extra| is_program(extra.level, extra.name))
}

const SO_TIMESTAMPING_NEW: c_int = 65;

/// An option is noted for which the kernel has to connect: another interface, a source address that need not be this
/// host's, a range for the source port, times of sending and coming.
#[inline]
pub(crate) fn need_the_kernel(socket: Socket) -> bool {
    socket.private.next.load(Ordering::Relaxed) != 0 && one_needs_the_kernel(socket.endpoint)
}

fn one_needs_the_kernel(endpoint: &Endpoint) -> bool {
    const IP_LOCAL_PORT_RANGE: c_int = 51;
    const SO_BINDTOIFINDEX: c_int = 62;
    const OPTIONS: [(c_int, c_int); 9] = [
        (SOL_SOCKET, libc::SO_TIMESTAMPING),
        (SOL_SOCKET, SO_TIMESTAMPING_NEW),
        (SOL_SOCKET, libc::SO_BINDTODEVICE),
        (SOL_SOCKET, SO_BINDTOIFINDEX),
        (libc::IPPROTO_IP, libc::IP_FREEBIND),
        (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
        (libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE),
        (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
        (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
    ];
    has_one_of(endpoint, &OPTIONS)
}

/// The program wants to be told when bytes were sent or came, which the kernel knows.
pub(crate) fn wants_stamps(endpoint: &Endpoint) -> bool {
    has_one_of(endpoint, &[(SOL_SOCKET, libc::SO_TIMESTAMPING), (SOL_SOCKET, SO_TIMESTAMPING_NEW)])
}

/// One of the options is noted, and not zero.
fn has_one_of(endpoint: &Endpoint, options: &[(c_int, c_int)]) -> bool {
    let mut is_set = false;
    each(endpoint, |level, name, value| {
        is_set |= options.contains(&(level, name)) && value.iter().any(|byte| *byte != 0);
    });
    is_set
}

/// Keeps the notes unchanged across a fork.
pub(crate) fn keep_lock() {
    NOTES.lock_and_keep();
}

/// Ends `keep_lock`.
///
/// # Safety
/// The calling thread (or the one it is a copy of) called `keep_lock`.
pub(crate) unsafe fn unlock() {
    // SAFETY: promised by the caller.
    unsafe { NOTES.unlock() };
}
