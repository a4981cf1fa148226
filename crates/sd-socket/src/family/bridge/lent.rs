//! What a bridge has passed on, but left in the connection, where other processes still find it.
//!
//! A process that gives rights up may have copies of connections that it never looks at, and one that does read may end
//! before it has read all (OpenSSH's child before authentication): on Linux the rest is there for whoever reads next. So
//! the bridge looks at what has come without taking it (MSG_PEEK), passes that on, and takes as much out of the connection
//! as the kernel says was read at the other end. What was passed on and then read by another process can be read twice.
//!
//! A connection can have several bridges, as each process has one that gives rights up. They take *turns*: none looks at what another has
//! passed on until that was settled, and what the other's program had answered by then was sent. So a program that was started when another
//! one had ended finds nothing that was read, also where that one's bridge is behind. A turn is a lock of a byte of the slab's file: it ends
//! with the bridge that has it.

use crate::data::discard::discard;
use crate::data::iov::Pieces;
use crate::data::stream;
use crate::process::PROCESS;
use crate::socket::addr;
use crate::socket::endpoint::EndpointExt;
use crate::socket::ring_view;
use core::sync::atomic::Ordering;
use sd_shm::slab::Endpoint;
use sd_sys::Errno;
use sd_sys::diag::{Diag, Reader};

/// How long to wait, at first and at most, before the kernel is asked again.
const ASK_NS: (u64, u64) = (20_000, 50_000_000);

/// So long another bridge's turn is waited for: longer than that one takes to see what was read. Where its program reads nothing, or it stands
/// still, half as long the next time, down to the least.
const PATIENCE_NS: (u64, u64) = (500_000_000, 4_000_000);

/// So often only what the peer has sent by one call is passed on. A program that ends with something unread takes along how much it had read,
/// if the bridge had not asked yet; one that ends soon (OpenSSH's child before authentication) has mostly read whole messages. Each costs
/// some 100 us.
const LOANS_OF_ONE: u32 = 64;

/// From the end of a stream to that of its socket, where the program closes that.
const CLOSING_NS: u64 = 1_000_000;

/// The socket that the program has: the other end of the bridge's pair.
pub(super) struct Programs {
    diag: Diag,
    /// Its own port and the bridge's.
    ports: (u16, u16),
}

impl Programs {
    /// `None` where the kernel tells nothing of it.
    pub(super) fn of(inner: i32) -> Option<Programs> {
        let (_, own) = addr::kernel_name(inner)?;
        let (_, other) = addr::kernel_peer(inner)?;
        Some(Programs { diag: Diag::open().ok()?, ports: (other.port, own.port) })
    }

    fn ask(&self) -> Option<Reader> {
        self.diag.reader(self.ports.0, self.ports.1).ok()
    }

    /// Some process has it still. The last close sends the stream's end a moment before the socket is nobody's.
    pub(super) fn is_open(&self) -> bool {
        let is_open = || self.ask().is_some_and(|reader| reader.is_open);
        is_open() && {
            let _ = sd_sys::time::sleep_ns(CLOSING_NS);
            is_open()
        }
    }
}

/// A bridge's turn, see the module.
struct Turn {
    is_held: bool,
    /// Since when another bridge's is waited for.
    waits_since: Option<u64>,
    patience_ns: u64,
}

impl Turn {
    /// Takes it, if no other bridge has it, or has had it for too long.
    fn take(&mut self, endpoint: &'static Endpoint) -> bool {
        if self.is_held {
            return true;
        }
        self.is_held = lock(endpoint, true) != Err(Errno::EAGAIN);
        if self.is_held {
            (self.waits_since, self.patience_ns) = (None, PATIENCE_NS.0);
            return true;
        }
        let now = sd_sys::time::now_ns();
        let is_over = now.saturating_sub(*self.waits_since.get_or_insert(now)) >= self.patience_ns;
        if is_over {
            (self.waits_since, self.patience_ns) = (None, (self.patience_ns / 2).max(PATIENCE_NS.1));
        }
        is_over
    }

    /// Another bridge may have it.
    fn end(&mut self, endpoint: &'static Endpoint) {
        if core::mem::take(&mut self.is_held) {
            let _ = lock(endpoint, false);
        }
    }
}

/// The endpoint's byte of the slab's file, which has nothing else locked.
fn lock(endpoint: &'static Endpoint, is_locked: bool) -> sd_sys::Result<()> {
    let (rec, index) = PROCESS.locate(endpoint).ok_or(Errno::EINVAL)?;
    sd_sys::fd::lock_byte(rec.fd.raw(), index, is_locked)
}

/// See the module.
pub(super) struct Lent {
    inner: i32,
    programs: Programs,
    turn: Turn,
    /// Bytes passed on that are still in the connection.
    bytes: u64,
    /// How often something was passed on so.
    loans: u32,
    /// Bytes passed on that are not.
    taken: u64,
    /// Bytes that anybody has received, as of the last look.
    received: u64,
    pause_ns: u64,
    /// The other end of the pair was closed, as of the last question: nobody will read there.
    is_closed: bool,
    /// Another process has read what was passed on last: it may lie unread at the other end.
    was_for_others: bool,
}

impl Lent {
    /// `None` where the kernel does not tell what was read.
    pub(super) fn new(inner: i32) -> Option<Lent> {
        let programs = Programs::of(inner)?;
        programs.ask()?.read?;
        Some(Lent {
            inner,
            programs,
            turn: Turn { is_held: false, waits_since: None, patience_ns: PATIENCE_NS.0 },
            bytes: 0,
            loans: 0,
            taken: 0,
            received: 0,
            pause_ns: ASK_NS.0,
            is_closed: false,
            was_for_others: false,
        })
    }

    /// Something is passed on, and it is not known yet whether it was read.
    pub(super) fn is_out(&self) -> bool {
        self.bytes != 0
    }

    /// Something is there, and another bridge's turn is waited for.
    pub(super) fn waits(&self) -> bool {
        self.turn.waits_since.is_some()
    }

    /// Nothing is there any more.
    pub(super) fn waits_no_more(&mut self) {
        self.turn.waits_since = None;
    }

    /// What the program has answered so far is sent: another bridge may have its turn, if nothing is out.
    pub(super) fn has_answered(&mut self, endpoint: &'static Endpoint) {
        if !self.is_out() {
            self.turn.end(endpoint);
        }
    }

    /// The program's side is broken: what it has left unread is for others.
    pub(super) fn end_turn(&mut self, endpoint: &'static Endpoint) {
        self.turn.end(endpoint);
    }

    /// Looks at what has come, once the last was read.
    pub(super) fn lend(&mut self, endpoint: &'static Endpoint, into: &mut [u8]) -> Result<usize, Errno> {
        if self.is_out() || self.is_closed {
            return Err(Errno::EAGAIN);
        }
        let waited = self.waits();
        if !self.turn.take(endpoint) {
            if !waited {
                self.pause_ns = ASK_NS.0;
            }
            return Err(Errno::EAGAIN);
        }
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let received = || endpoint.rx().bytes.load(Ordering::Relaxed);
        let before = received();
        let most = match self.loans < LOANS_OF_ONE {
            true => ring_view::first_message(endpoint).map_or(into.len(), |len| len.min(into.len())),
            false => into.len(),
        };
        let got = stream::recv(endpoint, Pieces::one(into.as_mut_ptr(), most), flags)?;
        if received() != before {
            // Another process has read meanwhile. Which of this it has, nobody knows.
            return Err(Errno::EAGAIN);
        }
        self.received = before;
        self.bytes = got as u64;
        self.loans = self.loans.saturating_add(1);
        self.pause_ns = ASK_NS.0;
        self.passes_on(got);
        Ok(got)
    }

    /// What is passed on now may be the program's. An end is nobody's.
    pub(super) fn passes_on(&mut self, bytes: usize) {
        self.was_for_others &= bytes == 0;
    }

    /// Whether the other end was closed with bytes that another process had read. The kernel breaks the pair off then; the
    /// connection has nothing unread, and ends.
    pub(super) fn was_closed_with_others_bytes(&self) -> bool {
        self.was_for_others && !self.programs.is_open()
    }

    /// Takes out of the connection what was read at the other end, or all if nobody else has the connection. How much that
    /// was.
    pub(super) fn settle(&mut self, endpoint: &'static Endpoint, is_alone: bool) -> u64 {
        if !self.is_out() {
            return 0;
        }
        let reader = self.programs.ask();
        self.is_closed = reader.is_some_and(|reader| !reader.is_open);
        let read = reader.and_then(|reader| reader.read).map_or(0, |all| all.saturating_sub(self.taken));
        self.take(endpoint, if is_alone { self.bytes } else { read.min(self.bytes) })
    }

    /// The other end has closed its socket, and its end was seen. It has read all that it had until then: else it would
    /// have broken the connection off. What was passed on later has been answered so.
    pub(super) fn finish(&mut self, endpoint: &'static Endpoint) {
        if sd_sys::fd::getsockopt_int(self.inner, libc::SOL_SOCKET, libc::SO_ERROR) == Ok(0) {
            self.take(endpoint, self.bytes);
        }
    }

    fn take(&mut self, endpoint: &'static Endpoint, wanted: u64) -> u64 {
        let Some((taken, received)) = discard(endpoint, self.received, wanted) else {
            // Somebody else was faster.
            self.taken += self.bytes;
            self.bytes = 0;
            self.was_for_others = true;
            return 0;
        };
        self.bytes -= taken;
        self.taken += taken;
        self.received = received;
        taken
    }

    /// How long to wait before the next question.
    pub(super) fn pause_ns(&mut self) -> u64 {
        let pause = self.pause_ns;
        self.pause_ns = (pause * 2).min(ASK_NS.1);
        pause
    }
}
