//! An end stops reading its ring, and the other one sends again through the kernel what lies there (RESUME, ADR 83).
//!
//! ```text
//!  receiver   Q: where it stands, then RESUME in the sender's word      sender   the ring from Q on ──> kernel, LEFT
//! ```
//! For an end that goes on without the library, or cannot wait for the other's marker: from then on the kernel's connection is all that it needs. Of a
//! sender that leaves at the same time one of both is said (`sd_ring::road`), so that nothing is sent twice, or never.
//!
//! What the receiver says of Q is senseless if it lies; then it gets senseless bytes of this ring, and no others.

use crate::link::kept_rings::are_kept;
use crate::socket::endpoint::{EOF, EndpointExt, PeerEnd, RESET, SHUT_RD, peer_end};
use crate::socket::errors::keep_end;
use crate::socket::parked::{enter_rx, leave_rx, leave_tx, receiver_now};
use crate::socket::road::{self, ACTIVE, RX_KERNEL, RX_LEFT, TX_KERNEL, is_by_kernel, word};
use crate::socket::way_back::{note_first_as, say_left, shut_kernels};
use crate::socket::{addr, apart, broken, far_end, history};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use sd_ring::road::{Receive, RoadWord, leaving, resuming};
use sd_ring::{Next, RxCursor, TxCursor};
use sd_shm::channel::GEOMETRY;
use sd_shm::rings::Rings;
use sd_shm::slab::{Endpoint, State};
use sd_sys::Errno;
use sd_sys::lock::Lock;

/// The receiving half stops reading its ring, and has the peer send again through the kernel what lies there (RESUME). For who has the token of the
/// half. False: the peer is leaving itself, or is gone, so that it has to be read up to its end.
pub(crate) fn stop_reading(endpoint: &'static Endpoint, rx: &mut RxCursor) -> bool {
    if is_by_kernel(endpoint, RX_LEFT) {
        return true;
    }
    let Some(channel) = endpoint.channel_ref().filter(|channel| channel.link.sends_again()) else {
        return false;
    };
    let mut at = match is_by_kernel(endpoint, RX_KERNEL) {
        true => receiver_now(endpoint),
        false => *rx,
    };
    match peer_end(endpoint) {
        _ if endpoint.flag(RESET) => return false,
        PeerEnd::Open => {}
        // The kernel's connection tells the same end.
        PeerEnd::Gone
            if matches!(apart::next(endpoint, &mut at), Ok(Next::Empty | Next::Fin | Next::Marker)) =>
        {
            leave(endpoint, rx);
            return true;
        }
        PeerEnd::Gone | PeerEnd::Reset => return false,
    }
    let names = channel.map.names(usize::from(endpoint.slot.load(Ordering::Relaxed)));
    let (own, peer) = (endpoint.own_words(), endpoint.peer_words());
    names.set_resume_at(road::own_side(endpoint), at.standing());
    own.consumed.store(at.position(), Ordering::Release);
    if !peer.decide(resuming) {
        return false;
    }
    leave(endpoint, rx);
    true
}

/// Nothing more is read from the ring.
fn leave(endpoint: &Endpoint, rx: &mut RxCursor) {
    note_first_as(endpoint, history::why_it_leaves(endpoint));
    rx.close();
    leave_rx(endpoint);
    if endpoint.flag(SHUT_RD) {
        shut_kernels(endpoint, libc::SHUT_RD);
    }
}

/// Sends again what the peer asks for, as much of it as the kernel takes now; for who has the sending half's token. True: that was all, or
/// nothing can be sent any more.
#[cold]
pub(crate) fn go_on(endpoint: &'static Endpoint) -> bool {
    // Closed here; who has it still does it.
    let Some(fd) = road::number(endpoint) else { return false };
    let mut has_sent = false;
    match resend(endpoint, fd, &mut has_sent) {
        Err(Errno::EAGAIN) => {
            later(endpoint, has_sent);
            false
        }
        done => {
            let _ = done.map_err(|errno| keep_end(endpoint, errno));
            say_left(endpoint);
            true
        }
    }
}

/// Ring bytes that a correct sender cannot exceed.
const WALK_MAX: u64 = 2 * GEOMETRY.large as u64;

/// How much of it was sent already the kernel's stream says: between the switch, at P, and the end of this nothing else goes there.
pub(super) fn resend(endpoint: &Endpoint, fd: i32, has_sent: &mut bool) -> Result<(), Errno> {
    let (Some(channel), Some(word)) = (endpoint.channel_ref(), word(endpoint)) else { return Ok(()) };
    let (names, side) =
        (channel.map.names(usize::from(endpoint.slot.load(Ordering::Relaxed))), road::own_side(endpoint));
    let sent = sd_sys::tcp::sent(fd, word.load(Ordering::Relaxed) & ACTIVE != 0)?;
    let mut skip = sent.wrapping_sub(names.switched_at(side).load(Ordering::Relaxed));
    let start = endpoint.peer_words().consumed.load(Ordering::Acquire);
    let mut reader = RxCursor::resumed(start, names.resume_at(side.other()));
    let (mem, mut urgent) = (endpoint.tx_mem(), 0);
    if broken::is_begun(endpoint) {
        skip = broken::before_again(fd, skip, || bytes_from(reader, &mem))?;
    }
    while reader.position().wrapping_sub(start) <= WALK_MAX {
        match reader.next(&GEOMETRY, &mem) {
            Ok(Next::Data { len, .. }) if skip >= u64::from(len) => {
                skip -= u64::from(len);
                reader.advance(len);
            }
            Ok(Next::Data { region, off, len }) => {
                let from = mem.at(region, off + skip as u32);
                let (len, flags) =
                    (len as usize - skip as usize, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | urgent);
                // SAFETY: the ring checked region, off and length against our mapping.
                let done =
                    sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_sendto, fd, from, len, flags, 0, 0) })?;
                reader.advance(skip as u32 + done as u32);
                (skip, *has_sent) = (0, true);
            }
            Ok(Next::Urgent) => {
                reader.admit_urgent();
                urgent = libc::MSG_OOB;
                continue;
            }
            _ => return Ok(()),
        }
        urgent = 0;
    }
    Ok(())
}

/// Bytes in a ring of this end's own, which is left, from a place on.
fn bytes_from(mut reader: RxCursor, mem: &Rings) -> u64 {
    let (start, mut bytes) = (reader.position(), 0);
    while reader.position().wrapping_sub(start) <= WALK_MAX {
        match reader.next(&GEOMETRY, mem) {
            Ok(Next::Data { len, .. }) => {
                reader.advance(len);
                bytes += u64::from(len);
            }
            Ok(Next::Urgent) => reader.admit_urgent(),
            _ => break,
        }
    }
    bytes
}

/// The kernel's stream has ended, and the peer was asked to send again what lies in its ring, and died before it did: what is left there is
/// read from the ring after all. For who has the receiving half's token; false: nothing is.
#[cold]
pub(crate) fn read_rest(endpoint: &'static Endpoint, rx: &mut RxCursor, fd: i32) -> bool {
    let is_asked = endpoint.state_now() == State::Connected && is_by_kernel(endpoint, RX_LEFT);
    let Some(channel) = endpoint.channel_ref().filter(|_| is_asked) else { return false };
    let Receive::Rest(mut behind) = road::next_at_end(endpoint, fd) else { return false };
    let names = channel.map.names(usize::from(endpoint.slot.load(Ordering::Relaxed)));
    let start = endpoint.own_words().consumed.load(Ordering::Relaxed);
    let mut at = RxCursor::resumed(start, names.resume_at(road::own_side(endpoint)));
    if are_kept(channel) {
        at.beware_here();
    }
    // A peer that lies has said that it switched long before; what it gets to be read is in its ring.
    while behind > 0 && at.position().wrapping_sub(start) <= WALK_MAX {
        match apart::next(endpoint, &mut at) {
            Ok(Next::Data { len, .. }) => {
                let passed = behind.min(u64::from(len));
                at.advance(passed as u32);
                behind -= passed;
            }
            Ok(Next::Urgent) => at.admit_urgent(),
            _ => return false,
        }
    }
    if behind == 0 {
        // Then the end comes, whatever is known of the peer.
        endpoint.set_flag(EOF);
        enter_rx(endpoint, rx, at);
    }
    behind == 0
}

/// So long the kernel may need to take what is to be sent again, where a thread waits for that: it closes, or hands the connection on.
pub(crate) const TAKEN_WITHIN_NS: u64 = 3_000_000_000;

/// Sends again, as [`go_on`], for who cannot come back to it. False: the kernel has not taken all of it in time.
fn send_all(endpoint: &Endpoint, fd: i32) -> bool {
    let until = sd_sys::time::now_ns() + TAKEN_WITHIN_NS;
    while resend(endpoint, fd, &mut false) == Err(Errno::EAGAIN) {
        let left_ms = until.saturating_sub(sd_sys::time::now_ns()) / 1_000_000;
        let has_room =
            || sd_sys::fd::poll_one(fd, libc::POLLOUT, left_ms as i32).is_ok_and(|found| found != 0);
        if left_ms == 0 || !has_room() {
            return false;
        }
    }
    true
}

/// The last descriptor is being closed, and the connection ends, with unread bytes in the ring or not; for who has the sending half's token.
/// Whether there are unread bytes in either stream: then both end with a reset, as they would if they were one. So they do where what was to be
/// sent again is not all sent, which a FIN would hide.
#[cold]
pub(super) fn before_end(endpoint: &'static Endpoint, tx: &mut TxCursor, unread: bool) -> bool {
    let Some(fd) = number_being_closed(endpoint) else { return unread };
    let own = endpoint.own_words();
    let in_ring = own.road().has(RoadWord::SWITCHED) && !own.road().has(RoadWord::LEFT);
    let mut aborts = unread;
    far_end::await_knowledge(endpoint);
    let is_broken = broken::is_gone(endpoint);
    // The peer finds the end in the ring, unless it has said before that it reads the ring no more.
    if is_broken {
        aborts = unread || !broken::before_end(endpoint, tx, fd);
        own.say(RoadWord::LEFT);
    } else if in_ring && !own.decide(leaving) {
        leave_tx(endpoint, tx, false);
        aborts |= !send_all(endpoint, fd);
        own.say(RoadWord::LEFT);
    }
    if aborts && (is_broken || is_by_kernel(endpoint, TX_KERNEL)) {
        // The kernel knows nothing of them.
        abort_at_close(fd);
    }
    aborts || is_by_kernel(endpoint, RX_KERNEL) && sd_sys::tcp::unread(fd).is_ok_and(|bytes| bytes != 0)
}

/// A connection of the kernel's ends with a reset when its last descriptor is closed.
pub(crate) fn abort_at_close(fd: i32) {
    let now = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the kernel reads a linger.
    unsafe {
        let (place, len) = (&raw const now, size_of::<libc::linger>());
        sd_sys::syscall!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, place, len)
    };
}

/// No number leads to it any more, but this one is still open, if it is the last.
fn number_being_closed(endpoint: &Endpoint) -> Option<i32> {
    let fd = endpoint.fd.load(Ordering::Relaxed);
    let (local, peer) = crate::socket::names::of(endpoint);
    let kernel = [addr::kernel_name(fd), addr::kernel_peer(fd)].map(|found| found.map(|(_, name)| name));
    (kernel == [Some(local), Some(peer)]).then_some(fd)
}

/// A connection of which something is still to be sent again.
struct Again {
    endpoint: &'static Endpoint,
    /// Not before.
    at_ns: u64,
    pause_ns: u64,
    /// The kernel took something the last time.
    has_sent: bool,
    /// There is more, as who has tried last says.
    is_due: bool,
}

/// From one attempt to the next: twice as long after each that was in vain. A peer that never reads costs little.
const PAUSE_NS: [u64; 2] = [1_000_000, 256_000_000];

/// All, and how many.
static RESENDING: Lock<Vec<Again>> = Lock::new(Vec::new());
static COUNT: AtomicU32 = AtomicU32::new(0);

pub(super) fn later(endpoint: &'static Endpoint, has_sent: bool) {
    let mut all = RESENDING.lock();
    match all.iter_mut().find(|again| core::ptr::eq(again.endpoint, endpoint)) {
        Some(again) => (again.has_sent, again.is_due) = (again.has_sent | has_sent, true),
        None => {
            let [pause_ns, _] = PAUSE_NS;
            let at_ns = sd_sys::time::now_ns() + pause_ns;
            all.push(Again { endpoint, at_ns, pause_ns, has_sent, is_due: true });
        }
    }
    COUNT.store(all.len() as u32, Ordering::Relaxed);
}

/// There are some.
pub(crate) fn are_there() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Those whose time has come. They stay, so that other threads sleep no longer than until the next; [`tried`] follows for each.
pub(crate) fn take_due() -> Vec<&'static Endpoint> {
    let now = sd_sys::time::now_ns();
    let mut all = RESENDING.lock();
    let due = all.iter_mut().filter(|again| again.at_ns <= now).map(|again| {
        again.at_ns = now + again.pause_ns;
        (again.has_sent, again.is_due) = (false, false);
        again.endpoint
    });
    due.collect()
}

/// It was tried again. Where nobody has said since that there is more it is forgotten.
pub(crate) fn tried(endpoint: &'static Endpoint) {
    let mut all = RESENDING.lock();
    all.retain(|again| again.is_due || !core::ptr::eq(again.endpoint, endpoint));
    COUNT.store(all.len() as u32, Ordering::Relaxed);
    if let Some(again) = all.iter_mut().find(|again| core::ptr::eq(again.endpoint, endpoint)) {
        let [shortest, longest] = PAUSE_NS;
        again.pause_ns = if again.has_sent { shortest } else { (again.pause_ns * 2).min(longest) };
        again.at_ns = sd_sys::time::now_ns() + again.pause_ns;
    }
}

/// Until the time of the first has come.
pub(crate) fn pause_ns() -> Option<u64> {
    let first = RESENDING.lock().iter().map(|again| again.at_ns).min();
    first.map(|at_ns| at_ns.saturating_sub(sd_sys::time::now_ns()).max(1))
}

/// Before a fork. The child sees to it as well, since its parent may end before all is sent: under the token of the half, and from where the
/// kernel's stream says that it stands.
pub(crate) fn keep_lock() {
    RESENDING.lock_and_keep();
}

/// After it.
///
/// # Safety
/// [`keep_lock`] was called by this thread, or by the one that it is a copy of.
pub(crate) unsafe fn unlock() {
    // SAFETY: as the caller says.
    unsafe { RESENDING.unlock() };
}
