//! Each event bit by itself, in the states of a socket: poll, select, epoll in all its modes; and which events a change
//! brings to an epoll instance that has told all there was before (`edges/X`).

use super::states::{self, Made};
use crate::sys::*;
use crate::table::{Subject, solo};

macro_rules! in_states {
    ($topic:literal, $run:ident, $($state:ident)*) => {
        &[$(solo(concat!($topic, "/", stringify!($state)), || $run(states::$state))),*]
    };
}

pub(crate) const SUBJECTS: &[Subject] = in_states!("masks", masks,
    fresh bound listening connection_waits listener_shut connecting connected accepted data_waiting urgent_waiting full
    shut_read shut_read_data shut_write shut_both peer_shut peer_shut_data both_shut
    peer_closed peer_closed_data peer_closed_and_sent peer_left_data reset reset_data reset_told
    refused refused_untold disconnected disconnected_data
    used shut_both_data peer_shut_both_data accepted_closed accepted_reset reset_read listener_disconnected connected_again
);

pub(crate) const EDGES: &[Subject] = in_states!("edges", edges,
    connected accepted data_waiting urgent_waiting shut_read shut_read_data peer_shut peer_shut_data
);

fn masks(state: fn() -> Made) {
    for bit in 0..16 {
        let made = state();
        let (result, events) = poll_one(made.fd, (1u16 << bit) as i16, 0);
        say!("poll {}: {result} {}", poll_mask((1u16 << bit) as i16), poll_mask(events));
        made.abort();
    }
    let made = state();
    show_select("select", &[("it", made.fd)], 0);
    made.abort();
    let modes =
        [0, libc::EPOLLET, libc::EPOLLONESHOT, libc::EPOLLEXCLUSIVE, libc::EPOLLET | libc::EPOLLONESHOT];
    for mode in modes {
        for bit in 0..15 {
            let made = state();
            let ep = epoll();
            let added = epoll_ctl(ep, libc::EPOLL_CTL_ADD, made.fd, 1 << bit | mode, 7);
            let [first, second] = [told(ep), told(ep)];
            let changed = epoll_ctl(ep, libc::EPOLL_CTL_MOD, made.fd, 1 << bit | mode, 8);
            say!(
                "epoll {} of {}: {added} {first} {second}, again: {changed} {} {}",
                epoll_mask(1 << bit),
                mode_name(mode),
                told(ep),
                told(ep)
            );
            close(ep);
            made.abort();
        }
    }
}

fn mode_name(mode: i32) -> String {
    let words = [(libc::EPOLLET, "ET"), (libc::EPOLLONESHOT, "ONESHOT"), (libc::EPOLLEXCLUSIVE, "EXCLUSIVE")];
    words.iter().filter(|(bit, _)| mode & bit != 0).map(|(_, word)| *word).collect::<Vec<_>>().join("+")
}

fn told(ep: i32) -> String {
    let (result, events) = epoll_wait(ep, 4, 0);
    let events: Vec<String> =
        events.iter().map(|(data, bits)| format!("{data}:{}", epoll_mask(*bits))).collect();
    format!("{result}[{}]", events.join(" "))
}

type Change = fn(i32, i32);

/// What happens: the socket's number, and its peer's.
const CHANGES: &[(&str, Change)] = &[
    ("nothing", |_, _| {}),
    ("bytes come", |_, peer| {
        send(peer, b"new", 0);
    }),
    ("urgent byte comes", |_, peer| {
        send(peer, b"u", libc::MSG_OOB);
    }),
    ("bytes come twice", |_, peer| {
        send(peer, b"new", 0);
        send(peer, b"er", 0);
    }),
    ("some is read", |fd, _| {
        recv(fd, &mut [0; 2], libc::MSG_DONTWAIT);
    }),
    ("all is read", |fd, _| {
        recv(fd, &mut [0; 64], libc::MSG_DONTWAIT);
    }),
    ("all is read, bytes come", |fd, peer| {
        recv(fd, &mut [0; 64], libc::MSG_DONTWAIT);
        send(peer, b"new", 0);
    }),
    ("urgent byte is read", |fd, _| {
        recv(fd, &mut [0; 1], libc::MSG_OOB | libc::MSG_DONTWAIT);
    }),
    ("it sends", |fd, _| {
        send(fd, b"out", libc::MSG_DONTWAIT);
    }),
    ("peer SHUT_WR", |_, peer| {
        shutdown(peer, libc::SHUT_WR);
    }),
    ("peer SHUT_RD", |_, peer| {
        shutdown(peer, libc::SHUT_RD);
    }),
    ("peer SHUT_RDWR", |_, peer| {
        shutdown(peer, libc::SHUT_RDWR);
    }),
    ("peer closes", |_, peer| {
        let other = eventfd(0, 0);
        dup2(other, peer);
        close(other);
    }),
    ("peer resets", |_, peer| {
        set_linger(peer, 1, 0);
        let other = eventfd(0, 0);
        dup2(other, peer);
        close(other);
    }),
    ("bytes come, peer closes", |_, peer| {
        send(peer, b"new", 0);
        let other = eventfd(0, 0);
        dup2(other, peer);
        close(other);
    }),
    ("SHUT_RD", |fd, _| {
        shutdown(fd, libc::SHUT_RD);
    }),
    ("SHUT_WR", |fd, _| {
        shutdown(fd, libc::SHUT_WR);
    }),
    ("SHUT_RDWR", |fd, _| {
        shutdown(fd, libc::SHUT_RDWR);
    }),
    ("connect UNSPEC", |fd, _| {
        connect(fd, &Addr::unspec());
    }),
    ("SO_RCVLOWAT 5", |fd, _| {
        set_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 5);
    }),
    ("SO_OOBINLINE", |fd, _| {
        set_int(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1);
    }),
    ("F_SETFL", |fd, _| {
        set_nonblocking(fd, true);
    }),
];

fn edges(state: fn() -> Made) {
    signal(libc::SIGPIPE, libc::SIG_IGN);
    const WANTED: i32 = libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLRDHUP;
    for (name, change) in CHANGES {
        for mode in [0, libc::EPOLLET, libc::EPOLLONESHOT] {
            for wanted in [WANTED, libc::EPOLLIN, libc::EPOLLOUT] {
                let made = state();
                let Some(peer) = made.peer() else { continue };
                let ep = epoll();
                epoll_add(ep, made.fd, wanted | mode, 7);
                let before = told(ep);
                change(made.fd, peer);
                sleep(2);
                let [first, second] = [told(ep), told(ep)];
                say!(
                    "{name}, {} {}: {before}, {first} {second}; poll {}",
                    epoll_mask(wanted as u32),
                    mode_name(mode),
                    poll_mask(poll_one(made.fd, ALL, 0).1)
                );
                close(ep);
                made.abort();
            }
        }
    }
}
