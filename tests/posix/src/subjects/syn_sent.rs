//! Connections in SYN-SENT: how waiting for room in a full backlog ends. How it begins is in `connect.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("syn_sent/room_appears", room_appears),
    solo("syn_sent/blocking_connect", blocking_connect),
    solo("syn_sent/send_waits", send_waits),
    solo("syn_sent/recv_waits", recv_waits),
    solo("syn_sent/recv_times_out", recv_times_out),
    solo("syn_sent/epoll_tells", epoll_tells),
    solo("syn_sent/listener_closes", listener_closes),
    solo("syn_sent/disconnect", disconnect),
    solo("syn_sent/shutdown", shut_down),
    solo("syn_sent/options", options),
    solo("syn_sent/times_out", times_out),
    solo("syn_sent/times_out_nonblocking", times_out_nonblocking),
    solo("syn_sent/dup", duplicate),
    solo("syn_sent/fork", forked),
    solo("syn_sent/closed_in_a_try", closed_in_a_try),
];

/// Accepts in a thread, a while later, until the queue has been empty for long.
fn accept_soon(listening: i32) -> thread::JoinHandle<Vec<i32>> {
    thread::spawn(move || {
        sleep(30);
        let mut accepted = Vec::new();
        while poll_one(listening, libc::POLLIN, 2500).1 != 0 {
            accepted.push(accept(listening).fd());
        }
        accepted
    })
}

fn room_appears() {
    let (listening, addr, filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    show_fd("accept a filler", accept(listening));
    show_poll_for("client", client, libc::POLLOUT, 5000);
    show_so_error("client", client);
    show("connect for the result", connect(client, &addr));
    show("connect once more", connect(client, &addr));
    for _ in 1..filler.len() {
        show_fd("accept a filler", accept(listening));
    }
    let server = show_fd("accept the client", accept(listening));
    show_send("client", client, b"at last", 0);
    await_readable(server);
    show_recv("server", server, 16, 0);
}

fn blocking_connect() {
    let (listening, addr, _filler) = full_backlog();
    let acceptor = accept_soon(listening);
    let client = tcp();
    show("connect", connect(client, &addr));
    show("connect again", connect(client, &addr));
    show_tcp_state("client", client, "ESTABLISHED");
    say!("accepted {}", acceptor.join().map_or(0, |list| list.len()));
}

fn send_waits() {
    let (listening, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    set_nonblocking(client, false);
    let acceptor = accept_soon(listening);
    show_send("client", client, b"patience", 0);
    let accepted = acceptor.join().unwrap_or_default();
    say!("accepted {}", accepted.len());
    show_recv("server", accepted.last().copied().unwrap_or(-1), 16, 0);
}

fn recv_waits() {
    let (listening, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    set_nonblocking(client, false);
    let acceptor = thread::spawn(move || {
        sleep(30);
        for _ in 0..3 {
            let server = accept(listening).fd();
            send(server, b"welcome", 0);
        }
    });
    show_recv("client", client, 16, 0);
    say!("accepted: {}", acceptor.join().is_ok());
}

fn recv_times_out() {
    let (_, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    set_nonblocking(client, false);
    set_timeout(client, libc::SO_RCVTIMEO, 30);
    set_timeout(client, libc::SO_SNDTIMEO, 30);
    show_recv("client", client, 16, 0);
    show_send("client", client, b"x", 0);
    show_recv("client, not waiting", client, 16, libc::MSG_DONTWAIT);
    show_tcp_state("client", client, "SYN_SENT");
}

fn epoll_tells() {
    let (listening, addr, _filler) = full_backlog();
    let ep = epoll();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    epoll_add(ep, client, libc::EPOLLOUT | libc::EPOLLIN | libc::EPOLLET, 1);
    show_epoll("in progress", ep);
    show_fd("accept a filler", accept(listening));
    show_epoll_within("room", ep, 5000);
    show_epoll("told already", ep);
    show("connect for the result", connect(client, &addr));
}

fn listener_closes() {
    let (listening, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    close(listening);
    await_events(client, libc::POLLERR);
    show_poll("client", client);
    show("connect for the result", connect(client, &addr));
    let waiting = tcp();
    show("connect anew", connect(waiting, &addr));
}

/// ETIMEDOUT, which TCP_USER_TIMEOUT brings forward. The socket may be connected anew.
fn times_out() {
    let (listening, addr, filler) = full_backlog();
    let client = tcp();
    set_int(client, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 400);
    show("connect", connect(client, &addr));
    show_so_error("client", client);
    show_peername("client", client);
    show_tcp_state("client", client, "CLOSE");
    show_send("client", client, b"x", libc::MSG_NOSIGNAL);
    show_recv("client", client, 8, 0);
    for _ in filler {
        show_fd("accept a filler", accept(listening));
    }
    show("connect again", connect(client, &addr));
    show_fd("accept", accept(listening));
}

fn times_out_nonblocking() {
    let (_listening, addr, _filler) = full_backlog();
    let ep = epoll();
    for asks in ["SO_ERROR", "connect", "recv", "send"] {
        let client = tcp_nonblocking();
        set_int(client, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 300);
        show("connect", connect(client, &addr));
        epoll_add(ep, client, libc::EPOLLOUT | libc::EPOLLET, 1);
        show_epoll_within("given up", ep, 5000);
        show_poll("client", client);
        match asks {
            "SO_ERROR" => show_so_error("client", client),
            "connect" => drop(show("connect for the result", connect(client, &addr))),
            "recv" => drop(show_recv("client", client, 8, 0)),
            _ => drop(show_send("client", client, b"x", libc::MSG_NOSIGNAL)),
        }
        show_so_error("once", client);
        close(client);
    }
}

fn disconnect() {
    let (listening, addr, filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    show("connect AF_UNSPEC", connect(client, &Addr::unspec()));
    show_poll("client", client);
    show_so_error("client", client);
    show_poll("client", client);
    set_nonblocking(listening, true);
    for _ in &filler {
        show_fd("accept a filler", accept(listening));
    }
    show("no more to accept", accept(listening));
    show("connect anew", connect(client, &addr));
    await_events(client, libc::POLLOUT);
    show_fd("accept the client", accept(listening));
}

fn shut_down() {
    for (name, how) in [("RD", libc::SHUT_RD), ("RDWR", libc::SHUT_RDWR), ("9", 9)] {
        let (_, addr, _filler) = full_backlog();
        let client = tcp_nonblocking();
        show("connect", connect(client, &addr));
        show(&format!("shutdown {name}"), shutdown(client, how));
        show_poll("client", client);
        show_so_error("client", client);
    }
}

fn options() {
    let (_, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    show("set TCP_NODELAY", set_int(client, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1));
    show_option("TCP_NODELAY", client, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    show("set SO_PRIORITY", set_int(client, libc::SOL_SOCKET, libc::SO_PRIORITY, 3));
    show_option("SO_PRIORITY", client, libc::SOL_SOCKET, libc::SO_PRIORITY);
    show_option("SO_ACCEPTCONN", client, libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    show_tcp_state("client", client, "SYN_SENT");
    say!("F_GETFL {}", status_flags(client));
}

fn duplicate() {
    let (listening, addr, filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    let twin = dup(client).fd();
    close(client);
    show("connect by the twin", connect(twin, &addr));
    set_nonblocking(listening, true);
    for _ in &filler {
        show_fd("accept a filler", accept(listening));
    }
    show_poll_for("twin", twin, libc::POLLOUT, 5000);
    show("connect for the result", connect(twin, &addr));
    show_fd("accept the client", accept(listening));
}

fn forked() {
    let (listening, addr, filler) = full_backlog();
    let client = tcp_nonblocking();
    show("connect", connect(client, &addr));
    let child = fork_child(|| 0);
    say!("child: {}", wait_child(child));
    for _ in &filler {
        show_fd("accept a filler", accept(listening));
    }
    show_poll_for("client", client, libc::POLLOUT, 5000);
    show_fd("accept the client", accept(listening));
}

/// A thread that waits for something else tries connects again whose time has come, while the sockets are closed. No two sockets are
/// one afterwards.
fn closed_in_a_try() {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let (_listening, addr, _filler) = full_backlog();
    let (idle, _) = listener();
    let waiting = thread::spawn(move || {
        while !IS_OVER.load(Ordering::Relaxed) {
            poll_one(idle, libc::POLLIN, 1);
        }
    });
    // The end of a socket that they watch takes a while.
    let watching = [0; 32].map(|_| epoll());
    let mut begun = 0;
    for _ in 0..200 {
        let clients = [0; 16].map(|_| tcp_nonblocking());
        for client in clients {
            watching.iter().for_each(|ep| epoll_add(*ep, client, libc::EPOLLOUT | libc::EPOLLET, 1));
            match connect(client, &addr) {
                Ret { errno: libc::EINPROGRESS, .. } => begun += 1,
                other => say!("connect = {other}"),
            }
        }
        pause(1);
        clients.into_iter().for_each(|client| _ = close(client));
    }
    IS_OVER.store(true, Ordering::Relaxed);
    say!("begun {begun}, waited {}", waiting.join().is_ok());
    let (_listening, addr) = listener();
    for socket in [0; 6].map(|_| tcp()) {
        show("connect", connect(socket, &addr));
    }
}
