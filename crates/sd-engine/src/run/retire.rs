//! The engine ends in order, and no connection is lost: each goes back to the kernel's, and may be carried on by the successor (ADR 122).
//!
//! ```text
//!  SIGTERM, or an engine of another file waits ──> all are advised to go back ──> none is left ──> the end
//!                                                  └─ a minute later some are ──> let go of: at exact bytes (ADR 101) ──┘
//!                                                       └─ one of their two ends has gone back: the other one is waited for
//! ```
//! # Guarantees
//! * From the first moment on nobody is taken. Questions of other engines stay without an answer: they are asked again when the session is over,
//!   and the monitor tells the successor what is offered here.
//! * Who is told twice to end ends at once, as after `kill -9`.

use super::Engine;
use crate::connection::Connection;
use crate::leave::{GRACE_NS, LAST_NS};
use crate::peer::FOREVER_NS;
use crate::seat::Seat;
use sd_shm::promotion::Advice;
use sd_sys::time::now_ns;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What is left is looked at so often at first: a connection that was just being moved can be advised when it is there.
const LOOK_NS: u64 = 10_000_000;
/// Later each time that is this part of the time since the beginning.
const LOOK_PART: u64 = 16;

/// Why an engine is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// There is no monitor, and nothing was carried.
    NotNeeded,
    /// An engine of another file wants its place.
    Replaced,
    /// By SIGTERM, which is still blocked.
    Asked,
}

/// See the module.
pub(super) struct Retirement {
    /// Where the kernel says that a SIGTERM has come. `None`: it ends this process, as always.
    signals: Option<OwnedFd>,
    /// Who has started this engine. Only when that process is gone another engine at this place is its successor.
    parent: u32,
    why: Option<Ended>,
    began: u64,
    look_at: u64,
    /// Since when no other engine knows of any connection.
    alone_since: Option<u64>,
    is_late: bool,
    is_over: bool,
}

impl Retirement {
    pub(super) fn new(parent: u32) -> Retirement {
        Retirement {
            signals: take_signals(),
            parent,
            why: None,
            began: 0,
            look_at: FOREVER_NS,
            alone_since: None,
            is_late: false,
            is_over: false,
        }
    }

    pub(super) fn signals(&self) -> Option<i32> {
        self.signals.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub(super) fn is_begun(&self) -> bool {
        self.why.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn ended(&self) -> Ended {
        self.why.unwrap_or(Ended::NotNeeded)
    }

    /// When it has something to do by itself.
    pub(super) fn next_time(&self) -> u64 {
        self.look_at
    }

    fn begin(&mut self, why: Ended, now: u64) {
        if self.why.is_none() {
            (self.began, self.look_at) = (now, now);
        }
        // Asked a second time: at once.
        self.is_over |= self.why == Some(Ended::Asked) && why == Ended::Asked;
        self.why = self.why.filter(|before| *before == Ended::Asked).or(Some(why));
    }

    /// So many connections are known to another engine.
    fn look(&mut self, now: u64, carried: usize) {
        let since = now - self.began;
        self.look_at = now + LOOK_NS.max(since / LOOK_PART);
        self.is_late = since >= GRACE_NS;
        self.alone_since = self.alone_since.or(Some(now)).filter(|_| carried == 0);
        self.is_over |= self.alone_since.is_some_and(|alone| now - alone >= LAST_NS);
    }
}

impl Engine {
    /// Is it to end?
    #[cold]
    pub(super) fn hear_ends(&mut self, now: u64) {
        let is_asked = self.retirement.signals().is_some_and(is_signalled);
        let waits = self.listener.presence.as_mut().is_some_and(|presence| presence.hear());
        let is_successor = waits && std::os::unix::process::parent_id() != self.retirement.parent;
        let why = match (is_asked, is_successor) {
            (true, _) => Ended::Asked,
            (_, true) => Ended::Replaced,
            _ => return,
        };
        self.retirement.begin(why, now);
        tracing::info!(
            ?why,
            "engine: it ends; {} connections go back to the kernel",
            self.desk.connections.count
        );
        self.go_on_ending(now);
    }

    /// Does what is to be done for its end: in general nothing.
    #[inline]
    pub(super) fn tend_end(&mut self) {
        if self.retirement.is_begun() {
            let now = now_ns();
            if now >= self.retirement.next_time() {
                self.go_on_ending(now);
            }
        }
    }

    #[cold]
    fn go_on_ending(&mut self, now: u64) {
        let Engine { desk, links, control, .. } = self;
        // Who has asked asks the successor.
        let waits = |it: &Connection| it.at.is_none() && !it.is_opener && it.promise.is_none();
        for id in desk.connections.ids() {
            if desk.connections.get(id).is_some_and(|it| waits(it)) {
                desk.forget(id);
            }
        }
        let is_told = |it: &Connection| it.at.is_some() && !it.is_judged();
        desk.send_back(is_told, Advice::Replaced, links, control);
        let was_late = self.retirement.is_late;
        if was_late {
            let goes_back =
                |it: &Connection, seat: Option<&Seat>| seat.is_some_and(|seat| it.goes_back(seat));
            desk.let_go(goes_back, links, control);
        }
        let mut ids = desk.connections.ids();
        ids.retain(|id| desk.connections.get(*id).is_some_and(|it| it.number.is_some()));
        self.retirement.look(now, ids.len());
        if !was_late && self.retirement.is_late && !ids.is_empty() {
            tracing::warn!(
                "engine: {} connections have not gone back, as their processes stand still: it waits for them, unless it is told again to end",
                ids.len()
            );
        }
        self.is_unsent = true;
    }
}

/// SIGTERM is blocked from now on, and told of by a descriptor.
fn take_signals() -> Option<OwnedFd> {
    // SAFETY: a set is plain numbers, of which zeros are valid.
    let mut term: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid; the kernel makes a descriptor, or blocks a signal of this thread.
    unsafe {
        libc::sigemptyset(&raw mut term);
        libc::sigaddset(&raw mut term, libc::SIGTERM);
        let fd = libc::signalfd(-1, &raw const term, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 || libc::pthread_sigmask(libc::SIG_BLOCK, &raw const term, std::ptr::null_mut()) != 0 {
            return None;
        }
        // SAFETY: a descriptor of ours, which nobody else has.
        Some(OwnedFd::from_raw_fd(fd))
    }
}

fn is_signalled(fd: i32) -> bool {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    sd_sys::fd::read(fd, &mut info).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_looked_at_more_and_more_seldom_and_is_late_after_a_minute() {
        let mut it = Retirement::new(0);
        assert!(!it.is_begun() && it.next_time() == FOREVER_NS && it.ended() == Ended::NotNeeded);
        it.begin(Ended::Replaced, 5);
        assert!(it.is_begun() && it.next_time() == 5);
        it.look(5, 2);
        assert!(it.next_time() == 5 + LOOK_NS && !it.is_late);
        it.look(5 + GRACE_NS, 1);
        assert!(it.is_late && it.next_time() == 5 + GRACE_NS + GRACE_NS / LOOK_PART);
        it.look(100 * GRACE_NS, 1);
        assert!(!it.is_over() && it.ended() == Ended::Replaced);
    }

    #[test]
    fn what_no_other_engine_knows_is_waited_for_for_a_moment() {
        let mut it = Retirement::new(0);
        it.begin(Ended::Asked, 5);
        it.look(5, 0);
        it.look(6, 1);
        it.look(5 + LAST_NS, 0);
        it.look(4 + 2 * LAST_NS, 0);
        assert!(!it.is_over(), "one came between");
        it.look(5 + 2 * LAST_NS, 0);
        assert!(it.is_over());
    }

    #[test]
    fn who_is_asked_twice_ends_at_once() {
        let mut it = Retirement::new(0);
        it.begin(Ended::Replaced, 5);
        it.begin(Ended::Asked, 6);
        it.begin(Ended::Replaced, 7);
        assert!(!it.is_over() && it.ended() == Ended::Asked);
        it.begin(Ended::Asked, 8);
        assert!(it.is_over());
    }
}
