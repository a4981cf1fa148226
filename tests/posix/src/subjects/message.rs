//! `sendmsg`, `recvmsg`, `sendmmsg` and `recvmmsg`.

use std::ptr;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("message/gather_scatter", gather_scatter),
    solo("message/result_fields", result_fields),
    solo("message/end_of_stream", end_of_stream),
    solo("message/flags_out", flags_out),
    solo("message/sendmmsg", several_out),
    solo("message/recvmmsg", several_in),
    solo("message/mmsg_errors", several_errors),
    solo("message/errors", errors),
    solo("message/control", control),
    solo("message/timestamp", timestamp),
];

fn gather_scatter() {
    let pair = connected();
    show("sendmsg", sendmsg(pair.client, &[b"VALUE key 0 5\r\n", b"abcde", b"\r\nEND\r\n"], 0));
    await_bytes(pair.server, 27);
    show_recvmsg("server", pair.server, &[15, 5, 16], 0);
    show("sendmsg", sendmsg(pair.client, &[b"0123456789"], 0));
    await_bytes(pair.server, 10);
    show_recvmsg("server", pair.server, &[3, 3], 0);
    show_recvmsg("server", pair.server, &[3, 3], 0);
}

fn result_fields() {
    let pair = connected();
    send(pair.client, b"fields", 0);
    await_bytes(pair.server, 6);
    show_recvmsg("peek", pair.server, &[3], libc::MSG_PEEK);
    show_recvmsg("part", pair.server, &[3], 0);
    show_recvmsg("rest", pair.server, &[16], 0);
    show_recvmsg("nothing", pair.server, &[16], libc::MSG_DONTWAIT);
    show_recvmsg("fresh socket", tcp(), &[16], 0);
}

fn end_of_stream() {
    let pair = connected();
    send(pair.client, b"end", 0);
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_recvmsg("server", pair.server, &[2, 2], libc::MSG_WAITALL);
    show_recvmsg("server", pair.server, &[2, 2], libc::MSG_WAITALL);
}

fn flags_out() {
    let pair = connected();
    send(pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    for (label, flags) in [
        ("WAITALL", libc::MSG_WAITALL),
        ("DONTWAIT", libc::MSG_DONTWAIT),
        ("NOSIGNAL", libc::MSG_NOSIGNAL),
        ("CMSG_CLOEXEC", libc::MSG_CMSG_CLOEXEC),
        ("PEEK and TRUNC", libc::MSG_PEEK | libc::MSG_TRUNC),
        ("TRUNC", libc::MSG_TRUNC),
    ] {
        show_recvmsg(label, pair.server, &[2], flags);
    }
}

fn several_out() {
    let pair = connected();
    let (result, lengths) = sendmmsg(pair.client, &[b"one", b"", b"three"], 0);
    say!("sendmmsg = {result} {lengths:?}");
    await_bytes(pair.server, 8);
    show_recv("server", pair.server, 32, 0);
    let (result, _) = sendmmsg(pair.client, &[], 0);
    say!("sendmmsg of nothing = {result}");
}

fn several_in() {
    let pair = connected();
    send(pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    let (result, parts) = recvmmsg(pair.server, 4, 4, libc::MSG_DONTWAIT);
    say!("recvmmsg = {result} {parts:?}");
    let (result, _) = recvmmsg(pair.server, 4, 4, libc::MSG_DONTWAIT);
    say!("recvmmsg = {result}");
    send(pair.client, b"abcdef", 0);
    await_bytes(pair.server, 6);
    let (result, parts) = recvmmsg(pair.server, 4, 4, libc::MSG_WAITFORONE);
    say!("recvmmsg WAITFORONE = {result} {parts:?}");
    send(pair.client, b"end", 0);
    close(pair.client);
    await_events(pair.server, libc::POLLRDHUP);
    let (result, parts) = recvmmsg(pair.server, 4, 4, 0);
    say!("recvmmsg = {result} {parts:?}");
}

fn several_errors() {
    let pair = connected();
    let (result, _) = sendmmsg(-1, &[b"x"], 0);
    say!("sendmmsg on -1 = {result}");
    let (result, _) = recvmmsg(-1, 1, 1, 0);
    say!("recvmmsg on -1 = {result}");
    let (result, _) = sendmmsg(pipe(0).1, &[b"x"], 0);
    say!("sendmmsg on a pipe = {result}");
    shutdown(pair.client, libc::SHUT_WR);
    let (result, _) = sendmmsg(pair.client, &[b"x", b"y"], libc::MSG_NOSIGNAL);
    say!("sendmmsg after SHUT_WR = {result}");
}

fn errors() {
    let pair = connected();
    let byte = [b'm'];
    let iov = vec![libc::iovec { iov_base: byte.as_ptr() as *mut _, iov_len: 1 }; 1025];
    let mut header = message();
    header.msg_iov = iov.as_ptr().cast_mut();
    header.msg_iovlen = 1025;
    show("1025 segments", sendmsg_raw(pair.client, &header, 0));
    show("recvmsg, 1025 segments", recvmsg_raw(pair.client, &mut header, libc::MSG_DONTWAIT));
    header.msg_iovlen = 1024;
    show("1024 segments", sendmsg_raw(pair.client, &header, 0));
    header.msg_iovlen = 1;
    header.msg_iov = ptr::without_provenance_mut(8);
    show("bad vector", sendmsg_raw(pair.client, &header, 0));
    show("recvmsg, bad vector", recvmsg_raw(pair.client, &mut header, libc::MSG_DONTWAIT));
    header.msg_iov = iov.as_ptr().cast_mut();
    header.msg_namelen = u32::MAX;
    header.msg_name = iov.as_ptr().cast_mut().cast();
    show("name length -1", sendmsg_raw(pair.client, &header, 0));
    header.msg_namelen = 500;
    show("name length 500", sendmsg_raw(pair.client, &header, 0));
    header.msg_name = ptr::null_mut();
    show("no name, but a length", sendmsg_raw(pair.client, &header, 0));
}

/// A control message with one int, as `SCM_RIGHTS` or an IP option.
fn with_control(fd: i32, level: i32, kind: i32, len: usize) -> Ret {
    #[repr(C)]
    struct Control {
        len: usize,
        level: i32,
        kind: i32,
        value: i32,
        padding: i32,
    }
    let control = Control { len, level, kind, value: 0, padding: 0 };
    let byte = [b'c'];
    let mut iov = libc::iovec { iov_base: byte.as_ptr() as *mut _, iov_len: 1 };
    let mut header = message();
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = (&raw const control).cast_mut().cast();
    header.msg_controllen = size_of::<Control>();
    sendmsg_raw(fd, &header, 0)
}

fn control() {
    let pair = connected();
    show("SCM_RIGHTS over TCP", with_control(pair.client, libc::SOL_SOCKET, libc::SCM_RIGHTS, 20));
    show("IP_TTL", with_control(pair.client, libc::IPPROTO_IP, libc::IP_TTL, 20));
    show("unknown SOL_SOCKET type", with_control(pair.client, libc::SOL_SOCKET, 9999, 20));
    show("control length 0", with_control(pair.client, libc::SOL_SOCKET, libc::SCM_RIGHTS, 0));
    show("control length too long", with_control(pair.client, libc::SOL_SOCKET, libc::SCM_RIGHTS, 200));
}

fn timestamp() {
    let pair = connected();
    show("set SO_TIMESTAMP", set_int(pair.server, libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1));
    show_option("SO_TIMESTAMP", pair.server, libc::SOL_SOCKET, libc::SO_TIMESTAMP);
    // The kernel begins to note times of arrival only a while after the first socket on the host asked.
    let arrived = (0..500).any(|_| {
        send(pair.client, b"when", 0);
        let got = recvmsg(pair.server, &[8], 0);
        sleep(1);
        got.control_len == 32
    });
    say!("a time came: {arrived}");
}
