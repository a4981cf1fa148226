//! Connections that the kernel has made, and calls on them: who is in one, and which are worth to be moved to shared memory (ADR 82).
//!
//! ```text
//!  send, recv ──> enter ── the real call ──> left ── each so many messages: Offer + socket ──> monitor
//! ```
//! The calls themselves are libc's, so that they are cancelled, restarted and interrupted as ever. A thread that is cancelled in one, or
//! that leaves it by longjmp, counts as inside for ever: then the connection stays the kernel's.
//!
//! What a call was counted at the thread keeps until it returns (`counted`).

use crate::fd::table::{self, Entry};
use crate::monitor::client;
use crate::process::{PROCESS, detaching, single_threaded};
use crate::setup::counted::{self, Counted};
use crate::setup::crowd::{self, CROWD};
use crate::setup::first::{self, Left};
use crate::setup::offering::offer;
use crate::setup::{began, promote, unregistered};
use crate::socket::endpoint::EndpointExt;
use crate::socket::handle::Socket;
use crate::socket::road::{
    self, ACTIVE, CLOSED, INSIDE, NEVER, OFFERED, PAUSED_BEFORE, PROMISED, WATCHED, now_ms, promotes, word,
};
use crate::socket::{cold, history, mptcp};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{MSG_ERRQUEUE, MSG_OOB, c_int};
use sd_shm::slab::{Awaits, Cold, Endpoint, Promotes, Reason, State};

/// So many messages are looked at together: how much time they took (`crowd`).
pub(super) const MESSAGES: u32 = 16;
/// An offer that waits is gone by then.
const FORGOTTEN_MS: u32 = 60_000;

const MSG_ZEROCOPY: c_int = 0x400_0000;

/// The monitor is not known yet: who connects to other hosts, or to other network namespaces, has not asked it for anything.
fn has_no_monitor_yet() -> bool {
    PROCESS.header().place.load(Ordering::Relaxed) == 0
}

/// The kernel makes a connection, or has accepted one.
pub(super) fn begin(endpoint: &'static Endpoint, active: bool) {
    if !endpoint.is_mptcp() && (promotes() != Promotes::Nothing || has_no_monitor_yet()) {
        let role = if active { ACTIVE } else { 0 };
        history::begin(endpoint);
        began::forget(endpoint);
        // What was offered of the connection before, whose endpoint this was, is not this one's: a promise for that may still come.
        endpoint.generation.store(promote::NOT_OFFERED, Ordering::Relaxed);
        cold::change(endpoint, |cold| {
            cold.messages.store(0, Ordering::Relaxed);
            cold.stream_read.store(0, Ordering::Relaxed);
            cold.pause_ms.store(0, Ordering::Relaxed);
            cold.closer.store(0, Ordering::Relaxed);
            cold.looked_at_ms.store(now_ms(), Ordering::Relaxed);
            let which = cold.road_use.load(Ordering::Relaxed).wrapping_add(1);
            cold.road_use.store(which, Ordering::Release);
            cold.road.store(WATCHED | role | road::bits_of_use(which), Ordering::Release);
        });
    }
}

/// An endpoint for a connection of the kernel's, to be put into the table. Its names are noted.
pub(super) fn endpoint_of(fd: c_int, reason: Reason, active: bool) -> Option<&'static Endpoint> {
    let (domain, _) = crate::socket::addr::kernel_name(fd)?;
    let Socket { endpoint, .. } = crate::socket::life::allocate(domain)?;
    crate::socket::kernel_socket::note_kernel_names(endpoint, fd);
    mptcp::note(endpoint, fd);
    follow(endpoint, fd, reason, active);
    Some(endpoint)
}

/// A fresh endpoint, whose names are noted, is for a connection of the kernel's from now on.
pub(super) fn follow(endpoint: &'static Endpoint, fd: c_int, reason: Reason, active: bool) {
    endpoint.reason.store(reason as u8, Ordering::Relaxed);
    endpoint.fd.store(fd, Ordering::Relaxed);
    endpoint.set_state(State::Kernel);
    begin(endpoint, active);
}

/// The word of a connection behind a number that is watched.
fn watched(fd: c_int) -> Option<(&'static Endpoint, &'static AtomicU32)> {
    let Entry::Kernel(endpoint) = table::get(fd) else { return None };
    let word = word(endpoint)?;
    // The last thing that is changed when it is moved, behind what the number leads to.
    (word.load(Ordering::Acquire) & WATCHED != 0).then_some((endpoint, word))
}

/// See [`enter`].
pub(crate) fn is_watched(fd: c_int) -> bool {
    watched(fd).is_some()
}

const ODD: c_int = MSG_OOB | MSG_ZEROCOPY | MSG_ERRQUEUE;

/// The usual case of [`enter`]: the number leads to a connection of the kernel's that is watched, of which nothing is promised, and the call on it
/// is counted.
#[inline(never)]
pub(crate) fn enters(fd: c_int, flags: c_int) -> bool {
    let Entry::Kernel(endpoint) = table::get(fd) else { return false };
    let word = &cold::of(endpoint).road;
    let now = word.load(Ordering::Acquire);
    // While that is so the number leads to the kernel's: see `watched`.
    let is_open = now & (WATCHED | CLOSED | PROMISED) == WATCHED && flags & ODD == 0;
    is_open && Counted::enter(endpoint, now).map(|counted| counted.keep(fd)).is_some()
}

/// Before a call of the kernel's on a number that may be watched. True: it is no kernel's connection any more.
pub(crate) fn enter(fd: c_int, flags: c_int) -> bool {
    !enters(fd, flags) && enter_slowly(fd, flags & ODD != 0)
}

#[inline(never)]
fn enter_slowly(fd: c_int, is_odd: bool) -> bool {
    if is_odd {
        unregistered::stays(fd);
    }
    if unregistered::enter(fd) || first::enter(fd, is_odd) {
        sd_sys::thread::count(fd, counted::EARLY);
        return false;
    }
    loop {
        let Some((endpoint, word)) = watched(fd) else {
            // Another thread may have moved it since the caller looked.
            return table::socket(fd).is_some();
        };
        if is_odd {
            stays(endpoint, word, Awaits::Flags);
        }
        let now = word.load(Ordering::Acquire);
        if table::socket(fd).is_some() {
            return true;
        }
        if now & CLOSED != 0 {
            promote::await_open(endpoint);
        } else if now & PROMISED != 0 && now & INSIDE == 0 && promote::attach(endpoint, fd) {
            return true;
        } else if let Some(counted) = Counted::enter(endpoint, now) {
            counted.keep(fd);
            return false;
        }
    }
}

/// Looks at numbers that lead to a connection which has given its slot back, before that is believed.
const LOOKS: u32 = 10_000;

/// A call began on a connection that had a slot, and finds it the kernel's. If it has just given that slot back, its number says so too when this
/// returns: the call can be begun anew. True: it can, and is to be.
#[cold]
#[inline(never)]
pub(crate) fn is_to_begin_anew(endpoint: &'static Endpoint, fd: c_int) -> bool {
    let leads_there = || matches!(table::get(fd), Entry::Socket(other) if core::ptr::eq(other, endpoint));
    let mut looks = 0;
    while looks < LOOKS && road::is_given_back(endpoint) && leads_there() {
        sd_sys::time::yield_now();
        looks += 1;
    }
    endpoint.state_now() == State::Connected || matches!(table::get(fd), Entry::Kernel(_))
}

/// After a call that [`enter`] has let into the kernel.
#[inline(never)]
pub(crate) fn left(fd: c_int, is_message: bool) {
    match sd_sys::thread::uncount(fd) {
        0 => {}
        counted::EARLY => left_first(fd, is_message),
        // SAFETY: nothing else is counted, and it is forgotten where the endpoint's memory is given up.
        word => left_at(unsafe { Counted::kept(word) }, fd, is_message),
    }
}

fn left_at(counted: Counted, fd: c_int, is_message: bool) {
    let cold = cold::of(counted.endpoint());
    // It has just got a slot, which nobody does while another is inside; or the number was closed meanwhile.
    if cold.road.load(Ordering::Relaxed) & WATCHED == 0 || !counted.leave() {
        return;
    }
    if is_message {
        // Of two threads that count at once one may be forgotten.
        let messages = cold.messages.load(Ordering::Relaxed).wrapping_add(1);
        cold.messages.store(messages, Ordering::Relaxed);
        let leads_there =
            || matches!(table::get(fd), Entry::Kernel(e) if core::ptr::eq(e, counted.endpoint()));
        if may_be_due(cold, messages) && leads_there() {
            look(counted.endpoint(), cold, messages, fd);
        }
    }
    detaching::at_edge();
}

/// Whether [`look`] may find something to do.
#[inline(always)]
fn may_be_due(cold: &Cold, messages: u32) -> bool {
    let now = cold.road.load(Ordering::Relaxed);
    messages.is_multiple_of(MESSAGES)
        || now & PROMISED != 0
        || now & OFFERED != 0 && (client::has_mail() || promote::are_awaited())
        || promotes() == Promotes::All
}

/// The process's first connection has no endpoint.
#[inline(never)]
fn left_first(fd: c_int, is_message: bool) {
    let left_it = match unregistered::left(fd, is_message) {
        Left::Other => first::left(fd, is_message),
        early => early,
    };
    match left_it {
        Left::TakenUp(endpoint) => word(endpoint).into_iter().for_each(|word| offer(endpoint, word, fd)),
        // Another thread has taken it up meanwhile, and has counted this one.
        Left::Other => {
            if let Entry::Kernel(endpoint) = table::get(fd) {
                left_at(Counted::now(endpoint), fd, is_message);
            }
        }
        Left::First => {}
    }
}

/// What is to be done for a connection after so many messages.
#[inline(never)]
fn look(endpoint: &'static Endpoint, cold: &'static Cold, messages: u32, fd: c_int) {
    let mut now = cold.road.load(Ordering::Acquire);
    if now & OFFERED != 0 || messages.is_multiple_of(MESSAGES) {
        client::check_mail();
    }
    if now & OFFERED != 0 {
        promote::look_for_tickets();
        now = cold.road.load(Ordering::Acquire);
    }
    if now & PROMISED != 0 && !detaching::is_on() {
        promote::attach(endpoint, fd);
    } else if now & (NEVER | CLOSED) == 0 && !detaching::is_on() {
        match is_due(endpoint, cold, now, messages) {
            true => offer(endpoint, &cold.road, fd),
            false if messages == MESSAGES && now & OFFERED == 0 && !is_paused(cold) => {
                history::awaits(endpoint, Awaits::Rate)
            }
            false => {}
        }
    }
}

/// It is not offered for a while, and says why.
fn is_paused(cold: &Cold) -> bool {
    let pause = cold.pause_ms.load(Ordering::Relaxed);
    pause != 0 && pause & PAUSED_BEFORE == 0
}

/// Whether it is to be offered, now that so many messages have gone over it.
fn is_due(endpoint: &Endpoint, cold: &Cold, word: u32, messages: u32) -> bool {
    let is_test = promotes() == Promotes::All;
    if !is_test && !messages.is_multiple_of(MESSAGES) {
        return false;
    }
    let now = now_ms();
    let since = now.wrapping_sub(cold.looked_at_ms.load(Ordering::Relaxed));
    if word & OFFERED != 0 {
        return since > FORGOTTEN_MS;
    }
    if is_test {
        let pause = cold.pause_ms.load(Ordering::Relaxed);
        return messages > sd_sys::time::ticks() as u32 % 4 && since >= pause;
    }
    has_earned_it(endpoint, cold, (now, since))
}

/// It has not been looked at for so long.
fn has_earned_it(endpoint: &Endpoint, cold: &Cold, (now, since): (u32, u32)) -> bool {
    match cold.pause_ms.load(Ordering::Relaxed) {
        pause if pause == 0 || pause & PAUSED_BEFORE != 0 => {
            cold.looked_at_ms.store(now, Ordering::Relaxed);
            CROWD.is_due(now, since, || crowd::is_far(endpoint))
        }
        // What it did in the pause says nothing of what it does now.
        pause if since >= pause => {
            cold.looked_at_ms.store(now, Ordering::Relaxed);
            cold.pause_ms.store(pause | PAUSED_BEFORE, Ordering::Relaxed);
            false
        }
        _ => false,
    }
}

/// A thread is about to wait for a number in a way of the kernel's that could not be told of what comes in a ring. The caller looks
/// afterwards what the number leads to.
pub(crate) fn waits_elsewhere(fd: c_int) {
    if single_threaded() {
        return;
    }
    let_stay(fd, Awaits::Polled);
}

/// Somebody else gets it, or it is used in a way that is not looked after. The caller looks afterwards what the number leads to.
pub(crate) fn never(fd: c_int) {
    let_stay(fd, Awaits::Passed);
}

/// It stays the kernel's, unless another thread is just moving it: then the number leads to a socket of ours when this returns.
fn let_stay(fd: c_int, why: Awaits) {
    first::stays(fd);
    unregistered::stays(fd);
    let Some((endpoint, word)) = watched(fd) else { return };
    while stays(endpoint, word, why) & CLOSED != 0 && table::socket(fd).is_none() {
        promote::await_open(endpoint);
    }
}

/// It stays the kernel's; what its word was.
fn stays(endpoint: &Endpoint, word: &AtomicU32, why: Awaits) -> u32 {
    let before = word.fetch_or(NEVER, Ordering::AcqRel);
    if before & NEVER == 0 {
        history::awaits(endpoint, why);
    }
    before
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fd::hidden::Hidden;
    use crate::monitor::client::Counts;
    use crate::setup::counted::Inside;
    use crate::socket::life;
    use sd_proto::Ip;
    use sd_shm::channel::Side;
    use sd_shm::slab::End;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::{Mutex, MutexGuard};

    static ALONE: Mutex<()> = Mutex::new(());

    /// As if the process had registered. One test at a time: endpoints are used again.
    fn register() -> MutexGuard<'static, ()> {
        let alone = ALONE.lock().unwrap();
        let fd = sd_sys::mem::memfd_sealed(c"test", sd_shm::slab::LEN).unwrap();
        let slab = sd_shm::slab::Slab::create_in(fd.raw(), std::process::id()).unwrap();
        assert!(table::init());
        let _alloc = PROCESS.alloc.lock();
        assert!(PROCESS.add_slab(slab, Hidden::of(fd)));
        PROCESS.header().promotes.store(Promotes::All as u32, Ordering::Relaxed);
        alone
    }

    /// One end of a connection, its endpoint, and the other end.
    fn connection(listener: &TcpListener) -> (TcpStream, &'static Endpoint, TcpStream) {
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        let endpoint = endpoint_of(near.as_raw_fd(), Reason::RegularPeer, false).unwrap();
        (near, endpoint, far)
    }

    fn word_of(endpoint: &'static Endpoint) -> u32 {
        word(endpoint).unwrap().load(Ordering::Relaxed)
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn calls_and_promises_are_those_of_one_connection() {
        let _alone = register();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let promise = |serial| {
            promote::promised((serial, 1), Side::A, 7, Counts { behind: 0, began: None });
        };
        let (_near, first, _far) = connection(&listener);
        let over = promote::expect(first);
        life::release(first);
        let (_near, second, _far) = connection(&listener);
        assert!(core::ptr::eq(first, second), "the endpoint is used again");
        promise(over);
        assert_eq!(word_of(second) & PROMISED, 0, "that was for the one before");
        promise(promote::expect(second));
        assert_ne!(word_of(second) & PROMISED, 0);

        // A call that began before, and goes on in the kernel's, keeps it from being closed; while it is closed nobody goes in.
        let inside = Inside::enter(second).unwrap();
        assert_eq!(word_of(second) & INSIDE, 1);
        assert!(!promote::close(second, word_of(second), 0));
        drop(inside);
        assert!(promote::close(second, word_of(second), 0));
        assert!(Inside::enter(second).is_none());
        promote::open(second, 0);
        assert!(Inside::enter(second).is_some_and(|inside| inside.0.is_some()));
        assert_eq!(word_of(second) & INSIDE, 0);
        life::release(second);
    }

    /// A number is closed while a thread is in a call on it, and leads to another connection when that returns.
    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_call_leaves_the_connection_that_it_began_on() {
        let _alone = register();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (near, first, _far) = connection(&listener);
        let fd = near.as_raw_fd();
        assert!(table::set_kernel(fd, first));
        assert!(!enter(fd, 0));
        assert_eq!(word_of(first) & INSIDE, 1);
        table::clear(fd);
        life::release(first);
        let (_other, second, _far) = connection(&listener);
        assert!(core::ptr::eq(first, second), "the endpoint is used again");
        assert!(table::set_kernel(fd, second));
        let another = Inside::enter(second).unwrap();
        left(fd, true);
        assert_eq!(word_of(second) & INSIDE, 1, "another thread is in a call on it");
        assert!(!enter(fd, 0));
        assert_eq!(word_of(second) & INSIDE, 2);
        left(fd, true);
        drop(another);
        assert_eq!(word_of(second) & INSIDE, 0);
        table::clear(fd);
        life::release(second);
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn in_a_crowd_between_hosts_each_is_offered_though_slow() {
        let _alone = register();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_near, endpoint, _far) = connection(&listener);
        let cold = cold::of(endpoint);
        let has_earned = |now: u32, since: u32| has_earned_it(endpoint, cold, (now, since));
        let leads_to = |ip| cold::set_ip(endpoint, End::Remote, Ip::v4(ip));
        leads_to([10, 9, 9, 9]);
        assert!(has_earned(10_000, 80) && !has_earned(11_000, 178), "there is no crowd");
        for look in 0..4_000 {
            CROWD.is_due(20_000 + look / 4, 178, || true);
        }
        assert!(has_earned(22_000, 178) && has_earned(23_000, 490));
        let at_once = (0..100).filter(|_| has_earned(23_000, 178)).count();
        assert!(at_once > 0 && at_once < 9, "{at_once} in a millisecond");
        assert!(!has_earned(24_000, 800), "it is sparse");
        cold.pause_ms.store(60_000, Ordering::Relaxed);
        assert!(!has_earned(25_000, 178), "it has just gone back");
        cold.pause_ms.store(0, Ordering::Relaxed);
        leads_to([127, 0, 0, 1]);
        assert!(!has_earned(26_000, 178), "it is this host's");
        life::release(endpoint);
    }
}
