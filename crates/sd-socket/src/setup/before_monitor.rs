//! Listeners of a process that has no monitor yet, or none any more (ADR 53).
//!
//! Without a monitor sockets are the kernel's. One that listens is taken up all the same, so that connections to it are
//! accelerated as soon as a monitor is there: the process makes its slab, in which the monitor finds the listener when it starts
//! (`sd-monitor/src/shell/expected.rs`), and looks for a monitor in whatever it sleeps ([`crate::monitor::client::retry_if_lost`]). It
//! registers the listener once the program has shown that it accepts.
//!
//! What stays the kernel's: listeners of a process that has other threads, or had the socket in an epoll instance before it
//! listened. Calls that are under way there could not be told of connections of ours.
//! Tested by `cargo xtask sharing --only server-before-monitor`.

use crate::Outcome;
use crate::fd::table::{self, Entry};
use crate::monitor::client;
use crate::process::{PROCESS, single_threaded};
use crate::setup::connect;
use crate::setup::listen::{self, Listener, UNREGISTERED};
use core::sync::atomic::Ordering;
use libc::c_int;
use sd_proto::Request;

/// Numbers among which epoll instances are looked for.
const NUMBERS: i32 = 4096;

/// listen(2) on a socket that is not ours.
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Outcome<c_int> {
    let may_be_ours = matches!(table::get(fd), Entry::None) && is_tcp(fd) && is_possible();
    if !may_be_ours {
        return Outcome::Kernel;
    }
    // SAFETY: no pointers.
    if let Err(e) = sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_listen, fd, backlog) }) {
        return Outcome::Errno(e.0);
    }
    if client::wait_for_monitor() && all_epolls_are_known(fd) {
        listen::take_up(fd, backlog);
    }
    Outcome::Done(0)
}

fn is_tcp(fd: c_int) -> bool {
    let is = |name, value| sd_sys::fd::getsockopt_int(fd, libc::SOL_SOCKET, name) == Ok(value);
    is(libc::SO_PROTOCOL, libc::IPPROTO_TCP) && is(libc::SO_ACCEPTCONN, 0)
}

fn is_possible() -> bool {
    !client::is_there()
        && single_threaded()
        && !crate::process::network::has_left()
        && !sd_sys::confine::is_on()
        && crate::process::env::monitor_path(&mut [0; 108]).is_some()
}

/// Makes each epoll instance of the process one that can have sockets of ours, if none of them has this one.
fn all_epolls_are_known(fd: c_int) -> bool {
    let last = sd_sys::fd::nofile_limit().min(NUMBERS as u64) as i32;
    for number in 0..last {
        match sd_sys::fd::epoll_ctl(number, libc::EPOLL_CTL_ADD, fd, 0, 0) {
            // It was not there, and is not there now.
            Ok(()) => drop(sd_sys::fd::epoll_ctl(number, libc::EPOLL_CTL_DEL, fd, 0, 0)),
            Err(sd_sys::Errno(libc::EEXIST)) => return false,
            // None, or no number of the program's.
            Err(_) => continue,
        }
        if matches!(table::get(number), Entry::None) {
            crate::epoll::found(number);
        }
    }
    true
}

/// A listener could not be registered: it will be.
#[cold]
pub(super) fn wait(fd: c_int) {
    crate::setup::withdrawn::cannot_take(fd);
    if client::image_fd() < 0 {
        client::wait_for_monitor();
    }
}

/// All listeners that this process accepts from, to a monitor that is new to it. Under `PROCESS.control`.
pub(crate) fn announce_all(mut tell: impl FnMut(&Request, i32)) {
    let all: Vec<&'static Listener> = listen::REGISTRY.lock().clone();
    for listener in all {
        let Some(endpoint) = *listener.endpoint.lock() else { continue };
        if listener.index.load(Ordering::Relaxed) == UNREGISTERED && !begin(listener) {
            continue;
        }
        connect::each_fd(endpoint, |fd| tell(&listen::request(listener), fd));
    }
}

/// A listener that has never been registered gets its place in the public page, if the program has shown that it accepts.
fn begin(listener: &'static Listener) -> bool {
    let page = PROCESS.public().filter(|_| listener.interested.load(Ordering::Relaxed));
    let Some(page) = page.and_then(|public| listen::publish(listener, public)) else { return false };
    page.backlog.store(listener.backlog.load(Ordering::Relaxed), Ordering::Release);
    true
}
