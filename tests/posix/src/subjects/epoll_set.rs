//! epoll: what belongs to a set, for how long, and in which order it is told.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll_set/closed_is_removed", closed_is_removed),
    solo("epoll_set/dup_keeps", dup_keeps),
    solo("epoll_set/number_used_again", number_used_again),
    solo("epoll_set/maxevents", maxevents),
    solo("epoll_set/rotation", rotation),
    solo("epoll_set/order", order),
    solo("epoll_set/mixed_kinds", mixed_kinds),
    solo("epoll_set/two_sets", two_sets),
    solo("epoll_set/many", many),
    solo("epoll_set/churn", churn),
    solo("epoll_set/register_before_connect", register_before_connect),
];

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;

fn closed_is_removed() {
    let (a, b) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, a.server, IN | OUT, 1);
    epoll_add(ep, b.server, IN | OUT, 2);
    show_epoll("both", ep);
    close(a.server);
    show_epoll("one closed", ep);
    show("DEL of the closed one", epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, a.server));
    show("MOD of the closed one", epoll_ctl(ep, libc::EPOLL_CTL_MOD, a.server, IN, 1));
    show("ADD of the closed one", epoll_ctl(ep, libc::EPOLL_CTL_ADD, a.server, IN, 1));
    close(b.server);
    show_epoll("both closed", ep);
}

/// A registration lives as long as the open file description (epoll(7), question 6).
fn dup_keeps() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let twin = dup(pair.server).fd();
    show("ADD of the dup", epoll_ctl(ep, libc::EPOLL_CTL_ADD, twin, IN, 2));
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("both", ep);
    close(pair.server);
    show_epoll("original closed", ep);
    epoll_del(ep, twin);
    show_epoll("dup deleted, still open", ep);
    close(twin);
    show_epoll("dup closed", ep);
}

fn number_used_again() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    let ep = epoll();
    epoll_add(ep, pair.server, IN | OUT, 1);
    let number = pair.server;
    close(number);
    let again = connect_to(listening, &addr);
    say!("the number is used again: {}", again.client == number || again.server == number);
    show_epoll("nothing of the old one", ep);
    show("ADD of the new one", epoll_ctl(ep, libc::EPOLL_CTL_ADD, number, OUT, 2));
    show_epoll("the new one", ep);
}

fn maxevents() {
    let (listening, addr) = listener();
    let pairs: Vec<Connected> = (0..5).map(|_| connect_to(listening, &addr)).collect();
    let ep = epoll();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_add(ep, pair.server, OUT, index as u64);
    }
    for max in [1, 2, 5, 64] {
        let (result, _) = epoll_wait(ep, max, 0);
        say!("max {max}: epoll_wait = {result}");
    }
}

/// With fewer slots than ready descriptors, those that were told go to the end of the line.
fn rotation() {
    let (listening, addr) = listener();
    let pairs: Vec<Connected> = (0..5).map(|_| connect_to(listening, &addr)).collect();
    let ep = epoll();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_add(ep, pair.server, OUT, index as u64);
    }
    for round in 0..5 {
        show_epoll_order(&format!("round {round}"), ep, 2);
    }
}

fn order() {
    let (listening, addr) = listener();
    let pairs: Vec<Connected> = (0..5).map(|_| connect_to(listening, &addr)).collect();
    let ep = epoll();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_add(ep, pair.server, IN, index as u64);
    }
    for index in [3, 0, 4] {
        send(pairs[index].client, b"x", 0);
        await_readable(pairs[index].server);
    }
    show_epoll_order("in the order of arrival", ep, 64);
    show_epoll_order("and again", ep, 64);
}

fn mixed_kinds() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    let (event, timer) = (eventfd(0, 0), timerfd(0));
    let (_, [unix, other]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let ep = epoll();
    for (fd, number) in [(pair.server, 1), (read_end, 2), (event, 3), (timer, 4), (unix, 5)] {
        epoll_add(ep, fd, IN, number);
    }
    show_epoll("idle", ep);
    set_timer(timer, 20);
    show_epoll_within("timer", ep, 2000);
    read(timer, &mut [0; 8]);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("tcp", ep);
    write(write_end, b"x");
    write(event, &7u64.to_ne_bytes());
    write(other, b"x");
    // Beside ready TCP sockets the kernel is asked now and then only.
    sleep(1);
    show_epoll("all", ep);
    read(read_end, &mut [0; 8]);
    read(event, &mut [0; 8]);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("unix", ep);
    close(write_end);
    show_epoll("pipe closed", ep);
}

fn two_sets() {
    let pair = connected();
    let (one, two) = (epoll(), epoll());
    epoll_add(one, pair.server, IN, 1);
    epoll_add(two, pair.server, IN | OUT, 2);
    show_epoll("one idle", one);
    show_epoll("two idle", two);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("one", one);
    show_epoll("two", two);
    epoll_del(one, pair.server);
    show_epoll("one, deleted", one);
    show_epoll("two", two);
}

fn many() {
    let (listening, addr) = listener();
    let ep = epoll();
    let pairs: Vec<Connected> = (0..300).map(|_| connect_to(listening, &addr)).collect();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_add(ep, pair.server, IN, index as u64);
    }
    let (mut told, mut wrong) = (0, 0);
    for round in 0..20 {
        let wanted: Vec<u64> = (0..300).filter(|index| index % 20 == round).collect();
        for index in &wanted {
            send(pairs[*index as usize].client, b"x", 0);
            await_readable(pairs[*index as usize].server);
        }
        let (_, events) = epoll_wait(ep, 512, 1000);
        let mut seen: Vec<u64> = events.iter().map(|(index, _)| *index).collect();
        seen.sort_unstable();
        told += seen.len();
        wrong += usize::from(seen != wanted);
        for index in seen {
            recv(pairs[index as usize].server, &mut [0; 8], 0);
        }
    }
    say!("told {told}, wrong rounds {wrong}");
    show_epoll("at the end", ep);
}

/// Connections come and go while the set lives, as in a server.
fn churn() {
    let (listening, addr) = listener();
    let ep = epoll();
    epoll_add(ep, listening, IN, 0);
    let mut served = 0;
    for _ in 0..100 {
        let client = dial(&addr);
        send(client, b"ping", 0);
        let (_, events) = epoll_wait(ep, 8, 2000);
        if events != [(0, IN as u32)] {
            say!("unexpected events {events:?}");
        }
        let server = accept(listening).fd();
        epoll_add(ep, server, IN, 1);
        let (_, events) = epoll_wait(ep, 8, 2000);
        let got = recv(server, &mut [0; 8], 0);
        served += usize::from(events.len() == 1 && events[0].0 == 1 && got.value == 4);
        close(server);
        close(client);
    }
    say!("served {served}");
    show_epoll("at the end", ep);
}

/// Registered when fresh, then connected: the registration holds.
fn register_before_connect() {
    let (listening, addr) = listener();
    let client = tcp_nonblocking();
    let ep = epoll();
    epoll_add(ep, client, IN | OUT, 1);
    show_epoll("fresh", ep);
    connect(client, &addr);
    await_events(client, libc::POLLOUT);
    show_epoll("connected", ep);
    let server = accept(listening).fd();
    send(server, b"x", 0);
    await_readable(client);
    show_epoll("data", ep);
    let fresh = tcp();
    epoll_add(ep, fresh, IN, 2);
    epoll_del(ep, client);
    let own = listen_on(fresh, &Addr::local(0), 4);
    show_epoll("listening now", ep);
    let _client = dial(&own);
    show_epoll("pending", ep);
}
