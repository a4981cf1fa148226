//! Processes that give rights up in a handler, which has interrupted a call.

use super::privileges::{drop_nothing_but, receive_all};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};
use std::cell::Cell;

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("privileges_handlers/by_kernel", by_kernel),
    solo("privileges_handlers/recv", || each_way(recv_late)),
    solo("privileges_handlers/send", || each_way(send_late)),
    solo("privileges_handlers/poll", || each_way(poll_late)),
    solo("privileges_handlers/select", || each_way(select_late)),
    solo("privileges_handlers/epoll", || each_way(epoll_late)),
    solo("privileges_handlers/accept", || each_way(accept_late)),
    solo("privileges_handlers/computing", || each_way(computing)),
];

extern "C" fn gives_up(_: i32) {
    drop_nothing_but(call!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
}

/// A handler gives rights up while its thread waits in recv, and a relative has the listener. The client does not load the library, so the call is the
/// kernel's.
fn by_kernel() {
    let (listening, addr) = listener();
    handle(libc::SIGUSR1, gives_up, 0);
    let parent = call!(libc::getpid()).value as libc::pid_t;
    let client = fork_child(|| super::exec::exec_stranger("ask_late", &[i32::from(addr.port())]));
    let fd = accept(listening).fd();
    let relative = fork_child(|| {
        pause(100);
        kill(parent, libc::SIGUSR1);
        pause(100);
        0
    });
    show_recv("interrupted", fd, 8, 0);
    show_recv("server", fd, 8, 0);
    write(fd, b"answer");
    say!("children: {} {}", wait_child(relative), wait_child(client));
}

/// What the process under test has: a connection, whose other end its relative has, and a listener of both.
struct Here {
    server: i32,
    listening: i32,
    accepted: Cell<Option<i32>>,
}

/// With and without SA_RESTART. The relative sends the signal, and then does what the call waits for.
fn each_way(wait: fn(&Here)) {
    for flags in [0, libc::SA_RESTART] {
        let child = fork_child(|| {
            alarm(8);
            interrupted(wait, flags);
            0
        });
        say!("flags {flags:#x}: {}", wait_child(child));
    }
}

fn interrupted(wait: fn(&Here), flags: i32) {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    handle(libc::SIGUSR1, gives_up, flags);
    let parent = call!(libc::getpid()).value as libc::pid_t;
    let relative = fork_child(|| {
        close(pair.server);
        pause(100);
        kill(parent, libc::SIGUSR1);
        pause(150);
        let other = dial(&addr);
        write(pair.client, b"late");
        // Where the call was send, this makes room.
        let mut end = Vec::new();
        while !end.ends_with(b"question") {
            let mut buffer = [0; 4096];
            let got = read(pair.client, &mut buffer).count();
            assert!(got > 0);
            end.extend_from_slice(&buffer[..got]);
            end.drain(..end.len().saturating_sub(8));
        }
        write(pair.client, b"answer");
        write(other, b"from the other");
        pause(100);
        0
    });
    close(pair.client);
    let here = Here { server: pair.server, listening, accepted: Cell::new(None) };
    wait(&here);
    write(pair.server, b"question");
    let all = receive_all(pair.server, 10);
    say!("then {:?}", String::from_utf8_lossy(&all));
    let other = here.accepted.get().unwrap_or_else(|| accept(listening).fd());
    show_recv("other", other, 32, 0);
    say!("relative: {}", wait_child(relative));
}

/// Until it is not EINTR.
fn again(mut call: impl FnMut() -> Ret) {
    while !show("waited", call()).ok() {}
}

fn recv_late(here: &Here) {
    let mut buffer = [0; 4];
    again(|| recv(here.server, &mut buffer, libc::MSG_PEEK));
}

fn send_late(here: &Here) {
    let block = [7; 65_536];
    while send(here.server, &block, libc::MSG_DONTWAIT).ok() {}
    again(|| send(here.server, b"x", 0));
}

fn poll_late(here: &Here) {
    let mut fds = [pollfd(here.server, libc::POLLIN)];
    again(|| poll(&mut fds, 5000));
    say!("{:#x}", fds[0].revents);
}

fn select_late(here: &Here) {
    again(|| {
        let mut set = FdSet::of(&[here.server]);
        select_read(here.server + 1, Some(&mut set), 5000)
    });
}

fn epoll_late(here: &Here) {
    let ep = epoll();
    epoll_add(ep, here.server, libc::EPOLLIN, 1);
    again(|| epoll_wait(ep, 4, 5000).0);
    let (result, events) = epoll_wait(ep, 4, 0);
    say!("{} {events:?}", result.value);
}

fn accept_late(here: &Here) {
    again(|| {
        let accepted = accept(here.listening);
        here.accepted.set(accepted.ok().then_some(accepted.value as i32));
        Ret { value: accepted.value.min(0), ..accepted }
    });
}

/// The handler interrupts no call.
fn computing(here: &Here) {
    let before = std::time::Instant::now();
    while before.elapsed().as_millis() < 200 {
        std::hint::black_box(here.server);
    }
}
