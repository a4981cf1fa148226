//! Every call in every state a socket can be in: one subject per state, one line per call.
//!
//! Each line begins with a fresh socket brought into the state. It shows what the call returned, what the same call
//! returned a second time, how many SIGPIPE came, and what poll and `SO_ERROR` say afterwards.
//!
//! `states/X` has the socket non-blocking, `states_blocking/X` blocking with time-outs of a few milliseconds,
//! `states_copy/X` calls on a dup whose original is closed, and `states_child/X` in a child that inherited the socket.

mod calls;
pub(super) mod controls;
pub(super) mod ends;
mod family;
pub(super) mod flags;
pub(super) mod masks;
pub(super) mod numbers;
pub(super) mod options;
pub(super) mod pointers;
pub(super) mod sequences;
mod states;

use calls::CALLS;
use family::{Family, use_family};
use states::Made;

use crate::sys::*;
use crate::table::{Subject, solo};

macro_rules! in_states {
    ($topic:literal, $way:ident, $($state:ident)*) => {
        &[$(solo(concat!($topic, "/", stringify!($state)), || run(states::$state, Way::$way))),*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!("states", Plain,
    fresh bound listening connection_waits listener_shut listener_shut_and_again
    connected accepted data_waiting full shut_read shut_read_data shut_write shut_both
    peer_shut peer_shut_data both_shut peer_closed peer_closed_data peer_closed_and_sent peer_left_data
    reset reset_data reset_told refused refused_untold disconnected disconnected_data
    fresh6 listening6 connected6 mapped6
    closed_number no_number path_only regular_file read_end event_counter epoll_instance unix_pair udp
);

/// States that came later than the others, or that few programs see.
pub(crate) const MORE: &[Subject] = in_states!("states", Plain,
    connecting used urgent_waiting shut_both_data peer_shut_both_data accepted_closed accepted_reset reset_read
    listener_disconnected connected_again
);

pub(crate) const OF_V6: &[Subject] = in_states!("states6", V6,
    bound connection_waits listener_shut connecting accepted data_waiting urgent_waiting full shut_read_data shut_write
    shut_both peer_shut_data both_shut peer_closed peer_closed_data peer_closed_and_sent peer_left_data accepted_closed
    accepted_reset reset reset_data refused refused_untold disconnected connected_again
);

pub(crate) const OF_MAPPED: &[Subject] = in_states!("states_mapped", Mapped,
    bound listening connection_waits connecting connected accepted data_waiting shut_write peer_shut_data
    peer_closed peer_left_data reset refused
);

pub(crate) const BLOCKING: &[Subject] = in_states!("states_blocking", Blocking,
    urgent_waiting accepted_closed accepted_reset shut_both_data reset_read peer_shut_both_data refused_untold
    fresh bound listening connection_waits listener_shut
    connected data_waiting full shut_read shut_read_data shut_write shut_both
    peer_shut peer_shut_data both_shut peer_closed peer_closed_data peer_closed_and_sent peer_left_data
    reset reset_data reset_told refused disconnected
);

pub(crate) const COPIES: &[Subject] = in_states!("states_copy", Copy,
    connecting urgent_waiting accepted_closed accepted_reset shut_both_data reset_data disconnected_data
    fresh bound listening connection_waits connected data_waiting full shut_write shut_both
    peer_shut_data peer_closed peer_closed_and_sent reset refused disconnected
);

pub(crate) const CHILDREN: &[Subject] = in_states!("states_child", Child,
    urgent_waiting accepted_closed accepted_reset shut_both_data reset_data disconnected_data
    fresh bound listening connection_waits connected data_waiting full shut_read shut_write shut_both
    peer_shut_data both_shut peer_closed peer_closed_and_sent peer_left_data reset refused disconnected
);

/// Through which descriptor, and how, the calls are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    /// Plain, with sockets of IPv6; of IPv6, with addresses of IPv4.
    V6,
    Mapped,
    Blocking,
    Copy,
    Child,
}

fn run(state: fn() -> Made, way: Way) {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    match way {
        Way::V6 => use_family(Family::V6),
        Way::Mapped => use_family(Family::Mapped),
        _ => {}
    }
    match way {
        Way::Plain | Way::V6 | Way::Mapped => each_call(state, |made| {
            set_nonblocking(made.fd, true);
        }),
        Way::Blocking => each_call(state, |made| {
            set_timeout(made.fd, libc::SO_RCVTIMEO, 3);
            set_timeout(made.fd, libc::SO_SNDTIMEO, 3);
        }),
        Way::Copy => each_call(state, |made| {
            set_nonblocking(made.fd, true);
            let copy = dup(made.fd).fd();
            close(made.fd);
            made.fd = copy;
        }),
        Way::Child => in_a_child(state),
    }
}

/// Makes every call on a socket of its own in the state, after it was prepared.
fn each_call(state: fn() -> Made, prepare: fn(&mut Made)) {
    for (name, call) in CALLS {
        let mut made = state();
        set_nonblocking(made.fd, false);
        prepare(&mut made);
        look(name, *call, &made);
        made.close();
    }
}

/// One child makes all the calls, on sockets that it has inherited.
fn in_a_child(state: fn() -> Made) {
    let made: Vec<Made> = CALLS.iter().map(|_| state()).collect();
    for made in &made {
        set_nonblocking(made.fd, true);
    }
    let child = fork_child(|| {
        for ((name, call), made) in CALLS.iter().zip(&made) {
            look(name, *call, made);
        }
        0
    });
    say!("child: {}", wait_child(child));
    made.into_iter().for_each(Made::close);
}

/// Makes the call twice, and prints what came of it.
fn look(name: &str, call: fn(&Made) -> String, made: &Made) {
    let first = call(made);
    sleep(1);
    let second = call(made);
    let signals = taken(libc::SIGPIPE);
    sleep(1);
    say!("{name}: {first}, {second}; SIGPIPE {signals}{}", look_at(made.fd));
}

/// What poll and `SO_ERROR` say.
fn look_at(fd: i32) -> String {
    let (_, events) = poll_one(fd, ALL, 0);
    let (result, error) = get_int(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    let error = match (result.ok(), error) {
        (false, _) => result.to_string(),
        (true, 0) => "0".to_owned(),
        (true, error) => errno_name(error),
    };
    format!("; poll {}; SO_ERROR {error}", poll_mask(events))
}
