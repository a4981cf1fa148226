//! fork: sockets shared by parent and child.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("fork/child_serves", child_serves),
    solo("fork/child_connects", child_connects),
    solo("fork/prefork_accept", prefork_accept),
    solo("fork/prefork_epoll", prefork_epoll),
    solo("fork/child_exits_open", child_exits_open),
    solo("fork/parent_keeps_open", parent_keeps_open),
    solo("fork/shutdown_by_child", shutdown_by_child),
    solo("fork/both_write", both_write),
    solo("fork/both_read", both_read),
    solo("fork/pending_data_inherited", pending_data_inherited),
    solo("fork/listener_survives_parent", listener_survives_parent),
    solo("fork/flags_shared", flags_shared),
    solo("fork/child_killed", child_killed),
    solo("fork/child_killed_unread", child_killed_unread),
    solo("fork/grandchild", grandchild),
    solo("fork/double_fork_daemon", double_fork_daemon),
    solo("fork/epoll_inherited", epoll_inherited),
    solo("fork/connection_between", connection_between),
    solo("fork/large_from_child", large_from_child),
    solo("fork/many_workers", many_workers),
];

fn child_serves() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    let child = fork_child(|| {
        close(listening);
        close(pair.client);
        let mut buffer = [0; 32];
        let got = recv(pair.server, &mut buffer, 0);
        show_bytes("child: recv", got, &buffer);
        show_send("child", pair.server, b"from the child", 0);
        0
    });
    show("parent closes its copy", close(pair.server));
    send(pair.client, b"to the child", 0);
    say!("child: {}", wait_child(child));
    show_recv("client", pair.client, 32, 0);
    show_recv("client", pair.client, 32, 0);
}

fn child_connects() {
    let (listening, addr) = listener();
    let child = fork_child(|| {
        close(listening);
        let client = dial(&addr);
        send(client, b"born later", 0);
        let mut buffer = [0; 32];
        let got = recv(client, &mut buffer, 0);
        i32::from(&buffer[..got.count()] != b"welcome")
    });
    let server = show_fd("accept", accept(listening));
    await_readable(server);
    show_recv("server", server, 32, 0);
    show_send("server", server, b"welcome", 0);
    say!("child: {}", wait_child(child));
    await_events(server, libc::POLLRDHUP);
    show_recv("server", server, 32, 0);
}

/// Each child takes connections from the shared listener until it is told to end.
fn worker(listening: i32) -> i32 {
    let mut served = 0;
    loop {
        let server = accept(listening).fd();
        let mut byte = [0];
        if recv(server, &mut byte, 0).value != 1 {
            return 100;
        }
        send(server, &byte, 0);
        close(server);
        if byte == *b"q" {
            return served;
        }
        served += 1;
    }
}

fn ask(addr: &Addr, byte: u8) -> bool {
    let client = dial(addr);
    send(client, &[byte], 0);
    let mut answer = [0];
    let good = recv(client, &mut answer, 0).value == 1 && answer[0] == byte;
    close(client);
    good
}

fn collect(children: &[i32]) -> i32 {
    let codes = children.iter().map(|child| wait_child(*child));
    codes.map(|end| end.strip_prefix("exit ").and_then(|code| code.parse().ok()).unwrap_or(1000)).sum()
}

fn prefork_accept() {
    let (listening, addr) = listener();
    let children: Vec<i32> = (0..3).map(|_| fork_child(|| worker(listening))).collect();
    close(listening);
    let good = (0..60).filter(|_| ask(&addr, b'x')).count();
    say!("answered {good}");
    let ended = (0..3).filter(|_| ask(&addr, b'q')).count();
    say!("ended {ended}");
    say!("served by the children together {}", collect(&children));
    show("connect when all are gone", connect(tcp(), &addr));
}

/// As nginx does: a listener without blocking, one epoll set in each worker.
fn epoll_worker(listening: i32) -> i32 {
    let ep = epoll();
    epoll_add(ep, listening, libc::EPOLLIN | libc::EPOLLEXCLUSIVE, 0);
    let mut served = 0;
    loop {
        let (_, events) = epoll_wait(ep, 16, 5000);
        for (number, _) in events {
            if number == 0 {
                let accepted = accept4(listening, libc::SOCK_NONBLOCK);
                if accepted.ok() {
                    epoll_add(ep, accepted.fd(), libc::EPOLLIN | libc::EPOLLET, accepted.value as u64);
                }
                continue;
            }
            let mut byte = [0];
            if recv(number as i32, &mut byte, 0).value == 1 {
                send(number as i32, &byte, 0);
                close(number as i32);
                if byte == *b"q" {
                    return served;
                }
                served += 1;
            }
        }
    }
}

fn prefork_epoll() {
    let (listening, addr) = listener();
    set_nonblocking(listening, true);
    let children: Vec<i32> = (0..3).map(|_| fork_child(|| epoll_worker(listening))).collect();
    let good = (0..60).filter(|_| ask(&addr, b'x')).count();
    say!("answered {good}");
    let ended = (0..3).filter(|_| ask(&addr, b'q')).count();
    say!("ended {ended}, served together {}", collect(&children));
}

fn child_exits_open() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        send(pair.server, b"last words", 0);
        0
    });
    close(pair.server);
    say!("child: {}", wait_child(child));
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
    show_recv("client", pair.client, 32, 0);
}

fn parent_keeps_open() {
    let pair = connected();
    let child = fork_child(|| {
        send(pair.server, b"child ", 0);
        close(pair.server);
        close(pair.client);
        0
    });
    say!("child: {}", wait_child(child));
    show_poll_for("no end yet", pair.client, libc::POLLRDHUP, 5);
    send(pair.server, b"parent", 0);
    await_bytes(pair.client, 12);
    show_recv("client", pair.client, 32, 0);
    close(pair.server);
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

/// shutdown(2) works on the connection, close(2) only on the caller's descriptor.
fn shutdown_by_child() {
    let pair = connected();
    let child = fork_child(|| {
        shutdown(pair.server, libc::SHUT_WR);
        0
    });
    say!("child: {}", wait_child(child));
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 8, 0);
    show_send("parent", pair.server, b"x", libc::MSG_NOSIGNAL);
    show_send("client", pair.client, b"still", 0);
    await_readable(pair.server);
    show_recv("parent", pair.server, 8, 0);
}

fn both_write() {
    const EACH: usize = 2_000;
    let pair = connected();
    let child = fork_child(|| {
        let good = (0..EACH).filter(|_| send(pair.server, b"CCCCCCCC", 0).value == 8).count();
        i32::from(good != EACH)
    });
    let reader = std::thread::spawn(move || {
        let (mut of_child, mut of_parent, mut torn) = (0, 0, 0);
        for _ in 0..2 * EACH {
            let mut message = [0; 8];
            recv(pair.client, &mut message, libc::MSG_WAITALL);
            match &message {
                b"CCCCCCCC" => of_child += 1,
                b"PPPPPPPP" => of_parent += 1,
                _ => torn += 1,
            }
        }
        (of_child, of_parent, torn)
    });
    for _ in 0..EACH {
        send(pair.server, b"PPPPPPPP", 0);
    }
    say!("child: {}", wait_child(child));
    let (of_child, of_parent, torn) = reader.join().expect("reader");
    say!("messages of the child {of_child}, of the parent {of_parent}, torn {torn}");
}

fn both_read() {
    const TOTAL: i64 = 100_000;
    let pair = connected();
    let (result_in, result_out) = pipe(0);
    let count = |fd: i32| {
        let mut total = 0;
        loop {
            let got = recv(fd, &mut [0; 64], 0).value;
            if got <= 0 {
                return total;
            }
            total += got;
        }
    };
    let child = fork_child(|| {
        close(pair.client);
        let total = count(pair.server);
        write(result_out, &total.to_ne_bytes());
        0
    });
    let client = pair.client;
    let writer = std::thread::spawn(move || {
        crate::bulk::send_pattern(client, TOTAL as u64, &[64, 10, 500]);
        close(client);
    });
    let of_parent = count(pair.server);
    let _ = writer.join();
    say!("child: {}", wait_child(child));
    let mut bytes = [0; 8];
    read(result_in, &mut bytes);
    say!("together {}", of_parent + i64::from_ne_bytes(bytes));
}

fn pending_data_inherited() {
    let pair = connected();
    send(pair.client, b"before the fork", 0);
    await_bytes(pair.server, 15);
    show_recv("parent", pair.server, 7, 0);
    let child = fork_child(|| {
        show_recv("child", pair.server, 64, 0);
        0
    });
    say!("child: {}", wait_child(child));
    show_recv("parent", pair.server, 64, libc::MSG_DONTWAIT);
}

fn listener_survives_parent() {
    let (listening, addr) = listener();
    let child = fork_child(|| {
        let server = accept(listening).fd();
        send(server, b"served by the child", 0);
        0
    });
    close(listening);
    let client = dial(&addr);
    await_readable(client);
    show_recv("client", client, 32, 0);
    say!("child: {}", wait_child(child));
    show("connect", connect(tcp(), &addr));
}

fn flags_shared() {
    let pair = connected();
    let child = fork_child(|| {
        set_nonblocking(pair.server, true);
        set_int(pair.server, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        fcntl(pair.server, libc::F_SETFD, libc::FD_CLOEXEC);
        0
    });
    say!("child: {}", wait_child(child));
    say!("{} {}", status_flags(pair.server), descriptor_flags(pair.server));
    show_option("TCP_NODELAY", pair.server, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    show_recv("parent", pair.server, 8, 0);
}

fn stop_here() -> i32 {
    kill(getpid(), libc::SIGKILL);
    1
}

fn child_killed() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        send(pair.server, b"before", 0);
        stop_here()
    });
    close(pair.server);
    say!("child: {}", wait_child(child));
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
    show_recv("client", pair.client, 32, 0);
}

fn child_killed_unread() {
    let pair = connected();
    send(pair.client, b"never read", 0);
    await_readable(pair.server);
    let child = fork_child(|| {
        close(pair.client);
        send(pair.server, b"before", 0);
        stop_here()
    });
    close(pair.server);
    say!("child: {}", wait_child(child));
    await_events(pair.client, libc::POLLHUP);
    show_poll("client", pair.client);
    show_recv("client", pair.client, 32, 0);
    show_recv("client", pair.client, 32, 0);
    show_recv("client", pair.client, 32, 0);
}

fn grandchild() {
    let pair = connected();
    let child = fork_child(|| {
        send(pair.server, b"child ", 0);
        let inner = fork_child(|| {
            send(pair.server, b"grandchild ", 0);
            0
        });
        i32::from(wait_child(inner) != "exit 0")
    });
    say!("child: {}", wait_child(child));
    send(pair.server, b"parent", 0);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 64, 0);
    show_recv("client", pair.client, 64, 0);
}

/// The parent of a daemon is gone when the daemon talks.
fn double_fork_daemon() {
    let pair = connected();
    let child = fork_child(|| {
        // SAFETY: this process has one thread.
        if unsafe { libc::fork() } == 0 {
            alarm(9);
            close(pair.client);
            sleep(5);
            send(pair.server, b"daemon", 0);
            exit_now(0);
        }
        0
    });
    close(pair.server);
    say!("child: {}", wait_child(child));
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 64, 0);
    show_recv("client", pair.client, 64, 0);
}

fn epoll_inherited() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, libc::EPOLLIN, 1);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    let child = fork_child(|| {
        show_epoll("child", ep);
        recv(pair.server, &mut [0; 8], 0);
        show_epoll("child, data taken", ep);
        epoll_mod(ep, pair.server, libc::EPOLLOUT, 2);
        0
    });
    say!("child: {}", wait_child(child));
    show_epoll("parent sees the child's change", ep);
}

fn connection_between() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        let tally = crate::bulk::receive_pattern(pair.server, 500_000, &[3_001]);
        send(pair.server, if tally.intact { b"good" } else { b"bad!" }, 0);
        0
    });
    close(pair.server);
    say!("sent {}", crate::bulk::send_pattern(pair.client, 500_000, &[10_000, 1]));
    await_readable(pair.client);
    show_recv("parent", pair.client, 8, 0);
    say!("child: {}", wait_child(child));
}

fn large_from_child() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        i32::from(crate::bulk::send_pattern(pair.server, 6_000_000, &[100_000]) != 6_000_000)
    });
    close(pair.server);
    crate::bulk::receive_pattern(pair.client, u64::MAX, &[65_536]).show("parent");
    say!("child: {}", wait_child(child));
}

fn many_workers() {
    let (listening, addr) = listener();
    let children: Vec<i32> = (0..8)
        .map(|number| {
            fork_child(move || {
                close(listening);
                let client = dial(&addr);
                crate::bulk::send_pattern(client, 100_000 + number, &[5_000]);
                0
            })
        })
        .collect();
    let mut sizes = Vec::new();
    for _ in &children {
        let server = accept(listening).fd();
        let tally = crate::bulk::receive_pattern(server, u64::MAX, &[4_096]);
        say!("intact {}, then recv = {}", tally.intact, tally.end);
        sizes.push(tally.bytes);
        close(server);
    }
    sizes.sort_unstable();
    say!("{sizes:?}");
    say!("all children ended well: {}", children.iter().all(|child| wait_child(*child) == "exit 0"));
}
