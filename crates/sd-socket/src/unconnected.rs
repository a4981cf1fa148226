//! Calls on a socket of ours that has no connection: the kernel answers most of them, for the placeholder or for the
//! socket of its own; a pending error and the ends that were shut down are ours.

use crate::Outcome;
use crate::connect::{demote, materialize};
use crate::endpoint::{EndpointExt, SHUT_RD, SHUT_WR};
use crate::faults::{send_failed, take_error};
use crate::table;
use libc::c_int;
use sd_shm::slab::{Endpoint, Reason, State};

fn unconnected(fd: c_int) -> Option<&'static Endpoint> {
    table::socket(fd).filter(|e| matches!(e.state_now(), State::Fresh | State::Bound))
}

/// Receiving: a connection that was given up has left its error.
#[cold]
pub(crate) fn recv<T>(fd: c_int, flags: c_int) -> Outcome<T> {
    let special = flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0;
    match unconnected(fd).filter(|_| !special).and_then(take_error) {
        Some(errno) => Outcome::Errno(errno),
        None => Outcome::Kernel,
    }
}

/// Sending; MSG_FASTOPEN connects.
#[cold]
pub(crate) fn send<T>(fd: c_int, flags: c_int) -> Outcome<T> {
    if flags & libc::MSG_FASTOPEN == 0 {
        return match unconnected(fd).and_then(take_error) {
            Some(errno) => Outcome::Errno(send_failed(errno, flags)),
            None => Outcome::Kernel,
        };
    }
    match table::socket(fd).map(|endpoint| demote(endpoint, Reason::Option)) {
        None | Some(Ok(())) => Outcome::Kernel,
        Some(Err(errno)) => Outcome::Errno(errno),
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
        State::Listen if ends & SHUT_RD != 0 => crate::listen::stop(endpoint),
        State::Fresh | State::Bound if ends != 0 => {
            endpoint.set_flag(ends);
            crate::epoll::endpoint_event(endpoint);
        }
        _ => {}
    }
    // It must not reach the placeholder, which all sockets of the process share.
    match materialize(endpoint) {
        Ok(()) => Outcome::Kernel,
        Err(errno) => Outcome::Errno(errno),
    }
}
