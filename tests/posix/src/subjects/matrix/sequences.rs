//! Two calls, one after the other, in the states of a socket: what the second returns tells what the first has changed.
//! One subject per state and group of first calls, one line per pair of calls.
//!
//! Each line begins with a fresh socket in the state. It shows what both calls returned, what poll and `SO_ERROR` say
//! afterwards, and what the other end of a connection sees.

use super::calls::{CALLS, Call};
use super::look_at;
use super::states::{self, Made};
use crate::sys::*;
use crate::table::{Subject, solo};

macro_rules! in_states {
    ($($state:ident)*) => {
        &[$(
            solo(concat!("after_data/", stringify!($state)), || run(states::$state, true)),
            solo(concat!("after_others/", stringify!($state)), || run(states::$state, false)),
        )*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!(
    fresh bound listening connection_waits connecting connected accepted data_waiting urgent_waiting
    shut_read_data shut_write shut_both peer_shut_data both_shut peer_closed peer_closed_data peer_closed_and_sent
    peer_left_data reset reset_data refused disconnected
    accepted_closed accepted_reset shut_both_data listener_disconnected
);

/// The second calls: those that look at a state, and one of each kind that changes one.
const SECOND: &[&str] = &[
    "send",
    "send nothing",
    "send OOB",
    "sendmsg",
    "sendfile",
    "recv",
    "recv nothing",
    "recv PEEK",
    "recv WAITALL",
    "recv OOB",
    "readv",
    "bind",
    "listen",
    "connect",
    "connect UNSPEC",
    "accept",
    "getsockname",
    "getpeername",
    "shutdown RD",
    "shutdown WR",
    "shutdown RDWR",
    "TCP_INFO",
    "FIONREAD",
    "SIOCATMARK",
    "F_GETFL",
];

/// Calls that move bytes.
fn is_data(name: &str) -> bool {
    ["send", "write", "pwrite", "splice", "recv", "read", "pread"].iter().any(|word| name.starts_with(word))
}

/// Calls after which the kernel of the other end may have to be waited for.
fn sends(name: &str) -> bool {
    ["send", "write", "splice out", "connect", "shutdown", "listen"].iter().any(|word| name.starts_with(word))
}

fn run(state: fn() -> Made, data: bool) {
    signal(libc::SIGPIPE, libc::SIG_IGN);
    let first = CALLS.iter().filter(|(name, _)| is_data(name) == data);
    for (name, call) in first {
        for (second_name, second) in CALLS.iter().filter(|(name, _)| SECOND.contains(name)) {
            let made = state();
            set_nonblocking(made.fd, true);
            let results = [make((name, *call), &made), make((second_name, *second), &made)];
            say!("{name}: {}, {second_name}: {}{}", results[0], results[1], look_at(made.fd));
            if let Some(peer) = made.peer() {
                say!("  peer: {}", seen_by(peer));
            }
            made.abort();
        }
    }
}

fn make((name, call): (&str, Call), made: &Made) -> String {
    let result = call(made);
    if sends(name) {
        sleep(1);
    }
    result
}

/// What the other end of the connection is told.
pub(super) fn seen_by(peer: i32) -> String {
    let mut buffer = [0; 64];
    let (_, events) = poll_one(peer, ALL, 0);
    let result = recv(peer, &mut buffer, libc::MSG_DONTWAIT);
    let bytes = if result.value > 0 { text(&buffer[..result.count()]) } else { String::new() };
    format!("{} {result} {bytes}", poll_mask(events))
}
