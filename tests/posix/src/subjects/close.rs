//! `close()`: end of stream, reset, linger, and writing to a peer that is gone.

use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("close/end_of_stream", end_of_stream),
    solo("close/data_then_end", data_then_end),
    solo("close/unread_data_resets", unread_data_resets),
    solo("close/partly_read_resets", partly_read_resets),
    solo("close/reset_after_data", reset_after_data),
    solo("close/linger_zero", linger_zero),
    solo("close/linger_zero_unsent", linger_zero_unsent),
    solo("close/linger_waits", linger_waits),
    solo("close/write_after_peer_closed", write_after_peer_closed),
    solo("close/write_twice_after_peer_closed", write_twice_after_peer_closed),
    solo("close/send_after_peer_closed_error", send_after_peer_closed_error),
    solo("close/large_send_after_peer_closed", large_send_after_peer_closed),
    solo("close/reset_seen_by_send", reset_seen_by_send),
    solo("close/reset_seen_by_so_error", reset_seen_by_so_error),
    solo("close/reset_wakes_recv", reset_wakes_recv),
    solo("close/reset_wakes_send", reset_wakes_send),
    solo("close/end_wakes_recv", end_wakes_recv),
    solo("close/last_dup_decides", last_dup_decides),
    solo("close/both_sides", both_sides),
    solo("close/twice", twice),
    solo("close/reset_polls", reset_polls),
    solo("close/large_unsent_delivered", large_unsent_delivered),
    solo("close/reused_number", reused_number),
];

fn end_of_stream() {
    let pair = connected();
    show("close", close(pair.client));
    await_events(pair.server, libc::POLLRDHUP);
    show_poll("server", pair.server);
    show_recv("server", pair.server, 8, 0);
    show_recv("server", pair.server, 8, 0);
    show_so_error("server", pair.server);
    show_poll("server", pair.server);
    show("close", close(pair.server));
}

fn data_then_end() {
    let pair = connected();
    send(pair.client, b"first", 0);
    send(pair.client, b"second", 0);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_poll("server", pair.server);
    show_recv("server", pair.server, 5, 0);
    show_recv("server", pair.server, 64, 0);
    show_recv("server", pair.server, 64, 0);
}

fn unread_data_resets() {
    let pair = connected();
    send(pair.client, b"never read", 0);
    await_readable(pair.server);
    show("close server", close(pair.server));
    await_events(pair.client, libc::POLLHUP);
    show_poll("client", pair.client);
    show_recv("client", pair.client, 8, 0);
    show_recv("client", pair.client, 8, 0);
    show_send("client", pair.client, b"x", libc::MSG_NOSIGNAL);
    show_so_error("client", pair.client);
    show_poll("client", pair.client);
}

fn partly_read_resets() {
    let pair = connected();
    send(pair.client, b"half read", 0);
    await_bytes(pair.server, 9);
    show_recv("server", pair.server, 4, 0);
    send(pair.server, b"reply", 0);
    await_readable(pair.client);
    show("close server", close(pair.server));
    await_events(pair.client, libc::POLLHUP);
    show_poll("client", pair.client);
    show_recv("client", pair.client, 64, 0);
    show_recv("client", pair.client, 64, 0);
    show_recv("client", pair.client, 64, 0);
}

/// Bytes that came before the reset can still be read; then comes the error, once.
fn reset_after_data() {
    let pair = connected();
    send(pair.server, b"0123456789", 0);
    await_bytes(pair.client, 10);
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_poll("client", pair.client);
    show_recv("client", pair.client, 4, 0);
    show_recv("client peek", pair.client, 64, libc::MSG_PEEK);
    show_recv("client", pair.client, 64, 0);
    show_recv("client", pair.client, 64, 0);
    show_recv("client", pair.client, 64, 0);
}

fn linger_zero() {
    let pair = connected();
    show("SO_LINGER", set_linger(pair.client, 1, 0));
    show("close", close(pair.client));
    await_events(pair.server, libc::POLLHUP);
    show_poll("server", pair.server);
    show_recv("server", pair.server, 8, 0);
    show_recv("server", pair.server, 8, 0);
    show_poll("server", pair.server);
}

fn linger_zero_unsent() {
    let pair = connected();
    let sent = crate::bulk::fill(pair.client, 0);
    abort(pair.client);
    await_events(pair.server, libc::POLLHUP);
    let tally = crate::bulk::receive_pattern(pair.server, u64::MAX, &[65_536]);
    say!("not more than was sent: {}, intact {}", tally.bytes <= sent, tally.intact);
    say!("then recv = {}", tally.end);
    show_recv("then", pair.server, 8, 0);
}

fn linger_waits() {
    let pair = connected();
    show("SO_LINGER", set_linger(pair.client, 1, 5));
    send(pair.client, b"lingering", 0);
    show("close", close(pair.client));
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 64, 0);
    show_recv("server", pair.server, 64, 0);
}

/// The first send is taken, and draws a reset.
fn write_after_peer_closed() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_send("first", pair.client, b"x", 0);
    show_taken(libc::SIGPIPE);
    await_events(pair.client, libc::POLLHUP);
    show_poll("client", pair.client);
    show_send("second", pair.client, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_send("third", pair.client, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_recv("client", pair.client, 8, 0);
    show_poll("client", pair.client);
}

fn write_twice_after_peer_closed() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 8, 0);
    show("write", write(pair.client, b"x"));
    await_events(pair.client, libc::POLLHUP);
    show("write", write(pair.client, b"x"));
    show_taken(libc::SIGPIPE);
    show_recv("client", pair.client, 8, 0);
}

fn send_after_peer_closed_error() {
    let pair = connected();
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_send("first", pair.client, b"x", 0);
    await_events(pair.client, libc::POLLHUP);
    show_recv("recv takes the error", pair.client, 8, 0);
    show_recv("client", pair.client, 8, 0);
    let pair = connected();
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_send("first", pair.client, b"x", 0);
    await_events(pair.client, libc::POLLHUP);
    show_so_error("SO_ERROR takes the error", pair.client);
    show_so_error("and again", pair.client);
}

/// A buffer's worth is taken, on a blocking socket too: before there is room again the reset is here.
fn large_send_after_peer_closed() {
    let data = vec![b'x'; 10 << 20];
    for nonblocking in [false, true] {
        let pair = connected();
        set_nonblocking(pair.client, nonblocking);
        close(pair.server);
        await_events(pair.client, libc::POLLRDHUP);
        let sent = send(pair.client, &data, libc::MSG_NOSIGNAL);
        say!("a part was taken: {}", (1..10 << 20).contains(&sent.count()));
        await_events(pair.client, libc::POLLHUP);
        show("the next send", send(pair.client, &data, libc::MSG_NOSIGNAL));
        show_recv("client", pair.client, 8, 0);
    }
}

fn reset_seen_by_send() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_send("first", pair.client, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_send("second", pair.client, b"x", 0);
    show_taken(libc::SIGPIPE);
    show_recv("client", pair.client, 8, 0);
    let pair = connected();
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show("writev", writev(pair.client, &[b"x"]));
    show_taken(libc::SIGPIPE);
}

fn reset_seen_by_so_error() {
    let pair = connected();
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_so_error("first", pair.client);
    show_so_error("second", pair.client);
    show_poll("client", pair.client);
    show_recv("client", pair.client, 8, 0);
    show_send("client", pair.client, b"x", libc::MSG_NOSIGNAL);
}

fn reset_wakes_recv() {
    let pair = connected();
    let client = pair.client;
    let reader = thread::spawn(move || (recv(client, &mut [0; 8], 0), recv(client, &mut [0; 8], 0)));
    sleep(5);
    abort(pair.server);
    let (first, second) = reader.join().expect("reader");
    show("recv", first);
    show("recv", second);
}

fn reset_wakes_send() {
    let pair = connected();
    crate::bulk::fill(pair.client, 0);
    let client = pair.client;
    let writer = thread::spawn(move || {
        (send(client, b"no room", libc::MSG_NOSIGNAL), send(client, b"none", libc::MSG_NOSIGNAL))
    });
    sleep(5);
    close(pair.server);
    let (first, second) = writer.join().expect("writer");
    show("send", first);
    show("send", second);
}

fn end_wakes_recv() {
    let pair = connected();
    let client = pair.client;
    let reader = thread::spawn(move || recv(client, &mut [0; 8], 0));
    sleep(5);
    close(pair.server);
    show("recv", reader.join().expect("reader"));
}

fn last_dup_decides() {
    let pair = connected();
    let twin = dup(pair.client).fd();
    show("close the original", close(pair.client));
    sleep(2);
    show_poll("server", pair.server);
    show_send("the dup", twin, b"alive", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
    show("close the dup", close(twin));
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 8, 0);
}

fn both_sides() {
    for round in 0..50 {
        let pair = connected();
        send(pair.client, b"x", 0);
        let mut byte = [0];
        let result = recv(pair.server, &mut byte, 0);
        if result.value != 1 || !close(pair.client).ok() || !close(pair.server).ok() {
            say!("round {round}: {result}");
        }
    }
    say!("done");
}

fn twice() {
    let pair = connected();
    show("close", close(pair.client));
    show("close again", close(pair.client));
    show("close -1", close(-1));
    show("close 999", close(999));
    let fresh = tcp();
    show("close of a fresh socket", close(fresh));
    show("close again", close(fresh));
}

fn reset_polls() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.client, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP, 7);
    show_epoll("before", ep);
    abort(pair.server);
    await_events(pair.client, libc::POLLHUP);
    show_epoll("after the reset", ep);
    show_select("after the reset", &[("c", pair.client)], 0);
    show_poll_for("asked for nothing", pair.client, 0, 0);
    show_recv("client", pair.client, 8, 0);
    show_epoll("after the error was taken", ep);
    show_select("after the error was taken", &[("c", pair.client)], 0);
}

fn large_unsent_delivered() {
    let pair = connected();
    let sent = crate::bulk::fill(pair.client, 0);
    show("close", close(pair.client));
    sleep(5);
    let tally = crate::bulk::receive_pattern(pair.server, u64::MAX, &[10_000]);
    say!("all: {}, intact {}, then recv = {}", tally.bytes == sent, tally.intact, tally.end);
}

/// A descriptor number that is used again has nothing of the old socket.
fn reused_number() {
    let pair = connected();
    let _hole_of_the_listener = tcp();
    send(pair.server, b"old", 0);
    await_readable(pair.client);
    let number = pair.client;
    close(number);
    let again = tcp();
    say!("same number: {}", again == number);
    show_poll("fresh", again);
    show_recv("fresh", again, 8, libc::MSG_DONTWAIT);
    show_peername("fresh", again);
    say!("{}", status_flags(again));
    close(again);
    let (read_end, write_end) = pipe(0);
    say!("same number: {}", read_end == number);
    write(write_end, b"pipe");
    show_read("pipe", read_end, 8);
}
