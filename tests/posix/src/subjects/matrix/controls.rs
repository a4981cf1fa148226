//! Every `ioctl` of sockets and files, and every `fcntl`, with several arguments, in the states of a socket.
//!
//! One line per request and argument: what the call returned, what it wrote, and the flags and events afterwards.

use super::states::{self, Made};
use crate::sys::*;
use crate::table::{Subject, solo};

macro_rules! in_states {
    ($($state:ident)*) => {
        &[$(
            solo(concat!("ioctls/", stringify!($state)), || ioctls(states::$state)),
            solo(concat!("fcntls/", stringify!($state)), || fcntls(states::$state)),
        )*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!(
    fresh bound listening connection_waits connecting connected accepted data_waiting urgent_waiting
    shut_read_data shut_both peer_shut_data peer_closed peer_left_data
    accepted_closed accepted_reset peer_shut_both_data reset refused disconnected connected_again connected6 mapped6
);

/// Name, number, and whether what it writes is the same each time.
const IOCTLS: &[(&str, libc::Ioctl, bool)] = &[
    ("FIONREAD", libc::FIONREAD, true),
    ("SIOCOUTQ", libc::TIOCOUTQ, false),
    ("SIOCOUTQNSD", 0x894b, false),
    ("SIOCATMARK", 0x8905, true),
    ("FIONBIO", libc::FIONBIO, true),
    ("FIOASYNC", libc::FIOASYNC, true),
    ("FIOCLEX", libc::FIOCLEX, true),
    ("FIONCLEX", libc::FIONCLEX, true),
    ("FIOQSIZE", 0x5460, true),
    ("FIGETBSZ", 2, true),
    ("FIBMAP", 1, true),
    ("FIOSETOWN", 0x8901, true),
    ("SIOCSPGRP", 0x8902, true),
    ("FIOGETOWN", 0x8903, true),
    ("SIOCGPGRP", 0x8904, true),
    ("SIOCGSTAMP", 0x8906, false),
    ("SIOCGSTAMPNS", 0x8907, false),
    ("SIOCGIFNAME", 0x8910, false),
    ("SIOCGIFCONF", 0x8912, false),
    ("SIOCGIFFLAGS", 0x8913, false),
    ("SIOCGIFADDR", 0x8915, false),
    ("SIOCGIFMTU", 0x8921, false),
    ("SIOCGIFINDEX", 0x8933, false),
    ("SIOCGARP", 0x8954, false),
    ("SIOCADDRT", 0x890b, false),
    ("SIOCPROTOPRIVATE", 0x89e0, true),
    ("SIOCDEVPRIVATE", 0x89f0, true),
    ("TCGETS", 0x5401, true),
    ("TCSBRK", 0x5409, true),
    ("TIOCGPGRP", 0x540f, true),
    ("TIOCGWINSZ", 0x5413, true),
    ("TIOCSTI", 0x5412, true),
    ("none", 0, true),
    ("unknown", 0x1234, true),
    ("unknown of sockets", 0x89ff, true),
    ("all bits", 0xffff_ffffu32 as _, true),
];

fn ioctls(state: fn() -> Made) {
    signal(libc::SIGIO, libc::SIG_IGN);
    for (name, request, shows) in IOCTLS {
        for value in [0, 1, -1] {
            let made = state();
            let mut buffer = [0i32; 64];
            buffer[0] = value;
            let result = ioctl_raw(made.fd, *request, buffer.as_mut_ptr().cast());
            let wrote = if *shows { buffer[0] } else { 0 };
            say!("{name} {value}: {result} {wrote}{}", afterwards(made.fd));
            made.abort();
        }
        let made = state();
        let result = ioctl_raw(made.fd, *request, std::ptr::null_mut());
        say!("{name} null: {result}{}", afterwards(made.fd));
        made.abort();
    }
}

fn fcntls(state: fn() -> Made) {
    signal(libc::SIGIO, libc::SIG_IGN);
    for command in (0..20).chain(36..40).chain(1024..1048) {
        for argument in [0, 1, 9, 0x2000, 0o4000, 0o402000, -1] {
            let made = state();
            let result = fcntl(made.fd, command, argument);
            let makes = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
            let shown = match makes && result.ok() {
                true => {
                    close(result.fd());
                    "a number".to_owned()
                }
                false => result.to_string(),
            };
            say!("{command} {argument}: {shown}{}", afterwards(made.fd));
            made.abort();
        }
    }
}

/// Of linux/fcntl.h, which the libc crate lacks.
const F_GETSIG: i32 = 11;

fn afterwards(fd: i32) -> String {
    let (_, events) = poll_one(fd, ALL, 0);
    let owner = fcntl(fd, libc::F_GETOWN, 0);
    let signal = fcntl(fd, F_GETSIG, 0);
    let flags = fcntl(fd, libc::F_GETFL, 0).value;
    format!("; {flags:#x} {} owner {owner} {signal} {}", descriptor_flags(fd), poll_mask(events))
}
