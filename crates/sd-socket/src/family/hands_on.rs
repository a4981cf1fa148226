//! A server that hands on each connection to a child leaves its monitor (ADR 94).
//!
//! It pays for each fork, and its child for each right that it gives up, as long as the monitor knows it. It has nothing of that: its
//! connections are its children's, who live for milliseconds often. So it goes, as a process that gives rights up does (`separate`):
//!
//! ```text
//!  accept ── the latest eight were handed on ──> its listener says so: connections begin as the kernel's, also those of registered clients
//!     └ eight more ── nothing but listeners here, and nobody waits there ──> the listeners are the kernel's; `setup::handed_on` goes on
//! ```
//! It does not come back by itself, but for a connection that it serves itself and that lasts: then it registers for that.
//!
//! Tested by `cargo xtask sharing --only hands-on`.

use super::separate;
use crate::fd::table::{self, Entry};
use crate::monitor::client;
use crate::process::{PROCESS, detaching};
use crate::setup::{handed_on, inherited, listen};
use crate::socket::endpoint::EndpointExt;
use crate::socket::handle::Socket;
use crate::socket::life;
use crate::socket::road::promotes;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use sd_shm::public::HANDS_ON;
use sd_shm::slab::{Promotes, State};
use sd_sys::section::Section;

/// So many in a row.
const HANDED_ON: u32 = 8;

/// Before the program accepts from the listener: what it has accepted before has been handed on by now, if it is.
#[inline]
pub(crate) fn accepts(fd: c_int) {
    if inherited::are_accepted(HANDED_ON) {
        look(fd);
    }
}

#[cold]
#[inline(never)]
fn look(fd: c_int) {
    let accepted = inherited::take_accepted();
    if life::take_handed_on() < accepted || promotes() != Promotes::Earned {
        return;
    }
    let listener = Socket::at(fd).and_then(|socket| socket.private.listener());
    let index = listener.map_or(usize::MAX, |listener| listener.index.load(Ordering::Relaxed) as usize);
    let page = PROCESS.public().and_then(|public| public.listeners.get(index));
    if page.is_some_and(|page| page.backlog.fetch_or(HANDS_ON, Ordering::Relaxed) & HANDS_ON != 0) {
        leave();
    }
}

fn leave() {
    if !has_only_listeners() {
        return;
    }
    // A handler of a signal would find half of it.
    let _section = Section::enter();
    if !listen::shut_all() || separate::leave().is_err() {
        return;
    }
    client::forget_connection();
    handed_on::begin();
}

fn has_only_listeners() -> bool {
    let mut is_so = separate::is_only_call()
        && !detaching::is_on()
        && PROCESS.pid.load(Ordering::Relaxed) == sd_sys::fd::getpid()
        && PROCESS.connections().next().is_none();
    table::for_each(0, u32::MAX, |_, entry| {
        is_so &= match entry {
            Entry::Socket(endpoint) => endpoint.state_now() == State::Listen,
            Entry::Kernel(_) | Entry::First(_) | Entry::Early => false,
            Entry::None | Entry::Epoll(_) | Entry::Hidden => true,
        };
    });
    is_so
}
