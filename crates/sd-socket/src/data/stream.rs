//! Sending and receiving on a connection.

use crate::data::by_kernel;
use crate::data::claim::{self, Claim};
use crate::data::iov::Pieces;
use crate::data::space;
use crate::data::urgent::{self, Meeting, Situation};
use crate::socket::apart;
use crate::socket::bell::notify;
use crate::socket::cold;
use crate::socket::endpoint::{
    self, EOF, EndpointExt, NONBLOCK, PEER_DEAD, PeerEnd, RESET, SHUT_RD, SHUT_WR, corrupt, peer_end,
};
use crate::socket::errors::{note_end, send_failed, take_error};
use crate::socket::parked::is_parked;
use crate::socket::pin::Pinned;
use crate::socket::road;
use crate::socket::way_back;
use crate::wait::duties::{On, Waiting};
use crate::wait::{Deadline, interrupted, sleep_on_connection, spin};
use core::sync::atomic::Ordering;
use libc::{MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};
use sd_ring::copy::copy_shared;
use sd_ring::token::Way;
use sd_ring::{Effort, Next, doorbell};
use sd_shm::channel::GEOMETRY;
use sd_shm::slab::{Endpoint, FIXED_BUF, TX_PARKED};
use sd_sys::Errno;
use sd_sys::section::Watch;
use sd_sys::time::ticks;

pub(super) const RX_BITS: u32 = doorbell::RX_SLEEP | doorbell::RX_EVENT | doorbell::RX_SIGNAL;
const TX_BITS: u32 = doorbell::TX_SLEEP | doorbell::TX_EVENT | doorbell::TX_SIGNAL;

/// Sends what `pieces` hold: bytes sent, or errno. SIGPIPE is raised as Linux would.
pub(crate) fn send(endpoint: &'static Endpoint, mut pieces: Pieces, flags: i32) -> Result<usize, Errno> {
    let want = pieces.total;
    let nonblock = flags & MSG_DONTWAIT != 0 || endpoint.flag(NONBLOCK);
    let mut deadline = None;
    let mut effort = effort(endpoint, nonblock);
    let mut kept = None;
    let mut claim = Claim::NONE;
    let watch = Watch::start();
    loop {
        let end = push(endpoint, &mut pieces, effort, !nonblock, &mut claim);
        let sent = want - pieces.total;
        match end {
            Push::Done => return Ok(sent),
            Push::Error(_) if sent == 0 && road::is_withdrawn(endpoint) => {
                return Err(crate::setup::withdrawn::moved(&watch, deadline));
            }
            Push::Error(errno) if sent == 0 => return Err(send_failed(errno, flags)),
            Push::Error(errno) => {
                if errno != Errno::EPIPE {
                    endpoint.error.store(errno.0 as u16, Ordering::Relaxed);
                }
                return Ok(sent);
            }
            Push::Full { .. } | Push::Barred if nonblock => {
                space::want_event(endpoint);
                return if sent > 0 { Ok(sent) } else { Err(Errno::EAGAIN) };
            }
            Push::Full { .. } | Push::Barred => {}
        }
        let deadline = *deadline.get_or_insert_with(|| {
            Deadline::option(cold::of(endpoint).tx_timeout_ns.load(Ordering::Relaxed))
        });
        kept = kept.or_else(|| Pinned::new(endpoint));
        if kept.is_none() {
            return if sent > 0 { Ok(sent) } else { Err(Errno::EBADF) };
        }
        let deadline = if sent > 0 { deadline.of_partial() } else { deadline };
        let waited = interrupted(&watch, deadline).and_then(|()| match end {
            Push::Full { seen } => space::wait_tx(endpoint, seen, deadline, effort != Effort::WillGrow),
            _ => claim::wait(endpoint, deadline).map(|()| false),
        });
        // Before the rest is sent, even if there is room by now (tcp_sendmsg).
        let waited = waited.and_then(|slept| interrupted(&watch, deadline).map(|()| slept));
        match waited {
            Ok(true) if effort == Effort::WillGrow => effort = Effort::Grow,
            // SO_SNDBUF was raised meanwhile.
            Ok(_) if effort == Effort::Fresh && !endpoint.flag(FIXED_BUF) => effort = Effort::Grow,
            Ok(_) => {}
            // The ring can still grow: Linux would not have waited.
            Err(Errno::EINTR) if effort == Effort::WillGrow => effort = Effort::Grow,
            Err(_) if sent > 0 => return Ok(sent),
            Err(errno) => return Err(errno),
        }
    }
}

/// How far a first attempt goes to find room.
#[inline(always)]
pub(super) fn effort(endpoint: &Endpoint, nonblock: bool) -> Effort {
    match (endpoint.flag(FIXED_BUF), nonblock) {
        (false, true) => Effort::Grow,
        (false, false) => Effort::WillGrow,
        _ => Effort::Fresh,
    }
}

pub(super) enum Push {
    Done,
    /// No room, with what the peer had consumed when this was found.
    Full {
        seen: u64,
    },
    /// Another call's message is under way.
    Barred,
    Error(Errno),
}

/// Copies as much as fits into the ring, with this effort at most. Who waits for room takes it as a whole.
#[inline]
fn push(
    endpoint: &'static Endpoint,
    pieces: &mut Pieces,
    most: Effort,
    waits: bool,
    claim: &mut Claim,
) -> Push {
    let mut half = endpoint.tx_token();
    if claim.is_barred(endpoint) {
        return Push::Barred;
    }
    if endpoint.flag(SHUT_WR | RESET | TX_PARKED | PEER_DEAD) || endpoint::is_unusual(endpoint) {
        half = match by_kernel::before_push(endpoint, half, pieces, claim) {
            Ok(half) => half,
            Err(end) => return end,
        };
    }
    let mem = endpoint.tx_mem();
    let tx = half.cursor();
    let start = pieces.total;
    let mut credit_read = false;
    while pieces.total > 0 {
        let want = pieces.total.min(u32::MAX as usize >> 1) as u32;
        let effort = if credit_read { most } else { Effort::Cached };
        let grant = match waits {
            true => tx.reserve_whole(&GEOMETRY, &mem, want, effort),
            false => tx.reserve(&GEOMETRY, &mem, want, effort),
        };
        let Some(grant) = grant else {
            if credit_read {
                if pieces.total != start {
                    claim.stake(endpoint);
                }
                return Push::Full { seen: tx.credited() };
            }
            credit_read = true;
            if tx.credit(endpoint.peer_words().consumed.load(Ordering::Acquire)).is_err() {
                corrupt(endpoint);
                return Push::Error(Errno::ECONNRESET);
            }
            continue;
        };
        credit_read = false;
        let mut filled = 0u32;
        while filled < grant.len {
            let (from, len) = pieces.piece((grant.len - filled) as usize);
            // SAFETY: the grant is room in our ring that the peer does not read yet; the caller
            // of the hooked function vouches for its buffer.
            unsafe { copy_shared(mem.at(grant.region, grant.off + filled), from, len) };
            pieces.advance(len);
            filled += len as u32;
        }
        tx.commit(&mem, filled, crate::socket::bell::stamp(endpoint));
        add(&endpoint.tx().bytes, u64::from(filled));
        notify(endpoint, RX_BITS);
    }
    Push::Done
}

#[inline(always)]
pub(crate) fn add(counter: &core::sync::atomic::AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// What to do with received bytes.
#[derive(Clone, Copy)]
struct Take {
    /// Not MSG_PEEK.
    advance: bool,
    /// Not MSG_TRUNC.
    copy: bool,
    /// The call has received something already.
    any: bool,
    /// It has let a handler of SIGURG run.
    urged: bool,
}

/// SO_RCVLOWAT.
#[inline(always)]
fn low_water(endpoint: &Endpoint) -> usize {
    endpoint.rx().lowat.load(Ordering::Relaxed).max(1) as usize
}

/// Receives into `pieces`: bytes received (0 = end of stream), or errno.
#[inline]
pub(crate) fn recv(endpoint: &'static Endpoint, mut pieces: Pieces, flags: i32) -> Result<usize, Errno> {
    let want = pieces.total;
    let (advance, copy) = (flags & MSG_PEEK == 0, flags & MSG_TRUNC == 0);
    let mut take = Take { advance, copy, any: false, urged: false };
    let least = if flags & MSG_WAITALL != 0 { want } else { low_water(endpoint).min(want) };
    let nonblock = flags & MSG_DONTWAIT != 0 || endpoint.flag(NONBLOCK);
    let mut deadline = None;
    let mut kept = None;
    let watch = Watch::start();
    loop {
        let before = pieces.total;
        let found = pull(endpoint, &mut pieces, take);
        let got = want - pieces.total;
        match found {
            Pull::Error(_) | Pull::End if got == 0 && road::is_withdrawn(endpoint) => {
                return Err(crate::setup::withdrawn::moved(&watch, deadline));
            }
            Pull::Error(errno) if got == 0 => return Err(errno),
            Pull::Error(errno) => {
                // Kept for the next call, as the kernel does.
                endpoint.error.store(errno.0 as u16, Ordering::Relaxed);
                return Ok(got);
            }
            Pull::End | Pull::Mark => return Ok(got),
            Pull::Some if got >= least || nonblock => return Ok(got),
            Pull::Empty if got > 0 && nonblock => return Ok(got),
            Pull::Empty if nonblock => return Err(by_kernel::nothing(endpoint)),
            Pull::Some | Pull::Empty => {}
            Pull::Urge => {
                take.urged = true;
                urgent::urge(endpoint);
                continue;
            }
        }
        if !take.advance {
            // A peek that wants more starts again from the front.
            let taken = before - pieces.total;
            pieces = pieces.rewound(taken);
        }
        let deadline = *deadline.get_or_insert_with(|| {
            Deadline::option(cold::of(endpoint).rx_timeout_ns.load(Ordering::Relaxed))
        });
        kept = kept.or_else(|| Pinned::new(endpoint));
        if kept.is_none() {
            return if got > 0 { Ok(got) } else { Err(Errno::EBADF) };
        }
        take.any = take.advance && got > 0;
        let peeked = if take.advance { None } else { Some(got) };
        let deadline = if got > 0 { deadline.of_partial() } else { deadline };
        if let Err(errno) = wait_rx(endpoint, deadline, peeked, &watch) {
            // Linux waits for the first byte even when none is wanted, but then asks no more why the wait ended.
            return if got > 0 || want == 0 { Ok(got) } else { Err(errno) };
        }
        // The program waits for what came: the short way to it.
        if got == 0
            && take.advance
            && take.copy
            && let Some((to, len)) = pieces.single()
        {
            pieces.advance(crate::data::fast::recv(endpoint, to, len));
            if want - pieces.total >= least {
                return Ok(want - pieces.total);
            }
        }
    }
}

pub(super) enum Pull {
    /// Something was taken (or nothing was asked for, and something is there).
    Some,
    /// There is nothing yet.
    Empty,
    /// The end of the stream.
    End,
    /// The urgent mark, behind something that was taken.
    Mark,
    /// See [`Meeting::Urge`].
    Urge,
    Error(Errno),
}

impl Pull {
    /// The peer broke the protocol.
    #[cold]
    pub(super) fn corrupt(endpoint: &Endpoint) -> Pull {
        corrupt(endpoint);
        Pull::Error(Errno::ECONNRESET)
    }

    /// The peer says that it has finished.
    #[cold]
    fn fin(endpoint: &Endpoint) -> Pull {
        endpoint.set_flag(EOF);
        Pull::End
    }

    /// An error after something was taken, or not.
    #[cold]
    fn failed(errno: Errno, is_partial: bool) -> Pull {
        if is_partial { Pull::Some } else { Pull::Error(errno) }
    }
}

/// Takes what there is, as far as it fits.
#[inline]
fn pull(endpoint: &'static Endpoint, pieces: &mut Pieces, take: Take) -> Pull {
    let start = pieces.total;
    let how = (take.advance, take.copy);
    let mut half = match by_kernel::pull_first(endpoint, pieces, how) {
        Ok(half) => half,
        Err(found) => return found,
    };
    let mem = endpoint.rx_mem();
    let cursor = half.cursor();
    let mut peeked = *cursor;
    let rx = if take.advance { cursor } else { &mut peeked };
    let mut ended = false;
    loop {
        match apart::next(endpoint, rx) {
            Ok(Next::Data { .. }) if pieces.total == 0 => return Pull::Some,
            Ok(Next::Data { region, off, len }) => {
                let (to, mut len) = pieces.piece(len as usize);
                if take.copy {
                    let from = mem.at(region, off);
                    // SAFETY: the ring checked the place; the caller of the hooked function vouches for its buffer.
                    len = match unsafe { apart::copy(endpoint, rx, (to, from, len)) } {
                        Ok(copied) => copied,
                        Err(errno) => return Pull::failed(errno, pieces.total != start),
                    };
                }
                rx.advance(len as u32);
                pieces.advance(len);
                if take.advance {
                    add(&endpoint.rx().bytes, len as u64);
                    if let Some(consumed) = rx.credit_due(&GEOMETRY) {
                        publish_credit(endpoint, consumed);
                    }
                }
                if pieces.total == 0 {
                    return Pull::Some;
                }
            }
            Ok(Next::Empty | Next::Marker) if pieces.total != start => return Pull::Some,
            Ok(Next::Fin) => return Pull::fin(endpoint),
            Ok(Next::Empty) if ended => return Pull::End,
            Ok(Next::Empty) => match empty(endpoint) {
                Empty::Wait => return Pull::Empty,
                Empty::LookAgain => ended = true,
                Empty::End => return Pull::End,
                Empty::Error(errno) => return Pull::Error(errno),
            },
            Ok(Next::Urgent) if pieces.total == 0 => return Pull::Some,
            Ok(Next::Urgent) => {
                let any = take.any || pieces.total != start;
                match urgent::meet(endpoint, rx, Situation { any, urged: take.urged }) {
                    Meeting::Wait => return Pull::Empty,
                    Meeting::Urge => return Pull::Urge,
                    Meeting::Stop => return Pull::Mark,
                    Meeting::Take => rx.admit_urgent(),
                    Meeting::Skip => {
                        rx.admit_urgent();
                        rx.advance(1);
                        if take.advance {
                            add(&endpoint.rx().bytes, 1);
                        }
                    }
                }
            }
            Ok(Next::Marker) => return by_kernel::pull_behind_marker(endpoint, half, pieces, how),
            Ok(Next::Apart) | Err(sd_ring::Corrupt) => return Pull::corrupt(endpoint),
        }
    }
}

#[inline]
pub(super) fn publish_credit(endpoint: &Endpoint, consumed: u64) {
    endpoint.own_words().consumed.store(consumed, Ordering::Release);
    notify(endpoint, TX_BITS);
}

enum Empty {
    Wait,
    /// The peer is gone, or says that it has finished; what it sent before has to be looked for once more. If the end
    /// is not there either, the peer has lied, and a socket that is readable and has nothing to read would be worse.
    LookAgain,
    End,
    Error(Errno),
}

/// The ring is empty: is that all there will ever be?
#[inline]
fn empty(endpoint: &'static Endpoint) -> Empty {
    let is_over = endpoint.flag(SHUT_RD | RESET) || endpoint::peer_finished(endpoint);
    if is_over || peer_end(endpoint) == PeerEnd::Reset {
        return empty_slow(endpoint);
    }
    Empty::Wait
}

#[cold]
fn empty_slow(endpoint: &'static Endpoint) -> Empty {
    note_end(endpoint);
    if endpoint.flag(EOF) {
        return by_kernel::error_at_end(endpoint).map_or(Empty::End, Empty::Error);
    }
    if endpoint.flag(RESET) {
        return read_error(endpoint).map_or(Empty::End, Empty::Error);
    }
    if endpoint.flag(SHUT_RD) {
        return Empty::End;
    }
    if endpoint::peer_finished(endpoint) { Empty::LookAgain } else { Empty::Wait }
}

/// A reset behind the peer's end is told to who sends. Who reads has read up to the end (SOCK_DONE comes before the error in tcp_recvmsg).
fn read_error(endpoint: &Endpoint) -> Option<Errno> {
    let is_end = endpoint.error.load(Ordering::Relaxed) == Errno::EPIPE.0 as u16;
    if is_end { None } else { take_error(endpoint) }
}

/// A look without the lock: is there something to receive, or an end?
#[inline(always)]
fn rx_hint(endpoint: &'static Endpoint) -> bool {
    // One torn by another thread only gives a wrong hint (`next` checks offsets against the mapping's regions).
    let Some(mut rx) = crate::socket::parked::receiver(endpoint) else { return true };
    let found = match apart::next(endpoint, &mut rx) {
        Ok(Next::Urgent) => !urgent::is_kept(endpoint, &rx),
        found => found != Ok(Next::Empty),
    };
    found || endpoint.flag(RESET | SHUT_RD) || peer_end(endpoint) != PeerEnd::Open
}

/// Waits until there is something to receive, beyond the bytes that were peeked at.
fn wait_rx(
    endpoint: &'static Endpoint,
    deadline: Deadline,
    peeked: Option<usize>,
    watch: &Watch,
) -> Result<(), Errno> {
    if is_parked(endpoint, Way::Receive) && road::is_by_kernel(endpoint, road::RX_KERNEL | road::RX_LEFT) {
        return by_kernel::wait_rx(endpoint, deadline, watch);
    }
    let ready = || match peeked {
        None | Some(0) => rx_hint(endpoint),
        Some(peeked) => {
            crate::socket::ring_view::data_bytes(endpoint) > peeked
                // What comes may be in the kernel's connection by now, as the mail says that was just taken in.
                || is_parked(endpoint, Way::Receive)
                || endpoint.flag(RESET | SHUT_RD)
                || endpoint::peer_finished(endpoint)
        }
    };
    let mut waiting = Waiting::begin(Some(endpoint), ticks());
    if spin(&endpoint.rx().spin, ready) {
        return Ok(());
    }
    crate::memory::idle::return_credit(endpoint);
    let generation = endpoint.generation.load(Ordering::Relaxed);
    loop {
        let pause = waiting.before_sleep(On::Word);
        let value = doorbell::arm(&endpoint.own_words().wait, doorbell::RX_SLEEP);
        if ready() {
            return Ok(());
        }
        if way_back::is_due_now(endpoint) {
            crate::epoll::look_at_way_back(endpoint);
            return Ok(());
        }
        interrupted(watch, deadline)?;
        let slept = sleep_on_connection(endpoint, value, deadline, pause);
        waiting.after_sleep();
        if endpoint.generation.load(Ordering::Relaxed) != generation {
            return Err(Errno::EBADF);
        }
        slept?;
        crate::setup::withdrawn::look(endpoint, watch, deadline)?;
        if way_back::is_begun(endpoint) {
            crate::epoll::look_at_way_back(endpoint);
            return Ok(());
        }
        if pause.is_none() || ready() {
            return Ok(());
        }
    }
}

/// Sends all of it, waiting if need be even on a non-blocking socket.
pub(super) fn send_all(endpoint: &'static Endpoint, mut pieces: Pieces) -> Result<usize, Errno> {
    let want = pieces.total;
    let mut claim = Claim::NONE;
    loop {
        match push(endpoint, &mut pieces, Effort::Grow, true, &mut claim) {
            Push::Done => return Ok(want),
            Push::Error(errno) => return Err(send_failed(errno, 0)),
            Push::Barred => claim::wait(endpoint, Deadline::after(None))?,
            Push::Full { seen } => {
                space::wait_tx(endpoint, seen, Deadline::after(None), true)?;
            }
        }
    }
}
