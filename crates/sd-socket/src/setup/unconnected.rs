//! Calls on a socket of ours that has no connection. In SYN-SENT they wait, a connect that has failed tells its error,
//! MSG_FASTOPEN connects, and so are the ends that were shut down ours; most of the rest the kernel answers, for the
//! placeholder or for the socket of its own.

use crate::Outcome;
use crate::fd::table;
use crate::setup::syn_sent;
use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, NONBLOCK, SHUT_RD, SHUT_WR};
use crate::socket::errors::{send_failed, take_error};
use crate::socket::kernel_socket::materialize;
use core::sync::atomic::Ordering;
use libc::{c_int, sockaddr, socklen_t};
use sd_shm::slab::{Endpoint, State};
use sd_sys::Errno;

/// What a socket without a connection says.
enum Answer {
    /// There is one now.
    Connected,
    Kernel,
    Errno(Errno),
    /// Both directions are shut, and all has been told.
    Over,
}

fn ask(endpoint: &'static Endpoint, flags: c_int, timeout_ns: u64) -> Answer {
    if endpoint.state_now() == State::Connecting {
        let nonblock = flags & libc::MSG_DONTWAIT != 0 || endpoint.flag(NONBLOCK);
        if let Err(errno) = syn_sent::await_connection(endpoint, nonblock, timeout_ns) {
            return Answer::Errno(errno);
        }
    }
    let state = endpoint.state_now();
    let error = match state {
        State::Connected => return Answer::Connected,
        State::Fresh | State::Bound | State::Failed => take_error(endpoint),
        _ => None,
    };
    match (error, state) {
        (Some(error), _) => Answer::Errno(error),
        (None, State::Failed) => Answer::Over,
        (None, _) => Answer::Kernel,
    }
}

/// Receiving; `again` makes the call once more when there is a connection.
#[cold]
pub(crate) fn recv<T: Default>(fd: c_int, flags: c_int, again: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let special = flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0;
    let Some(endpoint) = table::socket(fd) else {
        return if super::watched::enter(fd, flags) { again() } else { Outcome::Kernel };
    };
    if special {
        return Outcome::Kernel;
    }
    match ask(endpoint, flags, cold::of(endpoint).rx_timeout_ns.load(Ordering::Relaxed)) {
        Answer::Connected => again(),
        Answer::Kernel if super::watched::is_to_begin_anew(endpoint, fd) => again(),
        Answer::Kernel => Outcome::Kernel,
        Answer::Errno(errno) => Outcome::Errno(errno),
        Answer::Over => Outcome::Done(T::default()),
    }
}

/// Sending; `again` makes the call once more, with these flags, when there is a connection. `to` is the address that
/// it names.
///
/// # Safety
/// `to` is what sendto(2) wants.
#[cold]
pub(crate) unsafe fn send<T>(
    fd: c_int,
    flags: c_int,
    to: (*const sockaddr, socklen_t),
    again: impl FnOnce(c_int) -> Outcome<T>,
) -> Outcome<T> {
    let Some(endpoint) = table::socket(fd) else {
        return if super::watched::enter(fd, flags) { again(flags) } else { Outcome::Kernel };
    };
    let is_new = matches!(endpoint.state_now(), State::Fresh | State::Bound);
    if flags & libc::MSG_FASTOPEN != 0 && is_new {
        if !to.0.is_null() {
            // SAFETY: as the caller says.
            match unsafe { crate::setup::connect::connect_by_send(fd, to.0, to.1) } {
                Outcome::Done(_) => return again(flags & !libc::MSG_FASTOPEN),
                Outcome::Errno(errno) => return Outcome::Errno(errno),
                // Nobody was asked yet: the kernel's send connects.
                Outcome::Kernel => {}
            }
        }
        return in_kernel(endpoint);
    }
    let is_nonblocking = endpoint.flag(NONBLOCK) || flags & libc::MSG_DONTWAIT != 0;
    if flags & libc::MSG_FASTOPEN != 0 && is_nonblocking && endpoint.state_now() == State::Connecting {
        crate::setup::syn_sent::look_at(endpoint);
        if endpoint.state_now() == State::Connecting {
            return Outcome::Errno(Errno::EALREADY);
        }
    }
    if endpoint.state_now() == State::Listen
        && let Some(errno) = take_error(endpoint)
    {
        // What a connection has left that the socket had before.
        return Outcome::Errno(send_failed(errno, flags));
    }
    match ask(endpoint, flags, cold::of(endpoint).tx_timeout_ns.load(Ordering::Relaxed)) {
        Answer::Connected => again(flags),
        Answer::Kernel if super::watched::is_to_begin_anew(endpoint, fd) => again(flags),
        Answer::Kernel => Outcome::Kernel,
        Answer::Errno(errno) => Outcome::Errno(send_failed(errno, flags)),
        Answer::Over => Outcome::Errno(send_failed(Errno::EPIPE, flags)),
    }
}

/// recvmmsg(2) tells a pending error before it looks at the messages, and at the state of the socket.
pub(crate) fn error_before_messages(fd: c_int, flags: c_int) -> Option<Errno> {
    let endpoint = table::socket(fd).filter(|_| flags & libc::MSG_ERRQUEUE == 0)?;
    let is_without = matches!(endpoint.state_now(), State::Fresh | State::Bound | State::Listen);
    if is_without { take_error(endpoint) } else { None }
}

/// It must not reach the placeholder, which all sockets of the process share.
fn in_kernel<T>(endpoint: &'static Endpoint) -> Outcome<T> {
    match materialize(endpoint) {
        Ok(()) => Outcome::Kernel,
        Err(errno) => Outcome::Errno(errno),
    }
}

/// shutdown(2): a listener stops; of others Linux notes what was shut down, though it says ENOTCONN.
pub(crate) fn shutdown(fd: c_int, how: c_int) -> Outcome<c_int> {
    let Some(endpoint) = table::socket(fd) else { return Outcome::Kernel };
    let ends = match how {
        libc::SHUT_RD => SHUT_RD,
        libc::SHUT_WR => SHUT_WR,
        libc::SHUT_RDWR => SHUT_RD | SHUT_WR,
        _ => 0,
    };
    match endpoint.state_now() {
        State::Connecting if ends != 0 => {
            syn_sent::abandon(endpoint);
            return Outcome::Done(0);
        }
        State::Listen if ends & SHUT_RD != 0 => crate::setup::listen::stop(endpoint),
        State::Fresh | State::Bound if ends != 0 => {
            endpoint.set_flag(ends);
            crate::epoll::endpoint_event(endpoint);
        }
        _ => {}
    }
    in_kernel(endpoint)
}
