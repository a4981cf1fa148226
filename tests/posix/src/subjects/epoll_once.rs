//! EPOLLONESHOT on a connection that lasts: what is told once is told once, however the library moves the connection meanwhile.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_once/all_along", all_along),
    solo("epoll_once/one_way", one_way),
    solo("epoll_once/added_late", added_late),
    solo("epoll_once/unread", unread),
];

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;

/// Sends, waits, sends once more, and looks again: what was told with EPOLLONESHOT is told once, however long the connection lasts. The
/// sums of the rounds in which something else was seen.
fn rounds(pair: &Connected, ep: i32, events: i32, answers: bool) -> (u32, u32, u32) {
    let (mut first, mut again, mut bytes) = (0, 0, 0);
    for _ in 0..60 {
        send(pair.client, b"a", 0);
        await_readable(pair.server);
        let told = epoll_wait(ep, 4, 3000).1;
        first += u32::from(told.len() != 1 || told.first().is_none_or(|(_, told)| told & IN as u32 == 0));
        again += epoll_wait(ep, 4, 0).1.len() as u32;
        send(pair.client, b"b", 0);
        await_bytes(pair.server, 2);
        again += epoll_wait(ep, 4, 0).1.len() as u32;
        bytes += recv(pair.server, &mut [0; 4], 0).count() as u32;
        if answers {
            send(pair.server, b"c", 0);
            bytes += recv(pair.client, &mut [0; 4], 0).count() as u32;
        }
        epoll_mod(ep, pair.server, events | ONESHOT, 1);
        if events & OUT != 0 {
            // There is room: so that is told at once, and of the next message nothing.
            again += epoll_wait(ep, 4, 0).1.len() as u32;
            again += epoll_wait(ep, 4, 0).1.len() as u32;
            epoll_mod(ep, pair.server, IN | ONESHOT, 1);
        }
    }
    (first, again, bytes)
}

fn all_along() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ONESHOT, 1);
    say!("IN: {:?}", rounds(&pair, ep, IN, true));
    say!("IN, OUT: {:?}", rounds(&pair, ep, IN | OUT, true));
    say!("IN, ET: {:?}", rounds(&pair, ep, IN | ET, true));
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("the end", ep);
    show_epoll("told", ep);
}

/// Nothing goes back, so one direction never has a reason to change anything.
fn one_way() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ONESHOT, 1);
    say!("IN: {:?}", rounds(&pair, ep, IN, false));
    say!("IN, OUT: {:?}", rounds(&pair, ep, IN | OUT, false));
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("the end", ep);
    show_epoll("told", ep);
}

fn added_late() {
    let pair = connected();
    for _ in 0..30 {
        send(pair.client, b"x", 0);
        recv(pair.server, &mut [0; 4], 0);
    }
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ONESHOT, 1);
    say!("IN: {:?}", rounds(&pair, ep, IN, false));
    epoll_del(ep, pair.server);
    epoll_add(ep, pair.server, OUT | ONESHOT, 1);
    show_epoll("room", ep);
    show_epoll("told", ep);
    epoll_mod(ep, pair.server, IN | ONESHOT, 1);
    say!("IN: {:?}", rounds(&pair, ep, IN, true));
}

/// Nobody receives what has come since the beginning, while the other direction is in use.
fn unread() {
    let pair = connected();
    for _ in 0..40 {
        send(pair.client, b"x", 0);
        send(pair.server, b"y", 0);
        recv(pair.client, &mut [0; 1], 0);
    }
    await_bytes(pair.server, 40);
    let ep = epoll();
    epoll_add(ep, pair.server, IN | ONESHOT, 1);
    for _ in 0..3 {
        show_epoll("unread", ep);
        show_epoll("told", ep);
        epoll_mod(ep, pair.server, IN | ONESHOT, 1);
    }
    say!("taken {}", recv(pair.server, &mut [0; 64], libc::MSG_WAITALL | libc::MSG_DONTWAIT).count());
    show_epoll("nothing", ep);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("more", ep);
    show_epoll("told", ep);
}
