//! Every option of socket(7), tcp(7), ip(7) and ipv6(7) that a stream socket knows, as a number, in the states of a
//! socket: what it is, what becomes of it when it is set to several values.

use super::states::{self, Made};
use crate::sys::*;
use crate::table::{Subject, solo};

macro_rules! in_states {
    ($($state:ident)*) => {
        &[$(solo(concat!("options_in/", stringify!($state)), || run(states::$state))),*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!(
    fresh bound listening listener_shut connection_waits connecting connected accepted shut_write shut_both peer_closed
    peer_left_data accepted_reset reset refused disconnected connected_again fresh6 connected6 mapped6
);

macro_rules! options {
    ($level:ident: $($name:ident)*) => { &[$((stringify!($name), libc::$level, libc::$name)),*] };
}

/// Name, level and number.
type Known = &'static [(&'static str, i32, i32)];

/// Left to other subjects are those whose values depend on traffic or on the host: buffer sizes, times, `SO_COOKIE`,
/// `TCP_INFO`, `TCP_MAXSEG`, `SO_INCOMING_CPU`.
const SOCKET: Known = options!(SOL_SOCKET:
    SO_ACCEPTCONN SO_BROADCAST SO_BUSY_POLL SO_DEBUG SO_DETACH_FILTER SO_DOMAIN SO_DONTROUTE SO_ERROR SO_KEEPALIVE
    SO_LOCK_FILTER SO_MARK SO_NO_CHECK SO_NOFCS SO_OOBINLINE SO_PASSCRED SO_PASSSEC SO_PEEK_OFF SO_PRIORITY
    SO_PROTOCOL SO_RCVLOWAT SO_REUSEADDR SO_REUSEPORT SO_RXQ_OVFL SO_SELECT_ERR_QUEUE SO_SNDLOWAT SO_TYPE
    SO_WIFI_STATUS SO_ZEROCOPY
);

const TCP: Known = options!(IPPROTO_TCP:
    TCP_FASTOPEN_NO_COOKIE TCP_INQ TCP_KEEPCNT TCP_KEEPIDLE TCP_KEEPINTVL TCP_LINGER2 TCP_NODELAY
    TCP_NOTSENT_LOWAT TCP_QUEUE_SEQ TCP_REPAIR_QUEUE TCP_SAVE_SYN TCP_SYNCNT
    TCP_THIN_DUPACK TCP_THIN_LINEAR_TIMEOUTS TCP_USER_TIMEOUT
);

const IP: Known = options!(IPPROTO_IP:
    IP_BIND_ADDRESS_NO_PORT IP_FREEBIND IP_HDRINCL IP_MINTTL IP_MTU_DISCOVER IP_MULTICAST_ALL IP_MULTICAST_LOOP
     IP_NODEFRAG IP_PASSSEC IP_PKTINFO IP_RECVERR IP_RECVOPTS IP_RECVORIGDSTADDR IP_RECVTOS IP_RECVTTL
    IP_RETOPTS IP_ROUTER_ALERT IP_TOS IP_TRANSPARENT IP_TTL
);

const IPV6: Known = options!(IPPROTO_IPV6:
    IPV6_V6ONLY IPV6_UNICAST_HOPS IPV6_RECVPKTINFO IPV6_TCLASS IPV6_MTU_DISCOVER
);

fn run(state: fn() -> Made) {
    for (name, level, number) in [SOCKET, TCP, IP, IPV6].into_iter().flatten().copied() {
        let made = state();
        let mut seen = vec![get(&made, level, number)];
        for value in [1, 3, 100_000, -1, 0] {
            let result = set_int(made.fd, level, number, value);
            seen.push(format!("{value}: {result} {}", get(&made, level, number)));
        }
        say!("{name}: {}", seen.join(", "));
        made.close();
    }
}

fn get(made: &Made, level: i32, number: i32) -> String {
    match get_int(made.fd, level, number) {
        (result, value) if result.ok() => value.to_string(),
        (result, _) => errno_name(result.errno),
    }
}
