//! Errors that need a limit, another user, or an odd argument.

use std::mem;
use std::ptr;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("errnos/low_port", low_port),
    solo("errnos/raw_sockets", raw_sockets),
    solo("errnos/privileged_options", privileged_options),
    solo("errnos/no_more_numbers", no_more_numbers),
    solo("errnos/owner", owner),
    solo("errnos/control_too_long", control_too_long),
    solo("errnos/message_name", message_name),
    solo("errnos/message_lengths", message_lengths),
    solo("errnos/vector_flags", vector_flags),
    solo("errnos/ioctls", ioctls),
    solo("errnos/locks_and_leases", locks_and_leases),
    solo("errnos/socketpair", pairs),
    solo("errnos/socketpair_pointers", pair_pointers),
    solo("errnos/option_structures", option_structures),
    solo("errnos/filters", filters),
    solo("errnos/prototype", prototype),
    solo("errnos/sendfile_inputs", sendfile_inputs),
    solo("errnos/many_messages", many_messages),
    solo("errnos/recvmmsg_time", recvmmsg_time),
];

/// Runs `body` in a child that belongs to nobody.
fn as_nobody(body: impl FnOnce()) {
    let child = fork_child(|| {
        let changed = call!(libc::setgid(65_534)).ok() && call!(libc::setuid(65_534)).ok();
        say!("another user: {changed}");
        body();
        0
    });
    say!("child: {}", wait_child(child));
}

fn low_port() {
    as_nobody(|| {
        for port in [1, 22, 80, 1023] {
            say!("port {port}: {}", bind(tcp(), &Addr::v4([127, 0, 0, 9], port)));
            say!("port {port}, IPv6: {}", bind(tcp6(), &Addr::local6(port)));
        }
        let fd = tcp();
        show("bind", bind(fd, &Addr::local(80)));
        show("listen after that", listen(fd, 4));
        say!("another port: {}", !matches!(getsockname(fd).1.port(), 0 | 80));
    });
}

fn raw_sockets() {
    as_nobody(|| {
        show_fd("raw", socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP));
        show_fd("packet", socket(libc::AF_PACKET, libc::SOCK_RAW, 0));
        show_fd("stream", socket(libc::AF_INET, libc::SOCK_STREAM, 0));
    });
}

const PRIVILEGED: &[(&str, i32, i32, i32)] = &[
    ("SO_MARK", libc::SOL_SOCKET, libc::SO_MARK, 1),
    ("SO_PRIORITY 6", libc::SOL_SOCKET, libc::SO_PRIORITY, 6),
    ("SO_PRIORITY 7", libc::SOL_SOCKET, libc::SO_PRIORITY, 7),
    ("SO_DEBUG", libc::SOL_SOCKET, libc::SO_DEBUG, 1),
    ("SO_RCVBUFFORCE", libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 10_000),
    ("SO_SNDBUFFORCE", libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 10_000),
    ("SO_BUSY_POLL", libc::SOL_SOCKET, libc::SO_BUSY_POLL, 1_000_000),
    ("SO_LOCK_FILTER", libc::SOL_SOCKET, libc::SO_LOCK_FILTER, 1),
    ("IP_TRANSPARENT", libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
    ("IP_FREEBIND", libc::IPPROTO_IP, libc::IP_FREEBIND, 1),
    ("IP_TOS 0xff", libc::IPPROTO_IP, libc::IP_TOS, 0xff),
    ("TCP_REPAIR", libc::IPPROTO_TCP, libc::TCP_REPAIR, 1),
    ("TCP_QUEUE_SEQ", libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, 1),
];

fn privileged_options() {
    let pair = connected();
    as_nobody(|| {
        for (name, level, option, value) in PRIVILEGED {
            say!("{name} on a fresh socket: {}", set_int(tcp(), *level, *option, *value));
            say!("{name} on a connection: {}", set_int(pair.client, *level, *option, *value));
        }
        let device = |fd| set_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"lo\0");
        show("SO_BINDTODEVICE", device(tcp()));
        show("again", {
            let fd = tcp();
            device(fd);
            set_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"\0")
        });
        let nothing = set_bytes(tcp(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"nothing\0");
        show("SO_BINDTODEVICE of none", nothing);
        let unknown = set_bytes(tcp(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"nothing");
        show("TCP_CONGESTION of none", unknown);
    });
}

/// Everything that makes descriptors, when there are no more.
fn no_more_numbers() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    let _waiting = dial(&addr);
    let (_, [end, _]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let full = lowest_free();
    let old = limit_descriptors(full as u64);
    show("socket", socket(libc::AF_INET, libc::SOCK_STREAM, 0));
    show("socket IPv6", socket(libc::AF_INET6, libc::SOCK_STREAM, libc::SOCK_CLOEXEC));
    show("udp", socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
    show("socketpair", socketpair(libc::AF_UNIX, libc::SOCK_STREAM).0);
    show("accept", accept(listening));
    show("accept4", accept4(listening, libc::SOCK_CLOEXEC));
    show("dup", dup(pair.client));
    show("dup2", dup2(pair.client, full));
    show("dup3", dup3(pair.client, full, 0));
    show("F_DUPFD", fcntl(pair.client, libc::F_DUPFD, 0));
    show("F_DUPFD at the limit", fcntl(pair.client, libc::F_DUPFD, full));
    show("F_DUPFD_CLOEXEC", fcntl(pair.client, libc::F_DUPFD_CLOEXEC, 0));
    show("epoll_create1", epoll_create1(0));
    show("eventfd", call!(libc::eventfd(0, 0)));
    show("pipe", call!(libc::pipe([0; 2].as_mut_ptr())));
    show("open", open_path(c"/dev/null", libc::O_RDONLY));
    say!("dup2 over another: {}", dup2(pair.client, end).fd() == end);
    show_send("through it", end, b"still works", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 32, 0);
    limit_descriptors(old);
    show_fd("accept, later", accept(listening));
}

fn owner() {
    let pair = connected();
    for fd in [pair.client, tcp(), listener().0] {
        show("F_GETOWN", fcntl(fd, libc::F_GETOWN, 0));
        show("F_SETOWN of nobody", fcntl(fd, libc::F_SETOWN, i32::MAX));
        show("F_SETOWN of no group", fcntl(fd, libc::F_SETOWN, -i32::MAX));
        show("F_SETOWN of the least", fcntl(fd, libc::F_SETOWN, i32::MIN));
        show("F_SETOWN", fcntl(fd, libc::F_SETOWN, getpid()));
        say!("F_GETOWN is this process: {}", fcntl(fd, libc::F_GETOWN, 0).fd() == getpid());
        let mut owner = [7i32, 0];
        show("F_SETOWN_EX of kind 7", call!(libc::fcntl(fd, 15, owner.as_mut_ptr())));
        show("F_GETOWN_EX", call!(libc::fcntl(fd, 16, owner.as_mut_ptr())));
        say!("kind {}, this process: {}", owner[0], owner[1] == getpid());
        show("F_GETSIG", fcntl(fd, 11, 0));
        show("F_SETSIG 65", fcntl(fd, 10, 65));
        show("F_SETSIG -1", fcntl(fd, 10, -1));
        show("F_SETSIG SIGUSR1", fcntl(fd, 10, libc::SIGUSR1));
        show("F_GETSIG", fcntl(fd, 11, 0));
        let (result, group) = ioctl_int(fd, 0x8904, -1);
        say!("SIOCGPGRP {result}, this process: {}", group == getpid());
        show("SIOCSPGRP of nobody", ioctl_int(fd, 0x8902, i32::MAX).0);
        show("FIOSETOWN 0", ioctl_int(fd, 0x8901, 0).0);
        say!("FIOGETOWN {:?}", ioctl_int(fd, 0x8903, -1).1);
    }
}

/// A message of one byte, which `change` makes odd.
fn odd_message(fd: i32, change: impl FnOnce(&mut libc::msghdr)) -> Ret {
    let byte = [b'm'];
    let mut part = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
    let mut header = message();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    change(&mut header);
    sendmsg_raw(fd, &header, libc::MSG_NOSIGNAL)
}

fn control_too_long() {
    let pair = connected();
    for len in [i32::MAX as usize + 1, usize::MAX] {
        show("control length", odd_message(pair.client, |header| header.msg_controllen = len as _));
    }
    show("unconnected", odd_message(tcp(), |header| header.msg_controllen = usize::MAX as _));
    let mut control = [0u64; 8];
    show(
        "control of zeros",
        odd_message(pair.client, |header| {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = mem::size_of_val(&control) as _;
        }),
    );
    show(
        "control shorter than a header",
        odd_message(pair.client, |header| {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = 8;
        }),
    );
    sleep(2);
    say!("sent {}", fionread(pair.server));
}

fn message_name() {
    let pair = connected();
    let mut addr = Addr::local(1);
    for len in [0, 1, 16, 128, 129, i32::MAX as u32, u32::MAX] {
        let mut name = |fd| {
            odd_message(fd, |header| {
                header.msg_name = addr.ptr_mut().cast();
                header.msg_namelen = len;
            })
        };
        say!("name of {len}: {}, unconnected {}", name(pair.client), name(tcp()));
        say!("no name, length {len}: {}", odd_message(pair.client, |header| header.msg_namelen = len));
    }
    for len in [0, 1, 16, 128, 129, i32::MAX as u32, u32::MAX] {
        let addr = Addr::local(1).with_len(len);
        say!("sendto {len}: {}", sendto(pair.client, b"x", 0, Some(&addr)));
    }
    await_bytes(pair.server, 17);
    say!("sent {}", fionread(pair.server));
    for len in [0, 1, 16, 128, 129, i32::MAX as u32, u32::MAX] {
        let (mut buffer, mut addr, mut len_out) = ([0u8; 1], Addr::empty(), len);
        let (to, from) = (buffer.as_mut_ptr().cast(), addr.ptr_mut());
        let result = call!(libc::recvfrom(pair.server, to, 1, 0, from, &raw mut len_out));
        say!("recvfrom {len}: {result} {len_out}");
    }
}

fn message_lengths() {
    let pair = connected();
    let byte = [b'm'];
    let part = |len| libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: len };
    let send_parts = |parts: &mut [libc::iovec]| {
        let mut header = message();
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = parts.len() as _;
        sendmsg_raw(pair.client, &header, 0)
    };
    show("length -1", send_parts(&mut [part(usize::MAX)]));
    show("one and -1", send_parts(&mut [part(1), part(usize::MAX)]));
    show("more than a half", send_parts(&mut [part(1 << 63)]));
    show("recvmsg length -1", {
        let mut parts = [part(usize::MAX)];
        let mut header = message();
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = 1;
        recvmsg_raw(pair.server, &mut header, libc::MSG_DONTWAIT)
    });
    show("iovlen -1", odd_message(pair.client, |header| header.msg_iovlen = usize::MAX as _));
    show("iovlen 1025", odd_message(pair.client, |header| header.msg_iovlen = 1025));
    show("readv length -1", call!(libc::readv(pair.server, [part(usize::MAX)].as_ptr(), 1)));
    show("readv count -1", call!(libc::readv(pair.server, [part(1)].as_ptr(), -1)));
    show("readv count 1025", call!(libc::readv(pair.server, [part(1); 1025].as_ptr(), 1025)));
    show("null vector, none", call!(libc::writev(pair.client, ptr::null(), 0)));
    show("null vector, none", call!(libc::readv(pair.client, ptr::null(), 0)));
}

fn vector_flags() {
    let pair = connected();
    let mut byte = [b'v'];
    let part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    for flags in [0, 1, 2, 4, 8, 16, 0x40, 0x80, 0x100, 0x8000, -1] {
        for offset in [-1, 0, 7, -2] {
            let out = call!(libc::pwritev2(pair.client, &raw const part, 1, offset, flags));
            let back =
                call!(libc::preadv2(pair.server, &raw const part, 1, offset, flags | libc::RWF_NOWAIT));
            say!("flags {flags:#x} offset {offset}: {out}, {back}");
        }
    }
}

fn ioctls() {
    let pair = connected();
    for (label, fd) in [("fresh", tcp()), ("listener", listener().0), ("connection", pair.client)] {
        for (name, request) in [
            ("FIONREAD", libc::FIONREAD),
            ("SIOCOUTQ", libc::TIOCOUTQ),
            ("SIOCOUTQNSD", 0x894b),
            ("SIOCATMARK", 0x8905),
            ("SIOCGSTAMP", 0x8906),
            ("SIOCGSTAMPNS", 0x8907),
            ("FIOQSIZE", 0x5460),
            ("TIOCGPGRP", libc::TIOCGPGRP),
            ("FIGETBSZ", 2),
            ("FIBMAP", 1),
            ("0", 0),
            ("-1", libc::Ioctl::MAX),
        ] {
            let mut room = [0u64; 32];
            say!("{label} {name}: {}", ioctl_raw(fd, request, room.as_mut_ptr().cast()));
        }
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        request.ifr_name[..2].copy_from_slice(&[b'l' as _, b'o' as _]);
        say!(
            "{label} SIOCGIFINDEX of lo: {}",
            ioctl_raw(fd, libc::SIOCGIFINDEX as _, (&raw mut request).cast())
        );
        request.ifr_name[0] = b'?' as _;
        say!(
            "{label} SIOCGIFINDEX of ?o: {}",
            ioctl_raw(fd, libc::SIOCGIFINDEX as _, (&raw mut request).cast())
        );
    }
}

fn locks_and_leases() {
    let pair = connected();
    // SAFETY: all-zero bytes are a valid flock.
    let mut lock: libc::flock = unsafe { mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    show("F_GETLK", call!(libc::fcntl(pair.client, libc::F_GETLK, &raw mut lock)));
    lock.l_type = 77;
    show("F_SETLK of kind 77", call!(libc::fcntl(pair.client, libc::F_SETLK, &raw mut lock)));
    show("F_SETLEASE", fcntl(pair.client, libc::F_SETLEASE, libc::F_RDLCK));
    show("F_GETLEASE", fcntl(pair.client, libc::F_GETLEASE, 0));
    show("F_NOTIFY", fcntl(pair.client, libc::F_NOTIFY, 1));
    show("F_ADD_SEALS", fcntl(pair.client, libc::F_ADD_SEALS, 1));
    show("F_SETFL O_NOATIME", fcntl(pair.client, libc::F_SETFL, libc::O_NOATIME));
    say!("{}", status_flags(pair.client));
    show("F_SETFL everything", fcntl(pair.client, libc::F_SETFL, !libc::O_DIRECT & !libc::O_ASYNC));
    say!("{}", status_flags(pair.client));
}

fn pairs() {
    for (name, domain) in [("INET", libc::AF_INET), ("INET6", libc::AF_INET6), ("99", 99), ("-1", -1)] {
        say!("{name}: {}", socketpair(domain, libc::SOCK_STREAM).0);
    }
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET, libc::SOCK_RAW, 0, 99] {
        let (result, fds) = socketpair(libc::AF_UNIX, kind);
        say!("UNIX {kind}: {result}");
        close_all(&fds);
    }
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let (_, [one, other]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM | flags);
    say!("{} {}", status_flags(one), descriptor_flags(other));
    show("unknown flag", socketpair(libc::AF_UNIX, libc::SOCK_STREAM | 0x100).0);
    let mut fds = [0; 2];
    show("protocol 1", call!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 1, fds.as_mut_ptr())));
    show("protocol 9", call!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 9, fds.as_mut_ptr())));
}

fn pair_pointers() {
    let before = lowest_free();
    let null = ptr::null_mut();
    show("null", call!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, null)));
    let bad = ptr::without_provenance_mut(8);
    show("bad", call!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, bad)));
    say!("nothing is left open: {}", lowest_free() == before);
}

fn option_structures() {
    let pair = connected();
    for (label, fd) in [("fresh", tcp()), ("connection", pair.client), ("listener", listener().0)] {
        for len in [0, 1, 4, 8, 12, 15, 16, 17, 64] {
            let value = vec![0; len];
            let of = |level, name| set_bytes(fd, level, name, &value);
            say!(
                "{label} {len} bytes: SO_LINGER {}, SO_RCVTIMEO {}, SO_ATTACH_FILTER {}, IP_OPTIONS {}, TCP_MD5SIG {}",
                of(libc::SOL_SOCKET, libc::SO_LINGER),
                of(libc::SOL_SOCKET, libc::SO_RCVTIMEO),
                of(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
                of(libc::IPPROTO_IP, libc::IP_OPTIONS),
                of(libc::IPPROTO_TCP, libc::TCP_MD5SIG),
            );
        }
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            for (seconds, micros) in
                [(0i64, 1_000_000i64), (0, -1), (-1, 0), (i64::MAX, 0), (i64::MIN, 999_999)]
            {
                let value = [seconds.to_ne_bytes(), micros.to_ne_bytes()].concat();
                let result = set_bytes(fd, libc::SOL_SOCKET, name, &value);
                let mut back = [0; 16];
                get_bytes(fd, libc::SOL_SOCKET, name, &mut back);
                let set = back != [0; 16];
                say!("{label} time {seconds} s {micros} us: {result}, then there is one: {set}");
                set_timeout(fd, name, 0);
            }
        }
        for (on, seconds) in [(1, -1), (1, i32::MAX), (-1, 5), (0, -1)] {
            let mut back = [0; 8];
            let result = set_linger(fd, on, seconds);
            get_bytes(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut back);
            say!("{label} linger {on} {seconds}: {result} {back:?}");
        }
    }
}

fn filters() {
    let pair = connected();
    for (label, fd) in [("fresh", tcp()), ("connection", pair.client)] {
        let value = |name, value| set_int(fd, libc::SOL_SOCKET, name, value);
        say!("{label} SO_DETACH_FILTER: {}", value(libc::SO_DETACH_FILTER, 0));
        say!("{label} SO_ATTACH_BPF -1: {}", value(libc::SO_ATTACH_BPF, -1));
        say!("{label} SO_ATTACH_BPF of a socket: {}", value(libc::SO_ATTACH_BPF, fd));
        say!("{label} SO_ATTACH_REUSEPORT_EBPF -1: {}", value(libc::SO_ATTACH_REUSEPORT_EBPF, -1));
        say!("{label} SO_GET_FILTER: {}", get_int(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER).0);
        say!("{label} SO_LOCK_FILTER: {}", value(libc::SO_LOCK_FILTER, 1));
        say!("{label} unlocked: {}", value(libc::SO_LOCK_FILTER, 0));
        say!("{label} SO_DETACH_FILTER: {}", value(libc::SO_DETACH_FILTER, 0));
    }
}

fn prototype() {
    let listening = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd();
    let addr = super::others::unix_address();
    show("connect to nobody", connect(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd(), &addr));
    bind(listening, &addr);
    show("connect before listen", connect(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd(), &addr));
    listen(listening, 1);
    show("a datagram socket", connect(socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0).fd(), &addr));
    show("a TCP socket", connect(tcp(), &addr));
    show("bind of a TCP socket", bind(tcp(), &addr));
}

fn sendfile_inputs() {
    let pair = connected();
    let directory = open_path(c"/", libc::O_RDONLY).fd();
    let path = open_path(c"/", libc::O_PATH).fd();
    let file = temporary_file(b"content");
    for (label, from) in
        [("directory", directory), ("path", path), ("eventfd", eventfd(1, 0)), ("epoll", epoll())]
    {
        say!("{label}: {}", sendfile(pair.client, from, 4));
        say!("{label} at 0: {}", sendfile_at(pair.client, from, &mut 0, 4));
    }
    let (read_end, write_end) = pipe(0);
    write(write_end, b"pipe");
    show("pipe at 0", sendfile_at(pair.client, read_end, &mut 0, 4));
    show("count -1", sendfile(pair.client, file, usize::MAX));
    show("then", sendfile(pair.client, file, 7));
    show("at the greatest offset", sendfile_at(pair.client, file, &mut { i64::MAX }, 4));
    show("at the least offset", sendfile_at(pair.client, file, &mut { i64::MIN }, 4));
    show("to a read end", sendfile(read_end, file, 4));
    show("from a TCP socket to a file", sendfile(temporary_file(b""), pair.server, 4));
    show("from a TCP socket to a pipe", sendfile(write_end, pair.server, 4));
    show("of nothing from nothing", sendfile(pair.client, -1, 0));
    show("of nothing from a socket", sendfile(pair.client, pair.server, 0));
    show("of nothing", sendfile(pair.client, file, 0));
    await_bytes(pair.server, 3);
    say!("sent {}", fionread(pair.server));
}

fn many_messages() {
    let pair = connected();
    let words: Vec<String> = (0..1500).map(|index| format!("{index},")).collect();
    let parts: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let (result, lengths) = sendmmsg(pair.client, &parts, 0);
    say!("sendmmsg of 1500: {result}, {} bytes", lengths.iter().sum::<u32>());
    await_bytes(pair.server, lengths.iter().sum::<u32>() as i32);
    let (result, texts) = recvmmsg(pair.server, 1500, 1, 0);
    say!("recvmmsg of 1500: {result}, {} came", texts.len());
    let (result, _) = recvmmsg(pair.server, 0, 1, 0);
    say!("recvmmsg of none: {result}");
    let (result, texts) = recvmmsg(pair.server, 3, 0, 0);
    say!("recvmmsg of nothing each: {result} {texts:?}");
}

fn recvmmsg_time() {
    let pair = connected();
    let mut buffer = [0u8; 8];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 2 };
    let mut header = message();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    let mut messages = [libc::mmsghdr { msg_hdr: header, msg_len: 0 }; 3];
    send(pair.client, b"123456789", 0);
    await_bytes(pair.server, 9);
    for (seconds, nanos) in [(0, -1), (-1, 0), (0, 1_000_000_000), (0, 0), (i64::MAX, 999_999_999)] {
        let mut time = libc::timespec { tv_sec: seconds, tv_nsec: nanos };
        let flags = libc::MSG_DONTWAIT;
        let result = call!(libc::recvmmsg(pair.server, messages.as_mut_ptr(), 2, flags as _, &raw mut time));
        say!("{seconds} s {nanos} ns: {result}");
    }
}
