//! Every option by its number, known or not, in the states of a socket: what lengths it takes and gives, what it is
//! before and after it was set.

use super::states::{self, Made};
use crate::sys::*;
use crate::table::{Subject, solo};

macro_rules! in_states {
    ($($state:ident)*) => {
        &[$(
            solo(concat!("options_socket/", stringify!($state)), || run(states::$state, libc::SOL_SOCKET, 1..=90)),
            solo(concat!("options_tcp/", stringify!($state)), || run(states::$state, libc::IPPROTO_TCP, 1..=60)),
            solo(concat!("options_ip/", stringify!($state)), || run(states::$state, libc::IPPROTO_IP, 0..=60)),
            solo(concat!("options_ipv6/", stringify!($state)), || run(states::$state, libc::IPPROTO_IPV6, 1..=82)),
        )*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!(
    fresh bound listening connection_waits connecting connected accepted shut_both peer_closed reset refused disconnected
    fresh6 listening6 connected6 mapped6
);

/// What differs from run to run, or by the host: the kernel's memory, ports, sequence numbers, times, cookies.
const VARYING: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::SOL_SOCKET, 55), // SO_MEMINFO
    (libc::SOL_SOCKET, libc::SO_COOKIE),
    (libc::SOL_SOCKET, 71), // SO_NETNS_COOKIE
    (libc::SOL_SOCKET, libc::SO_PEERNAME),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::IPPROTO_TCP, libc::TCP_INFO),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    (libc::IPPROTO_TCP, libc::TCP_TIMESTAMP),
    (libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ),
    (libc::IPPROTO_TCP, 26), // TCP_CC_INFO
    (libc::IPPROTO_IP, 52),  // IP_PROTOCOL
];

fn run(state: fn() -> Made, level: i32, numbers: std::ops::RangeInclusive<i32>) {
    for number in numbers {
        let made = state();
        let mut seen: Vec<String> = [1, 4, 8, 64].map(|len| get(&made, level, number, len)).to_vec();
        for value in [1i32, 0] {
            let narrow = set_bytes(made.fd, level, number, &[value as u8]);
            let wide = set_int(made.fd, level, number, value);
            let long = set_bytes(made.fd, level, number, &[&value.to_ne_bytes()[..], &[0; 12]].concat());
            seen.push(format!("{value}: {narrow} {wide} {long} {}", get(&made, level, number, 16)));
        }
        say!("{number}: {}", seen.join(", "));
        made.close();
    }
}

fn get(made: &Made, level: i32, number: i32, len: usize) -> String {
    let mut value = vec![0xee; len];
    let (result, got) = get_bytes(made.fd, level, number, &mut value);
    let shown = match VARYING.contains(&(level, number)) {
        true => String::new(),
        false => value[..got.min(len)].iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    match result.ok() {
        true => format!("{got}[{shown}]"),
        false => format!("{}/{got}", errno_name(result.errno)),
    }
}
