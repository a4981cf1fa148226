//! epoll: the interface, level-triggered events, waiting.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("epoll/level", level),
    solo("epoll/stream_states", stream_states),
    solo("epoll/listener", of_a_listener),
    solo("epoll/connecting", connecting),
    solo("epoll/modify", modify),
    solo("epoll/delete", delete),
    solo("epoll/data", data),
    solo("epoll/timeouts", timeouts),
    solo("epoll/wakes", wakes),
    solo("epoll/add_while_waiting", add_while_waiting),
    solo("epoll/mod_while_waiting", mod_while_waiting),
    solo("epoll/ctl_errors", ctl_errors),
    solo("epoll/wait_errors", wait_errors),
    solo("epoll/create", create),
    solo("epoll/hup_and_err_always", hup_and_err_always),
    solo("epoll/pwait2", pwait2),
];

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const RDHUP: i32 = libc::EPOLLRDHUP;

fn level() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    show_epoll("idle", ep);
    send(pair.client, b"abc", 0);
    await_readable(pair.server);
    show_epoll("data", ep);
    show_epoll("data still there", ep);
    recv(pair.server, &mut [0; 1], 0);
    show_epoll("part taken", ep);
    recv(pair.server, &mut [0; 8], 0);
    show_epoll("all taken", ep);
    epoll_add(ep, pair.client, OUT, 2);
    show_epoll("writable", ep);
    show_epoll("writable still", ep);
}

fn stream_states() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN | OUT | RDHUP | libc::EPOLLPRI, 1);
    show_epoll("idle", ep);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("data", ep);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_epoll("data and the end", ep);
    recv(pair.server, &mut [0; 4], 0);
    show_epoll("the end", ep);
    shutdown(pair.server, libc::SHUT_WR);
    await_events(pair.server, libc::POLLHUP);
    show_epoll("both ends", ep);
}

fn of_a_listener() {
    let (listening, addr) = listener();
    let ep = epoll();
    epoll_add(ep, listening, IN, 1);
    show_epoll("idle", ep);
    let (_a, _b) = (dial(&addr), dial(&addr));
    show_epoll("two pending", ep);
    accept(listening);
    show_epoll("one pending", ep);
    accept(listening);
    show_epoll("none pending", ep);
    epoll_mod(ep, listening, IN | OUT | RDHUP, 1);
    show_epoll("asked for all", ep);
    shutdown(listening, libc::SHUT_RDWR);
    show_epoll("after shutdown", ep);
}

fn connecting() {
    let (listening, addr) = listener();
    let ep = epoll();
    let client = tcp_nonblocking();
    connect(client, &addr);
    epoll_add(ep, client, OUT | IN | RDHUP, 1);
    show_epoll_within("established", ep, 2000);
    close(listening);
    let client = tcp_nonblocking();
    connect(client, &Addr::local(free_port()));
    epoll_add(ep, client, OUT | IN | RDHUP, 2);
    await_events(client, libc::POLLERR);
    let (_, mut events) = epoll_wait(ep, 8, 1000);
    events.sort_unstable();
    let refused = events.iter().find(|(data, _)| *data == 2).map(|(_, mask)| epoll_mask(*mask));
    say!("refused: {refused:?}");
    let (_, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    let ep = epoll();
    epoll_add(ep, client, OUT | IN | RDHUP, 3);
    show_epoll("before connect", ep);
    connect(client, &addr);
    show_epoll("in progress", ep);
}

fn modify() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    show_epoll("IN", ep);
    epoll_mod(ep, pair.server, OUT, 2);
    show_epoll("OUT", ep);
    epoll_mod(ep, pair.server, 0, 3);
    show_epoll("nothing", ep);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("nothing, data", ep);
    epoll_mod(ep, pair.server, IN | OUT, 4);
    show_epoll("IN and OUT", ep);
    epoll_mod(ep, pair.server, IN, 5);
    show_epoll("IN", ep);
}

fn delete() {
    let pair = connected();
    let ep = epoll();
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    epoll_add(ep, pair.server, IN, 1);
    show("DEL", epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, pair.server));
    show_epoll("deleted", ep);
    show("DEL again", epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, pair.server));
    show("MOD", epoll_ctl(ep, libc::EPOLL_CTL_MOD, pair.server, IN, 1));
    show("ADD", epoll_ctl(ep, libc::EPOLL_CTL_ADD, pair.server, IN, 2));
    show("ADD again", epoll_ctl(ep, libc::EPOLL_CTL_ADD, pair.server, OUT, 3));
    show_epoll("added", ep);
}

fn data() {
    let (a, b) = (connected(), connected());
    let ep = epoll();
    epoll_add(ep, a.server, OUT, u64::MAX);
    epoll_add(ep, b.server, OUT, 0x0123_4567_89ab_cdef);
    show_epoll("64 bits", ep);
    epoll_mod(ep, a.server, OUT, 0);
    show_epoll("changed", ep);
    epoll_mod(ep, b.server, OUT, 0);
    show_epoll("the same twice", ep);
}

fn timeouts() {
    let pair = connected();
    let ep = epoll();
    show_epoll_within("empty, 0", ep, 0);
    show_epoll_within("empty, 5 ms", ep, 5);
    epoll_add(ep, pair.server, IN, 1);
    let start = std::time::Instant::now();
    show_epoll_within("idle, 30 ms", ep, 30);
    say!("it took that long: {}", (28..2000).contains(&start.elapsed().as_millis()));
    epoll_mod(ep, pair.server, OUT, 1);
    show_epoll_within("ready, for ever", ep, -1);
    show_epoll_within("ready, -7", ep, -7);
}

fn wakes() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    for pause in [1, 20] {
        let client = pair.client;
        let writer = thread::spawn(move || {
            sleep(pause);
            send(client, b"x", 0);
        });
        show_epoll_within("data", ep, 5000);
        recv(pair.server, &mut [0; 8], 0);
        let _ = writer.join();
    }
    let (listening, addr) = listener();
    epoll_add(ep, listening, IN, 2);
    let dialer = thread::spawn(move || {
        sleep(5);
        dial(&addr)
    });
    show_epoll_within("connection", ep, 5000);
    let _ = dialer.join();
}

fn add_while_waiting() {
    let pair = connected();
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    let ep = epoll();
    let server = pair.server;
    let adder = thread::spawn(move || {
        sleep(10);
        epoll_add(ep, server, IN, 9);
    });
    show_epoll_within("added meanwhile", ep, 5000);
    let _ = adder.join();
}

fn mod_while_waiting() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let server = pair.server;
    let changer = thread::spawn(move || {
        sleep(10);
        epoll_mod(ep, server, OUT, 2);
    });
    show_epoll_within("changed meanwhile", ep, 5000);
    let _ = changer.join();
}

fn ctl_errors() {
    let pair = connected();
    let ep = epoll();
    let add = libc::EPOLL_CTL_ADD;
    show("to a closed set", epoll_ctl(999, add, pair.client, IN, 1));
    show("to -1", epoll_ctl(-1, add, pair.client, IN, 1));
    show("to a socket", epoll_ctl(pair.server, add, pair.client, IN, 1));
    show("of -1", epoll_ctl(ep, add, -1, IN, 1));
    show("of 999", epoll_ctl(ep, add, 999, IN, 1));
    show("of itself", epoll_ctl(ep, add, ep, IN, 1));
    let file = open_path(c"/proc/self/exe", libc::O_RDONLY).fd();
    show("of a regular file", epoll_ctl(ep, add, file, IN, 1));
    show("unknown operation", epoll_ctl(ep, 99, pair.client, IN, 1));
    show("MOD of an absent one", epoll_ctl(ep, libc::EPOLL_CTL_MOD, pair.client, IN, 1));
    show("DEL of an absent one", epoll_ctl_null(ep, libc::EPOLL_CTL_DEL, pair.client));
    show("null event", epoll_ctl_null(ep, add, pair.client));
    show("ADD", epoll_ctl(ep, add, pair.client, IN, 1));
    show("ADD again", epoll_ctl(ep, add, pair.client, IN, 1));
    show("ADD of a fresh socket", epoll_ctl(ep, add, tcp(), IN, 1));
    show("ADD of a listener", epoll_ctl(ep, add, listener().0, IN, 1));
}

fn wait_errors() {
    let ep = epoll();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    show("on -1", epoll_wait_raw(-1, &raw mut event, 1, 0));
    show("on 999", epoll_wait_raw(999, &raw mut event, 1, 0));
    show("on a socket", epoll_wait_raw(tcp(), &raw mut event, 1, 0));
    show("on a pipe", epoll_wait_raw(pipe(0).0, &raw mut event, 1, 0));
    show("no room", epoll_wait_raw(ep, &raw mut event, 0, 0));
    show("room -1", epoll_wait_raw(ep, &raw mut event, -1, 0));
    show("null, nothing ready", epoll_wait_raw(ep, std::ptr::null_mut(), 1, 0));
    epoll_add(ep, connected().client, OUT, 1);
    show("null, one ready", epoll_wait_raw(ep, std::ptr::null_mut(), 1, 0));
    show_epoll("still told afterwards", ep);
    close(ep);
    show("on a closed one", epoll_wait_raw(ep, &raw mut event, 1, 0));
}

fn create() {
    let ep = show_fd("epoll_create1 0", epoll_create1(0));
    say!("{} {}", descriptor_flags(ep), status_flags(ep));
    let ep = show_fd("epoll_create1 CLOEXEC", epoll_create1(libc::EPOLL_CLOEXEC));
    say!("{}", descriptor_flags(ep));
    show("epoll_create1 1", epoll_create1(1));
    show("epoll_create 0", call!(libc::epoll_create(0)));
    show("epoll_create -1", call!(libc::epoll_create(-1)));
    show_fd("epoll_create 1", call!(libc::epoll_create(1)));
    show("read", read(ep, &mut [0; 8]));
    show("write", write(ep, b"x"));
    show("lseek", lseek(ep, 0, libc::SEEK_CUR));
    let twin = dup(ep).fd();
    epoll_add(ep, connected().client, OUT, 5);
    close(ep);
    show_epoll("through a dup", twin);
}

fn hup_and_err_always() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.client, 0, 1);
    show_epoll("idle", ep);
    send(pair.server, b"x", 0);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_epoll("data and the end, not asked for", ep);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.client, libc::POLLHUP);
    show_epoll("hang-up", ep);
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.client, 0, 2);
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_epoll("reset", ep);
}

fn pwait2() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, IN, 1);
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let mut wait = |seconds: i64, nanoseconds: i64| {
        let time = libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        call!(libc::syscall(libc::SYS_epoll_pwait2, ep, &raw mut event, 1, &raw const time, 0usize, 8usize))
    };
    show("5 ms", wait(0, 5_000_000));
    show("bad nanoseconds", wait(0, 1_000_000_000));
}
