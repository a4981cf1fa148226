//! `poll()`, `ppoll()`, `select()` and `pselect()`: masks in every state.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("poll/stream_states", stream_states),
    solo("poll/listener", listener_states),
    solo("poll/connecting", connecting),
    solo("poll/fresh_and_bound", fresh_and_bound),
    solo("poll/half_closed", half_closed),
    solo("poll/events_asked", events_asked),
    solo("poll/invalid_descriptors", invalid_descriptors),
    solo("poll/timeouts", timeouts),
    solo("poll/many", many),
    solo("poll/mixed_kinds", mixed_kinds),
    solo("poll/duplicates", duplicates),
    solo("poll/wakes", wakes),
    solo("poll/wakes_for_write", wakes_for_write),
    solo("poll/wakes_for_accept", wakes_for_accept),
    solo("poll/closed_meanwhile", closed_meanwhile),
    solo("poll/errors", errors),
    solo("poll/normal_bits", normal_bits),
    solo("poll/full", full),
    solo("select/stream_states", select_states),
    solo("select/sets", select_sets),
    solo("select/errors", select_errors),
    solo("select/timeout", select_timeout),
    solo("select/mixed_kinds", select_mixed),
    solo("select/wakes", select_wakes),
];

fn stream_states() {
    let pair = connected();
    show_poll("idle", pair.server);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_poll("data", pair.server);
    recv(pair.server, &mut [0; 4], 0);
    show_poll("data taken", pair.server);
    send(pair.client, b"x", 0);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_poll("data and the end", pair.server);
    recv(pair.server, &mut [0; 4], 0);
    show_poll("the end", pair.server);
    recv(pair.server, &mut [0; 4], 0);
    show_poll("the end, seen", pair.server);
    shutdown(pair.server, libc::SHUT_WR);
    await_events(pair.server, libc::POLLHUP);
    show_poll("both ends", pair.server);
}

fn listener_states() {
    let (listening, addr) = listener();
    show_poll("idle", listening);
    let a = dial(&addr);
    show_poll("one pending", listening);
    let b = dial(&addr);
    show_poll("two pending", listening);
    accept(listening);
    show_poll("one left", listening);
    accept(listening);
    show_poll("none left", listening);
    close_all(&[a, b]);
    show_poll("clients gone", listening);
}

fn connecting() {
    let (_, addr, _filler) = full_backlog();
    let client = tcp_nonblocking();
    connect(client, &addr);
    show_poll("in progress", client);
    show_poll_for("in progress, waiting", client, libc::POLLOUT, 20);
    show_select("in progress", &[("c", client)], 0);
    let (listening, addr) = self::listener();
    let client = tcp_nonblocking();
    connect(client, &addr);
    show_poll_for("established", client, libc::POLLOUT | libc::POLLIN, 1000);
    close(listening);
    let client = tcp_nonblocking();
    connect(client, &Addr::local(free_port()));
    await_events(client, libc::POLLERR);
    show_poll("refused", client);
    show_select("refused", &[("c", client)], 0);
}

fn fresh_and_bound() {
    let fd = tcp();
    show_poll("fresh", fd);
    show_poll_for("fresh, asked for nothing", fd, 0, 0);
    show_select("fresh", &[("f", fd)], 0);
    bind(fd, &Addr::local(0));
    show_poll("bound", fd);
    listen(fd, 1);
    show_poll("listening", fd);
}

fn half_closed() {
    let pair = connected();
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_poll("who closed", pair.client);
    show_poll("the peer", pair.server);
    show_poll_for("the peer, IN only", pair.server, libc::POLLIN, 0);
    show_poll_for("the peer, OUT only", pair.server, libc::POLLOUT, 0);
    show_poll_for("the peer, RDHUP only", pair.server, libc::POLLRDHUP, 0);
    show_poll_for("the peer, nothing", pair.server, 0, 0);
    shutdown(pair.server, libc::SHUT_WR);
    await_events(pair.client, libc::POLLHUP);
    show_poll_for("both, nothing", pair.client, 0, 0);
}

fn events_asked() {
    let pair = connected();
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    for events in
        [0, libc::POLLIN, libc::POLLOUT, libc::POLLPRI, libc::POLLRDHUP, libc::POLLHUP, libc::POLLERR]
    {
        show_poll_for(&format!("asked {}", poll_mask(events)), pair.server, events, 0);
    }
}

fn invalid_descriptors() {
    let pair = connected();
    let mut fds = [pollfd(-1, libc::POLLIN), pollfd(999, libc::POLLIN), pollfd(pair.client, libc::POLLOUT)];
    let result = poll(&mut fds, 100);
    let masks: Vec<String> = fds.iter().map(|entry| poll_mask(entry.revents)).collect();
    say!("poll = {result} {masks:?}");
    close(pair.client);
    show_poll_for("closed", pair.client, libc::POLLIN, 100);
    show_poll_for("closed, nothing asked", pair.client, 0, 100);
    show_poll_for("-1 alone", -1, libc::POLLIN, 5);
    show_poll_for("-77 alone", -77, libc::POLLIN, 5);
}

fn timeouts() {
    let pair = connected();
    show("no descriptors, 0", poll(&mut [], 0));
    show("no descriptors, 5 ms", poll(&mut [], 5));
    show_poll_for("idle, 0", pair.server, libc::POLLIN, 0);
    let start = std::time::Instant::now();
    show_poll_for("idle, 30 ms", pair.server, libc::POLLIN, 30);
    say!("it took that long: {}", (28..2000).contains(&start.elapsed().as_millis()));
    show_poll_for("ready, for ever", pair.server, libc::POLLOUT, -1);
    show_poll_for("ready, -5", pair.server, libc::POLLOUT, -5);
    let mut fds = [pollfd(pair.server, libc::POLLIN)];
    show("ppoll 5 ms", ppoll(&mut fds, 5, None));
    show("ppoll 0", ppoll(&mut fds, 0, None));
    let bad = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 };
    show("ppoll, bad nanoseconds", call!(libc::ppoll(fds.as_mut_ptr(), 1, &raw const bad, std::ptr::null())));
    let bad = libc::timespec { tv_sec: -1, tv_nsec: 0 };
    show("ppoll, negative", call!(libc::ppoll(fds.as_mut_ptr(), 1, &raw const bad, std::ptr::null())));
}

fn many() {
    let (listening, addr) = listener();
    let pairs: Vec<Connected> = (0..60).map(|_| connect_to(listening, &addr)).collect();
    for index in [3, 17, 42] {
        send(pairs[index].client, b"x", 0);
        await_readable(pairs[index].server);
    }
    let mut fds: Vec<libc::pollfd> = pairs.iter().map(|pair| pollfd(pair.server, libc::POLLIN)).collect();
    show("poll", poll(&mut fds, 1000));
    let ready: Vec<usize> = (0..60).filter(|index| fds[*index].revents == libc::POLLIN).collect();
    let quiet = fds.iter().filter(|entry| entry.revents == 0).count();
    say!("ready {ready:?}, quiet {quiet}");
}

fn mixed_kinds() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    let event = eventfd(0, 0);
    let timer = timerfd(10_000);
    let file = temporary_file(b"x");
    let (_, [unix, other]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let show_all = |label: &str| {
        let in_out = libc::POLLIN | libc::POLLOUT;
        let mut fds: Vec<libc::pollfd> = [pair.server, read_end, write_end, event, timer, file, unix]
            .iter()
            .map(|fd| pollfd(*fd, in_out))
            .collect();
        let result = poll(&mut fds, 0);
        let masks: Vec<String> = fds.iter().map(|entry| poll_mask(entry.revents)).collect();
        say!("{label}: poll = {result} tcp,pipe,pipe,event,timer,file,unix {}", masks.join(" "));
    };
    show_all("idle");
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    write(write_end, b"x");
    show_all("tcp and pipe");
    write(event, &1u64.to_ne_bytes());
    write(other, b"x");
    show_all("all but the timer");
    recv(pair.server, &mut [0; 1], 0);
    read(read_end, &mut [0; 1]);
    close(write_end);
    close(other);
    show_all("some closed");
}

fn duplicates() {
    let pair = connected();
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    let twin = dup(pair.server).fd();
    let mut fds = [
        pollfd(pair.server, libc::POLLIN),
        pollfd(pair.server, libc::POLLOUT),
        pollfd(twin, libc::POLLIN),
        pollfd(pair.server, 0),
    ];
    show("poll", poll(&mut fds, 100));
    let masks: Vec<String> = fds.iter().map(|entry| poll_mask(entry.revents)).collect();
    say!("{masks:?}");
}

fn wakes() {
    for late in [false, true] {
        let pair = connected();
        let client = pair.client;
        let writer = thread::spawn(move || {
            sleep(if late { 20 } else { 2 });
            send(client, b"x", 0);
        });
        show_poll_for("data", pair.server, libc::POLLIN, 5000);
        let _ = writer.join();
    }
    let pair = connected();
    let client = pair.client;
    let closer = thread::spawn(move || {
        sleep(5);
        close(client);
    });
    show_poll_for("the end", pair.server, libc::POLLIN | libc::POLLRDHUP, 5000);
    let _ = closer.join();
}

fn wakes_for_write() {
    let pair = connected();
    let sent = crate::bulk::fill(pair.client, 0);
    let server = pair.server;
    let reader = thread::spawn(move || {
        sleep(5);
        crate::bulk::receive_pattern(server, sent, &[65_536])
    });
    show_poll_for("room", pair.client, libc::POLLOUT, 5000);
    say!("received all: {}", reader.join().expect("reader").bytes == sent);
}

fn wakes_for_accept() {
    let (listening, addr) = listener();
    let dialer = thread::spawn(move || {
        sleep(5);
        dial(&addr)
    });
    show_poll_for("a connection", listening, libc::POLLIN, 5000);
    show_fd("accept", accept(listening));
    let _ = dialer.join();
}

/// Closing the number in another thread does not wake poll(2); when it looks again, the number is no descriptor.
fn closed_meanwhile() {
    let pair = connected();
    let server = pair.server;
    let poller = thread::spawn(move || poll_one(server, libc::POLLIN, 600));
    sleep(20);
    close(pair.server);
    let (result, revents) = poller.join().expect("poller");
    say!("poll = {result} {}", poll_mask(revents));
}

fn errors() {
    let mut fds = vec![pollfd(-1, 0); 4];
    show("null list", poll_raw(std::ptr::null_mut(), 1, 0));
    show("null list of none", poll_raw(std::ptr::null_mut(), 0, 0));
    show("bad list", poll_raw(std::ptr::without_provenance_mut(8), 1, 0));
    show("too many", poll_raw(fds.as_mut_ptr(), 1 << 30, 0));
}

fn normal_bits() {
    let pair = connected();
    let all = libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLWRNORM | libc::POLLWRBAND;
    show_poll_for("idle", pair.server, all, 0);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_poll_for("data", pair.server, all, 0);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_poll_for("the end", pair.server, all, 0);
    let (listening, addr) = listener();
    let _client = dial(&addr);
    show_poll_for("listener", listening, all, 0);
    show_poll_for("fresh", tcp(), all, 0);
}

fn full() {
    let pair = connected();
    let sent = crate::bulk::fill(pair.client, 0);
    show_poll("full", pair.client);
    show_poll("its peer", pair.server);
    show_select("full", &[("client", pair.client), ("server", pair.server)], 0);
    crate::bulk::receive_pattern(pair.server, sent, &[100_000]);
    await_events(pair.client, libc::POLLOUT);
    show_poll("drained", pair.client);
    show_poll("its peer", pair.server);
    crate::bulk::fill(pair.client, 0);
    close(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_poll("full, and the peer is gone", pair.client);
}

fn select_states() {
    let pair = connected();
    let both = [("client", pair.client), ("server", pair.server)];
    show_select("idle", &both, 0);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_select("data", &both, 0);
    recv(pair.server, &mut [0; 4], 0);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_select("half closed", &both, 0);
    close(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_select("closed", &both[..1], 0);
    let (listening, addr) = listener();
    show_select("listener", &[("l", listening)], 0);
    let _client = dial(&addr);
    show_select("listener, pending", &[("l", listening)], 0);
}

fn select_sets() {
    let (a, b) = (connected(), connected());
    send(b.client, b"x", 0);
    await_readable(b.server);
    let mut set = FdSet::of(&[a.server, b.server]);
    let result = select_read(a.server.max(b.server) + 1, Some(&mut set), 1000);
    say!("select = {result}, a {}, b {}", set.has(a.server), set.has(b.server));
    let mut set = FdSet::of(&[a.server, b.server]);
    let result = select_read(b.server, Some(&mut set), 5);
    say!("b is beyond the count: select = {result}, a {}", set.has(a.server));
    let mut set = FdSet::of(&[a.server]);
    let result = select_read(a.server + 1, Some(&mut set), 5);
    say!("timed out: select = {result}, a {}", set.has(a.server));
    let mut set = FdSet::of(&[b.server]);
    show("select", select_read(1024, Some(&mut set), 5));
}

fn select_errors() {
    let pair = connected();
    let mut set = FdSet::of(&[pair.server]);
    show("count -1", select_read(-1, Some(&mut set), 0));
    close(pair.server);
    let result = select_read(pair.server + 1, Some(&mut set), 100);
    say!("closed descriptor: select = {result}, still set {}", set.has(pair.server));
    show("no set", select_read(0, None, 5));
    show("no set, a count", select_read(100, None, 5));
    show("negative time", select_read(0, None, -1));
}

fn select_timeout() {
    let pair = connected();
    let mut set = FdSet::of(&[pair.server]);
    let start = std::time::Instant::now();
    show("idle, 30 ms", select_read(pair.server + 1, Some(&mut set), 30));
    say!("it took that long: {}", (28..2000).contains(&start.elapsed().as_millis()));
    let mut set = FdSet::of(&[pair.server]);
    let client = pair.client;
    let null = std::ptr::null_mut::<libc::fd_set>();
    let mut time = libc::timeval { tv_sec: 5, tv_usec: 0 };
    let writer = thread::spawn(move || {
        sleep(10);
        send(client, b"x", 0);
    });
    let result = call!(libc::select(pair.server + 1, (&raw mut set).cast(), null, null, &raw mut time));
    let _ = writer.join();
    let left = time.tv_sec * 1000 + time.tv_usec / 1000;
    say!("select = {result}, the time that is left is told: {}", (1000..4_995).contains(&left));
}

fn select_mixed() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    let event = eventfd(0, 0);
    let file = temporary_file(b"x");
    let all = [("tcp", pair.server), ("pipe", read_end), ("event", event), ("file", file)];
    show_select("idle", &all, 0);
    write(write_end, b"x");
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_select("tcp and pipe", &all, 0);
    write(event, &1u64.to_ne_bytes());
    show_select("and eventfd", &all, 0);
}

fn select_wakes() {
    let pair = connected();
    let client = pair.client;
    let writer = thread::spawn(move || {
        sleep(5);
        send(client, b"x", 0);
    });
    let mut set = FdSet::of(&[pair.server]);
    show("select", select_read(pair.server + 1, Some(&mut set), 5000));
    let _ = writer.join();
    let (read_end, write_end) = pipe(0);
    let writer = thread::spawn(move || {
        sleep(5);
        write(write_end, b"x");
    });
    let idle = connected();
    let mut set = FdSet::of(&[idle.server, read_end]);
    let result = select_read(idle.server.max(read_end) + 1, Some(&mut set), 5000);
    say!("select = {result}, tcp {}, pipe {}", set.has(idle.server), set.has(read_end));
    let _ = writer.join();
}
