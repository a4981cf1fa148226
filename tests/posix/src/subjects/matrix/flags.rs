//! Every flag of send and recv, each bit by itself and known ones in pairs, in the states of a socket: one subject per state, one
//! line per call and flags.
//!
//! Each line begins with a fresh socket in the state. It shows what the call returned, how many SIGPIPE came, what poll and
//! `SO_ERROR` say afterwards, and what the other end sees.

use super::calls::{bytes, mmsg};
use super::family::{Family, use_family};
use super::look_at;
use super::sequences::seen_by;
use super::states::{self, Made};
use crate::sys::*;
use crate::table::{Subject, solo};

macro_rules! in_states {
    ($topic:literal, $flags:ident, $family:ident, $($state:ident)*) => {
        &[$(solo(concat!($topic, "/", stringify!($state)), || run(states::$state, $flags(), Family::$family, false))),*]
    };
}

macro_rules! in_states_blocking {
    ($($state:ident)*) => {
        &[$(solo(
            concat!("flags_blocking/", stringify!($state)),
            || run(states::$state, each_bit(), Family::V4, true)
        )),*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!("flags_bits", each_bit, V4,
    fresh bound listening connection_waits listener_shut connecting connected accepted used data_waiting urgent_waiting shut_read shut_read_data shut_write shut_both shut_both_data peer_shut peer_shut_data both_shut
    peer_closed peer_closed_data peer_closed_and_sent peer_left_data accepted_closed accepted_reset
    reset reset_data reset_read reset_told refused refused_untold disconnected disconnected_data connected_again
);

pub(crate) const PAIRS: &[Subject] = in_states!("flags_pairs", each_pair, V4,
    fresh listening connecting connected data_waiting shut_read_data shut_write shut_both_data
    peer_shut_data peer_closed peer_closed_data reset_data accepted_reset refused disconnected
);

pub(crate) const OF_V6: &[Subject] = in_states!("flags_bits6", each_bit, V6,
    fresh listening connecting connected data_waiting urgent_waiting peer_shut_data peer_closed reset_data refused disconnected
);

pub(crate) const BLOCKING: &[Subject] = in_states_blocking!(
    fresh listening connected data_waiting urgent_waiting shut_read_data shut_both peer_shut_data peer_closed
    reset_data refused
);

/// Flags with names.
const KNOWN: &[(&str, i32)] = &[
    ("OOB", libc::MSG_OOB),
    ("PEEK", libc::MSG_PEEK),
    ("DONTROUTE", libc::MSG_DONTROUTE),
    ("CTRUNC", libc::MSG_CTRUNC),
    ("TRUNC", libc::MSG_TRUNC),
    ("DONTWAIT", libc::MSG_DONTWAIT),
    ("EOR", libc::MSG_EOR),
    ("WAITALL", libc::MSG_WAITALL),
    ("CONFIRM", libc::MSG_CONFIRM),
    ("ERRQUEUE", libc::MSG_ERRQUEUE),
    ("NOSIGNAL", libc::MSG_NOSIGNAL),
    ("MORE", libc::MSG_MORE),
    ("WAITFORONE", libc::MSG_WAITFORONE),
    ("ZEROCOPY", 0x0400_0000),
    ("FASTOPEN", libc::MSG_FASTOPEN),
    ("CMSG_CLOEXEC", libc::MSG_CMSG_CLOEXEC),
];

fn each_bit() -> Vec<(String, i32)> {
    let name = |bit: i32| match KNOWN.iter().find(|(_, known)| *known == bit) {
        Some((name, _)) => (*name).to_owned(),
        None => format!("{bit:#x}"),
    };
    (0..32).map(|shift| 1i32 << shift).map(|bit| (name(bit), bit)).collect()
}

fn each_pair() -> Vec<(String, i32)> {
    let pairs = KNOWN
        .iter()
        .enumerate()
        .flat_map(|(at, first)| KNOWN[at + 1..].iter().map(move |second| (first, second)));
    pairs.map(|(first, second)| (format!("{}+{}", first.0, second.0), first.1 | second.1)).collect()
}

type Call = fn(&Made, i32) -> String;

const CALLS: &[(&str, Call)] = &[
    ("send", |made, flags| send(made.fd, b"x", flags).to_string()),
    ("send nothing", |made, flags| send(made.fd, b"", flags).to_string()),
    ("sendto", |made, flags| sendto(made.fd, b"x", flags, Some(&made.elsewhere)).to_string()),
    ("sendmsg", |made, flags| sendmsg(made.fd, &[b"x", b"y"], flags).to_string()),
    // What MSG_MORE holds back goes together with the next message, as ADR 32 has it.
    ("sendmmsg", |made, flags| match flags & libc::MSG_MORE {
        0 => mmsg(sendmmsg(made.fd, &[b"x", b"yz"], flags)),
        _ => mmsg(sendmmsg(made.fd, &[b"x"], flags)),
    }),
    ("recv", |made, flags| {
        let mut buffer = [0; 4];
        let result = recv(made.fd, &mut buffer, flags);
        bytes(result, &buffer)
    }),
    ("recv nothing", |made, flags| recv(made.fd, &mut [], flags).to_string()),
    ("recvfrom", |made, flags| {
        let mut buffer = [0; 12];
        let (result, addr) = recvfrom(made.fd, &mut buffer, flags);
        format!("{} len {}", bytes(result, &buffer), addr.len)
    }),
    ("recvmsg", |made, flags| {
        let got = recvmsg(made.fd, &[4, 2], flags);
        match got.result.ok() {
            true => format!("{} name {} flags {}", got.result, got.name_len, msg_flags(got.flags)),
            false => got.result.to_string(),
        }
    }),
    ("recvmmsg", |made, flags| {
        let (result, parts) = recvmmsg(made.fd, 2, 4, flags);
        format!("{result} {parts:?}")
    }),
];

/// `blocks`: with time-outs of a few milliseconds.
fn run(state: fn() -> Made, flags: Vec<(String, i32)>, family: Family, blocks: bool) {
    use_family(family);
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    for (call_name, call) in CALLS {
        for (name, bits) in &flags {
            let made = state();
            set_nonblocking(made.fd, !blocks);
            set_timeout(made.fd, libc::SO_RCVTIMEO, 3);
            set_timeout(made.fd, libc::SO_SNDTIMEO, 3);
            let result = call(&made, *bits);
            if call_name.starts_with("send") {
                push(made.fd);
                sleep(1);
            }
            let signals = taken(libc::SIGPIPE);
            say!("{call_name} {name}: {result}; SIGPIPE {signals}{}", look_at(made.fd));
            if let Some(peer) = made.peer() {
                say!("  peer: {}", seen_by(peer));
            }
            made.abort();
        }
    }
}

/// What MSG_MORE holds back goes out.
fn push(fd: i32) {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}
