//! The engine that carried a connection to another host is gone: both ends go back to the kernel's connection, at exact bytes (ADR 101).
//!
//! ```text
//!  stream of an end   bytes up to P │ answer: it has read up to Q │ again: so many bytes │ the ring from the other's Q on │ bytes
//! ```
//! Both frames stand where the sender has left the kernel's stream. The other end knows that place, or none is written
//! ([`sd_ring::road::may_mend`]); so nobody takes a frame for bytes of the program. How far an end has come the counts of the kernel's streams
//! say, and bits of the slot, whose both sides are this end's own from the moment on at which the road broke. So whoever dies between two steps
//! leaves a state from which the next one goes on. All is done with both tokens of the connection.
//!
//! What an answer brings are the words that a peer on this host would have written, so that the rest is the way back as it is: `resend`, and a
//! marker behind what came in the ring. Whatever does not fit is a reset.

use crate::socket::endpoint::{EndpointExt, PEER_DEAD, RESET, SHUT_WR};
use crate::socket::errors::keep_end;
use crate::socket::parked::{leave_tx, receiver_now};
use crate::socket::road::{self, ACTIVE, KERNEL, RX_KERNEL, TX_KERNEL, TX_LEFT, is_by_kernel, is_far};
use crate::socket::way_back::{shut_kernels, tell_self};
use crate::socket::{apart, resend};
use core::sync::atomic::Ordering;
use sd_ring::road::{Receive, RoadWord, Send, may_mend};
use sd_ring::{Next, RxCursor, TxCursor};
use sd_shm::channel::{FLAG_DEAD, FLAG_RESET, GEOMETRY, Names, Side};
use sd_shm::slab::{Endpoint, State};
use sd_sys::{Errno, tcp};

/// An answer: [`ANSWER`], the sender's P, the other end's, and Q in two words.
const ANSWER_LEN: usize = 40;
/// Behind it: [`AGAIN`], and how many bytes of the ring follow.
const AGAIN_LEN: usize = 16;
/// Bytes of both.
const FRAMES: u64 = (ANSWER_LEN + AGAIN_LEN) as u64;
const ANSWER: u64 = u64::from_le_bytes(*b"sdQ\x0fhere");
const AGAIN: u64 = u64::from_le_bytes(*b"sdQ\x0fgain");

/// Ring bytes that a correct sender cannot exceed.
const WALK_MAX: u64 = 2 * GEOMETRY.large as u64;

/// The connection cannot go on; what the kernel has said of it, if it was that.
struct Lost(Option<Errno>);

/// What was found does not fit.
const LOST: Lost = Lost(None);

impl From<Errno> for Lost {
    fn from(errno: Errno) -> Lost {
        Lost(Some(errno))
    }
}

/// The road is gone; to others than an engine that is a word without a meaning, which a peer may have written.
#[cold]
pub(super) fn is_gone(endpoint: &Endpoint) -> bool {
    endpoint.peer_words().road().has(RoadWord::BROKEN)
        && endpoint.state_now() == State::Connected
        && road::is_promoted(endpoint)
        && is_far(endpoint)
}

/// This end has begun to see to that.
pub(super) fn is_begun(endpoint: &Endpoint) -> bool {
    endpoint.own_words().road().has(RoadWord::BROKEN) && is_far(endpoint)
}

/// It is gone, and this end has not begun.
#[cold]
pub(super) fn is_new(endpoint: &Endpoint) -> bool {
    is_gone(endpoint) && !is_begun(endpoint) && !is_lost(endpoint)
}

pub(super) fn is_lost(endpoint: &Endpoint) -> bool {
    endpoint.flag(RESET)
        || endpoint.peer_words().flags.load(Ordering::Acquire) & (FLAG_DEAD | FLAG_RESET) != 0
}

/// Between hosts one direction has gone over, and the other has not: it is to follow, since only of two that have gone over both the road may break.
pub(crate) fn is_half(endpoint: &Endpoint) -> bool {
    is_by_kernel(endpoint, KERNEL) && road::is_promoted(endpoint) && is_far(endpoint)
}

/// What is to be done for a connection to another host; for who has no token. True: a direction is the ring's from now on, or something lies
/// there that nobody was told of.
pub(crate) fn step(endpoint: &'static Endpoint) -> bool {
    if !is_far(endpoint) || endpoint.state_now() != State::Connected || !road::is_promoted(endpoint) {
        return false;
    }
    let peer = endpoint.peer_words().road();
    match peer.has(RoadWord::BROKEN) {
        true => mend(endpoint),
        false => peer.has(RoadWord::SWITCHED) && is_by_kernel(endpoint, KERNEL) && follow(endpoint),
    }
}

/// The other end has gone over to its ring. So does this one, though it has nothing to send, and it reads there as soon as nothing is left in the
/// kernel's stream: a frame that came there would have the kernel tell the program of something to read.
fn follow(endpoint: &'static Endpoint) -> bool {
    let Some(fd) = road::number(endpoint) else { return false };
    let mut has_changed = {
        let _rx = endpoint.rx_token();
        arrives(endpoint, fd)
    };
    {
        let _tx = endpoint.tx_token();
        let is_open = !endpoint.flag(SHUT_WR);
        let is_kernels = is_by_kernel(endpoint, TX_KERNEL) && !is_by_kernel(endpoint, TX_LEFT);
        if is_kernels && road::next_of_sender(endpoint, is_open) == Send::Switch {
            has_changed |= road::switch(endpoint, fd);
        }
    }
    if has_changed {
        let slot = usize::from(endpoint.slot.load(Ordering::Relaxed));
        endpoint.channel_ref().inspect(|channel| channel.tell(slot));
    }
    has_changed
}

/// Goes over to the ring, if the kernel's stream was read as far as the peer has sent there. A low-water mark goes over with a call of the program's.
fn arrives(endpoint: &'static Endpoint, fd: i32) -> bool {
    let least = sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    if !road::is_before_ring(endpoint)
        || !matches!(least, Ok(0 | 1))
        || road::next_of_receiver(endpoint, fd, 0) != Receive::Ring
    {
        return false;
    }
    road::arrive(endpoint);
    true
}

fn mend(endpoint: &'static Endpoint) -> bool {
    let was_kernels = is_by_kernel(endpoint, RX_KERNEL);
    // Whoever carried may have died behind a write into the ring, and before it said so.
    let may_be_unannounced = !is_begun(endpoint);
    let found = {
        let (_rx, _tx) = (endpoint.rx_token(), endpoint.tx_token());
        if endpoint.state_now() != State::Connected || is_lost(endpoint) {
            return false;
        }
        let Some(fd) = road::number(endpoint) else { return false };
        go_on(endpoint, fd).inspect_err(|lost| lose(endpoint, fd, lost))
    };
    match found {
        Ok(true) => {}
        Ok(false) => resend::later(endpoint, false),
        Err(_) => tell_self(endpoint),
    }
    may_be_unannounced || was_kernels && !is_by_kernel(endpoint, RX_KERNEL)
}

/// The last descriptor is being closed, for who has both tokens: what the other end has not read is sent there. False: that cannot be, or not in time.
pub(super) fn before_end(endpoint: &'static Endpoint, tx: &mut TxCursor, fd: i32) -> bool {
    let until = sd_sys::time::now_ns() + resend::TAKEN_WITHIN_NS;
    let own = endpoint.own_words();
    while !is_lost(endpoint) && sd_sys::time::now_ns() < until {
        let Ok(is_done) = go_on(endpoint, fd) else { return false };
        if own.road().has(RoadWord::RESUME) && !own.road().has(RoadWord::LEFT) {
            leave_tx(endpoint, tx, false);
            match resend::resend(endpoint, fd, &mut false) {
                Ok(()) => own.say(RoadWord::LEFT),
                Err(Errno::EAGAIN) => {}
                Err(_) => return false,
            }
        }
        if is_done && own.road().has(RoadWord::LEFT) {
            return true;
        }
        let _ = sd_sys::time::sleep_ns(CLOSING_PAUSE_NS);
    }
    false
}

pub(super) const CLOSING_PAUSE_NS: u64 = 500_000;

/// A connection whose road is gone, and what its slot says.
struct Mending {
    endpoint: &'static Endpoint,
    fd: i32,
    names: &'static Names,
    side: Side,
    /// Where this end's frames begin in the kernel's stream, and where the other one's do, as each sender counts.
    own_at: u64,
    peer_at: u64,
}

/// Does as much as can be done now; for who has both tokens. True: the rest is the way back as it is.
fn go_on(endpoint: &'static Endpoint, fd: i32) -> Result<bool, Lost> {
    let (own, peer) = (endpoint.own_words(), endpoint.peer_words());
    let channel = endpoint.channel_ref().ok_or(LOST)?;
    let (names, side) =
        (channel.map.names(usize::from(endpoint.slot.load(Ordering::Relaxed))), road::own_side(endpoint));
    let place = |side| names.switched_at(side).load(Ordering::Relaxed);
    let it = Mending { endpoint, fd, names, side, own_at: place(side), peer_at: place(side.other()) };
    if !own.road().has(RoadWord::BROKEN) {
        if !may_mend(own.road(), peer.road()) {
            return Err(LOST);
        }
        own.say(RoadWord::BROKEN);
    }
    if !own.road().has(RoadWord::LEFT) {
        it.write_answer()?;
    }
    if !own.road().has(RoadWord::RESUME) {
        it.look_for_answer()?;
    }
    let has_answer = own.road().has(RoadWord::RESUME);
    if has_answer && !peer.road().has(RoadWord::LEAVING) {
        it.take_frames()?;
    }
    Ok(has_answer && peer.road().has(RoadWord::LEAVING))
}

impl Mending {
    /// As much of the answer as the kernel takes.
    fn write_answer(&self) -> Result<(), Lost> {
        let written = self.written()?;
        // Nothing else goes there before the other end's answer has come.
        if written >= ANSWER_LEN as u64 {
            let is_mine =
                written == ANSWER_LEN as u64 || self.endpoint.own_words().road().has(RoadWord::RESUME);
            return if is_mine { Ok(()) } else { Err(LOST) };
        }
        let end = end_of_ring(self.endpoint).ok_or(LOST)?;
        let mut answer = [0; ANSWER_LEN];
        put(&mut answer, [ANSWER, self.own_at, self.peer_at, end.position(), end.standing()]);
        match send(self.fd, answer.get(written as usize..).ok_or(LOST)?) {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Bytes that this end has written into the kernel's stream since it left that.
    fn written(&self) -> Result<u64, Errno> {
        let word = road::word(self.endpoint).map_or(0, |word| word.load(Ordering::Relaxed));
        Ok(tcp::sent(self.fd, word & ACTIVE != 0)?.wrapping_sub(self.own_at))
    }

    /// Looks for the other end's answer, which may lie behind bytes that the program has not read, and notes what it says.
    fn look_for_answer(&self) -> Result<(), Lost> {
        let (at, read) = road::positions(self.endpoint, self.fd).ok_or(LOST)?;
        let ahead = at.checked_sub(read).ok_or(LOST)?;
        let mut answer = [0; ANSWER_LEN];
        if !peek(self.fd, ahead, &mut answer)? {
            return Ok(());
        }
        let [kind, theirs, ours, position, standing] = take(&answer);
        if (kind, theirs, ours) != (ANSWER, self.peer_at, self.own_at) {
            return Err(LOST);
        }
        self.names.set_resume_at(self.side.other(), standing);
        self.endpoint.peer_words().consumed.store(position, Ordering::Release);
        self.endpoint.own_words().say(RoadWord::RESUME);
        Ok(())
    }

    /// Takes the frames out of the stream, as soon as the program has read what is before them. What is said behind them is known by then, so that a
    /// marker can be put behind what came in the ring.
    fn take_frames(&self) -> Result<(), Lost> {
        arrives(self.endpoint, self.fd);
        if is_by_kernel(self.endpoint, RX_KERNEL) {
            return self.must_live();
        }
        let (at, mut read) = road::positions(self.endpoint, self.fd).ok_or(LOST)?;
        let (again_at, end) = (at + ANSWER_LEN as u64, at + FRAMES);
        if read < again_at {
            read += self.skip(again_at - read)?;
        }
        if read == again_at {
            let mut again = [0; AGAIN_LEN];
            if !peek(self.fd, 0, &mut again)? {
                return Ok(());
            }
            let [kind, bytes] = take(&again);
            if kind != AGAIN || bytes > WALK_MAX {
                return Err(LOST);
            }
            self.names.set_resume_at(self.side, end + bytes);
        }
        if read < end {
            read += self.skip(end - read)?;
        }
        if read >= end {
            let last = end_of_ring(self.endpoint).ok_or(LOST)?;
            if apart::next(self.endpoint, &mut { last }) == Ok(Next::Empty) {
                last.mark_here(&self.endpoint.rx_mem());
            }
            self.endpoint.peer_words().say(RoadWord::LEAVING | RoadWord::LEFT);
        }
        Ok(())
    }

    /// Reads frames that were looked at.
    fn skip(&self, bytes: u64) -> Result<u64, Lost> {
        let mut room = [0u8; FRAMES as usize];
        let room = room.get_mut(..bytes as usize).ok_or(LOST)?;
        // SAFETY: the kernel writes into the room that is there.
        let done = sd_sys::check(unsafe {
            let (to, len) = (room.as_mut_ptr(), room.len());
            sd_sys::syscall!(libc::SYS_recvfrom, self.fd, to, len, libc::MSG_DONTWAIT, 0, 0)
        });
        match done {
            Ok(0) => Err(LOST),
            Ok(done) => {
                road::has_read(self.endpoint, done);
                Ok(done as u64)
            }
            Err(Errno::EAGAIN) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    fn must_live(&self) -> Result<(), Lost> {
        let unread = tcp::unread(self.fd)?;
        if unread == 0 && is_over(self.fd) { Err(LOST) } else { Ok(()) }
    }
}

/// What is missing of the second frame is sent, for who sends again `bytes` of the ring: how many of them were sent. `written`: see [`Mending::written`].
pub(super) fn before_again(fd: i32, written: u64, bytes: impl FnOnce() -> u64) -> Result<u64, Errno> {
    let mut again = [0; AGAIN_LEN];
    if written < FRAMES {
        put(&mut again, [AGAIN, bytes()]);
        // The answer comes first.
        let from = written.checked_sub(ANSWER_LEN as u64).ok_or(Errno::EAGAIN)?;
        let rest = again.get(from as usize..).unwrap_or_default();
        if send(fd, rest)? < rest.len() {
            return Err(Errno::EAGAIN);
        }
    }
    Ok(written.saturating_sub(FRAMES))
}

/// All has come that the other end was asked to send again, or nothing was. For who has the receiving half's token; to others a hint.
pub(super) fn has_come(endpoint: &Endpoint) -> bool {
    if !is_begun(endpoint) {
        return true;
    }
    let Some(fd) = road::number(endpoint) else { return false };
    let Some(channel) = endpoint.channel_ref() else { return false };
    let names = channel.map.names(usize::from(endpoint.slot.load(Ordering::Relaxed)));
    let end = names.resume_at(road::own_side(endpoint));
    endpoint.peer_words().road().has(RoadWord::LEFT)
        && road::positions(endpoint, fd).is_some_and(|(_, read)| read >= end)
}

/// The connection cannot go on. What has come is read, then there is what the kernel has said, or a reset; at the other end too. For who has both tokens.
fn lose(endpoint: &'static Endpoint, fd: i32, lost: &Lost) {
    arrives(endpoint, fd);
    let of_kernel = || sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).ok().map(Errno);
    lost.0.or_else(of_kernel).into_iter().for_each(|errno| keep_end(endpoint, errno));
    endpoint.peer_words().flags.fetch_or(FLAG_DEAD | FLAG_RESET, Ordering::AcqRel);
    endpoint.set_flag(PEER_DEAD);
    if !is_by_kernel(endpoint, RX_KERNEL) {
        break_off(fd);
        return;
    }
    resend::abort_at_close(fd);
    // Whoever waits for more is woken: no more will come.
    shut_kernels(endpoint, libc::SHUT_RD);
    reset_if_read(endpoint, fd);
}

/// Of a connection that is lost all that came in the kernel's stream has been read: the other end is told at once. For who has the receiving half's token.
pub(crate) fn reset_if_read(endpoint: &Endpoint, fd: i32) {
    if is_lost(endpoint) && tcp::unread(fd) == Ok(0) && !tcp::is_closed(fd) {
        break_off(fd);
        // As after a reset that came, who waits for an end is told. That it is a reset `far_end` says: once, whoever takes the kernel's error.
        shut_kernels(endpoint, libc::SHUT_RDWR);
        let _ = sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    }
}

/// The kernel resets the other end, and says ECONNRESET here.
fn break_off(fd: i32) {
    let nowhere = [0u16; 8];
    // SAFETY: an address of no family, AF_UNSPEC: the kernel breaks the connection off.
    unsafe { sd_sys::syscall!(libc::SYS_connect, fd, nowhere.as_ptr(), size_of_val(&nowhere)) };
}

/// Where what came in the ring ends: nobody writes there any more. `None`: it has no end.
fn end_of_ring(endpoint: &'static Endpoint) -> Option<RxCursor> {
    let mut rx = receiver_now(endpoint);
    let start = rx.position();
    while rx.position().wrapping_sub(start) <= WALK_MAX {
        match apart::next(endpoint, &mut rx) {
            Ok(Next::Data { len, .. }) => rx.advance(len),
            Ok(Next::Urgent) => {
                rx.admit_urgent();
                rx.advance(1);
            }
            Ok(Next::Empty | Next::Fin | Next::Marker) => return Some(rx),
            _ => return None,
        }
    }
    None
}

/// No more will come.
fn is_over(fd: i32) -> bool {
    let has_failed = sd_sys::fd::poll_one(fd, 0, 0).map_or(true, |events| events & libc::POLLERR != 0);
    has_failed || tcp::has_ended(fd)
}

fn send(fd: i32, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel reads the bytes.
    sd_sys::check(unsafe {
        let (from, len, flags) = (bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        sd_sys::syscall!(libc::SYS_sendto, fd, from, len, flags, 0, 0)
    })
}

/// Bytes that are read at once of those that nobody wants now, and how often at most.
const SCRATCH: usize = 64 << 10;
const PARTS: u64 = 1000;

/// Looks at what lies behind so many bytes that were not read. False: it has not come.
fn peek(fd: i32, ahead: u64, out: &mut [u8]) -> Result<bool, Lost> {
    // In this order: who ends has sent before.
    let is_over = is_over(fd);
    let wanted = ahead + out.len() as u64;
    if tcp::unread(fd)? < wanted {
        return if is_over { Err(LOST) } else { Ok(false) };
    }
    if ahead.div_ceil(SCRATCH as u64) > PARTS {
        // When the program has read more of it.
        return Ok(false);
    }
    let mut scratch = vec![0u8; SCRATCH.min(ahead as usize)];
    let (mut parts, mut left) = (vec![], ahead as usize);
    while left > 0 {
        let len = left.min(scratch.len());
        parts.push(libc::iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: len });
        left -= len;
    }
    parts.push(libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() });
    // SAFETY: plain integers and null pointers.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: each part is room of ours.
    let done = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_recvmsg, fd, &raw mut message, flags) });
    match done {
        Ok(done) => Ok(done as u64 == wanted),
        Err(Errno::EAGAIN) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn put<const WORDS: usize>(to: &mut [u8], words: [u64; WORDS]) {
    for (to, word) in to.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

fn take<const WORDS: usize>(from: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, from) in words.iter_mut().zip(from.chunks_exact(8)) {
        *word = from.try_into().map_or(0, u64::from_le_bytes);
    }
    words
}
