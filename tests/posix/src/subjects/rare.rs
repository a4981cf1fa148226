//! What hardly a program does with a TCP socket, and Linux allows: record locks, the error queue of MSG_ZEROCOPY and
//! SO_TIMESTAMPING, a reader that stalls under TCP_USER_TIMEOUT, keep-alive; and errors of neighbouring kinds.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("rare/locks", locks),
    solo("rare/deadlock_of_locks", deadlock_of_locks),
    solo("rare/lock_errors", lock_errors),
    solo("rare/zero_copy", zero_copy),
    solo("rare/zero_copy_blocking", zero_copy_blocking),
    solo("rare/zero_copy_unasked", zero_copy_unasked),
    solo("rare/zero_copy_of_another_thread", zero_copy_of_another_thread),
    solo("rare/zero_copy_small_control", zero_copy_small_control),
    solo("rare/zero_copy_ipv6", zero_copy_ipv6),
    solo("rare/timestamps_before_connect", timestamps_before_connect),
    solo("rare/timestamps_of_a_listener", timestamps_of_a_listener),
    solo("rare/stalled_reader", stalled_reader),
    solo("rare/slow_reader", slow_reader),
    solo("rare/keep_alive", keep_alive),
    solo("rare/unix_errors", unix_errors),
];

fn lock(fd: i32, command: i32, kind: i32) -> Ret {
    // SAFETY: all-zero bytes are a valid flock: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    call!(libc::fcntl(fd, command, &raw mut lock))
}

/// A lock belongs to one socket, not to its process.
fn locks() {
    let (one, other) = (connected(), connected());
    show("lock", lock(one.client, libc::F_SETLK, libc::F_WRLCK));
    show("its peer", lock(one.server, libc::F_SETLK, libc::F_WRLCK));
    let child = fork_child(|| {
        show("child", lock(one.client, libc::F_SETLK, libc::F_WRLCK));
        show("child, by description", lock(one.client, libc::F_OFD_SETLK, libc::F_WRLCK));
        show("child, another socket", lock(other.client, libc::F_SETLK, libc::F_WRLCK));
        show("child, a fresh socket", lock(tcp(), libc::F_SETLK, libc::F_WRLCK));
        0
    });
    say!("child: {}", wait_child(child));
    show("unlock", lock(one.client, libc::F_SETLK, libc::F_UNLCK));
    show_send("client", one.client, b"goes on", 0);
    await_readable(one.server);
    show_recv("server", one.server, 16, 0);
}

fn deadlock_of_locks() {
    let (one, other) = (connected(), connected());
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    show("one", lock(one.client, libc::F_SETLK, libc::F_WRLCK));
    show("the other", lock(other.client, libc::F_SETLK, libc::F_UNLCK));
    let child = fork_child(|| {
        let mut byte = [0];
        lock(other.client, libc::F_SETLK, libc::F_WRLCK);
        send(there, b"x", 0);
        let waited = lock(one.client, libc::F_SETLKW, libc::F_WRLCK);
        recv(there, &mut byte, 0);
        show("child", waited);
        0
    });
    recv(here, &mut [0], 0);
    sleep(200);
    show("the other", lock(other.client, libc::F_SETLKW, libc::F_WRLCK));
    show("unlock", lock(one.client, libc::F_SETLK, libc::F_UNLCK));
    send(here, b"x", 0);
    say!("child: {}", wait_child(child));
}

fn lock_errors() {
    let pair = connected();
    // SAFETY: all-zero bytes are a valid flock.
    let mut odd: libc::flock = unsafe { std::mem::zeroed() };
    (odd.l_type, odd.l_pid) = (libc::F_WRLCK as i16, 1);
    show("owner named", call!(libc::fcntl(pair.client, libc::F_OFD_SETLK, &raw mut odd)));
    show("bad pointer", call!(libc::fcntl(pair.client, libc::F_SETLK, 8usize)));
    show("no descriptor", lock(-1, libc::F_SETLK, libc::F_WRLCK));
    lock(pair.client, libc::F_SETLK, libc::F_WRLCK);
    let child = fork_child(|| {
        count_signal(libc::SIGALRM, 0);
        alarm(1);
        show("interrupted", lock(pair.client, libc::F_SETLKW, libc::F_WRLCK));
        0
    });
    say!("child: {}", wait_child(child));
}

/// Reads one notice of the error queue of MSG_ZEROCOPY or SO_TIMESTAMPING.
fn show_notice(label: &str, fd: i32) {
    let mut control = [0u64; 32];
    let mut header = message();
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = std::mem::size_of_val(&control) as _;
    let result = recvmsg_raw(fd, &mut header, libc::MSG_ERRQUEUE);
    if !result.ok() {
        return say!("{label}: recvmsg = {result}");
    }
    let mut words = vec![format!("flags {:#x}", header.msg_flags)];
    // SAFETY: the kernel's control messages lie in the buffer.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&raw const header);
        while let Some(one) = next.as_ref() {
            words.push(format!("level {} type {} len {}", one.cmsg_level, one.cmsg_type, one.cmsg_len));
            if one.cmsg_level == libc::SOL_IP && one.cmsg_type == libc::IP_RECVERR {
                let error = libc::CMSG_DATA(one).cast::<libc::sock_extended_err>().read_unaligned();
                words.push(format!(
                    "errno {} origin {} type {} code {} info {} data {}",
                    error.ee_errno,
                    error.ee_origin,
                    error.ee_type,
                    error.ee_code,
                    error.ee_info,
                    error.ee_data
                ));
            }
            next = libc::CMSG_NXTHDR(&raw const header, one);
        }
    }
    say!("{label}: recvmsg = {result}, {}", words.join(", "));
}

/// Completions come on the error queue; on loopback the bytes were copied.
fn zero_copy() {
    let pair = connected();
    show("SO_ZEROCOPY", set_int(pair.client, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1));
    show_option("SO_ZEROCOPY", pair.client, libc::SOL_SOCKET, libc::SO_ZEROCOPY);
    show_notice("nothing sent", pair.client);
    let data = [b'z'; 20_000];
    show("send", send(pair.client, &data, libc::MSG_ZEROCOPY));
    receive_all(pair.server, 20_000);
    await_events(pair.client, libc::POLLERR);
    show_poll("told", pair.client);
    show_option("SO_ERROR", pair.client, libc::SOL_SOCKET, libc::SO_ERROR);
    show_recv("data", pair.client, 8, libc::MSG_DONTWAIT);
    show_notice("first", pair.client);
    show_notice("no more", pair.client);
    show_poll("read", pair.client);
    for _ in 0..3 {
        send(pair.client, &data[..5000], libc::MSG_ZEROCOPY);
    }
    send(pair.client, b"plain", 0);
    receive_all(pair.server, 15_005);
    sleep(20);
    show_notice("three at once", pair.client);
    show_notice("no more", pair.client);
}

fn receive_all(fd: i32, mut len: usize) {
    let mut buffer = [0; 4096];
    while len > 0 {
        match recv(fd, &mut buffer[..len.min(4096)], 0) {
            result if result.value > 0 => len -= result.count(),
            result => return say!("recv = {result}"),
        }
    }
}

/// A program that waits for the completion by poll alone.
fn zero_copy_blocking() {
    let pair = connected();
    set_int(pair.client, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
    let ep = epoll();
    epoll_add(ep, pair.client, libc::EPOLLERR, 1);
    let server = pair.server;
    let reader = std::thread::spawn(move || receive_all(server, 300_000));
    let data = vec![b'z'; 100_000];
    for _ in 0..3 {
        show("send", send(pair.client, &data, libc::MSG_ZEROCOPY));
        epoll_wait(ep, 4, 5000);
        show_notice("completion", pair.client);
    }
    say!("reader: {}", reader.join().is_ok());
    show_epoll("afterwards", ep);
}

fn zero_copy_unasked() {
    let pair = connected();
    show("send", send(pair.client, b"not asked for", libc::MSG_ZEROCOPY));
    await_readable(pair.server);
    show_recv("server", pair.server, 32, 0);
    sleep(20);
    show_notice("nothing", pair.client);
    show_poll("client", pair.client);
    for value in [2, -1, 0] {
        say!("SO_ZEROCOPY {value}: {}", set_int(pair.client, libc::SOL_SOCKET, libc::SO_ZEROCOPY, value));
    }
}

/// One thread sleeps until another's send is done.
fn zero_copy_of_another_thread() {
    let pair = connected();
    set_int(pair.client, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
    let client = pair.client;
    let waiting = std::thread::spawn(move || {
        let ep = epoll();
        epoll_add(ep, client, libc::EPOLLET, 1);
        epoll_wait(ep, 4, 5000);
        show_notice("by epoll", client);
    });
    sleep(100);
    send(pair.client, b"wakes", libc::MSG_ZEROCOPY);
    say!("{}", waiting.join().is_ok());
    let waiting = std::thread::spawn(move || {
        let mut fds = [pollfd(client, 0)];
        show("poll", poll(&mut fds, 5000));
        show_notice("by poll", client);
    });
    sleep(100);
    sendmsg(pair.client, &[b"wakes", b" too"], libc::MSG_ZEROCOPY);
    say!("{}", waiting.join().is_ok());
    receive_all(pair.server, 14);
}

fn zero_copy_small_control() {
    let pair = connected();
    set_int(pair.client, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
    for room in [0, 8, 16, 31, 32, 47, 48, 64] {
        send(pair.client, b"x", libc::MSG_ZEROCOPY);
        await_events(pair.client, libc::POLLERR);
        let mut control = [0u64; 8];
        let mut header = message();
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = room;
        let result = recvmsg_raw(pair.client, &mut header, libc::MSG_ERRQUEUE);
        say!("{room}: {result} flags {:#x} len {} {control:x?}", header.msg_flags, header.msg_controllen);
    }
    send(pair.client, b"x", libc::MSG_ZEROCOPY);
    await_events(pair.client, libc::POLLERR);
    show_recv("recv of a notice", pair.client, 8, libc::MSG_ERRQUEUE);
    show_recv("no more", pair.client, 8, libc::MSG_ERRQUEUE);
}

fn zero_copy_ipv6() {
    let listening = tcp6();
    let addr = listen_on(listening, &Addr::local6(0), 4);
    let pair = connect_to(listening, &addr);
    set_int(pair.client, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
    send(pair.client, b"x", libc::MSG_ZEROCOPY);
    await_events(pair.client, libc::POLLERR);
    show_notice("IPv6", pair.client);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_send("at the end", pair.client, b"x", libc::MSG_ZEROCOPY);
}

/// SOF_TIMESTAMPING_TX_SOFTWARE, RX_SOFTWARE, SOFTWARE and OPT_TSONLY.
const RX_AND_TX: i32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 11;

/// Transmission times of what was sent. Those of reception depend on when the kernel has begun to take them.
fn timestamps(client: i32, server: i32) {
    show_send("client", client, b"at some time", 0);
    await_readable(server);
    show_recv("server", server, 16, 0);
    show_send("server", server, b"answer", 0);
    await_readable(client);
    show_recv("client", client, 8, 0);
    await_events(client, libc::POLLERR);
    show_notice("first time", client);
    show_notice("second time", client);
}

fn timestamps_before_connect() {
    let (listening, addr) = listener();
    let client = tcp();
    show("SO_TIMESTAMPING", set_int(client, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, RX_AND_TX));
    show("connect", connect(client, &addr));
    let server = show_fd("accept", accept(listening));
    timestamps(client, server);
}

fn timestamps_of_a_listener() {
    let listening = tcp();
    show("SO_TIMESTAMPING", set_int(listening, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, RX_AND_TX));
    let addr = listen_on(listening, &Addr::local(0), 4);
    let pair = connect_to(listening, &addr);
    show_option("SO_TIMESTAMPING", pair.server, libc::SOL_SOCKET, libc::SO_TIMESTAMPING);
    timestamps(pair.server, pair.client);
}

/// Sends until there is no room.
fn fill(fd: i32) {
    let data = [b'f'; 65_536];
    while send(fd, &data, libc::MSG_DONTWAIT).ok() {}
}

/// What cannot be delivered for longer than TCP_USER_TIMEOUT ends the connection.
fn stalled_reader() {
    let pair = connected();
    show("TCP_USER_TIMEOUT", set_int(pair.client, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1000));
    fill(pair.client);
    show_poll("full", pair.client);
    sleep(3000);
    show_poll("timed out", pair.client);
    show_send("client", pair.client, b"x", libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    show_send("again", pair.client, b"x", libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    show_option("SO_ERROR", pair.client, libc::SOL_SOCKET, libc::SO_ERROR);
}

/// Who reads a little now and then keeps the connection.
fn slow_reader() {
    let pair = connected();
    set_int(pair.client, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1000);
    fill(pair.client);
    for _ in 0..4 {
        sleep(500);
        receive_all(pair.server, 1_000_000);
        fill(pair.client);
    }
    show_poll("still there", pair.client);
    show_option("SO_ERROR", pair.client, libc::SOL_SOCKET, libc::SO_ERROR);
}

/// The peer is there and says nothing.
fn keep_alive() {
    let pair = connected();
    for (name, value) in [
        (libc::TCP_KEEPIDLE, 1),
        (libc::TCP_KEEPINTVL, 1),
        (libc::TCP_KEEPCNT, 1),
        (libc::TCP_USER_TIMEOUT, 500),
    ] {
        set_int(pair.client, libc::IPPROTO_TCP, name, value);
    }
    set_int(pair.client, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    sleep(2500);
    show_poll("client", pair.client);
    show_send("client", pair.client, b"alive", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
}

fn unix_errors() {
    let address = super::others::unix_address();
    let listening = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd();
    show("bind", bind(listening, &address));
    show("listen", listen(listening, 0));
    let datagram = socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0).fd();
    show("a datagram socket", connect(datagram, &address));
    let path = std::env::temp_dir().join(format!("sd-posix-{}", getpid()));
    let at_path = super::others::unix_path(&path);
    let by_path = socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd();
    show("bind to a path", bind(by_path, &at_path));
    show("listen", listen(by_path, 0));
    show("a datagram socket, by path", connect(datagram, &at_path));
    show("a TCP socket, by path", connect(tcp(), &at_path));
    say!("removed: {}", std::fs::remove_file(&path).is_ok());
    show("a path that is gone", connect(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).fd(), &at_path));
    let waiting: Vec<i32> =
        (0..2).map(|_| socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0).fd()).collect();
    for fd in waiting {
        show("backlog of none", connect(fd, &address));
    }
    show("a TCP socket", connect(tcp(), &address));
}
