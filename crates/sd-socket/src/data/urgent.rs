//! Urgent data: MSG_OOB, the mark in the stream, as Linux' tcp_recv_urg() and tcp_check_urg() have them.
//!
//! ```text
//!  sender: words.urgent = position, byte --> header Urgent in the ring, one byte of payload
//!  receiver: words.urgent says at once that there is one; the header says where the stream has it
//! ```
//! Only the last urgent byte counts. One that was replaced before it was reached is ordinary data. The mark stops
//! a recv that has something; the next one passes over the byte, unless SO_OOBINLINE is set.
//!
//! Reading out of band takes no lock and moves no cursor, so a handler of SIGURG may do it whatever it interrupts.
//!
//! Tested by `urgent/` of `tests/posix`, and by the model of `sd-ring`.

use crate::data::by_kernel;
use crate::data::claim::{self, Claim};
use crate::data::iov::Pieces;
use crate::data::stream::{self, Push, RX_BITS};
use crate::socket::bell::notify;
use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, NONBLOCK, OOB_INLINE, PeerEnd, RESET, corrupt, peer_end};
use crate::socket::ring_view::{VALID, is_mark, is_pending, unread};
use crate::socket::road;
use crate::wait::Deadline;
use core::sync::atomic::Ordering;
use libc::{MSG_DONTWAIT, MSG_OOB, MSG_PEEK, MSG_TRUNC};
use sd_ring::{Effort, Next, RxCursor};
use sd_shm::channel::{FLAG_URGENT, GEOMETRY};
use sd_shm::slab::{Endpoint, FIXED_BUF};
use sd_sys::Errno;

/// What to do at an urgent byte.
pub(super) enum Meeting {
    /// Return what there is so far.
    Stop,
    /// Pass over it.
    Skip,
    /// Receive it like any other.
    Take,
    /// Nothing but this byte is there, and a handler of SIGURG will come for it.
    Wait,
    /// The handler must have its chance before the stream goes on: see [`urge`].
    Urge,
}

/// A receiver's situation at an urgent byte.
pub(super) struct Situation {
    /// The call has received something.
    pub(super) any: bool,
    /// It has met [`Meeting::Urge`].
    pub(super) urged: bool,
}

/// What `rx`, which is at an urgent byte, does with it.
#[cold]
pub(super) fn meet(endpoint: &Endpoint, rx: &RxCursor, now: Situation) -> Meeting {
    match (is_mark(endpoint, rx), now.any, endpoint.flag(OOB_INLINE)) {
        (true, true, _) => Meeting::Stop,
        (true, false, false) if !is_expected(endpoint) => Meeting::Skip,
        (true, false, false) if is_alone(endpoint, rx) => Meeting::Wait,
        (true, false, false) if !now.urged => Meeting::Urge,
        (_, false, false) => Meeting::Skip,
        _ => Meeting::Take,
    }
}

/// Whether a recv that waits goes on waiting although `rx` is at an urgent byte.
#[cold]
pub(super) fn is_kept(endpoint: &Endpoint, rx: &RxCursor) -> bool {
    is_mark(endpoint, rx) && !endpoint.flag(OOB_INLINE) && is_expected(endpoint) && is_alone(endpoint, rx)
}

/// The urgent byte was not received out of band, and its owner gets SIGURG, so it may be soon. On Linux the signal
/// comes before any recv can pass over the byte; ours comes a little later.
fn is_expected(endpoint: &Endpoint) -> bool {
    is_pending(endpoint) && cold::of(endpoint).owner.load(Ordering::Relaxed) != 0
}

/// Nothing is behind the urgent byte at which `rx` is.
fn is_alone(endpoint: &Endpoint, rx: &RxCursor) -> bool {
    let mut behind = *rx;
    behind.admit_urgent();
    behind.advance(1);
    crate::socket::apart::next(endpoint, &mut behind) == Ok(Next::Empty)
        && peer_end(endpoint) == PeerEnd::Open
}

/// Gives a handler in this process its chance, which may make one SIGURG of two.
#[cold]
pub(super) fn urge(endpoint: &Endpoint) {
    if cold::of(endpoint).owner.load(Ordering::Relaxed) == sd_sys::fd::getpid() as u32 {
        sd_sys::fd::signal_self(libc::SIGURG);
    }
}

/// recv with MSG_OOB.
#[cold]
pub(super) fn recv(endpoint: &'static Endpoint, mut pieces: Pieces, flags: i32) -> Result<usize, Errno> {
    if let Some(done) = by_kernel::recv_urgent(endpoint, &mut pieces, flags) {
        return done;
    }
    let mark = unread(endpoint).filter(|_| !endpoint.flag(OOB_INLINE)).ok_or(Errno::EINVAL)?;
    if flags & MSG_PEEK == 0 {
        cold::change(endpoint, |cold| cold.urgent_read.store(mark.position + 1, Ordering::Relaxed));
    }
    if pieces.total == 0 {
        return Ok(0);
    }
    let (to, _) = pieces.piece(1);
    if flags & MSG_TRUNC == 0 {
        // SAFETY: the caller of the hooked function vouches for its buffer.
        unsafe { to.write(mark.byte) };
    }
    Ok(1)
}

/// send with MSG_OOB: the last byte is urgent.
#[cold]
pub(crate) fn send(endpoint: &'static Endpoint, mut pieces: Pieces, flags: i32) -> Result<usize, Errno> {
    let flags = flags & !MSG_OOB;
    let Some(plain) = pieces.total.checked_sub(1) else { return stream::send(endpoint, pieces, flags) };
    let mut sent = 0;
    while sent < plain {
        let (from, len) = pieces.piece(plain - sent);
        let done = stream::send(endpoint, Pieces::one(from, len), flags);
        match done {
            Err(errno) if sent == 0 => return Err(errno),
            Err(_) => return Ok(sent),
            Ok(now) if now < len => return Ok(sent + now),
            Ok(_) => pieces.advance(len),
        }
        sent += len;
    }
    if sent > 0 && endpoint.flag(RESET) {
        // The rest was taken and answered by a reset, as all of it is then; the next call tells the error.
        return Ok(sent + 1);
    }
    let (from, _) = pieces.piece(1);
    // SAFETY: the caller of the hooked function vouches for its buffer.
    let byte = unsafe { from.read() };
    match send_byte(endpoint, byte, flags) {
        Err(_) if sent > 0 => Ok(sent),
        Err(errno) => Err(errno),
        Ok(()) => {
            crate::socket::signals::tell(endpoint, true);
            Ok(sent + 1)
        }
    }
}

fn send_byte(endpoint: &'static Endpoint, byte: u8, flags: i32) -> Result<(), Errno> {
    let nonblock = flags & MSG_DONTWAIT != 0 || endpoint.flag(NONBLOCK);
    let deadline = Deadline::option(cold::of(endpoint).tx_timeout_ns.load(Ordering::Relaxed));
    let mut grow = nonblock;
    loop {
        match push(endpoint, byte, grow && !endpoint.flag(FIXED_BUF)) {
            Push::Done => return Ok(()),
            Push::Error(errno) => return Err(crate::socket::errors::send_failed(errno, flags)),
            Push::Full { .. } | Push::Barred if nonblock => {
                crate::data::space::want_event(endpoint);
                return Err(Errno::EAGAIN);
            }
            Push::Barred => claim::wait(endpoint, deadline)?,
            Push::Full { seen } => grow |= crate::data::space::wait_tx(endpoint, seen, deadline, grow)?,
        }
    }
}

/// Puts the urgent byte into the ring; first it is said where.
fn push(endpoint: &'static Endpoint, byte: u8, grow: bool) -> Push {
    let mut half = loop {
        let mut half = endpoint.tx_token();
        if Claim::NONE.is_barred(endpoint) {
            return Push::Barred;
        }
        if !half.cursor().is_parked() || !road::is_by_kernel(endpoint, road::TX_KERNEL | road::TX_LEFT) {
            break half;
        }
        if let Some(end) = by_kernel::push_urgent(endpoint, byte) {
            return end;
        }
        drop(half);
        crate::setup::promote::await_open(endpoint);
    };
    if let Some(end) = crate::socket::errors::send_error(endpoint, 1) {
        return end.map_or_else(Push::Error, |()| Push::Done);
    }
    let mem = endpoint.tx_mem();
    let tx = half.cursor();
    if tx.credit(endpoint.peer_words().consumed.load(Ordering::Acquire)).is_err() {
        corrupt(endpoint);
        return Push::Error(Errno::ECONNRESET);
    }
    let effort = if grow { Effort::Grow } else { Effort::Fresh };
    let Some(grant) = tx.reserve(&GEOMETRY, &mem, 1, effort) else {
        return Push::Full { seen: tx.credited() };
    };
    // SAFETY: the grant is room for one byte in our ring that the peer does not read yet.
    unsafe { mem.at(grant.region, grant.off).write_volatile(byte) };
    let own = endpoint.own_words();
    own.make_cold().urgent.store(tx.position() << 9 | VALID | u64::from(byte), Ordering::Release);
    own.flags.fetch_or(FLAG_URGENT, Ordering::AcqRel);
    tx.commit_urgent(&mem, crate::socket::bell::stamp(endpoint));
    stream::add(&endpoint.tx().bytes, 1);
    notify(endpoint, RX_BITS);
    Push::Done
}
