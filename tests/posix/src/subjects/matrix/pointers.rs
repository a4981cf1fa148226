//! Addresses where no memory is, in every pointer of every call: EFAULT, or what Linux finds wrong first.

use super::states::{self, Made};
use crate::sys::*;
use crate::table::{Subject, solo};
use std::ptr::{null_mut, without_provenance_mut};

macro_rules! in_states {
    ($($state:ident)*) => {
        &[$(
            solo(concat!("pointers/", stringify!($state)), || run(states::$state, &BAD, &[])),
            solo(concat!("pointers_mapped/", stringify!($state)), || run(states::$state, &mapped(), DATA_CALLS)),
        )*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!(
    fresh bound listening connection_waits connected data_waiting full shut_write peer_shut peer_closed_data reset
);

type Bad = *mut libc::c_void;
type Call = fn(&Made, Bad) -> Ret;

const CALLS: &[(&str, Call)] = &[
    ("send", |made, bad| call!(libc::send(made.fd, bad, 4, libc::MSG_NOSIGNAL))),
    ("send OOB", |made, bad| call!(libc::send(made.fd, bad, 4, libc::MSG_NOSIGNAL | libc::MSG_OOB))),
    ("write", |made, bad| call!(libc::write(made.fd, bad, 4))),
    ("sendto address", |made, bad| {
        call!(libc::sendto(made.fd, DATA.as_ptr().cast(), 4, 0x4000, bad.cast(), 16))
    }),
    ("sendmsg", |made, bad| call!(libc::sendmsg(made.fd, bad.cast(), 0x4000))),
    ("sendmsg name", |made, bad| sent(made, |header| header.msg_name = bad)),
    ("sendmsg control", |made, bad| sent(made, |header| header.msg_control = bad)),
    ("sendmsg vector", |made, bad| sent(made, |header| header.msg_iov = bad.cast())),
    ("sendmsg buffer", |made, bad| call!(libc::sendmsg(made.fd, &with(&mut [part(bad)]), 0x4000))),
    ("sendmmsg", |made, bad| call!(libc::sendmmsg(made.fd, bad.cast(), 2, 0x4000))),
    ("writev", |made, bad| call!(libc::writev(made.fd, bad.cast(), 1))),
    ("writev buffer", |made, bad| call!(libc::writev(made.fd, [part(bad)].as_ptr(), 1))),
    ("writev second buffer", |made, bad| {
        call!(libc::writev(made.fd, [part(DATA.as_ptr().cast_mut().cast()), part(bad)].as_ptr(), 2))
    }),
    ("recv", |made, bad| call!(libc::recv(made.fd, bad, 4, 0))),
    ("recv PEEK", |made, bad| call!(libc::recv(made.fd, bad, 4, libc::MSG_PEEK))),
    ("recv OOB", |made, bad| call!(libc::recv(made.fd, bad, 4, libc::MSG_OOB))),
    ("read", |made, bad| call!(libc::read(made.fd, bad, 4))),
    ("recvfrom address", |made, bad| {
        call!(libc::recvfrom(made.fd, [0u8; 4].as_mut_ptr().cast(), 2, 0, bad.cast(), &mut 16))
    }),
    ("recvfrom length", |made, bad| {
        call!(libc::recvfrom(
            made.fd,
            [0u8; 4].as_mut_ptr().cast(),
            2,
            0,
            Addr::empty().ptr_mut(),
            bad.cast()
        ))
    }),
    ("recvmsg", |made, bad| call!(libc::recvmsg(made.fd, bad.cast(), 0))),
    ("recvmsg name", |made, bad| received(made, |header| header.msg_name = bad)),
    ("recvmsg control", |made, bad| received(made, |header| header.msg_control = bad)),
    ("recvmsg vector", |made, bad| received(made, |header| header.msg_iov = bad.cast())),
    ("recvmsg buffer", |made, bad| call!(libc::recvmsg(made.fd, &mut with(&mut [part(bad)]), 0))),
    ("recvmmsg", |made, bad| call!(libc::recvmmsg(made.fd, bad.cast(), 2, 0, null_mut()))),
    ("recvmmsg time", |made, bad| {
        let mut buffer = [0u8; 4];
        let mut parts = [part(buffer.as_mut_ptr().cast())];
        let mut message = libc::mmsghdr { msg_hdr: with(&mut parts), msg_len: 0 };
        call!(libc::recvmmsg(made.fd, &mut message, 1, 0, bad.cast()))
    }),
    ("readv", |made, bad| call!(libc::readv(made.fd, bad.cast(), 1))),
    ("readv buffer", |made, bad| call!(libc::readv(made.fd, [part(bad)].as_ptr(), 1))),
    ("bind", |made, bad| call!(libc::bind(made.fd, bad.cast(), 16))),
    ("bind of no length", |made, bad| call!(libc::bind(made.fd, bad.cast(), 0))),
    ("connect", |made, bad| call!(libc::connect(made.fd, bad.cast(), 16))),
    ("connect of no length", |made, bad| call!(libc::connect(made.fd, bad.cast(), 0))),
    ("accept address", |made, bad| closed(call!(libc::accept(made.fd, bad.cast(), &mut 16)))),
    ("accept length", |made, bad| closed(call!(libc::accept(made.fd, Addr::empty().ptr_mut(), bad.cast())))),
    ("getsockname address", |made, bad| call!(libc::getsockname(made.fd, bad.cast(), &mut 16))),
    ("getsockname no bytes", |made, bad| call!(libc::getsockname(made.fd, bad.cast(), &mut 0))),
    ("getsockname length", |made, bad| {
        call!(libc::getsockname(made.fd, Addr::empty().ptr_mut(), bad.cast()))
    }),
    ("getpeername address", |made, bad| call!(libc::getpeername(made.fd, bad.cast(), &mut 16))),
    ("getpeername length", |made, bad| {
        call!(libc::getpeername(made.fd, Addr::empty().ptr_mut(), bad.cast()))
    }),
    ("setsockopt SO_KEEPALIVE", |made, bad| set_raw(made.fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, bad, 4)),
    ("setsockopt SO_LINGER", |made, bad| set_raw(made.fd, libc::SOL_SOCKET, libc::SO_LINGER, bad, 8)),
    ("setsockopt SO_RCVTIMEO", |made, bad| set_raw(made.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, bad, 16)),
    ("setsockopt SO_RCVLOWAT", |made, bad| set_raw(made.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bad, 4)),
    ("setsockopt SO_OOBINLINE", |made, bad| set_raw(made.fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, bad, 4)),
    ("setsockopt SO_SNDBUF", |made, bad| set_raw(made.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bad, 4)),
    ("setsockopt TCP_NODELAY", |made, bad| set_raw(made.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, bad, 4)),
    ("setsockopt TCP_CONGESTION", |made, bad| {
        set_raw(made.fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, bad, 4)
    }),
    ("setsockopt IP_TOS", |made, bad| set_raw(made.fd, libc::IPPROTO_IP, libc::IP_TOS, bad, 4)),
    ("getsockopt SO_KEEPALIVE", |made, bad| option(made, libc::SOL_SOCKET, libc::SO_KEEPALIVE, bad)),
    ("getsockopt SO_ERROR", |made, bad| option(made, libc::SOL_SOCKET, libc::SO_ERROR, bad)),
    ("getsockopt SO_LINGER", |made, bad| option(made, libc::SOL_SOCKET, libc::SO_LINGER, bad)),
    ("getsockopt SO_RCVTIMEO", |made, bad| option(made, libc::SOL_SOCKET, libc::SO_RCVTIMEO, bad)),
    ("getsockopt TCP_NODELAY", |made, bad| option(made, libc::IPPROTO_TCP, libc::TCP_NODELAY, bad)),
    ("getsockopt TCP_INFO", |made, bad| option(made, libc::IPPROTO_TCP, libc::TCP_INFO, bad)),
    ("getsockopt length", |made, bad| {
        let mut value = 0u64;
        get_raw(made.fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, (&raw mut value).cast(), bad.cast())
    }),
    ("FIONREAD", |made, bad| ioctl_raw(made.fd, libc::FIONREAD, bad)),
    ("SIOCOUTQ", |made, bad| ioctl_raw(made.fd, libc::TIOCOUTQ, bad)),
    ("SIOCATMARK", |made, bad| ioctl_raw(made.fd, 0x8905, bad)),
    ("FIONBIO", |made, bad| ioctl_raw(made.fd, libc::FIONBIO, bad)),
    ("FIOASYNC", |made, bad| ioctl_raw(made.fd, libc::FIOASYNC, bad)),
    ("SIOCSPGRP", |made, bad| ioctl_raw(made.fd, 0x8902, bad)),
    ("SIOCGPGRP", |made, bad| ioctl_raw(made.fd, 0x8904, bad)),
    ("F_GETOWN_EX", |made, bad| call!(libc::fcntl(made.fd, 16, bad))),
    ("F_SETOWN_EX", |made, bad| call!(libc::fcntl(made.fd, 15, bad))),
    ("F_GETLK", |made, bad| call!(libc::fcntl(made.fd, libc::F_GETLK, bad))),
    ("sendfile offset", |made, bad| {
        let file = temporary_file(b"content");
        closing(file, call!(libc::sendfile(made.fd, file, bad.cast(), 4)))
    }),
    ("splice offset", |made, bad| {
        let (read_end, write_end) = pipe(0);
        close(write_end);
        closing(read_end, call!(libc::splice(read_end, null_mut(), made.fd, bad.cast(), 4, 0)))
    }),
    ("poll", |_, bad| call!(libc::poll(bad.cast(), 1, 0))),
    ("select", |made, bad| {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        call!(libc::select(made.fd + 1, bad.cast(), null_mut(), null_mut(), &mut time))
    }),
    ("epoll_ctl", |made, bad| {
        let set = epoll();
        closing(set, call!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, made.fd, bad.cast())))
    }),
    ("epoll_wait", |made, bad| {
        let set = epoll();
        epoll_add(set, made.fd, libc::EPOLLIN | libc::EPOLLOUT, 0);
        closing(set, epoll_wait_raw(set, bad.cast(), 4, 0))
    }),
];

/// Null, the first page, and the kernel's half.
const BAD: [usize; 3] = [0, 8, 0xffff_8000_0000_1000];

const DATA: &[u8; 4] = b"data";

/// Calls that fault in accelerated sockets where the kernel says EFAULT, see POSIX-DIFFERENCES.md.
const DATA_CALLS: &[&str] = &[
    "send",
    "send OOB",
    "write",
    "sendmsg buffer",
    "writev buffer",
    "writev second buffer",
    "recv",
    "recv PEEK",
    "recv OOB",
    "read",
    "recvmsg buffer",
    "readv buffer",
    "epoll_wait",
];

/// Memory that may not be touched, and memory that may only be read.
fn mapped() -> [usize; 2] {
    [libc::PROT_NONE, libc::PROT_READ].map(|protection| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        call!(libc::mmap(null_mut(), 4096, protection, flags, -1, 0)).value as usize
    })
}

fn run(state: fn() -> Made, bad: &[usize], without: &[&str]) {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    for (name, call) in CALLS.iter().filter(|(name, _)| !without.contains(name)) {
        let results = bad.iter().copied().map(|address| {
            let made = state();
            set_nonblocking(made.fd, true);
            let result = call(&made, without_provenance_mut(address));
            let (_, events) = poll_one(made.fd, ALL, 0);
            made.close();
            format!("{result} {}", poll_mask(events))
        });
        say!("{name}: {}", results.collect::<Vec<_>>().join(", "));
    }
}

fn part(address: Bad) -> libc::iovec {
    libc::iovec { iov_base: address, iov_len: 4 }
}

fn with(parts: &mut [libc::iovec]) -> libc::msghdr {
    let mut header = message();
    header.msg_iov = parts.as_mut_ptr();
    header.msg_iovlen = parts.len() as _;
    header
}

/// sendmsg of a good message, one of whose pointers is replaced.
fn sent(made: &Made, spoil: impl FnOnce(&mut libc::msghdr)) -> Ret {
    let mut parts = [part(DATA.as_ptr().cast_mut().cast())];
    let mut header = with(&mut parts);
    (header.msg_namelen, header.msg_controllen) = (16, 32);
    spoil(&mut header);
    sendmsg_raw(made.fd, &header, libc::MSG_NOSIGNAL)
}

/// recvmsg into a good buffer, where one of the pointers is replaced.
fn received(made: &Made, spoil: impl FnOnce(&mut libc::msghdr)) -> Ret {
    let mut buffer = [0u8; 4];
    let mut parts = [part(buffer.as_mut_ptr().cast())];
    let mut header = with(&mut parts);
    (header.msg_namelen, header.msg_controllen) = (16, 32);
    spoil(&mut header);
    recvmsg_raw(made.fd, &mut header, 0)
}

fn option(made: &Made, level: i32, name: i32, value: Bad) -> Ret {
    let mut len = 16;
    get_raw(made.fd, level, name, value, &raw mut len)
}

/// The result of a call that was made with a descriptor, which is closed.
fn closing(fd: i32, result: Ret) -> Ret {
    close(fd);
    result
}

/// A new descriptor is closed, and is zero in the transcript.
fn closed(result: Ret) -> Ret {
    match result.ok() {
        true => Ret { value: 0, ..closing(result.fd(), result) },
        false => result,
    }
}
