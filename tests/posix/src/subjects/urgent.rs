//! Urgent data: `MSG_OOB`, `SIOCATMARK`, `SO_OOBINLINE`, `SIGURG`.

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("urgent/byte", byte),
    solo("urgent/mark", mark),
    solo("urgent/inline", inline),
    solo("urgent/poll_and_select", poll_and_select),
    solo("urgent/errors", errors),
    solo("urgent/sigurg", sigurg),
];

/// asm-generic/sockios.h; not in the libc crate.
const SIOCATMARK: libc::Ioctl = 0x8905;

fn show_mark(label: &str, fd: i32) {
    let (result, value) = ioctl_int(fd, SIOCATMARK, -1);
    say!("{label}: SIOCATMARK = {result} {value}");
}

fn byte() {
    let pair = connected();
    show_send("client", pair.client, b"ab", 0);
    show_send("client", pair.client, b"!", libc::MSG_OOB);
    show_send("client", pair.client, b"cd", 0);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 2);
    show_recv("urgent", pair.server, 8, libc::MSG_OOB);
    show_recv("urgent again", pair.server, 8, libc::MSG_OOB);
    show_recv("up to the mark", pair.server, 8, 0);
    await_readable(pair.server);
    show_recv("after the mark", pair.server, 8, 0);
}

fn mark() {
    let pair = connected();
    show_mark("before", pair.server);
    send(pair.client, b"ab", 0);
    send(pair.client, b"!", libc::MSG_OOB);
    send(pair.client, b"cd", 0);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 2);
    show_mark("two before the mark", pair.server);
    show_recv("one", pair.server, 1, 0);
    show_mark("one before the mark", pair.server);
    show_recv("up to the mark", pair.server, 8, 0);
    show_mark("at the mark", pair.server);
    await_readable(pair.server);
    show_recv("over the mark", pair.server, 8, 0);
    show_mark("after", pair.server);
    show_mark("fresh socket", tcp());
    show_mark("listener", listener().0);
}

fn inline() {
    let pair = connected();
    show("set SO_OOBINLINE", set_int(pair.server, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1));
    send(pair.client, b"ab", 0);
    send(pair.client, b"!", libc::MSG_OOB);
    send(pair.client, b"cd", 0);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 5);
    show_recv("urgent", pair.server, 8, libc::MSG_OOB);
    show_recv("up to the mark", pair.server, 8, 0);
    show_mark("at the mark", pair.server);
    show_recv("over the mark", pair.server, 8, 0);
}

fn poll_and_select() {
    let pair = connected();
    show_send("client", pair.client, b"long!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    await_bytes(pair.server, 4);
    show_poll("server", pair.server);
    show_select("server", &[("s", pair.server)], 0);
    show_recv("urgent", pair.server, 1, libc::MSG_OOB);
    show_poll("urgent byte taken", pair.server);
    show_recv("the rest", pair.server, 8, 0);
    show_poll("all taken", pair.server);
    let ep = epoll();
    epoll_add(ep, pair.server, libc::EPOLLIN | libc::EPOLLPRI, 1);
    show_epoll("quiet", ep);
    send(pair.client, b"!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    show_epoll("urgent", ep);
}

fn errors() {
    let pair = connected();
    show_recv("none sent", pair.server, 1, libc::MSG_OOB);
    send(pair.client, b"plain", 0);
    await_readable(pair.server);
    show_recv("plain data only", pair.server, 1, libc::MSG_OOB);
    show_send("no bytes", pair.client, b"", libc::MSG_OOB);
    shutdown(pair.client, libc::SHUT_WR);
    show_send("after SHUT_WR", pair.client, b"!", libc::MSG_OOB | libc::MSG_NOSIGNAL);
    show_recv("fresh socket", tcp(), 1, libc::MSG_OOB);
}

fn sigurg() {
    count_signal(libc::SIGURG, libc::SA_RESTART);
    let pair = connected();
    show("F_SETOWN", fcntl(pair.server, libc::F_SETOWN, getpid()));
    say!("F_GETOWN is this process: {}", fcntl(pair.server, libc::F_GETOWN, 0).fd() == getpid());
    send(pair.client, b"!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    sleep(2);
    show_taken(libc::SIGURG);
    show_recv("urgent", pair.server, 1, libc::MSG_OOB);
}
