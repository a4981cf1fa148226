//! The kernel's connection beneath one that an engine carries is silent: a gateway would forget it, and with it the way back. So the kernel asks the other
//! end's once a minute whether it is there (SO_KEEPALIVE), and the program sees nothing of that (ADR 103).
//!
//! What it sets and asks meanwhile stands in the endpoint's records ([`NUMBERS`]), and is the socket's again when the connection is the kernel's. A
//! probe that is not answered for two hours ends the kernel's connection only: a connection that an engine carries does not look at that.
//!
//! **Where the program has the kernel ask as often itself** that keeps the way open as well, and what is found is what the program wants to know: its
//! options stay, and a connection whose kernel's has ended because nobody answers ends like that ([`finds_nobody`]).

use crate::socket::endpoint::EndpointExt;
use crate::socket::recorded::{NUMBERS, Number};
use crate::socket::road::{self, KEPT};
use core::sync::atomic::Ordering;
use libc::{IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, c_int};
use sd_shm::slab::Endpoint;
use sd_sys::fd::{getsockopt_int, setsockopt_int};
use sd_sys::{Errno, tcp};

/// After so many seconds of silence, and from one probe to the next.
const SECONDS: i32 = 60;
/// The most that Linux takes.
const PROBES: i32 = 127;

const OPTIONS: [(c_int, c_int); 4] = [
    (SOL_SOCKET, SO_KEEPALIVE),
    (IPPROTO_TCP, TCP_KEEPIDLE),
    (IPPROTO_TCP, TCP_KEEPINTVL),
    (IPPROTO_TCP, TCP_KEEPCNT),
];

fn numbers() -> impl Iterator<Item = &'static Number> {
    NUMBERS.iter().filter(|number| OPTIONS.contains(&(number.level, number.name)))
}

/// What the program set, or would find.
fn recorded(endpoint: &Endpoint, number: &Number) -> i32 {
    number.load(endpoint).unwrap_or(number.default)
}

/// The program wants to know whether the other end is there, and asks often enough.
fn asks_itself(endpoint: &Endpoint) -> bool {
    numbers().all(|number| match number.name {
        SO_KEEPALIVE => recorded(endpoint, number) != 0,
        TCP_KEEPIDLE => recorded(endpoint, number) <= SECONDS,
        _ => true,
    })
}

/// The connection has got its slot, and its options are recorded. Not where they could not be set again, nor where the program limits how long it
/// waits for an answer: a probe would be one more thing to wait for.
pub(crate) fn keep(endpoint: &Endpoint, fd: i32) {
    let is_as_found =
        |number: &Number| getsockopt_int(fd, number.level, number.name) == Ok(recorded(endpoint, number));
    let has_limit = getsockopt_int(fd, IPPROTO_TCP, libc::TCP_USER_TIMEOUT) != Ok(0);
    if !road::is_far(endpoint) || has_limit || asks_itself(endpoint) || !numbers().all(is_as_found) {
        return;
    }
    road::word(endpoint).inspect(|word| _ = word.fetch_or(KEPT, Ordering::AcqRel));
    for number in numbers() {
        let value = match number.name {
            SO_KEEPALIVE => 1,
            TCP_KEEPCNT => PROBES,
            _ => SECONDS,
        };
        // Where it fails it stays as it was.
        let _ = setsockopt_int(fd, number.level, number.name, value);
    }
}

/// What the program asks is answered from what is recorded.
pub(crate) fn hides(endpoint: &Endpoint, option: (c_int, c_int)) -> bool {
    OPTIONS.contains(&option) && road::is_by_kernel(endpoint, KEPT)
}

/// What the program has set, and was recorded just now, is not the socket's for now: [`give_back`] will set it, or does so now.
pub(crate) fn takes(endpoint: &'static Endpoint, fd: i32, option: (c_int, c_int)) -> bool {
    hides(endpoint, option) && {
        // Under which the slot is given back.
        let _half = endpoint.rx_token();
        let is_hidden = hides(endpoint, option);
        if is_hidden && asks_itself(endpoint) {
            give_back(endpoint, fd);
            road::word(endpoint).inspect(|word| _ = word.fetch_and(!KEPT, Ordering::AcqRel));
        }
        is_hidden
    }
}

/// The kernel has asked for the program whether the other end is there, nobody has answered, and it has ended its connection: how. (Linux does not ask
/// while something that was sent is not acknowledged; that nobody knows here, as the receiver's program gives credit late.) Not for [`KEPT`] ones.
pub(crate) fn finds_nobody(fd: i32) -> Option<Errno> {
    let has_asked = |info: &tcp::Info| info.state == tcp::CLOSE && info.probes != 0;
    tcp::info(fd).ok().filter(has_asked)?;
    let error = getsockopt_int(fd, SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
    Some(if error == 0 { Errno::ETIMEDOUT } else { Errno(error) })
}

/// The kernel's socket is all of the connection again, and gets what the program has set. For who has the token of the receiving half.
pub(crate) fn give_back(endpoint: &Endpoint, fd: i32) {
    for number in numbers() {
        let _ = setsockopt_int(fd, number.level, number.name, recorded(endpoint, number));
    }
}
