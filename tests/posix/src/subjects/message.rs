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
    solo("message/inq", inq),
    solo("message/inq_inherited", inq_inherited),
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
    header.msg_controllen = size_of::<Control>() as _;
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

const TCP_CM_INQ: i32 = libc::TCP_INQ;

/// Receives, and prints what TCP_INQ says is left, with `room` bytes for control data.
fn show_inq(label: &str, fd: i32, len: usize, flags: i32, room: usize) {
    let mut data = vec![0u8; len];
    let mut iov = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: len };
    let mut control = [0u64; 16];
    // SAFETY: an all-zero header is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut iov, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), room as _);
    let result = recvmsg_raw(fd, &mut header, flags);
    // SAFETY: the buffer is longer than two headers.
    let (first, left) = unsafe {
        let first = control.as_ptr().cast::<libc::cmsghdr>();
        (*first, libc::CMSG_DATA(first).cast::<i32>().read_unaligned())
    };
    let is_inq = (first.cmsg_level, first.cmsg_type) == (libc::IPPROTO_TCP, TCP_CM_INQ);
    say!(
        "{label}: {result}, control {} of {}, cut {}, left {:?}",
        first.cmsg_len,
        header.msg_controllen,
        header.msg_flags & libc::MSG_CTRUNC != 0,
        is_inq.then_some(left)
    );
}

fn inq() {
    let pair = connected();
    for value in [2, -1, 1] {
        show(&format!("set {value}"), set_int(pair.server, libc::IPPROTO_TCP, libc::TCP_INQ, value));
    }
    show_option("TCP_INQ", pair.server, libc::IPPROTO_TCP, libc::TCP_INQ);
    send(pair.client, b"0123456789", 0);
    await_bytes(pair.server, 10);
    show_inq("peek", pair.server, 4, libc::MSG_PEEK, 64);
    show_inq("a part", pair.server, 4, 0, 64);
    show_inq("the rest", pair.server, 64, 0, 64);
    show_inq("nothing", pair.server, 64, libc::MSG_DONTWAIT, 64);
    send(pair.client, b"more", 0);
    await_bytes(pair.server, 4);
    for room in [0, 8, 16, 18, 20, 24] {
        show_inq(&format!("room {room}"), pair.server, 1, libc::MSG_PEEK, room);
    }
    shutdown(pair.client, libc::SHUT_WR);
    await_events(pair.server, libc::POLLRDHUP);
    show_inq("before the end", pair.server, 3, 0, 64);
    show_inq("the last", pair.server, 3, 0, 64);
    show_inq("the end", pair.server, 3, 0, 64);
    show_inq("again", pair.server, 3, 0, 64);
    show("off", set_int(pair.server, libc::IPPROTO_TCP, libc::TCP_INQ, 0));
    show_inq("off", pair.server, 3, 0, 64);
}

fn inq_inherited() {
    let (listening, addr) = listener();
    show("set", set_int(listening, libc::IPPROTO_TCP, libc::TCP_INQ, 1));
    let pair = connect_to(listening, &addr);
    show_option("accepted", pair.server, libc::IPPROTO_TCP, libc::TCP_INQ);
    send(pair.client, b"four", 0);
    await_bytes(pair.server, 4);
    show_inq("a part", pair.server, 1, 0, 64);
}
