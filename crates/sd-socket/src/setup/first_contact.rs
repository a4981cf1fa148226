//! A connect that meets a listen: who finds the kernel's listener finds the accelerated one as well (ADR 46).
//!
//! The listening side announces a socket before the kernel's listen makes it visible ([`announce`]); the connecting side notes
//! that it is going to the kernel as nobody listens, and looks once more ([`once_more`]). Why one of the two always sees the
//! other: `sd-monitor/src/shell/soon.rs`. Neither waits for longer than a few milliseconds.
//! Tested by `cargo xtask sharing --only first-contact`.

use crate::monitor::client::{self, REGISTRATIONS};
use crate::process::PROCESS;
use crate::route::soon::{PAUSE_NS, TRIES, pause};
use crate::setup::connect::{self, Attempt};
use crate::setup::listen;
use crate::socket::addr::{self, Name};
use crate::socket::handle::Socket;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;
use sd_proto::{ErrorCode, Reply, Request};
use sd_ring::sync::will_listen;
use sd_shm::slab::{Endpoint, Reason};

/// What the monitor knows of a socket before it listens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Announced {
    /// Nothing, or not enough.
    No,
    /// All but that it listens; this registration of the process has told it.
    By(u32),
}

impl Announced {
    /// The monitor that was told is the one that there is.
    pub(super) fn holds(self) -> bool {
        self == Announced::By(REGISTRATIONS.load(Ordering::Acquire))
    }
}

/// Before the kernel's listen: clients that ask for the address wait until it has come to an end. Where the kernel chooses
/// the port nobody can know it before, and nothing is announced.
pub(super) fn announce(endpoint: &'static Endpoint, fd: c_int) -> Announced {
    if addr::kernel_name(fd).is_none_or(|(_, name)| name.port == 0) {
        return Announced::No;
    }
    let Some(index) = listen::prepare(endpoint) else { return Announced::No };
    let registration = REGISTRATIONS.load(Ordering::Acquire);
    // A monitor that was restarted is found at the second try.
    let mut monitors = 0;
    for _ in 0..TRIES {
        match client::question(&Request::WillListen { index }, &[fd]) {
            Some((Reply::Error { code: ErrorCode::InUse }, _)) => pause(PAUSE_NS),
            Some((Reply::Ok, _)) => return Announced::By(registration),
            None if monitors == 0 && !client::is_there() => monitors += 1,
            _ => return Announced::No,
        }
    }
    Announced::No
}

/// A connect of this process that is in the kernel as nobody accelerated listens there.
pub(super) struct Note(&'static AtomicU32);

impl Note {
    fn new(port: u16) -> Option<Note> {
        let notes = &PROCESS.own().and_then(|own| own.slab())?.header().kernel_connects;
        // SYNC POINT: will listen, with `will_listen` in crates/sd-monitor/src/shell/soon.rs.
        will_listen::note(notes, port).map(Note)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        will_listen::forget(self.0);
    }
}

/// A connect goes to the kernel as nobody listens there: that is noted until the kernel has been asked, and the route is looked
/// at once more.
#[cold]
pub(super) fn once_more(socket: Socket, fd: c_int, to: Name) -> (Attempt, Option<Note>) {
    for _ in 0..3 {
        let note = Note::new(to.port);
        // What a monitor has published stays as it was when it ends.
        if (note.is_none() || crate::route::is_current(to)) && !client::has_ended() {
            return (Attempt::Kernel(Reason::NoListener), note);
        }
        drop(note);
        let attempt = connect::attempt(socket, fd, to);
        if !matches!(attempt, Attempt::Kernel(Reason::NoListener)) {
            return (attempt, None);
        }
    }
    (Attempt::Kernel(Reason::NoListener), None)
}
