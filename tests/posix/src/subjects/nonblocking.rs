//! Non-blocking sending: partial results, EAGAIN, and becoming writable again.

use std::thread;

use crate::bulk::{fill, is_pattern, pattern, receive_pattern};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("nonblocking/fill_and_drain", fill_and_drain),
    solo("nonblocking/partial_send", partial_send),
    solo("nonblocking/partial_writev", partial_writev),
    solo("nonblocking/writable_again", writable_again),
    solo("nonblocking/writable_takes_kilobytes", writable_takes_kilobytes),
    solo("nonblocking/all_calls_full", all_calls_full),
    solo("nonblocking/small_buffers", small_buffers),
    solo("nonblocking/fionbio", fionbio),
    solo("nonblocking/shared_by_dup", shared_by_dup),
    solo("nonblocking/event_loop", event_loop),
    solo("nonblocking/full_both_ways", full_both_ways),
    solo("nonblocking/send_timeout_partial", send_timeout_partial),
];

fn fill_and_drain() {
    let pair = connected();
    let sent = fill(pair.client, 0);
    say!("some fits: {}", sent > 1000);
    show_poll_for("full", pair.client, libc::POLLOUT, 0);
    close(pair.client);
    let tally = receive_pattern(pair.server, u64::MAX, &[4_096, 77, 100_000]);
    say!("all of it: {}, intact {}, then recv = {}", tally.bytes == sent, tally.intact, tally.end);
}

fn partial_send() {
    let pair = connected();
    set_nonblocking(pair.client, true);
    let data = pattern(0, 64 << 20);
    let result = send(pair.client, &data, 0);
    say!("a part of 64 MiB was taken: {}", (1..data.len()).contains(&result.count()));
    close(pair.client);
    let tally = receive_pattern(pair.server, u64::MAX, &[65_536]);
    say!("the part arrived: {}, intact {}", tally.bytes as i64 == result.value, tally.intact);
}

fn partial_writev() {
    let pair = connected();
    set_nonblocking(pair.client, true);
    let data = pattern(0, 64 << 20);
    let parts: Vec<&[u8]> = data.chunks(300_007).collect();
    let result = writev(pair.client, &parts);
    say!("a part was taken: {}", (1..data.len()).contains(&result.count()));
    close(pair.client);
    let tally = receive_pattern(pair.server, u64::MAX, &[65_536]);
    say!("the part arrived: {}, intact {}", tally.bytes as i64 == result.value, tally.intact);
}

fn writable_again() {
    let pair = connected();
    let sent = fill(pair.client, 0);
    show_poll_for("full", pair.client, libc::POLLOUT, 0);
    let tally = receive_pattern(pair.server, sent, &[65_536]);
    say!("drained {}", tally.bytes == sent && tally.intact);
    await_events(pair.client, libc::POLLOUT);
    show_poll_for("drained", pair.client, libc::POLLOUT, 0);
    show_send("client", pair.client, b"again", libc::MSG_DONTWAIT);
    await_bytes(pair.server, 5);
    show_recv("server", pair.server, 16, 0);
}

/// A program that polls before each blocking send of some kilobytes never waits in one (socat does so).
fn writable_takes_kilobytes() {
    let pair = connected();
    set_timeout(pair.client, libc::SO_SNDTIMEO, 1000);
    let (mut sent, mut received, mut waited) = (0u64, 0u64, 0);
    let mut intact = true;
    let mut buffer = vec![0u8; 300_000];
    for round in 0..200 {
        let size = [8_192, 1, 500, 30_000, 4_096, 16_384][round % 6];
        let mut left = 4 << 20;
        while left > 0 && poll_one(pair.client, libc::POLLOUT, 0).1 & libc::POLLOUT != 0 {
            let count = send(pair.client, &pattern(sent, size), libc::MSG_NOSIGNAL).count();
            waited += usize::from(count != size);
            sent += count as u64;
            left -= (count as i64).max(1000);
        }
        let taken = &mut buffer[..[300_000, 20_000, 1_000, 70_000, 150_000][round % 5]];
        let count = recv(pair.server, taken, libc::MSG_DONTWAIT).count();
        intact &= is_pattern(received, &taken[..count]);
        received += count as u64;
    }
    say!("sends that had to wait: {waited}, intact {intact}, something was sent: {}", received > 1_000_000);
}

fn all_calls_full() {
    let pair = connected();
    fill(pair.client, 0);
    set_nonblocking(pair.client, true);
    show_send("send", pair.client, b"x", 0);
    show("write", write(pair.client, b"x"));
    show("writev", writev(pair.client, &[b"x", b"y"]));
    show("sendmsg", sendmsg(pair.client, &[b"x"], 0));
    show("sendto", sendto(pair.client, b"x", 0, None));
    let (result, _) = sendmmsg(pair.client, &[b"x", b"y"], 0);
    show("sendmmsg", result);
    show_send("no bytes", pair.client, b"", 0);
    let file = temporary_file(b"content");
    show("sendfile", sendfile(pair.client, file, 7));
    say!("file position {}", lseek(file, 0, libc::SEEK_CUR));
}

fn small_buffers() {
    let listening = tcp();
    set_int(listening, libc::SOL_SOCKET, libc::SO_RCVBUF, 4096);
    let addr = listen_on(listening, &Addr::local(0), 4);
    let client = tcp();
    set_int(client, libc::SOL_SOCKET, libc::SO_SNDBUF, 4096);
    connect(client, &addr);
    let server = accept(listening).fd();
    let first = send(client, &pattern(0, 300_000), libc::MSG_DONTWAIT).count();
    say!("only a part fits: {}", (1..300_000).contains(&first));
    let reader = thread::spawn(move || receive_pattern(server, u64::MAX, &[1_000]));
    show_send("blocking", client, &pattern(first as u64, 300_000), 0);
    close(client);
    let tally = reader.join().expect("reader");
    say!("all: {}, intact {}", tally.bytes == first as u64 + 300_000, tally.intact);
}

fn fionbio() {
    let pair = connected();
    show("FIONBIO 1", ioctl_int(pair.client, libc::FIONBIO, 1).0);
    say!("{}", status_flags(pair.client));
    show_recv("client", pair.client, 1, 0);
    show("FIONBIO 0", ioctl_int(pair.client, libc::FIONBIO, 0).0);
    say!("{}", status_flags(pair.client));
    show("FIONBIO 77", ioctl_int(pair.client, libc::FIONBIO, 77).0);
    say!("{}", status_flags(pair.client));
    let (listening, _) = listener();
    ioctl_int(listening, libc::FIONBIO, 1);
    show("accept", accept(listening));
}

fn shared_by_dup() {
    let pair = connected();
    let twin = dup(pair.client).fd();
    set_nonblocking(twin, true);
    say!("original: {}", status_flags(pair.client));
    show_recv("original", pair.client, 1, 0);
    fcntl(pair.client, libc::F_SETFD, libc::FD_CLOEXEC);
    say!("original {}, dup {}", descriptor_flags(pair.client), descriptor_flags(twin));
    close(pair.client);
    say!("dup after close: {}", status_flags(twin));
}

/// One thread drives both ends with poll, as an event-driven program does.
fn event_loop() {
    const TOTAL: usize = 4 << 20;
    let pair = connected();
    set_nonblocking(pair.client, true);
    set_nonblocking(pair.server, true);
    let data = pattern(0, TOTAL);
    let mut buffer = vec![0; 30_011];
    let (mut sent, mut received, mut intact) = (0, 0, true);
    while received < TOTAL {
        let want = if sent < TOTAL { libc::POLLOUT } else { 0 };
        let mut fds = [pollfd(pair.client, want), pollfd(pair.server, libc::POLLIN)];
        if poll(&mut fds, 2000).value <= 0 {
            say!("poll stalls at {sent} {received}");
            return;
        }
        if fds[0].revents & libc::POLLOUT != 0 {
            sent += send(pair.client, &data[sent..], 0).count();
        }
        if fds[1].revents & libc::POLLIN != 0 {
            let got = recv(pair.server, &mut buffer, 0).count();
            intact &= is_pattern(received as u64, &buffer[..got]);
            received += got;
        }
    }
    say!("sent {sent}, received {received}, intact {intact}");
}

fn full_both_ways() {
    let pair = connected();
    let (forth, back) = (fill(pair.client, 0), fill(pair.server, 0));
    show_poll_for("client", pair.client, libc::POLLOUT | libc::POLLIN, 0);
    show_poll_for("server", pair.server, libc::POLLOUT | libc::POLLIN, 0);
    let tally = receive_pattern(pair.client, back, &[50_000]);
    say!("server's bytes: {}, intact {}", tally.bytes == back, tally.intact);
    let tally = receive_pattern(pair.server, forth, &[50_000]);
    say!("client's bytes: {}, intact {}", tally.bytes == forth, tally.intact);
}

fn send_timeout_partial() {
    let pair = connected();
    set_timeout(pair.client, libc::SO_SNDTIMEO, 50);
    let data = pattern(0, 64 << 20);
    let result = send(pair.client, &data, 0);
    say!("a part of 64 MiB was taken: {}", (1..data.len()).contains(&result.count()));
    close(pair.client);
    let tally = receive_pattern(pair.server, u64::MAX, &[65_536]);
    say!("the part arrived: {}, intact {}", tally.bytes as i64 == result.value, tally.intact);
}
