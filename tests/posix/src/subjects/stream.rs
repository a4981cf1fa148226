//! Moving bytes with each of the calls that can.

use std::ptr;
use std::thread;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("stream/send_recv", send_recv),
    solo("stream/read_write", read_write),
    solo("stream/both_directions", both_directions),
    solo("stream/no_boundaries", no_boundaries),
    solo("stream/small_reads", small_reads),
    solo("stream/writev_readv", writev_readv),
    solo("stream/readv_partial", readv_partial),
    solo("stream/vector_limits", vector_limits),
    solo("stream/many_segments", many_segments),
    solo("stream/sendto_recvfrom", sendto_recvfrom),
    solo("stream/end_of_stream", end_of_stream),
    solo("stream/zero_length", zero_length),
    solo("stream/zero_length_recv", zero_length_recv),
    solo("stream/recv_eagain", recv_eagain),
    solo("stream/blocking_recv_waits", blocking_recv_waits),
    solo("stream/large_blocking_send", large_blocking_send),
    solo("stream/fionread", fionread_counts),
    solo("stream/siocoutq", siocoutq),
    solo("stream/errors", errors),
    solo("stream/bad_pointers", bad_pointers),
    solo("stream/partly_bad_vector", partly_bad_vector),
    solo("stream/unknown_flags", unknown_flags),
];

fn send_recv() {
    let pair = connected();
    show_send("client", pair.client, b"hello", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 64, 0);
    show_send("server", pair.server, b"hello to you", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 64, 0);
}

fn read_write() {
    let pair = connected();
    show("write", write(pair.client, b"GET / HTTP/1.0\r\n\r\n"));
    await_readable(pair.server);
    show_read("server", pair.server, 1024);
    show("write", write(pair.server, b"HTTP/1.0 200 OK\r\n\r\nbody"));
    close(pair.server);
    await_bytes(pair.client, 23);
    show_read("client", pair.client, 1024);
    show_read("client", pair.client, 1024);
}

fn both_directions() {
    let pair = connected();
    for round in 0..5 {
        show_send("client", pair.client, format!("c{round}").as_bytes(), 0);
        show_send("server", pair.server, format!("s{round}").as_bytes(), 0);
    }
    await_bytes(pair.server, 10);
    await_bytes(pair.client, 10);
    show_recv("server", pair.server, 64, 0);
    show_recv("client", pair.client, 64, 0);
}

fn no_boundaries() {
    let pair = connected();
    show_send("client", pair.client, b"one ", 0);
    show_send("client", pair.client, b"two ", 0);
    show("write", write(pair.client, b"three "));
    show("writev", writev(pair.client, &[b"fo", b"ur"]));
    await_bytes(pair.server, 18);
    show_recv("server", pair.server, 64, 0);
}

fn small_reads() {
    let pair = connected();
    show_send("client", pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    for size in [3, 3, 1, 2, 64] {
        show_recv("server", pair.server, size, libc::MSG_DONTWAIT);
    }
    show_recv("server", pair.server, 64, libc::MSG_DONTWAIT);
}

fn writev_readv() {
    let pair = connected();
    show("writev", writev(pair.client, &[b"GET ", b"", b"/index.html", b"\r\n"]));
    await_bytes(pair.server, 17);
    let mut parts = vec![vec![0; 4], vec![0; 0], vec![0; 11], vec![0; 10]];
    show("readv", readv(pair.server, &mut parts));
    for part in &parts {
        say!("part {}", text(part));
    }
}

fn readv_partial() {
    let pair = connected();
    send(pair.client, b"abcdef", 0);
    await_bytes(pair.server, 6);
    let mut parts = vec![vec![b'.'; 4], vec![b'.'; 4], vec![b'.'; 4]];
    show("readv", readv(pair.server, &mut parts));
    say!("{:?}", parts.iter().map(|part| text(part)).collect::<Vec<_>>());
    set_nonblocking(pair.server, true);
    show("readv", readv(pair.server, &mut parts));
    shutdown(pair.client, libc::SHUT_WR);
    await_readable(pair.server);
    show("readv", readv(pair.server, &mut parts));
}

fn vector_limits() {
    let pair = connected();
    let byte = [b'v'];
    let one = libc::iovec { iov_base: byte.as_ptr() as *mut _, iov_len: 1 };
    let long = libc::iovec { iov_len: usize::MAX, ..one };
    show("0 segments", writev_raw(pair.client, &[one], 0));
    show("-1 segments", writev_raw(pair.client, &[one], -1));
    show("1024 segments", writev_raw(pair.client, &vec![one; 1024], 1024));
    show("1025 segments", writev_raw(pair.client, &vec![one; 1025], 1025));
    show("length -1", writev_raw(pair.client, &[one, long], 2));
    let null = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    show("null base, no length", writev_raw(pair.client, &[one, null, one], 3));
    await_bytes(pair.server, 1026);
    say!("ready {}", fionread(pair.server));
}

fn many_segments() {
    let pair = connected();
    let words: Vec<String> = (0..600).map(|index| format!("{index};")).collect();
    let parts: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let whole = words.concat();
    let sent = show("writev", writev(pair.client, &parts));
    await_bytes(pair.server, sent.fd());
    let mut into: Vec<Vec<u8>> = (0..1000).map(|index| vec![0; index % 5]).collect();
    let got = show("readv", readv(pair.server, &mut into));
    let joined = into.concat();
    say!("same bytes: {}", joined[..got.count()] == whole.as_bytes()[..got.count()]);
}

fn sendto_recvfrom() {
    let pair = connected();
    show("sendto without address", sendto(pair.client, b"one", 0, None));
    show("sendto with an address", sendto(pair.client, b"two", 0, Some(&Addr::local(1))));
    await_bytes(pair.server, 6);
    let mut buffer = [0; 16];
    let (result, addr) = recvfrom(pair.server, &mut buffer, 0);
    show_bytes("recvfrom", result, &buffer);
    say!("address: {addr}, len {}", addr.len);
    show("sendto on a fresh socket", sendto(tcp(), b"x", libc::MSG_NOSIGNAL, Some(&Addr::local(1))));
    let (result, _) = recvfrom(tcp(), &mut buffer, 0);
    show("recvfrom on a fresh socket", result);
}

fn end_of_stream() {
    let pair = connected();
    send(pair.client, b"last words", 0);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 4, 0);
    show_recv("server", pair.server, 64, 0);
    show_recv("server", pair.server, 64, 0);
    show_recv("server again", pair.server, 64, 0);
    show_read("server", pair.server, 64);
    show_recvmsg("server", pair.server, &[8], 0);
    show_recv("server peek", pair.server, 8, libc::MSG_PEEK);
    show_recv("server waitall", pair.server, 8, libc::MSG_WAITALL);
}

fn zero_length() {
    let pair = connected();
    show_send("client", pair.client, b"", 0);
    show("write", write(pair.client, b""));
    show("writev", writev(pair.client, &[b"", b""]));
    show("sendmsg", sendmsg(pair.client, &[], 0));
    show("sendto", sendto(pair.client, b"", 0, None));
    sleep(2);
    show_poll("server", pair.server);
    shutdown(pair.client, libc::SHUT_WR);
    show_send("after SHUT_WR", pair.client, b"", libc::MSG_NOSIGNAL);
    show("write after SHUT_WR", write(pair.client, b""));
}

fn zero_length_recv() {
    let pair = connected();
    show_read("nothing there", pair.server, 0);
    show_recv("nothing there", pair.server, 0, libc::MSG_DONTWAIT);
    show_recvmsg("nothing there", pair.server, &[], libc::MSG_DONTWAIT);
    send(pair.client, b"data", 0);
    await_readable(pair.server);
    show_read("data there", pair.server, 0);
    show_recv("data there", pair.server, 0, 0);
    show_recv("data there, peek", pair.server, 0, libc::MSG_PEEK);
    show_recvmsg("data there", pair.server, &[], 0);
    say!("ready {}", fionread(pair.server));
    show_recv("all of it", pair.server, 8, 0);
    shutdown(pair.client, libc::SHUT_WR);
    await_readable(pair.server);
    show_recv("at the end", pair.server, 0, 0);
}

fn recv_eagain() {
    let pair = connected();
    set_nonblocking(pair.server, true);
    show_recv("recv", pair.server, 8, 0);
    show_read("read", pair.server, 8);
    let mut parts = vec![vec![0; 4]];
    show("readv", readv(pair.server, &mut parts));
    show_recvmsg("recvmsg", pair.server, &[4], 0);
    let (result, _) = recvfrom(pair.server, &mut [0; 4], 0);
    show("recvfrom", result);
    show_recv("peek", pair.server, 8, libc::MSG_PEEK);
    show_recv("waitall", pair.server, 8, libc::MSG_WAITALL);
    set_nonblocking(pair.server, false);
    show_recv("dontwait", pair.server, 8, libc::MSG_DONTWAIT);
}

fn blocking_recv_waits() {
    let pair = connected();
    let server = pair.server;
    let reader = thread::spawn(move || {
        let mut buffer = [0; 16];
        let result = recv(server, &mut buffer, 0);
        (result, buffer)
    });
    sleep(5);
    show_send("client", pair.client, b"wake up", 0);
    let (result, buffer) = reader.join().expect("reader");
    show_bytes("recv", result, &buffer);
}

fn large_blocking_send() {
    let pair = connected();
    let server = pair.server;
    let reader = thread::spawn(move || crate::bulk::receive_pattern(server, u64::MAX, &[100_000]));
    let data = crate::bulk::pattern(0, 6_000_000);
    show_send("client, in one call", pair.client, &data, 0);
    close(pair.client);
    reader.join().expect("reader").show("server");
}

fn fionread_counts() {
    let pair = connected();
    say!("nothing {}", fionread(pair.server));
    send(pair.client, &[7; 1000], 0);
    await_bytes(pair.server, 1000);
    say!("after 1000: {}", fionread(pair.server));
    send(pair.client, &[7; 234], 0);
    await_bytes(pair.server, 1234);
    say!("after 234 more: {}", fionread(pair.server));
    recv(pair.server, &mut [0; 34], 0);
    say!("after recv of 34: {}", fionread(pair.server));
    recv(pair.server, &mut [0; 34], libc::MSG_PEEK);
    say!("after a peek: {}", fionread(pair.server));
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    say!("after the end came: {}", fionread(pair.server));
    recv(pair.server, &mut [0; 2000], 0);
    say!("all read: {}", fionread(pair.server));
}

fn siocoutq() {
    let pair = connected();
    let (result, value) = ioctl_int(pair.client, libc::TIOCOUTQ, -1);
    say!("idle: {result} {value}");
    send(pair.client, &[7; 1000], 0);
    await_bytes(pair.server, 1000);
    recv(pair.server, &mut [0; 1000], 0);
    let drained = (0..2000).any(|_| {
        sleep(1);
        ioctl_int(pair.client, libc::TIOCOUTQ, -1).1 == 0
    });
    say!("zero after the peer has it: {drained}");
    crate::bulk::fill(pair.client, 0);
    say!("not zero when full: {}", ioctl_int(pair.client, libc::TIOCOUTQ, -1).1 > 0);
    show("SIOCOUTQ of a listener", ioctl_int(listener().0, libc::TIOCOUTQ, 0).0);
}

fn errors() {
    let (read_end, write_end) = pipe(0);
    show_send("bad descriptor", -1, b"x", 0);
    show_recv("bad descriptor", -1, 1, 0);
    show_send("pipe", write_end, b"x", 0);
    show_recv("pipe", read_end, 1, 0);
    show("sendmsg on a pipe", sendmsg(write_end, &[b"x"], 0));
    show_recvmsg("pipe", read_end, &[1], 0);
    show("sendto on a file", sendto(temporary_file(b""), b"x", 0, None));
    let pair = connected();
    close(pair.client);
    show_send("closed descriptor", pair.client, b"x", 0);
    show_recv("closed descriptor", pair.client, 1, 0);
    show("write", write(pair.client, b"x"));
    show_read("closed descriptor", pair.client, 1);
}

fn bad_pointers() {
    let pair = connected();
    show("send from null", send_raw(pair.client, ptr::null(), 10));
    show("send from a bad address", send_raw(pair.client, ptr::without_provenance(8), 10));
    sleep(2);
    say!("ready {}", fionread(pair.server));
    send(pair.client, b"data", 0);
    await_readable(pair.server);
    show("recv to null", recv_raw(pair.server, ptr::null_mut(), 10));
    show("recv to a bad address", recv_raw(pair.server, ptr::without_provenance_mut(8), 10));
    show_recv("nothing is lost", pair.server, 8, libc::MSG_DONTWAIT);
    show("send of no bytes from null", send_raw(pair.client, ptr::null(), 0));
}

fn partly_bad_vector() {
    let pair = connected();
    let good = libc::iovec { iov_base: b"good".as_ptr() as *mut _, iov_len: 4 };
    let bad = libc::iovec { iov_base: ptr::without_provenance_mut(8), iov_len: 4 };
    show("bad first", writev_raw(pair.client, &[bad, good], 2));
    let result = show("bad second", writev_raw(pair.client, &[good, bad], 2));
    sleep(2);
    say!("ready as told: {}", i64::from(fionread(pair.server)) == result.value.max(0));
}

fn unknown_flags() {
    let pair = connected();
    show_send("flag 0x01000000", pair.client, b"a", 0x0100_0000);
    show_send("MSG_DONTROUTE", pair.client, b"b", libc::MSG_DONTROUTE);
    show_send("MSG_EOR", pair.client, b"c", libc::MSG_EOR);
    show_send("MSG_CONFIRM", pair.client, b"d", libc::MSG_CONFIRM);
    await_bytes(pair.server, 4);
    show_recv("flag 0x01000000", pair.server, 1, 0x0100_0000);
    show_recv("MSG_NOSIGNAL", pair.server, 1, libc::MSG_NOSIGNAL);
    show_recv("MSG_CTRUNC", pair.server, 1, libc::MSG_CTRUNC);
    show_recv("MSG_ERRQUEUE", pair.server, 1, libc::MSG_ERRQUEUE);
    show_recv("what is left", pair.server, 8, 0);
}
