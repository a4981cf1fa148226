//! Sending and receiving on a connection of which a direction is the kernel's still (`socket::road`).
//!
//! The system calls that are made here never wait, so a token is held for no longer than such a call takes. Who has to wait does so for
//! the kernel's connection and for the peer's announcements at once. Where the slot was given back while a call was under way, the call counts
//! as one of the kernel's ([`Inside`]).

use crate::data::claim::Claim;
use crate::data::iov::Pieces;
use crate::data::stream::{Pull, Push};
use crate::process::waker::Sleeper;
use crate::setup::counted::Inside;
use crate::setup::promote::await_open;
use crate::socket::endpoint::{EOF, EndpointExt, FIN_SENT, SHUT_RD, SHUT_WR};
use crate::socket::errors::{keep_end, send_error, take_end};
use crate::socket::far_end::AtEnd;
use crate::socket::kernel_socket::{MOVED, is_moved};
use crate::socket::parked::is_parked;
use crate::socket::road::{self, RX_KERNEL, RX_LEFT, TX_KERNEL, TX_LEFT};
use crate::socket::token::{Half, Rx, Tx};
use crate::socket::{broken, far_end, resend, way_back};
use crate::wait::duties::{On, Waiting};
use crate::wait::sleep_set::SleepSet;
use crate::wait::{Deadline, earlier, interrupted, ready};
use core::sync::atomic::Ordering;
use libc::{EPOLLIN, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_TRUNC, POLLIN, POLLOUT};
use sd_ring::RxCursor;
use sd_ring::road::{Receive, RoadWord, Send};
use sd_ring::token::Way;
use sd_shm::channel::FLAG_READS_NO_MORE;
use sd_shm::slab::Endpoint;
use sd_sys::Errno;
use sd_sys::section::Watch;
use sd_sys::time::ticks;

/// One system call; the caller of the hooked function vouches for its buffer.
fn send_once(fd: i32, (from, len): (*const u8, usize), flags: i32) -> Result<usize, Errno> {
    // SAFETY: the caller's buffer, for the kernel to check.
    sd_sys::check(unsafe {
        sd_sys::syscall!(libc::SYS_sendto, fd, from, len, flags | MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0)
    })
}

/// As [`send_once`].
fn recv_once(fd: i32, (to, len): (*mut u8, usize), flags: i32) -> Result<usize, Errno> {
    // SAFETY: the caller's buffer, for the kernel to check.
    sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_recvfrom, fd, to, len, flags | MSG_DONTWAIT, 0, 0) })
}

/// What comes before a ring that does not take the bytes as it is: the kernel's connection, or an end.
#[cold]
pub(super) fn before_push(
    endpoint: &'static Endpoint,
    mut half: Half<'static, Tx>,
    pieces: &mut Pieces,
    claim: &mut Claim,
) -> Result<Half<'static, Tx>, Push> {
    if !half.cursor().is_parked() && way_back::is_wanted_by_peer(endpoint) {
        drop(half);
        crate::epoll::look_at_way_back(endpoint);
        half = endpoint.tx_token();
    }
    if half.cursor().is_parked() {
        half = push_first(endpoint, half, pieces, claim)?;
    }
    match send_error(endpoint, pieces.total) {
        None => Ok(half),
        Some(Err(errno)) => Err(Push::Error(errno)),
        Some(Ok(())) => {
            // Sent as far as a buffer goes, and answered by a reset.
            pieces.total = pieces.total.saturating_sub(crate::wait::ready::room_max(endpoint));
            Err(Push::Done)
        }
    }
}

/// The sending half for who writes into the ring, after what the kernel's connection takes; or what came of that.
fn push_first(
    endpoint: &'static Endpoint,
    half: Half<'static, Tx>,
    pieces: &mut Pieces,
    claim: &mut Claim,
) -> Result<Half<'static, Tx>, Push> {
    drop(half);
    crate::epoll::give_back(endpoint);
    loop {
        let half = endpoint.tx_token();
        let Some(inside) = Inside::enter(endpoint) else {
            drop(half);
            await_open(endpoint);
            continue;
        };
        if let Some(end) = push(endpoint, pieces, claim) {
            return Err(end);
        }
        drop((inside, half));
        crate::epoll::moved(endpoint);
        let mut half = endpoint.tx_token();
        // Another thread may have had it go back by now.
        if !half.cursor().is_parked() {
            return Ok(half);
        }
    }
}

/// Sends through the kernel's connection what it takes, for who has the token. `None`: from here on the bytes go through the ring.
#[cold]
fn push(endpoint: &'static Endpoint, pieces: &mut Pieces, claim: &mut Claim) -> Option<Push> {
    if !road::is_by_kernel(endpoint, TX_KERNEL | TX_LEFT) {
        // It ends, or another thread has switched.
        return None;
    }
    let Some(fd) = road::number(endpoint) else { return Some(Push::Error(Errno::EBADF)) };
    let is_over = endpoint.flag(SHUT_WR);
    match road::next_of_sender(endpoint, !is_over) {
        Send::Switch if road::switch(endpoint, fd) => return None,
        // Who said so died before it was noted here.
        Send::Ring | Send::Leave => {
            road::has_switched(endpoint);
            return None;
        }
        Send::Resend if !resend::go_on(endpoint) => return Some(Push::Full { seen: 0 }),
        // It stays the kernel's.
        Send::Decline | Send::Mark => way_back::say_left(endpoint),
        _ => {}
    }
    let start = pieces.total;
    loop {
        let (from, len) = pieces.piece(usize::MAX);
        match send_once(fd, (from.cast_const(), len), 0) {
            Ok(sent) => pieces.advance(sent),
            Err(Errno::EAGAIN) => {
                if pieces.total != start {
                    claim.stake(endpoint);
                }
                return Some(Push::Full { seen: 0 });
            }
            Err(Errno::EPIPE) => return Some(Push::Error(take_end(endpoint).unwrap_or(Errno::EPIPE))),
            Err(errno) => return Some(Push::Error(errno)),
        }
        if pieces.total == 0 {
            return Some(Push::Done);
        }
    }
}

/// The receiving half for who reads the ring, after what the kernel's connection has; or what came of that, if the ring is not to be read.
/// `take` is whether the bytes are taken, and copied.
#[inline(always)]
pub(super) fn pull_first(
    endpoint: &'static Endpoint,
    pieces: &mut Pieces,
    take: (bool, bool),
) -> Result<Half<'static, Rx>, Pull> {
    let half = endpoint.rx_token();
    if is_parked(endpoint, Way::Receive) { pull_from_kernel(endpoint, half, pieces, take) } else { Ok(half) }
}

#[cold]
fn pull_from_kernel(
    endpoint: &'static Endpoint,
    mut half: Half<'static, Rx>,
    pieces: &mut Pieces,
    take: (bool, bool),
) -> Result<Half<'static, Rx>, Pull> {
    let start = pieces.total;
    // Another thread may have had it go back again, before the half is taken anew.
    while is_parked(endpoint, Way::Receive) {
        drop(half);
        crate::epoll::give_back(endpoint);
        half = endpoint.rx_token();
        let Some(_inside) = Inside::enter(endpoint) else {
            drop(half);
            await_open(endpoint);
            half = endpoint.rx_token();
            continue;
        };
        if road::is_by_kernel(endpoint, RX_KERNEL | RX_LEFT)
            && let Some(found) = pull(endpoint, half.cursor(), pieces, take)
        {
            if pieces.total == start {
                return Err(found);
            }
            if stands_at_ring(endpoint) {
                drop(half);
                arrived(endpoint);
            }
            if let Pull::Error(errno) = found {
                // Kept for the next call, as the kernel does.
                endpoint.error.store(errno.0 as u16, Ordering::Relaxed);
            }
            return Err(Pull::Some);
        }
        drop(half);
        arrived(endpoint);
        half = endpoint.rx_token();
    }
    Ok(half)
}

/// The caller's buffer ended where the ring begins, for who has the token. What is in the ring may have come before, and nobody was told of
/// it; nobody else would look.
fn stands_at_ring(endpoint: &'static Endpoint) -> bool {
    let Some(fd) = road::number(endpoint) else { return false };
    let stands = road::next_of_receiver(endpoint, fd, 0) == Receive::Ring;
    if stands {
        road::arrive(endpoint);
    }
    stands
}

/// Receives from the kernel's connection, for who has the token. `None`: what follows is in the ring.
fn pull(
    endpoint: &'static Endpoint,
    rx: &mut RxCursor,
    pieces: &mut Pieces,
    (advance, copy): (bool, bool),
) -> Option<Pull> {
    let Some(fd) = road::number(endpoint) else { return Some(Pull::Error(Errno::EBADF)) };
    let flags = if advance { 0 } else { MSG_PEEK } | if copy { 0 } else { MSG_TRUNC };
    loop {
        // Before the look at the peer's word: what comes later may already stand behind what is in the ring.
        let is_for_good = road::is_by_kernel(endpoint, RX_LEFT);
        let waiting = if is_for_good { Ok(usize::MAX) } else { waiting(fd, pieces.total) };
        let most = match road::next_of_receiver(endpoint, fd, waiting.map_or(0, |bytes| bytes as u64)) {
            Receive::Kernel(most) => usize::try_from(most).unwrap_or(usize::MAX),
            Receive::Ring => {
                // The look has taken an end's error.
                let _ = waiting.map_err(|errno| keep_end(endpoint, errno));
                road::arrive(endpoint);
                return None;
            }
            Receive::Lie | Receive::Rest(_) => return Some(Pull::corrupt(endpoint)),
        };
        if most == 0 && waiting.is_ok_and(|bytes| bytes != 0) {
            return Some(Pull::Empty);
        }
        if pieces.total == 0 {
            let has_some = sd_sys::fd::poll_one(fd, POLLIN, 0).is_ok_and(|events| events != 0);
            return Some(if has_some { Pull::Some } else { Pull::Empty });
        }
        match waiting.and_then(|_| recv_once(fd, pieces.piece(most), flags)) {
            Ok(0) if resend::read_rest(endpoint, rx, fd) => return None,
            Ok(0) if far_end::at_end(endpoint) == AtEnd::Untold => return Some(Pull::Empty),
            Ok(0) if far_end::at_end(endpoint) == AtEnd::Reset => return Some(reset_instead(endpoint, fd)),
            Ok(0) => {
                // There is no error any more that would say it.
                if let Some(errno) = take_end(endpoint) {
                    return Some(Pull::Error(errno));
                }
                endpoint.set_flag(EOF);
                return Some(Pull::End);
            }
            Ok(got) => {
                if advance {
                    road::has_read(endpoint, got);
                }
                pieces.advance(got);
            }
            Err(Errno::EAGAIN) => return Some(Pull::Empty),
            Err(errno) => return Some(Pull::Error(errno)),
        }
        if pieces.total == 0 || !advance {
            return Some(Pull::Some);
        }
    }
}

/// Where the stream ends something is missing; that is told once, as a reset is.
fn reset_instead(endpoint: &Endpoint, fd: i32) -> Pull {
    broken::reset_if_read(endpoint, fd);
    let is_told = endpoint.flag(EOF);
    endpoint.set_flag(EOF);
    let of_kernel = take_end(endpoint);
    of_kernel.or_else(|| (!is_told).then_some(Errno::ECONNRESET)).map_or(Pull::End, Pull::Error)
}

/// The kernel's stream has ended by an error that nobody was told of, and what was left in the ring has been read.
#[cold]
pub(super) fn error_at_end(endpoint: &Endpoint) -> Option<Errno> {
    if road::is_promoted(endpoint) { take_end(endpoint) } else { None }
}

/// So many bytes would be received now; zero: the end has come.
fn waiting(fd: i32, wanted: usize) -> Result<usize, Errno> {
    recv_once(fd, (core::ptr::null_mut(), wanted.max(1)), MSG_PEEK | MSG_TRUNC)
}

/// The receiver stands at the marker, and has nothing in front of it: what follows is in the kernel's connection.
#[cold]
pub(super) fn pull_behind_marker(
    endpoint: &'static Endpoint,
    half: Half<'static, Rx>,
    pieces: &mut Pieces,
    take: (bool, bool),
) -> Pull {
    if !road::is_promoted(endpoint) {
        return Pull::corrupt(endpoint);
    }
    drop(half);
    crate::epoll::look_at_way_back(endpoint);
    match pull_first(endpoint, pieces, take) {
        Err(found) => found,
        // Promoted again.
        Ok(_) => Pull::Empty,
    }
}

/// What comes is in the ring from now on; for who has no token.
#[cold]
pub(super) fn arrived(endpoint: &'static Endpoint) {
    crate::epoll::moved(endpoint);
    let least = road::number(endpoint)
        .and_then(|fd| sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).ok());
    if let Some(least) = least.filter(|least| *least > 1) {
        crate::setup::remember::set_least(endpoint, least);
    }
    if way_back::is_half_there(endpoint) {
        crate::epoll::look_at_way_back(endpoint);
    }
}

/// A call has found nothing, and does not wait. If the road to another host is gone, nobody else may see to that.
#[inline(always)]
pub(super) fn nothing(endpoint: &'static Endpoint) -> Errno {
    if way_back::may_be_broken(endpoint) {
        crate::epoll::look_at_way_back(endpoint);
    }
    Errno::EAGAIN
}

/// Waits until something can be received, wherever from.
#[cold]
pub(super) fn wait_rx(endpoint: &'static Endpoint, deadline: Deadline, watch: &Watch) -> Result<(), Errno> {
    let ready = || {
        let found = ready::mask(endpoint, EPOLLIN as u32) | crate::wait::by_kernel::kernel_part(endpoint);
        found & EPOLLIN as u32 != 0 || !road::is_by_kernel(endpoint, RX_KERNEL | RX_LEFT)
    };
    let has_ended = || road::number(endpoint).is_some_and(sd_sys::tcp::has_ended);
    if far_end::is_untold(endpoint) && has_ended() {
        // What it waits for does not come there.
        crate::epoll::drain();
        let _ = sd_sys::time::sleep_ns(UNTOLD_PAUSE_NS);
        return interrupted(watch, deadline);
    }
    wait(endpoint, POLLIN, ready, deadline, watch)
}

const UNTOLD_PAUSE_NS: u64 = 300_000;

/// Waits until the kernel takes something.
#[cold]
pub(super) fn wait_tx(endpoint: &'static Endpoint, deadline: Deadline, watch: &Watch) -> Result<(), Errno> {
    wait(endpoint, POLLOUT, || !road::is_by_kernel(endpoint, TX_KERNEL | TX_LEFT), deadline, watch)
}

fn wait(
    endpoint: &'static Endpoint,
    events: i16,
    ready: impl Fn() -> bool,
    deadline: Deadline,
    watch: &Watch,
) -> Result<(), Errno> {
    if deadline.left() == Some(0) {
        return Err(Errno::EAGAIN);
    }
    let mut waiting = Waiting::begin(None, ticks());
    let pause = waiting.before_sleep(On::Events);
    // As long as it is the kernel's it stays that: nobody would be woken for what comes in another ring.
    let Some(_inside) = Inside::enter(endpoint) else {
        await_open(endpoint);
        return interrupted(watch, deadline);
    };
    let sleeper = Sleeper::enter();
    let set = SleepSet::take(&sleeper)?;
    crate::epoll::drain();
    ready::arm(endpoint, EPOLLIN as u32);
    let Some(fd) = road::number(endpoint) else { return Err(Errno::EBADF) };
    if ready() || sleeper.is_stale() {
        return Ok(());
    }
    let pause = earlier(pause, waiting.announced());
    let mut fds = [SleepSet::FIRST, libc::pollfd { fd, events, revents: 0 }];
    interrupted(watch, deadline)?;
    let slept = set.sleep(&mut fds, earlier(deadline.left(), pause), core::ptr::null());
    waiting.after_sleep();
    match slept {
        // A sleep in ppoll always ends so.
        Err(Errno::EINTR) => interrupted(watch, deadline),
        other => other,
    }
}

/// An urgent byte while what is sent goes through the kernel's connection, which it does from then on; for who has the token. `None`: nobody may enter for a
/// moment, see [`Inside`].
#[cold]
pub(super) fn push_urgent(endpoint: &'static Endpoint, byte: u8) -> Option<Push> {
    let Some(fd) = road::number(endpoint) else { return Some(Push::Error(Errno::EBADF)) };
    let _inside = Inside::enter(endpoint)?;
    road::stay(endpoint);
    Some(match send_once(fd, (&raw const byte, 1), MSG_OOB) {
        Ok(_) => Push::Done,
        Err(Errno::EAGAIN) => Push::Full { seen: 0 },
        Err(errno) => Push::Error(errno),
    })
}

/// MSG_OOB while what comes goes through the kernel's connection.
#[cold]
pub(super) fn recv_urgent(
    endpoint: &'static Endpoint,
    pieces: &mut Pieces,
    flags: i32,
) -> Option<Result<usize, Errno>> {
    if !road::is_by_kernel(endpoint, RX_KERNEL | RX_LEFT) {
        return None;
    }
    let fd = road::number(endpoint)?;
    let _inside = loop {
        match Inside::enter(endpoint) {
            Some(inside) => break inside,
            None => await_open(endpoint),
        }
    };
    Some(recv_once(fd, pieces.piece(usize::MAX), flags | MSG_OOB))
}

/// shutdown(2) while a direction is the kernel's. Which of the ends are the ring's is left to the caller.
#[cold]
pub(super) fn shutdown(endpoint: &'static Endpoint, how: i32) -> Result<i32, Errno> {
    let (wants_rx, wants_tx) = (how != libc::SHUT_WR, how != libc::SHUT_RD);
    let _half = endpoint.tx_token();
    if is_moved(endpoint) {
        return Err(MOVED);
    }
    let directions = crate::wait::by_kernel::directions(endpoint);
    let fd = road::number(endpoint).ok_or(Errno::EBADF)?;
    // What is still to be sent again comes first; whoever has done that shuts the kernel's direction down.
    let own = endpoint.own_words();
    let is_asked = own.road().has(RoadWord::RESUME) && !own.road().has(RoadWord::LEFT);
    let resends = wants_tx && directions & TX_KERNEL != 0 && is_asked && !resend::go_on(endpoint);
    let by_kernel = match (wants_rx, wants_tx && directions & TX_KERNEL != 0 && !resends) {
        (true, true) => Some(libc::SHUT_RDWR),
        (true, false) => Some(libc::SHUT_RD),
        (false, true) => Some(libc::SHUT_WR),
        (false, false) => None,
    };
    if let Some(how) = by_kernel {
        // SAFETY: no pointers.
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_shutdown, fd, how) })?;
    }
    if wants_tx && directions & TX_KERNEL != 0 {
        endpoint.set_flag(SHUT_WR | FIN_SENT);
        if !resends && road::is_far(endpoint) {
            // Else the other end waits to hear whether this is all.
            own.say(RoadWord::LEFT);
        }
    }
    if wants_rx {
        endpoint.own_words().flags.fetch_or(FLAG_READS_NO_MORE, Ordering::AcqRel);
        endpoint.set_flag(SHUT_RD);
    }
    Ok(if wants_tx && directions & TX_KERNEL == 0 { libc::SHUT_WR } else { -1 })
}
